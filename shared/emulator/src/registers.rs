//! `setmaxnreg`: warpgroups that give registers back, and take them.

use crate::completion::wgmma::WARPS;
use crate::report::{Finding, Kind};
use crate::warp::LANES;

/// Registers of a multiprocessor.
const ALL: u32 = 65_536;
/// Most of a thread.
const MOST: u32 = 255;
/// Threads of a warpgroup.
const GROUP: u32 = (WARPS * LANES) as u32;
/// In units of so many.
const UNIT: u32 = 8;

/// What a thread asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asks {
    pub(crate) registers: u32,
    pub(crate) increases: bool,
}

#[derive(Clone, Debug, Default)]
struct Warpgroup {
    /// What each of its threads has.
    has: u32,
    asks: Asks,
    /// Those who have come to ask.
    came: Vec<u32>,
}

/// Those of a block: what it was launched with is all that its warpgroups share (PTX ISA, "setmaxnreg":
/// the pool is the block's own).
#[derive(Debug, Default)]
pub(crate) struct Registers {
    groups: Vec<Warpgroup>,
    all: u32,
}

impl Registers {
    /// For another block: each thread has as many as so large a block can have, if it has the multiprocessor
    /// for itself.
    pub(crate) fn restart(&mut self, threads: usize) {
        let each = (ALL / threads.max(1) as u32).min(MOST) / UNIT * UNIT;
        let group = Warpgroup { has: each, ..Warpgroup::default() };
        let count = threads / (WARPS * LANES);
        self.groups.clear();
        self.groups.resize(count, group);
        self.all = each * GROUP * count as u32;
    }

    /// A thread asks. Those who may go on, if it is the last of its warpgroup and they are there.
    ///
    /// # Errors
    /// What it asks for cannot be.
    pub(crate) fn ask(&mut self, index: u32, asks: Asks) -> Result<Vec<u32>, Box<Finding>> {
        let wrong = |message: String, fix| {
            Err(Box::new(Finding::new(Kind::BadCollective, message).fix(fix)))
        };
        let number = index as usize / (WARPS * LANES);
        let Some(group) = self.groups.get_mut(number) else {
            let fix = "launch whole warpgroups, of 128 threads";
            return wrong(format!("setmaxnreg by a thread of no whole warpgroup, {index}"), fix);
        };
        let Asks { registers, increases } = asks;
        if group.came.is_empty() {
            group.asks = asks;
        } else if group.asks != asks {
            let message = "threads of one warpgroup come to different setmaxnreg".into();
            return wrong(message, "all 128 threads must come to the same one");
        }
        if increases && registers < group.has || !increases && registers > group.has {
            let (verb, than) = if increases { ("increase", "fewer") } else { ("decrease", "more") };
            let message = format!(
                "setmaxnreg: registers_{verb} to {registers}, {than} than the {} that each thread has",
                group.has
            );
            return wrong(
                message,
                "increase where a warpgroup needs more than at the launch, else decrease",
            );
        }
        group.came.push(index);
        Ok(self.settle())
    }

    /// Those who get what they have asked for.
    fn settle(&mut self) -> Vec<u32> {
        let mut free = Vec::new();
        // One that increases may wait for one behind it that decreases.
        for n in (0..self.groups.len()).chain(0..self.groups.len()) {
            let others = self.registers_used() - self.groups[n].has * GROUP;
            let group = &mut self.groups[n];
            let all = group.came.len() == WARPS * LANES;
            if all && others + group.asks.registers * GROUP <= self.all {
                group.has = group.asks.registers;
                free.append(&mut group.came);
            }
        }
        free
    }

    fn registers_used(&self) -> u32 {
        self.groups.iter().map(|g| g.has * GROUP).sum()
    }

    /// What each warpgroup has that waits for more.
    pub(crate) fn missing(&self) -> impl Iterator<Item = String> {
        let (all, free) = (self.all, self.all.saturating_sub(self.registers_used()));
        let waits = self.groups.iter().enumerate().filter(|(_, g)| !g.came.is_empty());
        waits.map(move |(n, g)| {
            format!(
                "warpgroup {n}: {} of 128 threads ask for {} registers, each has {}; {free} of {all} are free",
                g.came.len(),
                g.asks.registers,
                g.has,
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_producer_gives_what_consumers_take() {
        let mut registers = Registers::default();
        registers.restart(384);
        let ask = |r: &mut Registers, group: u32, registers, increases| {
            let all = (128 * group..128 * (group + 1))
                .map(|t| r.ask(t, Asks { registers, increases }).unwrap());
            all.flatten().count()
        };
        assert_eq!(ask(&mut registers, 1, 240, true), 0, "168 each, and nothing is free");
        assert_eq!(registers.missing().count(), 1);
        assert_eq!(ask(&mut registers, 0, 24, false), 256, "and the other may go on");
        assert_eq!(ask(&mut registers, 2, 240, true), 128);
        registers.restart(384);
        assert_eq!(ask(&mut registers, 0, 32, false), 128);
        assert_eq!(ask(&mut registers, 1, 240, true), 128);
        assert_eq!(ask(&mut registers, 2, 240, true), 0, "65,536 together: the block has 64,512");
        registers.restart(384);
        let less = Asks { registers: 24, increases: true };
        assert!(registers.ask(0, less).is_err(), "that is a decrease");
    }
}
