//! The launches of a direction whose units are spread over several blocks.

use lab_device::{DType, Kernel, Launch};
use lab_harness::plan::{Plan, Scope, Slot};
use lab_harness::{Error, arguments};

use super::residence::{chosen, table_of};
use super::{Direction, Sizes};
use crate::kernels::V2_SPREAD;
use crate::network::Way;
use crate::residences::SPREAD;

/// The most units: sixteen threads a unit of a block, sixteen blocks a cluster.
pub(crate) const MOST_SPREAD_UNITS: usize = 768;

/// The kernel's arguments for so many units.
#[derive(Clone, Copy, Debug)]
struct Spread {
    /// Units that it has room for, HT; of those a block's.
    units: usize,
    of_block: usize,
    /// Rows of the batch a group of blocks.
    rows: usize,
    /// Columns whose weights a thread has in registers, and in shared memory.
    kept: usize,
    in_shared: usize,
}

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

impl Spread {
    fn of(hidden: usize, dtype: DType, several_rows: bool) -> Self {
        let table = table_of(SPREAD, dtype);
        let &[units, of_block, rows, kept, in_shared] = chosen(table, hidden, several_rows);
        Self { units, of_block, rows, kept, in_shared }
    }

    fn blocks(&self) -> usize {
        self.units / self.of_block
    }

    /// Sixteen a unit.
    fn threads(&self) -> usize {
        16 * self.of_block
    }

    /// Numbers in shared memory: two boxes of h, and weights.
    fn shared(&self) -> usize {
        2 * self.rows * self.units + 4 * self.in_shared * self.threads()
    }

    /// The same of the way back: two boxes of the parts of dh, da of the block twice, and weights.
    fn shared_back(&self) -> usize {
        2 * self.rows * 4 * self.of_block + self.shared()
    }
}

impl Direction {
    /// A row a group of blocks as long as all groups are resident.
    fn spread_launch(
        &self,
        plan: &mut Plan,
        name: &str,
        back: bool,
    ) -> Result<SpreadLaunch, Error> {
        let Sizes { dtype, batch, hidden, way, .. } = self.sizes;
        let facts = plan.device().facts();
        let multiprocessors = facts.multiprocessors as usize;
        let fewest = Spread::of(hidden, dtype, false);
        let spread = Spread::of(hidden, dtype, batch * fewest.blocks() > multiprocessors);
        let Spread { units, of_block, rows, kept, in_shared } = spread;
        let blocks = spread.blocks();
        let template = format!("{units}, {of_block}, {rows}, {kept}, {in_shared}");
        let kernel = self.kernel(plan, &V2_SPREAD, name, &template)?;
        let numbers = if back { spread.shared_back() } else { spread.shared() };
        let shared = numbers * self.sizes.arithmetic().size();
        let threads = spread.threads() as u32;

        let all = batch.div_ceil(rows);
        let in_clusters = Launch::new((all * blocks) as u32, threads).shared(shared);
        let in_clusters = in_clusters.cluster(blocks as u32);
        let clustered = way == Way::Cluster && kernel.resident_clusters(&in_clusters)? > 0;
        let groups = match clustered {
            true => all,
            false => all.min(kernel.resident_blocks(threads, shared)? as usize / blocks),
        };
        if groups == 0 {
            let expected = format!("{blocks} blocks of {threads} threads resident at once");
            return Err(Error::bad("hidden", expected, hidden));
        }
        let launch = match clustered {
            true => in_clusters,
            false => Launch::new((groups * blocks) as u32, threads).shared(shared).cooperative(),
        };
        let (numbers, flags) = match clustered {
            true => (1, 1),
            false => (groups * blocks * 2 * rows * units, groups * blocks),
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
        let spread = self.spread_launch(plan, "lstm_spread", false)?;
        let scope = self.scope.clone().with(arguments![columns]);
        self.add_launches(plan, &scope, &spread)
    }

    pub(super) fn add_spread_back(&self, plan: &mut Plan, scope: &Scope) -> Result<(), Error> {
        let spread = self.spread_launch(plan, "lstm_spread_back", true)?;
        self.add_launches(plan, scope, &spread)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Up to 256 units a thread's weights are all resident, 99 KB of shared memory suffice, four columns
    /// have at least four threads, and a cluster is of 16 blocks at most.
    #[test]
    fn every_block_fits_an_rtx_4060() {
        for (table, arithmetic) in SPREAD.into_iter().zip([DType::F32, DType::F64]) {
            for &[units, of_block, rows, kept, in_shared] in table {
                let spread = Spread { units, of_block, rows, kept, in_shared };
                assert_eq!(spread.threads() % units, 0, "{spread:?}");
                assert!(spread.threads() <= 1024 && spread.blocks() <= 16, "{spread:?}");
                match units {
                    0..=256 => assert_eq!(kept + in_shared, units / 16, "{spread:?}"),
                    _ => assert!(kept + in_shared < units / 16, "{spread:?}"),
                }
                let numbers = spread.shared().max(spread.shared_back());
                assert!(numbers * arithmetic.size() <= 99 * 1024, "{spread:?}");
            }
            assert_eq!(table.last().map(|entry| entry[0]), Some(MOST_SPREAD_UNITS));
        }
    }
}
