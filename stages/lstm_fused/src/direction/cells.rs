//! The launches of the plain LSTM, one a step.

use lab_device::{Kernel, Launch};
use lab_harness::plan::{Plan, Scope, Slot};
use lab_harness::{Error, arguments};

use super::{Direction, Sizes};
use crate::kernels::V0_CELL;

impl Direction {
    /// A thread a unit of a row.
    pub(super) fn launch_of_units(&self, kernel: &Kernel) -> Result<Launch, Error> {
        Ok(kernel.grid_over(self.sizes.batch * self.sizes.hidden)?)
    }

    pub(super) fn add_cells(&self, plan: &mut Plan) -> Result<(), Error> {
        let peephole = self.sizes.peephole.to_string();
        let kernel = self.kernel(plan, &V0_CELL, "lstm_cell", &peephole)?;
        for t in self.steps() {
            plan.launch_in(&self.scope, &kernel, self.launch_of_units(&kernel)?, arguments![t])?;
        }
        Ok(())
    }

    pub(super) fn add_cells_back(&self, plan: &mut Plan, scope: &Scope) -> Result<(), Error> {
        let Sizes { batch, hidden, peephole, .. } = self.sizes;
        let back = self.kernel(plan, &V0_CELL, "lstm_cell_back", &peephole.to_string())?;
        let dc = plan.scratch(self.sizes.arithmetic(), batch * hidden);
        for t in self.steps().into_iter().rev() {
            plan.launch_in(scope, &back, self.launch_of_units(&back)?, arguments![dc, t])?;
        }
        self.add_first_states_back(plan, scope, dc)
    }

    /// dh0 and dc0, from what the first steps have left.
    pub(super) fn add_first_states_back(
        &self,
        plan: &mut Plan,
        scope: &Scope,
        dc: Slot,
    ) -> Result<(), Error> {
        let first = self.kernel(plan, &V0_CELL, "lstm_cell_first", "")?;
        plan.launch_in(scope, &first, self.launch_of_units(&first)?, arguments![dc])
    }
}
