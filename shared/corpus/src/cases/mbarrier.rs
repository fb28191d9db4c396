//! `kernels/mbarrier.cu`.

use lab_device::DType::{F32, I32 as INT, U32 as UINT};
use lab_device::Launch;

use super::{File, falling, grid, of, zeros};
use crate::Arg::{I32, InOut, Out};
use crate::Case;
use crate::Kind::{Init, Memory, Race, Sync};
use crate::kernels::MBARRIER;

/// One cluster of so many blocks of a warp.
fn cluster(blocks: u32) -> Launch {
    grid(blocks, 32).cluster(blocks)
}

pub(super) fn cases() -> Vec<Case> {
    let file = File(&MBARRIER);
    let parts = of(64, |i| if i < 32 { 96 - 2 * i } else { 94 - 2 * (i - 32) });
    vec![
        file.bug(Race, "mbarrier_read_without_wait", grid(1, 64), [Out(INT, 32)]),
        file.bug(Race, "mbarrier_arrives_before_write", grid(1, 64), [Out(INT, 32)]),
        file.bug(Race, "mbarrier_lane_arrives_alone", grid(1, 64), [Out(INT, 32)]),
        file.bug(Race, "mbarrier_wait_other_stage", grid(1, 64), [Out(INT, 64)]),
        file.bug(Race, "mbarrier_refill_too_early", grid(1, 64), [Out(INT, 64)]),
        file.bug(Race, "mbarrier_count_too_small", grid(1, 128), [Out(INT, 32)]),
        file.bug(Sync, "mbarrier_count_too_large", grid(1, 64), [Out(INT, 32)]).may_hang(),
        file.bug(Sync, "mbarrier_wrong_parity", grid(1, 64), [Out(INT, 64)]).may_hang(),
        file.bug(Sync, "mbarrier_parity_not_flipped", grid(1, 64), [Out(INT, 64)]).may_hang(),
        // An arrival counts in what is there: nobody has written it.
        file.bug(Init, "mbarrier_never_initialised", grid(1, 64), [Out(INT, 64)]).may_hang(),
        file.bug(Sync, "mbarrier_used_after_invalidate", grid(1, 64), [Out(INT, 64)]).may_hang(),
        file.bug(Sync, "mbarrier_init_twice", grid(1, 64), [Out(INT, 64)]).may_hang(),
        file.bug(Race, "mbarrier_init_unseen", grid(1, 64), [Out(INT, 1)]).may_hang(),
        file.bug(Sync, "mbarrier_plain_load", grid(1, 64), [Out(INT, 1)]),
        file.bug(Sync, "mbarrier_plain_store", grid(1, 64), [Out(INT, 64)]),
        file.right("mbarrier_handover", grid(1, 64), [Out(INT, 32)], [falling(32)]),
        file.right("mbarrier_lane_arrives_for_warp", grid(1, 64), [Out(INT, 32)], [falling(32)]),
        file.right(
            "mbarrier_for_syncthreads",
            grid(1, 64),
            [Out(INT, 64), I32(5)],
            [of(64, |t| (t + 5) % 64 + 5)],
        ),
        file.right(
            "mbarrier_ping_pong",
            grid(1, 64),
            [Out(INT, 32), I32(3)],
            [of(32, |t| 31 - t + 3)],
        ),
        file.right(
            "mbarrier_several_arrivals",
            grid(1, 64),
            [Out(INT, 32)],
            [of(32, |t| 192 + 4 * (31 - t))],
        ),
        file.right(
            "mbarrier_ring",
            grid(1, 64),
            [Out(INT, 32), I32(6)],
            [of(32, |t| 480 + 6 * (31 - t))],
        ),
        file.right(
            "mbarrier_in_dynamic_shared",
            grid(1, 64).shared(8 + 32 * 4),
            [Out(INT, 32)],
            [falling(32)],
        ),
        file.right(
            "mbarrier_memory_reused",
            grid(1, 64).shared(8),
            [Out(INT, 64)],
            [vec![3.0; 64]],
        ),
        file.bug(
            Race,
            "mbarrier_init_unfenced_for_peer",
            cluster(2),
            [InOut(UINT, zeros(1)), Out(INT, 1)],
        )
        .may_hang(),
        file.bug(Memory, "mbarrier_peer_not_begun", cluster(2), [Out(F32, 64)]).may_hang(),
        file.bug(Memory, "mbarrier_arrival_at_exited", cluster(2), [Out(INT, 64)]).may_hang(),
        file.bug(Memory, "mbarrier_store_to_exited", cluster(2), [Out(F32, 64)]).may_hang(),
        file.bug(Race, "mbarrier_sent_but_waited_in_block", cluster(2), [Out(F32, 64)]),
        file.bug(Race, "mbarrier_arrival_waited_in_block", cluster(2), [Out(INT, 64)]),
        file.bug(Race, "mbarrier_box_sent_again", cluster(2), [Out(F32, 64)]),
        file.bug(Race, "mbarrier_expect_too_small", cluster(2), [Out(F32, 64)]),
        file.bug(Sync, "mbarrier_expect_too_large", cluster(2), [Out(F32, 64)]).may_hang(),
        file.right(
            "mbarrier_exchange",
            grid(8, 32).cluster(4),
            [Out(F32, 8), I32(3)],
            [vec![160.0; 8]],
        ),
        file.right("mbarrier_gather", cluster(4), [Out(INT, 128)], [falling(128)]),
        file.right("mbarrier_expect_in_parts", cluster(2), [Out(F32, 64)], [parts]),
        file.right(
            "mbarrier_answered",
            cluster(2),
            [Out(F32, 64), I32(3)],
            [of(64, |i| 63 - i + 3)],
        ),
    ]
}
