//! A plan with memory: ready to run, once or many times.
//!
//! Each slot has memory of its own, or somebody else's: a tensor that is uploaded, a DLPack tensor of
//! PyTorch or any other owner, an output of another binding. Everything that can be refused is refused
//! before anything is allocated; a run then neither allocates nor waits for the device.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lab_device::dlpack::DLTensor;
use lab_device::{
    Bound, Call, Communicator, Device, DeviceKind, Fill, Graph, Kernel, Launch, Mark, Mode,
    RawBuffer, Stream,
};

use crate::lifetimes::{SCRATCH_ALIGNMENT, ScratchLayout};
use crate::plan::{Argument, Initial, Plan, Slot, SlotFacts, SlotKind, Step};
use crate::{Error, Prepared, Tensor, Tensors};

/// Where a slot's memory comes from.
enum Source<'a> {
    /// Allocated, with a copy of this.
    Upload(&'a Tensor),
    /// Somebody else's, or another binding's.
    Lent(Memory),
}

/// Memory of a slot: of the buffer, from this byte on.
#[derive(Clone, Debug)]
struct Memory {
    buffer: Arc<RawBuffer>,
    start: usize,
}

/// A plan whose slots are being given memory.
pub struct Binder<'a> {
    plan: Plan,
    sources: BTreeMap<usize, Source<'a>>,
    workspace: Option<Arc<RawBuffer>>,
    stream: Option<Arc<Stream>>,
}

impl<'a> Binder<'a> {
    pub(crate) fn new(plan: Plan) -> Self {
        Self { plan, sources: BTreeMap::new(), workspace: None, stream: None }
    }

    fn named(&self, name: &str) -> Result<usize, Error> {
        let slots = self.plan.slots();
        let found = slots.iter().position(|s| s.has_name(name));
        found.ok_or_else(|| {
            let known: Vec<_> = slots.iter().map(|s| s.name.as_str()).collect();
            let known: Vec<_> = known.into_iter().filter(|n| !n.is_empty()).collect();
            let (name, expected) = (name.to_owned(), format!("one of {}", known.join(", ")));
            Error::Tensor { name, expected, got: "no slot of that name".into() }
        })
    }

    fn put(&mut self, index: usize, source: Source<'a>) -> Result<(), Error> {
        match self.sources.insert(index, source) {
            None => Ok(()),
            Some(_) => Err(refuse(&self.plan.slots()[index], "bound once", "bound twice".into())),
        }
    }

    /// Allocates a slot and copies a tensor into it.
    ///
    /// # Errors
    /// No slot has that name; the tensor is of another type or number of elements; the slot is bound
    /// already.
    pub fn upload(mut self, name: &str, tensor: &'a Tensor) -> Result<Self, Error> {
        let index = self.named(name)?;
        check(&self.plan.slots()[index], tensor)?;
        self.put(index, Source::Upload(tensor))?;
        Ok(self)
    }

    /// The same for every input, by name, and for what is updated in place ([`Plan::updated`]); other tensors are
    /// not looked at.
    ///
    /// # Errors
    /// An input's tensor is missing, or as [`Binder::upload`].
    pub fn upload_inputs(mut self, tensors: &'a Tensors) -> Result<Self, Error> {
        for index in 0..self.plan.slots().len() {
            let facts = &self.plan.slots()[index];
            if !facts.goes_in() || self.sources.contains_key(&index) {
                continue;
            }
            let tensor = tensors.get(&facts.name);
            let tensor = tensor.ok_or_else(|| refuse(facts, &describe(facts), "none".into()))?;
            check(facts, tensor)?;
            self.put(index, Source::Upload(tensor))?;
        }
        Ok(self)
    }

