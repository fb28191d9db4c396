//! Collectives on small matrices whose elements are spread over the 32 lanes of a warp: `ldmatrix`
//! and `mma.sync`, as the PTX ISA spreads them (matrix fragments for mma.m16n8k16, .m16n8k8).
//!
//! Products are exact and a sum of them is rounded to f32 once. Tensor cores cut a little more
//! off, how much is not documented; bounds on errors hold for both.

use half::bf16;

use crate::warp::{Collective, LANES};

/// Rows of A and C, columns of B and C.
const M: usize = 16;
const N: usize = 8;

/// Mirrors `EmuRow` in `emulator_abi.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Row {
    shared: usize,
    row: [u16; 8],
    to: [[u16; 2]; 4],
}

/// Mirrors `EmuShare` in `emulator_abi.h`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Share {
    a: [u32; 4],
    b: [u32; 2],
    c: [f32; 4],
}

/// Runs a collective on the operands at these addresses, a lane each.
///
/// # Safety
/// Each is the address of the operand that `op` takes, and nobody else uses it meanwhile.
pub(crate) unsafe fn run(op: Collective, operands: [usize; LANES]) {
    // SAFETY: the caller's promise.
    let rows = || operands.map(|o| unsafe { *(o as *const Row) });
    // SAFETY: the caller's promise: an operand of mma is a share.
    let shares = || operands.map(|o| unsafe { *(o as *const Share) });
    match op {
        Collective::LoadMatrices | Collective::LoadMatricesTransposed => {
            let to = spread(&rows().map(|r| r.row), op == Collective::LoadMatricesTransposed);
            for (operand, to) in operands.into_iter().zip(to) {
                // SAFETY: the caller's promise: it is the row that was read, and nobody else uses it.
                unsafe { (*(operand as *mut Row)).to = to };
            }
        }
        Collective::MmaF16 | Collective::MmaBf16 | Collective::MmaTf32 => {
            let sums = multiply_add(op, &shares());
            for (operand, c) in operands.into_iter().zip(sums) {
                // SAFETY: the caller's promise: it is the share that was read, and nobody else uses it.
                unsafe { (*(operand as *mut Share)).c = c };
            }
        }
        _ => {}
    }
}

/// The address that a lane read for `ldmatrix`.
///
/// # Safety
/// As for [`run`].
pub(crate) unsafe fn row_address(op: Collective, operand: usize) -> Option<usize> {
    let loads = matches!(op, Collective::LoadMatrices | Collective::LoadMatricesTransposed);
    // SAFETY: the caller's promise.
    loads.then(|| unsafe { (*(operand as *const Row)).shared }).filter(|&shared| shared != 0)
}

/// Multiplications and additions of one instruction of a warp.
pub(crate) fn flops(op: Collective) -> u64 {
    let products = M * N * depth(op);
    2 * products as u64
}

/// Columns of A, rows of B; 0 of what does not multiply.
fn depth(op: Collective) -> usize {
    match op {
        Collective::MmaF16 | Collective::MmaBf16 => 16,
        Collective::MmaTf32 => 8,
        _ => 0,
    }
}

/// Lane l brings row l % 8 of matrix l / 8. Of each matrix it gets two neighbours in row l / 4, or
/// transposed in column l / 4.
fn spread(rows: &[[u16; 8]; LANES], transposed: bool) -> [[[u16; 2]; 4]; LANES] {
    std::array::from_fn(|lane| {
        let (g, t) = (lane / 4, lane % 4);
        std::array::from_fn(|matrix| {
            [2 * t, 2 * t + 1]
                .map(|i| if transposed { rows[8 * matrix + i][g] } else { rows[8 * matrix + g][i] })
        })
    })
}

/// The elements of a register, the one at the lower k first; TF32 has one.
#[inline(always)]
fn elements(op: Collective, register: u32) -> [f32; 2] {
    let halves = [register as u16, (register >> 16) as u16];
    match op {
        Collective::MmaF16 => halves.map(widen),
        Collective::MmaBf16 => halves.map(|h| bf16::from_bits(h).to_f32()),
        // The tensor cores do not look at the 13 bits below.
        _ => [f32::from_bits(register & 0xFFFF_E000), 0.0],
    }
}

/// An f16 as f32. `half` asks at each what the processor can do, which costs more than this.
#[inline(always)]
pub(crate) fn widen(half: u16) -> f32 {
    let bits = u32::from(half);
    // As if the exponents of both began at the same number: exact, for subnormal numbers as well.
    let magnitude = f32::from_bits((bits & 0x7FFF) << 13) * f32::from_bits((127 + 112) << 23);
    let no_number = if bits & 0x7C00 == 0x7C00 { 0x7F80_0000 } else { 0 };
    f32::from_bits(magnitude.to_bits() | no_number | (bits & 0x8000) << 16)
}

/// C + A B.
fn multiply_add(op: Collective, shares: &[Share; LANES]) -> [[f32; 4]; LANES] {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has it.
        return unsafe { multiply_add_avx2(op, shares) };
    }
    multiply_add_by_type(op, shares)
}

/// Four numbers at a time. Products of halves and of TF32 are exact in f64: each sum is the same.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn multiply_add_avx2(op: Collective, shares: &[Share; LANES]) -> [[f32; 4]; LANES] {
    multiply_add_by_type(op, shares)
}

