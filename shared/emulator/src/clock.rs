//! What each thread knows to have happened: the order that barriers, fences and atomics give.
//!
//! A clock for every pair of threads would be far too large, and most order comes from barriers. So
//! a block has one clock, which ticks at every synchronisation in it; an access is stamped with
//! what its thread last saw of it. All that is stamped before the block's last barrier is known to
//! all its threads. What a thread knows beyond that, of its warp through `__syncwarp` or of others
//! through a fence and an atomic, it keeps apart.
//!
//! Between blocks the rules are those of the PTX memory model: a fence, then a strong write
//! (atomic, volatile, release) publishes what the writer knows; a strong read of that value, then a
//! fence, takes it over. A barrier hands on what its threads have fenced and what they have read.
//!
//! What an asynchronous copy has written is known to nobody but those who have waited for it. So once it
//! lands its access is not its issuer's, but that of an agent: an [`AGENT`] of the block whose mbarrier
//! counts the bytes, with the barrier's number for a thread and its phase for a stamp. And what is known
//! may be known to the async proxy, too, or not: `fence.proxy.async` adds it under the same block's
//! number with [`PROXY`].

use std::collections::VecDeque;
use std::sync::Arc;

use crate::shadow::{AGENT, Cell, STAMPS};
use crate::warp::LANES;

/// Added to a block's number: known to the async proxy.
const PROXY: u32 = 1 << 31;
/// The same of accesses to shared memory alone.
const SHARED_PROXY: u32 = 1 << 29;
/// For a block's number: that the grid before has ended.
const GRID: u32 = 1 << 30;

/// How far a fence reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    Block,
    Cluster,
    Device,
}

/// Of one block: stamps below these are known.
#[derive(Clone, Debug, Default)]
struct View {
    everybody: u32,
    /// Of which threads more is known than of everybody, in their order.
    threads: Vec<(u32, u32)>,
    /// No stamp of these is larger.
    most: u32,
}

impl View {
    fn note(&mut self, thread: u32, stamp: u32) {
        if stamp <= self.everybody {
            return;
        }
        self.most = self.most.max(stamp);
        match self.find(thread) {
            Ok(at) => self.threads[at].1 = self.threads[at].1.max(stamp),
            Err(at) => self.threads.insert(at, (thread, stamp)),
        }
    }

    #[inline(always)]
    fn of_thread(&self, thread: u32) -> u32 {
        self.find(thread).map_or(self.everybody, |at| self.threads[at].1)
    }

    /// Where a thread is, or would be. Most lists have neighbours side by side: the distance to the first tells.
    fn find(&self, thread: u32) -> Result<usize, usize> {
        let guess = thread.wrapping_sub(self.threads.first().map_or(thread, |t| t.0)) as usize;
        match self.threads.get(guess) {
            Some(t) if t.0 == thread => Ok(guess),
            _ => self.threads.binary_search_by_key(&thread, |t| t.0),
        }
    }

    fn know_of_everybody(&mut self, stamp: u32) {
        if stamp > self.everybody {
            self.everybody = stamp;
            self.threads.retain(|t| t.1 > stamp);
        }
    }

    /// Whether this knows of something that `other` does not.
    fn exceeds(&self, other: &Self) -> bool {
        if self.everybody.max(self.most) <= other.everybody {
            return false;
        }
        let mut theirs = other.threads.as_slice();
        let more = |&(thread, stamp): &(u32, u32)| {
            // Most lists hold the same threads: the next is the one, or the one behind it.
            if theirs.first().is_some_and(|t| t.0 < thread) {
                theirs = &theirs[1..];
                if theirs.first().is_some_and(|t| t.0 < thread) {
                    theirs = &theirs[theirs.partition_point(|t| t.0 < thread)..];
                }
            }
            let of_thread = theirs.first().filter(|t| t.0 == thread).map_or(0, |t| t.1);
            stamp > of_thread.max(other.everybody)
        };
        self.everybody > other.everybody || self.threads.iter().any(more)
    }

    fn add(&mut self, other: &Self) {
        self.know_of_everybody(other.everybody);
        self.most = self.most.max(other.most);
        if self.threads.is_empty() {
            self.threads.extend(other.threads.iter().filter(|t| t.1 > self.everybody));
        } else if other.threads.len() <= LANES {
            other.threads.iter().for_each(|&(thread, stamp)| self.note(thread, stamp));
        } else {
            let both = merge_stamps(&self.threads, &other.threads);
            self.threads = both.filter(|t| t.1 > self.everybody).collect();
        }
    }
}

/// Both lists, each thread once, with the later of its stamps.
fn merge_stamps<'a>(
    mut a: &'a [(u32, u32)],
    mut b: &'a [(u32, u32)],
) -> impl Iterator<Item = (u32, u32)> + 'a {
    std::iter::from_fn(move || {
        let (first, other) = (a.first().copied(), b.first().copied());
        let thread = first.into_iter().chain(other).map(|t| t.0).min()?;
        let mut stamp = 0;
        for (list, front) in [(&mut a, first), (&mut b, other)] {
            if let Some((_, of_front)) = front.filter(|t| t.0 == thread) {
                stamp = stamp.max(of_front);
                *list = &list[1..];
            }
        }
        Some((thread, stamp))
    })
}

