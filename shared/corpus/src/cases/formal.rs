//! `kernels/formal.cu`: no part of [`super::cases`], for compute-sanitizer's tools do not tell a bug from a formality.

use lab_device::DType::{F16, F32, I32 as INT, U32 as UINT};

use super::{File, falling, grid, of, ramp, zeros};
use crate::Arg::{I32, In, InOut, Out};
use crate::Case;
use crate::Kind::{Memory, Race, Sync};
use crate::kernels::{FORMAL, SYNC};

/// What GPUs do as it is meant, though nothing promises it, each beside a kernel that is right or has a bug.
pub fn formal() -> Vec<Case> {
    let file = File(&FORMAL);
    let word = || InOut(UINT, zeros(1));
    let of_rows = || [In(F32, ramp(128)), Out(F32, 32)];
    let fours = || [of(32, |t| 16 * t + 6)];
    let copied = || [In(F32, ramp(128)), Out(F32, 128)];
    let two = |threads| grid(2, threads).cooperative();
    let int = || InOut(INT, zeros(1));
    let message = || [vec![42.0], vec![1.0], vec![42.0]];
    let of_block = || [Out(INT, 64), int(), Out(INT, 64)];
    let scan = || [word(), In(INT, ramp(8)), Out(INT, 8), InOut(UINT, zeros(8))];
    let eight = || InOut(INT, zeros(8));
    let sums = || of(8, |i| i * (i + 1) / 2);
    let swapped = || [InOut(INT, zeros(2)), Out(INT, 2), Out(INT, 2)];
    let swap = || [vec![1.0; 2], vec![10.0, 11.0], vec![11.0, 10.0]];
    let tile = || [In(F16, ramp(256)), Out(F16, 256)];
    vec![
        File(&SYNC).formal(
            Sync,
            "barriers_apart_by_warps",
            grid(1, 64),
            [Out(INT, 64), I32(1)],
            [of(64, |t| if t < 32 { 2 } else { 11 })],
        ),
        file.formal(
            Race,
            "warp_synchronous",
            grid(1, 32),
            [In(INT, ramp(64)), Out(INT, 1)],
            [vec![2016.0]],
        ),
        file.right(
            "warp_with_barriers",
            grid(1, 32),
            [In(INT, ramp(64)), Out(INT, 1)],
            [vec![2016.0]],
        ),
        file.bug(Race, "halves_without_barrier", grid(1, 128), [In(INT, ramp(128)), Out(INT, 128)]),
        file.bug(Race, "volatile_sum", grid(4, 1), [InOut(INT, zeros(1))]),
        file.right("volatile_word_awaited", grid(1, 64), [Out(INT, 64)], [vec![5.0; 64]]),
        file.bug(Race, "volatile_message", two(1), [int(), int(), Out(INT, 1)]),
        file.right("volatile_message_fenced", two(1), [int(), int(), Out(INT, 1)], message()),
        file.bug(Race, "volatile_message_of_block", two(64), of_block()),
        file.right(
            "volatile_message_of_block_fenced",
            two(64),
            of_block(),
            [ramp(64), vec![1.0], falling(64)],
        ),
        file.bug(Race, "volatile_scan", grid(8, 1), scan()),
        file.right("volatile_scan_fenced", grid(8, 1), scan(), [vec![8.0], sums(), vec![1.0; 8]]),
        file.right(
            "volatile_flags",
            grid(8, 1),
            [word(), In(INT, of(8, |i| i + 1)), eight(), eight()],
            [vec![8.0], of(8, |i| (i + 1) * (i + 2) / 2), of(8, |i| i + 1)],
        ),
        file.right(
            "volatile_last_block",
            grid(8, 1),
            [In(INT, ramp(8)), Out(INT, 8), word(), Out(INT, 1)],
            [of(8, |i| 2 * i), vec![0.0], vec![56.0]],
        ),
        file.formal(
            Race,
            "volatile_message_between_warps",
            grid(1, 64),
            [Out(INT, 1)],
            [vec![42.0]],
        ),
        file.right(
            "volatile_message_between_warps_fenced",
            grid(1, 64),
            [Out(INT, 1)],
            [vec![42.0]],
        ),
        file.formal(
            Race,
            "product_by_cas",
            grid(5, 4),
            [InOut(INT, vec![1.0])],
            [vec![f64::from(1 << 20)]],
        ),
        file.bug(Race, "limit_by_plain_read", grid(8, 1), [InOut(INT, zeros(1)), I32(3)]),
        file.formal(Race, "counter_set_back", grid(6, 1), [word(), word()], [vec![0.0], vec![1.0]]),
        file.bug(Race, "counter_set_back_early", grid(6, 1), [word(), word()]),
        file.right(
            "flag_taken_back",
            two(32),
            [int(), Out(INT, 32), Out(INT, 32)],
            [vec![0.0], ramp(32), falling(32)],
        ),
        file.bug(
            Race,
            "flag_taken_back_unseen",
            two(32),
            [int(), int(), Out(INT, 32), Out(INT, 32)],
        ),
        file.formal(Sync, "blocks_swap", grid(2, 1), swapped(), swap()),
        file.right("blocks_swap_together", two(1), swapped(), swap()),
        file.bug(Sync, "blocks_swap_in_vain", grid(2, 1), swapped()).may_hang(),
        file.formal(
            Sync,
            "splits_in_turns",
            grid(32, 32),
            [InOut(INT, zeros(8)), InOut(F32, zeros(256))],
            // ((1 · 2 + 0) · 2 + 1) · 2 + 2, and so on.
            [vec![4.0; 8], vec![27.0; 256]],
        ),
        file.formal(Memory, "aligned_by_luck", grid(1, 128), of_rows(), fours()),
        file.right("aligned_as_declared", grid(1, 128), of_rows(), fours()),
        file.formal(Memory, "copied_by_luck", grid(1, 128), copied(), [falling(128)]),
        file.bug(Memory, "copied_misaligned", grid(1, 128), copied()),
        file.right("copied_as_declared", grid(1, 128), copied(), [falling(128)]),
        file.formal(Memory, "tile_aligned_by_luck", grid(1, 32), tile(), [ramp(256)]),
        file.bug(Memory, "tile_misaligned", grid(1, 32), tile()),
        file.right("tile_aligned_as_declared", grid(1, 32), tile(), [ramp(256)]),
    ]
}
