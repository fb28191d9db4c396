//! What the checks make of mbarriers and of copies that land at them.

use std::sync::atomic::Ordering;

use super::{BlockCheck, Conflict, Fatal};
use crate::access::{Kind, Space};
use crate::clock::Scope;
use crate::completion::mbarrier::Misuse;
use crate::completion::record::Record;
use crate::completion::{Flight, What as Sent};
use crate::report::{Finding, Kind as What};
use crate::shadow::{Cell, GRANULE, bytes_mask};
use crate::shared::{Located, SharedShadow};
use crate::thread::Thread;
use crate::trace::Signal;

/// Bytes of an mbarrier.
const BYTES: usize = 8;

impl BlockCheck {
    /// Whether it is a barrier of this block.
    pub(crate) fn is_mbarrier(&self, address: usize) -> bool {
        self.launch.mbarriers.contains_key(&address)
    }

    /// A block starts: what was in its shared memory is gone.
    pub(super) fn forget_mbarriers(&mut self) {
        let (fixed, dynamic) = (self.shared.fixed, self.shared.dynamic);
        let here = |at: usize| {
            at.wrapping_sub(fixed.0) < fixed.1 || at.wrapping_sub(dynamic.0) < dynamic.1
        };
        self.launch.mbarriers.retain(|&address, _| !here(address));
    }

    /// It has become a barrier of `count` arrivals.
    pub(crate) fn mbarrier_init(&mut self, thread: &Thread, address: usize, count: u32, pc: usize) {
        let launch = &mut *self.launch;
        launch.mbarriers_made += 1;
        let stamp = self.clock.stamp(thread.index());
        let made = thread.who.at(Kind::Write, stamp, launch.places.number(pc)).of_bytes(0xF);
        let (number, block) = (launch.mbarriers_made, self.block);
        let record = Record { number, block, count, made: Some(made), ..Record::default() };
        launch.mbarriers.insert(address, record);
        self.mark_mbarrier(address, true);
    }

    /// `thread` uses it: does it know that it was initialised? The bytes themselves remember only who used
    /// them last.
    pub(crate) fn mbarrier_used(&mut self, thread: &Thread, address: usize, kind: Kind, pc: usize) {
        let Some(record) = self.launch.mbarriers.get(&address) else { return };
        let (Some(made), index) = (record.made, thread.index()) else { return };
        let place = self.launch.places.number(pc);
        let me = thread.who.at(kind, self.clock.stamp(index), place).of_bytes(0xF);
        if !self.clock.is_ordered(made, me) {
            let space = self.find(address).map_or(Space::Static, |found| found.1);
            // Names are of places in this block's memory.
            let conflict = Conflict { with: made, formal: None, if_observed: None };
            self.race(self.at_home(address), BYTES, space, conflict, me);
        }
    }

    /// The block's clock begins anew.
    pub(super) fn forget_who_made_mbarriers(&mut self) {
        let block = self.block;
        let own = self.launch.mbarriers.values_mut().filter(|record| record.block == block);
        own.for_each(|record| record.made = None);
    }

    /// Its memory is for plain accesses again.
    pub(crate) fn mbarrier_invalidate(&mut self, address: usize) {
        self.launch.mbarriers.remove(&address);
        self.mark_mbarrier(address, false);
    }

    fn mark_mbarrier(&mut self, address: usize, is: bool) {
        for at in (address..address + BYTES).step_by(GRANULE) {
            if let Some((granule, ..)) = self.find(at) {
                // SAFETY: the shadow of an address that was located.
                unsafe { (*granule).mark_mbarrier(is) };
            }
        }
    }

    /// `thread` arrives, and expects so many bytes more; the barrier itself has counted that.
    pub(crate) fn mbarrier_arrived(
        &mut self,
        thread: &Thread,
        address: usize,
        (arrivals, expected): (u32, u32),
        scope: Scope,
        outcome: Result<bool, Misuse>,
        pc: usize,
    ) -> Result<(), Fatal> {
        let launch = &mut *self.launch;
        let place = launch.places.number(pc);
        let complete = outcome.map_err(|misuse| self.report_misuse(thread, address, misuse, pc))?;
        let launch = &mut *self.launch;
        let Some(record) = launch.mbarriers.get_mut(&address) else { return Ok(()) };
        let near = record.block == self.block;
        let phase = record.phase;
        if arrivals > 0 {
            self.clock.arrive(thread.index(), &mut record.gathered, near, scope);
            Record::note(&mut record.arrived, place, arrivals);
        }
        record.expected += expected;
        if complete {
            record.turn();
        }
        if arrivals > 0 && !near {
            let me = thread.who.at(Kind::Write, 0, place);
            self.with_member(address, |shadow| shadow.arrived(me, address, phase));
        }
        Ok(())
    }

