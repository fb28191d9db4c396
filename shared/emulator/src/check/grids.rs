//! What a launch may not do before the grid before it has ended: see `crate::grids`.

use super::BlockCheck;
use crate::access::Space;
use crate::check::findings::{describe, verb};
use crate::grids::Unordered;
use crate::report::{Finding, Kind as What};
use crate::shadow::Cell;

impl BlockCheck {
    /// `thread` has waited for the end of the grid before.
    pub(crate) fn griddep_wait(&mut self, thread: u32) {
        if self.overlaps {
            self.clock.waited_for_grid(thread);
            self.waited = true;
            self.launch.waiting.waited = true;
        }
    }

    /// `thread` lets the next grid begin.
    pub(crate) fn griddep_launch_dependents(&mut self, thread: u32) {
        let knows = self.clock.knows_of_grid(thread);
        let all = self.lets_begin_behind_wait.get_or_insert(true);
        *all &= knows;
    }

    /// All threads of the block have exited: that, too, lets the next grid begin.
    pub(super) fn leave_grid(&mut self) {
        let behind_wait = self.lets_begin_behind_wait.unwrap_or(self.waited);
        self.launch.waiting.lets_begin_behind_wait |= behind_wait;
    }

    /// Looks at an access to a granule of device memory, of a launch that overlaps; whether it is to look at
    /// the access's next granule as well.
    #[cold]
    #[inline(never)]
    pub(super) fn look_at_earlier(&mut self, granule: usize, me: Cell, at: (usize, usize)) -> bool {
        let waited = self.clock.knows_of_grid(me.thread());
        let launch = &mut *self.launch;
        if waited && launch.earlier.ends_with_wait() {
            return false;
        }
        let Some(Unordered { grid, writes, cell }) = launch.earlier.unordered(granule, me, waited)
        else {
            return true;
        };
        let key = (me.place(), grid.number);
        if let Some(&known) = launch.unordered.get(&key) {
            if let Some(finding) = launch.findings.get_mut(known) {
                finding.count += 1;
            }
            return false;
        }
        let (address, len) = at;
        let name = launch.name(Space::Global, address, &self.shared);
        let own = if me.kind().writes() { "written" } else { "read" };
        let theirs = if writes { "write" } else { "read" };
        let which = match launch.earlier.distance(grid) {
            1 => format!("{}, the launch before", grid.kernel.name()),
            n => format!("{}, {n} launches before", grid.kernel.name()),
        };
        let (message, fix) = if waited {
            (
                format!(
                    "race on {name}: {own} while {which}, may {theirs} it: a launch between has not \
                     waited for that one"
                ),
                "call griddep_wait() in every kernel that overlaps the one before it",
            )
        } else {
            (
                format!(
                    "race on {name}: {own} before griddep_wait(), while {which}, may {theirs} it"
                ),
                "call griddep_wait() (CUDA's cudaGridDependencySynchronize()) before, or let a barrier order it behind a thread that has",
            )
        };
        let mut finding = Finding::new(What::GridInFlight, message).fix(fix);
        if let Some(cell) = cell {
            let what = format!("{} in {}", verb(cell.kind()), grid.kernel.name());
            finding.accesses.push(grid.access(what, cell));
        }
        finding.accesses.push(launch.by(describe(me.kind(), len), me));
        let index = launch.keep(finding).unwrap_or(usize::MAX);
        launch.unordered.insert(key, index);
        false
    }
}
