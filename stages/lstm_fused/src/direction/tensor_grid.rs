//! The launches of a direction whose units are spread over blocks of the grid, with products on tensor cores.

use lab_device::{DType, Device, DeviceKind, Instance, Kernel, KernelSource, Launch};
use lab_harness::plan::{Plan, Scope, Slot};
use lab_harness::{Error, arguments};

use super::tensor::{check_halves, fastest_instance};
use super::{Direction, Sizes};
use crate::kernels::{V7_TENSOR_GRID, V8_TENSOR_GRID_BACK};

/// The most units: 64 blocks of 16.
pub(crate) const MOST_GRID_UNITS: usize = 1024;

/// Whether the blocks of the most units are resident at once, one a multiprocessor.
pub(crate) fn has_room_for_grid(device: &Device) -> bool {
    let multiprocessors = device.facts().multiprocessors as usize;
    device.kind() == DeviceKind::Emulator || multiprocessors >= MOST_GRID_UNITS / UNITS
}

/// Of a block.
const UNITS: usize = 16;

/// Of a unit.
const GATES: usize = 4;

/// A line of memory that some blocks ask for.
const FLAGS_OF_LINE: usize = 32;

type Name = (&'static KernelSource, &'static str);

const FORTH: Name = (&V7_TENSOR_GRID, "lstm_grid");
const BACK: Name = (&V8_TENSOR_GRID_BACK, "lstm_grid_back");

/// Groups of blocks, all resident at once.
struct GridLaunch {
    kernel: Kernel,
    launch: Launch,
    /// Units of a group that there is room for.
    units: usize,
    /// Rows of the batch a launch.
    rows: usize,
    flags: Slot,
}

/// Of the instantiations with room for H units, those with the fewest; of these the one whose launches take the least time
/// for B rows, one after the other. A step of eight rows is mostly the exchange; each further eight add a fifth.
fn instance_for(
    kernel: Name,
    dtype: DType,
    hidden: usize,
    batch: usize,
    multiprocessors: usize,
) -> Option<Instance> {
    let time = |i: &Instance| {
        let [units, rows] = ["HT", "ROWS"].map(|size| i.size(size));
        let groups = (multiprocessors / (units / UNITS)).max(1);
        batch.div_ceil(groups * rows) * (4 + rows / 8)
    };
    fastest_instance(kernel, dtype, hidden, time)
}

impl Direction {
    /// `lines` of flags a group of so many blocks.
    fn grid_launch(
        &self,
        plan: &mut Plan,
        name: Name,
        lines: impl Fn(usize) -> usize,
    ) -> Result<GridLaunch, Error> {
        let Sizes { dtype, batch, hidden, .. } = self.sizes;
        check_halves(dtype)?;
        let multiprocessors = plan.device().facts().multiprocessors as usize;
        let instance = instance_for(name, dtype, hidden, batch, multiprocessors);
        let instance = instance.expect("as many units as were checked");
        let [units, rows] = ["HT", "ROWS"].map(|size| instance.size(size));
        let blocks = units / UNITS;
        let kernel = plan.device().load(instance)?;
        let block = kernel.block()?;
        let resident = kernel.resident_blocks(block.threads, block.dynamic_shared)? as usize;
        let most = kernel.cooperative_blocks(block.threads, block.dynamic_shared)? as usize;
        let groups = batch.div_ceil(rows).min((resident / blocks).max(1));
        if blocks > most {
            let expected = format!("{blocks} blocks of {} threads resident at once", block.threads);
            return Err(Error::bad("hidden", expected, hidden));
        }
        let launch = kernel.grid([(groups * blocks) as u32, 1, 1])?.cooperative();
        let flags = plan.scratch(DType::U32, groups * lines(blocks) * FLAGS_OF_LINE);
        Ok(GridLaunch { kernel, launch, units, rows: groups * rows, flags })
    }

    /// A launch for each part of the batch, until all rows have had their turn.
    fn add_grid_launches(
        &self,
        plan: &mut Plan,
        scope: &Scope,
        grid: &GridLaunch,
    ) -> Result<(), Error> {
        let GridLaunch { kernel, launch, rows, flags, .. } = grid;
        for first_row in (0..self.sizes.batch).step_by(*rows) {
            plan.zero(*flags);
            plan.launch_in(scope, kernel, *launch, arguments![first_row, flags: *flags])?;
        }
        Ok(())
    }

    pub(super) fn add_tensor_grid(&self, plan: &mut Plan) -> Result<(), Error> {
        let grid = self.grid_launch(plan, FORTH, |blocks| 4 * blocks.div_ceil(8))?;
        let post = plan.scratch(self.sizes.dtype, 2 * grid.rows * grid.units);
        let ax = self.tensor_slots().ax;
        let scope = self.scope.clone().with(arguments![post, ax]);
        self.add_grid_launches(plan, &scope, &grid)
    }

    pub(super) fn add_tensor_grid_back(&self, plan: &mut Plan, scope: &Scope) -> Result<(), Error> {
        let grid = self.grid_launch(plan, BACK, |blocks| 2 * blocks.isqrt())?;
        let (of_units, side) = (grid.rows * grid.units, (grid.units / UNITS).isqrt());
        let post = plan.scratch(self.sizes.dtype, 2 * GATES * of_units);
        let parts = plan.scratch(DType::F32, 2 * side * of_units);
        let scope = scope.clone().with(arguments![post, parts]);
        self.add_grid_launches(plan, &scope, &grid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_as_many_rows_as_take_the_least_time() {
        for kernel in [FORTH, BACK] {
            let of = |batch, hidden| {
                let i = instance_for(kernel, DType::BF16, hidden, batch, 132).unwrap();
                [i.size("HT"), i.size("ROWS")]
            };
            assert_eq!(of(16, 1024), [1024, 8]);
            assert_eq!(of(17, 1024), [1024, 32]);
            assert_eq!(of(1, 257), [1024, 8]);
            assert!(of(64, 64)[0] <= 256);
            let is = |dtype, hidden| instance_for(kernel, dtype, hidden, 1, 132).is_some();
            assert!(is(DType::F16, MOST_GRID_UNITS) && !is(DType::F16, MOST_GRID_UNITS + 1));
            assert!(!is(DType::F32, 1));
        }
    }
}
