//! The launches of the plain LSTM for all steps, with the units of a row in one block.

use lab_device::{Kernel, KernelSource, Launch};
use lab_harness::plan::{Plan, Scope};
use lab_harness::{Error, arguments};

use super::residence::instance_for;
use super::{Direction, Sizes, blocks};
use crate::kernels::{V1_SEQUENCE, V1_SEQUENCE_BACK};

impl Direction {
    /// A row a block as long as each has a multiprocessor to itself.
    fn sequence(
        &self,
        plan: &Plan,
        source: &'static KernelSource,
        name: &str,
    ) -> Result<(Kernel, Launch), Error> {
        let Sizes { dtype, batch, hidden, .. } = self.sizes;
        let device = plan.device();
        let several_rows = batch > device.facts().multiprocessors as usize;
        let instance = instance_for(source, name, dtype, hidden, several_rows);
        let kernel = device.load(instance)?;
        let launch = kernel.grid([blocks(batch, instance.size("ROWS")), 1, 1])?;
        Ok((kernel, launch))
    }

    pub(super) fn add_sequence(&self, plan: &mut Plan) -> Result<(), Error> {
        let columns = self.add_projection(plan)?;
        let (kernel, launch) = self.sequence(plan, &V1_SEQUENCE, "lstm_sequence")?;
        plan.launch_in(&self.scope, &kernel, launch, arguments![columns])
    }

    pub(super) fn add_sequence_back(&self, plan: &mut Plan, scope: &Scope) -> Result<(), Error> {
        let (kernel, launch) = self.sequence(plan, &V1_SEQUENCE_BACK, "lstm_sequence_back")?;
        plan.launch_in(scope, &kernel, launch, arguments![])
    }
}
