//! Collectives: what several devices do together with a tensor that each of them has.
//!
//! Two engines have one interface. Of GPUs it is NCCL. Emulated devices tell each other what they have, and each adds it up in the order
//! of the ranks: the same bits in each run.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use half::{bf16, f16};

use crate::device::Inner;
use crate::nccl::{Api, Handle, Id, MEAN, SUM, type_of};
use crate::{DType, Device, Error, Group, Mark, Mode, RankFailure, RawBuffer, Stream};

/// What is done with a tensor of each rank. `n` is the count of elements of a [`Call`], W the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Collective {
    /// n elements become the sum of those of all ranks, on all ranks.
    AllReduce,
    /// The same, divided by W.
    AllReduceMean,
    /// Of W n elements, the sum of all ranks' r-th n goes to rank r.
    ReduceScatter,
    /// The n elements of each rank go to all, one rank's behind the other's.
    AllGather,
    /// Of W n elements of each rank, the r-th n go to rank r, one rank's behind the other's.
    AllToAll,
    /// The n elements of this rank go to all.
    Broadcast(usize),
}

impl Collective {
    /// As NCCL calls it, in small letters.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllReduceMean => "all_reduce (mean)",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::AllToAll => "all_to_all",
            Self::Broadcast(_) => "broadcast",
        }
    }

    /// Elements that it reads and that it writes, of calls over `count`.
    pub fn elements(self, count: usize, world: usize) -> [usize; 2] {
        match self {
            Self::AllReduce | Self::AllReduceMean | Self::Broadcast(_) => [count, count],
            Self::ReduceScatter => [count * world, count],
            Self::AllGather => [count, count * world],
            Self::AllToAll => [count * world; 2],
        }
    }
}

/// A collective with the type and the number of its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What is done.
    pub collective: Collective,
    /// Of the elements.
    pub dtype: DType,
    /// See [`Collective`].
    pub count: usize,
    /// What a message calls the tensor: its layer and slot.
    pub of: String,
}

impl std::fmt::Display for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { collective, dtype, count, of } = self;
        write!(f, "{} of {count} {dtype} of {of}", collective.name())?;
        if let Collective::Broadcast(root) = collective {
            write!(f, " from rank {root}")?;
        }
        Ok(())
    }
}

/// One rank's end of what all do together, on its device.
#[derive(Debug)]
pub struct Communicator {
    device: Device,
    group: Arc<Group>,
    engine: Engine,
    /// Why no copy engines make its collectives, where none do.
    copies: Result<(), String>,
    /// Collectives that it has begun.
    calls: AtomicU64,
    /// On a checked emulator, those whose results nobody may look for yet.
    under_way: Mutex<Vec<UnderWay>>,
}

/// A collective that has not come to its end: see [`Communicator::settle`].
#[derive(Debug)]
struct UnderWay {
    number: u64,
    name: String,
    to: u64,
    result: Vec<u8>,
}

impl UnderWay {
    fn meets(&self, address: u64, bytes: usize) -> bool {
        address < self.to + self.result.len() as u64 && self.to < address + bytes as u64
    }
}

#[derive(Debug)]
enum Engine {
    /// Of emulated devices: they tell each other what they have.
    Exchange,
    Nccl(Arc<Nccl>),
}

impl Communicator {
    /// Of a group that is of one kind of device: of GPUs each rank has one of its own.
    ///
    /// # Errors
    /// [`Error::NoLibrary`]: there is no NCCL here. [`Error::Rank`]: a rank has another kind of device, or does not come within the group's limit. What NCCL reports.
    pub fn new(device: &Device, group: Group) -> Result<Arc<Self>, Error> {
        Self::new_by(device, group, false)
    }

    /// The same, whose [`AllGather`](Collective::AllGather) and [`AllToAll`](Collective::AllToAll) are made by the copy engines of GPUs
    /// of one host, which take no multiprocessor, between buffers that it gives ([`Communicator::shared_buffer`]). Where NCCL has no
    /// such ([`Communicator::copies`]), they are as of any other.
    ///
    /// # Errors
    /// As [`Communicator::new`]; not all ranks want it.
    pub fn by_copies(device: &Device, group: Group) -> Result<Arc<Self>, Error> {
        Self::new_by(device, group, true)
    }

    fn new_by(device: &Device, group: Group, by_copies: bool) -> Result<Arc<Self>, Error> {
        let group = Arc::new(group);
        let made = Self::made(device, &group, by_copies);
        if let Err(error) = &made
            && group.failure().is_none()
        {
            group.fail(error.to_string());
        }
        made.map(Arc::new)
    }

