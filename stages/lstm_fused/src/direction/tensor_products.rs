//! The products over all steps by wgmma and TMA: what x adds to the gates, and the gradients by weights and by x.

use lab_device::{DType, Kernel, KernelSource, Launch, Swizzle, TensorMap};
use lab_harness::plan::{Plan, Slot};
use lab_harness::{Error, Operand, arguments};

use super::tensor_slots::{TensorSlots, WideSlots, has_products, wide_columns};
use super::{Direction, Sizes, Weights, blocks};
use crate::Way;
use crate::kernels::{COLUMNS, V4_PRODUCT, V4_PRODUCT_BACK};

/// Of a unit.
const GATES: usize = 4;

/// A matrix \[rows, columns\] of the run's type.
fn matrix(sizes: Sizes, rows: usize, columns: usize) -> Operand {
    Operand::new(sizes.dtype, [rows, columns])
}

/// A kernel of one of the products, and the height, width and depth of its tiles.
///
/// # Errors
/// It does not compile on this device.
///
/// # Panics
/// The file has no such kernel of this type.
pub fn product(
    plan: &Plan,
    source: &'static KernelSource,
    name: &str,
    dtype: DType,
) -> Result<(Kernel, [usize; 3]), Error> {
    let mut all = source.instances(name);
    let instance = all.find(|i| i.has("T", dtype.cpp())).expect("of each type of halves");
    Ok((plan.device().load(instance)?, ["BM", "BN", "BK"].map(|name| instance.size(name))))
}

/// Bytes of what has other columns than a network of so many inputs, in a run with the way back.
pub(crate) fn wide_bytes(
    way: Way,
    dtype: DType,
    rows: usize,
    [inputs, hidden, directions]: [usize; 3],
) -> usize {
    if !has_products(way, hidden) || inputs.is_multiple_of(8) {
        return 0;
    }
    let of_direction = rows + 2 * GATES * hidden;
    dtype.size() * wide_columns(inputs) * (directions * of_direction + rows)
}

impl Direction {
    /// Whether the gradients by weights and by x are products by wgmma.
    pub(super) fn has_gradient_products(&self) -> bool {
        has_products(self.sizes.way, self.sizes.hidden)
    }

    /// A matrix with another number of columns; of x without what stands behind the rows' ends.
    fn add_other_columns(
        &self,
        plan: &mut Plan,
        [from, to]: [Slot; 2],
        rows: usize,
        [from_columns, to_columns]: [usize; 2],
        masked: bool,
    ) -> Result<(), Error> {
        let kernel = self.kernel(plan, &COLUMNS, "other_columns", "")?;
        let launch = kernel.grid_over(rows * to_columns)?;
        let arguments = arguments![from, to, rows, from_columns, to_columns, masked];
        plan.launch_in(&self.scope, &kernel, launch, arguments)
    }