/// What is known of other blocks, and of one's own beyond its barriers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Knowledge {
    /// By number. Each thread has a copy, and most of them know the same of most blocks.
    blocks: Vec<(u32, Arc<View>)>,
}

impl Knowledge {
    fn view(&self, block: u32) -> Option<&View> {
        let at = self.blocks.binary_search_by_key(&block, |b| b.0).ok()?;
        Some(&self.blocks[at].1)
    }

    fn view_mut(&mut self, block: u32) -> &mut View {
        let at = self.blocks.binary_search_by_key(&block, |b| b.0).unwrap_or_else(|at| {
            self.blocks.insert(at, (block, Arc::default()));
            at
        });
        Arc::make_mut(&mut self.blocks[at].1)
    }

    /// Whether an access, noted under this block's number, is known.
    fn covers(&self, block: u32, access: Cell) -> bool {
        self.view(block).is_some_and(|view| access.stamp() < view.of_thread(access.thread()))
    }

    fn add(&mut self, other: &Self) {
        for (n, (block, theirs)) in other.blocks.iter().enumerate() {
            // Most know of the same blocks.
            let same = self.blocks.get(n).is_some_and(|b| b.0 == *block);
            match if same { Ok(n) } else { self.blocks.binary_search_by_key(block, |b| b.0) } {
                Ok(at) => add(&mut self.blocks[at].1, theirs, View::exceeds, View::add),
                Err(at) => self.blocks.insert(at, (*block, theirs.clone())),
            }
        }
    }

    /// Whether this knows of something that `other` does not.
    fn exceeds(&self, other: &Self) -> bool {
        self.blocks.iter().enumerate().any(|(n, (block, view))| {
            let same = other.blocks.get(n).filter(|b| b.0 == *block);
            let theirs = same.or_else(|| {
                let at = other.blocks.binary_search_by_key(block, |b| b.0).ok()?;
                Some(&other.blocks[at])
            });
            theirs.is_none_or(|(_, theirs)| !Arc::ptr_eq(view, theirs) && view.exceeds(theirs))
        })
    }

    /// What the async proxy is to know, under `mark`, for it to know all of this and `own`, and does not know yet.
    fn unknown_to_proxy<'a>(
        &'a self,
        own: &'a (u32, Arc<View>),
        mark: u32,
    ) -> impl Iterator<Item = (u32, Arc<View>)> + 'a {
        let others = PROXY | SHARED_PROXY | GRID | AGENT;
        let generic = self.blocks.iter().filter(move |(block, _)| *block & others == 0);
        let all = generic.filter(|(block, _)| *block != own.0).chain([own]);
        let more = move |(block, view): &&(u32, Arc<View>)| {
            let before = self.blocks.binary_search_by_key(&(block | mark), |b| b.0);
            let before = before.ok().map(|at| &self.blocks[at].1);
            before.is_none_or(|before| !Arc::ptr_eq(view, before) && view.exceeds(before))
        };
        all.filter(more).map(move |(block, view)| (block | mark, view.clone()))
    }

    fn add_view(&mut self, block: u32, theirs: &Arc<View>) {
        match self.blocks.binary_search_by_key(&block, |b| b.0) {
            Ok(at) => add(&mut self.blocks[at].1, theirs, View::exceeds, View::add),
            Err(at) => self.blocks.insert(at, (block, theirs.clone())),
        }
    }
}

/// Adds `other` to what is known. Knowledge grows, and of two that meet mostly one knows all that the other does: then
/// they share that from here on, and nothing is copied.
fn add<T: Clone>(
    own: &mut Arc<T>,
    other: &Arc<T>,
    exceeds: impl Fn(&T, &T) -> bool,
    add: impl Fn(&mut T, &T),
) {
    if Arc::ptr_eq(own, other) || !exceeds(other, own) {
        return;
    }
    if exceeds(own, other) { add(Arc::make_mut(own), other) } else { own.clone_from(other) }
}

type Shared = Option<Arc<Knowledge>>;

fn join(own: &mut Shared, other: &Shared) {
    match (own.as_mut(), other) {
        (_, None) => {}
        (None, Some(_)) => own.clone_from(other),
        (Some(a), Some(b)) => add(a, b, Knowledge::exceeds, Knowledge::add),
    }
}

/// What strong writes to one address have published.
#[derive(Debug, Default)]
pub(crate) struct Published {
    device: Shared,
    /// By fences of block scope: of use to this block only.
    block: (u32, Shared),
    observers: Observers,
}

impl Published {
    /// The block of the last strong write.
    pub(crate) fn writer(&self) -> Option<u32> {
        self.observers.writer
    }
}

