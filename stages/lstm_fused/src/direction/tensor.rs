//! The launches of a direction whose products with h are on tensor cores.

use lab_device::{DType, Instance, Kernel, KernelSource, Launch, Swizzle, TensorMap};
use lab_harness::plan::{Plan, Scope, Slot};
use lab_harness::{Error, arguments};

use super::products::launch_of_tiles;
use super::{Direction, Sizes, blocks};
use crate::Way;
use crate::kernels::{PROJECTION, V3_TENSOR, V3_TENSOR_BACK, V4_PRODUCT};

/// The most units: sixteen blocks a cluster, whose registers and shared memory have all weights.
pub(crate) const MOST_TENSOR_UNITS: usize = 768;

/// Of a unit.
const GATES: usize = 4;

/// Bytes of a row of a box, and of its swizzle; rows of a box of results, those of a warpgroup.
const SPAN: usize = 128;
const STORED_ROWS: usize = 64;

/// Of the instantiations with room for H units, those with the fewest; of these the one whose clusters take the least
/// time for B rows, one wave of resident clusters after the other. A step of eight rows is mostly the exchange; each
/// further eight add half as much again.
fn instance_for(
    (source, name): (&'static KernelSource, &str),
    dtype: DType,
    hidden: usize,
    batch: usize,
    multiprocessors: usize,
) -> Option<Instance> {
    let all = || source.instances(name).filter(|i| i.has("T", dtype.cpp()));
    let units = all().map(|i| i.size("HT")).filter(|&units| hidden <= units).min()?;
    let time = |i: &Instance| {
        let (blocks, rows) = (i.size("BLOCKS"), i.size("ROWS"));
        // One cluster fewer than there is room for: not all multiprocessors lie in groups of so many.
        let resident = (multiprocessors.saturating_sub(blocks) / blocks).max(1);
        batch.div_ceil(rows).div_ceil(resident) * (1 + rows.div_ceil(8))
    };
    all().filter(|i| i.size("HT") == units).min_by_key(time)
}

/// The kernels of all steps.
const FORTH: (&KernelSource, &str) = (&V3_TENSOR, "lstm_tensor");
const BACK: (&KernelSource, &str) = (&V3_TENSOR_BACK, "lstm_tensor_back");

/// What a direction on tensor cores has of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorSlots {
    /// What x adds to the gates of all steps, \[T, B, H, 4\], in the type.
    ax: Slot,
    /// da of each row's first step, \[B, 4H\], in the type; and of all its steps together, in f32.
    first_da: Slot,
    bias_sums: Slot,
}

impl TensorSlots {
    /// Bytes of a run with the way back.
    pub(crate) fn bytes(dtype: DType, rows: usize, batch: usize, hidden: usize) -> usize {
        4 * hidden * (dtype.size() * (rows + batch) + 4 * batch)
    }

    pub(super) fn new(plan: &mut Plan, sizes: Sizes) -> Self {
        let of_batch = if sizes.keep { sizes.batch * sizes.weights() } else { 1 };
        Self {
            ax: plan.scratch(sizes.dtype, sizes.rows() * sizes.weights()),
            first_da: plan.scratch(sizes.dtype, of_batch),
            bias_sums: plan.scratch(DType::F32, of_batch),
        }
    }
}

