//! The launches that need no order of steps: what x adds to the gates, the gates once more, and the
//! gradients by x and by the parameters.

use lab_device::{DType, Launch};
use lab_harness::Error;
use lab_harness::program::{Program, Slot};

use super::arguments::{blocks, kernel};
use super::norm::Normed;
use super::{Direction, Sizes, Weights};
use crate::kernels::{INPUT_GRADIENT, PARAMETER_GRADIENT, PROJECTION, VECTOR_GRADIENT};

const THREADS: u32 = 256;

/// Rows and columns of a tile of the products, columns of a block of the sums.
const TILE: usize = 32;

/// Columns of x that a launch for all steps multiplies by itself, `Added::FEW` of lab/lstm.cuh; and of which
/// a warp has each result of dx.
pub(super) const FEW_COLUMNS: usize = 2;

/// What the head on the last layer wants of the launch of all sums: its gradients, and the loss.
#[derive(Clone, Copy, Debug)]
pub struct HeadSums {
    /// The gradient by its outputs, \[rows, O\].
    pub dz: Slot,
    /// The loss of each row, f64.
    pub row_losses: Slot,
    /// Where training stands, [`lab_harness::progress`].
    pub counts: Slot,
    /// The gradient by its weight, \[O, H·dirs\].
    pub weight: Slot,
    /// By its bias, \[O\].
    pub bias: Slot,
    /// The loss of each step of an epoch, f64.
    pub losses: Slot,
    /// The first row of y that it reads, of T·B.
    pub from: usize,
    /// Rows that it reads.
    pub rows: usize,
    /// Columns of z, O.
    pub outputs: usize,
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

/// A block a tile of so many rows and columns.
fn tiles(rows: usize, columns: usize) -> Launch {
    let grid = [blocks(rows, TILE), blocks(columns, TILE), 1];
    Launch::new_3d(grid, [THREADS, 1, 1])
}

/// A block for the sums of 32 columns.
fn of_columns(columns: usize) -> Launch {
    Launch::new(blocks(columns, TILE), THREADS)
}

/// A warp for each of so many results.
fn of_warps(results: usize) -> Launch {
    Launch::new(blocks(results, THREADS as usize / 32), THREADS)
}

impl Direction<'_> {
    /// Sees to what x adds to the gates of all steps: where x has few columns, the launch for all steps
    /// multiplies by so many itself; else this leaves the sums in the gates' place, for 0.
    pub(super) fn added(&self, program: &mut Program) -> Result<usize, Error> {
        if self.columns <= FEW_COLUMNS {
            return Ok(self.columns);
        }
        let (rows, gates) = (self.sizes.rows(), 4 * self.sizes.hidden);
        let projection = self.kernel(program, &PROJECTION, "projection", "")?;
        let arguments =
            self.arguments().by_x().write([self.gates]).sizes([rows, gates, self.columns]).biased();
        program.launch(projection, tiles(rows, gates), arguments);
        Ok(0)
    }

    /// The gates of all steps once more, from h and c, where another layer's have taken their place.
    pub(crate) fn gates_again(&self, program: &mut Program) -> Result<(), Error> {
        let Sizes { batch, hidden, peephole, .. } = self.sizes;
        let rows = self.sizes.rows();
        let again = self.kernel(program, &PROJECTION, "gates_again", "")?;
        let arguments = self
            .arguments()
            .by_step()
            .peepholes()
            .states()
            .read([self.y, self.c])
            .write([self.gates])
            .sizes([rows, batch, hidden, self.columns])
            .place()
            .biased()
            .flags([peephole]);
        program.launch(again, tiles(rows, 4 * hidden), arguments);
        Ok(())
    }

    /// The gradients by all parameters, and those of the head.
    pub(super) fn parameter_gradients(
        &self,
        program: &mut Program,
        gradients: &Weights,
        head: &HeadSums,
    ) -> Result<(), Error> {
        self.matrix_gradients(program, gradients, head)?;
        if let (Some(to), Some(normed)) = (gradients.norms, &self.normed) {
            self.norm_gradients(program, to, normed)?;
        }
        if let Some(to) = gradients.peepholes {
            self.peephole_gradients(program, to)?;
        }
        Ok(())
    }

