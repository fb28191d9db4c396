//! The order in which the threads of a block, and the blocks of a grid, take their turns.

use std::str::FromStr;

/// A schedule. A kernel's result must not depend on it; where it does, that is a bug in the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Order {
    /// Lowest index first.
    #[default]
    Forward,
    /// Highest index first.
    Reverse,
    /// A new permutation at every barrier, drawn from this seed.
    Random(u64),
    /// Each warp as far as it can go before the next one moves. In the other orders warps go from
    /// one rendezvous to the next together, and a barrier that holds back a quick warp is not
    /// missed; here it is.
    Warps,
    /// By priorities of the warps, drawn from this seed: a warp runs alone until it waits or polls, and now and
    /// then falls behind all others. In the other orders each warp gets on in its turn; here some lag as far
    /// behind as those that run let them, which is what finds out whether they may.
    Starve(u64),
}

/// The text is not the name of an order.
#[derive(Debug, thiserror::Error)]
#[error("order: expected forward, reverse, warps, random[:SEED] or starve[:SEED], got '{0}'")]
pub struct BadOrder(String);

impl FromStr for Order {
    type Err = BadOrder;
    fn from_str(text: &str) -> Result<Self, BadOrder> {
        let bad = || BadOrder(text.to_owned());
        match text.split_once(':').unwrap_or((text, "")) {
            ("forward", "") => Ok(Self::Forward),
            ("reverse", "") => Ok(Self::Reverse),
            ("warps", "") => Ok(Self::Warps),
            ("random", "") => Ok(Self::Random(0)),
            ("random", seed) => seed.parse().map(Self::Random).map_err(|_| bad()),
            ("starve", "") => Ok(Self::Starve(0)),
            ("starve", seed) => seed.parse().map(Self::Starve).map_err(|_| bad()),
            _ => Err(bad()),
        }
    }
}

/// SplitMix64 (Steele, Lea, Flood 2014): schedules need speed and a seed, nothing else.
#[derive(Clone, Debug)]
pub(crate) struct Shuffler {
    order: Order,
    state: u64,
}

impl Shuffler {
    /// `stream` tells the permutations of different blocks apart.
    pub(crate) fn new(order: Order, stream: u64) -> Self {
        let seed = if let Order::Random(seed) = order { seed } else { 0 };
        Self { order, state: seed ^ stream.wrapping_mul(0xD134_2543_DE82_EF95) }
    }

    /// A number below `limit`.
    pub(crate) fn draw(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Puts `items`, given in forward order, into this schedule's order.
    pub(crate) fn arrange(&mut self, items: &mut [u32]) {
        match self.order {
            Order::Forward | Order::Warps | Order::Starve(_) => {}
            Order::Reverse => items.reverse(),
            Order::Random(_) => {
                for last in (1..items.len()).rev() {
                    let other = (self.next() % (last as u64 + 1)) as usize;
                    items.swap(last, other);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse() {
        assert_eq!("reverse".parse::<Order>().unwrap(), Order::Reverse);
        assert_eq!("warps".parse::<Order>().unwrap(), Order::Warps);
        assert_eq!("random:7".parse::<Order>().unwrap(), Order::Random(7));
        assert_eq!("starve".parse::<Order>().unwrap(), Order::Starve(0));
        assert_eq!("starve:7".parse::<Order>().unwrap(), Order::Starve(7));
        for bad in ["", "Forward", "random:x", "starve:x", "forward:1"] {
            assert!(bad.parse::<Order>().is_err(), "{bad}");
        }
    }

    #[test]
    fn random_is_a_permutation_that_the_seed_decides() {
        let draw = |seed, stream| {
            let mut items: Vec<u32> = (0..100).collect();
            Shuffler::new(Order::Random(seed), stream).arrange(&mut items);
            items
        };
        let mut sorted = draw(1, 0);
        assert_ne!(sorted, draw(2, 0));
        assert_ne!(sorted, draw(1, 1));
        assert_eq!(sorted, draw(1, 0));
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..100));
    }
}