/// Who has seen all strong writes of one address.
///
/// In the PTX memory model a strong write precedes the strong read that sees it, or that sees the last of a chain of
/// atomics upon it (observation order); and with that all that the reader does later (program order). So a flag may be
/// set back plainly by who has seen it set. Of what the writer did before, this says nothing: that needs a release.
#[derive(Debug, Default)]
struct Observers {
    /// Those of the last strong write; the oldest makes room.
    seen: [Option<Observer>; 4],
    next: usize,
    /// A write came that is no part of the chain: who sees it has not seen those before.
    broken: bool,
    /// Whose the last write was: a block.
    writer: Option<u32>,
}

/// A strong access that saw the value of all writes before.
#[derive(Clone, Copy, Debug)]
struct Observer {
    access: Cell,
    /// Fences of its thread before it.
    fences: u32,
    acquires: bool,
}

impl Observers {
    fn see(&mut self, observer: Observer) {
        let is_same = |o: &&mut Observer| o.access.same_thread(observer.access);
        match self.seen.iter_mut().flatten().find(is_same) {
            Some(before) if observer.acquires && !before.acquires => *before = observer,
            // The first time tells.
            Some(_) => {}
            None => {
                self.seen[self.next] = Some(observer);
                self.next = (self.next + 1) % self.seen.len();
            }
        }
    }

    /// A new write: who has not seen it has not seen all.
    fn forget(&mut self) {
        (self.seen, self.next) = Default::default();
    }
}

/// What a thread knew at some time, with all that it had done.
#[derive(Clone, Debug)]
pub(crate) struct Snapshot {
    known: Shared,
    block: u32,
    /// Stamps of the block below this, and of these of its threads.
    everybody: u32,
    threads: Arc<[(u32, u32)]>,
}

impl Snapshot {
    /// Adds what the thread knew of its own block.
    fn add_own(&self, to: &mut Knowledge) {
        self.add_to(to.view_mut(self.block));
    }

    /// What the thread knew of its own block.
    fn view_of_own_block(&self) -> View {
        let known = self.known.as_ref().and_then(|known| known.view(self.block));
        let mut own = known.cloned().unwrap_or_default();
        self.add_to(&mut own);
        own
    }

    fn add_to(&self, own: &mut View) {
        own.know_of_everybody(self.everybody);
        self.threads.iter().for_each(|&(thread, stamp)| own.note(thread, stamp));
    }

    fn all_knowledge(&self) -> Knowledge {
        let mut all = self.known.as_deref().cloned().unwrap_or_default();
        self.add_own(&mut all);
        all
    }
}

/// Knowledge that comes from many, of whom most know the same.
#[derive(Debug, Default)]
struct Sum {
    all: Knowledge,
    /// What is in it already.
    parts: Vec<Arc<Knowledge>>,
}

impl Sum {
    fn add(&mut self, snapshot: &Snapshot) {
        if let Some(known) = &snapshot.known
            && !self.parts.iter().any(|part| Arc::ptr_eq(part, known))
        {
            self.all.add(known);
            self.parts.push(known.clone());
        }
        snapshot.add_own(&mut self.all);
    }

    /// All of it, and what was known before; nothing is left.
    fn take(&mut self, before: &Shared) -> Shared {
        let Self { mut all, .. } = std::mem::take(self);
        if let Some(before) = before {
            all.add(before);
        }
        Some(Arc::new(all))
    }
}

/// What arrivals at an mbarrier, and copies that land there, publish.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    /// In the phase under way: to the barrier's own block; to the whole cluster, which the own block
    /// takes only if it asks the cluster.
    block: Sum,
    cluster: Sum,
    /// In all phases before.
    complete: [Shared; 2],
}

impl Gathered {
    /// The phase is complete.
    pub(crate) fn turn(&mut self) {
        let [block, cluster] = &mut self.complete;
        *block = self.block.take(block);
        *cluster = self.cluster.take(cluster);
    }

    /// A copy of an agent has landed, and brings what its issuer knew, where it brings that. `near`:
    /// without asking the cluster.
    pub(crate) fn land(&mut self, known: Option<&Snapshot>, agent: Cell, near: bool) {
        let to = if near { &mut self.block } else { &mut self.cluster };
        if let Some(known) = known {
            to.add(known);
        }
        let view = to.all.view_mut(agent.block());
        view.note(agent.thread(), agent.stamp() + 1);
    }
}

/// Of a thread of a block, or of all of them: that stamps below this are known. What is known stays known, so that a thread
/// can keep what it has found out.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    block: u32,
    /// One more than its number; 0: all.
    thread: u32,
    below: u32,
}

/// How many of these a thread keeps.
const FOUND: usize = 4;

#[derive(Clone, Debug, Default)]
struct ThreadClock {
    now: u32,
    /// Whether an access was stamped with `now`.
    used: bool,
    known: Shared,
    /// What was found in `known` before.
    found: [std::cell::Cell<Found>; FOUND],
    /// What a strong write publishes: known at the last fence of device, of block scope.
    fenced: [Shared; 2],
    /// What strong reads have found published; known once a fence has come.
    heard: [Shared; 2],
    /// Fences so far.
    fences: u32,
}