    /// Lets a slot be memory that somebody else owns: see [`DLTensor`].
    ///
    /// # Errors
    /// [`Error::Tensor`]: no slot has that name, or is bound already; the tensor's device, type,
    /// shape, strides, alignment or the memory behind it is not what the slot needs.
    ///
    /// # Safety
    /// The descriptor's pointers are as DLPack says; the memory is there until the binding is dropped
    /// and nobody else writes it (of an output or state: touches it) while a run is under way.
    pub unsafe fn foreign(mut self, name: &str, tensor: &DLTensor) -> Result<Self, Error> {
        let index = self.named(name)?;
        let facts = &self.plan.slots()[index];
        let expected = describe(facts);
        let wrong = |got: String| refuse(facts, &expected, got);
        // SAFETY: the caller's promise.
        let view = unsafe { tensor.view() }.map_err(wrong)?;
        let device = self.plan.device();
        view.check_device(device).map_err(wrong)?;
        if facts.element.dtype() != Some(view.dtype) || facts.shape != view.shape {
            return Err(wrong(format!("{} {:?}", view.dtype, view.shape)));
        }
        check_alignment(facts, view.address)?;
        // SAFETY: the caller's promise.
        let buffer = unsafe { RawBuffer::foreign(device, view.address, facts.bytes()) };
        let buffer = Arc::new(buffer.map_err(|e| wrong(e.to_string()))?);
        self.put(index, Source::Lent(Memory { buffer, start: 0 }))?;
        Ok(self)
    }

    /// Lets a slot be memory at this address that somebody else owns: also of structs, which no [`DLTensor`] describes.
    ///
    /// # Errors
    /// [`Error::Tensor`]: no slot has that name, or is bound already; or it is no memory of the plan's device, less
    /// than the slot needs, or begins at no multiple of 16 bytes.
    ///
    /// # Safety
    /// As [`Binder::foreign`].
    pub unsafe fn memory(mut self, name: &str, address: u64) -> Result<Self, Error> {
        let index = self.named(name)?;
        let facts = &self.plan.slots()[index];
        check_alignment(facts, address)?;
        // SAFETY: the caller's promise.
        let buffer = unsafe { RawBuffer::foreign(self.plan.device(), address, facts.bytes()) };
        let buffer = buffer.map_err(|e| refuse(facts, &describe(facts), e.to_string()))?;
        self.put(index, Source::Lent(Memory { buffer: Arc::new(buffer), start: 0 }))?;
        Ok(self)
    }

    /// Lets a slot be one of another binding's: what that writes, this reads, with no copy between.
    /// Whoever runs both on different streams sees to their order.
    ///
    /// # Errors
    /// [`Error::Tensor`]: either name is no slot's, the slots differ in type or number of elements,
    /// or this one is bound already.
    pub fn share(mut self, name: &str, other: &Binding, theirs: &str) -> Result<Self, Error> {
        let index = self.named(name)?;
        let facts = &self.plan.slots()[index];
        let wrong = |got: String| refuse(facts, &describe(facts), got);
        let slot = other.plan.slot(theirs).ok_or_else(|| wrong(format!("no slot '{theirs}'")))?;
        let there = &other.plan.slots()[slot.index];
        if (there.element, there.elements()) != (facts.element, facts.elements()) {
            return Err(wrong(format!("'{theirs}', {}", describe(there))));
        }
        let memory = other.memory[slot.index].clone();
        self.put(index, Source::Lent(memory))?;
        Ok(self)
    }

    /// The same of slots, of which neither needs a name: a whole one of this plan, and one of the other binding's, or a part of
    /// one, that keeps what a run leaves there.
    ///
    /// # Errors
    /// A slot is of another plan; this one is a part, or bound already; the other is scratch that is not kept ([`Plan::keep`]), or
    /// of another type or number of elements.
    pub fn share_slot(mut self, own: Slot, other: &Binding, theirs: Slot) -> Result<Self, Error> {
        self.plan.check_own(own)?;
        let facts = &self.plan.slots()[own.index];
        if own.range() != (0..facts.elements()) {
            return Err(refuse(facts, "a whole slot", format!("{} elements of it", own.len())));
        }
        let (Memory { buffer, start }, there) = other.find_kept(theirs)?;
        if (there.element, theirs.len()) != (facts.element, facts.elements()) {
            let got = format!("{} elements of {}", theirs.len(), there.element);
            return Err(refuse(facts, &describe(facts), got));
        }
        let start = start + theirs.start() * there.element.size();
        let memory = Memory { buffer: Arc::clone(buffer), start };
        self.put(own.index, Source::Lent(memory))?;
        Ok(self)
    }