    /// Whether copy engines can make collectives of a group, which all ranks must want or none.
    fn copies_of(device: &Device, group: &Group, wants: bool) -> Result<Result<(), String>, Error> {
        group.check_same("--copy-engines", if wants { "yes" } else { "no" })?;
        let able = match &*device.inner {
            _ if !wants => Err("they were not asked for".to_owned()),
            Inner::Emulator(_) => Ok(()),
            Inner::Cuda(_) => Api::get()?.copies().map(drop),
        };
        let host = ["boot_id", "../hostname"].map(|name| {
            std::fs::read_to_string(format!("/proc/sys/kernel/random/{name}")).unwrap_or_default()
        });
        let own = format!("{}\n{}", able.clone().err().unwrap_or_default(), host.concat());
        let all = group.exchange("copy engines", own.as_bytes())?;
        let all: Vec<_> = all.iter().map(|own| String::from_utf8_lossy(own)).collect();
        let part = |rank: usize, n: usize| all[rank].splitn(2, '\n').nth(n).unwrap_or_default();
        let unable = (0..all.len()).map(|rank| part(rank, 0)).find(|reason| !reason.is_empty());
        let is_one_host = (1..all.len()).all(|rank| part(rank, 1) == part(0, 1));
        Ok(match unable {
            Some(reason) => Err(reason.to_owned()),
            None if is_one_host => Ok(()),
            None => Err("the ranks are on several hosts".into()),
        })
    }

    fn made(device: &Device, group: &Arc<Group>, by_copies: bool) -> Result<Self, Error> {
        group.check_same("device", &device.kind().to_string())?;
        let copies = Self::copies_of(device, group, by_copies)?;
        let engine = match &*device.inner {
            Inner::Emulator(_) => Engine::Exchange,
            Inner::Cuda(_) => Engine::Nccl(Nccl::new(device, group, copies.is_ok())?),
        };
        let (device, group) = (device.clone(), Arc::clone(group));
        let (calls, under_way) = (AtomicU64::new(0), Mutex::default());
        let all = Self { device, group, engine, copies, calls, under_way };
        all.try_out()?;
        all.try_copies()?;
        Ok(all)
    }

    /// Whether copy engines make its collectives.
    ///
    /// # Errors
    /// None do, and why.
    pub fn copies(&self) -> Result<(), &str> {
        self.copies.as_ref().copied().map_err(String::as_str)
    }

    /// Memory that copy engines of all ranks reach, where they make this one's collectives; any other elsewhere. All ranks ask for as
    /// much, in the same order.
    ///
    /// # Errors
    /// The driver's and NCCL's.
    pub fn shared_buffer(&self, bytes: usize) -> Result<RawBuffer, Error> {
        let (Engine::Nccl(nccl), Ok(())) = (&self.engine, &self.copies) else {
            return self.device.raw_buffer(bytes);
        };
        let _watch = self.watch("memory that all ranks reach", self.group.limit());
        let (address, window) = Nccl::window(nccl, bytes)?;
        Ok(RawBuffer::of_window(&self.device, address, bytes, window))
    }

    /// On GPUs whose copy engines make collectives, before any graph is recorded: NCCL prepares them at the first. There are two of them:
    /// of those in a graph the first waits for ones in its flags, which are the numbers of the last but one and the last.
    fn try_copies(&self) -> Result<(), Error> {
        const COUNT: usize = 1 << 16;
        if matches!(self.engine, Engine::Exchange) || self.copies.is_err() {
            return Ok(());
        }
        let (rank, world, stream) = (self.rank(), self.world(), self.device.stream()?);
        let bytes = COUNT * world * size_of::<f32>();
        let [from, to] = [self.shared_buffer(bytes)?, self.shared_buffer(bytes)?];
        let _watch = self.watch("the first copies", self.group.limit());
        for collective in [Collective::AllToAll, Collective::AllGather] {
            // SAFETY: nothing else uses the buffers.
            unsafe {
                from.write(0, bytemuck::cast_slice(&vec![rank as f32; COUNT * world]))?;
                to.write(0, bytemuck::cast_slice(&vec![-1f32; COUNT * world]))?;
            }
            stream.follow()?;
            let call = Call { collective, dtype: DType::F32, count: COUNT, of: "a test".into() };
            // SAFETY: the buffers have so many elements, and are read when the stream has ended.
            unsafe { self.run(&[(call, from.address(), to.address())], &stream)? };
            stream.synchronize()?;
            self.group.check()?;
            let mut got = vec![0f32; COUNT * world];
            to.read(0, bytemuck::cast_slice_mut(&mut got))?;
            if let Some(other) =
                (0..world).find(|&other| got[(other + 1) * COUNT - 1] != other as f32)
            {
                let got = got[(other + 1) * COUNT - 1];
                let reason = format!("NCCL: {}: expected {other}, got {got}", collective.name());
                return Err(RankFailure { rank, reason }.into());
            }
        }
        Ok(())
    }

