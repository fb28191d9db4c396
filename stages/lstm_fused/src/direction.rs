//! The launches of one direction of a layer.

use lab_device::{DType, Device, Kernel, KernelSource, Launch};
use lab_harness::Error;
use lab_harness::program::{Argument, Program, Slot, scalar};
use lab_reference::lstm::Cell;

use crate::kernels;
use crate::network::Way;
use crate::sequence::Residence;

/// Threads of a block: of the kernels that go step by step, and of the others.
const THREADS: u32 = 128;
const PRODUCT_THREADS: u32 = 256;

/// Rows and columns of a tile of the products, columns of a block of the sums.
const TILE: usize = 32;

/// Columns of x that a launch for all steps multiplies by itself, `Added::FEW` of lab/lstm.cuh.
const FEW_COLUMNS: usize = 2;

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
    pub(crate) way: Way,
    pub(crate) cell: Cell,
    /// ε of the norms, where there are.
    pub(crate) layer_norm: Option<f64>,
    /// Whether the way back computes the gates again.
    pub(crate) recompute: bool,
}

impl Sizes {
    /// T·B, rows of all steps.
    pub(crate) fn rows(&self) -> usize {
        self.steps * self.batch
    }

    /// G·H, rows of a matrix of weights.
    pub(crate) fn weights(&self) -> usize {
        self.cell.gates() * self.hidden
    }

    /// What kernels compute in.
    pub(crate) fn arithmetic(&self) -> DType {
        if self.dtype == DType::F64 { DType::F64 } else { DType::F32 }
    }
}

/// What all directions of all layers read and write.
pub(crate) struct Common {
    pub(crate) h0: Slot,
    pub(crate) hn: Slot,
    /// c0 and cn, of the LSTM.
    pub(crate) c: Option<[Slot; 2]>,
    pub(crate) lengths: Slot,
}

impl Common {
    /// c0 and cn.
    pub(crate) fn of_lstm(&self) -> [Slot; 2] {
        self.c.expect("the LSTM has c")
    }
}

/// The gradients by what [`Common`] holds.
pub(crate) struct CommonGradients {
    pub(crate) dhn: Slot,
    pub(crate) dh0: Slot,
    /// dcn and dc0, of the LSTM.
    pub(crate) c: Option<[Slot; 2]>,
}

/// The parameters of a direction, or the gradients by them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weights {
    pub(crate) ih: Slot,
    pub(crate) hh: Slot,
    pub(crate) biases: Option<[Slot; 2]>,
    pub(crate) peepholes: Option<[Slot; 3]>,
    /// Weights and biases of the norms: of the gates, and of c.
    pub(crate) norms: Option<[Slot; 4]>,
}

impl Weights {
    /// Biases as arguments; those that are not there are not read.
    pub(crate) fn biases(&self) -> [Argument; 2] {
        self.biases.unwrap_or([self.ih; 2]).map(Slot::read)
    }

    pub(crate) fn peepholes(&self) -> [Argument; 3] {
        self.peepholes.unwrap_or([self.ih; 3]).map(Slot::read)
    }
}

/// What the head on the last layer wants of the launch of all sums: its gradients, and the loss.
pub(crate) struct HeadSums {
    pub(crate) dz: Slot,
    pub(crate) row_losses: Slot,
    pub(crate) counts: Slot,
    /// Of the gradients.
    pub(crate) weight: Slot,
    pub(crate) bias: Slot,
    pub(crate) losses: Slot,
    /// Rows of y that it reads, and the first of them.
    pub(crate) from: usize,
    pub(crate) rows: usize,
    pub(crate) outputs: usize,
}

impl HeadSums {
    /// Bytes of that without outputs.
    pub(crate) fn none_bytes(dtype: DType) -> usize {
        let arithmetic = if dtype == DType::F64 { 8 } else { 4 };
        arithmetic + 2 * dtype.size() + 3 * 8
    }

