//! The products over all steps by wgmma and TMA: what x adds to the gates, and the gradients by weights and by x.

use lab_device::{Kernel, KernelSource, Launch, Swizzle, TensorMap};
use lab_harness::plan::{Plan, Slot};
use lab_harness::{Error, arguments};

use super::tensor::TensorSlots;
use super::{Direction, Sizes, Weights, blocks};
use crate::Way;
use crate::kernels::{V4_PRODUCT, V4_PRODUCT_BACK};

/// Of a unit.
const GATES: usize = 4;

/// Bytes of a row of a box, and of its swizzle; rows of a box of results, those of a warpgroup.
const SPAN: usize = 128;
const STORED_ROWS: usize = 64;

/// How a matrix is loaded or stored: boxes of rows of [`SPAN`] bytes, so many.
fn matrix(sizes: Sizes, columns: usize, rows: usize, high: usize) -> Result<TensorMap, Error> {
    let wide = SPAN / sizes.dtype.size();
    Ok(TensorMap::new(sizes.dtype, &[columns, rows], &[wide, high])?.swizzle(Swizzle::Bytes128))
}

/// The same of results, a matrix of several.
fn results(sizes: Sizes, columns: usize, rows: usize) -> Result<TensorMap, Error> {
    let wide = SPAN / sizes.dtype.size();
    let map = TensorMap::new(sizes.dtype, &[columns, rows, 1], &[wide, STORED_ROWS, 1])?;
    Ok(map.swizzle(Swizzle::Bytes128))
}

/// A kernel of one of the products, and the height, width and depth of its tiles.
fn product(
    plan: &Plan,
    source: &'static KernelSource,
    name: &str,
    sizes: Sizes,
) -> Result<(Kernel, [usize; 3]), Error> {
    let mut all = source.instances(name);
    let instance = all.find(|i| i.has("T", sizes.dtype.cpp())).expect("of each type of halves");
    Ok((plan.device().load(instance)?, ["BM", "BN", "BK"].map(|name| instance.size(name))))
}

impl Direction {
    /// Whether the gradients by weights and by x are products by wgmma: rows are multiples of 16 bytes.
    pub(super) fn has_gradient_products(&self) -> bool {
        let Sizes { way, hidden, .. } = self.sizes;
        way == Way::TensorProduct && self.columns.is_multiple_of(8) && hidden.is_multiple_of(8)
    }

    /// What x adds to the gates of all steps, the gates of a unit side by side, where TMA can load and store;
    /// elsewhere by other means.
    pub(super) fn add_product(&self, plan: &mut Plan) -> Result<(), Error> {
        let Sizes { dtype, hidden, .. } = self.sizes;
        let [rows, weights, inputs] = [self.sizes.rows(), self.sizes.weights(), self.columns];
        // Rows are multiples of 16 bytes.
        if !inputs.is_multiple_of(8) || !hidden.is_multiple_of(2) {
            return self.add_projection_by_units(plan);
        }
        let (kernel, [high, wide, deep]) = product(plan, &V4_PRODUCT, "gates_of_x", self.sizes)?;
        let x = matrix(self.sizes, inputs, rows, high)?;
        // Gate by gate, of each unit: the rows of a gate lie H apart.
        let bytes = inputs * dtype.size();
        let w = TensorMap::new(dtype, &[inputs, GATES, hidden], &[deep, GATES, wide / GATES])?;
        let w = w.strides(&[hidden * bytes, bytes])?.swizzle(Swizzle::Bytes128);
        let stored = results(self.sizes, weights, rows)?;

        let tiles = blocks(rows, high) * blocks(weights, wide);
        let launch = self.launch_of_products(plan, &kernel, tiles)?;
        let arguments = arguments![
            X: self.x.loaded_by(x),
            W: self.weight_ih.loaded_by(w),
            AX: self.tensor_slots().ax.stored_by(stored),
        ];
        plan.launch_in(&self.scope, &kernel, launch, arguments)
    }

