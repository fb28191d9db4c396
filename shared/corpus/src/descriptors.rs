//! Random matrix descriptors, and what wgmma must compute by them.
//!
//! Where an operand's elements lie is worked out here element by element, from the canonical layouts of
//! the PTX ISA ("Asynchronous Warpgroup Level Matrix Shared Memory Layout") as CUTLASS writes them down
//! (`cute/atom/mma_traits_sm90_gmma.hpp`). The emulator has a way of its own, chunk by chunk, and a GPU is
//! the judge of both: elements are small integers, so that every sum is exact.

use half::{bf16, f16};
use lab_device::{DType, Launch};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::{Arg, Case, Verdict, kernels};

/// Products of each case.
pub const PRODUCTS: usize = 64;
/// Bytes of shared memory that operands lie in.
const WINDOW: usize = 48 * 1024;

#[derive(Clone, Copy, PartialEq)]
enum Of {
    F16,
    Bf16,
    Tf32,
}

/// One instantiation.
struct Shape {
    name: &'static str,
    of: Of,
    columns: usize,
    transposed: [bool; 2],
    registers: bool,
}

macro_rules! shapes {
    ($($t:literal $of:ident $n:literal $a:literal $b:literal $registers:literal;)*) => {
        /// The instantiations' names, for the build script too.
        const SHAPES: &[Shape] = &[$(Shape {
            name: concat!("described<", $t, ", ", $n, ", ", $a, ", ", $b, ", ", $registers, ">"),
            of: Of::$of,
            columns: $n,
            transposed: [$a == 1, $b == 1],
            registers: $registers == 1,
        },)*];
    };
}
include!("shapes.in");

/// A descriptor's fields, in bytes.
#[derive(Clone, Copy, Debug)]
struct Fields {
    start: usize,
    leading: usize,
    stride: usize,
    /// 0 no swizzle, 1 by 128 bytes, 2 by 64, 3 by 32.
    mode: usize,
}

impl Fields {
    fn bits(&self) -> u64 {
        (self.start >> 4) as u64
            | ((self.leading >> 4) as u64) << 16
            | ((self.stride >> 4) as u64) << 32
            | (self.mode as u64) << 62
    }

    /// Where the element of this row and step of k begins.
    fn place(&self, row: usize, k: usize, bytes: usize, transposed: bool) -> usize {
        let span = [16, 128, 64, 32][self.mode];
        let unit = 16 / bytes; // elements
        let plain = match (transposed, self.mode) {
            // ((8, m), (T, 2)) : ((1T, SBO), (1, LBO))
            (false, 0) => {
                row % 8 * 16 + row / 8 * self.stride + k % unit * bytes + k / unit * self.leading
            }
            // ((8, m), (T, 2)) : ((span, SBO), (1, T))
            (false, _) => row % 8 * span + row / 8 * self.stride + k * bytes,
            // ((T, 1, m), (8, k)) : ((1, T, SBO), (1T, LBO))
            (true, 0) => {
                row % unit * bytes + row / unit * self.stride + k % 8 * 16 + k / 8 * self.leading
            }
            // ((T, w, m), (8, k)) : ((1, T, LBO), (span, SBO))
            (true, _) => {
                let panel = span / bytes;
                row % panel * bytes
                    + row / panel * self.leading
                    + k % 8 * span
                    + k / 8 * self.stride
            }
        };
        let address = self.start + plain;
        // Swizzle<B, 4, 3>: the bits from 4 on are mixed with as many from 7 on.
        let mask = span / 16 - 1;
        address ^ (address >> 7 & mask) << 4
    }

    /// Of an operand of so many rows that ends inside of the window.
    fn draw(dice: &mut StdRng, rows: usize, bytes: usize, transposed: bool) -> Self {
        loop {
            let mut offset = |most: usize| 16 * dice.random_range(0..=most / 16);
            let fields =
                Self { start: offset(8192), leading: offset(4096), stride: offset(2048), mode: 0 };
            let fields = Self { mode: dice.random_range(0..4), ..fields };
            let depth = 32 / bytes;
            let places = (0..rows).flat_map(|r| (0..depth).map(move |k| (r, k)));
            let last = places.map(|(r, k)| fields.place(r, k, bytes, transposed)).max();
            if last.is_some_and(|last| last + bytes <= WINDOW) {
                return fields;
            }
        }
    }
}

