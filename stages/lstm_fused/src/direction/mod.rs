//! The launches of one direction of a layer.

mod arguments;
mod cells;
mod gru;
mod norm;
mod products;
mod residence;
mod sequence;
mod spread;

use lab_device::DType;
use lab_harness::Error;
use lab_harness::program::{Program, Slot};
use lab_reference::lstm::Cell;

pub use arguments::{blocks, int, kernel};
use norm::Normed;
use products::FEW_COLUMNS;
pub use products::HeadSums;
pub(crate) use products::input_gradient;
pub(crate) use residence::MOST_UNITS;
pub(crate) use spread::MOST_SPREAD_UNITS;

use crate::network::Way;

/// The sizes and options of a network's run.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
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
    /// Whether the way back is to come: what it needs is kept.
    pub(crate) keep: bool,
    /// Whether it computes the gates again.
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
#[derive(Clone, Copy, Debug)]
pub struct Common {
    /// The state before the first step, \[L·dirs, B, H\].
    pub h0: Slot,
    /// The state behind the last, likewise.
    pub hn: Slot,
    /// c0 and cn, of the LSTM.
    pub c: Option<[Slot; 2]>,
    /// Steps of each row, i32, \[B\].
    pub lengths: Slot,
}

impl Common {
    /// c0 and cn.
    fn of_lstm(&self) -> [Slot; 2] {
        self.c.expect("the LSTM has c")
    }
}

/// The gradients by what [`Common`] holds.
#[derive(Clone, Copy, Debug)]
pub struct CommonGradients {
    /// By hn: read.
    pub dhn: Slot,
    /// By h0: written.
    pub dh0: Slot,
    /// dcn and dc0, of the LSTM.
    pub c: Option<[Slot; 2]>,
}

impl CommonGradients {
    /// dcn and dc0.
    fn of_lstm(&self) -> [Slot; 2] {
        self.c.expect("the LSTM has c")
    }
}

/// What comes back to a direction: dy of its layer, and the states' gradients.
#[derive(Clone, Copy, Debug)]
pub struct Upstream<'a> {
    /// \[T, B, H·dirs\]
    pub dy: Slot,
    /// By the states.
    pub states: &'a CommonGradients,
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

/// Between what a layer stands.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    /// Its input, T x B x `columns`.
    pub(crate) x: Slot,
    pub(crate) columns: usize,
    /// Its output, T x B x H·dirs.
    pub(crate) y: Slot,
}

/// One direction of a layer.
#[derive(Debug)]
pub struct Direction<'a> {
    pub(crate) sizes: Sizes,
    common: &'a Common,
    weights: Weights,
    x: Slot,
    pub(crate) columns: usize,
    y: Slot,
    reverse: bool,
    /// Which of the h0.
    state: usize,
    /// c of all steps; one number of a GRU.
    c: Slot,
    /// The gates of all steps, until da takes their place; before them, in a sequence, what x adds to
    /// them. One number where nobody needs them.
    gates: Slot,
    /// What the norms leave.
    normed: Option<Normed>,
}

impl<'a> Direction<'a> {
    /// With room for what the forward pass leaves to the other, if that is to come; for its gates in a
    /// place that several layers share, where there is one.
    pub(crate) fn new(
        program: &mut Program,
        sizes: Sizes,
        common: &'a Common,
        weights: Weights,
        Ends { x, columns, y }: Ends,
        state: usize,
        shared_gates: Option<Slot>,
    ) -> Result<Self, Error> {
        let Sizes { steps, batch, hidden, keep, .. } = sizes;
        // A launch a step leaves n to itself.
        let left = keep || sizes.layer_norm.is_some() && sizes.way == Way::Cell;
        let normed = match sizes.layer_norm {
            Some(_) => Some(Normed::new(program, sizes, left)?),
            None => None,
        };
        let kept = if left { steps } else { steps.min(2) }; // of which a sequence needs none
        let of_c = if sizes.cell == Cell::Gru { 1 } else { kept * batch * hidden };
        let c = program.scratch(sizes.arithmetic(), of_c)?;
        let of_gates = match (sizes.way, keep) {
            (Way::Cell, false) => 1,
            (_, false) if columns <= FEW_COLUMNS => 1,
            _ => sizes.rows() * 4 * hidden,
        };
        let gates = match shared_gates {
            Some(gates) => gates,
            None => program.scratch(sizes.arithmetic(), of_gates)?,
        };
        let reverse = state % sizes.directions == 1;
        Ok(Self { sizes, common, weights, x, columns, y, reverse, state, c, gates, normed })
    }

    /// The steps as this direction takes them.
    fn steps(&self) -> Vec<usize> {
        let forth = 0..self.sizes.steps;
        if self.reverse { forth.rev().collect() } else { forth.collect() }
    }

    /// y, hn and cn; and what is kept for the way back, if that is to come.
    pub(crate) fn forward(&self, program: &mut Program) -> Result<(), Error> {
        match (self.sizes.cell, self.sizes.way, &self.normed) {
            (Cell::Gru, ..) => self.gru_cells(program),
            (Cell::Lstm, Way::Cell, Some(normed)) => self.norm_cells(program, normed),
            (Cell::Lstm, Way::Cell, None) => self.cells(program),
            (Cell::Lstm, Way::Sequence, Some(normed)) => self.norm_sequence(program, normed),
            (Cell::Lstm, Way::Sequence, None) => self.sequence(program),
            (Cell::Lstm, Way::Cluster | Way::Grid, _) => self.spread(program),
        }
    }

    /// da in place of the gates, dh0 and dc0; then the gradients by the parameters.
    pub(crate) fn backward(
        &self,
        program: &mut Program,
        upstream: Upstream<'_>,
        gradients: &Weights,
        head: &HeadSums,
    ) -> Result<(), Error> {
        match (self.sizes.cell, self.sizes.way, &self.normed) {
            (Cell::Gru, ..) => self.gru_cells_back(program, upstream)?,
            (Cell::Lstm, Way::Cell, Some(normed)) => {
                self.norm_cells_back(program, normed, upstream)?;
            }
            (Cell::Lstm, Way::Cell, None) => self.cells_back(program, upstream)?,
            (Cell::Lstm, Way::Sequence, Some(normed)) => {
                self.norm_sequence_back(program, normed, upstream)?;
            }
            (Cell::Lstm, Way::Sequence, None) => self.sequence_back(program, upstream)?,
            (Cell::Lstm, Way::Cluster | Way::Grid, _) => self.spread_back(program, upstream)?,
        }
        self.parameter_gradients(program, gradients, head)
    }
}
