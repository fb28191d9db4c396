//! The launches of the plain LSTM for all steps, with the units of a row in one block.

use lab_device::{Device, Launch};
use lab_harness::Error;
use lab_harness::program::Program;

use super::arguments::blocks;
use super::residence::Residence;
use super::{Direction, Sizes, Upstream};
use crate::kernels::{V1_SEQUENCE, V1_SEQUENCE_BACK};

impl Direction<'_> {
    /// A row a block as long as each has a multiprocessor to itself.
    fn residence(&self, device: &Device) -> Residence {
        let Sizes { dtype, batch, hidden, .. } = self.sizes;
        Residence::of(hidden, dtype, batch > device.facts().multiprocessors as usize)
    }

    fn of_blocks(&self, residence: &Residence) -> Launch {
        Launch::new(blocks(self.sizes.batch, residence.rows), residence.threads())
    }

    pub(super) fn sequence(&self, program: &mut Program) -> Result<(), Error> {
        let columns = self.added(program)?;
        let residence = self.residence(program.device());
        let template = residence.arguments();
        let kernel = self.kernel(program, &V1_SEQUENCE, "lstm_sequence", &template)?;
        let shared = residence.shared(self.sizes.arithmetic());
        let arguments = self
            .arguments()
            .by_x()
            .read([self.weights.hh])
            .peepholes()
            .states()
            .write([self.y, self.c, self.gates])
            .last_states()
            .all_steps(columns);
        program.launch(kernel, self.of_blocks(&residence).shared(shared), arguments);
        Ok(())
    }

    pub(super) fn sequence_back(
        &self,
        program: &mut Program,
        upstream: Upstream<'_>,
    ) -> Result<(), Error> {
        let residence = self.residence(program.device());
        let template = residence.arguments();
        let kernel = self.kernel(program, &V1_SEQUENCE_BACK, "lstm_sequence_back", &template)?;
        let shared = residence.shared_back(self.sizes.arithmetic());
        let arguments = self
            .arguments()
            .read([upstream.dy, self.weights.hh])
            .peepholes()
            .states_back(upstream)
            .write([self.gates])
            .first_states_back(upstream)
            .all_steps_back();
        program.launch(kernel, self.of_blocks(&residence).shared(shared), arguments);
        Ok(())
    }
}
