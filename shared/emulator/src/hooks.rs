//! What kernels call: the table of `emulator_abi.h`, on top of the running coroutine.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_void};
use std::fmt;

use corosensei::Yielder;
use corosensei::trap::CoroutineTrapHandler;

use crate::check::{BlockCheck, Fatal, How, Stored};
use crate::clock::Scope;
use crate::cluster::Cluster;
use crate::shadow::{Cell, Kind};
use crate::warp::{Collective, Operand};

/// How a block barrier combines predicates. Mirrors `EmuBarrier` in `emulator_abi.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BarrierKind {
    Plain,
    Count,
    And,
    Or,
}

impl BarrierKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Plain => "__syncthreads",
            Self::Count => "__syncthreads_count",
            Self::And => "__syncthreads_and",
            Self::Or => "__syncthreads_or",
        }
    }
}

/// Where a CUDA thread stands while its coroutine is not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    Barrier(BarrierKind),
    Collective,
    GridSync,
    ClusterSync,
    /// In a loop that polls memory: it gave up its turn.
    Polling,
    Exited,
    /// `fault` says why.
    Failed,
}

/// Why a thread cannot go on.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    Signal {
        name: &'static str,
        address: Option<usize>,
    },
    StackOverflow,
    Interrupted,
    NotInOwnMask {
        op: &'static str,
        mask: u32,
    },
    BadWidth {
        width: u32,
    },
    GridSyncNotCooperative,
    /// `map_shared_rank` of what it cannot map.
    NotMapped(String),
    Trap(String),
    /// Something that must be a multiple of so many bytes.
    Misaligned {
        what: String,
        bytes: u32,
    },
    /// What a check says.
    Found(Fatal),
}

/// An asynchronous copy that was issued.
#[derive(Clone, Copy, Debug)]
struct Copy {
    to: usize,
    from: usize,
    bytes: usize,
    pc: usize,
}

/// One CUDA thread. What every turn touches comes first, in one cache line.
#[repr(C, align(64))]
pub(crate) struct Thread {
    pub(crate) yielder: *const Yielder<(), ()>,
    /// Return address of the call into the runtime where it stands.
    pub(crate) pc: usize,
    pub(crate) result: u64,
    /// About where its stack pointer was: what to prefetch before its next turn.
    pub(crate) sp: usize,
    pub(crate) block: *const BlockFacts,
    pub(crate) state: State,
    pub(crate) predicate: i32,
    quiet_yields: u32,
    pub(crate) lane: u32,
    pub(crate) warp: u32,
    /// `threadIdx`, `blockIdx`, `blockDim`, `gridDim`, rank in the cluster and its size, as
    /// `EmuCoordinate` counts them.
    pub(crate) coordinates: [u32; 14],
    pub(crate) operand: Operand,
    pub(crate) trap: Option<CoroutineTrapHandler<()>>,
    /// The guard page below its stack; empty where the stack has none.
    pub(crate) guard: std::ops::Range<usize>,
    /// Its stack.
    pub(crate) stack: std::ops::Range<usize>,
    /// Its thread and block, for the checks.
    pub(crate) who: Cell,
    /// Its last plain store, while a check has still to look at it.
    pub(crate) stored: Stored,
    /// Asynchronous copies under way, by group; the last group is open.
    copies: VecDeque<Vec<Copy>>,
    pub(crate) fault: Option<Fault>,
}

/// What all threads of a block share and only read.
pub(crate) struct BlockFacts {
    pub(crate) dynamic_shared: *mut u8,
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) cooperative: bool,
    /// Null where the launch has no clusters.
    pub(crate) cluster: *const Cluster,
    /// An asynchronous copy is made when it is issued, not when it is waited for.
    pub(crate) copies_land_early: bool,
    /// Null where the kernel is not checked.
    pub(crate) check: *mut BlockCheck,
    /// For `__activemask`: a word a warp, its lanes that have not exited.
    pub(crate) live_lanes: *const std::cell::Cell<u32>,
    /// For signal handlers: is an address the kernel's own code?
    pub(crate) module: *const crate::module::Module,
}

