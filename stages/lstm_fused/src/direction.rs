//! The launches of one direction of a layer.

use lab_device::{DType, Device, Kernel, KernelSource, Launch};
use lab_harness::Error;
use lab_harness::program::{Argument, Program, Slot, scalar};

use crate::kernels;

/// Threads of a block: of the kernels that go step by step, and of the others.
const THREADS: u32 = 128;
const PRODUCT_THREADS: u32 = 256;

/// Rows and columns of a tile of the products, columns of a block of the sums.
const TILE: usize = 32;

/// The sizes of a network's run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) dtype: DType,
    pub(crate) steps: usize,
    pub(crate) batch: usize,
    pub(crate) hidden: usize,
    pub(crate) directions: usize,
    /// Whether the gates see c.
    pub(crate) peephole: bool,
}

impl Sizes {
    /// T·B, rows of all steps.
    pub(crate) fn rows(&self) -> usize {
        self.steps * self.batch
    }

    /// What kernels compute in.
    pub(crate) fn arithmetic(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }
}

/// What all directions of all layers read and write.
pub(crate) struct Common {
    pub(crate) h0: Slot,
    pub(crate) c0: Slot,
    pub(crate) lengths: Slot,
    pub(crate) hn: Slot,
    pub(crate) cn: Slot,
}

/// The gradients by what [`Common`] holds.
pub(crate) struct CommonGradients {
    pub(crate) dhn: Slot,
    pub(crate) dcn: Slot,
    pub(crate) dh0: Slot,
    pub(crate) dc0: Slot,
}

/// The parameters of a direction, or the gradients by them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    pub(crate) ih: Slot,
    pub(crate) hh: Slot,
    pub(crate) biases: Option<[Slot; 2]>,
    pub(crate) peepholes: Option<[Slot; 3]>,
}

impl Weights {
    /// Biases as arguments; those that are not there are not read.
    fn biases(&self) -> [Argument; 2] {
        self.biases.unwrap_or([self.ih; 2]).map(Slot::read)
    }

    fn peepholes(&self) -> [Argument; 3] {
        self.peepholes.unwrap_or([self.ih; 3]).map(Slot::read)
    }
}

/// One direction of a layer.
pub(crate) struct Direction<'a> {
    pub(crate) sizes: Sizes,
    pub(crate) common: &'a Common,
    pub(crate) weights: Weights,
    /// The layer's input, T x B x `columns`.
    pub(crate) x: Slot,
    pub(crate) columns: usize,
    /// The layer's output, T x B x H·dirs.
    pub(crate) y: Slot,
    pub(crate) reverse: bool,
    /// Which of the h0.
    pub(crate) state: usize,
    /// c of all steps.
    c: Slot,
    /// The gates of all steps, until da takes their place. One number where nothing goes back.
    gates: Slot,
}

/// `size` as a kernel takes it: what does not fit has been refused.
fn int(size: usize) -> Argument {
    scalar(i32::try_from(size).expect("sizes that were checked"))
}

fn blocks(size: usize, each: usize) -> u32 {
    u32::try_from(size.div_ceil(each)).expect("sizes that were checked")
}

fn kernel(
    device: &Device,
    source: &'static KernelSource,
    name: &str,
    dtype: DType,
    arguments: &str,
) -> Result<Kernel, Error> {
    let comma = if arguments.is_empty() { "" } else { ", " };
    Ok(device.kernel(source, &format!("{name}<{}{comma}{arguments}>", dtype.cpp()))?)
}

impl<'a> Direction<'a> {
    /// With room for what the forward pass leaves to the other, if that is to come.
    #[allow(clippy::too_many_arguments)] // each of another kind
    pub(crate) fn new(
        program: &mut Program,
        sizes: Sizes,
        common: &'a Common,
        weights: Weights,
        [x, y]: [Slot; 2],
        columns: usize,
        state: usize,
        keep: bool,
    ) -> Result<Self, Error> {
        let Sizes { steps, batch, hidden, .. } = sizes;
        let kept = if keep { steps } else { steps.min(2) };
        let c = program.scratch(sizes.arithmetic(), kept * batch * hidden)?;
        let of_gates = if keep { steps * batch * 4 * hidden } else { 1 };
        let gates = program.scratch(sizes.arithmetic(), of_gates)?;
        let reverse = state % sizes.directions == 1;
        Ok(Self { sizes, common, weights, x, columns, y, reverse, state, c, gates })
    }

    /// The steps as this direction takes them.
    fn steps(&self) -> Vec<usize> {
        let forth = 0..self.sizes.steps;
        if self.reverse { forth.rev().collect() } else { forth.collect() }
    }

    fn flag(&self) -> Argument {
        scalar(i32::from(self.reverse))
    }

    /// The stride of y's rows, and the column where this direction's begin.
    fn place(&self) -> [Argument; 2] {
        let Sizes { hidden, directions, .. } = self.sizes;
        [int(hidden * directions), int(hidden * usize::from(self.reverse))]
    }

    /// A thread a unit of a row.
    fn units(&self) -> Launch {
        Launch::new(blocks(self.sizes.batch * self.sizes.hidden, THREADS as usize), THREADS)
    }