    /// Those by matrices and biases in one launch.
    fn matrix_gradients(
        &self,
        program: &mut Program,
        gradients: &Weights,
        head: &HeadSums,
    ) -> Result<(), Error> {
        let Sizes { dtype, batch, hidden, directions, .. } = self.sizes;
        let biases = match gradients.biases {
            Some(biases) => biases,
            None => [program.scratch(dtype, 1)?, program.scratch(dtype, 1)?],
        };
        let kernel = self.kernel(program, &PARAMETER_GRADIENT, "parameter_gradient", "")?;
        let columns = blocks(self.columns, TILE) + blocks(hidden, TILE);
        let biased = gradients.biases.is_some();
        let mut grid = blocks(4 * hidden, TILE) * (columns + u32::from(biased));
        if head.outputs > 0 {
            grid += blocks(head.outputs, TILE) * (blocks(hidden * directions, TILE) + 1) + 1;
        }
        let arguments = self
            .arguments()
            .read([self.gates, self.x, self.y, self.common.h0, self.common.lengths])
            .write([gradients.ih, gradients.hh, biases[0], biases[1]])
            .read([head.dz, head.row_losses, head.counts])
            .write([head.weight, head.bias, head.losses])
            .sizes([self.sizes.rows(), batch, self.sizes.weights(), hidden, self.columns])
            .place()
            .flags([biased])
            .sizes([head.from, head.rows, head.outputs]);
        program.launch(kernel, Launch::new(grid, THREADS), arguments);
        Ok(())
    }

    fn norm_gradients(
        &self,
        program: &mut Program,
        to: [Slot; 4],
        normed: &Normed,
    ) -> Result<(), Error> {
        let Sizes { batch, hidden, .. } = self.sizes;
        let kernel = self.kernel(program, &VECTOR_GRADIENT, "norm_gradient", "")?;
        let arguments = self
            .arguments()
            .read([normed.d, normed.n, self.common.lengths])
            .write(to)
            .sizes([self.sizes.rows(), batch, hidden]);
        program.launch(kernel, of_columns(5 * hidden), arguments);
        Ok(())
    }

    fn peephole_gradients(&self, program: &mut Program, to: [Slot; 3]) -> Result<(), Error> {
        let Sizes { batch, hidden, .. } = self.sizes;
        let kernel = self.kernel(program, &VECTOR_GRADIENT, "peephole_gradient", "")?;
        let [c0, _] = self.common.of_lstm();
        let arguments = self
            .arguments()
            .read([self.gates, c0, self.c, self.common.lengths])
            .write(to)
            .sizes([self.sizes.rows(), batch, hidden])
            .state();
        program.launch(kernel, of_columns(hidden), arguments);
        Ok(())
    }
}

/// dx of a layer, from da of all its directions.
pub(crate) fn input_gradient(
    program: &mut Program,
    directions: &[Direction<'_>],
    dx: Slot,
) -> Result<(), Error> {
    let (Some(one), Some(other)) = (directions.first(), directions.last()) else { return Ok(()) };
    let (sizes, columns) = (one.sizes, one.columns);
    let (rows, few) = (sizes.rows(), columns <= FEW_COLUMNS);
    let (name, launch) = match few {
        true => ("narrow_input_gradient", of_warps(rows * columns)),
        false => ("input_gradient", tiles(rows, columns)),
    };
    let kernel = kernel(program.device(), &INPUT_GRADIENT, name, sizes.dtype, "")?;
    let arguments = one
        .arguments()
        .read([one.gates, one.weights.ih, other.gates, other.weights.ih])
        .write([dx])
        .sizes([rows, sizes.weights(), sizes.hidden, columns, directions.len() - 1]);
    program.launch(kernel, launch, arguments);
    Ok(())
}