impl Thread {
    /// Its number in the block.
    #[inline(always)]
    pub(crate) fn index(&self) -> u32 {
        self.warp * crate::warp::LANES as u32 + self.lane
    }

    /// Forgets what a block before left behind.
    pub(crate) fn restart(&mut self, block: u64) {
        self.who = Cell::who(self.index(), block as u32);
        self.stored = Stored::default();
        self.copies.clear();
    }

    pub(crate) fn new(block: *const BlockFacts) -> Self {
        Self {
            coordinates: [0; 14],
            lane: 0,
            warp: 0,
            state: State::Ready,
            pc: 0,
            sp: 0,
            predicate: 0,
            operand: Operand { op: Collective::Sync, mask: 0, value: 0, argument: 0, width: 32 },
            result: 0,
            yielder: std::ptr::null(),
            trap: None,
            guard: 0..0,
            stack: 0..0,
            who: Cell::NONE,
            stored: Stored::default(),
            copies: VecDeque::new(),
            fault: None,
            block,
            quiet_yields: 0,
        }
    }
}

thread_local! {
    /// The CUDA thread whose coroutine runs on this OS thread; null outside of kernels.
    pub(crate) static CURRENT: std::cell::Cell<*mut Thread> = const { std::cell::Cell::new(std::ptr::null_mut()) };
}

/// The running CUDA thread, seen from its own coroutine.
///
/// Raw on purpose: while the coroutine is suspended the scheduler reads and writes the same
/// `Thread`, so no reference may be held over a suspension.
#[derive(Clone, Copy)]
struct Running(*mut Thread);

// SAFETY (of every block below): kernels run only inside `BlockRunner::resume`, which points
// `CURRENT` at a `Thread` that outlives its coroutine; between two suspensions nobody else touches
// it, for one coroutine at a time runs on an OS thread.
#[allow(clippy::undocumented_unsafe_blocks)]
impl Running {
    fn get() -> Self {
        Self(CURRENT.get())
    }
    fn block(self) -> *const BlockFacts {
        unsafe { (*self.0).block }
    }
    #[inline(always)]
    fn suspend(self, state: State, pc: *const c_void) {
        let marker = 0u8;
        unsafe {
            (*self.0).sp = &raw const marker as usize;
            (*self.0).state = state;
            (*self.0).pc = pc as usize;
            (*(*self.0).yielder).suspend(());
        }
    }
    fn result(self) -> u64 {
        unsafe { (*self.0).result }
    }
    /// The checks, where the kernel was compiled for them.
    fn check(self) -> Option<&'static mut BlockCheck> {
        unsafe { (*self.block()).check.as_mut() }
    }
    #[inline(always)]
    fn looked_at(self, address: usize, bytes: usize, kind: Kind, how: How, pc: *const c_void) {
        // A kernel's constructors run outside of any thread.
        if self.0.is_null() {
            return;
        }
        let Some(check) = self.check() else { return };
        let found = check.access(unsafe { &mut *self.0 }, address, bytes, kind, how, pc as usize);
        if let Err(finding) = found {
            self.fail(Fault::Found(finding), pc);
        }
    }
    fn fail(self, fault: Fault, pc: *const c_void) -> ! {
        unsafe { (*self.0).fault = Some(fault) };
        self.suspend(State::Failed, pc);
        // A failed launch never resumes any of its coroutines.
        std::process::abort()
    }
}

/// Mirrors `EmuRuntime` in `emulator_abi.h`.
#[repr(C)]
pub(crate) struct Runtime {
    coordinate: extern "C" fn(i32) -> u32,
    barrier: extern "C" fn(i32, i32, *const c_void) -> i32,
    warp: extern "C" fn(i32, u32, u64, u32, u32, *const c_void) -> u64,
    active_mask: extern "C" fn() -> u32,
    grid_sync: extern "C" fn(*const c_void),
    cluster_sync: extern "C" fn(*const c_void),
    map_shared: extern "C" fn(*const u8, u32, *const c_void) -> *mut u8,
    yield_point: extern "C" fn(i32, *const c_void),
    dynamic_shared: extern "C" fn() -> *mut u8,
    dynamic_shared_bytes: extern "C" fn() -> u32,
    trap: extern "C" fn(*const c_char, *const c_void),
    misaligned: extern "C" fn(*const c_char, u32, *const c_void),
    fence: extern "C" fn(i32, *const c_void),
    async_copy: extern "C" fn(*mut u8, *const u8, u32, *const c_void),
    async_commit: extern "C" fn(),
    async_wait: extern "C" fn(u32),
    read: extern "C" fn(*const u8, usize, *const c_void),
    write: extern "C" fn(*const u8, usize, *const c_void),
    access: extern "C" fn(*const u8, usize, u32, *const c_void),
    bounds: extern "C" fn(*const c_char, i64, *const c_void),
}

