//! `kernels/sync.cu`.

use lab_device::DType::{F32, I32 as INT, U32 as UINT};

use super::{File, falling, grid, of, ramp, zeros};
use crate::Arg::{I32, In, InOut, Out};
use crate::Case;
use crate::Kind::Sync;
use crate::kernels::SYNC;

pub(super) fn cases() -> Vec<Case> {
    let file = File(&SYNC);
    let guarded = (0..32).map(|t| {
        if t < 19 {
            2 * t + 1
        } else if t == 19 {
            19
        } else {
            -1
        }
    });
    let guarded = guarded.map(f64::from).collect();
    let halves = of(32, |t| if t < 16 { t ^ 1 } else { 4 });
    let dropped = of(32, |t| [0, 24, 24 + 16, 24 + 16 + 8][t % 4]);
    let tile_of_8 = |t| match t / 8 % 2 {
        1 => t / 8 * 8 + 7 - t % 8,
        _ => t + usize::from(t % 8 < 7),
    };
    vec![
        file.bug(Sync, "barriers_apart", grid(1, 32), [Out(INT, 32), I32(1)]),
        file.bug(Sync, "mixed_barriers", grid(1, 64), [Out(INT, 64)]),
        file.bug(Sync, "uneven_loop", grid(1, 64), [Out(INT, 64)]),
        file.bug(Sync, "spins_behind_barrier", grid(1, 64), [Out(INT, 64)]).may_hang(),
        file.right("early_exit", grid(1, 64), [Out(INT, 40), I32(40)], [falling(40)]),
        file.right(
            "uniform_branch",
            grid(3, 64),
            [Out(INT, 192)],
            [of(192, |i| (i % 64 + i / 64 + 1) % 64)],
        ),
        file.right(
            "voted_loop",
            grid(1, 64),
            [In(INT, of(64, |i| i % 5)), Out(INT, 64)],
            [vec![400.0 + 10.0 + 25.0; 64]],
        ),
        file.bug(Sync, "not_in_mask", grid(1, 32), [Out(INT, 32)]),
        file.bug(Sync, "votes_uninvited", grid(1, 32), [Out(UINT, 32)]),
        file.bug(
            Sync,
            "shuffle_under_guard",
            grid(1, 32),
            [In(INT, ramp(32)), Out(INT, 32), I32(20)],
        )
        .may_hang(),
        file.right(
            "shuffle_outside_guard",
            grid(1, 32),
            [In(INT, ramp(32)), Out(INT, 32), I32(20)],
            [guarded],
        ),
        file.bug(Sync, "source_outside_mask", grid(1, 32), [Out(INT, 32), I32(20)]),
        file.bug(Sync, "source_has_exited", grid(1, 32), [Out(INT, 32), I32(20)]),
        file.bug(Sync, "masks_disagree", grid(1, 32), [Out(INT, 32)]),
        file.bug(Sync, "collectives_apart", grid(1, 32), [Out(UINT, 32)]).may_hang(),
        file.bug(Sync, "warp_and_block_barrier", grid(1, 32), [Out(INT, 32)]).may_hang(),
        file.right("halves_with_masks", grid(1, 32), [Out(INT, 32)], [halves]),
        file.right(
            "lanes_drop_out",
            grid(1, 32),
            [In(INT, of(32, |i| i % 4)), Out(INT, 32)],
            [dropped],
        ),
        file.right("half_of_warp_exits", grid(1, 32), [Out(INT, 16)], [falling(16)]),
        file.right(
            "same_keys_meet",
            grid(1, 32),
            [In(INT, of(32, |i| i % 3)), InOut(INT, zeros(4))],
            [vec![11.0, 11.0, 10.0, 0.0]],
        ),
        file.right(
            "sum_by_shuffles",
            grid(1, 32),
            [In(F32, ramp(32)), Out(F32, 32)],
            [vec![496.0; 32]],
        ),
        file.right("tiles_apart", grid(1, 64), [Out(INT, 64)], [of(64, tile_of_8)]),
        file.bug(Sync, "lone_grid_sync", grid(2, 1), [Out(INT, 2)]),
        file.bug(Sync, "block_leaves_grid", grid(3, 1).cooperative(), [Out(INT, 3)]).may_hang(),
        file.bug(Sync, "uneven_grid_loop", grid(3, 1).cooperative(), [Out(INT, 3)]).may_hang(),
    ]
}
