//! The launches of the GRU, one a step.

use lab_harness::Error;
use lab_harness::program::Program;

use super::{Direction, Sizes, Upstream};
use crate::kernels::GRU_CELL;

impl Direction<'_> {
    /// y and hn; with `keep`, the gates of all steps.
    pub(super) fn gru_cells(&self, program: &mut Program) -> Result<(), Error> {
        let Sizes { batch, hidden, keep, .. } = self.sizes;
        let kernel = self.kernel(program, &GRU_CELL, "gru_cell", "")?;
        for t in self.steps() {
            let arguments = self
                .arguments()
                .by_step()
                .read([self.common.h0, self.common.lengths])
                .write([self.y, self.gates, self.common.hn])
                .sizes([t, batch, self.columns, hidden])
                .place()
                .biased()
                .flags([keep]);
            program.launch(kernel.clone(), self.units(), arguments);
        }
        Ok(())
    }

    /// The four da of all steps in place of what was kept, and dh0.
    pub(super) fn gru_cells_back(
        &self,
        program: &mut Program,
        upstream: Upstream<'_>,
    ) -> Result<(), Error> {
        let Sizes { batch, hidden, .. } = self.sizes;
        let Upstream { dy, states } = upstream;
        let back = self.kernel(program, &GRU_CELL, "gru_cell_back", "")?;
        let first = self.kernel(program, &GRU_CELL, "gru_cell_first", "")?;
        let dh = program.scratch(self.sizes.arithmetic(), batch * hidden)?;
        let (hh, lengths) = (self.weights.hh, self.common.lengths);
        for t in self.steps().into_iter().rev() {
            let arguments = self
                .arguments()
                .read([dy, hh, self.common.h0, self.y, states.dhn, lengths])
                .write([self.gates, dh])
                .sizes([t, batch, hidden])
                .place();
            program.launch(back.clone(), self.units(), arguments);
        }
        let arguments = self
            .arguments()
            .read([hh, states.dhn, lengths, self.gates, dh])
            .write([states.dh0])
            .sizes([batch, hidden])
            .state();
        program.launch(first, self.units(), arguments);
        Ok(())
    }
}