    /// A block for each of so many tiles, or for each multiprocessor.
    fn launch_of_products(
        &self,
        plan: &Plan,
        kernel: &Kernel,
        tiles: u32,
    ) -> Result<Launch, Error> {
        Ok(kernel.grid([tiles.min(plan.device().facts().multiprocessors), 1, 1])?)
    }

    /// The gradients by both matrices of weights.
    pub(super) fn add_weight_products(
        &self,
        plan: &mut Plan,
        gradients: &Weights,
    ) -> Result<(), Error> {
        let Sizes { batch, hidden, directions, .. } = self.sizes;
        let TensorSlots { ax, first_da, y, h0, .. } = self.tensor_slots();
        let [rows, weights, columns] = [self.sizes.rows(), self.sizes.weights(), self.columns];
        let x = self.live_inputs(plan)?;
        let (kernel, [high, wide, deep]) =
            product(plan, &V4_PRODUCT_BACK, "weight_gradients", self.sizes)?;
        let panels = |columns, rows| matrix(self.sizes, columns, rows, deep);
        let (dweight_ih, dweight_hh) = (gradients["weight_ih"], gradients["weight_hh"]);
        let arguments = arguments![
            DA: ax.loaded_by(panels(weights, rows)?),
            X: x.loaded_by(panels(columns, rows)?),
            Y: y.loaded_by(panels(hidden * directions, rows)?),
            FIRST: first_da.loaded_by(panels(weights, batch)?),
            H0: h0.loaded_by(panels(hidden, batch)?),
            DW_IH: dweight_ih.stored_by(results(self.sizes, columns, weights)?),
            DW_HH: dweight_hh.stored_by(results(self.sizes, hidden, weights)?),
        ];
        let tiles = blocks(weights, high) * (blocks(columns, wide) + blocks(hidden, wide));
        let launch = self.launch_of_products(plan, &kernel, tiles)?;
        plan.launch_in(&self.scope, &kernel, launch, arguments)
    }

    /// x without what stands behind the rows' ends, where they may have other lengths than all.
    fn live_inputs(&self, plan: &mut Plan) -> Result<Slot, Error> {
        if !self.sizes.ragged {
            return Ok(self.x);
        }
        let live_x = plan.scratch(self.sizes.dtype, self.sizes.rows() * self.columns);
        let kernel = self.kernel(plan, &V4_PRODUCT_BACK, "live_inputs", "")?;
        let launch = kernel.grid_over(self.sizes.rows() * self.columns / 8)?;
        plan.launch_in(&self.scope, &kernel, launch, arguments![live_x])?;
        Ok(live_x)
    }
}

/// dx of a layer, from da of its one direction or of both.
pub(super) fn add_input_product(
    plan: &mut Plan,
    one: &Direction,
    other: &Direction,
    both: bool,
    dx: Slot,
) -> Result<(), Error> {
    let (sizes, columns) = (one.sizes, one.columns);
    let (kernel, [high, wide, deep]) = product(plan, &V4_PRODUCT_BACK, "gradient_by_x", sizes)?;
    let da = matrix(sizes, sizes.weights(), sizes.rows(), high)?;
    let weights = matrix(sizes, columns, sizes.weights(), deep)?;
    let arguments = arguments![
        DA: one.tensor_slots().ax.loaded_by(da),
        W: one.weight_ih.loaded_by(weights),
        DA_REVERSE: other.tensor_slots().ax.loaded_by(da),
        W_REVERSE: other.weight_ih.loaded_by(weights),
        DX: dx.stored_by(results(sizes, columns, sizes.rows())?),
        both,
    ];
    let tiles = blocks(sizes.rows(), high) * blocks(columns, wide);
    let launch = one.launch_of_products(plan, &kernel, tiles)?;
    plan.launch_in(&one.scope, &kernel, launch, arguments)
}