    /// `thread` has waited for the phase that was complete last.
    pub(crate) fn mbarrier_passed(&mut self, thread: u32, address: usize, scope: Scope) {
        let block = self.block;
        if let Some(record) = self.launch.mbarriers.get(&address) {
            self.clock.pass(thread, &record.gathered, scope);
            if record.block == block && !self.shared.visits.is_empty() {
                self.shared.saw(address, record.phase);
            }
        }
    }

    /// A copy has landed, and its bytes were counted.
    pub(crate) fn landed(
        &mut self,
        flight: &Flight,
        outcome: Result<bool, Misuse>,
    ) -> Result<(), Fatal> {
        let launch = &mut *self.launch;
        let place = launch.places.number(flight.pc);
        launch.issuers.insert(place, (self.block, flight.issuer));
        let issuer = Cell::who(flight.issuer, self.block);
        if let Some(rank) = self.exited_member(flight.target()) {
            let me = issuer.at(Kind::AsyncWrite, 0, place);
            return Err(self.report_absent_block(rank, true, flight.bytes, me));
        }
        let launch = &mut *self.launch;
        let Some(record) = launch.mbarriers.get_mut(&flight.barrier) else { return Ok(()) };
        let (block, number, phase) = (record.block, record.number, record.phase);
        let agent = |kind| Cell::agent(block, number, phase, kind, place);
        // Whoever waits without asking the cluster sees a bulk copy from elsewhere as well: that is how
        // copies to several blocks are used. A single store of another block's thread it need not see.
        let near = block == self.block || !matches!(flight.what, Sent::Store { .. });
        record.gathered.land(flight.known.as_ref(), agent(Kind::Write), near);
        Record::note(&mut record.landed, place, flight.bytes as u32);
        if matches!(outcome, Ok(true)) {
            record.turn();
        }
        let signal = Signal::Lands { bytes: flight.bytes };
        self.trace_mbarrier(flight.issuer, flight.pc, flight.barrier, signal);
        let at = |kind| issuer.at(kind, 0, place);
        for (from, bytes) in flight.sources() {
            self.relabel(from, bytes, at(Kind::AsyncRead), agent(Kind::Read));
        }
        for (to, bytes) in flight.targets() {
            self.relabel(to, bytes, at(Kind::AsyncWrite), agent(Kind::Write));
        }
        if block != self.block {
            self.visit(flight.target(), agent(Kind::Write));
        }
        match outcome {
            Ok(_) => Ok(()),
            Err(misuse) => {
                let mut finding = misuse.finding(&self.name_of(flight.barrier));
                let me = issuer.at(Kind::AsyncWrite, 0, place);
                finding.accesses.push(self.launch.by("asynchronous copy".into(), me));
                Err(Box::new(finding))
            }
        }
    }

    /// An agent has come to another block of the cluster.
    fn visit(&self, address: usize, agent: Cell) {
        self.with_member(address, |shadow| shadow.visited(agent, address));
    }

    /// Does something with what is remembered of the block of the cluster whose memory has this address.
    fn with_member(&self, address: usize, act: impl Fn(&mut SharedShadow)) {
        let Some(cluster) = &self.cluster else { return };
        for member in (0..cluster.size()).filter_map(|rank| cluster.member(rank)) {
            let holds = |(start, bytes): (usize, usize)| address.wrapping_sub(start) < bytes;
            if holds(member.fixed) || holds(member.dynamic) {
                // SAFETY: the other block's runner lives until all of the cluster have ended, and one OS thread at a time runs a checked
                // launch.
                act(unsafe { &mut *member.shadow });
            }
        }
    }

