//! `kernels/init.cu`.

use lab_device::DType::{BF16, F16, F32, F64, I32 as INT, U32 as UINT};

use super::{File, grid, of, ramp, zeros};
use crate::Arg::{I32, In, InOut, Out};
use crate::Case;
use crate::Kind::Init;
use crate::kernels::INIT;

pub(super) fn cases() -> Vec<Case> {
    let file = File(&INIT);
    let filled = vec![496.0, (32..50).sum::<i32>().into()];
    let neighbours =
        of(32, |i| i + 1).into_iter().map(|v| if v == 32.0 { -1.0 } else { v }).collect();
    let workspace = (0..33).map(|i| if i == 32 { -1.0 } else { f64::from(i) }).collect();
    let triangle = (0..256).map(|i| if i % 16 >= i / 16 { 1.0 } else { f64::NAN }).collect();
    vec![
        file.bug(Init, "never_written", grid(1, 32), [Out(F32, 32), Out(F32, 32)]),
        file.bug(Init, "accumulates_in_output", grid(1, 32), [In(BF16, ramp(32)), Out(BF16, 32)]),
        file.right(
            "written_then_added",
            grid(1, 32),
            [In(BF16, ramp(32)), Out(BF16, 32)],
            [of(32, |i| 2 * i)],
        ),
        file.bug(Init, "counter_never_zeroed", grid(2, 32), [Out(INT, 1)]),
        file.right("counter_zeroed", grid(2, 32), [InOut(INT, zeros(1))], [vec![64.0]]),
        file.bug(Init, "last_neighbour_missing", grid(1, 32), [Out(F64, 33), Out(F64, 32)]),
        file.right(
            "last_neighbour_written",
            grid(1, 32),
            [Out(F64, 33), Out(F64, 32)],
            [workspace, neighbours],
        ),
        file.bug(Init, "one_triangle", grid(1, 16), [Out(F32, 256), Out(F32, 16), I32(16)]),
        file.right(
            "triangle_alone",
            grid(1, 16),
            [Out(F32, 256), Out(F32, 16), I32(16)],
            [triangle, of(16, |t| t + 1)],
        ),
        file.bug(Init, "low_word_only", grid(1, 32), [Out(F64, 32), Out(F64, 32)]),
        file.right(
            "double_by_words",
            grid(1, 32),
            [Out(F64, 32), Out(F64, 32)],
            [vec![1.0; 32], vec![1.0; 32]],
        ),
        file.bug(Init, "ragged_tile", grid(2, 32), [In(F32, ramp(50)), Out(F32, 2), I32(50)]),
        file.right(
            "ragged_tile_filled",
            grid(2, 32),
            [In(F32, ramp(50)), Out(F32, 2), I32(50)],
            [filled],
        ),
        file.bug(Init, "shared_accumulator", grid(1, 32), [In(F32, ramp(32)), Out(F32, 1)]),
        file.right(
            "shared_accumulator_set",
            grid(1, 32),
            [In(F32, ramp(32)), Out(F32, 1)],
            [vec![496.0]],
        ),
        file.bug(Init, "leader_is_absent", grid(1, 32), [In(INT, ramp(32)), Out(INT, 1), I32(32)]),
        file.bug(Init, "dynamic_shared_unwritten", grid(1, 32).shared(256), [Out(F32, 32)]),
        file.bug(Init, "low_half_only", grid(1, 32), [Out(F16, 64)]),
        file.right("both_halves", grid(1, 32), [Out(F16, 64)], [ramp(64)]),
        file.bug(Init, "three_of_four_bytes", grid(1, 32), [Out(UINT, 32), I32(3)]),
        file.bug(Init, "padding_column", grid(1, 8), [Out(F32, 72)]),
        file.right(
            "padding_left_alone",
            grid(1, 8),
            [Out(F32, 64)],
            [of(64, |i| 8 * (i % 8) + i / 8)],
        ),
        file.bug(Init, "local_accumulator", grid(1, 32), [In(F32, ramp(8)), Out(F32, 32), I32(8)]),
        file.bug(
            Init,
            "local_array",
            grid(1, 32),
            [In(INT, ramp(16)), Out(F32, 256), I32(16), I32(5)],
        ),
        file.bug(
            Init,
            "local_sums_added",
            grid(1, 32),
            [In(F32, ramp(16)), Out(F32, 32), I32(16), I32(3)],
        ),
        file.bug(Init, "local_table_added", grid(1, 32), [Out(F64, 32), I32(15)]),
        file.right("not_a_number", grid(1, 4), [In(F32, ramp(4)), Out(F32, 4)], [vec![-1.0; 4]]),
        file.right(
            "local_array_set",
            grid(1, 4),
            [In(INT, ramp(16)), Out(F32, 32), I32(16)],
            [vec![2.0; 32]],
        ),
        file.right(
            "union_of_halves",
            grid(1, 32),
            [Out(UINT, 32), I32(1)],
            [of(32, |i| i + 65536)],
        ),
    ]
}
