//! Operands: the same numbers on every machine, from a counter and a fixed seed. A block of 1024 cases has one class of
//! operands, so that a digest that differs says which numbers are concerned.

use super::forms::Kind;

/// Cases of each form.
pub(super) const CASES: usize = BLOCK * CLASSES.len();
/// Cases of one class: each has a digest of its own.
pub(super) const BLOCK: usize = 1024;
/// What the blocks hold, in their order.
pub(super) const CLASSES: [&str; 12] = [
    "edges",
    "small numbers",
    "any bits",
    "any bits, again",
    "near powers of two",
    "an edge and any bits",
    "halfway between numbers of narrower types, and near their limits",
    "nearly equal, or nearly cancelled",
    "products near overflow and underflow",
    "subnormal numbers",
    "moderate numbers",
    "moderate numbers, again",
];
const SEED: u64 = 0x6f70_6572_616e_6473;

/// The bits of all operands of a kind: three for each case, `a`, `b` and `c`.
pub(super) fn pool(kind: Kind) -> [Vec<u64>; 3] {
    let mut all = [(); 3].map(|()| Vec::with_capacity(CASES));
    for case in 0..CASES {
        let mut random = Random(SEED ^ ((kind as u64) << 56) ^ ((case as u64) << 20));
        for (all, operand) in all.iter_mut().zip(operands(kind, case / BLOCK, &mut random)) {
            all.push(operand);
        }
    }
    all
}

fn operands(kind: Kind, class: usize, random: &mut Random) -> [u64; 3] {
    match kind {
        Kind::B16 => integers(16, class, random),
        Kind::B32 => integers(32, class, random),
        Kind::B64 => integers(64, class, random),
        Kind::Count => [(); 3].map(|()| match random.below(8) {
            0 => random.next() & 0xffff_ffff,
            1 => 250 + random.below(12),
            2 => [0, 1, 31, 32, 33, 63, 64, 65][random.below(8) as usize],
            _ => random.below(70),
        }),
        Kind::F16 => reals(HALF, class, random),
        Kind::Bf16 => reals(BRAIN, class, random),
        Kind::F32 => reals(SINGLE, class, random),
        Kind::F64 => reals(DOUBLE, class, random),
        Kind::F16x2 | Kind::Bf16x2 => {
            let format = if kind == Kind::F16x2 { HALF } else { BRAIN };
            let low = reals(format, class, random);
            let other = random.below(CLASSES.len() as u64) as usize;
            let high = reals(format, other, random);
            [0, 1, 2].map(|n| low[n] | high[n] << 16)
        }
    }
}

/// Of `splitmix64`.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// From `low` to `high`, both included.
    fn between(&mut self, low: i64, high: i64) -> i64 {
        low + self.below((high - low + 1) as u64) as i64
    }
}

fn integers(width: u32, class: usize, random: &mut Random) -> [u64; 3] {
    let mask = u64::MAX >> (64 - width);
    let top = 1u64 << (width - 1);
    let edge = |random: &mut Random| {
        let all = [
            0,
            1,
            2,
            3,
            top,
            top - 1,
            top + 1,
            top - 2,
            u64::MAX,
            u64::MAX - 1,
            0xff,
            0x80,
            0x7f,
            0xffff,
            0x8000,
            0x7fff,
        ];
        all[random.below(all.len() as u64) as usize]
    };
    let any = |random: &mut Random| random.next();
    let small = |random: &mut Random| random.between(-70, 70) as u64;
    let power = |random: &mut Random| {
        let value =
            (1u64 << random.below(u64::from(width))).wrapping_add(random.between(-2, 2) as u64);
        if random.below(2) == 0 { value } else { value.wrapping_neg() }
    };
    let of_any_length = |random: &mut Random| {
        let value = random.next() >> random.below(64);
        if random.below(2) == 0 { value } else { value.wrapping_neg() }
    };
    let mut three = |one: &dyn Fn(&mut Random) -> u64| [(); 3].map(|()| one(random));
    let all = match class {
        0 => three(&edge),
        1 => three(&small),
        2 | 3 => three(&any),
        4 => three(&power),
        5 => {
            let [a, b, c] = three(&any);
            match random.below(3) {
                0 => [edge(random), b, c],
                1 => [a, edge(random), c],
                _ => [a, b, edge(random)],
            }
        }
        7 => {
            let a = any(random);
            [a, a.wrapping_add(small(random) % 3), a.wrapping_neg().wrapping_add(random.below(3))]
        }
        8 => {
            // Products near the limit of the type.
            let shift = random.below(u64::from(width));
            let [a, b] = [1u64 << shift, (mask >> 1 >> shift).wrapping_add(random.below(3))];
            [a.wrapping_add(random.below(2)), b, any(random)]
        }
        _ => three(&of_any_length),
    };
    all.map(|value| value & mask)
}

