//! The launches that need no order of steps: what x adds to the gates, the gates once more, and the
//! gradients by x and by the parameters.

use lab_device::{DType, Kernel, Launch};
use lab_harness::plan::{Argument, Arguments, Plan, Slot};
use lab_harness::{Error, arguments, named};

use super::tensor_products::add_input_product;
use super::{Direction, Sizes, Weights, blocks, kernel};
use crate::kernels::{INPUT_GRADIENT, PARAMETER_GRADIENT, PROJECTION, PROMISE, VECTOR_GRADIENT};

/// Rows and columns of a tile of the products, columns of a block of the sums.
const TILE: usize = 32;

/// Columns of x that a launch for all steps multiplies by itself, `Added::FEW` of lstm.cuh; and of which
/// a warp has each result of dx.
pub(super) const FEW_COLUMNS: usize = 2;

/// What the head on the last layer wants of the launch of all sums: its gradients, and the loss.
#[derive(Clone, Copy, Debug)]
pub struct HeadSums {
    /// The gradient by its outputs, \[`dz_rows`, O\]: of each row or, of several together, the sum.
    pub dz: Slot,
    /// [`HeadSums::rows`], or fewer.
    pub dz_rows: usize,
    /// The loss of each row, f64.
    pub row_losses: Slot,
    /// Where training stands, [`lab_harness::progress`].
    pub counts: Slot,
    /// The gradient by its weight, \[O, H·dirs\].
    pub weight: Slot,
    /// Whether that is computed here, and not by others.
    pub by_weight: bool,
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
    pub(crate) fn none(plan: &mut Plan, sizes: Sizes) -> Self {
        let mut one = |dtype| plan.scratch(dtype, 1);
        Self {
            dz: one(sizes.arithmetic()),
            dz_rows: 0,
            row_losses: one(DType::F64),
            counts: one(DType::I64),
            weight: one(sizes.dtype),
            by_weight: true,
            bias: one(sizes.dtype),
            losses: one(DType::F64),
            from: 0,
            rows: 0,
            outputs: 0,
        }
    }

    /// Of y of so many columns, those that its gradient by the weight is summed up for.
    fn columns(&self, of_y: usize) -> usize {
        if self.by_weight { of_y } else { 0 }
    }

    /// Blocks of its gradients, of y of so many columns, and of the loss.
    fn blocks(&self, of_y: usize) -> u32 {
        match self.outputs {
            0 => 0,
            outputs => blocks(outputs, TILE) * (blocks(self.columns(of_y), TILE) + 1) + 1,
        }
    }

    /// Under the names of the kernel's parameters.
    fn arguments(&self, of_y: usize) -> [(&'static str, Argument); 11] {
        let Self { dz, dz_rows, row_losses, counts, bias, losses, from, rows, outputs, .. } = *self;
        named![
            dz, dz_rows, row_losses, counts, dhead_weight: self.weight, dhead_bias: bias,
            losses, from, head_rows: rows, O: outputs, K: self.columns(of_y),
        ]
    }
}

/// A block a tile of so many rows and columns.
pub(super) fn launch_of_tiles(
    kernel: &Kernel,
    rows: usize,
    columns: usize,
) -> Result<Launch, Error> {
    Ok(kernel.grid([blocks(rows, TILE), blocks(columns, TILE), 1])?)
}

/// A block for the sums of 32 columns.
fn launch_of_columns(kernel: &Kernel, columns: usize) -> Result<Launch, Error> {
    Ok(kernel.grid([blocks(columns, TILE), 1, 1])?)
}

impl Direction {
    /// Sees to what x adds to the gates of all steps. Gives the columns of x by which the launch for all
    /// steps multiplies by itself: all where they are few; else 0, and a launch that leaves the sums in the
    /// gates' place.
    pub(super) fn add_projection(&self, plan: &mut Plan) -> Result<usize, Error> {
        if self.columns <= FEW_COLUMNS {
            return Ok(self.columns);
        }
        self.add_product_with_x(plan)?;
        Ok(0)
    }

    /// What x adds to the gates of all steps, in their place.
    pub(super) fn add_product_with_x(&self, plan: &mut Plan) -> Result<(), Error> {
        let gates = self.sizes.gates_argument();
        let projection = self.kernel(plan, &PROJECTION, "projection", gates)?;
        let launch = launch_of_tiles(&projection, self.sizes.rows(), self.sizes.weights())?;
        plan.launch_in(&self.scope, &projection, launch, arguments![])
    }

    /// The gates of all steps once more, from h and c, where another layer's have taken their place.
    pub(crate) fn add_gates_again(&self, plan: &mut Plan) -> Result<(), Error> {
        let again = self.kernel(plan, &PROJECTION, "gates_again", "")?;
        let launch = launch_of_tiles(&again, self.sizes.rows(), self.sizes.weights())?;
        plan.launch_in(&self.scope, &again, launch, arguments![])
    }

