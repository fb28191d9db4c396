//! What the emulator says when a kernel goes wrong.

use std::fmt;
use std::time::Duration;

use crate::hooks::Fault;

/// Threads of one block that stand at the same place.
#[derive(Clone, Debug)]
pub struct Standing {
    /// `blockIdx`.
    pub block: [u32; 3],
    /// What they wait for or do: `__syncthreads`, `polls memory`, `exited`, …
    pub what: &'static str,
    /// `file:line:column`, where there is one.
    pub place: Option<String>,
    /// The mask of a warp collective.
    pub mask: Option<u32>,
    /// How many they are.
    pub count: usize,
    /// `threadIdx` of the first of them.
    pub first: [u32; 3],
    /// `threadIdx` of the last of them.
    pub last: [u32; 3],
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { block, first, last, count, .. } = self;
        write!(f, "block {}, ", Index(*block))?;
        match count {
            1 => write!(f, "thread {}", Index(*first))?,
            n => write!(f, "{n} threads {}..{}", Index(*first), Index(*last))?,
        }
        write!(f, ": {}", self.what)?;
        if let Some(mask) = self.mask {
            write!(f, " (mask {mask:#010x})")?;
        }
        if let Some(place) = &self.place {
            write!(f, " at {place}")?;
        }
        Ok(())
    }
}

/// A thread or block index, as CUDA programmers write it.
struct Index([u32; 3]);

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [x, y, z] = self.0;
        write!(f, "({x},{y},{z})")
    }
}

/// What is wrong, and where.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Finding {
    /// No thread can go on.
    Deadlock {
        /// Where each thread stands.
        standing: Vec<Standing>,
    },
    /// Threads of one block met at barriers that do different things.
    MixedBarriers {
        /// Where each thread stands.
        standing: Vec<Standing>,
    },
    /// Some blocks have exited, and the others wait for them in a grid-wide sync.
    GridSyncAbandoned {
        /// Blocks that have exited.
        exited: usize,
        /// Where the threads of a block that waits stand.
        standing: Vec<Standing>,
    },
    /// Nothing but polling has happened for this long, or a loop has not called the runtime.
    Stalled {
        /// The time without progress.
        limit: Duration,
        /// Where the threads stand.
        standing: Vec<Standing>,
    },
    /// A thread cannot go on.
    Fault {
        /// Why.
        #[doc(hidden)]
        #[allow(private_interfaces)]
        fault: Fault,
        /// `threadIdx` of the thread.
        thread: [u32; 3],
        /// `file:line:column`.
        place: String,
        /// Where the threads of its block stand; the failed one is among them.
        standing: Vec<Standing>,
    },
}

/// At most this many groups of threads are printed.
const SHOWN: usize = 16;

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let standing = match self {
            Self::Deadlock { standing } => {
                write!(f, "deadlock: no thread of the block can go on")?;
                standing
            }
            Self::MixedBarriers { standing } => {
                write!(f, "threads of one block meet at different kinds of barrier")?;
                standing
            }
            Self::GridSyncAbandoned { exited, standing } => {
                write!(
                    f,
                    "deadlock: {exited} blocks have exited without the grid sync that the others wait in"
                )?;
                standing
            }
            Self::Stalled { limit, standing } => {
                write!(
                    f,
                    "endless spin: no progress for {} s (LAB_EMULATOR_STALL_SECONDS)",
                    limit.as_secs_f32()
                )?;
                standing
            }
            Self::Fault { fault, thread, place, standing } => {
                let block = standing.first().map_or([0; 3], |s| s.block);
                write!(f, "{fault}, block {}, thread {} at {place}", Index(block), Index(*thread))?;
                return Ok(());
            }
        };
        for s in standing.iter().take(SHOWN) {
            write!(f, "\n  {s}")?;
        }
        if standing.len() > SHOWN {
            write!(f, "\n  … and {} more groups of threads", standing.len() - SHOWN)?;
        }
        Ok(())
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
            Self::Trap(message) => write!(f, "the kernel stopped itself: {message}"),
        }
    }
}
