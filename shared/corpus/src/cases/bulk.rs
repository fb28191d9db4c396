//! `kernels/bulk.cu`.

use lab_device::DType::F32;
use lab_device::Launch;

use super::{File, falling, grid, of, ramp, zeros};
use crate::Arg::{I32, In, InOut, Out};
use crate::Case;
use crate::Kind::{Memory, Race, Sync};
use crate::kernels::BULK;

/// One cluster of so many blocks of two warps.
fn cluster(blocks: u32) -> Launch {
    grid(blocks, 64).cluster(blocks)
}

pub(super) fn cases() -> Vec<Case> {
    let file = File(&BULK);
    let (one, two) = (|| In(F32, ramp(64)), || In(F32, ramp(128)));
    let out = || Out(F32, 64);
    let block = grid(1, 64);
    vec![
        file.bug(Race, "bulk_read_without_wait", block, [one(), out()]),
        file.bug(Race, "bulk_wait_other_stage", block, [two(), out()]),
        // They hang where the copy has come before the wait.
        file.bug(Race, "bulk_wrong_parity", block, [one(), out()]).may_hang(),
        file.bug(Race, "bulk_parity_not_flipped", block, [two(), out()]).may_hang(),
        file.bug(Race, "bulk_expect_too_small", block, [two(), out()]),
        file.bug(Sync, "bulk_expect_too_large", block, [one(), out()]).may_hang(),
        file.bug(Sync, "bulk_arrives_too_often", block, [one(), out()]).may_hang(),
        file.bug(Race, "bulk_refill_too_early", block, [two(), out()]),
        file.bug(Race, "bulk_empty_before_read", block, [two(), out()]),
        file.bug(Race, "bulk_load_over_stores", block, [one(), out()]),
        file.bug(Race, "bulk_load_of_stores", block, [InOut(F32, zeros(64)), out()]),
        file.bug(Memory, "bulk_misaligned", block, [In(F32, ramp(80)), out(), I32(1)]).may_hang(),
        file.bug(Memory, "bulk_odd_size", block, [one(), out(), I32(62)]).may_hang(),
        file.bug(Memory, "bulk_load_past_end", block, [In(F32, ramp(62)), out(), I32(62)])
            .may_hang(),
        file.right("bulk_one_load", block, [one(), out()], [falling(64)]),
        file.right("bulk_expect_in_parts", block, [one(), out()], [falling(64)]),
        file.right(
            "bulk_two_stages",
            block,
            [In(F32, ramp(256)), out(), I32(4)],
            [of(64, |t| 384 + 4 * (63 - t))],
        ),
        file.right(
            "bulk_producer_warp",
            grid(1, 96),
            [In(F32, ramp(320)), out(), I32(5)],
            [of(64, |t| 640 + 5 * (63 - t))],
        ),
        file.right("bulk_load_over_fenced_stores", block, [one(), out()], [ramp(64)]),
        file.bug(Race, "bulk_store_unfenced", block, [out()]),
        file.bug(Race, "bulk_fence_before_barrier", block, [out()]),
        file.bug(Race, "bulk_source_overwritten", block, [out()]),
        file.bug(Race, "bulk_wait_by_another", block, [out()]),
        file.bug(Race, "bulk_never_committed", block, [out()]),
        file.bug(Race, "bulk_wait_too_few", block, [Out(F32, 128)]),
        file.bug(Race, "bulk_read_back_too_early", block, [InOut(F32, zeros(64)), Out(F32, 1)]),
        file.bug(Race, "bulk_read_back_without_barrier", block, [InOut(F32, zeros(64)), out()]),
        // What a copy still reads is memory of a block that is no more.
        file.bug(Memory, "bulk_exit_without_wait", block, [out()]),
        file.bug(Memory, "bulk_store_past_end", block, [Out(F32, 62)]),
        file.right("bulk_store_fenced_by_writers", block, [out()], [falling(64)]),
        file.right("bulk_store_fenced_by_issuer", block, [out()], [falling(64)]),
        file.right("bulk_source_read", block, [Out(F32, 128)], [ramp(128)]),
        file.right("bulk_several_groups", block, [Out(F32, 256), I32(4)], [ramp(256)]),
        file.right("bulk_read_back", block, [out(), out()], [ramp(64), falling(64)]),
        file.right("bulk_in_and_out", block, [one(), out()], [of(64, |t| 2 * t)]),
        file.bug(Race, "bulk_send_unfenced", cluster(2), [Out(F32, 128)]),
        file.bug(Race, "bulk_send_source_overwritten", cluster(2), [Out(F32, 128)]),
        file.bug(Race, "bulk_box_sent_again", cluster(2), [Out(F32, 128)]),
        file.bug(Race, "bulk_send_releases_nothing", cluster(2), [Out(F32, 128)]),
        file.right("bulk_swap", cluster(2), [Out(F32, 128)], [falling(128)]),
        file.right(
            "bulk_ring",
            cluster(4),
            [Out(F32, 256), I32(3)],
            [of(256, |i| (i / 64 + 1) % 4 * 64 + 63 - i % 64 + 3)],
        ),
    ]
}