/// A format of real numbers: bits of the exponent, and of what stands behind it.
#[derive(Clone, Copy)]
struct Format {
    exponent: u32,
    mantissa: u32,
}

const HALF: Format = Format { exponent: 5, mantissa: 10 };
const BRAIN: Format = Format { exponent: 8, mantissa: 7 };
const SINGLE: Format = Format { exponent: 8, mantissa: 23 };
const DOUBLE: Format = Format { exponent: 11, mantissa: 52 };
/// What numbers are rounded to.
const NARROWER: [Format; 5] =
    [HALF, BRAIN, SINGLE, Format { exponent: 4, mantissa: 3 }, Format { exponent: 5, mantissa: 2 }];

impl Format {
    fn bias(self) -> i64 {
        (1 << (self.exponent - 1)) - 1
    }

    fn sign(self) -> u64 {
        1 << (self.exponent + self.mantissa)
    }

    fn infinity(self) -> u64 {
        ((1 << self.exponent) - 1) << self.mantissa
    }

    fn last(self) -> u64 {
        (1 << self.mantissa) - 1
    }

    fn bits(self) -> u64 {
        self.sign() | (self.sign() - 1)
    }

    /// Of this exponent (of two), as far as there is one, with these bits behind it.
    fn of(self, exponent: i64, mantissa: u64) -> u64 {
        let biased = exponent + self.bias();
        if biased <= 0 {
            let shift = (1 - biased).min(63) as u32;
            return ((1 << self.mantissa) | mantissa & self.last()) >> shift;
        }
        let biased = (biased as u64).min((1 << self.exponent) - 2);
        biased << self.mantissa | mantissa & self.last()
    }

    /// The number, cut off.
    fn cut(self, value: f64) -> u64 {
        let bits = value.to_bits();
        let sign = if bits >> 63 == 1 { self.sign() } else { 0 };
        if value == 0.0 || !value.is_finite() {
            return sign | if value == 0.0 { 0 } else { self.infinity() };
        }
        let exponent = (bits >> 52 & 0x7ff) as i64 - 1023;
        if exponent > self.bias() {
            return sign | (self.infinity() - 1);
        }
        sign | self.of(exponent, bits >> (52 - self.mantissa) & self.last())
    }

    /// Exact, unless it is a double that is no number.
    fn value(self, bits: u64) -> f64 {
        let exponent = (bits & self.infinity()) >> self.mantissa;
        let mantissa = (bits & self.last()) as f64;
        let scale = |by: i64| f64::from_bits(((by + 1023).clamp(1, 2046) as u64) << 52);
        let magnitude = match exponent {
            _ if self.mantissa == 52 => return f64::from_bits(bits),
            0 => mantissa * scale(1 - self.bias()) * scale(-i64::from(self.mantissa)),
            _ if exponent == (1 << self.exponent) - 1 => f64::INFINITY,
            _ => {
                (1.0 + mantissa * scale(-i64::from(self.mantissa)))
                    * scale(exponent as i64 - self.bias())
            }
        };
        if bits & self.sign() == 0 { magnitude } else { -magnitude }
    }

    fn exponent_of(self, bits: u64) -> i64 {
        ((bits & self.infinity()) >> self.mantissa) as i64 - self.bias()
    }

    fn any(self, random: &mut Random) -> u64 {
        random.next() & self.bits()
    }

    fn signed(self, bits: u64, random: &mut Random) -> u64 {
        if random.below(2) == 0 { bits } else { bits ^ self.sign() }
    }

    fn edge(self, random: &mut Random) -> u64 {
        let one = self.of(0, 0);
        let quiet = self.infinity() | (1 << (self.mantissa - 1));
        let all = [
            0,
            0,
            1,
            2,
            self.last(),
            self.last() - 1,
            self.of(1 - self.bias(), 0),
            self.of(1 - self.bias(), 1),
            one,
            one + 1,
            one - 1,
            self.of(1, 0),
            self.of(-1, 0),
            self.of(0, 1 << (self.mantissa - 1)),
            self.infinity() - 1,
            self.infinity() - 2,
            self.of(self.bias(), 0),
            self.infinity(),
            self.infinity(),
            quiet,
            quiet | 5,
            self.infinity() | 1,
            self.infinity() | self.last(),
        ];
        let bits = all[random.below(all.len() as u64) as usize];
        self.signed(bits, random)
    }

    fn near_power(self, random: &mut Random) -> u64 {
        let exponent = random.between(1 - self.bias() - i64::from(self.mantissa), self.bias());
        let all = [0, 1, 2, self.last(), self.last() - 1, 1 << (self.mantissa - 1)];
        let mantissa = all[random.below(6) as usize];
        self.signed(self.of(exponent, mantissa), random)
    }

