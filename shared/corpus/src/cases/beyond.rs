//! `kernels/beyond.cu`: no part of [`super::cases`], for none of compute-sanitizer's tools looks at these.

use lab_device::DType::{BF16, F16, F32, I32 as INT, I64 as LONG};

use super::{File, falling, grid, of, ramp};
use crate::Arg::{I32, In, InOut, Out};
use crate::Case;
use crate::Kind::{Init, Race};
use crate::kernels::BEYOND;

/// What no tool of compute-sanitizer looks at: integers in registers, and memory that is taken for constant.
pub fn cases_beyond_sanitizer() -> Vec<Case> {
    let file = File(&BEYOND);
    let counted = || [In(INT, ramp(16)), Out(INT, 32), I32(16)];
    vec![
        file.bug(Init, "local_count", grid(1, 32), counted()),
        file.right("local_count_set", grid(1, 32), counted(), [vec![12.0; 32]]),
        file.bug(Init, "local_long_sum", grid(1, 32), [In(INT, ramp(64)), Out(LONG, 32), I32(64)]),
        file.bug(Init, "local_difference", grid(1, 32), counted()),
        file.right("first_is_best", grid(1, 32), counted(), [vec![15.0; 32]]),
        file.right(
            "large_numbers",
            grid(1, 32),
            [Out(INT, 32)],
            [of(32, |t| if t % 2 == 1 { 2_147_417_854 + t } else { t })],
        ),
        file.bug(
            Init,
            "local_sum_to_bf16",
            grid(1, 32),
            [In(F32, ramp(16)), Out(BF16, 32), I32(16)],
        ),
        file.bug(Init, "local_sum_to_f16", grid(1, 32), [In(F32, ramp(16)), Out(F16, 32), I32(16)]),
        file.bug(Init, "local_half_sum", grid(1, 32), [In(F16, ramp(16)), Out(F16, 32), I32(16)]),
        file.bug(
            Init,
            "local_sums_to_halves",
            grid(1, 32),
            [In(F32, ramp(16)), Out(F16, 64), I32(16)],
        ),
        file.right(
            "local_half_sum_set",
            grid(1, 32),
            [In(F16, ramp(16)), Out(F16, 32), I32(16)],
            [(0..32).map(|t| if t < 30 { 120.0 } else { f64::NAN }).collect()],
        ),
        file.bug(Race, "ldg_of_written", grid(1, 64), [Out(INT, 64), Out(INT, 64)]),
        file.right(
            "read_of_written",
            grid(1, 64),
            [Out(INT, 64), Out(INT, 64)],
            [ramp(64), falling(64)],
        ),
        file.bug(Race, "ldg_in_turns", grid(1, 32), [InOut(F32, ramp(128)), I32(2)]),
        file.formal(Race, "ldg_in_place", grid(1, 32), [InOut(INT, ramp(32))], [of(32, |t| t + 1)]),
        file.right(
            "ldg_of_other_half",
            grid(1, 64),
            [InOut(INT, ramp(128))],
            [of(128, |i| if i == 64 { 3 } else { i % 64 })],
        ),
    ]
}
