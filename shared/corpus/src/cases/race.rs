//! `kernels/race.cu`.

use lab_device::DType::{F16, F32, I32 as INT, U8, U32 as UINT};
use lab_device::Launch;

use super::{File, falling, grid, of, ramp, zeros};
use crate::Arg::{I32, In, InOut, Out};
use crate::Case;
use crate::Kind::Race;
use crate::kernels::RACE;

pub(super) fn cases() -> Vec<Case> {
    let file = File(&RACE);
    let square = Launch::new_3d([1, 1, 1], [8, 8, 1]);
    let three_tiles = || of(64, |t| 192 + 3 * (63 - t));
    let exchanged = of(384, |i| ((i % 128) ^ (i / 128 + 1)) * (i / 128 + 1));
    let words = of(32, |w| (0..4).map(|b| (4 * w + b) << (8 * b)).sum());
    vec![
        file.bug(Race, "tile_without_barrier", grid(1, 64), [In(F32, ramp(64)), Out(F32, 64)]),
        file.right(
            "tile_with_barrier",
            grid(1, 64),
            [In(F32, ramp(64)), Out(F32, 64)],
            [falling(64)],
        ),
        file.bug(
            Race,
            "refill_without_barrier",
            grid(1, 64),
            [In(F32, ramp(192)), Out(F32, 64), I32(3)],
        ),
        file.right(
            "refill_with_barriers",
            grid(1, 64),
            [In(F32, ramp(192)), Out(F32, 64), I32(3)],
            [three_tiles()],
        ),
        file.bug(
            Race,
            "single_buffer",
            grid(1, 64),
            [In(F32, ramp(192)), Out(F32, 64), I32(3), I32(1)],
        ),
        file.right(
            "double_buffer",
            grid(1, 64),
            [In(F32, ramp(192)), Out(F32, 64), I32(3)],
            [three_tiles()],
        ),
        file.bug(Race, "tree_without_barrier", grid(1, 128), [In(F32, ramp(128)), Out(F32, 1)]),
        file.right(
            "tree_with_barriers",
            grid(1, 128),
            [In(F32, ramp(128)), Out(F32, 1)],
            [vec![8128.0]],
        ),
        file.bug(Race, "warp_without_sync", grid(1, 32), [Out(INT, 32)]),
        file.right("warp_with_sync", grid(1, 128), [Out(INT, 384)], [exchanged]),
        file.bug(Race, "syncwarp_for_block", grid(1, 64), [Out(INT, 64)]),
        file.bug(Race, "transpose_without_barrier", square, [In(F32, ramp(64)), Out(F32, 64)]),
        file.right(
            "transpose_with_barrier",
            square,
            [In(F32, ramp(64)), Out(F32, 64)],
            [of(64, |i| 8 * (i % 8) + i / 8)],
        ),
        file.bug(Race, "vector_against_scalars", grid(1, 64), [In(F32, ramp(256)), Out(F32, 256)]),
        file.bug(
            Race,
            "broadcast_overwritten",
            grid(1, 64),
            [In(INT, ramp(4)), Out(INT, 64), I32(4)],
        ),
        file.bug(Race, "reduce_twice", grid(1, 128), [In(F32, ramp(128)), Out(F32, 128)]),
        file.right(
            "block_reduce_twice",
            grid(1, 128),
            [In(F32, ramp(128)), Out(F32, 128)],
            [vec![8255.0; 128]],
        ),
        file.right(
            "reused_for_another_type",
            grid(1, 64),
            [Out(INT, 64)],
            [of(64, |t| 63 - (t ^ 1))],
        ),
        file.bug(Race, "overlapping_pairs", grid(1, 64), [Out(F32, 64)]),
        file.right("neighbouring_halves", grid(1, 64), [Out(F16, 64)], [ramp(64)]),
        file.bug(Race, "byte_by_word", grid(1, 64), [InOut(UINT, zeros(16))]),
        file.right("neighbouring_bytes", grid(1, 128), [Out(UINT, 32)], [words]),
        file.bug(
            Race,
            "overlapping_memcpy",
            grid(1, 8),
            [In(U8, ramp(128)), Out(U8, 100), I32(16)],
        ),
        file.right(
            "disjoint_memcpy",
            grid(1, 8),
            [In(U8, ramp(128)), Out(U8, 96), I32(12)],
            [of(96, |i| i / 12 * 16 + i % 12)],
        ),
    ]
}
