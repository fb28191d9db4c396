//! Memory that a kernel reads by way of the read-only cache (`__ldg`), and writes.
//!
//! "Read-only for the lifetime of the kernel" is what CUDA's programming guide asks of it: no write of the same launch need
//! reach that cache, whatever barriers and fences stand between.

use super::BlockCheck;
use crate::access::{Kind, Space};
use crate::check::findings::{describe, verb};
use crate::report::{Finding, Kind as What};
use crate::shadow::{Cell, GRANULE, Granule, PLACE_UNKNOWN, bytes_mask};
use crate::thread::Thread;

const FIX: &str = "a plain read in place of __ldg(), or a launch of its own for the write";

impl BlockCheck {
    /// `thread` takes these bytes for constant, as a compiler has chosen or as the kernel says; the read itself comes next.
    #[cold]
    #[inline(never)]
    pub(crate) fn constant(
        &mut self,
        thread: &Thread,
        (address, len): (usize, usize),
        pc: usize,
        compiled: bool,
    ) {
        self.launch.compiled_constants |= compiled;
        let Some((mut granule, Space::Global, generation)) = self.locate(address) else { return };
        let place = self.launch.places.number(pc);
        let me = thread.who.at(Kind::Read, self.clock.stamp(thread.index()), place);
        let (mut at, mut left) = (address, len);
        while left > 0 {
            let offset = at % GRANULE;
            let part = left.min(GRANULE - offset);
            // SAFETY: the shadow of an address that was located; an access that runs past its array's end meets a granule that does not
            // exist, and the arena's has a margin.
            let shadow = unsafe { &mut *granule };
            if shadow.generation() != generation {
                self.refresh(shadow, at - offset, Space::Global, generation);
            }
            let bytes = bytes_mask(offset, part);
            shadow.mark_constant(bytes);
            if shadow.uses().written() & bytes != 0 {
                self.constant_was_written(shadow, me.of_bytes(bytes), (at, len));
            }
            at += part;
            left -= part;
            granule = granule.wrapping_add(1);
        }
    }

    fn constant_was_written(&mut self, granule: &Granule, me: Cell, (at, len): (usize, usize)) {
        let write = of_these(granule, me, |c| c.kind().writes());
        // Else it is a race, and no more.
        if write.is_some_and(|write| !self.clock.is_ordered(write, me)) {
            return;
        }
        let name = self.launch.name(Space::Global, at, &self.shared);
        let message =
            format!("{name} is read by __ldg(), which need not see what this launch has written");
        let finding = Finding::new(What::ConstantWritten, message).fix(FIX);
        self.keep_constant(
            finding,
            write,
            (me, format!("{} by __ldg()", describe(me.kind(), len))),
        );
    }

    /// `me` writes what was taken for constant.
    #[cold]
    #[inline(never)]
    pub(super) fn constant_written(&mut self, granule: &Granule, me: Cell, at: (usize, usize)) {
        let read = of_these(granule, me, |c| c.kind() == Kind::Read);
        if read.is_some_and(|read| !self.clock.is_ordered(read, me)) {
            return;
        }
        let is_own = |c: &Cell| c.bytes() & me.bytes() == 0 || c.same_thread(me);
        if self.launch.compiled_constants && granule.cells.iter().all(is_own) {
            return;
        }
        let name = self.launch.name(Space::Global, at.0, &self.shared);
        let message = format!("{name} is written, and was read by __ldg() in the same launch");
        let mut finding = Finding::new(What::ConstantWritten, message).fix(FIX);
        finding.formal = Some("the read came before the write, and brought what was there then");
        self.keep_constant(finding, read, (me, describe(me.kind(), at.1)));
    }

    /// One finding for each two places.
    fn keep_constant(
        &mut self,
        mut finding: Finding,
        other: Option<Cell>,
        (me, own): (Cell, String),
    ) {
        let launch = &mut *self.launch;
        let places = (other.map_or(PLACE_UNKNOWN, Cell::place), me.place());
        if let Some(&known) = launch.constants.get(&places) {
            if let Some(finding) = launch.findings.get_mut(known) {
                finding.count += 1;
            }
            return;
        }
        finding.accesses.extend(other.map(|cell| launch.by(verb(cell.kind()).into(), cell)));
        finding.accesses.push(launch.by(own, me));
        let index = launch.keep(finding).unwrap_or(usize::MAX);
        launch.constants.insert(places, index);
    }
}

/// The last access of these bytes that is such, as far as it is remembered.
fn of_these(granule: &Granule, me: Cell, is: impl Fn(&Cell) -> bool) -> Option<Cell> {
    granule.cells.into_iter().find(|c| c.bytes() & me.bytes() != 0 && is(c))
}
