//! The launches of the plain LSTM, one a step.

use lab_device::Launch;
use lab_harness::Error;
use lab_harness::program::{Program, Slot};

use super::arguments::blocks;
use super::{Direction, Sizes, Upstream};
use crate::kernels::V0_CELL;

const THREADS: u32 = 128;

impl Direction<'_> {
    /// A thread a unit of a row.
    pub(super) fn units(&self) -> Launch {
        Launch::new(blocks(self.sizes.batch * self.sizes.hidden, THREADS as usize), THREADS)
    }

    pub(super) fn cells(&self, program: &mut Program) -> Result<(), Error> {
        let Sizes { batch, hidden, peephole, keep, .. } = self.sizes;
        let kernel = self.kernel(program, &V0_CELL, "lstm_cell", &peephole.to_string())?;
        for t in self.steps() {
            let arguments = self
                .arguments()
                .by_step()
                .peepholes()
                .states()
                .write([self.y, self.c, self.gates])
                .last_states()
                .sizes([t, batch, self.columns, hidden])
                .place()
                .biased()
                .flags([keep]);
            program.launch(kernel.clone(), self.units(), arguments);
        }
        Ok(())
    }

    pub(super) fn cells_back(
        &self,
        program: &mut Program,
        upstream: Upstream<'_>,
    ) -> Result<(), Error> {
        let Sizes { batch, hidden, peephole, .. } = self.sizes;
        let back = self.kernel(program, &V0_CELL, "lstm_cell_back", &peephole.to_string())?;
        let dc = program.scratch(self.sizes.arithmetic(), batch * hidden)?;
        for t in self.steps().into_iter().rev() {
            let arguments = self
                .arguments()
                .read([upstream.dy, self.weights.hh])
                .peepholes()
                .states_back(upstream)
                .write([self.gates, dc])
                .sizes([t, batch, hidden])
                .place();
            program.launch(back.clone(), self.units(), arguments);
        }
        self.first(program, dc, upstream)
    }

    /// dh0 and dc0, from what the first steps have left.
    pub(super) fn first(
        &self,
        program: &mut Program,
        dc: Slot,
        upstream: Upstream<'_>,
    ) -> Result<(), Error> {
        let Sizes { batch, hidden, .. } = self.sizes;
        let (dhn, [dcn, _]) = (upstream.states.dhn, upstream.states.of_lstm());
        let first = self.kernel(program, &V0_CELL, "lstm_cell_first", "")?;
        let arguments = self
            .arguments()
            .read([self.weights.hh, dhn, dcn, self.common.lengths, self.gates, dc])
            .first_states_back(upstream)
            .sizes([batch, hidden])
            .state();
        program.launch(first, self.units(), arguments);
        Ok(())
    }
}
