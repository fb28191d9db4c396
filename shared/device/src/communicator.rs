//! Collectives: what several devices do together with a tensor that each of them has.
//!
//! Two engines have one interface. Of GPUs it is NCCL. Of emulated devices, which are threads of one process, each reads what the
//! others have while all wait, and adds it up in the order of the ranks: the same bits in each run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use half::{bf16, f16};

use crate::device::Inner;
use crate::nccl::{Api, Handle, Id, MEAN, SUM, type_of};
use crate::{DType, Device, Error, Group, Mode, RankFailure, Stream};

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
            Self::Broadcast(_) => "broadcast",
        }
    }

    /// Elements that it reads and that it writes, of calls over `count`.
    pub fn elements(self, count: usize, world: usize) -> [usize; 2] {
        match self {
            Self::AllReduce | Self::AllReduceMean | Self::Broadcast(_) => [count, count],
            Self::ReduceScatter => [count * world, count],
            Self::AllGather => [count, count * world],
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
    /// Collectives that it has begun.
    calls: AtomicU64,
}

#[derive(Debug)]
enum Engine {
    Threads(Arc<Meeting>),
    Nccl(Arc<Nccl>),
}

impl Communicator {
    /// Of a group that is of one kind of device: of GPUs each rank has one of its own; emulated ones are threads of a process.
    ///
    /// # Errors
    /// [`Error::NoLibrary`]: there is no NCCL here. [`Error::NoRanks`]: emulated devices of several processes. [`Error::Rank`]: a
    /// rank has another kind of device, or does not come within the group's limit. What NCCL reports.
    pub fn new(device: &Device, group: Group) -> Result<Arc<Self>, Error> {
        let group = Arc::new(group);
        let made = Self::made(device, &group);
        if let Err(error) = &made
            && group.failure().is_none()
        {
            group.fail(error.to_string());
        }
        made.map(Arc::new)
    }

    fn made(device: &Device, group: &Arc<Group>) -> Result<Self, Error> {
        let kind = device.kind().to_string();
        let kinds = group.exchange("kind of device", kind.as_bytes(), Some(group.limit()))?;
        if let Some(rank) = kinds.iter().position(|other| *other != kinds[0]) {
            let [first, other] =
                [0, rank].map(|rank| String::from_utf8_lossy(&kinds[rank]).into_owned());
            let reason = format!("device: expected {first}, as rank 0 has it, got {other}");
            return Err(RankFailure { rank, reason }.into());
        }
        let engine = match &*device.inner {
            Inner::Emulator(_) if !group.is_one_process() => {
                return Err(Error::NoRanks {
                    what: "device".into(),
                    expected: "a GPU, or ranks that are threads of one process".into(),
                    got: format!("the {}", device.name()),
                });
            }
            Inner::Emulator(_) => Engine::Threads(Meeting::of(group)?),
            Inner::Cuda(_) => Engine::Nccl(Nccl::new(device, group)?),
        };
        let calls = AtomicU64::new(0);
        let all = Self { device: device.clone(), group: Arc::clone(group), engine, calls };
        all.try_out()?;
        Ok(all)
    }

    /// On GPUs: NCCL connects the ranks at the first call of a size, which it had better not do while a graph is recorded.
    fn try_out(&self) -> Result<(), Error> {
        if matches!(self.engine, Engine::Threads(_)) {
            return Ok(());
        }
        let stream = self.device.stream()?;
        let _watch = self.watch("the first collectives", self.group.limit());
        for count in [1, 1 << 23] {
            let ones = self.device.upload(&vec![1f32; count])?;
            stream.follow()?;
            let address = ones.address_on(&self.device, count)?;
            let of = "a test".to_owned();
            let call = Call { collective: Collective::AllReduce, dtype: DType::F32, count, of };
            // SAFETY: the buffer has so many elements, and is read when the stream has ended.
            unsafe { self.run(&[(call, address, address)], &stream)? };
            stream.synchronize()?;
            self.group.check()?;
            let last = ones.download()?[count - 1];
            if last != self.world() as f32 {
                let reason = format!("NCCL: expected a sum of {} ones, got {last}", self.world());
                return Err(RankFailure { rank: self.rank(), reason }.into());
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
        let all = self.group.exchange(
            "collectives",
            own.join("\n").as_bytes(),
            Some(self.group.limit()),
        )?;
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
            Engine::Threads(meeting) => {
                lab_emulator::grids_ended();
                for (call, from, to) in calls {
                    let number = self.calls.fetch_add(1, Ordering::Relaxed);
                    let looks = matches!(self.device.mode(), Some(Mode::Checked | Mode::Counted));
                    let post = Posted { call: call.clone(), number, from: *from };
                    // SAFETY: the caller's promise.
                    unsafe { meeting.meet(&self.group, post, *to, looks)? };
                }
                Ok(())
            }
        }
    }

    /// Watches over what is launched until it is dropped: on GPUs, where a collective waits for its peers on the device, nobody else
    /// does. What takes longer than this is ended, as it is where a rank fails.
    pub fn watch(&self, what: &str, limit: Duration) -> Watch<'_> {
        if let Engine::Nccl(nccl) = &self.engine {
            *nccl.due() = Some((Instant::now() + limit, what.to_owned(), limit));
        }
        Watch(self)
    }
}

/// See [`Communicator::watch`].
#[derive(Debug)]
pub struct Watch<'a>(&'a Communicator);

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if let Engine::Nccl(nccl) = &self.0.engine {
            *nccl.due() = None;
        }
    }
}