    /// The same, of the first elements of a slot that has at least as many.
    ///
    /// # Errors
    /// As [`Binder::share`], but for the other slot's length.
    pub fn share_first(mut self, name: &str, other: &Binding, theirs: &str) -> Result<Self, Error> {
        let index = self.named(name)?;
        let facts = &self.plan.slots()[index];
        let wrong = |got: String| refuse(facts, &describe(facts), got);
        let slot = other.plan.slot(theirs).ok_or_else(|| wrong(format!("no slot '{theirs}'")))?;
        let there = &other.plan.slots()[slot.index];
        if there.element != facts.element || there.elements() < facts.elements() {
            return Err(wrong(format!("'{theirs}', {}", describe(there))));
        }
        let memory = other.memory[slot.index].clone();
        self.put(index, Source::Lent(memory))?;
        Ok(self)
    }

    /// Takes all scratch from one piece of memory that somebody else owns, of [`Plan::scratch_bytes`]
    /// at least, at a multiple of 256. What a plan wants to be zero there ([`Plan::zeros`]) each run sets to zero first:
    /// between two runs the memory may be used for something else.
    ///
    /// # Errors
    /// [`Error::Bad`]: it is smaller, not aligned, or no memory of the plan's device.
    ///
    /// # Safety
    /// As [`Binder::foreign`].
    pub unsafe fn scratch(mut self, address: u64, bytes: usize) -> Result<Self, Error> {
        let needed = self.plan.scratch_bytes();
        let expected = || format!("{needed} bytes at a multiple of {SCRATCH_ALIGNMENT}");
        if bytes < needed || !address.is_multiple_of(SCRATCH_ALIGNMENT as u64) {
            return Err(Error::bad("scratch", expected(), format!("{bytes} at {address:#x}")));
        }
        // SAFETY: the caller's promise.
        let buffer = unsafe { RawBuffer::foreign(self.plan.device(), address, needed) };
        let buffer = buffer.map_err(|e| Error::bad("scratch", expected(), e))?;
        self.workspace = Some(Arc::new(buffer));
        Ok(self)
    }

    /// Lets runs go to this stream.
    pub fn on(mut self, stream: Stream) -> Self {
        self.stream = Some(Arc::new(stream));
        self
    }