    /// On GPUs: NCCL connects the ranks at the first call of a size, which it had better not do while a graph is recorded.
    fn try_out(&self) -> Result<(), Error> {
        if matches!(self.engine, Engine::Exchange) {
            return Ok(());
        }
        let stream = self.device.stream()?;
        let _watch = self.watch("the first collectives", self.group.limit());
        let (rank, world) = (self.rank(), self.world());
        for (collective, count) in [
            (Collective::AllReduce, 1),
            (Collective::AllReduce, 1 << 23),
            (Collective::AllGather, 1 << 20),
        ] {
            let [_, len] = collective.elements(count, world);
            let values = self.device.upload(&vec![1f32 + rank as f32; len])?;
            stream.follow()?;
            let to = values.address_on(&self.device, len)?;
            let (from, expected) = match collective {
                Collective::AllGather => (to + (rank * count * size_of::<f32>()) as u64, world),
                _ => (to, world * (world + 1) / 2),
            };
            let call = Call { collective, dtype: DType::F32, count, of: "a test".to_owned() };
            // SAFETY: the buffer has so many elements, and is read when the stream has ended.
            unsafe { self.run(&[(call, from, to)], &stream)? };
            stream.synchronize()?;
            self.group.check()?;
            let last = values.download()?[len - 1];
            if last != expected as f32 {
                let reason =
                    format!("NCCL: {}: expected {expected}, got {last}", collective.name());
                return Err(RankFailure { rank, reason }.into());
            }
        }
        Ok(())
    }

    /// From 0.
    pub fn rank(&self) -> usize {
        self.group.rank()
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.group.world()
    }

    /// Who they are.
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Refuses where not all ranks will make the same calls in the same order: `calls` are those of this one.
    ///
    /// # Errors
    /// [`Error::Rank`], with the first call that is another.
    pub fn check_same(&self, calls: &[Call]) -> Result<(), Error> {
        let own: Vec<String> = calls.iter().map(Call::to_string).collect();
        let all = self.group.exchange("collectives", own.join("\n").as_bytes())?;
        let of = |rank: usize| {
            String::from_utf8_lossy(&all[rank]).lines().map(str::to_owned).collect::<Vec<_>>()
        };
        let first = of(0);
        for rank in 1..self.world() {
            let other = of(rank);
            for number in 0..first.len().max(other.len()) {
                let [expected, got] =
                    [&first, &other].map(|all| all.get(number).map_or("none", String::as_str));
                if expected != got {
                    let reason = format!(
                        "collective {number} of the plan: expected {expected}, as rank 0 has it, got {got}"
                    );
                    self.group.fail_as(RankFailure { rank, reason });
                    return self.group.check();
                }
            }
        }
        Ok(())
    }

    /// Does these as one, in the order of a stream: each with the addresses that are read and written, which are one or lie apart.
    ///
    /// # Errors
    /// [`Error::Rank`]: a rank has failed; on the emulator also, with its number, a call that is another than rank 0's, or that some
    /// rank does not come to within the group's limit, or of bytes that nobody has written. What NCCL reports.
    ///
    /// # Safety
    /// The memory is there, and nothing on other streams uses it until the stream has come to its end.
    pub unsafe fn run(&self, calls: &[(Call, u64, u64)], stream: &Stream) -> Result<(), Error> {
        self.group.check()?;
        stream.check_device(&self.device)?;
        match &self.engine {
            Engine::Nccl(nccl) => nccl.run(calls, stream),
            Engine::Exchange => {
                lab_emulator::grids_ended();
                for (call, from, to) in calls {
                    // SAFETY: the caller's promise.
                    unsafe { self.exchange(call, *from, *to)? };
                }
                Ok(())
            }
        }
    }