/// NCCL's communicator of a GPU.
#[derive(Debug)]
struct Nccl {
    device: Device,
    api: &'static Api,
    group: Arc<Group>,
    /// None once it was aborted.
    handle: Mutex<Option<Shared>>,
    /// When what is watched must have ended, what it is, and how long it may take.
    due: Mutex<Option<(Instant, String, Duration)>>,
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
    fn new(device: &Device, group: &Arc<Group>) -> Result<Arc<Self>, Error> {
        let api = Api::get()?;
        let (rank, world) = (group.rank(), group.world());
        // Of one process, NCCL reads the others' memory as it lies.
        if group.is_one_process()
            && let Inner::Cuda(cuda) = &*device.inner
        {
            cuda.open_pool_to_peers()?;
        }
        let own = if rank == 0 { api.new_id()?.0.to_vec() } else { Vec::new() };
        let all = group.exchange("id of NCCL", &own, Some(group.limit()))?;
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
            let made = cuda.enter().and_then(|()| unsafe { api.init(world, Id(id), of_thread) });
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
            handle: Mutex::new(Some(handle)),
            due: Mutex::default(),
        });
        let watched = Arc::downgrade(&all);
        thread::spawn(move || look_after(&watched));
        Ok(all)
    }

    fn due(&self) -> std::sync::MutexGuard<'_, Option<(Instant, String, Duration)>> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn handle(&self) -> std::sync::MutexGuard<'_, Option<Shared>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, calls: &[(Call, u64, u64)], stream: &Stream) -> Result<(), Error> {
        let Inner::Cuda(cuda) = &*self.device.inner else { unreachable!("NCCL is of GPUs") };
        cuda.enter()?;
        let held = self.handle();
        let Some(Shared(handle)) = *held else {
            self.group.check()?;
            return Err(
                RankFailure { rank: self.group.rank(), reason: "NCCL was aborted".into() }.into()
            );
        };
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

    /// Ends what is under way, on this rank and by its message on all.
    fn abort(&self) {
        let taken = self.handle().take();
        if let Some(Shared(handle)) = taken {
            // SAFETY: alive, and taken from all others.
            unsafe { self.api.abort(handle) };
        }
    }
}

