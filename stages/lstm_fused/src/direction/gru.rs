//! The launches of the GRU, one a step.

use lab_harness::plan::{Plan, Scope};
use lab_harness::{Error, arguments};

use super::{Direction, Sizes};
use crate::kernels::GRU_CELL;

impl Direction {
    /// y and hn; with `keep`, the gates of all steps.
    pub(super) fn add_gru_cells(&self, plan: &mut Plan) -> Result<(), Error> {
        let kernel = self.kernel(plan, &GRU_CELL, "gru_cell", "")?;
        for t in self.steps() {
            plan.launch_in(&self.scope, &kernel, self.launch_of_units(&kernel)?, arguments![t])?;
        }
        Ok(())
    }

    /// The four da of all steps in place of what was kept, and dh0.
    pub(super) fn add_gru_cells_back(&self, plan: &mut Plan, scope: &Scope) -> Result<(), Error> {
        let Sizes { batch, hidden, .. } = self.sizes;
        let back = self.kernel(plan, &GRU_CELL, "gru_cell_back", "")?;
        let first = self.kernel(plan, &GRU_CELL, "gru_cell_first", "")?;
        let dh = plan.scratch(self.sizes.arithmetic(), batch * hidden);
        for t in self.steps().into_iter().rev() {
            plan.launch_in(scope, &back, self.launch_of_units(&back)?, arguments![dh, t])?;
        }
        plan.launch_in(scope, &first, self.launch_of_units(&first)?, arguments![dh])
    }
}