    /// # Safety
    /// The memory is there, of this process, and nothing else uses it.
    unsafe fn exchange(&self, call: &Call, from: u64, to: u64) -> Result<(), Error> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let name = format!("collective {number}, {call}");
        let (rank, size) = (self.rank(), call.dtype.size());
        let part = call.count * size;
        let [bytes, written] =
            call.collective.elements(call.count, self.world()).map(|elements| elements * size);
        let looks = matches!(self.device.mode(), Some(Mode::Checked | Mode::Counted));
        // What the ones before have made of it.
        self.settle_those(|one| one.meets(from, bytes) || one.meets(to, written))?;
        let own = match call.collective {
            Collective::Broadcast(root) if root != rank => &[],
            // SAFETY: the caller's promise.
            _ => unsafe { std::slice::from_raw_parts(from as *const u8, bytes) },
        };
        if looks
            && let Some((first, count)) = lab_emulator::never_written(from as *const u8, own.len())
        {
            let reason = format!(
                "{name}: {count} of {bytes} bytes were never written, the first of them byte {first}"
            );
            return self.fail(rank, reason);
        }
        let all = self.group.exchange_within(&name, own, Some(self.group.limit()))?;
        let is_sent =
            |other: usize| !matches!(call.collective, Collective::Broadcast(root) if root != other);
        let expected = |other: usize| if is_sent(other) { bytes } else { 0 };
        if let Some(other) = (0..all.len()).find(|&other| all[other].len() != expected(other)) {
            let got = all[other].len();
            return self
                .fail(other, format!("{name}: expected {} bytes, got {got}", expected(other)));
        }
        let is_mean = call.collective == Collective::AllReduceMean;
        let sum_from = |start: usize| {
            let parts: Vec<&[u8]> = all.iter().map(|all| &all[start..start + part]).collect();
            sum(call.dtype, &parts, is_mean)
        };
        let result = match call.collective {
            Collective::AllReduce | Collective::AllReduceMean => sum_from(0),
            Collective::ReduceScatter => sum_from(rank * part),
            Collective::AllGather => all.concat(),
            Collective::AllToAll => {
                let own = |all: &Vec<u8>| all[rank * part..][..part].to_vec();
                all.iter().flat_map(own).collect()
            }
            Collective::Broadcast(root) => all[root].clone(),
        };
        let one = UnderWay { number, name, to, result };
        if !looks {
            // SAFETY: the caller's promise; of as many bytes as the collective writes.
            unsafe { std::ptr::copy_nonoverlapping(one.result.as_ptr(), to as *mut u8, written) };
            return Ok(());
        }
        // Whoever looks for it before its end finds nothing.
        // SAFETY: the caller's promise; of as many bytes as the collective writes.
        unsafe { std::ptr::write_bytes(to as *mut u8, 0xFF, written) };
        lab_emulator::host_took_bytes(to as *const u8, written);
        self.under_way().push(one);
        Ok(())
    }

    fn fail(&self, rank: usize, reason: String) -> Result<(), Error> {
        self.group.fail_as(RankFailure { rank, reason });
        self.group.check()
    }

    fn under_way(&self) -> std::sync::MutexGuard<'_, Vec<UnderWay>> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many collectives it has begun on an emulated device.
    pub fn begun(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Lets the collectives come to their end, for whoever waits for them: on a checked emulator, where until then their memory holds
    /// nothing. On a GPU the stream's end is theirs.
    ///
    /// # Errors
    /// [`Error::Rank`]: somebody has written what a collective was about to.
    pub fn settle(&self) -> Result<(), Error> {
        self.settle_those(|_| true)
    }

    /// The same of the first so many that it has begun.
    ///
    /// # Errors
    /// As [`Communicator::settle`].
    pub fn settle_first(&self, begun: u64) -> Result<(), Error> {
        self.settle_those(|one| one.number < begun)
    }

    fn settle_those(&self, is_one: impl Fn(&UnderWay) -> bool) -> Result<(), Error> {
        let ended: Vec<UnderWay> = {
            let mut all = self.under_way();
            let (ended, others) = std::mem::take(&mut *all).into_iter().partition(is_one);
            *all = others;
            ended
        };
        for UnderWay { name, to, result, .. } in ended {
            lab_emulator::grids_ended();
            let bytes = result.len();
            let unwritten =
                lab_emulator::never_written(to as *const u8, bytes).map_or(0, |(_, n)| n);
            if unwritten != bytes {
                let written = bytes - unwritten;
                let reason =
                    format!("{name}: {written} of {bytes} bytes were written before its end");
                return self.fail(self.rank(), reason);
            }
            // SAFETY: whoever has called `run` has promised that the memory is there, and that nothing else uses it.
            unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), to as *mut u8, bytes) };
            lab_emulator::host_wrote_bytes(to as *const u8, bytes);
        }
        Ok(())
    }

    /// Forgets those under way: whoever had begun them ends before them.
    pub fn forget(&self) {
        self.under_way().clear();
    }

    /// Waits for what is in the device's own queue, where copy engines make collectives: those of a rank that waits for another in vain
    /// end with the process, and NCCL ends none of them. Elsewhere who reads results waits.
    ///
    /// # Errors
    /// [`Error::Rank`]: a rank has failed. What the driver reports.
    pub fn wait(&self) -> Result<(), Error> {
        const LOOK: Duration = Duration::from_micros(100);
        if matches!(self.engine, Engine::Exchange) || self.copies.is_err() {
            return Ok(());
        }
        let mark = Mark::new(&self.device)?;
        mark.set(None)?;
        loop {
            self.group.check()?;
            if mark.has_passed()? {
                return Ok(());
            }
            thread::sleep(LOOK);
        }
    }

    /// Watches over what is launched until it is dropped: on GPUs, where a collective waits for its peers on the device, nobody else
    /// does. What takes longer than this is ended, as it is where a rank fails.
    pub fn watch(&self, what: &str, limit: Duration) -> Watch<'_> {
        if let Engine::Nccl(nccl) = &self.engine {
            *nccl.lock_deadline() = Some((Instant::now() + limit, what.to_owned(), limit));
        }
        Watch(self)
    }
}

impl Drop for Communicator {
    /// Where it has failed, its own thread ends what is under way: the process had better not end in the middle of that.
    fn drop(&mut self) {
        let Engine::Nccl(nccl) = &self.engine else { return };
        let until = Instant::now() + Duration::from_secs(5);
        while self.group.failure().is_some()
            && !nccl.raw.load(Ordering::Acquire).is_null()
            && Instant::now() < until
        {
            thread::sleep(Duration::from_millis(20));
        }
        let others = || Arc::strong_count(nccl) - nccl.windows.load(Ordering::Acquire);
        while others() > 1 && Instant::now() < until {
            thread::sleep(Duration::from_millis(20));
        }
    }
}

/// See [`Communicator::watch`].
#[derive(Debug)]
pub struct Watch<'a>(&'a Communicator);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if let Engine::Nccl(nccl) = &self.0.engine {
            *nccl.lock_deadline() = None;
        }
    }
}

