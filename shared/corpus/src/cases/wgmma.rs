//! `kernels/wgmma.cu`.

use lab_device::DType::{self, BF16, F16, F32};

use super::{File, grid};
use crate::Arg::{I32, In, Out};
use crate::Case;
use crate::Kind::{Init, Memory, Race, Sync};
use crate::kernels::WGMMA;

/// Small integers [rows, ks]: rows of A, or columns of B. Each sum of their products is exact.
#[derive(Clone)]
struct Matrix {
    ks: usize,
    values: Vec<f64>,
}

impl Matrix {
    fn new(rows: usize, ks: usize, seed: usize) -> Self {
        let value = |i: usize| ((seed + 7 * i + i / ks) % 5) as f64 - 2.0;
        Self { ks, values: (0..rows * ks).map(value).collect() }
    }

    fn rows(&self) -> usize {
        self.values.len() / self.ks
    }

    fn arg(&self, dtype: DType) -> crate::Arg {
        In(dtype, self.values.clone())
    }

    fn transposed(&self) -> Self {
        let value = |i: usize| self.values[i % self.rows() * self.ks + i / self.rows()];
        Self { ks: self.rows(), values: (0..self.values.len()).map(value).collect() }
    }

    /// As the kernel's `at` places halves in a tile.
    fn tile(&self) -> Vec<f64> {
        let value = |i: usize| {
            let (chunk, row) = (i / 8 / self.rows(), i / 8 % self.rows());
            self.values[row * self.ks + 8 * chunk + i % 8]
        };
        (0..self.values.len()).map(value).collect()
    }
}

/// A B, where B is given by columns, row-major.
fn product(a: &Matrix, b: &Matrix) -> Vec<f64> {
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum();
    let row = |x| b.values.chunks(b.ks).map(move |y| dot(x, y));
    a.values.chunks(a.ks).flat_map(row).collect()
}

/// x + y f, element by element.
fn plus(x: &[f64], f: f64, y: &[f64]) -> Vec<f64> {
    x.iter().zip(y).map(|(x, y)| x + f * y).collect()
}

/// Of so many steps of k, each a Matrix of A and one of B.
fn steps(count: usize) -> Vec<(Matrix, Matrix)> {
    (0..count).map(|k| (Matrix::new(64, 16, k), Matrix::new(8, 16, 3 * k + 1))).collect()
}

fn sum(steps: &[(Matrix, Matrix)]) -> Vec<f64> {
    steps.iter().fold(vec![0.0; 64 * 8], |sum, (a, b)| plus(&sum, 1.0, &product(a, b)))
}

fn all<'a>(of: impl Iterator<Item = &'a Matrix>) -> crate::Arg {
    In(F16, of.flat_map(|m| m.values.clone()).collect())
}

/// Tile by tile, that of A and that of B, as copies bring them.
fn slots(steps: &[(Matrix, Matrix)]) -> crate::Arg {
    In(F16, steps.iter().flat_map(|(a, b)| [a.tile(), b.tile()].concat()).collect())
}

pub(super) fn cases() -> Vec<Case> {
    [registers(), stored(), loaded(), divergent_warps()].concat()
}