impl Direction {
    /// A cluster for some rows of the batch.
    fn tensor_launch(
        &self,
        plan: &Plan,
        kernel: (&'static KernelSource, &str),
    ) -> Result<(Kernel, Launch), Error> {
        let Sizes { dtype, batch, hidden, .. } = self.sizes;
        if ![DType::F16, DType::BF16].contains(&dtype) {
            return Err(Error::bad("dtype", "f16 or bf16 on tensor cores", dtype));
        }
        let multiprocessors = plan.device().facts().multiprocessors as usize;
        let instance = instance_for(kernel, dtype, hidden, batch, multiprocessors);
        let instance = instance.expect("as many units as were checked");
        let [blocks, rows] = [instance.size("BLOCKS"), instance.size("ROWS")];
        let kernel = plan.device().load(instance)?;
        let clusters = batch.div_ceil(rows);
        let launch = kernel.grid([(clusters * blocks) as u32, 1, 1])?.cluster(blocks as u32);
        if kernel.resident_clusters(&launch)? == 0 {
            let expected = format!("clusters of {blocks} blocks on this device");
            return Err(Error::bad("hidden", expected, hidden));
        }
        Ok((kernel, launch))
    }

    /// What x adds to the gates of all steps, the gates of a unit side by side, in the type itself.
    fn add_projection_by_units(&self, plan: &mut Plan) -> Result<(), Error> {
        let projection = self.kernel(plan, &PROJECTION, "projection_by_units", "")?;
        let launch = launch_of_tiles(&projection, self.sizes.rows(), self.sizes.weights())?;
        plan.launch_in(&self.scope, &projection, launch, arguments![ax: self.tensor_slots().ax])
    }

    /// The same by wgmma, where TMA can load and store.
    fn add_product(&self, plan: &mut Plan) -> Result<(), Error> {
        let Sizes { dtype, hidden, .. } = self.sizes;
        let [rows, weights, inputs] = [self.sizes.rows(), self.sizes.weights(), self.columns];
        // Rows are multiples of 16 bytes.
        if !inputs.is_multiple_of(8) || !hidden.is_multiple_of(2) {
            return self.add_projection_by_units(plan);
        }
        let mut all = V4_PRODUCT.instances("gates_of_x");
        let instance = all.find(|i| i.has("T", dtype.cpp())).expect("of each type of halves");
        let [high, wide, deep] = ["BM", "BN", "BK"].map(|name| instance.size(name));
        let kernel = plan.device().load(instance)?;
        let boxes = |sizes: &[usize], extents: &[usize]| TensorMap::new(dtype, sizes, extents);
        let swizzle = Swizzle::Bytes128;
        let x = boxes(&[inputs, rows], &[deep, high])?.swizzle(swizzle);
        // Gate by gate, of each unit: the rows of a gate lie H apart.
        let bytes = inputs * dtype.size();
        let w = boxes(&[inputs, GATES, hidden], &[deep, GATES, wide / GATES])?;
        let w = w.strides(&[hidden * bytes, bytes])?.swizzle(swizzle);
        let stored =
            boxes(&[weights, rows, 1], &[SPAN / dtype.size(), STORED_ROWS, 1])?.swizzle(swizzle);

        let tiles = blocks(rows, high) * blocks(weights, wide);
        let launch = kernel.grid([tiles.min(plan.device().facts().multiprocessors), 1, 1])?;
        let arguments = arguments![
            X: self.x.loaded_by(x),
            W: self.weight_ih.loaded_by(w),
            AX: self.tensor_slots().ax.stored_by(stored),
        ];
        plan.launch_in(&self.scope, &kernel, launch, arguments)
    }

    pub(super) fn add_tensor(&self, plan: &mut Plan) -> Result<(), Error> {
        let (kernel, launch) = self.tensor_launch(plan, FORTH)?;
        match self.sizes.way {
            Way::TensorProduct => self.add_product(plan)?,
            _ => self.add_projection_by_units(plan)?,
        }
        plan.launch_in(&self.scope, &kernel, launch, arguments![ax: self.tensor_slots().ax])
    }

    /// da in place of the gates, dh0 and dc0.
    pub(super) fn add_tensor_back(&self, plan: &mut Plan, scope: &Scope) -> Result<(), Error> {
        let (kernel, launch) = self.tensor_launch(plan, BACK)?;
        let TensorSlots { ax, first_da, bias_sums } = self.tensor_slots();
        let arguments = arguments![da_halves: ax, first_da, bias_sums, halves: false];
        plan.launch_in(scope, &kernel, launch, arguments)
    }

    fn tensor_slots(&self) -> TensorSlots {
        self.tensor.expect("of a way on tensor cores")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Those that were the fastest of prototypes on an H200.
    #[test]
    fn the_rows_of_a_cluster_follow_the_batch() {
        let of = |batch, hidden| {
            let i = instance_for(FORTH, DType::BF16, hidden, batch, 132).unwrap();
            [i.size("HT"), i.size("BLOCKS"), i.size("ROWS")]
        };
        assert_eq!(of(16, 768), [768, 16, 4]);
        assert_eq!(of(64, 512), [512, 8, 8]);
        assert_eq!(of(256, 512), [512, 8, 18]);
        assert_eq!(of(1, 1)[0], 64);
        for kernel in [FORTH, BACK] {
            let of = |dtype, hidden| instance_for(kernel, dtype, hidden, 1, 132).is_some();
            assert!(of(DType::BF16, MOST_TENSOR_UNITS) && of(DType::F16, MOST_TENSOR_UNITS));
            assert!(!of(DType::BF16, MOST_TENSOR_UNITS + 1) && !of(DType::F32, 1));
        }
    }
}
