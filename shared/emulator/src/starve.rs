//! Which warp runs under [`Order::Starve`].
//!
//! Burckhardt, Kothari, Musuvathi, Nagarakatte, "A Randomized Scheduler with Probabilistic Guarantees of
//! Finding Bugs" (ASPLOS 2010): each thread, here each warp, has a random priority. Of those that can run the
//! one of highest priority runs alone; now and then it falls behind all others. In a fair schedule nobody lags
//! behind by more than a turn; here a warp lags until all others wait for it.
//!
//! A thread that polls may wait for a warp of lower priority. So it counts as one that cannot run as long as
//! any other can. Some poll in ways that do not show, `while (!__any_sync(..))` say, and others gave up their
//! turn and wait for nothing; so that neither lasts for ever, all are asked again when priorities change.

use crate::order::{Order, Shuffler};
use crate::thread::{State, Thread};
use crate::warp::LANES;

/// Turns between two changes: from two to the first of these powers up to two to the second. Some bugs
/// need a warp that is behind by a few turns, others one that is behind by a whole loop.
const INTERVALS: (u32, u32) = (5, 12);

#[derive(Debug)]
pub(crate) struct Priorities {
    dice: Shuffler,
    /// Of each warp; the highest goes first.
    of: Vec<i64>,
    lowest: i64,
    /// Turns until the next change.
    left: u64,
}

impl Priorities {
    /// Nothing in an order that is fair. `stream` tells blocks apart.
    pub(crate) fn new(order: Order, stream: u64, warps: usize) -> Option<Self> {
        let Order::Starve(seed) = order else { return None };
        let mut dice = Shuffler::new(Order::Random(seed), stream);
        let mut ranks: Vec<u32> = (0..warps as u32).collect();
        dice.arrange(&mut ranks);
        let mut priorities =
            Self { dice, of: ranks.into_iter().map(i64::from).collect(), lowest: 0, left: 0 };
        priorities.rest();
        Some(priorities)
    }

    /// Draws when priorities change next.
    fn rest(&mut self) {
        let (least, most) = INTERVALS;
        let power = u64::from(least) + self.dice.draw(u64::from(most - least + 1));
        self.left = 1 << power;
    }

    /// Leaves in `queue` who is to run, and puts the others into `held`. Whether somebody is held who can run.
    pub(crate) fn choose(
        &mut self,
        threads: &mut [Thread],
        queue: &mut Vec<u32>,
        held: &mut Vec<u32>,
    ) -> bool {
        let changes = self.left == 0;
        if changes {
            for &index in &*queue {
                threads[index as usize].state = State::Ready;
            }
            self.rest();
        }
        self.left -= 1;
        let warp_of = |index: u32| index as usize / LANES;
        let runs = |index: u32| threads[index as usize].state == State::Ready;
        let warps = queue.iter().filter(|&&index| runs(index)).map(|&index| warp_of(index));
        let Some(first) = warps.max_by_key(|&warp| self.of[warp]) else { return false };
        if changes {
            self.lowest -= 1;
            self.of[first] = self.lowest;
        }
        held.extend(queue.extract_if(.., |index| warp_of(*index) != first || !runs(*index)));
        !held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of three warps with one thread each, in these states, those that run.
    fn chosen(priorities: &mut Priorities, states: [State; 3]) -> Vec<u32> {
        let mut threads: Vec<Thread> = (0..3 * LANES).map(|_| Thread::new()).collect();
        let mut queue: Vec<u32> = (0..3).map(|warp| warp * LANES as u32).collect();
        for (&index, state) in queue.iter().zip(states) {
            threads[index as usize].state = state;
        }
        priorities.choose(&mut threads, &mut queue, &mut Vec::new());
        queue.into_iter().map(|index| index / LANES as u32).collect()
    }

    #[test]
    fn the_highest_that_does_not_poll_runs() {
        use State::{Polling, Ready};
        let mut priorities = Priorities::new(Order::Starve(1), 0, 3).unwrap();
        priorities.of = vec![5, 9, 7];
        priorities.left = 10;
        assert_eq!(chosen(&mut priorities, [Ready; 3]), [1]);
        assert_eq!(chosen(&mut priorities, [Ready, Polling, Ready]), [2]);
        assert_eq!(chosen(&mut priorities, [Ready, Polling, Polling]), [0]);
        assert_eq!(chosen(&mut priorities, [Polling; 3]), [0, 1, 2], "each may wait for each");
    }

    #[test]
    fn nobody_runs_alone_for_ever() {
        let mut priorities = Priorities::new(Order::Starve(1), 0, 3).unwrap();
        let mut turns = [0; 3];
        for _ in 0..1 << 16 {
            for warp in chosen(&mut priorities, [State::Ready, State::Ready, State::Polling]) {
                turns[warp as usize] += 1;
            }
        }
        assert!(turns.iter().all(|&turns| turns > 10), "{turns:?}");
        assert!(Priorities::new(Order::Warps, 0, 3).is_none());
    }
}
