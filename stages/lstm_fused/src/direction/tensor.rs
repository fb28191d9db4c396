//! The launches of a direction whose products with h are on tensor cores.

use lab_device::{DType, Instance, Kernel, KernelSource, Launch, Swizzle, TensorMap};
use lab_harness::plan::{Arguments, Plan, Scope};
use lab_harness::{Error, arguments};

use super::products::launch_of_tiles;
use super::tensor_slots::TensorSlots;
use super::{Direction, Sizes};
use crate::Way;
use crate::kernels::{PROJECTION, V3_TENSOR, V3_TENSOR_BACK, V5_WGMMA, V6_WGMMA_BACK};

/// The most units: sixteen blocks a cluster, whose registers and shared memory have all weights.
pub(crate) const MOST_TENSOR_UNITS: usize = 768;

/// Of the instantiations with room for H units, those with the fewest; of these the one whose clusters take the least
/// time for B rows, one wave of resident clusters after the other. A step of eight rows is mostly the exchange; each
/// further eight add half as much again.
fn instance_for(
    kernel: (&'static KernelSource, &str),
    dtype: DType,
    hidden: usize,
    batch: usize,
    multiprocessors: usize,
) -> Option<Instance> {
    let time = |i: &Instance| waves(i, batch, multiprocessors) * (1 + i.size("ROWS").div_ceil(8));
    fastest_instance(kernel, dtype, hidden, time)
}

/// Of the instantiations with room for H units, those with the fewest; of these the one that takes the least time.
pub(super) fn fastest_instance(
    (source, name): (&'static KernelSource, &str),
    dtype: DType,
    hidden: usize,
    time: impl Fn(&Instance) -> usize,
) -> Option<Instance> {
    let all = || source.instances(name).filter(|i| i.has("T", dtype.cpp()));
    let units = all().map(|i| i.size("HT")).filter(|&units| hidden <= units).min()?;
    all().filter(|i| i.size("HT") == units).min_by_key(time)
}

/// How often all clusters that there is room for begin, for B rows.
fn waves(instance: &Instance, batch: usize, multiprocessors: usize) -> usize {
    let (blocks, rows) = (instance.size("BLOCKS"), instance.size("ROWS"));
    // One cluster fewer than there is room for: not all multiprocessors lie in groups of so many.
    let resident = (multiprocessors.saturating_sub(blocks) / blocks).max(1);
    batch.div_ceil(rows).div_ceil(resident)
}

/// The kernels of all steps.
const FORTH: (&KernelSource, &str) = (&V3_TENSOR, "lstm_tensor");
const WGMMA: (&KernelSource, &str) = (&V5_WGMMA, "lstm_wgmma");
const BACK: (&KernelSource, &str) = (&V3_TENSOR_BACK, "lstm_tensor_back");
const WGMMA_BACK: (&KernelSource, &str) = (&V6_WGMMA_BACK, "lstm_wgmma_back");

/// Up to four rows a cluster mma.sync takes half the time of wgmma, whose weights have at least eight columns to multiply:
/// as long as all such clusters find room at once.
fn has_few_rows(dtype: DType, hidden: usize, batch: usize, multiprocessors: usize) -> bool {
    let instance = instance_for(FORTH, dtype, hidden, batch, multiprocessors);
    instance.is_some_and(|i| i.size("ROWS") <= 4 && waves(&i, batch, multiprocessors) == 1)
}

/// Refuses a type that tensor cores do not take here.
///
/// # Errors
/// Neither f16 nor bf16.
pub fn check_halves(dtype: DType) -> Result<(), Error> {
    if [DType::F16, DType::BF16].contains(&dtype) {
        return Ok(());
    }
    Err(Error::bad("dtype", "f16 or bf16 on tensor cores", dtype))
}

impl Direction {
    /// A cluster for some rows of the batch.
    fn tensor_launch(
        &self,
        plan: &Plan,
        kernel: (&'static KernelSource, &str),
    ) -> Result<(Kernel, Launch, Instance), Error> {
        let Sizes { dtype, batch, hidden, .. } = self.sizes;
        check_halves(dtype)?;
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
        Ok((kernel, launch, instance))
    }

    /// What comes to the cells of a step and what leaves them, as TMA has it: lines of eight units of a row, in boxes of a
    /// block's units and a cluster's rows.
    fn cell_boxes(&self, instance: &Instance) -> Result<Arguments<'static>, Error> {
        const EIGHT: usize = 8;
        let Sizes { dtype, steps, batch, hidden, directions, keep, .. } = self.sizes;
        let [units, rows] = [instance.size("HT") / instance.size("BLOCKS"), instance.size("ROWS")];
        let lines = |dtype: DType, of_unit: usize, row_units: usize, swizzle: Swizzle| {
            let [line, row] = [EIGHT * of_unit, row_units * of_unit * dtype.size()];
            let sizes = [line, batch, hidden / EIGHT, steps];
            let map = TensorMap::new(dtype, &sizes, &[line, rows, units / EIGHT, 1])?;
            map.strides(&[row, line * dtype.size(), row * batch]).map(|map| map.swizzle(swizzle))
        };
        let least = TensorMap::new(DType::F32, &[4], &[4])?;
        let TensorSlots { ax, y, .. } = self.tensor_slots();
        let column = if self.reverse { hidden } else { 0 };
        let own_y = y.part(column, y.len() - column);
        let y = own_y.stored_by(lines(dtype, 1, hidden * directions, Swizzle::None)?);
        let ax = ax.loaded_by(lines(dtype, 4, hidden, Swizzle::Bytes64)?);
        let [gates, c] = if keep {
            [
                self.gates.stored_by(lines(DType::F32, 4, hidden, Swizzle::Bytes128)?),
                self.c.stored_by(lines(DType::F32, 1, hidden, Swizzle::Bytes32)?),
            ]
        } else {
            // The kernel does not store them.
            [self.gates, self.c].map(|slot| slot.part(0, 4).stored_by(least))
        };
        Ok(arguments![AX: ax, GATES_KEPT: gates, C_KEPT: c, Y: y])
    }

    /// What x adds to the gates of all steps, the gates of a unit side by side, in the type itself.
    pub(super) fn add_projection_by_units(&self, plan: &mut Plan) -> Result<(), Error> {
        let projection = self.kernel(plan, &PROJECTION, "projection_by_units", "")?;
        let launch = launch_of_tiles(&projection, self.sizes.rows(), self.sizes.weights())?;
        plan.launch_in(&self.scope, &projection, launch, arguments![ax: self.tensor_slots().ax])
    }

    /// The launch before that of all steps is the product that gives ax: it writes no weights.
    pub(super) fn add_tensor(&self, plan: &mut Plan) -> Result<(), Error> {
        if self.sizes.way.has_products() {
            self.add_product(plan)?
        } else {
            self.add_projection_by_units(plan)?
        }
        if self.sizes.way == Way::TensorGrid {
            return self.add_tensor_grid(plan);
        }
        if self.goes_by_groups(plan) {
            let (kernel, launch, instance) = self.tensor_launch(plan, WGMMA)?;
            let boxes = self.cell_boxes(&instance)?;
            return plan.launch_in(&self.scope, &kernel, launch.overlap_previous(), boxes);
        }
        let (kernel, launch, _) = self.tensor_launch(plan, FORTH)?;
        let ax = arguments![ax: self.tensor_slots().ax];
        plan.launch_in(&self.scope, &kernel, launch.overlap_previous(), ax)
    }

    /// Whether the products of a step are by wgmma: TMA loads and stores lines of eight units.
    fn goes_by_groups(&self, plan: &Plan) -> bool {
        let Sizes { dtype, hidden, batch, way, .. } = self.sizes;
        let multiprocessors = plan.device().facts().multiprocessors as usize;
        matches!(way, Way::TensorGroups | Way::TensorGroupsBack)
            && hidden.is_multiple_of(8)
            && !has_few_rows(dtype, hidden, batch, multiprocessors)
    }

    /// The same of the way back, which leaves da to products by wgmma.
    fn comes_back_by_groups(&self, plan: &Plan) -> bool {
        self.sizes.way == Way::TensorGroupsBack && self.goes_by_groups(plan)
    }

    /// Whether the way back takes the gates of a cell side by side.
    pub(super) fn has_gates_together(&self, plan: &Plan) -> bool {
        match self.sizes.way {
            Way::TensorGrid => self.has_gradient_products(),
            _ => self.goes_by_groups(plan),
        }
    }

    /// da in place of the gates, or in that of ax where products by wgmma are to read it; dh0 and dc0.
    pub(super) fn add_tensor_back(&self, plan: &mut Plan, scope: &Scope) -> Result<(), Error> {
        let TensorSlots { ax, first_da, bias_sums, .. } = self.tensor_slots();
        let halves = self.has_gradient_products();
        let written = arguments![halves, da_halves: ax, first_da, bias_sums];
        let scope = scope.clone().with(written);
        if self.sizes.way == Way::TensorGrid {
            return self.add_tensor_grid_back(plan, &scope);
        }
        let by_groups = self.comes_back_by_groups(plan);
        let (kernel, launch, _) =
            self.tensor_launch(plan, if by_groups { WGMMA_BACK } else { BACK })?;
        plan.launch_in(&scope, &kernel, launch, arguments![])
    }

    pub(super) fn tensor_slots(&self) -> TensorSlots {
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
        let groups = |batch, hidden| {
            let kernel = if has_few_rows(DType::BF16, hidden, batch, 132) { FORTH } else { WGMMA };
            let i = instance_for(kernel, DType::BF16, hidden, batch, 132).unwrap();
            (kernel.1, [i.size("HT"), i.size("BLOCKS"), i.size("ROWS")])
        };
        assert_eq!(groups(16, 768), ("lstm_tensor", [768, 16, 4]));
        assert_eq!(groups(64, 768), ("lstm_wgmma", [768, 16, 10]));
        assert_eq!(groups(64, 512), ("lstm_wgmma", [512, 16, 10]));
        assert_eq!(groups(256, 512), ("lstm_wgmma", [512, 16, 38]));
        let back = |batch, hidden| {
            let i = instance_for(WGMMA_BACK, DType::BF16, hidden, batch, 132).unwrap();
            ["HT", "BLOCKS", "ROWS", "PART"].map(|name| i.size(name))
        };
        assert_eq!(back(64, 512), [512, 16, 10, 4]);
        assert_eq!(back(256, 512), [512, 16, 38, 2]);
        for kernel in [FORTH, BACK, WGMMA, WGMMA_BACK] {
            let of = |dtype, hidden| instance_for(kernel, dtype, hidden, 1, 132).is_some();
            assert!(of(DType::BF16, MOST_TENSOR_UNITS) && of(DType::F16, MOST_TENSOR_UNITS));
            assert!(!of(DType::BF16, MOST_TENSOR_UNITS + 1) && !of(DType::F32, 1));
        }
    }
}