impl ThreadClock {
    /// Whether an access, noted under this block's number, is known.
    #[inline(always)]
    fn knows(&self, block: u32, access: Cell) -> bool {
        // Copies of one block land at several barriers; of other blocks mostly all threads are known alike.
        let which = if block & AGENT == 0 { block } else { access.thread() };
        let found = &self.found[which as usize % FOUND];
        let before = found.get();
        let concerns =
            before.block == block && (before.thread == 0 || before.thread == access.thread() + 1);
        concerns && access.stamp() < before.below || self.finds(block, access, found)
    }

    #[inline(never)]
    fn finds(&self, block: u32, access: Cell, found: &std::cell::Cell<Found>) -> bool {
        let Some(view) = self.known.as_ref().and_then(|known| known.view(block)) else {
            return false;
        };
        let (thread, below) = if access.stamp() < view.everybody {
            (0, view.everybody)
        } else {
            (access.thread() + 1, view.of_thread(access.thread()))
        };
        let is_known = access.stamp() < below;
        if is_known {
            found.set(Found { block, thread, below });
        }
        is_known
    }
}

/// The clock of a block, and what its threads know.
#[derive(Debug)]
pub(crate) struct BlockClock {
    block: u32,
    /// Stamps below are known to all threads of the block.
    epoch: u32,
    time: u32,
    threads: Vec<ThreadClock>,
    /// For each warp that has used `__syncwarp`: below what each lane knows each lane's stamps.
    warps: Vec<Option<Box<[[u32; LANES]; LANES]>>>,
    /// Whether any thread knows, has fenced or heard anything.
    exchanged: bool,
    /// The last joins: all threads of a block often make the same.
    joined: VecDeque<[Arc<Knowledge>; 3]>,
    /// What a thread has waited for last.
    latest: Option<(Cell, Arc<Knowledge>)>,
    /// What a thread learns that waits for the grid before.
    grid_ended: Option<Arc<Knowledge>>,
}

const DEVICE: usize = 0;
const BLOCK: usize = 1;

