//! What is in flight: asynchronous copies that an `mbarrier` counts, or that a thread waits for by
//! groups. Each is asked for by an instruction, lands when the schedule lets it, and then publishes
//! that it has.
//!
//! A GPU may make a copy at any time between the two ends. A kernel must be right under all three of the
//! rules here: at once, at random, or as late as possible, which is when the block cannot go on
//! without it.

pub(crate) mod descriptor;
pub(crate) mod groups;
pub(crate) mod mbarrier;
pub(crate) mod record;
pub(crate) mod tensor;
pub(crate) mod wgmma;

use std::str::FromStr;

use crate::check::BlockCheck;
use crate::clock::Snapshot;
use crate::order::{Order, Shuffler};
use crate::report::Finding;
use tensor::Tile;

/// When an asynchronous copy is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Landing {
    /// As late as a GPU may: when it is waited for and the block cannot go on without.
    #[default]
    Late,
    /// When it is asked for.
    Early,
    /// In between, drawn from this seed.
    Random(u64),
}

/// The text is not the name of a rule.
#[derive(Debug, thiserror::Error)]
#[error("copies: expected late, early or random[:SEED], got '{0}'")]
pub struct BadLanding(String);

impl FromStr for Landing {
    type Err = BadLanding;
    fn from_str(text: &str) -> Result<Self, BadLanding> {
        let bad = || BadLanding(text.to_owned());
        match text.split_once(':').unwrap_or((text, "")) {
            ("late", "") => Ok(Self::Late),
            ("early", "") => Ok(Self::Early),
            ("random", "") => Ok(Self::Random(0)),
            ("random", seed) => seed.parse().map(Self::Random).map_err(|_| bad()),
            _ => Err(bad()),
        }
    }
}

/// What a copy does.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// st.async: the value is in registers.
    Store { to: usize, value: [u8; 8] },
    /// A stretch of memory.
    Copy { to: usize, from: usize },
    /// A box of a tensor, to shared memory.
    Tile(Tile),
}

/// One copy that was asked for and has not landed.
#[derive(Clone, Debug)]
pub(crate) struct Flight {
    pub(crate) what: What,
    pub(crate) bytes: usize,
    /// Where its bytes count.
    pub(crate) barrier: usize,
    /// The thread that asked for it.
    pub(crate) issuer: u32,
    /// Return address of the call.
    pub(crate) pc: usize,
    /// What the issuer knew then, of a checked kernel: a store brings that along. A bulk copy does not
    /// (PTX ISA, "Async proxy": its completion orders nothing of what its issuer did before).
    pub(crate) known: Option<Snapshot>,
}

impl Flight {
    /// What it reads in memory: where, and how many bytes.
    pub(crate) fn sources(&self) -> Vec<(usize, usize)> {
        match &self.what {
            What::Store { .. } => Vec::new(),
            What::Copy { from, .. } => vec![(*from, self.bytes)],
            What::Tile(tile) => {
                tile.moves.iter().filter(|m| m.valid > 0).map(|m| (m.global, m.valid)).collect()
            }
        }
    }

    /// What it writes.
    pub(crate) fn targets(&self) -> Vec<(usize, usize)> {
        match &self.what {
            What::Store { to, .. } | What::Copy { to, .. } => vec![(*to, self.bytes)],
            What::Tile(tile) => tile.moves.iter().map(|m| (m.shared, m.bytes)).collect(),
        }
    }

    /// The first byte that it writes.
    pub(crate) fn target(&self) -> usize {
        match &self.what {
            What::Store { to, .. } | What::Copy { to, .. } => *to,
            What::Tile(tile) => tile.moves.first().map_or(0, |m| m.shared),
        }
    }

