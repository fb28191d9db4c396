//! What the checks make of wgmma.

use super::findings::is_pattern;
use super::{BlockCheck, Fatal};
use crate::access::Kind;
use crate::completion::wgmma::{Part, reads};
use crate::report::{Finding, Kind as What};
use crate::shadow::Cell;
use crate::thread::Thread;

/// The agent of a warpgroup: numbers from here down are not those of mbarriers.
const LAST_AGENT: u32 = 1023;

impl BlockCheck {
    /// A lane asks for its part of a product.
    ///
    /// # Errors
    /// Its registers are not fenced, or its accumulators overlap others in flight.
    pub(crate) fn wgmma(&mut self, thread: &mut Thread, part: &Part) -> Result<(), Fatal> {
        if thread.wgmma.unfenced(part) {
            let message = "wgmma may not see what the thread has done with its registers";
            let finding = Finding::new(What::UnfencedWgmma, message)
                .fix("wgmma_fence() before the first, and after each use of the registers");
            return Err(self.of_wgmma(finding, thread, "wgmma.mma_async", part.pc));
        }
        if thread.wgmma.overlaps(part) {
            let message = "accumulators overlap others that are in flight";
            let finding = Finding::new(What::CopyInFlight, message).fix(
                "give each shape its own accumulators, or wait before another shape uses them",
            );
            return Err(self.of_wgmma(finding, thread, "wgmma.mma_async", part.pc));
        }
        if part.shape.adds && thread.wgmma.settled(part) && part.adds_to(is_pattern) {
            let message = "uninitialised: wgmma adds to accumulators that never got a value";
            let mut finding = Finding::new(What::UninitialisedLocal, message)
                .fix("set them, or do not add in the first product");
            finding.suspects = self.launch.module().suspects();
            let finding = self.of_wgmma(finding, thread, "wgmma.mma_async", part.pc);
            self.launch.keep(*finding);
        }
        let launch = &mut *self.launch;
        let place = launch.places.number(part.pc);
        launch.products.insert(place);
        if let Some(counters) = launch.counters.as_mut().filter(|_| thread.lane == 0) {
            counters.products(place, part.shape.flops());
            counters.operands(place, thread.warp.is_multiple_of(4), part.bytes());
        }
        Ok(())
    }

    fn agent(&self, thread: &Thread, made: u64, place: u16) -> Cell {
        let number = LAST_AGENT - thread.warp / 4;
        Cell::agent(self.block, number, made.min(u64::from(u32::MAX)) as u32, Kind::Read, place)
    }

    /// A warp's part of a product is made: it has read its operands, as all know who have waited for it.
    /// `lane` is the one that spoke for the warp.
    pub(crate) fn wgmma_made(
        &mut self,
        lane: &Thread,
        part: &Part,
        warp: usize,
        at: impl Fn(usize) -> Option<usize>,
    ) {
        let place = self.launch.places.number(part.pc);
        let issuer = Cell::who(lane.index(), self.block);
        self.launch.issuers.insert(place, (self.block, lane.index()));
        let agent = self.agent(lane, lane.wgmma.made, place);
        for address in reads(part, warp).into_iter().filter_map(at) {
            self.relabel(address, 16, issuer.at(Kind::AsyncRead, 0, place), agent);
        }
    }

    /// `thread` has waited for so many products of its warpgroup as it says.
    pub(crate) fn wgmma_waited(&mut self, thread: &Thread) {
        let agent = self.agent(thread, thread.wgmma.awaited.saturating_sub(1), 0);
        self.clock.waited(thread.index(), agent);
    }

    #[cold]
    pub(super) fn registers_used(&mut self, thread: &Thread, kind: Kind, pc: usize) -> Fatal {
        let message = "registers of a wgmma are used while it is in flight";
        let finding = Finding::new(What::CopyInFlight, message).fix(
            "wgmma.commit_group, then wgmma.wait_group 0 (wgmma_commit(), wgmma_wait<0>()), before its accumulators, or A's registers, are used",
        );
        let what = if kind.writes() { "write" } else { "read" };
        self.of_wgmma(finding, thread, what, pc)
    }

    /// A thread exits before it has waited.
    #[cold]
    pub(crate) fn wgmma_left(&mut self, thread: &Thread) -> Fatal {
        let message = "a thread exits with wgmma that it has not waited for";
        let finding = Finding::new(What::CopyInFlight, message)
            .fix("wgmma.commit_group, then wgmma.wait_group 0 (wgmma_commit(), wgmma_wait<0>()), before the thread exits");
        let pc = thread.wgmma.parts.front().map_or(thread.pc, |part| part.pc);
        self.of_wgmma(finding, thread, "wgmma.mma_async", pc)
    }

    #[cold]
    fn of_wgmma(&mut self, mut finding: Finding, thread: &Thread, what: &str, pc: usize) -> Fatal {
        let launch = &mut *self.launch;
        let me = thread.who.at(Kind::Read, 0, launch.places.number(pc));
        finding.accesses.push(launch.by(what.into(), me));
        Box::new(finding)
    }
}
