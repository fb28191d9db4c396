//! The state of one CUDA thread while its coroutine is suspended, and why it may have stopped.

use std::collections::VecDeque;
use std::fmt;

use corosensei::Yielder;
use corosensei::trap::CoroutineTrapHandler;

use crate::abi::{BarrierKind, COORDINATES};
use crate::access::Stored;
use crate::report::Finding;
use crate::shadow::Cell;
use crate::stack::STACK_BYTES;
use crate::warp::{Collective, LANES, Operand};

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
    Found(Box<Finding>),
}

/// An asynchronous copy that was issued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy {
    pub(crate) to: usize,
    pub(crate) from: usize,
    pub(crate) bytes: usize,
    /// Return address of the call that issued it.
    pub(crate) pc: usize,
}

/// A thread's asynchronous copies under way, by group; the last group is open.
#[derive(Debug, Default)]
pub(crate) struct Copies(VecDeque<Vec<Copy>>);

impl Copies {
    /// Adds a copy to the open group.
    pub(crate) fn issue(&mut self, copy: Copy) {
        self.open();
        if let Some(group) = self.0.back_mut() {
            group.push(copy);
        }
    }

    /// Closes the open group.
    pub(crate) fn commit(&mut self) {
        self.open();
        self.0.push_back(Vec::new());
    }

    fn open(&mut self) {
        if self.0.is_empty() {
            self.0.push_back(Vec::new());
        }
    }

    /// Takes out the copies of all closed groups but the latest `pending`.
    pub(crate) fn complete(&mut self, pending: usize) -> Vec<Copy> {
        let closed = self.0.len().saturating_sub(1);
        self.0.drain(..closed.saturating_sub(pending)).flatten().collect()
    }
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
    pub(crate) state: State,
    pub(crate) predicate: i32,
    pub(crate) quiet_yields: u32,
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
    /// Asynchronous copies under way.
    pub(crate) copies: Copies,
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
        self.copies = Copies::default();
    }

    pub(crate) fn new() -> Self {
        Self {
            coordinates: [0; COORDINATES],
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
            copies: Copies::default(),
            fault: None,
            quiet_yields: 0,
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
