//! `kernels/locks.cu`.

use lab_device::DType::{I32 as INT, U32 as UINT};

use super::{File, falling, grid, of, ramp, zeros};
use crate::Arg::{I32, InOut, Out};
use crate::Case;
use crate::Kind::Race;
use crate::kernels::LOCKS;

pub(super) fn cases() -> Vec<Case> {
    let file = File(&LOCKS);
    let (int, word) = (|| InOut(INT, zeros(1)), || InOut(UINT, zeros(1)));
    vec![
        file.bug(
            Race,
            "grid_barrier_unfenced",
            grid(4, 32).cooperative(),
            [InOut(INT, zeros(128)), word(), Out(INT, 128)],
        ),
        file.right(
            "grid_barrier_fenced",
            grid(4, 32).cooperative(),
            [InOut(INT, zeros(128)), word(), Out(INT, 128)],
            [ramp(128), vec![8.0], falling(128)],
        ),
        file.bug(Race, "lock_without_release", grid(8, 1), [int(), int()]),
        file.bug(Race, "lock_without_acquire", grid(8, 1), [int(), int()]),
        file.bug(Race, "lock_plain_unlock", grid(8, 1), [int(), int()]),
        file.right("lock_with_fences", grid(8, 1), [int(), int()], [vec![0.0], vec![8.0]]),
        file.bug(Race, "shared_flag_without_fence", grid(1, 64), [Out(INT, 1), I32(42)]),
        file.right("producer_and_consumer", grid(1, 64), [Out(INT, 5), I32(5)], [of(5, |k| k * k)]),
    ]
}