    /// Allocates what has no memory yet, uploads, and prepares every launch.
    ///
    /// # Errors
    /// An input has no memory; the device has too little, in which case nothing was allocated; the stream is of
    /// another device; a launch cannot be made of these addresses ([`Kernel::bind`]).
    pub fn finish(self) -> Result<Binding, Error> {
        let Self { plan, mut sources, workspace, stream } = self;
        let device = plan.device().clone();
        if let Some(stream) = &stream {
            stream.check_device(&device)?;
        }
        // The emulator gives each piece memory of its own: what goes beyond one is found.
        let shares = workspace.is_some() || device.kind() == DeviceKind::Cuda;
        let layout = if shares { plan.scratch_layout() } else { ScratchLayout::default() };
        let own = |(index, facts): &(usize, &SlotFacts)| match sources.get(index) {
            Some(Source::Lent(_)) => false,
            Some(Source::Upload(_)) => true,
            None => facts.kind != SlotKind::Scratch || !shares,
        };
        let missing =
            |(index, facts): &(usize, &SlotFacts)| facts.goes_in() && !sources.contains_key(index);
        if let Some((_, facts)) = plan.slots().iter().enumerate().find(missing) {
            return Err(refuse(facts, &describe(facts), "none".into()));
        }
        let needed: usize =
            plan.slots().iter().enumerate().filter(own).map(|(_, facts)| facts.bytes()).sum();
        let needed = needed + if workspace.is_some() { 0 } else { layout.bytes };
        if needed > 0 {
            check_room(&device, needed)?;
        }
        // Somebody else may use it between two runs, if it is lent.
        let is_lent = workspace.is_some();
        let workspace = match workspace {
            None if layout.bytes > 0 => {
                let buffer = device.raw_buffer(layout.bytes)?;
                // SAFETY: it was made just now.
                unsafe { buffer.fill(0..layout.bytes, Fill::Poison, None)? };
                Some(Arc::new(buffer))
            }
            lent => lent,
        };

        let mut memory = Vec::with_capacity(plan.slots().len());
        let mut zeros = Vec::new();
        let mut uses_own_queue = !is_lent && workspace.is_some();
        let mut dying = vec![Vec::new(); plan.len()];
        let poisons = matches!(device.mode(), Some(Mode::Checked | Mode::Counted));
        let (lives, shared) = (plan.lives(), plan.shared_slots());
        for (index, facts) in plan.slots().iter().enumerate() {
            let lent = match (sources.remove(&index), &workspace) {
                (Some(Source::Lent(lent)), _) => lent,
                (None, Some(workspace)) if facts.kind == SlotKind::Scratch => {
                    let start = layout.starts[&index];
                    match facts.initial {
                        Initial::Poison => {}
                        // Its owner may have used it for something else since the last run.
                        Initial::Zero if is_lent => zeros.push(BoundStep::Zero(index)),
                        Initial::Zero | Initial::Bytes(_) => {
                            uses_own_queue = true;
                            // SAFETY: the caller of `scratch` has promised that nobody else uses it.
                            unsafe { initialize(workspace, start, facts)? };
                        }
                    }
                    Memory { buffer: Arc::clone(workspace), start }
                }
                (source, _) => {
                    uses_own_queue = true;
                    if poisons && facts.is_shared() && lives[index].end > 0 {
                        dying[lives[index].end - 1].push(index);
                    }
                    let buffer = match shared.get(&index) {
                        Some(communicator) => communicator.shared_buffer(facts.bytes())?,
                        None => device.raw_buffer(facts.bytes())?,
                    };
                    // SAFETY: it was made just now.
                    unsafe {
                        match source {
                            Some(Source::Upload(tensor)) => buffer.write(0, &tensor.bytes)?,
                            _ => initialize(&buffer, 0, facts)?,
                        }
                    }
                    Memory { buffer: Arc::new(buffer), start: 0 }
                }
            };
            memory.push(lent);
        }
        // Not where all memory is lent: a stream that is being recorded can wait for no other.
        if let Some(stream) = stream.as_ref().filter(|_| uses_own_queue) {
            stream.follow()?;
        }
        let calls = plan.collectives();
        let side = match plan.communicator() {
            None => None,
            Some(communicator) => {
                communicator.check_same(&calls)?;
                Some(Stream::urgent(&device)?)
            }
        };
        let mut steps = zeros;
        let waits = plan.waits();
        let mut ends = Vec::new();
        for ((step, dying), wait) in plan.steps().iter().zip(dying).zip(&waits) {
            if let Some(nth) = *wait {
                steps.push(BoundStep::Wait(nth));
            }
            if matches!(step, Step::Together { .. }) {
                ends.push(End { mark: Mark::new(&device)?, begun: 0 });
            }
            steps.push(bind(&plan, &memory, step, wait.is_some(), ends.len())?);
            // Another slot would have this memory now: a later read is one of what nobody wrote.
            steps.extend(dying.into_iter().map(BoundStep::Poison));
        }
        if let Some(&Some(nth)) = waits.last() {
            steps.push(BoundStep::Wait(nth));
        }
        Ok(Binding { plan, memory, steps, stream, side, ends })
    }
}

/// Writes what a slot holds when it is bound, from this byte of the buffer on.
///
/// # Safety
/// Nothing else uses that part of the buffer.
unsafe fn initialize(
    buffer: &RawBuffer,
    start: usize,
    facts: &SlotFacts,
) -> Result<(), lab_device::Error> {
    let all = start..start + facts.bytes();
    // SAFETY: the caller's promise.
    unsafe {
        match &facts.initial {
            Initial::Poison => buffer.fill(all, Fill::Poison, None),
            Initial::Zero => buffer.fill(all, Fill::Zero, None),
            Initial::Bytes(bytes) => buffer.write(start, bytes),
        }
    }
}