    /// All threads have exited: have they heard that the others are done with the block's memory?
    pub(crate) fn leave(&mut self) {
        self.leave_grid();
        let mut visits: Vec<(Cell, usize)> = self.shared.visits.drain().map(|(_, v)| v).collect();
        visits.retain(|(cell, _)| !self.clock.anybody_knows(*cell));
        visits.sort_unstable_by_key(|(cell, _)| (cell.place(), cell.block(), cell.thread()));
        for (cell, address) in visits {
            let launch = &mut *self.launch;
            if !launch.unheard.insert(cell.place()) {
                continue;
            }
            let Some((_, space, _)) = self.locate(address) else { continue };
            let launch = &mut *self.launch;
            let name = launch.name(space, address, &self.shared);
            let block = self.block;
            let message = format!(
                "block {block} may exit before another block of the cluster accesses its {name}"
            );
            let mut finding = Finding::new(What::AbsentBlock, message)
                .fix("let all blocks of the cluster meet before one returns: cluster.sync()");
            let what = if cell.kind().writes() { "write" } else { "read" };
            finding.accesses.push(launch.by(what.into(), cell));
            launch.keep(finding);
        }
    }

    /// The block of the cluster that has exited and has its shared memory here.
    fn exited_member(&self, address: usize) -> Option<u32> {
        let cluster = self.cluster.as_ref()?;
        let holds = |(start, bytes): (usize, usize)| address.wrapping_sub(start) < bytes;
        (0..cluster.size()).find(|&rank| {
            cluster.member(rank).is_some_and(|m| {
                m.exited.load(Ordering::Relaxed) && (holds(m.fixed) || holds(m.dynamic))
            })
        })
    }

    /// What was in flight in these bytes becomes what it is once it has landed.
    pub(super) fn relabel(&mut self, address: usize, len: usize, from: Cell, to: Cell) {
        let (mut at, mut left) = (address, len);
        let Some((mut granule, space, generation)) = self.find(at) else { return };
        while left > 0 {
            let offset = at % GRANULE;
            let part = left.min(GRANULE - offset);
            // SAFETY: the shadow of an address that was located; the whole of it was looked at when
            // the copy was asked for.
            let shadow = unsafe { &mut *granule };
            if shadow.generation() != generation {
                self.refresh(shadow, at - offset, space, generation);
            }
            for cell in &mut shadow.cells {
                if cell.bytes() != 0 && cell.same_access(from) {
                    *cell = to.of_bytes(cell.bytes());
                }
            }
            if to.kind().writes() {
                shadow.mark_written(bytes_mask(offset, part));
            }
            shadow.sort_roles();
            at += part;
            left -= part;
            granule = granule.wrapping_add(1);
        }
    }

    /// The shadow of an address in memory of whatever kind that is watched.
    fn find(&mut self, address: usize) -> Option<Located> {
        if let Some(located) = self.locate(address) {
            return Some(located);
        }
        for rank in 0..self.cluster.as_ref().map_or(0, |c| c.size()) {
            let member = self.cluster.as_ref().and_then(|c| c.member(rank))?;
            // SAFETY: the other block's runner lives until all of the cluster have ended, and one OS thread at a time runs a checked
            // launch.
            let other = unsafe { &mut *member.shadow };
            let located = other.locate_fixed(address).or_else(|| other.locate_dynamic(address));
            if located.is_some() {
                return located;
            }
        }
        let launch = &*self.launch;
        let foreign = crate::memory::Foreign::find(&launch.foreign, address)?;
        let granule = launch.arena.granule(address.wrapping_add(foreign.away()));
        Some((granule, Space::Global, launch.generation))
    }

    /// An mbarrier's name.
    pub(crate) fn name_of(&mut self, address: usize) -> String {
        if let Some((_, space @ (Space::Static | Space::Dynamic), _)) = self.locate(address) {
            return self.launch.name(space, address, &self.shared);
        }
        let members = self.cluster.as_ref().map_or(0, |c| c.size());
        for rank in 0..members {
            let Some(member) = self.cluster.as_ref().and_then(|c| c.member(rank)) else { continue };
            let own = &self.shared;
            for (there, here, space) in [
                (member.fixed, own.fixed, Space::Static),
                (member.dynamic, own.dynamic, Space::Dynamic),
            ] {
                let offset = address.wrapping_sub(there.0);
                if offset < there.1 {
                    let name = self.launch.name(space, here.0 + offset, own);
                    return format!("{name} of block {rank} of the cluster");
                }
            }
        }
        format!("address {address:#x}")
    }

