//! The launches of the plain LSTM for all steps, with the units of a row in one block.

use lab_device::{Device, Launch};
use lab_harness::plan::{Plan, Scope};
use lab_harness::{Error, arguments};

use super::residence::Residence;
use super::{Direction, Sizes, blocks};
use crate::kernels::{V1_SEQUENCE, V1_SEQUENCE_BACK};

impl Direction {
    /// A row a block as long as each has a multiprocessor to itself.
    fn residence(&self, device: &Device) -> Residence {
        let Sizes { dtype, batch, hidden, .. } = self.sizes;
        Residence::of(hidden, dtype, batch > device.facts().multiprocessors as usize)
    }

    fn launch_of_blocks(&self, residence: &Residence) -> Launch {
        Launch::new(blocks(self.sizes.batch, residence.rows), residence.threads())
    }

    pub(super) fn add_sequence(&self, plan: &mut Plan) -> Result<(), Error> {
        let columns = self.add_projection(plan)?;
        let residence = self.residence(plan.device());
        let template = residence.arguments();
        let kernel = self.kernel(plan, &V1_SEQUENCE, "lstm_sequence", &template)?;
        let shared = residence.shared(self.sizes.arithmetic());
        let launch = self.launch_of_blocks(&residence).shared(shared);
        plan.launch_in(&self.scope, &kernel, launch, arguments![columns])
    }

    pub(super) fn add_sequence_back(&self, plan: &mut Plan, scope: &Scope) -> Result<(), Error> {
        let residence = self.residence(plan.device());
        let template = residence.arguments();
        let kernel = self.kernel(plan, &V1_SEQUENCE_BACK, "lstm_sequence_back", &template)?;
        let shared = residence.shared_back(self.sizes.arithmetic());
        plan.launch_in(scope, &kernel, self.launch_of_blocks(&residence).shared(shared), [])
    }
}
