//! `kernels/formal.cu`: no part of [`super::cases`], for compute-sanitizer's tools do not tell a bug from a formality.

use lab_device::DType::{F32, I32 as INT, U32 as UINT};

use super::{File, grid, of, ramp, zeros};
use crate::Arg::{I32, In, InOut, Out};
use crate::Case;
use crate::Kind::{Memory, Race};
use crate::kernels::FORMAL;

/// What GPUs do as it is meant, though nothing promises it, each beside a kernel that is right or has a bug.
pub fn formal() -> Vec<Case> {
    let file = File(&FORMAL);
    let word = || InOut(UINT, zeros(1));
    let of_rows = || [In(F32, ramp(128)), Out(F32, 32)];
    let fours = || [of(32, |t| 16 * t + 6)];
    vec![
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
        file.formal(Memory, "aligned_by_luck", grid(1, 128), of_rows(), fours()),
        file.right("aligned_as_declared", grid(1, 128), of_rows(), fours()),
    ]
}