/// What a communicator's own thread does until that is gone.
fn look_after(watched: &Weak<Nccl>) {
    loop {
        thread::sleep(Duration::from_millis(100));
        let Some(nccl) = watched.upgrade() else { return };
        let broken = match *nccl.handle() {
            None => return,
            // SAFETY: alive, and held.
            Some(Shared(handle)) => unsafe { nccl.api.asynchronous_error(handle) },
        };
        if let Some(words) = broken {
            nccl.group.fail(format!("NCCL: {words}"));
        }
        let overdue = nccl.due().clone().filter(|(due, ..)| Instant::now() >= *due);
        if let Some((_, what, limit)) = overdue {
            nccl.group.fail(format!("{what}: not ended within {} s", limit.as_secs_f64()));
        }
        if nccl.group.failure().is_some() {
            return nccl.abort();
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        let has_failed = self.group.failure().is_some();
        if let (Some(Shared(handle)), Inner::Cuda(cuda)) =
            (self.handle().take(), &*self.device.inner)
        {
            // SAFETY: alive, and nobody has it any more.
            unsafe {
                match has_failed || cuda.enter().is_err() {
                    true => self.api.abort(handle),
                    false => self.api.destroy(handle),
                }
            }
        }
    }
}

/// What a rank brings to a meeting.
#[derive(Clone, Debug)]
struct Posted {
    call: Call,
    number: u64,
    from: u64,
}

/// Where ranks that are threads meet: in rounds, in each of which all bring something, and all have read it before any goes on.
#[derive(Debug)]
struct Meeting {
    round: Mutex<Round>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Round {
    posted: Vec<Option<Posted>>,
    /// Ranks that have read what all have.
    read: usize,
    /// Rounds that are over.
    over: u64,
}

impl Meeting {
    /// The one of this group: rank 0 makes it, and tells the others where it is.
    fn of(group: &Group) -> Result<Arc<Self>, Error> {
        let round = Mutex::new(Round { posted: vec![None; group.world()], ..Round::default() });
        let own = (group.rank() == 0).then(|| Arc::new(Self { round, changed: Condvar::new() }));
        group.share("meeting", own)
    }

    /// Waits until `is_so`, the group has failed, or the limit is over: then the rank that `missing` finds has failed, with the
    /// words that it gives.
    fn wait<'a>(
        &'a self,
        group: &Group,
        mut round: std::sync::MutexGuard<'a, Round>,
        is_so: impl Fn(&Round) -> bool,
        missing: impl Fn(&Round) -> RankFailure,
    ) -> Result<std::sync::MutexGuard<'a, Round>, Error> {
        let until = Instant::now() + group.limit();
        while !is_so(&round) {
            group.check()?;
            let late = missing(&round);
            if group.has_ended(late.rank) || Instant::now() >= until {
                group.fail_as(late);
                group.check()?;
            }
            let waited = self.changed.wait_timeout(round, Duration::from_millis(20));
            round = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(round)
    }

    /// # Safety
    /// The memory is there, and nothing else uses it.
    unsafe fn meet(&self, group: &Group, own: Posted, to: u64, looks: bool) -> Result<(), Error> {
        let (rank, world) = (group.rank(), group.world());
        let (number, call) = (own.number, own.call.clone());
        let size = call.dtype.size();
        let [reads, writes] = call.collective.elements(call.count, world);
        let fail = |rank: usize, reason: String| -> Result<(), Error> {
            group.fail_as(RankFailure { rank, reason });
            group.check()
        };
        if looks
            && let Some((first, count)) =
                lab_emulator::never_written(own.from as *const u8, reads * size)
        {
            let reason = format!(
                "collective {number}, {call}: {count} of {} bytes were never written, the first of them byte {first}",
                reads * size
            );
            return fail(rank, reason);
        }
        let mut round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        let this = round.over;
        round.posted[rank] = Some(own);
        self.changed.notify_all();
        let not_come = |round: &Round| {
            let rank = round.posted.iter().position(Option::is_none).unwrap_or(rank);
            let how = match group.has_ended(rank) {
                true => "and has ended".to_owned(),
                false => format!("within {} s", group.limit().as_secs_f64()),
            };
            RankFailure {
                rank,
                reason: format!("has not come to collective {number}, {call}, {how}"),
            }
        };
        round = self.wait(
            group,
            round,
            |round| round.over > this || round.posted.iter().all(Option::is_some),
            not_come,
        )?;
        let all: Vec<Posted> = round.posted.iter().flatten().cloned().collect();
        drop(round);
        let first = &all[0];
        let other =
            all.iter().position(|post| (&post.call, post.number) != (&first.call, first.number));
        if let Some(other) = other {
            let reason = format!(
                "collective {}: expected {}, as rank 0 has it, got {}",
                all[other].number, first.call, all[other].call
            );
            return fail(other, reason);
        }
        // SAFETY: every rank waits here, none of which writes before all have read.
        let bytes_of = |post: &Posted, start: usize, len: usize| unsafe {
            std::slice::from_raw_parts((post.from as *const u8).add(start * size), len * size)
        };
        let result = match call.collective {
            Collective::AllReduce | Collective::AllReduceMean | Collective::ReduceScatter => {
                let start = if call.collective == Collective::ReduceScatter {
                    rank * call.count
                } else {
                    0
                };
                let parts: Vec<&[u8]> =
                    all.iter().map(|post| bytes_of(post, start, call.count)).collect();
                sum(call.dtype, &parts, call.collective == Collective::AllReduceMean)
            }
            Collective::AllGather => {
                all.iter().flat_map(|post| bytes_of(post, 0, call.count)).copied().collect()
            }
            Collective::Broadcast(root) => bytes_of(&all[root], 0, call.count).to_vec(),
        };
        debug_assert_eq!(result.len(), writes * size);
        let mut round = self.round.lock().unwrap_or_else(PoisonError::into_inner);
        round.read += 1;
        if round.read == world {
            round.posted.fill(None);
            round.read = 0;
            round.over += 1;
            self.changed.notify_all();
        }
        let not_read = |_: &Round| RankFailure {
            rank,
            reason: format!("collective {number}, {call}: not read by all"),
        };
        drop(self.wait(group, round, |round| round.over > this, not_read)?);
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(result.as_ptr(), to as *mut u8, result.len()) };
        if looks {
            lab_emulator::host_wrote_bytes(to as *const u8, result.len());
        }
        Ok(())
    }
}