fn describe(facts: &SlotFacts) -> String {
    format!("{} {:?}", facts.element, facts.shape)
}

/// Kernels load 16 bytes at once: memory of a caller's begins at a multiple of that.
const LOADED_AT_ONCE: u64 = 16;

fn check_alignment(facts: &SlotFacts, address: u64) -> Result<(), Error> {
    if address.is_multiple_of(LOADED_AT_ONCE) {
        return Ok(());
    }
    let expected = format!("{} at a multiple of {LOADED_AT_ONCE} bytes", describe(facts));
    Err(refuse(facts, &expected, format!("{address:#x}")))
}

fn refuse(facts: &SlotFacts, expected: &str, got: String) -> Error {
    Error::Tensor { name: facts.name.clone(), expected: expected.to_owned(), got }
}

fn check(facts: &SlotFacts, tensor: &Tensor) -> Result<(), Error> {
    if facts.element.dtype() == Some(tensor.dtype) && facts.elements() == tensor.len() {
        return Ok(());
    }
    Err(refuse(facts, &describe(facts), tensor.describe()))
}

/// Refuses what would not fit, before any of it is allocated.
fn check_room(device: &Device, needed: usize) -> Result<(), Error> {
    let memory = device.memory()?;
    let asked = needed as u64;
    if asked <= memory.available() {
        return Ok(());
    }
    let (free, total) = (memory.available(), memory.total);
    Err(lab_device::Error::OutOfMemory { asked, free, total }.into())
}

/// A step with its addresses.
enum BoundStep {
    Launch(Bound),
    Zero(usize),
    Poison(usize),
    Copy {
        from: usize,
        to: usize,
    },
    /// With the addresses that each call reads and writes, and which of the run's collectives it is.
    Together {
        communicator: Arc<Communicator>,
        calls: Vec<(Call, u64, u64)>,
        nth: usize,
    },
    /// For this one of the run's collectives, and those before it.
    Wait(usize),
}

/// Where a collective ends, for who waits for it.
#[derive(Debug)]
struct End {
    /// Behind it on its stream.
    mark: Mark,
    /// On the emulator: how many its communicator had begun with it.
    begun: u64,
}

/// `waits`: whether it does so for collectives, and not only for the step before it; `together`: how many of the steps up to it are any.
fn bind(
    plan: &Plan,
    memory: &[Memory],
    step: &Step,
    waits: bool,
    together: usize,
) -> Result<BoundStep, Error> {
    Ok(match step {
        Step::Together { communicator, calls } => {
            let address = |slot: &crate::plan::Slot| {
                let Memory { buffer, start } = &memory[slot.index];
                let size = plan.slots()[slot.index].element.size();
                buffer.address() + (start + slot.range().start * size) as u64
            };
            let calls =
                calls.iter().map(|(call, from, to)| (call.clone(), address(from), address(to)));
            let (communicator, calls) = (Arc::clone(communicator), calls.collect());
            BoundStep::Together { communicator, calls, nth: together - 1 }
        }
        Step::Zero(index) => BoundStep::Zero(*index),
        Step::Copy { from, to } => BoundStep::Copy { from: *from, to: *to },
        Step::Launch { kernel, launch, arguments } => {
            // From a byte on, not an element: where scratch is lent, a piece begins at a multiple of 256, which need not be
            // one of its elements' size.
            let place = |slot: &Slot| {
                let Memory { buffer, start } = &memory[slot.index];
                (buffer, *start, plan.slots()[slot.index].element, slot.range())
            };
            let args = arguments.iter().map(|(argument, written)| match argument {
                Argument::Number(number) => Ok(*number),
                Argument::Slot(slot) => {
                    let (buffer, start, element, range) = place(slot);
                    buffer.arg_from(start, element, range, *written)
                }
                Argument::Map(slot, map, stores) => {
                    let (buffer, start, _, range) = place(slot);
                    buffer.tensor_map_from(start, range, map, *stores)
                }
            });
            let args = args.collect::<Result<Vec<_>, lab_device::Error>>()?;
            // It may begin before the launch before it has ended, but not before a collective has.
            let overlap_previous = launch.overlap_previous && !waits;
            BoundStep::Launch(kernel.bind_ordered(Launch { overlap_previous, ..*launch }, &args)?)
        }
    })
}

