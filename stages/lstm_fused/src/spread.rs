//! The launches of a direction whose units are spread over several blocks.

use lab_device::{DType, Kernel, Launch};
use lab_harness::Error;
use lab_harness::program::{Argument, Program, Slot, scalar};

use crate::direction::{CommonGradients, Direction, Sizes, int, kernel};
use crate::kernels::V2_SPREAD;
use crate::network::Way;
use crate::residences::SPREAD;
use crate::sequence::{chosen, table_of};

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
struct Plan {
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

impl Direction<'_> {
    /// A row a group of blocks as long as all groups are resident.
    fn plan(&self, program: &mut Program, name: &str, back: bool) -> Result<Plan, Error> {
        let Sizes { dtype, batch, hidden, way, .. } = self.sizes;
        let facts = program.device().facts();
        let multiprocessors = facts.multiprocessors as usize;
        let fewest = Spread::of(hidden, dtype, false);
        let spread = Spread::of(hidden, dtype, batch * fewest.blocks() > multiprocessors);
        let Spread { units, of_block, rows, kept, in_shared } = spread;
        let blocks = spread.blocks();
        let clustered = way == Way::Cluster && facts.max_cluster as usize >= blocks;
        let arguments = format!("{units}, {of_block}, {rows}, {kept}, {in_shared}");
        let kernel = kernel(program.device(), &V2_SPREAD, name, dtype, &arguments)?;
        let numbers = if back { spread.shared_back() } else { spread.shared() };
        let shared = numbers * self.sizes.arithmetic().size();
        let threads = spread.threads() as u32;

        let all = batch.div_ceil(rows);
        let groups = match clustered {
            true => all,
            false => all.min(kernel.resident_blocks(threads, shared)? as usize / blocks),
        };
        if groups == 0 {
            let expected = format!("{blocks} blocks of {threads} threads resident at once");
            return Err(Error::bad("hidden", expected, hidden));
        }
        let launch = Launch::new((groups * blocks) as u32, threads).shared(shared);
        let launch = if clustered { launch.cluster(blocks as u32) } else { launch.cooperative() };
        let (numbers, flags) = match clustered {
            true => (1, 1),
            false => (groups * blocks * 2 * rows * units, groups * blocks),
        };
        let post = program.scratch(self.sizes.arithmetic(), numbers)?;
        let flags = program.scratch(DType::U32, flags)?;
        Ok(Plan { kernel, launch, rows: groups * rows, post, flags, clustered })
    }

    /// Launches the plan until all rows of the batch have had their turn.
    fn launch_all<const N: usize>(
        &self,
        program: &mut Program,
        plan: &Plan,
        arguments: impl Fn(Argument) -> [Argument; N],
    ) {
        for first_row in (0..self.sizes.batch).step_by(plan.rows) {
            if !plan.clustered {
                program.zero(plan.flags);
            }
            program.launch(plan.kernel.clone(), plan.launch, arguments(int(first_row)));
        }
    }

    pub(crate) fn spread(&self, program: &mut Program, keep: bool) -> Result<(), Error> {
        let Sizes { steps, batch, hidden, peephole, .. } = self.sizes;
        let columns = self.added(program)?;
        let plan = self.plan(program, "lstm_spread", false)?;
        let [c0, cn] = self.common.of_lstm();
        let [bias_ih, bias_hh] = self.weights.biases();
        let [peephole_i, peephole_f, peephole_o] = self.weights.peepholes();
        let [stride, column] = self.place();
        self.launch_all(program, &plan, |first_row| {
            [
                self.x.read(),
                self.weights.ih.read(),
                bias_ih,
                bias_hh,
                self.weights.hh.read(),
                peephole_i,
                peephole_f,
                peephole_o,
                self.common.h0.read(),
                c0.read(),
                self.common.lengths.read(),
                self.y.write(),
                self.c.write(),
                self.gates.write(),
                self.common.hn.write(),
                cn.write(),
                plan.post.write(),
                plan.flags.write(),
                first_row,
                int(steps),
                int(batch),
                int(hidden),
                int(columns),
                stride,
                column,
                int(self.state),
                self.flag(),
                scalar(i32::from(self.weights.biases.is_some())),
                scalar(i32::from(peephole)),
                scalar(i32::from(keep)),
                scalar(i32::from(plan.clustered)),
            ]
        });
        Ok(())
    }

    pub(crate) fn spread_back(
        &self,
        program: &mut Program,
        dy: Slot,
        states: &CommonGradients,
    ) -> Result<(), Error> {
        let Sizes { steps, batch, hidden, peephole, .. } = self.sizes;
        let plan = self.plan(program, "lstm_spread_back", true)?;
        let [c0, _] = self.common.of_lstm();
        let [dcn, dc0] = states.c.expect("the LSTM has c");
        let [peephole_i, peephole_f, peephole_o] = self.weights.peepholes();
        let [stride, column] = self.place();
        self.launch_all(program, &plan, |first_row| {
            [
                dy.read(),
                self.weights.hh.read(),
                peephole_i,
                peephole_f,
                peephole_o,
                c0.read(),
                states.dhn.read(),
                dcn.read(),
                self.common.lengths.read(),
                self.c.read(),
                self.gates.write(),
                states.dh0.write(),
                dc0.write(),
                plan.post.write(),
                plan.flags.write(),
                first_row,
                int(steps),
                int(batch),
                int(hidden),
                stride,
                column,
                int(self.state),
                self.flag(),
                scalar(i32::from(peephole)),
                scalar(i32::from(plan.clustered)),
            ]
        });
        Ok(())
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