pub(crate) static RUNTIME: Runtime = Runtime {
    coordinate,
    barrier,
    warp,
    active_mask,
    grid_sync,
    cluster_sync,
    map_shared,
    yield_point,
    dynamic_shared,
    dynamic_shared_bytes,
    trap,
    misaligned,
    fence,
    async_copy,
    async_commit,
    async_wait,
    read,
    write,
    access,
    bounds,
};

extern "C" fn coordinate(which: i32) -> u32 {
    // SAFETY: see `Running`.
    unsafe { (*Running::get().0).coordinates[which as usize] }
}

extern "C" fn barrier(kind: i32, predicate: i32, pc: *const c_void) -> i32 {
    let kind = match kind {
        0 => BarrierKind::Plain,
        1 => BarrierKind::Count,
        2 => BarrierKind::And,
        _ => BarrierKind::Or,
    };
    let thread = Running::get();
    // SAFETY: see `Running`.
    unsafe { (*thread.0).predicate = predicate };
    if let Some(check) = thread.check() {
        check.barrier_counts(pc as usize);
    }
    thread.suspend(State::Barrier(kind), pc);
    thread.result() as i32
}

extern "C" fn warp(
    op: i32,
    mask: u32,
    value: u64,
    argument: u32,
    width: u32,
    pc: *const c_void,
) -> u64 {
    let thread = Running::get();
    let Some(op) = Collective::from_code(op) else {
        thread.fail(Fault::Trap(format!("unknown warp collective {op}")), pc)
    };
    // SAFETY: see `Running`.
    if mask >> unsafe { (*thread.0).lane } & 1 == 0 {
        thread.fail(Fault::NotInOwnMask { op: op.name(), mask }, pc);
    }
    if !width.is_power_of_two() || width > 32 {
        thread.fail(Fault::BadWidth { width }, pc);
    }
    // SAFETY: see `Running`.
    unsafe { (*thread.0).operand = Operand { op, mask, value, argument, width } };
    thread.suspend(State::Collective, pc);
    thread.result()
}

extern "C" fn active_mask() -> u32 {
    let thread = Running::get();
    // SAFETY: see `Running`; the block keeps a word for each of its warps.
    unsafe { (*(*thread.block()).live_lanes.add((*thread.0).warp as usize)).get() }
}

extern "C" fn grid_sync(pc: *const c_void) {
    let thread = Running::get();
    // SAFETY: the block's facts outlive its threads.
    if !unsafe { (*thread.block()).cooperative } {
        thread.fail(Fault::GridSyncNotCooperative, pc);
    }
    thread.suspend(State::GridSync, pc);
}

extern "C" fn cluster_sync(pc: *const c_void) {
    let thread = Running::get();
    if let Some(check) = thread.check() {
        check.barrier_counts(pc as usize);
    }
    thread.suspend(State::ClusterSync, pc);
}

/// Where block `rank` of the cluster has what this block has at `own`.
extern "C" fn map_shared(own: *const u8, rank: u32, pc: *const c_void) -> *mut u8 {
    let thread = Running::get();
    // SAFETY: the block's facts outlive its threads, and the cluster its blocks.
    let (facts, cluster) = unsafe { (&*thread.block(), (*thread.block()).cluster.as_ref()) };
    let size = cluster.map_or(1, Cluster::size);
    if rank >= size {
        let message = format!("expected a block of the cluster's {size}, got {rank}");
        thread.fail(Fault::NotMapped(message), pc);
    }
    let address = own as usize;
    let dynamic = (facts.dynamic_shared as usize, facts.dynamic_shared_bytes as usize);
    // SAFETY: the module outlives the launch.
    let fixed = unsafe { (*facts.module).shared_memory() };
    let fixed = (fixed.cast::<u8>() as usize, fixed.len());
    let member = cluster.and_then(|c| c.member(rank));
    let (fixed_there, dynamic_there) = member.map_or((fixed, dynamic), |m| (m.fixed, m.dynamic));
    for (here, there) in [(fixed, fixed_there), (dynamic, dynamic_there)] {
        if address.wrapping_sub(here.0) < here.1 {
            return (there.0 + (address - here.0)) as *mut u8;
        }
    }
    thread.fail(Fault::NotMapped("expected an address in this block's shared memory".into()), pc)
}