    /// The gradients by all parameters, and those of the head.
    pub(super) fn add_parameter_gradients(
        &self,
        plan: &mut Plan,
        gradients: &Weights,
        head: &HeadSums,
    ) -> Result<(), Error> {
        self.add_matrix_gradients(plan, gradients, head)?;
        if self.sizes.layer_norm.is_some() {
            let kernel = self.kernel(plan, &VECTOR_GRADIENT, "norm_gradient", "")?;
            let arguments = arguments![
                dweight: gradients["ln_weight"],
                dbias: gradients["ln_bias"],
                dc_weight: gradients["ln_c_weight"],
                dc_bias: gradients["ln_c_bias"],
            ];
            let launch = launch_of_columns(&kernel, 5 * self.sizes.hidden)?;
            plan.launch_in(&self.scope, &kernel, launch, arguments)?;
        }
        if self.sizes.peephole {
            let kernel = self.kernel(plan, &VECTOR_GRADIENT, "peephole_gradient", "")?;
            let [di, df, d_o] =
                ["peephole_i", "peephole_f", "peephole_o"].map(|name| gradients[name]);
            let launch = launch_of_columns(&kernel, self.sizes.hidden)?;
            plan.launch_in(&self.scope, &kernel, launch, arguments![di, df, d_o])?;
        }
        Ok(())
    }

    /// Those by matrices and biases in one launch; those by matrices in one of their own where they are products by
    /// wgmma.
    fn add_matrix_gradients(
        &self,
        plan: &mut Plan,
        gradients: &Weights,
        head: &HeadSums,
    ) -> Result<(), Error> {
        let Sizes { dtype, batch, hidden, directions, .. } = self.sizes;
        // Those by biases that are not there are not written.
        let [dbias_ih, dbias_hh] = ["bias_ih", "bias_hh"]
            .map(|name| gradients.get(name).copied().unwrap_or_else(|| plan.scratch(dtype, 1)));
        let kernel = self.kernel(plan, &PARAMETER_GRADIENT, "parameter_gradient", "")?;
        let columns = blocks(self.columns, TILE) + blocks(hidden, TILE);
        let biased = gradients.contains_key("bias_ih");
        let of_weights = blocks(4 * hidden, TILE) * columns;
        // Where others multiply, what is left are sums of da, of rows that have been summed up over all steps.
        let mut scope = self.scope.clone().with(arguments![first: 0usize]);
        let mut grid = blocks(4 * hidden, TILE) * u32::from(biased);
        if self.has_gradient_products() {
            self.add_weight_products(plan, gradients)?;
            let da = self.tensor_slots().bias_sums;
            scope = scope.with(arguments![da, rows: batch, first: of_weights as usize]);
        } else {
            grid += of_weights;
        }
        grid += head.blocks(hidden * directions);
        let (dweight_ih, dweight_hh) = (gradients["weight_ih"], gradients["weight_hh"]);
        let own = named![dweight_ih, dweight_hh, dbias_ih, dbias_hh];
        let all = own.into_iter().chain(head.arguments(hidden * directions));
        if grid == 0 {
            return Ok(());
        }
        plan.launch_in(&scope, &kernel, kernel.grid([grid, 1, 1])?, Arguments::new(PROMISE, all))
    }
}

impl Direction {
    /// That by `weight_ih` alone, and those of the head, which stand behind others in the grid of the same kernel.
    pub(super) fn add_gradient_by_weight_ih(
        &self,
        plan: &mut Plan,
        gradients: &Weights,
        head: &HeadSums,
    ) -> Result<(), Error> {
        let Sizes { dtype, hidden, directions, .. } = self.sizes;
        let gates = self.sizes.gates_argument();
        let kernel = self.kernel(plan, &PARAMETER_GRADIENT, "parameter_gradient", gates)?;
        let [dweight_hh, dbias_ih, dbias_hh] = [(); 3].map(|()| plan.scratch(dtype, 1));
        let dweight_ih = gradients["weight_ih"];
        let written = arguments![dweight_ih, dweight_hh, dbias_ih, dbias_hh];
        let scope = self.scope.clone().with(written).with(head.arguments(hidden * directions));
        let tiles = blocks(4 * hidden, TILE);
        let by_x = tiles * blocks(self.columns, TILE);
        let of_network = by_x + tiles * blocks(hidden, TILE);
        for (first, grid) in [(0, by_x), (of_network, head.blocks(hidden * directions))] {
            if grid > 0 {
                plan.launch_in(&scope, &kernel, kernel.grid([grid, 1, 1])?, arguments![first])?;
            }
        }
        Ok(())
    }
}

/// Adds the launch of dx of a layer, from da of all its directions.
pub(crate) fn add_input_gradient(
    plan: &mut Plan,
    directions: &[Direction],
    dx: Slot,
) -> Result<(), Error> {
    let (Some(one), Some(other)) = (directions.first(), directions.last()) else { return Ok(()) };
    if one.has_gradient_products() {
        return add_input_product(plan, one, other, directions.len() > 1, dx);
    }
    let (sizes, columns) = (one.sizes, one.columns);
    let (rows, few) = (sizes.rows(), columns <= FEW_COLUMNS);
    let name = if few { "narrow_input_gradient" } else { "input_gradient" };
    let gates = sizes.gates_argument();
    let kernel = kernel(plan.device(), &INPUT_GRADIENT, name, sizes.dtype, gates)?;
    let launch = if few {
        kernel.grid_over(32 * rows * columns)?
    } else {
        // a warp a result
        launch_of_tiles(&kernel, rows, columns)?
    };
    let arguments = arguments![
        da_reverse: other.gates,
        weight_ih_reverse: other.weight_ih,
        dx,
        both: directions.len() > 1,
    ];
    plan.launch_in(&one.scope, &kernel, launch, arguments)
}