/// NCCL's communicator of a GPU.
#[derive(Debug)]
struct Nccl {
    device: Device,
    api: &'static Api,
    group: Arc<Group>,
    /// None once it was aborted; held while NCCL is called.
    handle: Mutex<Option<Shared>>,
    /// The same, for who must abort a call that does not end; null once it was.
    raw: AtomicPtr<c_void>,
    /// When what is watched must have ended, what it is, and how long it may take.
    due: Mutex<Option<(Instant, String, Duration)>>,
    /// How many there are.
    windows: AtomicUsize,
    /// Whether copy engines make collectives.
    by_copies: bool,
}

static GIVEN_UP: AtomicBool = AtomicBool::new(false);

/// Whether a GPU of this process waits for a rank that has failed, which nothing ends but the process's own end: one that had better not
/// wait for the driver.
pub fn has_given_up() -> bool {
    GIVEN_UP.load(Ordering::Acquire)
}

/// A communicator's handle.
#[derive(Clone, Copy, Debug)]
struct Shared(Handle);

// SAFETY: NCCL takes a communicator from any thread, one at a time: the mutex around it sees to that.
unsafe impl Send for Shared {}

impl std::fmt::Debug for Api {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Api").finish_non_exhaustive()
    }
}

impl Nccl {
    fn new(device: &Device, group: &Arc<Group>, by_copies: bool) -> Result<Arc<Self>, Error> {
        let api = Api::get()?;
        let (rank, world) = (group.rank(), group.world());
        // Of one process, NCCL reads the others' memory as it lies.
        if group.is_one_process()
            && let Inner::Cuda(cuda) = &*device.inner
        {
            cuda.open_pool_to_peers()?;
        }
        group.check_same("version of NCCL", &api.version())?;
        let own = if rank == 0 { api.new_id()?.0.to_vec() } else { Vec::new() };
        let all = group.exchange("id of NCCL", &own)?;
        let id = all[0].as_slice().try_into().map_err(|_| RankFailure {
            rank: 0,
            reason: format!("id of NCCL: expected 128 bytes, got {}", all[0].len()),
        })?;
        // It waits for the others and cannot be told to stop: this thread stays behind where they do not come.
        let (sender, receiver) = std::sync::mpsc::channel();
        let (entered, of_thread) = (device.clone(), rank);
        thread::spawn(move || {
            let Inner::Cuda(cuda) = &*entered.inner else { return };
            // SAFETY: the device's context is current.
            let made = cuda.enter().and_then(|()| unsafe {
                let copies = api.copies().ok().filter(|_| by_copies);
                api.init(world, Id(id), of_thread, copies)
            });
            let _ = sender.send(made.map(Shared));
        });
        let until = Instant::now() + group.limit();
        let handle = loop {
            match receiver.recv_timeout(Duration::from_millis(50)) {
                Ok(made) => break made?,
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    return Err(RankFailure {
                        rank,
                        reason: "ncclCommInitRank has panicked".into(),
                    }
                    .into());
                }
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    group.check()?;
                    if Instant::now() >= until {
                        let reason = format!(
                            "ncclCommInitRank has not ended within {} s",
                            group.limit().as_secs_f64()
                        );
                        return Err(RankFailure { rank, reason }.into());
                    }
                }
            }
        };
        let (device, group) = (device.clone(), Arc::clone(group));
        let all = Arc::new(Self {
            device,
            api,
            group,
            raw: AtomicPtr::new(handle.0),
            handle: Mutex::new(Some(handle)),
            due: Mutex::default(),
            windows: AtomicUsize::new(0),
            by_copies,
        });
        let watched = Arc::downgrade(&all);
        thread::spawn(move || look_after(&watched));
        Ok(all)
    }

    fn lock_deadline(&self) -> std::sync::MutexGuard<'_, Option<(Instant, String, Duration)>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self) -> std::sync::MutexGuard<'_, Option<Shared>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, calls: &[(Call, u64, u64)], stream: &Stream) -> Result<(), Error> {
        let Inner::Cuda(cuda) = &*self.device.inner else { unreachable!("NCCL is of GPUs") };
        cuda.enter()?;
        let held = self.handle();
        let handle = self.handle_for_call(&held)?;
        let (api, stream) = (self.api, stream.handle());
        api.together(|| {
            for (call, from, to) in calls {
                let (from, to, dtype) = (*from as *const _, *to as *mut _, type_of(call.dtype));
                let n = call.count;
                // SAFETY: the caller of `run` has promised that the memory is there; the handle is alive, and held.
                let (name, status) = unsafe {
                    match call.collective {
                        Collective::AllReduce => (
                            "ncclAllReduce",
                            (api.all_reduce)(from, to, n, dtype, SUM, handle, stream),
                        ),
                        Collective::AllReduceMean => (
                            "ncclAllReduce",
                            (api.all_reduce)(from, to, n, dtype, MEAN, handle, stream),
                        ),
                        Collective::ReduceScatter => (
                            "ncclReduceScatter",
                            (api.reduce_scatter)(from, to, n, dtype, SUM, handle, stream),
                        ),
                        Collective::AllGather => {
                            ("ncclAllGather", (api.all_gather)(from, to, n, dtype, handle, stream))
                        }
                        Collective::AllToAll => (
                            "ncclAlltoAll",
                            match api.copies() {
                                Ok(copies) => {
                                    (copies.all_to_all)(from, to, n, dtype, handle, stream)
                                }
                                Err(message) => {
                                    return Err(Error::Driver { call: "ncclAlltoAll", message });
                                }
                            },
                        ),
                        Collective::Broadcast(root) => (
                            "ncclBroadcast",
                            (api.broadcast)(from, to, n, dtype, root as i32, handle, stream),
                        ),
                    }
                };
                api.check(name, status)?;
            }
            Ok(())
        })
    }

    /// Ends what is under way, on this rank and by its message on all: also a call that waits for another rank on the host.
    fn abort(&self) {
        let until = Instant::now() + Duration::from_secs(2);
        let taken = loop {
            match self.handle.try_lock() {
                Ok(mut held) => break held.take().map(|Shared(handle)| handle),
                Err(_) if Instant::now() >= until => break Some(self.raw.load(Ordering::Acquire)),
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        };
        self.raw.store(std::ptr::null_mut(), Ordering::Release);
        if let Some(handle) = taken.filter(|handle| !handle.is_null()) {
            // SAFETY: alive: it is taken from all others, or in a call that NCCL lets another thread abort, after which nobody
            // calls it (`taken`).
            unsafe { self.api.abort(handle) };
        }
    }

    /// The handle, for one call.
    fn handle_for_call(&self, held: &Option<Shared>) -> Result<Handle, Error> {
        let is_aborted = self.raw.load(Ordering::Acquire).is_null();
        match held {
            Some(Shared(handle)) if !is_aborted => Ok(*handle),
            _ => {
                self.group.check()?;
                let (rank, reason) = (self.group.rank(), "NCCL was aborted".to_owned());
                Err(RankFailure { rank, reason }.into())
            }
        }
    }
}

