//! The launches of one direction of a layer with layer norm: one a step, or one for all steps.

use lab_device::Launch;
use lab_harness::Error;
use lab_harness::program::{Program, Slot, math_scalar, scalar};

use crate::direction::{CommonGradients, Direction, Normed, Sizes, int, kernel};
use crate::kernels;
use crate::sequence::NormResidence;

const THREADS: u32 = 128;

impl Direction<'_> {
    /// A block a row.
    fn of_rows(&self) -> Launch {
        Launch::new(self.sizes.batch as u32, THREADS)
    }

    /// y, hn and cn; c, n and scales of all steps.
    pub(crate) fn norm_cells(&self, program: &mut Program, normed: &Normed) -> Result<(), Error> {
        let Sizes { dtype, batch, hidden, peephole, layer_norm, .. } = self.sizes;
        let device = program.device();
        let (source, arguments) = (&kernels::NORM_CELL, peephole.to_string());
        let kernel = kernel(device, source, "norm_cell", dtype, &arguments)?;
        let [bias_ih, bias_hh] = self.weights.biases();
        let [peephole_i, peephole_f, peephole_o] = self.weights.peepholes();
        let [weight, bias, c_weight, c_bias] = self.weights.norms.expect("of layer norm");
        let [c0, cn] = self.common.of_lstm();
        let [stride, column] = self.place();
        for t in self.steps() {
            program.launch(
                kernel.clone(),
                self.of_rows(),
                [
                    self.x.read(),
                    self.weights.ih.read(),
                    self.weights.hh.read(),
                    bias_ih,
                    bias_hh,
                    peephole_i,
                    peephole_f,
                    peephole_o,
                    weight.read(),
                    bias.read(),
                    c_weight.read(),
                    c_bias.read(),
                    self.common.h0.read(),
                    c0.read(),
                    self.common.lengths.read(),
                    self.y.write(),
                    self.c.write(),
                    normed.n.write(),
                    normed.scales.write(),
                    self.common.hn.write(),
                    cn.write(),
                    int(t),
                    int(batch),
                    int(self.columns),
                    int(hidden),
                    stride,
                    column,
                    int(self.state),
                    self.flag(),
                    scalar(i32::from(self.weights.biases.is_some())),
                    math_scalar(dtype, layer_norm.expect("of layer norm")),
                ],
            );
        }
        Ok(())
    }

    /// d and da of all steps, dh0 and dc0.
    pub(crate) fn norm_cells_back(
        &self,
        program: &mut Program,
        normed: &Normed,
        dy: Slot,
        states: &CommonGradients,
    ) -> Result<(), Error> {
        let Sizes { dtype, batch, hidden, peephole, .. } = self.sizes;
        let device = program.device();
        let (source, arguments) = (&kernels::NORM_CELL, peephole.to_string());
        let back = kernel(device, source, "norm_cell_back", dtype, &arguments)?;
        let dc = program.scratch(self.sizes.arithmetic(), batch * hidden)?;
        let [peephole_i, peephole_f, peephole_o] = self.weights.peepholes();
        let [weight, bias, c_weight, c_bias] = self.weights.norms.expect("of layer norm");
        let [c0, _] = self.common.of_lstm();
        let [dcn, _] = states.c.expect("the LSTM has c");
        let [stride, column] = self.place();
        for t in self.steps().into_iter().rev() {
            program.launch(
                back.clone(),
                self.of_rows(),
                [
                    dy.read(),
                    self.weights.hh.read(),
                    peephole_i,
                    peephole_f,
                    peephole_o,
                    weight.read(),
                    bias.read(),
                    c_weight.read(),
                    c_bias.read(),
                    c0.read(),
                    states.dhn.read(),
                    dcn.read(),
                    self.common.lengths.read(),
                    self.c.read(),
                    normed.n.read(),
                    normed.scales.read(),
                    normed.d.write(),
                    self.gates.write(),
                    dc.write(),
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
        self.first(program, dc, states)
    }

    /// y, hn and cn in one launch; with `keep`, c, n and scales of all steps.
    pub(crate) fn norm_sequence(
        &self,
        program: &mut Program,
        normed: &Normed,
        keep: bool,
    ) -> Result<(), Error> {
        let Sizes { dtype, steps, batch, hidden, peephole, layer_norm, .. } = self.sizes;
        let columns = self.added(program)?;
        let residence = NormResidence::of(hidden, dtype);
        let (source, arguments) = (&kernels::V1_NORM, residence.arguments());
        let kernel = kernel(program.device(), source, "norm_sequence", dtype, &arguments)?;
        let launch = Launch::new(batch as u32, residence.threads())
            .shared(residence.shared(self.sizes.arithmetic()));
        let [bias_ih, bias_hh] = self.weights.biases();
        let [peephole_i, peephole_f, peephole_o] = self.weights.peepholes();
        let [weight, bias, c_weight, c_bias] = self.weights.norms.expect("of layer norm");
        let [c0, cn] = self.common.of_lstm();
        let [stride, column] = self.place();
        program.launch(
            kernel,
            launch,
            [
                self.x.read(),
                self.weights.ih.read(),
                bias_ih,
                bias_hh,
                self.weights.hh.read(),
                peephole_i,
                peephole_f,
                peephole_o,
                weight.read(),
                bias.read(),
                c_weight.read(),
                c_bias.read(),
                self.common.h0.read(),
                c0.read(),
                self.common.lengths.read(),
                self.y.write(),
                self.c.write(),
                self.gates.read(),
                normed.n.write(),
                normed.scales.write(),
                self.common.hn.write(),
                cn.write(),
                int(steps),
                int(batch),
                int(hidden),
                int(columns),
                stride,
                column,
                int(self.state),
                self.flag(),
                scalar(i32::from(self.weights.biases.is_some())),
                scalar(i32::from(peephole)),
                scalar(i32::from(keep)),
                math_scalar(dtype, layer_norm.expect("of layer norm")),
            ],
        );
        Ok(())
    }

    /// d and da of all steps, dh0 and dc0, in one launch.
    pub(crate) fn norm_sequence_back(
        &self,
        program: &mut Program,
        normed: &Normed,
        dy: Slot,
        states: &CommonGradients,
    ) -> Result<(), Error> {
        let Sizes { dtype, steps, batch, hidden, peephole, .. } = self.sizes;
        let residence = NormResidence::of(hidden, dtype);
        let (source, arguments) = (&kernels::V1_NORM_BACK, residence.arguments());
        let kernel = kernel(program.device(), source, "norm_sequence_back", dtype, &arguments)?;
        let launch = Launch::new(batch as u32, residence.threads())
            .shared(residence.shared_back(self.sizes.arithmetic()));
        let [peephole_i, peephole_f, peephole_o] = self.weights.peepholes();
        let [weight, bias, c_weight, c_bias] = self.weights.norms.expect("of layer norm");
        let [c0, _] = self.common.of_lstm();
        let [dcn, dc0] = states.c.expect("the LSTM has c");
        let [stride, column] = self.place();
        program.launch(
            kernel,
            launch,
            [
                dy.read(),
                self.weights.hh.read(),
                peephole_i,
                peephole_f,
                peephole_o,
                weight.read(),
                bias.read(),
                c_weight.read(),
                c_bias.read(),
                c0.read(),
                states.dhn.read(),
                dcn.read(),
                self.common.lengths.read(),
                self.c.read(),
                normed.n.read(),
                normed.scales.read(),
                normed.d.write(),
                self.gates.write(),
                states.dh0.write(),
                dc0.write(),
                int(steps),
                int(batch),
                int(hidden),
                stride,
                column,
                int(self.state),
                self.flag(),
                scalar(i32::from(peephole)),
            ],
        );
        Ok(())
    }
}
