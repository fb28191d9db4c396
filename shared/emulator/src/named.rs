//! Barriers of a part of a block: `bar.sync` and `bar.arrive` with a number.

use crate::check::BlockCheck;
use crate::clock::{Gathered, Scope};
use crate::report::{Finding, Kind};
use crate::thread::Comes;

/// Barriers of a block; the first is that of `__syncthreads`.
pub(crate) const NAMED: usize = 16;

#[derive(Debug, Default)]
struct Barrier {
    /// How many it is for, as the first of them said.
    threads: u32,
    arrived: u32,
    waiting: Vec<u32>,
    gathered: Gathered,
}

/// Those of a block.
#[derive(Debug, Default)]
pub(crate) struct Named {
    barriers: [Barrier; NAMED],
    /// Whether this block has come to any.
    used: bool,
}

impl Named {
    /// For another block.
    pub(crate) fn restart(&mut self) {
        if self.used {
            *self = Self::default();
        }
    }

    /// Thread `index` comes. Those who may go on now, if it is the last.
    ///
    /// # Errors
    /// It says another number of threads than those who are there.
    pub(crate) fn come(
        &mut self,
        index: u32,
        how: Comes,
        check: Option<&mut BlockCheck>,
    ) -> Result<Vec<u32>, Box<Finding>> {
        self.used = true;
        let barrier = &mut self.barriers[how.number as usize];
        if barrier.arrived == 0 {
            barrier.threads = how.threads;
        } else if barrier.threads != how.threads {
            let message = format!(
                "barrier {} is for {} threads, as the first to come has said, and for {} as another says",
                how.number, barrier.threads, how.threads
            );
            let fix = "let all calls of one barrier name the same number of threads";
            return Err(Box::new(Finding::new(Kind::BadCollective, message).fix(fix)));
        }
        barrier.arrived += 1;
        let complete = barrier.arrived == barrier.threads;
        if how.waits {
            barrier.waiting.push(index);
        }
        let free = if complete { std::mem::take(&mut barrier.waiting) } else { Vec::new() };
        if complete {
            barrier.arrived = 0;
        }
        if let Some(check) = check {
            check.clock.arrive(index, &mut barrier.gathered, true, Scope::Block);
            if complete {
                barrier.gathered.turn();
                for &thread in &free {
                    check.clock.pass(thread, &barrier.gathered, Scope::Block);
                }
            }
        }
        Ok(free)
    }

    /// `barrier 2: 64 of 96 threads`, of each that is waited for.
    pub(crate) fn missing(&self) -> impl Iterator<Item = String> {
        let waited = self.barriers.iter().enumerate().filter(|(_, b)| !b.waiting.is_empty());
        waited
            .map(|(n, b)| format!("barrier {n}: {} of {} threads have come", b.arrived, b.threads))
    }
}