    /// y, hn and cn, a launch a step.
    pub(crate) fn forward(&self, program: &mut Program, keep: bool) -> Result<(), Error> {
        let Sizes { dtype, batch, hidden, peephole, .. } = self.sizes;
        let arguments = peephole.to_string();
        let kernel = kernel(program.device(), &kernels::V0_CELL, "lstm_cell", dtype, &arguments)?;
        let [bias_ih, bias_hh] = self.weights.biases();
        let [peephole_i, peephole_f, peephole_o] = self.weights.peepholes();
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
                    peephole_i,
                    peephole_f,
                    peephole_o,
                    self.common.h0.read(),
                    self.common.c0.read(),
                    self.common.lengths.read(),
                    self.y.write(),
                    self.c.write(),
                    self.gates.write(),
                    self.common.hn.write(),
                    self.common.cn.write(),
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

    /// da in place of the gates, dh0 and dc0, a launch a step; then the gradients by the weights.
    pub(crate) fn backward(
        &self,
        program: &mut Program,
        dy: Slot,
        states: &CommonGradients,
        gradients: &Weights,
    ) -> Result<(), Error> {
        let Sizes { dtype, batch, hidden, peephole, .. } = self.sizes;
        let of = |name: &str, arguments: &str| {
            kernel(program.device(), &kernels::V0_CELL, name, dtype, arguments)
        };
        let back = of("lstm_cell_back", &peephole.to_string())?;
        let first = of("lstm_cell_first", "")?;
        let dc = program.scratch(self.sizes.arithmetic(), batch * hidden)?;
        let [peephole_i, peephole_f, peephole_o] = self.weights.peepholes();
        let [stride, column] = self.place();
        for t in self.steps().into_iter().rev() {
            program.launch(
                back.clone(),
                self.units(),
                [
                    dy.read(),
                    self.weights.hh.read(),
                    peephole_i,
                    peephole_f,
                    peephole_o,
                    self.common.c0.read(),
                    states.dhn.read(),
                    states.dcn.read(),
                    self.common.lengths.read(),
                    self.c.read(),
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
        program.launch(
            first,
            self.units(),
            [
                self.weights.hh.read(),
                states.dhn.read(),
                states.dcn.read(),
                self.common.lengths.read(),
                self.gates.read(),
                dc.read(),
                states.dh0.write(),
                states.dc0.write(),
                int(batch),
                int(hidden),
                int(self.state),
                self.flag(),
            ],
        );
        self.weight_gradients(program, gradients)
    }

    fn weight_gradients(&self, program: &mut Program, gradients: &Weights) -> Result<(), Error> {
        let Sizes { dtype, batch, hidden, .. } = self.sizes;
        let of = |program: &Program, name: &str, arguments: &str| {
            kernel(program.device(), &kernels::GRADIENTS, name, dtype, arguments)
        };
        let rows = int(self.sizes.rows());
        let [stride, column] = self.place();
        for (input, columns, to, recurrent) in
            [(self.x, self.columns, gradients.ih, false), (self.y, hidden, gradients.hh, true)]
        {
            let product = of(program, "lstm_weight_gradient", &recurrent.to_string())?;
            program.launch(
                product,
                tiles(4 * hidden, columns),
                [
                    self.gates.read(),
                    input.read(),
                    self.common.h0.read(),
                    self.common.lengths.read(),
                    to.write(),
                    rows,
                    int(batch),
                    int(hidden),
                    int(columns),
                    stride,
                    column,
                    int(self.state),
                    self.flag(),
                ],
            );
        }
        if let Some([ih, hh]) = gradients.biases {
            let sums = of(program, "lstm_bias_gradient", "")?;
            let launch = Launch::new(blocks(4 * hidden, TILE), PRODUCT_THREADS);
            let of_gates = int(4 * hidden);
            let arguments = [self.gates.read(), ih.write(), hh.write(), rows, of_gates];
            program.launch(sums, launch, arguments);
        }
        if let Some([i, f, o]) = gradients.peepholes {
            let sums = of(program, "lstm_peephole_gradient", "")?;
            let launch = Launch::new(blocks(hidden, TILE), PRODUCT_THREADS);
            program.launch(
                sums,
                launch,
                [
                    self.gates.read(),
                    self.common.c0.read(),
                    self.c.read(),
                    self.common.lengths.read(),
                    i.write(),
                    f.write(),
                    o.write(),
                    rows,
                    int(batch),
                    int(hidden),
                    int(self.state),
                    self.flag(),
                ],
            );
        }
        Ok(())
    }
}

/// A block a tile of so many rows and columns.
fn tiles(rows: usize, columns: usize) -> Launch {
    let grid = [blocks(rows, TILE), blocks(columns, TILE), 1];
    Launch::new_3d(grid, [PRODUCT_THREADS, 1, 1])
}

/// dx of a layer, from da of all its directions.
pub(crate) fn input_gradient(
    program: &mut Program,
    directions: &[Direction<'_>],
    dx: Slot,
) -> Result<(), Error> {
    let (Some(one), Some(other)) = (directions.first(), directions.last()) else { return Ok(()) };
    let Sizes { dtype, hidden, .. } = one.sizes;
    let device = program.device();
    let product = kernel(device, &kernels::GRADIENTS, "lstm_input_gradient", dtype, "")?;
    let rows = one.sizes.rows();
    program.launch(
        product,
        tiles(rows, one.columns),
        [
            one.gates.read(),
            one.weights.ih.read(),
            other.gates.read(),
            other.weights.ih.read(),
            dx.write(),
            int(rows),
            int(4 * hidden),
            int(one.columns),
            int(directions.len() - 1),
        ],
    );
    Ok(())
}