/// The cases: each is one instantiation with [`PRODUCTS`] random pairs of descriptors.
pub fn descriptors() -> impl Iterator<Item = Case> {
    SHAPES.iter().enumerate().map(|(index, shape)| case(shape, index as u64))
}

fn case(shape: &Shape, seed: u64) -> Case {
    let mut dice = StdRng::seed_from_u64(seed);
    let bytes = if shape.of == Of::Tf32 { 4 } else { 2 };
    let (depth, columns) = (32 / bytes, shape.columns);
    let values: Vec<f64> = (0..WINDOW / bytes).map(|_| draw(&mut dice)).collect();
    let (mut descriptors, mut registers, mut sums) = (Vec::new(), Vec::new(), Vec::new());
    for product in 0..PRODUCTS {
        let of_a = Fields::draw(&mut dice, 64, bytes, shape.transposed[0]);
        let of_b = Fields::draw(&mut dice, columns, bytes, shape.transposed[1]);
        for bits in [of_a.bits(), of_b.bits()] {
            descriptors.extend([f64::from(bits as u32), f64::from((bits >> 32) as u32)]);
        }
        let mut a = vec![0.0; 64 * depth];
        for (row, k) in (0..64).flat_map(|r| (0..depth).map(move |k| (r, k))) {
            a[row * depth + k] = if shape.registers {
                draw(&mut dice)
            } else {
                values[of_a.place(row, k, bytes, shape.transposed[0]) / bytes]
            };
        }
        registers.extend(fragments(shape.of, &a, depth));
        for (row, column) in (0..64).flat_map(|r| (0..columns).map(move |c| (r, c))) {
            let b = |k| values[of_b.place(column, k, bytes, shape.transposed[1]) / bytes];
            let sum: f64 = (0..depth).map(|k| a[row * depth + k] * b(k)).sum();
            sums.push(product as f64 + sum);
        }
    }
    let words = |values: &[f64]| -> Vec<f64> {
        values.chunks(4 / bytes).map(|few| f64::from(word(shape.of, few))).collect()
    };
    Case {
        name: shape.name,
        source: &kernels::DESCRIPTORS,
        launch: Launch { dynamic_shared: WINDOW, ..Launch::new(1, 128) },
        arguments: vec![
            Arg::In(DType::U32, words(&values)),
            Arg::I32(WINDOW as i32),
            Arg::In(DType::U32, descriptors),
            Arg::In(DType::U32, registers),
            Arg::Out(DType::F32, sums.len()),
            Arg::I32(PRODUCTS as i32),
        ],
        verdict: Verdict::Correct { expect: vec![sums] },
        hangs: false,
    }
}

fn draw(dice: &mut StdRng) -> f64 {
    f64::from(dice.random_range(-3i8..=3))
}

/// The bits of one or two elements, the first in the low half.
fn word(of: Of, few: &[f64]) -> u32 {
    let half = |i: usize| match of {
        Of::F16 => u32::from(f16::from_f64(few[i]).to_bits()),
        _ => u32::from(bf16::from_f64(few[i]).to_bits()),
    };
    match of {
        Of::Tf32 => (few[0] as f32).to_bits(),
        _ => half(0) | half(1) << 16,
    }
}

/// A [64, depth] as the threads of a warpgroup hold it, four words each.
fn fragments(of: Of, a: &[f64], depth: usize) -> Vec<f64> {
    let each = if of == Of::Tf32 { 1 } else { 2 };
    let mut words = Vec::new();
    for (thread, register) in (0..128).flat_map(|t| (0..4).map(move |r| (t, r))) {
        let (warp, g, t) = (thread / 32, thread % 32 / 4, thread % 4);
        let row = 16 * warp + g + register % 2 * 8;
        let k = register / 2 * depth / 2 + each * t;
        words.push(f64::from(word(of, &a[row * depth + k..][..each])));
    }
    words
}