/// What the threads do with sums and with A in registers.
fn registers() -> Vec<Case> {
    let file = File(&WGMMA);
    let block = grid(1, 128);
    let (a, b) = (Matrix::new(64, 16, 0), Matrix::new(8, 16, 1));
    let one = product(&a, &b);
    let (a_of, b_of, out) = (|| a.arg(F16), || b.arg(F16), || Out(F32, 128));
    let race = |name| file.bug(Race, name, block, [a_of(), b_of(), out()]);
    let right = |name, expect: Vec<f64>| {
        file.right(name, block, [a_of(), b_of(), Out(F32, expect.len())], [expect])
    };
    let typed = |name, dtype, ks| {
        let (a, b) = (Matrix::new(64, ks, 2), Matrix::new(8, ks, 3));
        let arguments = [a.arg(dtype), b.arg(dtype), Out(F32, 64 * 8)];
        file.right(name, block, arguments, [product(&a, &b)])
    };
    let parts = [(a.clone(), b.clone()), (Matrix::new(64, 16, 2), b.clone())];
    let square = Matrix::new(16, 16, 1);
    let squared = Matrix { ks: 16, values: product(&a, &square) };
    let ones = vec![1.0; 64 * 8];
    vec![
        race("wgmma_read_before_wait"),
        race("wgmma_wait_too_few"),
        race("wgmma_never_committed"),
        race("wgmma_unfenced_sums"),
        race("wgmma_fence_too_early"),
        file.bug(Init, "wgmma_sums_never_set", block, [a_of(), b_of(), out()]),
        race("wgmma_unfenced_fragment"),
        race("wgmma_scaled_before_wait"),
        race("wgmma_scaled_unfenced"),
        race("wgmma_fragment_overwritten"),
        typed("wgmma_product<__half>", F16, 16),
        typed("wgmma_product<__nv_bfloat16>", BF16, 16),
        typed("wgmma_product<float>", F32, 8),
        file.right(
            "wgmma_fragments",
            block,
            [all(parts.iter().map(|p| &p.0)), b_of(), Out(F32, 64 * 8)],
            [sum(&parts)],
        ),
        right("wgmma_two_groups", [one.clone(), plus(&ones, 1.0, &one)].concat()),
        right("wgmma_set_meanwhile", [one.clone(), plus(&ones, 1.0, &one)].concat()),
        right("wgmma_groups_of_same_sums", plus(&one, 1.0, &one)),
        // 2 (2 + A B) + A B
        right("wgmma_scaled_between", plus(&vec![4.0; 64 * 8], 3.0, &one)),
        file.right(
            "wgmma_chain",
            block,
            [a_of(), square.arg(F16), Out(F32, 64 * 16)],
            [product(&squared, &square)],
        ),
    ]
}

/// Operands that the threads store.
fn stored() -> Vec<Case> {
    let file = File(&WGMMA);
    let block = grid(1, 128);
    let (a, b) = (Matrix::new(64, 16, 0), Matrix::new(8, 16, 1));
    let (twice, wide) = (Matrix::new(16, 16, 1), Matrix::new(64, 16, 1));
    let out = || Out(F32, 128);
    let race = |name| file.bug(Race, name, block, [a.arg(F16), b.arg(F16), out()]);
    let span = |name, ks| {
        let (a, b) = (Matrix::new(64, ks, 2), Matrix::new(64, ks, 3));
        let arguments = [a.arg(F16), b.arg(F16), Out(F32, 64 * 64)];
        file.right(name, block, arguments, [product(&a, &b)])
    };
    let right = |name, a: &Matrix, b: &Matrix| {
        file.right(name, block, [a.arg(F16), b.arg(F16), Out(F32, 64 * 8)], [product(a, b)])
    };
    // All of the shared memory that the launch asks for is B.
    let room = block.shared(64 * 16 * 2);
    let three = steps(3);
    vec![
        race("wgmma_unfenced_A"),
        race("wgmma_unfenced_B"),
        race("wgmma_fenced_by_one_writer"),
        race("wgmma_fenced_by_one_warp"),
        file.bug(Race, "wgmma_operand_overwritten", block, [a.arg(F16), twice.arg(F16), out()]),
        file.bug(
            Race,
            "wgmma_other_warpgroup_reads",
            grid(1, 256),
            [a.arg(F16), b.arg(F16), Out(F32, 256)],
        ),
        file.bug(Race, "wgmma_producer_unfenced", grid(1, 160), [a.arg(F16), b.arg(F16), out()]),
        file.bug(Init, "wgmma_of_unwritten_rows", block, [a.arg(F16), b.arg(F16), out(), I32(56)]),
        file.bug(Memory, "wgmma_of_device_memory", block, [a.arg(F16), b.arg(F16), out()]),
        file.bug(Memory, "wgmma_past_end", room, [a.arg(F16), wide.arg(F16), out()]),
        file.bug(Memory, "wgmma_swapped_strides", room, [a.arg(F16), wide.arg(F16), out()]),
        span("wgmma_span<16>", 16),
        span("wgmma_span<32>", 16),
        span("wgmma_span<64>", 32),
        span("wgmma_span<128>", 64),
        file.right(
            "wgmma_transposed",
            block,
            [a.transposed().arg(F16), wide.transposed().arg(F16), Out(F32, 64 * 64)],
            [product(&a, &wide)],
        ),
        right("wgmma_steps", &Matrix::new(64, 64, 0), &Matrix::new(8, 64, 1)),
        right("wgmma_fenced_between_barriers", &a, &b),
        right("wgmma_fenced_by_readers", &a, &b),
        file.right(
            "wgmma_producer_fenced",
            grid(1, 160),
            [a.arg(F16), b.arg(F16), Out(F32, 64 * 8)],
            [product(&a, &b)],
        ),
        file.right(
            "wgmma_operand_read_meanwhile",
            block,
            [a.arg(F16), b.arg(F16), Out(F32, 64 * 8), Out(F32, 128)],
            [product(&a, &b), b.values.iter().map(|v| 2.0 * v).collect()],
        ),
        file.right(
            "wgmma_tiles_reused",
            block,
            [
                all(three.iter().map(|s| &s.0)),
                all(three.iter().map(|s| &s.1)),
                Out(F32, 64 * 8),
                I32(3),
            ],
            [sum(&three)],
        ),
    ]
}