    /// Without outputs: nothing of it is touched.
    pub(crate) fn none(program: &mut Program, sizes: Sizes) -> Result<Self, Error> {
        let mut one = |dtype| program.scratch(dtype, 1);
        Ok(Self {
            dz: one(sizes.arithmetic())?,
            row_losses: one(DType::F64)?,
            counts: one(DType::I64)?,
            weight: one(sizes.dtype)?,
            bias: one(sizes.dtype)?,
            losses: one(DType::F64)?,
            from: 0,
            rows: 0,
            outputs: 0,
        })
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
    /// c of all steps; one number of a GRU.
    pub(crate) c: Slot,
    /// The gates of all steps, until da takes their place; before them, in a sequence, what x adds to
    /// them. One number where nobody needs them.
    pub(crate) gates: Slot,
    /// What the norms leave.
    pub(crate) normed: Option<Normed>,
}

/// What the norms of the gates and of c leave: their n and their d, T x B x 5H each, and scales, T x B
/// x 5.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Normed {
    pub(crate) n: Slot,
    pub(crate) d: Slot,
    pub(crate) scales: Slot,
}

/// `size` as a kernel takes it: what does not fit has been refused.
pub(crate) fn int(size: usize) -> Argument {
    scalar(i32::try_from(size).expect("sizes that were checked"))
}

pub(crate) fn blocks(size: usize, each: usize) -> u32 {
    u32::try_from(size.div_ceil(each)).expect("sizes that were checked")
}