/// Memory of a communicator's that all ranks reach, until it is dropped.
#[derive(Debug)]
pub(crate) struct Window {
    nccl: Arc<Nccl>,
    memory: u64,
    handle: Shared,
}

// SAFETY: NCCL takes a window from any thread, one at a time: it is used in `drop` alone.
unsafe impl Sync for Window {}

impl Nccl {
    fn window(own: &Arc<Self>, bytes: usize) -> Result<(u64, Window), Error> {
        let Inner::Cuda(cuda) = &*own.device.inner else { unreachable!("NCCL is of GPUs") };
        cuda.enter()?;
        let held = own.handle();
        let handle = own.handle_for_call(&held)?;
        let copies = own.api.copies();
        let copies = copies.map_err(|message| Error::Driver { call: "ncclMemAlloc", message })?;
        // SAFETY: the handle is alive, and held; the device is current.
        let (memory, window) = unsafe { copies.window(own.api, handle, bytes)? };
        own.windows.fetch_add(1, Ordering::AcqRel);
        Ok((memory, Window { nccl: Arc::clone(own), memory, handle: Shared(window) }))
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.nccl.windows.fetch_sub(1, Ordering::AcqRel);
        let Inner::Cuda(cuda) = &*self.nccl.device.inner else { return };
        // Of one that was aborted, NCCL has forgotten the window, and work may wait for ever that uses it.
        let held = self.nccl.handle();
        let (Ok(handle), Ok(copies)) = (self.nccl.handle_for_call(&held), self.nccl.api.copies())
        else {
            return;
        };
        if cuda.enter().is_ok() && cuda.finish_all().is_ok() {
            // SAFETY: the communicator is alive, and held; all work of the device has ended.
            unsafe { copies.close(handle, self.memory, self.handle.0) };
        }
    }
}