/// Operands that copies bring.
fn loaded() -> Vec<Case> {
    let file = File(&WGMMA);
    // A warp that asks for copies, behind one warpgroup or two.
    let (ring, two) = (grid(1, 160), grid(1, 288));
    let steps = steps(5);
    let sums = || Out(F32, 64 * 8);
    let one = &steps[..1];
    let (a, b) = (Matrix::new(128, 16, 0), steps.iter().map(|s| &s.1));
    let shared = b.clone().fold(vec![0.0; 128 * 8], |sum, b| plus(&sum, 1.0, &product(&a, b)));
    vec![
        file.bug(Race, "wgmma_full_not_awaited", grid(1, 128), [slots(one), Out(F32, 128)]),
        file.bug(Race, "wgmma_empty_before_wait", ring, [slots(&steps), Out(F32, 128), I32(5)]),
        file.bug(Race, "wgmma_empty_too_new", ring, [slots(&steps), Out(F32, 128), I32(5)]),
        // The slower warpgroup may find the phase that it waits for gone.
        file.bug(Race, "wgmma_empty_of_one_warpgroup", two, [slots(&steps), Out(F32, 256), I32(5)])
            .may_hang(),
        file.right("wgmma_bulk_loaded", grid(1, 128), [slots(one), sums()], [sum(one)]),
        file.right("wgmma_ring", ring, [slots(&steps), sums(), I32(5)], [sum(&steps)]),
        file.right("wgmma_ring_behind", ring, [slots(&steps), sums(), I32(5)], [sum(&steps)]),
        file.right(
            "wgmma_two_warpgroups",
            two,
            [a.arg(F16), In(F16, b.flat_map(Matrix::tile).collect()), Out(F32, 128 * 8), I32(5)],
            [shared],
        ),
    ]
}

/// Warps that do not do the same, or leave.
fn divergent_warps() -> Vec<Case> {
    let file = File(&WGMMA);
    let block = grid(1, 128);
    let (a, b) = (Matrix::new(64, 32, 0), Matrix::new(8, 32, 1));
    let both = || [a.arg(F16), b.arg(F16), Out(F32, 128)];
    let some = |count| [a.arg(F16), b.arg(F16), Out(F32, 128), I32(count)];
    vec![
        file.bug(Sync, "wgmma_skipped_by_one_warp", block, some(48)).may_hang(),
        file.bug(Sync, "wgmma_after_exit", block, some(48)).may_hang(),
        file.bug(Sync, "wgmma_by_half_of_each_warp", block, some(16)).may_hang(),
        file.bug(Sync, "wgmma_from_second_warp", grid(1, 160), both()).may_hang(),
        file.bug(Sync, "wgmma_other_operands", block, both()).may_hang(),
        file.bug(Sync, "wgmma_other_order", block, both()).may_hang(),
        file.bug(Sync, "wgmma_apart", block, both()).may_hang(),
        // What a product still reads is memory of a block that is no more.
        file.bug(Race, "wgmma_exit_without_wait", block, both()),
    ]
}
