//! The state of one CUDA thread while its coroutine is suspended, and why it may have stopped.

use std::fmt;

use corosensei::Yielder;
use corosensei::trap::CoroutineTrapHandler;

use crate::abi::{BarrierKind, COORDINATES};
use crate::access::Stored;
use crate::completion::groups::Groups;
use crate::completion::mbarrier;
use crate::completion::wgmma::Asked;
use crate::registers::Asks;
use crate::report::Finding;
use crate::shadow::Cell;
use crate::stack::STACK_BYTES;
use crate::warp::{Collective, LANES, Operand};

/// How a thread comes to a [named barrier](crate::named).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Comes {
    pub(crate) number: u32,
    /// How many it is for.
    pub(crate) threads: u32,
    pub(crate) waits: bool,
}

/// Where a CUDA thread stands while its coroutine is not running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    Barrier(BarrierKind),
    Collective,
    GridSync,
    ClusterSync,
    /// At `__activemask()`, until it is known who else is there.
    ActiveMask,
    /// Until its products are made.
    Wgmma,
    /// At a barrier of a part of the block: `comes` says which.
    Named,
    /// Until its warpgroup has the registers that `asks` names.
    Registers,
    /// Until an mbarrier is so far: `awaits` says which.
    Mbarrier,
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
    /// Stopped by the watchdog; `polls`: it had let others run, for it waits for them.
    Interrupted {
        polls: bool,
    },
    NotInOwnMask {
        op: &'static str,
        mask: u32,
    },
    BadWidth {
        width: u32,
    },
    GridSyncNotCooperative,
    /// What `bar.sync` is told.
    BadBarrier(String),
    /// An address that an instruction cannot have.
    NotMapped(String),
    Trap(String),
    /// Something that must be a multiple of so many bytes.
    Misaligned {
        what: String,
        bytes: u32,
    },
    /// What a check says.
    Found(Box<Finding>),
}

/// What a thread in [`State::Mbarrier`] waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Await {
    pub(crate) address: usize,
    /// That the phase of this parity is complete; `None`: that it is a barrier at all.
    pub(crate) parity: Option<u32>,
}

impl Await {
    /// How far it is, where nothing else is known of it.
    pub(crate) fn describe(self) -> String {
        // SAFETY: the thread that waits has used the barrier at this address, and has not faulted.
        match unsafe { mbarrier::state(self.address) } {
            Ok(state) => format!(
                "parity {}: {} of {} arrivals and {} bytes are missing",
                state.parity, state.pending, state.count, state.bytes
            ),
            Err(_) => "nobody has initialised it".into(),
        }
    }

    /// Whether it has come.
    pub(crate) fn over(self) -> bool {
        // SAFETY: the thread that waits has used the barrier at this address, and has not faulted.
        match unsafe { mbarrier::state(self.address) } {
            Ok(state) => self.parity.is_none_or(|parity| state.parity != parity),
            Err(_) => self.parity.is_some(),
        }
    }
}

/// One CUDA thread. What every turn touches comes first, in one cache line.
#[repr(C, align(64))]
pub(crate) struct Thread {
    pub(crate) yielder: *const Yielder<(), ()>,
    /// Return address of the call into the runtime where it stands.
    pub(crate) pc: usize,
    /// The one before, where a signal has stopped it: where it has last paused.
    pub(crate) paused_at: usize,
    pub(crate) result: u64,
    /// About where its stack pointer was: what to prefetch before its next turn.
    pub(crate) sp: usize,
    pub(crate) state: State,
    pub(crate) predicate: i32,
    pub(crate) quiet_yields: u32,
    /// Where it has read which address strongly since it wrote strongly last, the latest first.
    pub(crate) polled: Vec<(usize, usize)>,
    pub(crate) lane: u32,
    pub(crate) warp: u32,
    /// By [`crate::abi::Coordinate`].
    pub(crate) coordinates: [u32; COORDINATES],
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
    /// Where its last access that was looked at returns to; 0 before the first.
    pub(crate) last: usize,
    /// Whether it has come to a barrier of the block.
    pub(crate) has_met: bool,
    pub(crate) awaits: Await,
    /// What its last `mbarrier.try_wait` in PTX has said no to.
    pub(crate) refused: Await,
    pub(crate) comes: Comes,
    pub(crate) asks: Asks,
    pub(crate) wgmma: Asked,
    /// Its cp.async under way.
    pub(crate) copies: Groups,
    /// Its bulk copies to device memory under way.
    pub(crate) bulk: Groups,
    pub(crate) fault: Option<Fault>,
}

impl Thread {
    /// Its number in the block.
    #[inline(always)]
    pub(crate) fn index(&self) -> u32 {
        self.warp * LANES as u32 + self.lane
    }

    /// Forgets what a block before left behind.
    pub(crate) fn restart(&mut self, block: u64) {
        self.who = Cell::who(self.index(), block as u32);
        self.stored = Stored::default();
        (self.last, self.has_met) = (0, false);
        self.copies = Groups::default();
        self.bulk = Groups::default();
        self.wgmma.restart();
    }

    pub(crate) fn new() -> Self {
        Self {
            coordinates: [0; COORDINATES],
            lane: 0,
            warp: 0,
            state: State::Ready,
            pc: 0,
            paused_at: 0,
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
            last: 0,
            has_met: false,
            awaits: Await::default(),
            refused: Await::default(),
            comes: Comes::default(),
            asks: Asks::default(),
            wgmma: Asked::default(),
            copies: Groups::default(),
            bulk: Groups::default(),
            fault: None,
            quiet_yields: 0,
            polled: Vec::new(),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal { name, address: Some(address) } => {
                write!(f, "{name} {address:#x}")
            }
            Self::Signal { name, address: None } => write!(f, "{name}"),
            Self::StackOverflow => {
                write!(f, "stack overflow: a thread has {} bytes", STACK_BYTES)
            }
            Self::Interrupted { polls: true } => write!(f, "endless spin: no progress"),
            Self::Interrupted { polls: false } => write!(f, "no end"),
            Self::NotInOwnMask { op, mask } => {
                write!(f, "{op} by a lane that its mask {mask:#010x} does not name")
            }
            Self::BadWidth { width } => {
                write!(f, "shuffle width: expected a power of two up to 32, got {width}")
            }
            Self::GridSyncNotCooperative => {
                write!(f, "grid.sync() in a launch that is not cooperative")
            }
            Self::BadBarrier(message) => write!(f, "named barrier: {message}"),
            Self::NotMapped(message) => write!(f, "{message}"),
            Self::Trap(message) => write!(f, "the kernel stopped itself: {message}"),
            Self::Misaligned { what, bytes } => {
                write!(f, "misaligned: {what} is not a multiple of {bytes} bytes")
            }
            Self::Found(finding) => write!(f, "{finding}"),
        }
    }
}