impl BlockClock {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            block: 0,
            epoch: 1,
            time: 1,
            threads: vec![ThreadClock::default(); threads],
            warps: vec![None; threads.div_ceil(LANES)],
            exchanged: false,
            joined: VecDeque::new(),
            latest: None,
            grid_ended: None,
        }
    }

    /// Starts block `linear`.
    pub(crate) fn start(&mut self, linear: u32) {
        self.block = Cell::new(crate::access::Kind::Read, 0, linear, 0, 0).block();
        self.restart();
        if std::mem::take(&mut self.exchanged) {
            self.threads.iter_mut().for_each(|t| *t = ThreadClock::default());
            self.joined.clear();
            self.latest = None;
        }
    }

    fn restart(&mut self) {
        (self.epoch, self.time) = (1, 1);
        self.threads.iter_mut().for_each(|t| (t.now, t.used) = (0, false));
        self.warps.iter_mut().for_each(|w| *w = None);
    }

    /// The stamp of an access that `thread` makes now.
    #[inline(always)]
    pub(crate) fn stamp(&mut self, thread: u32) -> u32 {
        let t = &mut self.threads[thread as usize];
        t.used = true;
        t.now.max(self.epoch)
    }

    fn next_time(&mut self) -> u32 {
        self.after(self.time)
    }

    /// A time after this one. Stamps of different threads are not compared, so that it may be one at
    /// which others have made accesses.
    fn after(&mut self, time: u32) -> u32 {
        // At its end the clock stands still: order may then be seen where there is none, never the
        // other way round. The next barrier starts it anew.
        let after = (time + 1).min(STAMPS - 1);
        self.time = self.time.max(after);
        after
    }

    /// Whether the access of `cell` happened before what `me` (by `thread`) does now.
    #[inline(always)]
    pub(crate) fn is_ordered(&self, cell: Cell, me: Cell) -> bool {
        if cell.same_block(me) {
            if cell.stamp() < self.epoch || cell.same_thread(me) {
                return true;
            }
            return self.ordered_beyond_barriers(cell, me.thread());
        }
        self.exchanged && self.knows(cell, me.thread())
    }

    /// Whether `cell` is none, by the same thread, or from before a barrier of this block: ordered
    /// for sure, seen at a glance.
    #[inline(always)]
    pub(crate) fn over(&self, cell: Cell, me: Cell) -> bool {
        cell == Cell::NONE
            || !cell.kind().in_flight()
                && cell.same_block(me)
                && (cell.stamp() < self.epoch || cell.same_thread(me))
    }

    /// Whether a barrier of this block lies between.
    pub(crate) fn before_barrier(&self, cell: Cell, me: Cell) -> bool {
        cell.same_block(me) && cell.stamp() < self.epoch
    }

    #[cold]
    fn ordered_beyond_barriers(&self, cell: Cell, thread: u32) -> bool {
        let (own, other) = (thread as usize, cell.thread() as usize);
        if own / LANES == other / LANES
            && let Some(views) = &self.warps[own / LANES]
            && cell.stamp() < views[own % LANES][other % LANES]
        {
            return true;
        }
        self.exchanged && self.knows(cell, thread)
    }

    #[inline(always)]
    fn knows(&self, cell: Cell, thread: u32) -> bool {
        self.threads[thread as usize].knows(cell.block(), cell)
    }

    /// Stamps below this are known to all threads of the block.
    pub(crate) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether who did this has published it by a fence, and `thread` has read what was published: that it has a fence of
    /// its own behind that is not asked.
    pub(crate) fn heard_of(&self, cell: Cell, thread: u32) -> bool {
        let ThreadClock { known, heard, .. } = &self.threads[thread as usize];
        heard.iter().chain([known]).flatten().any(|known| known.covers(cell.block(), cell))
    }

    /// Whether some thread of the block knows what another block did.
    pub(crate) fn anybody_knows(&self, cell: Cell) -> bool {
        (0..self.threads.len() as u32).any(|thread| self.knows(cell, thread))
    }

    /// Whether the async proxy sees, for `thread`, what a plain access did, to shared memory or another.
    pub(crate) fn is_seen_by_proxy(&self, cell: Cell, thread: u32, shared: bool) -> bool {
        let knows = |mark: u32| self.threads[thread as usize].knows(cell.block() | mark, cell);
        shared && knows(SHARED_PROXY) || knows(PROXY)
    }

    /// All threads have met. True where the clock had run out and what is remembered must go.
    pub(crate) fn barrier(&mut self) -> bool {
        if self.exchanged {
            let everybody: Vec<usize> = (0..self.threads.len()).collect();
            self.exchange(&everybody);
        }
        if self.time + 2 >= STAMPS {
            self.restart();
            return true;
        }
        self.epoch = self.next_time();
        false
    }

    /// All threads have come to a sync of the cluster: what they know, to be shared with its other
    /// blocks. True where the clock had run out, as by [`BlockClock::barrier`].
    pub(crate) fn bring(&mut self) -> (Arc<Knowledge>, bool) {
        for thread in 0..self.threads.len() as u32 {
            self.acquire(thread, Scope::Device);
        }
        let everybody: Vec<usize> = (0..self.threads.len()).collect();
        self.exchange(&everybody);
        let known = self.threads.first().and_then(|t| t.known.as_deref());
        let mut all = known.cloned().unwrap_or_default();
        let own = all.view_mut(self.block);
        own.know_of_everybody(self.time + 1);
        (Arc::new(all), self.barrier())
    }

    /// All blocks of the cluster have met, and brought so much.
    pub(crate) fn take(&mut self, brought: &[Arc<Knowledge>]) {
        let mut known = None;
        brought.iter().for_each(|b| join(&mut known, &Some(b.clone())));
        self.threads.iter_mut().for_each(|t| t.known.clone_from(&known));
        self.exchanged = true;
    }

    /// These lanes of a warp have met.
    pub(crate) fn sync_warp(&mut self, warp: usize, lanes: u32) {
        let epoch = self.epoch;
        let met: Vec<usize> = (0..LANES).filter(|l| lanes >> l & 1 == 1).collect();
        let latest = met.iter().map(|l| self.threads[warp * LANES + l].now).max();
        let time = self.after(latest.unwrap_or(0).max(epoch));
        let views = self.warps[warp].get_or_insert_with(|| Box::new([[0; LANES]; LANES]));
        let mut all = [epoch; LANES];
        for &lane in &met {
            (0..LANES).for_each(|l| all[l] = all[l].max(views[lane][l]));
        }
        met.iter().for_each(|&lane| all[lane] = time);
        for &lane in &met {
            views[lane] = all;
            let thread = &mut self.threads[warp * LANES + lane];
            (thread.now, thread.used) = (time, false);
        }
        if self.exchanged {
            let threads: Vec<usize> = met.iter().map(|l| warp * LANES + l).collect();
            self.exchange(&threads);
        }
    }

    /// Those who have met share what they know, have fenced and have heard.
    fn exchange(&mut self, threads: &[usize]) {
        let mut known = None;
        let (mut fenced, mut heard) = ([None, None], [None, None]);
        for &t in threads {
            let t = &self.threads[t];
            join(&mut known, &t.known);
            for scope in [DEVICE, BLOCK] {
                join(&mut fenced[scope], &t.fenced[scope]);
                join(&mut heard[scope], &t.heard[scope]);
            }
        }
        for &t in threads {
            let t = &mut self.threads[t];
            t.known.clone_from(&known);
            t.fenced.clone_from(&fenced);
            t.heard.clone_from(&heard);
        }
    }

    pub(crate) fn fence(&mut self, thread: u32, scope: Scope) {
        self.threads[thread as usize].fences += 1;
        self.acquire(thread, scope);
        self.release(thread, scope);
    }

    /// What strong reads have found is known from here on.
    fn acquire(&mut self, thread: u32, scope: Scope) {
        let t = &mut self.threads[thread as usize];
        let block = t.heard[BLOCK].take();
        join(&mut t.known, &block);
        if scope == Scope::Device {
            let device = t.heard[DEVICE].take();
            join(&mut t.known, &device);
        }
    }

    /// What strong writes publish from here on is all that is known by now.
    fn release(&mut self, thread: u32, scope: Scope) {
        let all = Some(Arc::new(self.snapshot(thread).all_knowledge()));
        let t = &mut self.threads[thread as usize];
        if scope == Scope::Device {
            t.fenced[DEVICE].clone_from(&all);
        }
        t.fenced[BLOCK] = all;
    }

    /// What `thread` knows, and all that it has done; what it does from here on is no part of it.
    pub(crate) fn snapshot(&mut self, thread: u32) -> Snapshot {
        self.exchanged = true;
        let (index, epoch) = (thread as usize, self.epoch);
        let t = &self.threads[index];
        let (now, used) = (t.now.max(epoch), t.used);
        let mut threads = vec![(thread, if used { now + 1 } else { now })];
        if let Some(views) = &self.warps[index / LANES] {
            let first = (index / LANES * LANES) as u32;
            let views = (first..).zip(views[index % LANES]);
            threads.extend(views.filter(|&(_, stamp)| stamp > epoch));
        }
        let snapshot = Snapshot {
            known: t.known.clone(),
            block: self.block,
            everybody: epoch,
            threads: threads.into(),
        };
        let later = if used { self.after(now) } else { now };
        let t = &mut self.threads[index];
        (t.now, t.used) = (later, false);
        snapshot
    }

    /// `thread` knows this, too.
    fn learn(&mut self, thread: u32, news: &Shared) {
        let Some(news) = news else { return };
        self.exchanged = true;
        let known = &mut self.threads[thread as usize].known;
        let Some(own) = known.take() else {
            *known = Some(news.clone());
            return;
        };
        let made = |j: &&[_; 3]| Arc::ptr_eq(&j[0], &own) && Arc::ptr_eq(&j[1], news);
        let both = if Arc::ptr_eq(&own, news) {
            own
        } else if let Some([.., both]) = self.joined.iter().find(made) {
            both.clone()
        } else {
            let mut both = own.clone();
            add(&mut both, news, Knowledge::exceeds, Knowledge::add);
            self.joined.truncate(3);
            self.joined.push_front([own, news.clone(), both.clone()]);
            both
        };
        *known = Some(both);
    }

    /// `thread` has waited for what an agent did up to this.
    pub(crate) fn waited(&mut self, thread: u32, agent: Cell) {
        let news = match self.latest.take() {
            Some((same, news)) if same == agent => news,
            _ => {
                let mut news = Knowledge::default();
                news.view_mut(agent.block()).note(agent.thread(), agent.stamp() + 1);
                Arc::new(news)
            }
        };
        self.learn(thread, &Some(news.clone()));
        self.latest = Some((agent, news));
    }

    /// `thread` has waited for the end of the grid before.
    pub(crate) fn waited_for_grid(&mut self, thread: u32) {
        let news = self.grid_ended.get_or_insert_with(|| {
            let mut news = Knowledge::default();
            news.view_mut(GRID);
            Arc::new(news)
        });
        let news = Some(news.clone());
        self.learn(thread, &news);
    }

    /// Whether `thread` knows that some thread has.
    pub(crate) fn knows_of_grid(&self, thread: u32) -> bool {
        let known = self.threads[thread as usize].known.as_ref();
        known.is_some_and(|k| k.view(GRID).is_some())
    }

    /// `fence.proxy.async`: the async proxy sees what `thread` knows and has done, or of that what was done
    /// to shared memory.
    pub(crate) fn fence_proxy(&mut self, thread: u32, shared_alone: bool) {
        let mark = if shared_alone { SHARED_PROXY } else { PROXY };
        let snapshot = self.snapshot(thread);
        let known = &mut self.threads[thread as usize].known;
        let before = known.get_or_insert_default();
        let own = (snapshot.block, Arc::new(snapshot.view_of_own_block()));
        // Else what the thread knows has another owner, and is copied below.
        drop(snapshot);
        let news: Vec<_> = before.unknown_to_proxy(&own, mark).collect();
        if news.is_empty() {
            return;
        }
        let known = Arc::make_mut(before);
        news.iter().for_each(|(block, view)| known.add_view(*block, view));
    }

    /// `thread` arrives at an mbarrier, of its own block (`near`) or of another of its cluster.
    pub(crate) fn arrive(&mut self, thread: u32, to: &mut Gathered, near: bool, scope: Scope) {
        let all = self.snapshot(thread);
        if near {
            to.block.add(&all);
        } else if scope != Scope::Block {
            to.cluster.add(&all);
        }
    }

    /// `thread` has waited for a phase of an mbarrier of its block.
    pub(crate) fn pass(&mut self, thread: u32, from: &Gathered, scope: Scope) {
        let [block, cluster] = &from.complete;
        self.learn(thread, block);
        if scope != Scope::Block {
            self.learn(thread, cluster);
        }
    }

    /// `thread` reads, by a strong access, what was published.
    pub(crate) fn strong_read(&mut self, thread: u32, from: &Published, acquires: bool) {
        let t = &mut self.threads[thread as usize];
        join(&mut t.heard[DEVICE], &from.device);
        if from.block.0 == self.block {
            join(&mut t.heard[BLOCK], &from.block.1);
        }
        self.exchanged = true;
        if acquires {
            self.acquire(thread, Scope::Device);
        }
    }

    /// `thread` writes, by a strong access. One that also reads (`updates`) adds to what was
    /// published there, any other replaces it.
    pub(crate) fn strong_write(
        &mut self,
        thread: u32,
        to: &mut Published,
        updates: bool,
        releases: bool,
    ) {
        if releases {
            self.release(thread, Scope::Device);
        }
        let t = &self.threads[thread as usize];
        if !updates {
            *to =
                Published { observers: std::mem::take(&mut to.observers), ..Published::default() };
        }
        join(&mut to.device, &t.fenced[DEVICE]);
        if to.block.0 != self.block {
            to.block = (self.block, None);
        }
        join(&mut to.block.1, &t.fenced[BLOCK]);
    }

    /// `me`, a strong access of this block, has seen the value at an address. A write that does not read (`replaces`)
    /// ends the chain, unless its thread has seen all of it.
    pub(crate) fn observe(
        &self,
        me: Cell,
        address: &mut Published,
        (writes, replaces, acquires): (bool, bool, bool),
    ) {
        let chain = &mut address.observers;
        if replaces {
            let all = || chain.seen.iter().flatten();
            let is_first = all().next().is_none();
            chain.broken |= !is_first && !all().any(|o| self.is_ordered(o.access, me));
        }
        if writes {
            chain.forget();
            chain.writer = Some(me.block());
        }
        let fences = self.threads[me.thread() as usize].fences;
        chain.see(Observer { access: me, fences, acquires });
    }

    /// Whether `me` comes behind one who has seen all strong writes of this address, by an acquire or with a fence
    /// behind it.
    pub(crate) fn observed(&self, address: &Published, me: Cell) -> bool {
        let acquired = |o: &Observer| {
            let own = o.access.same_block(me);
            o.acquires || !own || self.threads[o.access.thread() as usize].fences > o.fences
        };
        let seen = || address.observers.seen.iter().flatten();
        !address.observers.broken && seen().any(|o| acquired(o) && self.is_ordered(o.access, me))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Kind;

    fn access(clock: &mut BlockClock, block: u32, thread: u32) -> Cell {
        Cell::new(Kind::Write, thread, block, clock.stamp(thread), 1)
    }

    /// Whatever is added in whatever order: of each thread the latest stamp, or everybody's.
    #[test]
    fn views_add_up() {
        let threads = 70;
        let mut random = 1u32;
        let mut next = |below: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) % below
        };
        for _ in 0..50 {
            let (mut sum, mut expected) = (View::default(), vec![0; threads as usize]);
            let mut views = Vec::new();
            let known_by =
                |view: &View| (0..threads).map(|thread| view.of_thread(thread)).collect::<Vec<_>>();
            for _ in 0..8 {
                let mut view = View::default();
                for _ in 0..next(60) {
                    let (thread, stamp) = (next(threads), next(100));
                    view.note(thread, stamp);
                    let of_thread = &mut expected[thread as usize];
                    *of_thread = stamp.max(*of_thread);
                }
                let everybody = next(40);
                view.know_of_everybody(everybody);
                expected.iter_mut().for_each(|t| *t = everybody.max(*t));
                sum.add(&view);
                views.push(view);
            }
            assert!(views.iter().all(|view| !view.exceeds(&sum)));
            assert!(sum.exceeds(&views[0]) || expected == known_by(&views[0]));
            let got = known_by(&sum);
            assert_eq!(got, expected);
            assert!(sum.threads.is_sorted_by(|a, b| a.0 < b.0));
            assert!(sum.threads.iter().all(|t| t.1 > sum.everybody));
        }
    }

    /// Whether what thread 0 of block 0 wrote is known to thread 40 of block 1.
    fn message(fence: Option<Scope>, acquire_fence: bool, strong_kind: (bool, bool)) -> bool {
        let (mut writer, mut reader) = (BlockClock::new(64), BlockClock::new(64));
        writer.start(0);
        reader.start(1);
        let mut flag = Published::default();
        let data = access(&mut writer, 0, 0);
        if let Some(scope) = fence {
            writer.fence(0, scope);
        }
        writer.strong_write(0, &mut flag, false, strong_kind.0);
        reader.strong_read(40, &flag, strong_kind.1);
        if acquire_fence {
            reader.fence(40, Scope::Device);
        }
        let me = access(&mut reader, 1, 40);
        reader.is_ordered(data, me)
    }

    #[test]
    fn messages_need_both_fences() {
        let relaxed = (false, false);
        assert!(message(Some(Scope::Device), true, relaxed));
        assert!(!message(None, true, relaxed), "no release");
        assert!(!message(Some(Scope::Device), false, relaxed), "no acquire");
        assert!(!message(Some(Scope::Block), true, relaxed), "a fence that reaches the block only");
        assert!(message(None, false, (true, true)), "release and acquire need no fences");
    }

    /// Whether `reader` may set back plainly what `writer` has added to, after it has seen (`sees`) it, with a fence behind.
    fn set_back(sees: bool, fence: bool, breaks: bool) -> bool {
        let mut clocks = [0, 1, 2].map(|block| {
            let mut clock = BlockClock::new(32);
            clock.start(block);
            clock
        });
        let mut flag = Published::default();
        let access =
            |clock: &mut BlockClock, kind| Cell::new(kind, 0, clock.block, clock.stamp(0), 1);
        let me = access(&mut clocks[0], Kind::StrongWrite);
        clocks[0].observe(me, &mut flag, (true, false, false));
        if breaks {
            let me = access(&mut clocks[2], Kind::StrongWrite);
            clocks[2].observe(me, &mut flag, (true, true, false));
        }
        if sees {
            let me = access(&mut clocks[1], Kind::StrongRead);
            clocks[1].observe(me, &mut flag, (false, false, false));
        }
        if fence {
            clocks[1].fence(0, Scope::Device);
        }
        let me = access(&mut clocks[1], Kind::Write);
        clocks[1].observed(&flag, me)
    }

    #[test]
    fn who_has_seen_all_writes_comes_behind_them() {
        assert!(set_back(true, true, false));
        assert!(!set_back(false, true, false), "it has not seen it");
        assert!(!set_back(true, false, false), "no acquire");
        assert!(!set_back(true, true, true), "a store over the atomic, which it says nothing of");
    }

    #[test]
    fn what_comes_after_a_fence_is_not_published() {
        let mut clock = BlockClock::new(64);
        clock.start(0);
        let mut flag = Published::default();
        let before = access(&mut clock, 0, 0);
        clock.fence(0, Scope::Device);
        let after = access(&mut clock, 0, 0);
        clock.strong_write(0, &mut flag, true, false);
        clock.strong_read(63, &flag, true);
        let me = access(&mut clock, 0, 63);
        assert!(clock.is_ordered(before, me) && !clock.is_ordered(after, me));
    }

    #[test]
    fn barriers_order_a_block_and_warps_themselves_only() {
        let mut clock = BlockClock::new(64);
        clock.start(0);
        let (lane0, lane1, other) =
            (access(&mut clock, 0, 0), access(&mut clock, 0, 1), access(&mut clock, 0, 32));
        let me = access(&mut clock, 0, 1);
        assert!(!clock.is_ordered(lane0, me) && clock.is_ordered(lane1, me));
        clock.sync_warp(0, 0b11);
        let me = access(&mut clock, 0, 1);
        assert!(clock.is_ordered(lane0, me) && !clock.is_ordered(other, me));
        let third = access(&mut clock, 0, 2);
        assert!(!clock.is_ordered(lane0, third), "lane 2 was not in the mask");
        clock.barrier();
        let me = access(&mut clock, 0, 1);
        assert!(clock.is_ordered(other, me));
    }

    #[test]
    fn a_barrier_hands_on_what_one_thread_learned() {
        let (mut writer, mut reader) = (BlockClock::new(64), BlockClock::new(64));
        writer.start(0);
        reader.start(1);
        let mut flag = Published::default();
        let data = access(&mut writer, 0, 5);
        writer.barrier();
        writer.fence(0, Scope::Device);
        writer.strong_write(0, &mut flag, true, false);
        reader.strong_read(0, &flag, false);
        reader.fence(0, Scope::Device);
        let early = access(&mut reader, 1, 50);
        assert!(!reader.is_ordered(data, early));
        reader.barrier();
        let late = access(&mut reader, 1, 50);
        assert!(reader.is_ordered(data, late));
    }

    #[test]
    fn barriers_and_flags_tell_of_a_wait_for_the_grid_before() {
        let (mut one, mut other) = (BlockClock::new(64), BlockClock::new(64));
        one.start(0);
        other.start(1);
        one.waited_for_grid(3);
        assert!(one.knows_of_grid(3) && !one.knows_of_grid(4));
        one.barrier();
        assert!((0..64).all(|thread| one.knows_of_grid(thread)));
        let mut flag = Published::default();
        one.strong_write(9, &mut flag, false, true);
        other.strong_read(40, &flag, true);
        assert!(other.knows_of_grid(40) && !other.knows_of_grid(41));
        one.start(2);
        assert!(!(0..64).any(|thread| one.knows_of_grid(thread)), "another block");
    }

    #[test]
    fn a_clock_that_runs_out_says_so_at_the_next_barrier() {
        let mut clock = BlockClock::new(32);
        clock.start(0);
        let restarts = (0..3 * STAMPS).filter(|_| clock.barrier()).count();
        assert_eq!(restarts, 3);
    }
}