fn run_step(
    plan: &Plan,
    memory: &[Memory],
    step: &mut BoundStep,
    [stream, side]: [Option<&Stream>; 2],
    ends: &mut [End],
) -> Result<(), lab_device::Error> {
    match step {
        // SAFETY: the memory is the binding's, or lent to it while it lives, and as large as the plan's slots; a buffer is freed when
        // all streams have done with it. That the kernel stays within it, the crate that made the launch has promised
        // (`LaunchPromise`): a plan takes none without. Launches go to one stream, in their order, or overlap as that crate says.
        BoundStep::Launch(bound) => unsafe { bound.run(stream) },
        BoundStep::Together { communicator, calls, nth } => {
            let side = side.expect("a plan with collectives has a stream for them");
            side.wait_for(stream)?;
            // SAFETY: the memory is the binding's, or lent to it while it lives, and each call's slots have as many elements as it moves
            // (`Plan::together`). Steps that use them wait for it, by the plan's own account.
            unsafe { communicator.run(calls, side)? };
            let end = &mut ends[*nth];
            end.begun = communicator.begun();
            end.mark.set(Some(side))
        }
        BoundStep::Wait(nth) => {
            let End { mark, begun } = &ends[*nth];
            mark.hold(stream)?;
            plan.communicator().map_or(Ok(()), |communicator| communicator.settle_first(*begun))
        }
        BoundStep::Zero(index) | BoundStep::Poison(index) => {
            let Memory { buffer, start } = &memory[*index];
            let bytes = plan.slots()[*index].bytes();
            let is_zero = matches!(step, BoundStep::Zero(_));
            let with = if is_zero { Fill::Zero } else { Fill::Poison };
            // SAFETY: the plan's bytes of the slot, in memory that whoever bound it lends until the run has ended.
            unsafe { buffer.fill(*start..*start + bytes, with, stream) }
        }
        BoundStep::Copy { from, to } => {
            let bytes = plan.slots()[*from].bytes();
            let (from, to) = (&memory[*from], &memory[*to]);
            let part = from.start..from.start + bytes;
            // SAFETY: two slots of equal bytes, in memory that whoever bound it lends until the run has ended.
            unsafe { to.buffer.copy(to.start, &from.buffer, part, stream) }
        }
    }
}

/// How long a step of a plan takes: see [`Binding::time_steps`].
#[derive(Clone, Debug)]
pub struct StepTime {
    /// Its place in a run.
    pub at: usize,
    /// The layer that has added it.
    pub layer: String,
    /// The kernel with its template arguments, `fill` or `copy`.
    pub kernel: String,
    /// Of its launch.
    pub time: Duration,
}

/// A plan with memory.
pub struct Binding {
    plan: Plan,
    memory: Vec<Memory>,
    steps: Vec<BoundStep>,
    stream: Option<Arc<Stream>>,
    /// Where collectives run.
    side: Option<Stream>,
    /// One of each collective.
    ends: Vec<End>,
}

impl Binding {
    /// What it runs.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Makes all launches, in their order, in the device's own queue or on the stream that it was
    /// bound to. On a GPU this returns before they have ended.
    ///
    /// # Errors
    /// What the device reports of one; those behind it are not made.
    pub fn run(&mut self) -> Result<(), lab_device::Error> {
        let Self { plan, memory, steps, stream, side, ends } = self;
        let streams = [stream.as_deref(), side.as_ref()];
        let mut one = |step| run_step(plan, memory, step, streams, ends);
        let ran = steps.iter_mut().try_for_each(&mut one);
        if ran.is_err()
            && let Some(communicator) = plan.communicator()
        {
            communicator.forget();
        }
        ran
    }

