//! What kernels call: the table of `emulator_abi.h`, on top of the running coroutine.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};

use corosensei::Yielder;
use corosensei::trap::CoroutineTrapHandler;

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
    /// In a loop that polls memory: it gave up its turn.
    Polling,
    Exited,
    /// `fault` says why.
    Failed,
}

/// Why a thread cannot go on.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    Signal { name: &'static str, address: Option<usize> },
    StackOverflow,
    Interrupted,
    NotInOwnMask { op: &'static str, mask: u32 },
    BadWidth { width: u32 },
    GridSyncNotCooperative,
    Trap(String),
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
    /// `threadIdx`, `blockIdx`, `blockDim`, `gridDim`, as `EmuCoordinate` counts them.
    pub(crate) coordinates: [u32; 12],
    pub(crate) operand: Operand,
    pub(crate) trap: Option<CoroutineTrapHandler<()>>,
    /// The guard page below its stack; empty where the stack has none.
    pub(crate) guard: std::ops::Range<usize>,
    pub(crate) fault: Option<Fault>,
}

/// What all threads of a block share and only read.
pub(crate) struct BlockFacts {
    pub(crate) dynamic_shared: *mut u8,
    pub(crate) dynamic_shared_bytes: u32,
    pub(crate) cooperative: bool,
    /// For `__activemask`: a word a warp, its lanes that have not exited.
    pub(crate) live_lanes: *const Cell<u32>,
    /// For signal handlers: is an address the kernel's own code?
    pub(crate) module: *const crate::module::Module,
}

impl Thread {
    pub(crate) fn new(block: *const BlockFacts) -> Self {
        Self {
            coordinates: [0; 12],
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
            fault: None,
            block,
            quiet_yields: 0,
        }
    }
}

thread_local! {
    /// The CUDA thread whose coroutine runs on this OS thread; null outside of kernels.
    pub(crate) static CURRENT: Cell<*mut Thread> = const { Cell::new(std::ptr::null_mut()) };
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
    yield_point: extern "C" fn(i32, *const c_void),
    dynamic_shared: extern "C" fn() -> *mut u8,
    dynamic_shared_bytes: extern "C" fn() -> u32,
    trap: extern "C" fn(*const c_char, *const c_void),
}

pub(crate) static RUNTIME: Runtime = Runtime {
    coordinate,
    barrier,
    warp,
    active_mask,
    grid_sync,
    yield_point,
    dynamic_shared,
    dynamic_shared_bytes,
    trap,
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
