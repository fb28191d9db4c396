//! The launches of the LSTM with layer norm: one a step, or one for all steps.

use lab_device::{Kernel, KernelSource, Launch};
use lab_harness::plan::{Argument, Plan, Scope};
use lab_harness::{Error, arguments, named};

use super::residence::instance_for;
use super::{Direction, Sizes};
use crate::kernels::{NORM_CELL, V1_NORM, V1_NORM_BACK};

/// Room for what the norms of the gates and of c leave: their n and their d, T x B x 5H each, and scales,
/// T x B x 5; for n and scales only where they are `kept`, for d only where the way back is to come.
pub(super) fn scratch(plan: &mut Plan, sizes: Sizes, kept: bool) -> [(&'static str, Argument); 3] {
    let mut room =
        |len, is_needed: bool| plan.scratch(sizes.arithmetic(), if is_needed { len } else { 1 });
    let all = sizes.rows() * 5;
    let n = room(all * sizes.hidden, kept);
    let d = room(all * sizes.hidden, sizes.keep);
    named![n, d, scales: room(all, kept)]
}

impl Direction {
    /// A block a row.
    fn launch_of_rows(&self, kernel: &Kernel) -> Result<Launch, Error> {
        Ok(kernel.grid([self.sizes.batch as u32, 1, 1])?)
    }

    fn norm_sequence(
        &self,
        plan: &Plan,
        source: &'static KernelSource,
        name: &str,
    ) -> Result<(Kernel, Launch), Error> {
        let Sizes { dtype, hidden, .. } = self.sizes;
        let kernel = plan.device().load(instance_for(source, name, dtype, hidden, false))?;
        let launch = self.launch_of_rows(&kernel)?;
        Ok((kernel, launch))
    }

    /// y, hn and cn; c, n and scales of all steps.
    pub(super) fn add_norm_cells(&self, plan: &mut Plan) -> Result<(), Error> {
        let peephole = self.sizes.peephole.to_string();
        let kernel = self.kernel(plan, &NORM_CELL, "norm_cell", &peephole)?;
        let launch = self.launch_of_rows(&kernel)?;
        for t in self.steps() {
            plan.launch_in(&self.scope, &kernel, launch, arguments![t])?;
        }
        Ok(())
    }

    /// d and da of all steps, dh0 and dc0.
    pub(super) fn add_norm_cells_back(&self, plan: &mut Plan, scope: &Scope) -> Result<(), Error> {
        let Sizes { batch, hidden, peephole, .. } = self.sizes;
        let back = self.kernel(plan, &NORM_CELL, "norm_cell_back", &peephole.to_string())?;
        let dc = plan.scratch(self.sizes.arithmetic(), batch * hidden);
        let launch = self.launch_of_rows(&back)?;
        for t in self.steps().into_iter().rev() {
            plan.launch_in(scope, &back, launch, arguments![dc, t])?;
        }
        self.add_first_states_back(plan, scope, dc)
    }

    /// y, hn and cn in one launch; with `keep`, c, n and scales of all steps.
    pub(super) fn add_norm_sequence(&self, plan: &mut Plan) -> Result<(), Error> {
        let columns = self.add_projection(plan)?;
        let (kernel, launch) = self.norm_sequence(plan, &V1_NORM, "norm_sequence")?;
        plan.launch_in(&self.scope, &kernel, launch, arguments![columns])
    }

    /// d and da of all steps, dh0 and dc0, in one launch.
    pub(super) fn add_norm_sequence_back(
        &self,
        plan: &mut Plan,
        scope: &Scope,
    ) -> Result<(), Error> {
        let (kernel, launch) = self.norm_sequence(plan, &V1_NORM_BACK, "norm_sequence_back")?;
        plan.launch_in(scope, &kernel, launch, arguments![])
    }
}