    /// The time of each of the plan's steps in some runs, alone on the device with a cold L2 cache: the layer that has added it, its
    /// kernel, and the median.
    ///
    /// # Errors
    /// What the device reports.
    pub fn time_steps(&mut self, runs: usize) -> Result<Vec<StepTime>, lab_device::Error> {
        let device = self.plan.device().clone();
        let Self { plan, memory, steps, stream, side, ends } = self;
        let streams = [stream.as_deref(), side.as_ref()];
        let mut times: Vec<Vec<Duration>> = vec![Vec::new(); plan.len()];
        // In their order, for scratch is another's as soon as it has ended. The first run does not count.
        for run in 0..=runs.max(1) {
            let mut planned = 0;
            for step in &mut *steps {
                let is_own = match (&plan.steps()[planned.min(plan.len() - 1)], &*step) {
                    (_, BoundStep::Poison(_) | BoundStep::Wait(_)) => false,
                    (Step::Zero(own), BoundStep::Zero(index)) => own == index,
                    (_, BoundStep::Zero(_)) => false,
                    (
                        _,
                        BoundStep::Launch(_) | BoundStep::Copy { .. } | BoundStep::Together { .. },
                    ) => true,
                };
                let time = device.time(1, || {
                    run_step(plan, memory, step, streams, ends)?;
                    // Timed by the queue that waits for it.
                    match (&*step, streams) {
                        (BoundStep::Together { communicator, .. }, [stream, Some(side)]) => {
                            side.hold(stream)?;
                            communicator.settle()
                        }
                        _ => Ok(()),
                    }
                })?;
                if is_own && run > 0 {
                    times[planned].push(time[0]);
                }
                planned += usize::from(is_own);
            }
        }
        let of_step = |(at, mut times): (usize, Vec<Duration>)| {
            times.sort_unstable();
            let kernel = match &plan.steps()[at] {
                Step::Launch { kernel, .. } => kernel.name().to_owned(),
                Step::Zero(_) => "fill".into(),
                Step::Copy { .. } => "copy".into(),
                Step::Together { calls, .. } => {
                    calls.first().map_or("nothing", |(call, ..)| call.collective.name()).into()
                }
            };
            let layer = plan.layers()[at].to_string();
            StepTime { at, layer, kernel, time: times[times.len() / 2] }
        };
        Ok(times.into_iter().enumerate().map(of_step).collect())
    }