    fn moderate(self, random: &mut Random) -> u64 {
        let exponent = random.between(-8, 8);
        let mantissa = random.next();
        self.signed(self.of(exponent, mantissa), random)
    }

    fn subnormal(self, random: &mut Random) -> u64 {
        let bits = match random.below(4) {
            0 => self.of(random.between(1 - self.bias(), 3 - self.bias()), random.next()),
            _ => (random.next() & self.last()) >> random.below(u64::from(self.mantissa)),
        };
        self.signed(bits, random)
    }

    /// Where rounding to a narrower type, or to a whole number, is decided.
    fn decisive(self, random: &mut Random) -> u64 {
        let step = random.between(-1, 1);
        let bits = match random.below(3) {
            // k + 1/2
            0 => {
                let exponent = random.between(0, i64::from(self.mantissa).min(33));
                let whole = random.next() & ((1 << exponent) - 1);
                let half = (whole << 1 | 1) << (52 - exponent - 1).max(0);
                self.cut(f64::from_bits((1023 + exponent as u64) << 52 | half & ((1 << 52) - 1)))
            }
            // Limits of whole numbers.
            1 => {
                let power = [7, 8, 15, 16, 31, 32, 63, 64][random.below(8) as usize];
                self.of(power, 0)
            }
            _ => {
                let to = NARROWER[random.below(5) as usize];
                let exponent = match random.below(4) {
                    0 => random.between(-to.bias() - i64::from(to.mantissa) - 1, 2 - to.bias()),
                    1 => random.between(to.bias() - 1, to.bias() + 1),
                    _ => random.between(-to.bias(), to.bias()),
                };
                // Of a subnormal number fewer bits count.
                let lost = (1 - to.bias() - exponent).clamp(0, i64::from(to.mantissa));
                let kept = i64::from(to.mantissa) - lost;
                let free = i64::from(self.mantissa) - kept - 1;
                if free < 0 {
                    self.of(exponent, random.next())
                } else {
                    let most = random.next() & 3;
                    let head = if most == 0 { u64::MAX } else { random.next() };
                    self.of(exponent, (head << 1 | 1) << free)
                }
            }
        };
        let near = (bits as i64 + step).max(0) as u64;
        let bits = if near & self.infinity() == self.infinity() { bits } else { near };
        self.signed(bits & !self.sign(), random)
    }
}

fn reals(format: Format, class: usize, random: &mut Random) -> [u64; 3] {
    let mantissa = i64::from(format.mantissa);
    match class {
        0 => [(); 3].map(|()| format.edge(random)),
        1 => [(); 3].map(|()| format.cut(random.between(-160, 160) as f64 * 0.25)),
        2 | 3 => [(); 3].map(|()| format.any(random)),
        4 => [(); 3].map(|()| format.near_power(random)),
        5 => {
            let [a, b, c] = [(); 3].map(|()| format.any(random));
            match random.below(3) {
                0 => [format.edge(random), b, c],
                1 => [a, format.edge(random), c],
                _ => [a, b, format.edge(random)],
            }
        }
        6 => {
            let a = format.decisive(random);
            // Half of a's last place, or nearly: where the sum is rounded.
            let place = format.exponent_of(a) - mantissa - 1;
            let least = [0, 0, 1, format.last()][random.below(4) as usize];
            let half = format.signed(format.of(place + random.between(-1, 0), least), random);
            let b = if random.below(2) == 0 { half } else { format.decisive(random) };
            [a, b, format.decisive(random)]
        }
        7 => {
            let a = format.moderate(random);
            let b = if random.below(2) == 0 {
                let near = a.wrapping_add(random.between(-2, 2) as u64);
                format.signed(near & format.bits(), random)
            } else {
                format.moderate(random)
            };
            let product = format.cut(-(format.value(a) * format.value(b)));
            [a, b, product.wrapping_add(random.between(-1, 1) as u64) & format.bits()]
        }
        8 => {
            let highest = format.bias();
            let first = random.between(1 - highest, highest);
            let sum = match random.below(3) {
                0 => random.between(highest - 1, highest + 1),
                1 => random.between(-highest - mantissa - 1, -highest + 2),
                _ => random.between(-highest - 2, -highest + 1),
            };
            let second = (sum - first).clamp(1 - highest, highest);
            let [a, b] = [format.of(first, random.next()), format.of(second, random.next())];
            let third = format.of(sum - random.between(0, 3), random.next());
            [format.signed(a, random), format.signed(b, random), format.signed(third, random)]
        }
        9 => {
            let all = [(); 3].map(|()| format.subnormal(random));
            match random.below(3) {
                0 => [format.moderate(random), all[1], all[2]],
                1 => [all[0], format.moderate(random), all[2]],
                _ => all,
            }
        }
        _ => [(); 3].map(|()| format.moderate(random)),
    }
}