/// Atomics and fences between two turns given up: a loop that polls one still lets others run,
/// a kernel that merely uses them hardly pays.
const YIELDS_PER_TURN: u32 = 32;

extern "C" fn yield_point(sleeping: i32, pc: *const c_void) {
    let thread = Running::get();
    // SAFETY: see `Running`.
    let quiet = unsafe { &raw mut (*thread.0).quiet_yields };
    // SAFETY: as above.
    let turn_is_over = unsafe {
        *quiet += 1;
        sleeping != 0 || *quiet >= YIELDS_PER_TURN
    };
    if turn_is_over {
        // SAFETY: as above.
        unsafe { *quiet = 0 };
        thread.suspend(State::Polling, pc);
    }
}

extern "C" fn dynamic_shared() -> *mut u8 {
    // SAFETY: the block's facts outlive its threads.
    unsafe { (*Running::get().block()).dynamic_shared }
}

extern "C" fn dynamic_shared_bytes() -> u32 {
    // SAFETY: the block's facts outlive its threads.
    unsafe { (*Running::get().block()).dynamic_shared_bytes }
}

extern "C" fn trap(message: *const c_char, pc: *const c_void) {
    // SAFETY: kernels pass string literals.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned();
    Running::get().fail(Fault::Trap(message), pc)
}

extern "C" fn misaligned(what: *const c_char, bytes: u32, pc: *const c_void) {
    // SAFETY: the shim passes string literals.
    let what = unsafe { CStr::from_ptr(what) }.to_string_lossy().into_owned();
    Running::get().fail(Fault::Misaligned { what, bytes }, pc)
}

extern "C" fn fence(scope: i32, pc: *const c_void) {
    let thread = Running::get();
    if let Some(check) = thread.check() {
        let scope = if scope == 0 { Scope::Block } else { Scope::Device };
        // SAFETY: see `Running`.
        check.fence(unsafe { (*thread.0).index() }, scope);
    }
    yield_point(0, pc);
}

// ---- asynchronous copies --------------------------------------------------------------------------

extern "C" fn async_copy(to: *mut u8, from: *const u8, bytes: u32, pc: *const c_void) {
    let thread = Running::get();
    let copy =
        Copy { to: to as usize, from: from as usize, bytes: bytes as usize, pc: pc as usize };
    let how = How { whole: true, ..How::default() };
    thread.looked_at(copy.from, copy.bytes, Kind::AsyncRead, how, pc);
    thread.looked_at(copy.to, copy.bytes, Kind::AsyncWrite, how, pc);
    // SAFETY: see `Running`.
    let (copies, early) = unsafe { (&mut (*thread.0).copies, (*thread.block()).copies_land_early) };
    if early {
        make(copy);
    }
    if copies.is_empty() {
        copies.push_back(Vec::new());
    }
    if let Some(group) = copies.back_mut() {
        group.push(copy);
    }
}

extern "C" fn async_commit() {
    // SAFETY: see `Running`.
    let copies = unsafe { &mut (*Running::get().0).copies };
    if copies.is_empty() {
        copies.push_back(Vec::new());
    }
    copies.push_back(Vec::new());
}