/// What a communicator's own thread does until that is gone.
fn look_after(watched: &Weak<Nccl>) {
    loop {
        thread::sleep(Duration::from_millis(100));
        let Some(nccl) = watched.upgrade() else { return };
        // Not while it is called: then the call tells.
        let broken = match nccl.handle.try_lock().as_deref() {
            Ok(None) => return,
            // SAFETY: alive, and held.
            Ok(Some(Shared(handle))) => unsafe { nccl.api.asynchronous_error(*handle) },
            Err(_) => None,
        };
        if let Some(words) = broken {
            nccl.group.fail(format!("NCCL: {words}"));
        }
        let overdue = nccl.lock_deadline().clone().filter(|(due, ..)| Instant::now() >= *due);
        if let Some((_, what, limit)) = overdue {
            nccl.group.fail(format!("{what}: not ended within {} s", limit.as_secs_f64()));
        }
        if nccl.group.failure().is_some() {
            if let (true, Inner::Cuda(cuda)) = (nccl.by_copies, &*nccl.device.inner) {
                GIVEN_UP.store(true, Ordering::Release);
                cuda.give_up();
            }
            return nccl.abort();
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        let has_failed = self.group.failure().is_some();
        let is_aborted = self.raw.load(Ordering::Acquire).is_null();
        if let (Some(Shared(handle)), Inner::Cuda(cuda), false) =
            (self.handle().take(), &*self.device.inner, is_aborted)
        {
            // SAFETY: alive, and nobody has it any more.
            unsafe {
                if has_failed || cuda.enter().is_err() {
                    self.api.abort(handle)
                } else {
                    self.api.destroy(handle)
                }
            }
        }
    }
}

/// Of each element the sum over the ranks, in their order, or the mean: of halves in f32, rounded once; of integers modulo their range.
fn sum(dtype: DType, parts: &[&[u8]], is_mean: bool) -> Vec<u8> {
    macro_rules! sum_of {
        ($t:ty, $value:expr, $plus:expr, $rounded:expr) => {{
            let size = size_of::<$t>();
            let mut all = Vec::with_capacity(parts[0].len());
            for start in (0..parts[0].len()).step_by(size) {
                let value = |part: &&[u8]| {
                    $value(bytemuck::pod_read_unaligned::<$t>(&part[start..start + size]))
                };
                let total = parts.iter().map(value).reduce($plus).expect("a part of each rank");
                let rounded: $t = $rounded(total);
                all.extend_from_slice(bytemuck::bytes_of(&rounded));
            }
            all
        }};
    }
    let ranks = parts.len();
    let mean = |total: f32| if is_mean { total / ranks as f32 } else { total };
    let mean_of_f64 = |total: f64| if is_mean { total / ranks as f64 } else { total };
    macro_rules! sum_of_integers {
        ($t:ty) => {
            sum_of!($t, |x| x, <$t>::wrapping_add, |total| if is_mean {
                total / ranks as $t
            } else {
                total
            })
        };
    }
    match dtype {
        DType::F32 => sum_of!(f32, |x| x, |a, b| a + b, mean),
        DType::F64 => sum_of!(f64, |x| x, |a, b| a + b, mean_of_f64),
        DType::F16 => sum_of!(f16, f16::to_f32, |a, b| a + b, |x| f16::from_f32(mean(x))),
        DType::BF16 => sum_of!(bf16, bf16::to_f32, |a, b| a + b, |x| bf16::from_f32(mean(x))),
        DType::I8 => sum_of_integers!(i8),
        DType::U8 => sum_of_integers!(u8),
        DType::I32 => sum_of_integers!(i32),
        DType::U32 => sum_of_integers!(u32),
        DType::I64 => sum_of_integers!(i64),
        DType::U64 => sum_of_integers!(u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Buffer, Element};

    /// What each of so many ranks, on a checked emulator, makes of it.
    fn on_ranks<T: Send>(
        world: usize,
        seconds: f64,
        work: impl Fn(&Communicator, &Stream) -> Result<T, Error> + Sync,
    ) -> Vec<Result<T, String>> {
        let groups = Group::of_threads(world, Duration::from_secs_f64(seconds));
        thread::scope(|scope| {
            let work = &work;
            let one = |group: Group| {
                let device = Device::emulator_in(Mode::Checked).unwrap();
                let all = Communicator::new(&device, group).map_err(|e| e.to_string())?;
                work(&all, &device.stream().unwrap()).map_err(|e| e.to_string())
            };
            let all: Vec<_> = groups.into_iter().map(|g| scope.spawn(move || one(g))).collect();
            all.into_iter().map(|one| one.join().unwrap()).collect()
        })
    }

    fn call<T: Element>(collective: Collective, count: usize) -> Call {
        Call { collective, dtype: T::DTYPE, count, of: "t".into() }
    }

    fn address<T: Element>(all: &Communicator, buffer: &Buffer<T>) -> u64 {
        buffer.address_on(all.device(), buffer.len()).unwrap()
    }

    /// From one buffer to another.
    fn run<T: Element>(
        collective: Collective,
        count: usize,
        values: impl Fn(usize, usize) -> T + Sync,
    ) -> Vec<Vec<T>> {
        const WORLD: usize = 3;
        let outcomes = on_ranks(WORLD, 20.0, |all, stream| {
            let [reads, writes] = collective.elements(count, WORLD);
            let from: Vec<T> = (0..reads).map(|n| values(all.rank(), n)).collect();
            let from = all.device().upload(&from)?;
            let to = all.device().unwritten_buffer::<T>(writes)?;
            let addresses = (address(all, &from), address(all, &to));
            // SAFETY: both have so many elements, and live on.
            unsafe {
                all.run(&[(call::<T>(collective, count), addresses.0, addresses.1)], stream)?
            };
            all.settle()?;
            to.download()
        });
        outcomes.into_iter().map(Result::unwrap).collect()
    }

    #[test]
    fn collectives_do_what_they_are_named_for() {
        let value = |rank: usize, n: usize| (100 * rank + n) as f32;
        for got in run(Collective::AllReduce, 5, value) {
            assert_eq!(got, [300.0, 303.0, 306.0, 309.0, 312.0]);
        }
        for got in run(Collective::AllReduceMean, 2, value) {
            assert_eq!(got, [100.0, 101.0]);
        }
        let scattered = run(Collective::ReduceScatter, 2, value);
        assert_eq!(scattered, [[300.0, 303.0], [306.0, 309.0], [312.0, 315.0]]);
        for got in run(Collective::AllGather, 2, value) {
            assert_eq!(got, [0.0, 1.0, 100.0, 101.0, 200.0, 201.0]);
        }
        let sent = run(Collective::AllToAll, 1, value);
        assert_eq!(sent, [[0.0, 100.0, 200.0], [1.0, 101.0, 201.0], [2.0, 102.0, 202.0]]);
        for got in run(Collective::Broadcast(1), 2, value) {
            assert_eq!(got, [100.0, 101.0]);
        }
        for got in run(Collective::AllReduce, 1, |rank, _| [i64::MAX, 1, 5][rank]) {
            assert_eq!(got, [i64::MIN + 5]);
        }
        // 1 is less than half of what distinguishes 256 and 258 in bf16, twice 1 is half of it, three times more.
        let value =
            |rank: usize, n: usize| bf16::from_f32(if rank == 0 { 256.0 } else { [1.0, 1.5][n] });
        for got in run(Collective::AllReduce, 2, value) {
            assert_eq!(got.map_to_f32(), [258.0, 260.0]);
        }
    }

    trait ToF32 {
        fn map_to_f32(&self) -> Vec<f32>;
    }

    impl ToF32 for Vec<bf16> {
        fn map_to_f32(&self) -> Vec<f32> {
            self.iter().map(|x| x.to_f32()).collect()
        }
    }

    /// f32 does not add up to the same in another order: here it is the ranks', whoever comes first.
    #[test]
    fn sums_have_the_order_of_the_ranks() {
        let value = |rank: usize, _: usize| [1e8f32, 1.0, -1e8][rank];
        for got in run(Collective::AllReduce, 3, value) {
            assert_eq!(got, [0.0; 3]);
        }
        let value = |rank: usize, _: usize| [1e8f32, -1e8, 1.0][rank];
        for got in run(Collective::AllReduce, 3, value) {
            assert_eq!(got, [1.0; 3]);
        }
    }

    /// Each rank makes the calls that `calls` gives for it, over one buffer of eight elements.
    fn fail(
        world: usize,
        seconds: f64,
        calls: impl Fn(usize) -> Vec<Call> + Sync,
    ) -> Vec<Result<(), String>> {
        on_ranks(world, seconds, |all, stream| {
            let buffer = all.device().upload(&[1f32; 8])?;
            let at = address(all, &buffer);
            for call in calls(all.rank()) {
                // SAFETY: no call is of more elements; the buffer lives on.
                unsafe { all.run(&[(call, at, at)], stream)? };
            }
            // The others are still there when the last one looks for them.
            thread::sleep(Duration::from_secs_f64(if all.rank() == 2 { 1.0 } else { 0.0 }));
            Ok(())
        })
    }

    #[test]
    fn a_rank_that_calls_something_else_is_named() {
        let first = call::<f32>(Collective::AllReduce, 4);
        for (other, got) in [
            (call::<f32>(Collective::AllReduce, 5), "all_reduce of 5 f32 of t"),
            (call::<f32>(Collective::Broadcast(1), 4), "broadcast of 4 f32 of t from rank 1"),
            (call::<i32>(Collective::AllReduce, 4), "all_reduce of 4 i32 of t"),
            (Call { of: "u".into(), ..first.clone() }, "all_reduce of 4 f32 of u"),
        ] {
            let second = |rank: usize| if rank == 1 { other.clone() } else { first.clone() };
            for outcome in fail(3, 20.0, |rank| vec![first.clone(), second(rank)]) {
                let expected = "expected collective 1, all_reduce of 4 f32 of t, as rank 0 has it";
                let got = format!("got collective 1, {got}");
                assert_eq!(outcome.unwrap_err(), format!("rank 1: {expected}, {got}"));
            }
        }
    }

    #[test]
    fn a_rank_that_does_not_come_is_named() {
        let one = call::<f32>(Collective::AllReduce, 4);
        let of = |rank: usize| vec![one.clone(); if rank == 2 { 1 } else { 2 }];
        let outcomes = fail(3, 0.3, of);
        assert_eq!(outcomes[2], Ok(()));
        for outcome in &outcomes[..2] {
            let expected = "rank 2: collective 1, all_reduce of 4 f32 of t: not there within 0.3 s";
            assert_eq!(outcome, &Err(expected.to_owned()));
        }
    }

    #[test]
    fn bytes_that_nobody_has_written_are_found() {
        let outcomes = on_ranks(2, 20.0, |all, stream| {
            let one = call::<f32>(Collective::AllReduce, 4);
            let buffer = match all.rank() {
                0 => all.device().upload(&[1f32; 4])?,
                _ => all.device().buffer(4)?,
            };
            let at = address(all, &buffer);
            // SAFETY: of four elements; the buffer lives on.
            unsafe { all.run(&[(one, at, at)], stream) }
        });
        for outcome in outcomes {
            let said = outcome.unwrap_err();
            let expected = "rank 1: collective 0, all_reduce of 4 f32 of t: 16 of 16 bytes were never written, the first of them byte 0";
            assert_eq!(said, expected);
        }
    }
}
