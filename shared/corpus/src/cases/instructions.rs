//! `kernels/instructions.cu`: single instructions, each form of them.

use lab_device::DType::{F16, F32, I32 as INT, U32 as UINT};
use lab_device::Launch;

use super::{File, falling, grid, of, ramp, zeros};
use crate::Arg::{I32, In, InOut, Out};
use crate::Case;
use crate::Kind::{Race, Sync};
use crate::kernels::INSTRUCTIONS;

/// The kernels that hold the headers of instructions: some wrong, most right. No other tool was held
/// against them.
pub fn instructions() -> Vec<Case> {
    let file = File(&INSTRUCTIONS);
    let block = |x, y| Launch::new_3d([1; 3], [x, y, 1]);
    let fragments = of(128, |i| fragment_word(i / 4, i % 4));
    vec![
        file.bug(Race, "named_arrival_is_no_wait", grid(1, 128), [In(INT, ramp(64)), Out(INT, 64)]),
        file.bug(Sync, "registers_more_than_there_are", grid(1, 384), [Out(INT, 384)]).may_hang(),
        file.bug(Sync, "registers_too_few_given_back", grid(1, 384), [Out(INT, 384)]).may_hang(),
        file.bug(Sync, "elected_by_half_a_warp", grid(1, 32), [Out(INT, 1)]).may_hang(),
        file.right(
            "async_pieces_or_zeros",
            grid(1, 32),
            [In(UINT, of(128, |i| i + 100)), Out(UINT, 224)],
            [[1, 2, 4].map(pieces).concat()],
        ),
        file.right(
            "tf32_rounds",
            grid(1, 4),
            [In(UINT, of(4, |i| MIDDLE - 1 + i)), Out(UINT, 4)],
            [[MIDDLE - 0x1000, MIDDLE + 0x1000, MIDDLE + 0x1000, MIDDLE + 0x1000]
                .map(|bits| bits as f64)
                .into()],
        ),
        file.right(
            "named_handover",
            grid(1, 128),
            [In(INT, ramp(320)), Out(INT, 320), I32(5)],
            [of(320, |i| i / 64 * 64 + 63 - i % 64)],
        ),
        file.right("named_crossed", grid(1, 64), [In(INT, ramp(64)), Out(INT, 64)], [falling(64)]),
        file.right("registers_handed_over", grid(1, 384), [Out(INT, 384)], [ramp(384)]),
        file.right("elected_once", block(16, 4), [Out(INT, 64)], [vec![11.0; 64]]),
        file.right(
            "matrices_stored",
            block(8, 8),
            [In(UINT, fragments), Out(UINT, 3072)],
            [[1, 2, 4].map(stored).concat()],
        ),
        file.right(
            "mbarrier_init_fenced_for_peer",
            grid(2, 32).cluster(2),
            [InOut(UINT, zeros(1)), Out(INT, 1)],
            [vec![1.0], vec![1.0]],
        ),
        file.right(
            "wgmma_majors",
            grid(1, 128).shared(64 * 32 + 2 * 2048),
            [
                In(F16, of(64 * 16, |i| small(i / 16, i % 16))),
                In(F16, of(16 * 128, |i| small(i / 128, i % 128))),
                Out(F32, 64 * 128),
            ],
            [of(64 * 128, |i| (0..16).map(|k| small(i / 128, k) * small(k, i % 128)).sum())],
        ),
        file.right(
            "wgmma_digits",
            grid(1, 128),
            [
                In(F32, of(64 * 8, |i| digits(i / 8, i % 8))),
                In(F32, of(8 * 8, |i| digits(i / 8, i % 8))),
                Out(F32, 64 * 8),
            ],
            [of(64 * 8, |i| (0..8).map(|k| digits(i / 8, k) * digits(i % 8, k)).sum())],
        ),
    ]
}

fn small(row: usize, column: usize) -> usize {
    (7 * row + 3 * column + row * column) % 11
}

/// Nine bits, the last of them set in each second number: a bfloat16 has eight.
fn digits(row: usize, column: usize) -> usize {
    256 + (37 * row + 11 * column) % 256
}

/// Of an f32, in the middle between 1 and the next TF32.
const MIDDLE: usize = 0x3f80_1000;

/// What comes of pieces of so many words, of which each third is outside.
fn pieces(words: usize) -> Vec<f64> {
    of(32 * words, |i| if (i / words).is_multiple_of(3) { 0 } else { i + 100 })
}

fn element(matrix: usize, row: usize, column: usize) -> usize {
    100 + matrix * 64 + row * 8 + column
}

/// What a lane has of a matrix: two neighbours of row lane / 4, the left one in the low half.
fn fragment_word(lane: usize, matrix: usize) -> usize {
    let (row, column) = (lane / 4, lane % 4 * 2);
    element(matrix, row, column) | element(matrix, row, column + 1) << 16
}

/// The 32 rows of each of two warps as they are, and then transposed; of each warp the first 8 `count` are stored.
fn stored(count: usize) -> Vec<f64> {
    of(1024, |i| {
        let (side, lane, column) = (i / 512, i / 8 % 32, i % 8);
        let (matrix, row) = (lane / 8, lane % 8);
        match (matrix < count, side) {
            (false, _) => 7,
            (true, 0) => element(matrix, row, column),
            (true, _) => element(matrix, column, row),
        }
    })
}