    /// Makes the copy, and counts its bytes.
    ///
    /// # Errors
    /// The barrier cannot count them, or is none any more.
    ///
    /// # Safety
    /// Its addresses are the kernel's own; those of a checked kernel have been looked at.
    pub(crate) unsafe fn land(self, check: Option<&mut BlockCheck>) -> Result<(), Box<Finding>> {
        // SAFETY: the caller's promise; what is behind a kernel's addresses is its own affair.
        unsafe {
            match &self.what {
                What::Store { to, value } => {
                    std::ptr::copy_nonoverlapping(value.as_ptr(), *to as *mut u8, self.bytes);
                }
                What::Copy { to, from } => {
                    std::ptr::copy(*from as *const u8, *to as *mut u8, self.bytes);
                }
                What::Tile(tile) => tile.make(),
            }
        }
        // SAFETY: the address of a barrier that was one when the copy was asked for; of a checked kernel it has been looked at.
        let outcome = unsafe { mbarrier::complete(self.barrier, self.bytes as u32) };
        match check {
            Some(check) => check.landed(&self, outcome),
            None => outcome.map(drop).map_err(|misuse| Box::new(misuse.finding("an mbarrier"))),
        }
    }
}

/// The copies of a block that are in flight.
#[derive(Debug)]
pub(crate) struct Queue {
    landing: Landing,
    dice: Shuffler,
    /// By barrier, those whose first was asked for earliest in front.
    flights: Vec<(usize, Vec<Flight>)>,
}

impl Queue {
    pub(crate) fn new(landing: Landing) -> Self {
        Self { landing, dice: Shuffler::new(Order::Forward, 0), flights: Vec::new() }
    }

    /// For another block.
    pub(crate) fn restart(&mut self, block: u64) {
        let seed = if let Landing::Random(seed) = self.landing { seed } else { 0 };
        self.dice = Shuffler::new(Order::Random(seed), block + 1);
        self.flights.clear();
    }

    /// Whether something that is asked for now is made at once.
    pub(crate) fn lands_at_once(&mut self) -> bool {
        match self.landing {
            Landing::Late => false,
            Landing::Early => true,
            Landing::Random(_) => self.dice.draw(2) == 0,
        }
    }

    /// Whether products are made before they are waited for; drawn anew each time.
    pub(crate) fn makes_products_at_once(&mut self) -> bool {
        self.lands_at_once()
    }

    pub(crate) fn add(&mut self, flight: Flight) {
        match self.flights.iter_mut().find(|(barrier, _)| *barrier == flight.barrier) {
            Some((_, same)) => same.push(flight),
            None => self.flights.push((flight.barrier, vec![flight])),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Flight> {
        self.flights.iter().flat_map(|(_, flights)| flights)
    }

    /// What lands while the block could still go on.
    pub(crate) fn meanwhile(&mut self) -> Vec<Flight> {
        if !matches!(self.landing, Landing::Random(_)) || self.flights.is_empty() {
            return Vec::new();
        }
        let all = std::mem::take(&mut self.flights).into_iter().flat_map(|(_, flights)| flights);
        let (now, later): (Vec<_>, Vec<_>) = all.partition(|_| self.dice.draw(4) == 0);
        later.into_iter().for_each(|flight| self.add(flight));
        now
    }

    /// What lands when the block cannot go on: the copies of one barrier, of one that is waited for if there is such, else of
    /// one that may be.
    pub(crate) fn at_last(
        &mut self,
        awaited: impl Fn(usize) -> bool,
        may_be: impl Fn(usize) -> bool,
    ) -> Vec<Flight> {
        let place = |which: &dyn Fn(usize) -> bool| {
            self.flights.iter().position(|(barrier, _)| which(*barrier))
        };
        match place(&awaited).or_else(|| place(&may_be)) {
            Some(first) => self.flights.remove(first).1,
            None => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse() {
        assert_eq!("early".parse::<Landing>().unwrap(), Landing::Early);
        assert_eq!("random:7".parse::<Landing>().unwrap(), Landing::Random(7));
        for bad in ["", "Late", "random:x", "late:1"] {
            assert!(bad.parse::<Landing>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_waited_for_lands_first() {
        let mut queue = Queue::new(Landing::Late);
        for barrier in [8, 16, 8] {
            let what = What::Store { to: 0, value: [0; 8] };
            queue.add(Flight { what, bytes: 4, barrier, issuer: 0, pc: 0, known: None });
        }
        assert!(queue.meanwhile().is_empty());
        assert_eq!(queue.at_last(|b| b == 16, |_| true).len(), 1);
        assert!(queue.at_last(|_| false, |_| false).is_empty(), "none that may not land yet");
        assert_eq!(queue.at_last(|_| false, |_| true).len(), 2, "the oldest's, if nobody waits");
        assert!(queue.is_empty());
    }
}
