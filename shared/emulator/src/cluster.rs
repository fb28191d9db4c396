//! The blocks of a cluster, as they see each other: where each has its shared memory, and what each
//! knew when it came to a cluster-wide sync.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};

use crate::clock::Knowledge;
use crate::shared::{Extent, SharedShadow};

/// Blocks that a cluster may have: 16 on an H100, where a kernel asks for more than the 8 that
/// every device with clusters has.
pub const MAX_CLUSTER: u32 = 16;

/// What the others of a cluster may see of a block.
pub(crate) struct Member {
    pub(crate) fixed: Extent,
    pub(crate) dynamic: Extent,
    /// Null where the kernel is not checked.
    pub(crate) shadow: *mut SharedShadow,
    pub(crate) exited: AtomicBool,
    /// What it brought to the last two syncs: it may come to the next while others have still to
    /// leave this one.
    brought: Mutex<[Option<Arc<Knowledge>>; 2]>,
}

// SAFETY: the pointer is only followed in a checked launch, of which one OS thread at a time runs
// anything, and while the member's runner lives: see `Cluster::stay`.
unsafe impl Send for Member {}
// SAFETY: what lies behind the pointer is used by the one OS thread that runs; the rest is atomic or locked.
unsafe impl Sync for Member {}

/// One cluster, while it runs.
pub(crate) struct Cluster {
    members: Box<[OnceLock<Member>]>,
    /// Copies that have landed and phases that are complete: what a waiting block may be waiting for.
    events: AtomicU64,
    running: Mutex<usize>,
    over: Condvar,
}

impl Cluster {
    pub(crate) fn new(size: u32) -> Self {
        Self {
            members: (0..size).map(|_| OnceLock::new()).collect(),
            events: AtomicU64::new(0),
            running: Mutex::new(size as usize),
            over: Condvar::new(),
        }
    }

    /// Something has come about that another block may wait for.
    pub(crate) fn tell(&self) {
        self.events.fetch_add(1, Ordering::SeqCst);
    }

    /// How often.
    pub(crate) fn events(&self) -> u64 {
        self.events.load(Ordering::SeqCst)
    }

    pub(crate) fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// Block `rank`, once all have joined.
    pub(crate) fn member(&self, rank: u32) -> Option<&Member> {
        self.members.get(rank as usize)?.get()
    }

    pub(crate) fn join(
        &self,
        rank: u32,
        fixed: Extent,
        dynamic: Extent,
        shadow: *mut SharedShadow,
    ) {
        let exited = AtomicBool::new(false);
        let member = Member { fixed, dynamic, shadow, exited, brought: Mutex::default() };
        let _ = self.members[rank as usize].set(member);
    }

    pub(crate) fn exit(&self, rank: u32) {
        if let Some(member) = self.member(rank) {
            member.exited.store(true, Ordering::Relaxed);
        }
    }

    /// Waits until the others have ended as well: they may still reach for this block's memory.
    /// `blocks` of them, this one among them, end here.
    pub(crate) fn stay(&self, blocks: usize) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        *running -= blocks;
        if *running == 0 {
            self.over.notify_all();
        }
        while *running > 0 {
            running = self.over.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// To the `sync`-th.
    pub(crate) fn bring(&self, rank: u32, sync: usize, known: Arc<Knowledge>) {
        if let Some(member) = self.member(rank) {
            let mut brought = member.brought.lock().unwrap_or_else(PoisonError::into_inner);
            brought[sync % 2] = Some(known);
        }
    }

    /// What all of them brought to the `sync`-th; of those who have exited, to one before.
    pub(crate) fn brought(&self, sync: usize) -> Vec<Arc<Knowledge>> {
        let lock = |m: &Member| m.brought.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let of = |m: &Member| lock(m)[sync % 2].clone();
        self.members.iter().filter_map(OnceLock::get).filter_map(of).collect()
    }
}