    /// Records a run, to be made again as one.
    ///
    /// # Errors
    /// As [`Device::graph`].
    pub fn graph(&mut self) -> Result<Graph<'_>, lab_device::Error> {
        let device = self.plan.device().clone();
        match self.stream.clone() {
            None => device.graph(move || self.run()),
            Some(stream) => device.graph_on(&stream, move || self.run()),
        }
    }

    /// Of a whole slot that holds between two runs what a run has left there.
    fn find_whole(&self, slot: Slot) -> Result<(&Memory, &SlotFacts), Error> {
        let (memory, facts) = self.find_kept(slot)?;
        assert_eq!(slot.range(), 0..facts.elements(), "a whole slot");
        Ok((memory, facts))
    }

    /// Of a slot, or a part of one, that holds between two runs what a run has left there: the memory of the whole slot.
    fn find_kept(&self, slot: Slot) -> Result<(&Memory, &SlotFacts), Error> {
        self.plan.check_own(slot)?;
        let facts = &self.plan.slots()[slot.index];
        if facts.is_shared() {
            Err(refuse(facts, "memory that is kept (Plan::keep)", "shared scratch".into()))
        } else {
            Ok((&self.memory[slot.index], facts))
        }
    }

    /// Copies a tensor of the same type and number of elements into a whole slot.
    ///
    /// # Errors
    /// It is of another type or length; scratch that is not kept ([`Plan::keep`]); or the device's.
    ///
    /// # Panics
    /// The slot is a part of one.
    pub fn write(&mut self, slot: Slot, tensor: &Tensor) -> Result<(), Error> {
        let (memory, facts) = self.find_whole(slot)?;
        check(facts, tensor)?;
        // SAFETY: nothing else uses the memory: launches that do come in the same queue, or end first.
        unsafe { memory.buffer.write(memory.start, &tensor.bytes)? };
        Ok(())
    }

    /// Copies a part of a slot of `other`, which may be this binding, into a part of one of this: on the device, in the order of its
    /// own queue.
    ///
    /// # Errors
    /// The parts are of unlike types or lengths, or overlap; scratch that is not kept ([`Plan::keep`]); or the device's.
    pub fn copy(&self, to: Slot, other: &Self, from: Slot) -> Result<(), Error> {
        let (target, facts) = self.find_kept(to)?;
        let (source, theirs) = other.find_kept(from)?;
        if (facts.element, to.len()) != (theirs.element, from.len()) {
            let [expected, got] =
                [(facts, to), (theirs, from)].map(|(f, s)| format!("{} {}", s.len(), f.element));
            return Err(refuse(facts, &expected, got));
        }
        let size = facts.bytes() / facts.elements().max(1);
        let [start, begin] = [target.start + to.start() * size, source.start + from.start() * size];
        let bytes = to.len() * size;
        let overlaps = start < begin + bytes && begin < start + bytes;
        if overlaps && Arc::ptr_eq(&target.buffer, &source.buffer) {
            return Err(refuse(facts, "parts that do not overlap", "parts that do".into()));
        }
        // SAFETY: what uses the memory comes in the same queue.
        unsafe { target.buffer.copy(start, &source.buffer, begin..begin + bytes, None)? };
        Ok(())
    }

    /// What a whole slot holds, under its shape.
    ///
    /// # Errors
    /// The device's; of structs, that they are no tensor; scratch that is not kept ([`Plan::keep`]).
    ///
    /// # Panics
    /// The slot is a part of one.
    pub fn read(&self, slot: Slot) -> Result<Tensor, Error> {
        let (memory, facts) = self.find_whole(slot)?;
        let dtype = facts.element.dtype();
        let dtype =
            dtype.ok_or_else(|| refuse(facts, "a tensor of numbers", facts.element.to_string()))?;
        let mut bytes = vec![0; facts.bytes()];
        memory.buffer.read(memory.start, &mut bytes)?;
        Ok(Tensor { dtype, shape: facts.shape.clone(), bytes })
    }
}

impl Prepared for Binding {
    fn launch(&mut self) -> Result<(), lab_device::Error> {
        self.run()
    }

    fn outputs(&self) -> Result<Tensors, Error> {
        let slots = self.plan.slots().iter();
        slots
            .filter_map(SlotFacts::comes_out)
            .map(|name| {
                let slot = self.plan.slot(name).expect("outputs have names");
                Ok((name.to_owned(), self.read(slot)?))
            })
            .collect()
    }

    fn all_written(&self) -> Result<(), Error> {
        let outputs = self.plan.slots().iter().zip(&self.memory);
        for (facts, memory) in outputs.filter(|(facts, _)| facts.kind == SlotKind::Output) {
            let part = memory.start..memory.start + facts.bytes();
            if let Some((first, count)) = memory.buffer.never_written(part) {
                let output = facts.name.clone();
                return Err(Error::NeverWritten { output, count, of: facts.bytes(), first });
            }
        }
        Ok(())
    }

    fn launches(&self) -> Vec<(Kernel, Launch)> {
        self.plan.launches()
    }

    fn input_bytes(&self) -> Option<u64> {
        let inputs = self.plan.slots().iter().filter(|facts| facts.kind == SlotKind::Input);
        Some(inputs.map(|facts| facts.bytes() as u64).sum())
    }

    fn poison_outputs(&mut self) -> Result<(), Error> {
        for (facts, memory) in self.plan.slots().iter().zip(&self.memory) {
            if facts.kind == SlotKind::Output {
                let all = memory.start..memory.start + facts.bytes();
                // SAFETY: the plan's bytes of the slot, which nothing else uses: launches that do come in the same queue, or end first.
                unsafe { memory.buffer.fill(all, Fill::Poison, None)? };
            }
        }
        Ok(())
    }
}