/// Of each element the sum over the ranks, in their order, or the mean: of halves in f32, rounded once.
fn sum(dtype: DType, parts: &[&[u8]], is_mean: bool) -> Vec<u8> {
    macro_rules! add {
        ($t:ty, $sum:ty, $into:expr, $from:expr) => {{
            let size = size_of::<$t>();
            let len = parts[0].len() / size;
            let mut all = Vec::with_capacity(parts[0].len());
            for n in 0..len {
                let value = |part: &[u8]| -> $sum {
                    $into(bytemuck::pod_read_unaligned::<$t>(&part[n * size..][..size]))
                };
                let mut total = value(parts[0]);
                for part in &parts[1..] {
                    total = add(total, value(part));
                }
                if is_mean {
                    total = total / parts.len() as $sum;
                }
                let rounded: $t = $from(total);
                all.extend_from_slice(bytemuck::bytes_of(&rounded));
            }
            all
        }};
    }
    trait Add {
        fn plus(self, other: Self) -> Self;
    }
    macro_rules! wraps { ($($t:ty),*) => { $(impl Add for $t { fn plus(self, other: Self) -> Self { self.wrapping_add(other) } })* }; }
    wraps!(u8, i32, u32, i64, u64);
    impl Add for f32 {
        fn plus(self, other: Self) -> Self {
            self + other
        }
    }
    impl Add for f64 {
        fn plus(self, other: Self) -> Self {
            self + other
        }
    }
    fn add<T: Add>(a: T, b: T) -> T {
        a.plus(b)
    }
    match dtype {
        DType::F32 => add!(f32, f32, |x| x, |x| x),
        DType::F64 => add!(f64, f64, |x| x, |x| x),
        DType::F16 => add!(f16, f32, f16::to_f32, f16::from_f32),
        DType::BF16 => add!(bf16, f32, bf16::to_f32, bf16::from_f32),
        DType::U8 => add!(u8, u8, |x| x, |x| x),
        DType::I32 => add!(i32, i32, |x| x, |x| x),
        DType::U32 => add!(u32, u32, |x| x, |x| x),
        DType::I64 => add!(i64, i64, |x| x, |x| x),
        DType::U64 => add!(u64, u64, |x| x, |x| x),
    }
}