    /// What x adds to the gates of all steps, the gates of a unit side by side, where TMA can load and store;
    /// elsewhere by other means.
    pub(super) fn add_product(&self, plan: &mut Plan) -> Result<(), Error> {
        let Sizes { dtype, hidden, .. } = self.sizes;
        let [rows, weights] = [self.sizes.rows(), self.sizes.weights()];
        let WideSlots { x: wide_x, weights: wide_weights } = self.tensor_slots().wide;
        let inputs = if wide_weights.is_some() { wide_columns(self.columns) } else { self.columns };
        // Rows are multiples of 16 bytes.
        if !inputs.is_multiple_of(8) || !hidden.is_multiple_of(2) {
            return self.add_projection_by_units(plan);
        }
        let both = [self.columns, inputs];
        if let Some(to) = wide_x {
            self.add_other_columns(plan, [self.x, to], rows, both, true)?;
        }
        if let Some([to, _]) = wide_weights {
            self.add_other_columns(plan, [self.weight_ih, to], weights, both, false)?;
        }
        let (kernel, [high, wide, deep]) = product(plan, &V4_PRODUCT, "gates_of_x", dtype)?;
        let x = matrix(self.sizes, rows, inputs).loaded(high)?;
        // Gate by gate, of each unit: the rows of a gate lie H apart.
        let bytes = inputs * dtype.size();
        let w = TensorMap::new(dtype, &[inputs, GATES, hidden], &[deep, GATES, wide / GATES])?;
        let w = w.strides(&[hidden * bytes, bytes])?.swizzle(Swizzle::Bytes128);
        let stored = matrix(self.sizes, rows, weights).stored()?;

        let tiles = blocks(rows, high) * blocks(weights, wide);
        let launch = self.launch_of_products(plan, &kernel, tiles)?;
        let arguments = arguments![
            I: inputs,
            X: wide_x.unwrap_or(self.x).loaded_by(x),
            W: wide_weights.map_or(self.weight_ih, |[weights, _]| weights).loaded_by(w),
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
        let Sizes { dtype, batch, hidden, directions, .. } = self.sizes;
        let TensorSlots { ax, first_da, y, h0, wide: slots, .. } = self.tensor_slots();
        let [rows, weights, columns] =
            [self.sizes.rows(), self.sizes.weights(), wide_columns(self.columns)];
        let tiles_of = |[high, wide, _]: [usize; 3]| {
            blocks(weights, high) * (blocks(columns, wide) + blocks(hidden, wide))
        };
        let whole = product(plan, &V4_PRODUCT_BACK, "weight_gradients", dtype)?;
        let split = product(plan, &V4_PRODUCT_BACK, "split_weight_gradients", dtype)?;
        let parts = parts_of_tiles(plan, [tiles_of(whole.1), tiles_of(split.1)], rows, split.1[2]);
        let (kernel, sides) = if parts > 1 { split } else { whole };
        let panels = |columns, rows| matrix(self.sizes, rows, columns).loaded(sides[2]);
        let (dweight_ih, dweight_hh) = (gradients["weight_ih"], gradients["weight_hh"]);
        let wide_dweight = slots.weights.map_or(dweight_ih, |[_, gradient]| gradient);
        let read = arguments![
            DA: ax.loaded_by(panels(weights, rows)?),
            X: slots.x.unwrap_or(self.x).loaded_by(panels(columns, rows)?),
            Y: y.loaded_by(panels(hidden * directions, rows)?),
            FIRST: first_da.loaded_by(panels(weights, batch)?),
            H0: h0.loaded_by(panels(hidden, batch)?),
        ];
        // C is what the kernel multiplies, and not all of it is x.
        let scope = self.scope.clone().with(read).with(arguments![C: columns]);
        if parts > 1 {
            let launch = kernel.grid([tiles_of(sides) * parts, 1, 1])?.cluster(parts);
            let written = arguments![dweight_ih: wide_dweight, dweight_hh];
            plan.launch_in(&scope, &kernel, launch, written)?;
        } else {
            let launch = self.launch_of_products(plan, &kernel, tiles_of(sides))?;
            let written = arguments![
                DW_IH: wide_dweight.stored_by(matrix(self.sizes, weights, columns).stored()?),
                DW_HH: dweight_hh.stored_by(matrix(self.sizes, weights, hidden).stored()?),
            ];
            plan.launch_in(&scope, &kernel, launch, written)?;
        }
        if slots.weights.is_some() {
            let ends = [wide_dweight, dweight_ih];
            self.add_other_columns(plan, ends, weights, [columns, self.columns], false)?;
        }
        Ok(())
    }
}

/// How many blocks share the steps of a wide tile, so that all multiprocessors have work for as long; 1 for whole narrow
/// tiles. A round of whole wide tiles is the unit of time: narrow ones take a little more than half of it.
fn parts_of_tiles(plan: &Plan, [narrow, wide]: [u32; 2], rows: usize, deep: usize) -> u32 {
    const OF_A_NARROW_TILE: f64 = 0.62;
    let multiprocessors = plan.device().facts().multiprocessors;
    let rounds = |tiles: u32, at_once: u32| f64::from(tiles.div_ceil(at_once.max(1)));
    let mut best = (rounds(narrow, multiprocessors) * OF_A_NARROW_TILE, 1);
    for parts in [2, 4] {
        let time = rounds(wide, multiprocessors / parts) / f64::from(parts);
        // Each block has two steps, at least.
        if rows.div_ceil(deep) >= 2 * parts as usize && time < best.0 {
            best = (time, parts);
        }
    }
    best.1
}

/// dx of a layer, from da of its one direction or of both.
pub(super) fn add_input_product(
    plan: &mut Plan,
    one: &Direction,
    other: &Direction,
    both: bool,
    dx: Slot,
) -> Result<(), Error> {
    let (sizes, columns) = (one.sizes, wide_columns(one.columns));
    let (kernel, [high, wide, deep]) =
        product(plan, &V4_PRODUCT_BACK, "gradient_by_x", sizes.dtype)?;
    let da = matrix(sizes, sizes.rows(), sizes.weights()).loaded(high)?;
    let weights = matrix(sizes, sizes.weights(), columns).loaded(deep)?;
    let weights_of = |of: &Direction| {
        of.tensor_slots().wide.weights.map_or(of.weight_ih, |[weights, _]| weights)
    };
    let wide_dx =
        if columns == one.columns { dx } else { plan.scratch(sizes.dtype, sizes.rows() * columns) };
    let arguments = arguments![
        DA: one.tensor_slots().ax.loaded_by(da),
        W: weights_of(one).loaded_by(weights),
        DA_REVERSE: other.tensor_slots().ax.loaded_by(da),
        W_REVERSE: weights_of(other).loaded_by(weights),
        DX: wide_dx.stored_by(matrix(sizes, sizes.rows(), columns).stored()?),
        both,
    ];
    let tiles = blocks(sizes.rows(), high) * blocks(columns, wide);
    let launch = one.launch_of_products(plan, &kernel, tiles)?;
    let scope = one.scope.clone().with(arguments![C: columns]);
    plan.launch_in(&scope, &kernel, launch, arguments)?;
    if columns != one.columns {
        let both = [columns, one.columns];
        one.add_other_columns(plan, [wide_dx, dx], sizes.rows(), both, false)?;
    }
    Ok(())
}
