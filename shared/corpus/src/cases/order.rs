//! `kernels/order.cu`.

use lab_device::DType::{F32, I32 as INT, U32 as UINT};

use super::{File, grid, of, ramp, zeros};
use crate::Arg::{In, InOut, Out};
use crate::Case;
use crate::Kind::Race;
use crate::kernels::ORDER;

pub(super) fn cases() -> Vec<Case> {
    let file = File(&ORDER);
    let (int, word) = (|| InOut(INT, zeros(1)), || InOut(UINT, zeros(1)));
    let two = grid(2, 1).cooperative();
    let four = grid(4, 1).cooperative();
    let message = || [vec![42.0], vec![1.0], vec![42.0]];
    let chain = [vec![42.0], vec![1.0; 4], vec![42.0]];
    let scan = [vec![8.0], of(8, |i| i * (i + 1) / 2), vec![1.0; 8]];
    vec![
        file.bug(
            Race,
            "last_block_without_fence",
            grid(8, 1),
            [In(F32, ramp(8)), InOut(F32, zeros(8)), word(), Out(F32, 1)],
        ),
        file.bug(
            Race,
            "last_block_narrow_fence",
            grid(8, 1),
            [In(F32, ramp(8)), InOut(F32, zeros(8)), word(), Out(F32, 1)],
        ),
        file.right(
            "last_block",
            grid(8, 1),
            [In(F32, ramp(8)), InOut(F32, zeros(8)), word(), Out(F32, 1)],
            [of(8, |i| 2 * i), vec![8.0], vec![56.0]],
        ),
        file.bug(
            Race,
            "fence_of_one_thread",
            grid(4, 32),
            [InOut(F32, zeros(128)), word(), Out(F32, 32)],
        ),
        file.right(
            "block_publishes",
            grid(4, 32),
            [InOut(F32, zeros(128)), word(), Out(F32, 32)],
            [of(128, |i| i % 32), zeros(1), of(32, |t| 4 * (31 - t))],
        ),
        file.bug(Race, "flag_without_release", two, [int(), int(), Out(INT, 1)]),
        file.bug(Race, "flag_without_acquire", two, [int(), int(), Out(INT, 1)]),
        file.bug(Race, "fence_behind_flag", two, [int(), int(), Out(INT, 1)]),
        file.bug(Race, "flag_before_data", two, [int(), int(), Out(INT, 1)]),
        file.bug(Race, "data_fetched_ahead", two, [int(), int(), Out(INT, 1)]),
        file.bug(Race, "flag_plain_store", two, [int(), int(), Out(INT, 1)]),
        file.bug(Race, "flag_plain_load", two, [int(), int(), Out(INT, 1)]),
        file.right("flag_atomic", two, [int(), int(), Out(INT, 1)], message()),
        file.right("flag_volatile", two, [int(), int(), Out(INT, 1)], message()),
        file.right("flag_acquire_release", two, [int(), int(), Out(INT, 1)], message()),
        file.right("flag_passed_on", four, [int(), InOut(INT, zeros(4)), Out(INT, 1)], chain),
        file.right(
            "scan_by_tickets",
            grid(8, 1),
            [word(), In(INT, ramp(8)), InOut(INT, zeros(8)), InOut(UINT, zeros(8))],
            scan,
        ),
        file.right(
            "counter_wraps",
            four,
            [InOut(INT, zeros(4)), word(), Out(INT, 4)],
            [of(4, |i| i + 1), zeros(1), vec![10.0; 4]],
        ),
        file.bug(Race, "counter_before_data", four, [InOut(INT, zeros(4)), word(), Out(INT, 4)]),
    ]
}
