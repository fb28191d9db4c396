//! The launches of one direction of a layer of the GRU, step by step.

use lab_harness::Error;
use lab_harness::program::{Program, Slot, scalar};

use crate::direction::{CommonGradients, Direction, Sizes, int, kernel};
use crate::kernels;

impl Direction<'_> {
    /// y and hn; with `keep`, the gates of all steps.
    pub(crate) fn gru_cells(&self, program: &mut Program, keep: bool) -> Result<(), Error> {
        let Sizes { dtype, batch, hidden, .. } = self.sizes;
        let kernel = kernel(program.device(), &kernels::GRU_CELL, "gru_cell", dtype, "")?;
        let [bias_ih, bias_hh] = self.weights.biases();
        let [stride, column] = self.place();
        for t in self.steps() {
            program.launch(
                kernel.clone(),
                self.units(),
                [
                    self.x.read(),
                    self.weights.ih.read(),
                    self.weights.hh.read(),
                    bias_ih,
                    bias_hh,
                    self.common.h0.read(),
                    self.common.lengths.read(),
                    self.y.write(),
                    self.gates.write(),
                    self.common.hn.write(),
                    int(t),
                    int(batch),
                    int(self.columns),
                    int(hidden),
                    stride,
                    column,
                    int(self.state),
                    self.flag(),
                    scalar(i32::from(self.weights.biases.is_some())),
                    scalar(i32::from(keep)),
                ],
            );
        }
        Ok(())
    }

    /// The four da of all steps in place of what was kept, and dh0.
    pub(crate) fn gru_cells_back(
        &self,
        program: &mut Program,
        dy: Slot,
        states: &CommonGradients,
    ) -> Result<(), Error> {
        let Sizes { dtype, batch, hidden, .. } = self.sizes;
        let device = program.device();
        let back = kernel(device, &kernels::GRU_CELL, "gru_cell_back", dtype, "")?;
        let first = kernel(device, &kernels::GRU_CELL, "gru_cell_first", dtype, "")?;
        let dh = program.scratch(self.sizes.arithmetic(), batch * hidden)?;
        let [stride, column] = self.place();
        for t in self.steps().into_iter().rev() {
            program.launch(
                back.clone(),
                self.units(),
                [
                    dy.read(),
                    self.weights.hh.read(),
                    self.common.h0.read(),
                    self.y.read(),
                    states.dhn.read(),
                    self.common.lengths.read(),
                    self.gates.write(),
                    dh.write(),
                    int(t),
                    int(batch),
                    int(hidden),
                    stride,
                    column,
                    int(self.state),
                    self.flag(),
                ],
            );
        }
        program.launch(
            first,
            self.units(),
            [
                self.weights.hh.read(),
                states.dhn.read(),
                self.common.lengths.read(),
                self.gates.read(),
                dh.read(),
                states.dh0.write(),
                int(batch),
                int(hidden),
                int(self.state),
                self.flag(),
            ],
        );
        Ok(())
    }
}