#[inline(always)]
fn multiply_add_by_type(op: Collective, shares: &[Share; LANES]) -> [[f32; 4]; LANES] {
    match op {
        Collective::MmaF16 => multiply_add_of::<16>(Collective::MmaF16, shares),
        Collective::MmaBf16 => multiply_add_of::<16>(Collective::MmaBf16, shares),
        _ => multiply_add_of::<8>(Collective::MmaTf32, shares),
    }
}

#[inline(always)]
fn multiply_add_of<const DEPTH: usize>(
    op: Collective,
    shares: &[Share; LANES],
) -> [[f32; 4]; LANES] {
    let each = DEPTH / 8; // elements a register
    let (mut a, mut b) = ([[0f64; DEPTH]; M], [[0f64; N]; DEPTH]);
    for (lane, share) in shares.iter().enumerate() {
        let (g, t) = (lane / 4, lane % 4);
        for (register, &bits) in share.a.iter().enumerate() {
            let (row, first) = (g + register % 2 * 8, register / 2 * DEPTH / 2 + each * t);
            let values = elements(op, bits);
            (0..each).for_each(|i| a[row][first + i] = f64::from(values[i]));
        }
        for (register, &bits) in share.b.iter().enumerate() {
            let values = elements(op, bits);
            let first = register * DEPTH / 2 + each * t;
            (0..each).for_each(|i| b[first + i][g] = f64::from(values[i]));
        }
    }
    let mut products = [[0f64; N]; M];
    for (to, a) in products.iter_mut().zip(&a) {
        let mut sums = [0f64; N]; // in registers
        for (a, b) in a.iter().zip(&b) {
            (0..N).for_each(|n| sums[n] += a * b[n]);
        }
        *to = sums;
    }
    std::array::from_fn(|lane| {
        let (g, t) = (lane / 4, lane % 4);
        std::array::from_fn(|i| {
            let product = products[g + i / 2 * 8][2 * t + i % 2];
            (f64::from(shares[lane].c[i]) + product) as f32
        })
    })
}

#[cfg(test)]
mod tests {
    use half::f16;

    use super::*;

    #[test]
    fn a_row_goes_to_four_lanes_and_a_column_too() {
        let rows = std::array::from_fn(|l| std::array::from_fn(|i| (100 * l + i) as u16));
        let plain = spread(&rows, false);
        assert_eq!(plain[0], [[0, 1], [800, 801], [1600, 1601], [2400, 2401]]);
        assert_eq!(plain[7][1], [906, 907], "row 1 of the second matrix, columns 6 and 7");
        let transposed = spread(&rows, true);
        assert_eq!(transposed[0][0], [0, 100]);
        assert_eq!(transposed[7][3], [3001, 3101], "rows 6 and 7 of the last, column 1");
    }

    #[test]
    fn an_f16_is_the_same_number_as_f32() {
        for bits in 0..=u16::MAX {
            let (got, expected) = (widen(bits), f16::from_bits(bits).to_f32());
            let same = got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan();
            assert!(same, "{bits:04x}: {got} is not {expected}");
        }
    }

    /// Each element of A and B by itself: one product, at one place.
    #[test]
    fn every_product_has_its_place() {
        let empty = [Share { a: [0; 4], b: [0; 2], c: [0.0; 4] }; LANES];
        for (op, one, wide) in [
            (Collective::MmaF16, u32::from(f16::ONE.to_bits()), true),
            (Collective::MmaBf16, u32::from(bf16::ONE.to_bits()), true),
            (Collective::MmaTf32, 1f32.to_bits(), false),
        ] {
            let each = if wide { 2 } else { 1 };
            let mut seen = rustc_hash::FxHashSet::default();
            for (lane, register, half) in (0..LANES * 4 * each).map(|i| {
                let i = (i / each, i % each);
                (i.0 / 4, i.0 % 4, i.1)
            }) {
                // Row and k by the PTX ISA's formulas.
                let row = lane / 4 + 8 * (register % 2);
                let k = each * (lane % 4) + half + 4 * each * (register / 2);
                let mut shares = empty;
                shares[lane].a[register] = one << (16 * half);
                // All of B is one in row k, and nowhere else.
                let (owner, upper) = (k % (4 * each) / each, k / (4 * each));
                for column in 0..N {
                    shares[4 * column + owner].b[upper] = one << (16 * (k % each));
                }
                let sums = multiply_add(op, &shares);
                for (l, sum) in sums.iter().enumerate() {
                    for (i, &c) in sum.iter().enumerate() {
                        let hit = l / 4 + 8 * (i / 2) == row;
                        assert_eq!(c, f32::from(u8::from(hit)), "{op:?} A[{row}][{k}] lane {l}");
                    }
                }
                seen.insert((row, k));
            }
            assert_eq!(seen.len(), M * depth(op));
        }
    }

    #[test]
    fn tf32_cuts_what_was_not_rounded() {
        let mut shares = [Share { a: [0; 4], b: [0; 2], c: [1.0; 4] }; LANES];
        shares[0].a[0] = f32::to_bits(1.0 + f32::EPSILON);
        shares[0].b[0] = f32::to_bits(3.0);
        assert_eq!(multiply_add(Collective::MmaTf32, &shares)[0], [4.0, 1.0, 1.0, 1.0]);
    }
}