/// Waits for all closed groups but the latest `pending`.
extern "C" fn async_wait(pending: u32) {
    let thread = Running::get();
    // SAFETY: see `Running`; the reference ends before anything below may suspend.
    let (landing, early) = unsafe {
        let copies = &mut (*thread.0).copies;
        let closed = copies.len().saturating_sub(1);
        let landing: Vec<Copy> =
            copies.drain(..closed.saturating_sub(pending as usize)).flatten().collect();
        (landing, (*thread.block()).copies_land_early)
    };
    for copy in landing {
        let how = How { whole: true, lands: true, ..How::default() };
        let issued = copy.pc as *const c_void;
        thread.looked_at(copy.from, copy.bytes, Kind::Read, how, issued);
        thread.looked_at(copy.to, copy.bytes, Kind::Write, how, issued);
        if !early {
            make(copy);
        }
    }
}

fn make(copy: Copy) {
    // SAFETY: a kernel's own addresses, which a checked one has had looked at; what is behind
    // them is the kernel's affair, as with its other accesses.
    unsafe { std::ptr::copy(copy.from as *const u8, copy.to as *mut u8, copy.bytes) };
}

// ---- accesses, of kernels compiled for the checks -------------------------------------------------

/// The size was not said by one instruction's type: `memcpy`, a structure, an unaligned access.
const LOOSE: usize = 1 << 40;

extern "C" fn read(address: *const u8, bytes: usize, pc: *const c_void) {
    let how = How { whole: bytes & LOOSE == 0, ..How::default() };
    Running::get().looked_at(address as usize, bytes & !LOOSE, Kind::Read, how, pc);
}

extern "C" fn write(address: *const u8, bytes: usize, pc: *const c_void) {
    let how = How { whole: bytes & LOOSE == 0, ..How::default() };
    Running::get().looked_at(address as usize, bytes & !LOOSE, Kind::Write, how, pc);
}

/// A strong access. `flags` as `EmuAccess` in `emulator_abi.h` has them.
extern "C" fn access(address: *const u8, bytes: usize, flags: u32, pc: *const c_void) {
    let flag = |bit: u32| flags >> bit & 1 == 1;
    let (reads, writes, acquires, releases, polls) = (flag(0), flag(1), flag(2), flag(3), flag(4));
    let thread = Running::get();
    if thread.0.is_null() || thread.check().is_none() {
        return;
    }
    let how = How { whole: true, updates: reads && writes, lands: false };
    let kind = if writes { Kind::StrongWrite } else { Kind::StrongRead };
    thread.looked_at(address as usize, bytes, kind, how, pc);
    if let Some(check) = thread.check() {
        // SAFETY: see `Running`.
        let index = unsafe { (*thread.0).index() };
        check.publish(index, address as usize, (reads, writes), (acquires, releases));
    }
    if polls {
        yield_point(0, pc);
    }
}

extern "C" fn bounds(array: *const c_char, index: i64, pc: *const c_void) {
    let thread = Running::get();
    if thread.0.is_null() {
        return;
    }
    let Some(check) = thread.check() else { return };
    // SAFETY: the compiler's own literal.
    let array = unsafe { CStr::from_ptr(array) }.to_string_lossy();
    // SAFETY: see `Running`.
    let found = check.index(unsafe { &*thread.0 }, array.trim_matches('\''), index, pc as usize);
    thread.fail(Fault::Found(found), pc);
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal { name, address: Some(address) } => {
                write!(f, "{name} {address:#x}")
            }
            Self::Signal { name, address: None } => write!(f, "{name}"),
            Self::StackOverflow => {
                write!(f, "stack overflow: a thread has {} bytes", crate::stack::STACK_BYTES)
            }
            Self::Interrupted => write!(f, "endless loop"),
            Self::NotInOwnMask { op, mask } => {
                write!(f, "{op} by a lane that its mask {mask:#010x} does not name")
            }
            Self::BadWidth { width } => {
                write!(f, "shuffle width: expected a power of two up to 32, got {width}")
            }
            Self::GridSyncNotCooperative => {
                write!(f, "grid.sync() in a launch that is not cooperative")
            }
            Self::NotMapped(message) => write!(f, "map_shared_rank: {message}"),
            Self::Trap(message) => write!(f, "the kernel stopped itself: {message}"),
            Self::Misaligned { what, bytes } => {
                write!(f, "misaligned: {what} is not a multiple of {bytes} bytes")
            }
            Self::Found(finding) => write!(f, "{finding}"),
        }
    }
}
