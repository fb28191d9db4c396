//! `kernels/async.cu`.

use lab_device::DType::{F32, F64};

use super::{File, falling, grid, of, ramp};
use crate::Arg::{I32, In, InOut, Out};
use crate::Case;
use crate::Kind::{Memory, Race};
use crate::kernels::ASYNC;

pub(super) fn cases() -> Vec<Case> {
    let file = File(&ASYNC);
    let minus_64 = vec![-64.0; 64];
    vec![
        file.bug(Race, "async_read_before_wait", grid(1, 64), [In(F32, ramp(64)), Out(F32, 64)]),
        file.bug(
            Race,
            "async_wait_without_barrier",
            grid(1, 64),
            [In(F32, ramp(64)), Out(F32, 64)],
        ),
        file.bug(Race, "async_wait_too_few", grid(1, 64), [In(F32, ramp(128)), Out(F32, 64)]),
        file.bug(Race, "async_never_committed", grid(1, 64), [In(F32, ramp(64)), Out(F32, 64)]),
        file.bug(
            Race,
            "async_refill_too_early",
            grid(1, 64),
            [In(F32, ramp(256)), Out(F32, 64), I32(4)],
        ),
        file.bug(
            Race,
            "async_source_overwritten",
            grid(1, 64),
            [InOut(F32, ramp(64)), Out(F32, 64)],
        ),
        file.bug(Race, "async_target_overwritten", grid(1, 64), [In(F32, ramp(64)), Out(F32, 64)]),
        file.bug(Memory, "async_past_end", grid(1, 16), [In(F32, ramp(62)), Out(F32, 62), I32(62)]),
        file.bug(
            Memory,
            "async_misaligned",
            grid(1, 16),
            [In(F32, ramp(80)), Out(F32, 16), I32(1)],
        ),
        file.right("async_own_copy", grid(1, 64), [In(F32, ramp(64)), Out(F32, 64)], [ramp(64)]),
        file.right(
            "async_copies_of_others",
            grid(1, 64),
            [In(F64, ramp(64)), Out(F64, 64)],
            [falling(64)],
        ),
        file.right(
            "async_older_group",
            grid(1, 64),
            [In(F32, ramp(128)), Out(F32, 64)],
            [minus_64],
        ),
        file.right(
            "async_and_tail",
            grid(1, 16),
            [In(F32, ramp(61)), Out(F32, 61), I32(61)],
            [falling(61)],
        ),
        file.right(
            "async_two_stages",
            grid(1, 64),
            [In(F32, ramp(256)), Out(F32, 64), I32(4)],
            [of(64, |t| 384 + 4 * (63 - t))],
        ),
        file.right(
            "async_three_stages",
            grid(1, 64),
            [In(F32, ramp(320)), Out(F32, 64), I32(5)],
            [of(64, |t| 640 + 5 * (63 - t))],
        ),
    ]
}
