//! The launches of a direction whose units are spread over several blocks.

use lab_device::{DType, Instance, Kernel, Launch};
use lab_harness::plan::{Plan, Scope, Slot};
use lab_harness::{Error, arguments};

use super::residence::instance_for;
use super::{Direction, Sizes};
use crate::Way;
use crate::kernels::V2_SPREAD;

/// The most units: sixteen threads a unit of a block, sixteen blocks a cluster.
pub(crate) const MOST_SPREAD_UNITS: usize = 768;

/// How one of the two kernels is launched: in so many launches that all blocks of one are resident,
/// where they wait for each other without being a cluster.
struct SpreadLaunch {
    kernel: Kernel,
    launch: Launch,
    /// Rows of the batch a launch.
    rows: usize,
    /// Where blocks leave numbers for each other, and their flags.
    post: Slot,
    flags: Slot,
    clustered: bool,
}

impl Direction {
    /// A row a group of blocks as long as all groups are resident.
    fn spread_launch(&self, plan: &mut Plan, name: &str) -> Result<SpreadLaunch, Error> {
        let Sizes { dtype, batch, hidden, way, .. } = self.sizes;
        let multiprocessors = plan.device().facts().multiprocessors as usize;
        let instance_of = |several| instance_for(&V2_SPREAD, name, dtype, hidden, several);
        let blocks_of = |i: Instance| i.size("HT") / i.size("UNITS");
        let several_rows = batch * blocks_of(instance_of(false)) > multiprocessors;
        let instance = instance_of(several_rows);
        let (rows, blocks) = (instance.size("ROWS"), blocks_of(instance));
        let kernel = plan.device().load(instance)?;
        let block = kernel.block()?;

        let all = batch.div_ceil(rows);
        let in_clusters = kernel.grid([(all * blocks) as u32, 1, 1])?.cluster(blocks as u32);
        let clustered = way != Way::Grid && kernel.resident_clusters(&in_clusters)? > 0;
        let resident = kernel.resident_blocks(block.threads, block.dynamic_shared)? as usize;
        let groups = if clustered { all } else { all.min(resident / blocks) };
        if groups == 0 {
            let expected = format!("{blocks} blocks of {} threads resident at once", block.threads);
            return Err(Error::bad("hidden", expected, hidden));
        }
        let launch = if clustered {
            in_clusters
        } else {
            kernel.grid([(groups * blocks) as u32, 1, 1])?.cooperative()
        };
        let (numbers, flags) = if clustered {
            (1, 1)
        } else {
            (groups * blocks * 2 * rows * instance.size("HT"), groups * blocks)
        };
        let post = plan.scratch(self.sizes.arithmetic(), numbers);
        let flags = plan.scratch(DType::U32, flags);
        Ok(SpreadLaunch { kernel, launch, rows: groups * rows, post, flags, clustered })
    }

    /// Adds a launch for each part of the batch, until all rows have had their turn.
    fn add_launches(
        &self,
        plan: &mut Plan,
        scope: &Scope,
        spread: &SpreadLaunch,
    ) -> Result<(), Error> {
        let SpreadLaunch { kernel, launch, rows, post, flags, clustered } = spread;
        let scope =
            scope.clone().with(arguments![post: *post, flags: *flags, clustered: *clustered]);
        for first_row in (0..self.sizes.batch).step_by(*rows) {
            if !clustered {
                plan.zero(*flags);
            }
            plan.launch_in(&scope, kernel, *launch, arguments![first_row])?;
        }
        Ok(())
    }

    pub(super) fn add_spread(&self, plan: &mut Plan) -> Result<(), Error> {
        let columns = self.add_projection(plan)?;
        let spread = self.spread_launch(plan, "lstm_spread")?;
        let scope = self.scope.clone().with(arguments![columns]);
        self.add_launches(plan, &scope, &spread)
    }

    pub(super) fn add_spread_back(&self, plan: &mut Plan, scope: &Scope) -> Result<(), Error> {
        let spread = self.spread_launch(plan, "lstm_spread_back")?;
        self.add_launches(plan, scope, &spread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Up to 256 units a thread's weights are all resident, four columns have at least four threads,
    /// and a cluster is of 16 blocks at most.
    #[test]
    fn every_group_of_blocks_is_a_cluster_and_keeps_what_it_can() {
        for name in ["lstm_spread", "lstm_spread_back"] {
            for i in V2_SPREAD.instances(name) {
                let [units, of_block] = [i.size("HT"), i.size("UNITS")];
                let threads = i.block().unwrap().threads as usize;
                assert_eq!(threads % units, 0, "{}", i.name());
                assert!(threads <= 1024 && units / of_block <= 16, "{}", i.name());
                let kept = i.size("KEPT") + i.size("IN_SHARED");
                assert_eq!(units <= 256, kept == units / 16, "{}", i.name());
            }
            for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
                let widest = instance_for(&V2_SPREAD, name, dtype, MOST_SPREAD_UNITS, false);
                assert_eq!(widest.size("HT"), MOST_SPREAD_UNITS);
            }
        }
    }
}