pub(crate) fn kernel(
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
    /// With room for what the forward pass leaves to the other, if that is to come; for its gates in a
    /// place that several layers share, where there is one.
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
        shared_gates: Option<Slot>,
    ) -> Result<Self, Error> {
        let Sizes { steps, batch, hidden, .. } = sizes;
        let of_gates = steps * batch * 4 * hidden;
        // A launch a step leaves n to itself.
        let left = keep || sizes.layer_norm.is_some() && sizes.way == Way::Cell;
        let normed = match sizes.layer_norm {
            Some(_) => {
                let mut room =
                    |len, is: bool| program.scratch(sizes.arithmetic(), if is { len } else { 1 });
                let all = steps * batch * 5;
                let (n, d) = (room(all * hidden, left)?, room(all * hidden, keep)?);
                Some(Normed { n, d, scales: room(all, left)? })
            }
            None => None,
        };
        let kept = if left { steps } else { steps.min(2) }; // of which a sequence needs none
        let of_c = if sizes.cell == Cell::Gru { 1 } else { kept * batch * hidden };
        let c = program.scratch(sizes.arithmetic(), of_c)?;
        let of_gates = match (sizes.way, keep) {
            (Way::Cell, false) => 1,
            (_, false) if columns <= FEW_COLUMNS => 1,
            _ => of_gates,
        };
        let gates = match shared_gates {
            Some(gates) => gates,
            None => program.scratch(sizes.arithmetic(), of_gates)?,
        };
        let reverse = state % sizes.directions == 1;
        Ok(Self { sizes, common, weights, x, columns, y, reverse, state, c, gates, normed })
    }

    /// The steps as this direction takes them.
    pub(crate) fn steps(&self) -> Vec<usize> {
        let forth = 0..self.sizes.steps;
        if self.reverse { forth.rev().collect() } else { forth.collect() }
    }

    pub(crate) fn flag(&self) -> Argument {
        scalar(i32::from(self.reverse))
    }

    /// The stride of y's rows, and the column where this direction's begin.
    pub(crate) fn place(&self) -> [Argument; 2] {
        let Sizes { hidden, directions, .. } = self.sizes;
        [int(hidden * directions), int(hidden * usize::from(self.reverse))]
    }

    /// A thread a unit of a row.
    pub(crate) fn units(&self) -> Launch {
        Launch::new(blocks(self.sizes.batch * self.sizes.hidden, THREADS as usize), THREADS)
    }

    /// y, hn and cn; with `keep`, the gates and c of all steps.
    pub(crate) fn forward(&self, program: &mut Program, keep: bool) -> Result<(), Error> {
        match (self.sizes.cell, self.sizes.way, &self.normed) {
            (Cell::Gru, ..) => self.gru_cells(program, keep),
            (Cell::Lstm, Way::Cell, Some(normed)) => self.norm_cells(program, normed),
            (Cell::Lstm, Way::Cell, None) => self.cells(program, keep),
            (Cell::Lstm, Way::Sequence, Some(normed)) => self.norm_sequence(program, normed, keep),
            (Cell::Lstm, Way::Sequence, None) => self.sequence(program, keep),
            (Cell::Lstm, Way::Cluster | Way::Grid, _) => self.spread(program, keep),
        }
    }

    /// Sees to what x adds to the gates of all steps: where x has few columns, the launch for all steps
    /// multiplies by so many itself; else this leaves the sums in the gates' place, for 0.
    pub(crate) fn added(&self, program: &mut Program) -> Result<usize, Error> {
        if self.columns <= FEW_COLUMNS {
            return Ok(self.columns);
        }
        self.projection(program)?;
        Ok(0)
    }

    fn projection(&self, program: &mut Program) -> Result<(), Error> {
        let Sizes { dtype, hidden, .. } = self.sizes;
        let rows = self.sizes.rows();
        let [bias_ih, bias_hh] = self.weights.biases();
        let projection = kernel(program.device(), &kernels::PROJECTION, "projection", dtype, "")?;
        program.launch(
            projection,
            tiles(rows, 4 * hidden),
            [
                self.x.read(),
                self.weights.ih.read(),
                bias_ih,
                bias_hh,
                self.gates.write(),
                int(rows),
                int(4 * hidden),
                int(self.columns),
                scalar(i32::from(self.weights.biases.is_some())),
            ],
        );
        Ok(())
    }

    /// All steps in one launch, after the products with x.
    fn sequence(&self, program: &mut Program, keep: bool) -> Result<(), Error> {
        let Sizes { dtype, steps, batch, hidden, peephole, .. } = self.sizes;
        let columns = self.added(program)?;
        let [c0, cn] = self.common.of_lstm();
        let [bias_ih, bias_hh] = self.weights.biases();
        let residence = self.residence(program.device());
        let arguments = residence.arguments();
        let source = &kernels::V1_SEQUENCE;
        let kernel = kernel(program.device(), source, "lstm_sequence", dtype, &arguments)?;
        let launch = Launch::new(blocks(batch, residence.rows), residence.threads())
            .shared(residence.shared(self.sizes.arithmetic()));
        let [peephole_i, peephole_f, peephole_o] = self.weights.peepholes();
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
                self.common.h0.read(),
                c0.read(),
                self.common.lengths.read(),
                self.y.write(),
                self.c.write(),
                self.gates.write(),
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
            ],
        );
        Ok(())
    }

    /// A row a block as long as each has a multiprocessor to itself.
    fn residence(&self, device: &Device) -> Residence {
        let Sizes { dtype, batch, hidden, .. } = self.sizes;
        Residence::of(hidden, dtype, batch > device.facts().multiprocessors as usize)
    }

    /// A launch a step.
    fn cells(&self, program: &mut Program, keep: bool) -> Result<(), Error> {
        let Sizes { dtype, batch, hidden, peephole, .. } = self.sizes;
        let arguments = peephole.to_string();
        let kernel = kernel(program.device(), &kernels::V0_CELL, "lstm_cell", dtype, &arguments)?;
        let [c0, cn] = self.common.of_lstm();
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
                    c0.read(),
                    self.common.lengths.read(),
                    self.y.write(),
                    self.c.write(),
                    self.gates.write(),
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
                    scalar(i32::from(keep)),
                ],
            );
        }
        Ok(())
    }

    /// The gates of all steps once more, from h and c, where another layer's have taken their place.
    pub(crate) fn gates_again(&self, program: &mut Program) -> Result<(), Error> {
        let Sizes { dtype, batch, hidden, peephole, .. } = self.sizes;
        let rows = self.sizes.rows();
        let again = kernel(program.device(), &kernels::PROJECTION, "gates_again", dtype, "")?;
        let [c0, _] = self.common.of_lstm();
        let [bias_ih, bias_hh] = self.weights.biases();
        let [peephole_i, peephole_f, peephole_o] = self.weights.peepholes();
        let [stride, column] = self.place();
        program.launch(
            again,
            tiles(rows, 4 * hidden),
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
                c0.read(),
                self.common.lengths.read(),
                self.y.read(),
                self.c.read(),
                self.gates.write(),
                int(rows),
                int(batch),
                int(hidden),
                int(self.columns),
                stride,
                column,
                int(self.state),
                self.flag(),
                scalar(i32::from(self.weights.biases.is_some())),
                scalar(i32::from(peephole)),
            ],
        );
        Ok(())
    }

    /// da in place of the gates, dh0 and dc0, a launch a step; then the gradients by the weights.
    pub(crate) fn backward(
        &self,
        program: &mut Program,
        dy: Slot,
        states: &CommonGradients,
        gradients: &Weights,
        head: &HeadSums,
    ) -> Result<(), Error> {
        match (self.sizes.cell, self.sizes.way, &self.normed) {
            (Cell::Gru, ..) => self.gru_cells_back(program, dy, states)?,
            (Cell::Lstm, Way::Cell, Some(normed)) => {
                self.norm_cells_back(program, normed, dy, states)?;
            }
            (Cell::Lstm, Way::Cell, None) => self.cells_back(program, dy, states)?,
            (Cell::Lstm, Way::Sequence, Some(normed)) => {
                self.norm_sequence_back(program, normed, dy, states)?;
            }
            (Cell::Lstm, Way::Sequence, None) => self.sequence_back(program, dy, states)?,
            (Cell::Lstm, Way::Cluster | Way::Grid, _) => self.spread_back(program, dy, states)?,
        }
        self.weight_gradients(program, gradients, head)
    }

    fn sequence_back(
        &self,
        program: &mut Program,
        dy: Slot,
        states: &CommonGradients,
    ) -> Result<(), Error> {
        let Sizes { dtype, steps, batch, hidden, peephole, .. } = self.sizes;
        let residence = self.residence(program.device());
        let (name, arguments) = ("lstm_sequence_back", residence.arguments());
        let source = &kernels::V1_SEQUENCE_BACK;
        let kernel = kernel(program.device(), source, name, dtype, &arguments)?;
        let launch = Launch::new(blocks(batch, residence.rows), residence.threads())
            .shared(residence.shared_back(self.sizes.arithmetic()));
        let [c0, _] = self.common.of_lstm();
        let [dcn, dc0] = states.c.expect("the LSTM has c");
        let [peephole_i, peephole_f, peephole_o] = self.weights.peepholes();
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
                c0.read(),
                states.dhn.read(),
                dcn.read(),
                self.common.lengths.read(),
                self.c.read(),
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

    fn cells_back(
        &self,
        program: &mut Program,
        dy: Slot,
        states: &CommonGradients,
    ) -> Result<(), Error> {
        let [c0, _] = self.common.of_lstm();
        let [dcn, _] = states.c.expect("the LSTM has c");
        let Sizes { dtype, batch, hidden, peephole, .. } = self.sizes;
        let of = |name: &str, arguments: &str| {
            kernel(program.device(), &kernels::V0_CELL, name, dtype, arguments)
        };
        let back = of("lstm_cell_back", &peephole.to_string())?;
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
                    c0.read(),
                    states.dhn.read(),
                    dcn.read(),
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
        self.first(program, dc, states)
    }

    /// dh0 and dc0, from what the first steps have left.
    pub(crate) fn first(
        &self,
        program: &mut Program,
        dc: Slot,
        states: &CommonGradients,
    ) -> Result<(), Error> {
        let Sizes { dtype, batch, hidden, .. } = self.sizes;
        let [dcn, dc0] = states.c.expect("the LSTM has c");
        let first = kernel(program.device(), &kernels::V0_CELL, "lstm_cell_first", dtype, "")?;
        program.launch(
            first,
            self.units(),
            [
                self.weights.hh.read(),
                states.dhn.read(),
                dcn.read(),
                self.common.lengths.read(),
                self.gates.read(),
                dc.read(),
                states.dh0.write(),
                dc0.write(),
                int(batch),
                int(hidden),
                int(self.state),
                self.flag(),
            ],
        );
        Ok(())
    }

    /// All sums over the rows of all steps in one launch, those of the head among them.
    fn weight_gradients(
        &self,
        program: &mut Program,
        gradients: &Weights,
        head: &HeadSums,
    ) -> Result<(), Error> {
        let Sizes { dtype, batch, hidden, directions, .. } = self.sizes;
        let of_vectors = |program: &Program, name: &str| {
            kernel(program.device(), &kernels::VECTOR_GRADIENT, name, dtype, "")
        };
        let rows = int(self.sizes.rows());
        let [stride, column] = self.place();
        let source = &kernels::PARAMETER_GRADIENT;
        let product = kernel(program.device(), source, "parameter_gradient", dtype, "")?;
        let columns = blocks(self.columns, TILE) + blocks(hidden, TILE);
        let biased = u32::from(gradients.biases.is_some());
        let biases = match gradients.biases {
            Some(biases) => biases,
            None => [program.scratch(dtype, 1)?, program.scratch(dtype, 1)?],
        };
        let mut grid = blocks(4 * hidden, TILE) * (columns + biased);
        if head.outputs > 0 {
            grid += blocks(head.outputs, TILE) * (blocks(hidden * directions, TILE) + 1) + 1;
        }
        program.launch(
            product,
            Launch::new(grid, PRODUCT_THREADS),
            [
                self.gates.read(),
                self.x.read(),
                self.y.read(),
                self.common.h0.read(),
                self.common.lengths.read(),
                gradients.ih.write(),
                gradients.hh.write(),
                biases[0].write(),
                biases[1].write(),
                head.dz.read(),
                head.row_losses.read(),
                head.counts.read(),
                head.weight.write(),
                head.bias.write(),
                head.losses.write(),
                rows,
                int(batch),
                int(self.sizes.weights()),
                int(hidden),
                int(self.columns),
                stride,
                column,
                int(self.state),
                self.flag(),
                scalar(biased as i32),
                int(head.from),
                int(head.rows),
                int(head.outputs),
            ],
        );
        if let (Some(to), Some(normed)) = (gradients.norms, &self.normed) {
            let sums = of_vectors(program, "norm_gradient")?;
            // Of the gates, and of c behind them.
            for ([weight, bias], from, columns) in
                [([to[0], to[1]], 0, 4 * hidden), ([to[2], to[3]], 4 * hidden, hidden)]
            {
                program.launch(
                    sums.clone(),
                    Launch::new(blocks(columns, TILE), PRODUCT_THREADS),
                    [
                        normed.d.read(),
                        normed.n.read(),
                        self.common.lengths.read(),
                        weight.write(),
                        bias.write(),
                        rows,
                        int(batch),
                        int(hidden),
                        int(from),
                        int(columns),
                    ],
                );
            }
        }
        if let Some([i, f, o]) = gradients.peepholes {
            let [c0, _] = self.common.of_lstm();
            let sums = of_vectors(program, "peephole_gradient")?;
            let launch = Launch::new(blocks(hidden, TILE), PRODUCT_THREADS);
            program.launch(
                sums,
                launch,
                [
                    self.gates.read(),
                    c0.read(),
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
    let product = kernel(device, &kernels::INPUT_GRADIENT, "input_gradient", dtype, "")?;
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
            int(one.sizes.weights()),
            int(hidden),
            int(one.columns),
            int(directions.len() - 1),
        ],
    );
    Ok(())
}