    /// A finding about a use of a barrier by `thread`.
    #[cold]
    pub(crate) fn report_misuse(
        &mut self,
        thread: &Thread,
        address: usize,
        misuse: Misuse,
        pc: usize,
    ) -> Fatal {
        let finding = misuse.finding(&self.name_of(address));
        self.used_at(finding, thread, "use of the mbarrier", pc)
    }

    #[cold]
    fn used_at(&mut self, mut finding: Finding, thread: &Thread, what: &str, pc: usize) -> Fatal {
        let launch = &mut *self.launch;
        let me = thread.who.at(Kind::Read, 0, launch.places.number(pc));
        finding.accesses.push(launch.by(what.into(), me));
        Box::new(finding)
    }

    /// A plain access to the memory of an mbarrier.
    #[cold]
    pub(super) fn on_mbarrier(
        &mut self,
        address: usize,
        len: usize,
        space: Space,
        me: Cell,
    ) -> Fatal {
        let launch = &mut *self.launch;
        let name = launch.name(space, address, &self.shared);
        let message = format!("{name} is an mbarrier: its bytes are the hardware's");
        let mut finding = Finding::new(What::Mbarrier, message)
            .fix("use it by its instructions alone, or invalidate it first");
        let what = if me.kind().writes() { "write" } else { "read" };
        finding.accesses.push(launch.by(format!("{what} of {len} bytes"), me));
        Box::new(finding)
    }

    /// Lines about a barrier that somebody waits for.
    pub(crate) fn describe_mbarrier(&mut self, address: usize) -> Vec<String> {
        let name = self.name_of(address);
        let launch = &*self.launch;
        let Some(record) = launch.mbarriers.get(&address) else {
            return vec![format!("{name}: nobody has initialised it")];
        };
        let mut lines = vec![format!("{name}: {}", record.standing())];
        for &(place, count) in &record.arrived {
            lines.push(format!("  arrived: {count} at {}", launch.own_place(place)));
        }
        for &(place, bytes) in &record.landed {
            lines.push(format!("  landed: {bytes} bytes of {}", launch.own_place(place)));
        }
        lines
    }

    /// A thread that exits while its bulk copy may still read shared memory.
    #[cold]
    pub(crate) fn report_unread_copy(&mut self, thread: &Thread, from: usize, pc: usize) -> Fatal {
        let launch = &mut *self.launch;
        let place = launch.places.number(pc);
        let name = match self.locate(from) {
            Some((_, space, _)) => self.launch.name(space, from, &self.shared),
            None => "shared memory".into(),
        };
        let message = format!("a thread exits while its bulk copy out of {name} may be under way");
        let mut finding = Finding::new(What::AbsentBlock, message)
            .fix(
                "cp.async.bulk.commit_group and cp.async.bulk.wait_group.read 0 (bulk_commit, bulk_wait_read<0>) by the \
                 same thread before it exits",
            );
        let me = thread.who.at(Kind::AsyncRead, 0, place);
        finding.accesses.push(self.launch.by("bulk copy".into(), me));
        Box::new(finding)
    }

    /// A block that ends while a copy into its shared memory, or out of it, is under way.
    #[cold]
    pub(crate) fn ends_under(&mut self, flight: &Flight) -> Option<Finding> {
        let own = |this: &mut Self, address| {
            matches!(this.locate(address), Some((_, Space::Static | Space::Dynamic, _)))
        };
        let (address, what) = if own(self, flight.target()) {
            (flight.target(), "into")
        } else {
            let (from, _) = flight.sources().first().copied()?;
            (own(self, from).then_some(from)?, "out of")
        };
        let launch = &mut *self.launch;
        let place = launch.places.number(flight.pc);
        let (_, space, _) = self.locate(address)?;
        let launch = &mut *self.launch;
        let name = launch.name(space, address, &self.shared);
        let message =
            format!("the block ends while an asynchronous copy {what} {name} is under way");
        let mut finding = Finding::new(What::AbsentBlock, message)
            .fix("wait for the mbarrier at which it counts before the block ends");
        let me = Cell::who(flight.issuer, self.block).at(Kind::AsyncWrite, 0, place);
        finding.accesses.push(launch.by("asynchronous copy".into(), me));
        Some(finding)
    }
}
