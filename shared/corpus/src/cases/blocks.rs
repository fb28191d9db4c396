//! `kernels/blocks.cu`.

use lab_device::DType::{F32, F64, I32 as INT, U8, U32 as UINT};

use super::{File, grid, of, ramp, zeros};
use crate::Arg::{I32, In, InOut, Out};
use crate::Case;
use crate::Kind::Race;
use crate::kernels::BLOCKS;

pub(super) fn cases() -> Vec<Case> {
    let file = File(&BLOCKS);
    let shuffled = of(128, |i| i * 37 % 128);
    let around_zero = || shuffled.iter().map(|v| v - 50.0).collect();
    let rounds = [of(128, |i| (i + 2) % 128 + 2), of(128, |i| (i + 3) % 128 + 3)];
    let [even, odd] = rounds;
    vec![
        file.bug(Race, "shift_in_place", grid(1, 64), [InOut(F32, ramp(64)), I32(64)]),
        file.right(
            "shift_by_registers",
            grid(1, 64),
            [InOut(F32, ramp(64)), I32(64)],
            [of(64, |i| (i + 1) % 64)],
        ),
        file.bug(Race, "stencil_in_place", grid(1, 64), [InOut(F64, ramp(64)), I32(64)]),
        file.right(
            "elementwise_in_place",
            grid(2, 32),
            [InOut(F64, ramp(50)), I32(50)],
            [of(50, |i| i * i)],
        ),
        file.bug(
            Race,
            "shared_histogram_plain",
            grid(1, 64),
            [In(INT, ramp(100)), Out(INT, 8), I32(100)],
        ),
        file.right(
            "histogram_in_two_levels",
            grid(3, 32),
            [In(INT, ramp(200)), InOut(INT, zeros(8)), I32(200)],
            [vec![25.0; 8]],
        ),
        file.bug(Race, "reset_against_atomics", grid(1, 64), [Out(INT, 1)]),
        file.right("same_value", grid(1, 64), [In(INT, ramp(64)), Out(INT, 64)], [vec![1.0; 64]]),
        file.right(
            "atomic_bits_and_places",
            grid(1, 64),
            [InOut(UINT, zeros(2)), Out(INT, 64)],
            [vec![u32::MAX.into(); 2], vec![1.0; 64]],
        ),
        file.bug(Race, "blocks_write_same", grid(4, 32), [Out(INT, 32)]),
        file.bug(Race, "reads_other_block", grid(4, 32), [InOut(F32, zeros(128)), Out(F32, 128)]),
        file.bug(
            Race,
            "block_barrier_for_grid",
            grid(4, 32),
            [InOut(F32, zeros(4)), Out(F32, 128)],
        ),
        file.right(
            "grid_sync_between",
            grid(4, 32).cooperative(),
            [InOut(F32, zeros(4)), Out(F32, 16)],
            [ramp(4), of(16, |i| i % 4)],
        ),
        file.right(
            "grid_sync_rounds",
            grid(4, 32).cooperative(),
            [InOut(INT, ramp(128)), InOut(INT, zeros(128)), I32(3)],
            [even, odd],
        ),
        file.bug(Race, "sum_without_atomic", grid(4, 32), [In(F32, ramp(4)), InOut(F32, zeros(1))]),
        file.right(
            "sum_by_atomics",
            grid(4, 32),
            [In(F32, ramp(128)), InOut(F32, zeros(1))],
            [vec![8128.0]],
        ),
        file.bug(
            Race,
            "global_histogram_plain",
            grid(2, 32),
            [In(U8, of(50, |i| i % 5)), InOut(UINT, zeros(5)), I32(50)],
        ),
        file.bug(Race, "counter_read_plainly", grid(4, 32), [InOut(INT, zeros(1)), Out(INT, 4)]),
        file.bug(Race, "store_against_atomic", grid(4, 32), [InOut(INT, zeros(1))]),
        file.right(
            "tickets",
            grid(3, 32),
            [InOut(INT, zeros(1)), In(F32, ramp(100)), Out(F32, 100), I32(100)],
            [vec![4.0 + 3.0], of(100, |i| i + 1)],
        ),
        file.right(
            "float_max_by_cas",
            grid(4, 32),
            [In(F32, shuffled.clone()), InOut(UINT, zeros(1))],
            [vec![127f32.to_bits().into()]],
        ),
        file.right(
            "integer_extremes",
            grid(4, 32),
            [In(INT, around_zero()), InOut(INT, zeros(1)), InOut(INT, zeros(1))],
            [vec![-50.0], vec![77.0]],
        ),
    ]
}
