//! `kernels/memory.cu`.

use lab_device::DType::{BF16, F16, F32, F64, I32 as INT, U8};
use lab_device::Launch;

use super::{File, falling, grid, of, ramp, zeros};
use crate::Arg::{I32, I64, In, InOut, Out, U32};
use crate::Case;
use crate::Kind::Memory;
use crate::kernels::MEMORY;

pub(super) fn cases() -> Vec<Case> {
    let file = File(&MEMORY);
    let rows = Launch::new_3d([2, 2, 1], [8, 4, 1]);
    // Backwards, and one that is no index.
    let index = || (0..32).map(|i| if i == 5 { -1.0 } else { f64::from(31 - i) }).collect();
    vec![
        file.bug(Memory, "read_past_end", grid(2, 32), [In(F32, ramp(50)), Out(F32, 50), I32(50)]),
        file.right(
            "neighbour_guarded",
            grid(2, 32),
            [In(F32, ramp(50)), Out(F32, 50), I32(50)],
            [of(50, |i| usize::from(i < 49))],
        ),
        file.bug(Memory, "guard_off_by_one", grid(2, 32), [Out(F32, 50), I32(50)]),
        file.right("guard_of_last", grid(2, 32), [Out(F32, 50), I32(49)], [vec![1.0; 50]]),
        file.bug(Memory, "missing_guard", grid(2, 32), [In(F16, ramp(50)), Out(F16, 50)]),
        file.right(
            "guarded_copy<unsigned char>",
            grid(3, 32),
            [In(U8, ramp(77)), Out(U8, 77), I32(77)],
            [ramp(77)],
        ),
        file.right(
            "guarded_copy<__half>",
            grid(3, 32),
            [In(F16, ramp(77)), Out(F16, 77), I32(77)],
            [ramp(77)],
        ),
        file.right(
            "guarded_copy<float>",
            grid(3, 32),
            [In(F32, ramp(77)), Out(F32, 77), I32(77)],
            [ramp(77)],
        ),
        file.right(
            "guarded_copy<double>",
            grid(3, 32),
            [In(F64, ramp(77)), Out(F64, 77), I32(77)],
            [ramp(77)],
        ),
        file.bug(Memory, "far_beyond", grid(1, 32), [Out(INT, 32), I64(1 << 28)]),
        file.bug(Memory, "before_start", grid(1, 32), [In(F64, ramp(20)), Out(F64, 20), I32(20)]),
        file.bug(Memory, "unsigned_wrap", grid(1, 32), [In(F32, ramp(20)), Out(F32, 20), U32(20)]),
        file.right(
            "backwards_from_end",
            grid(1, 32),
            [In(F64, ramp(20)), Out(F64, 20), I32(20)],
            [falling(20)],
        ),
        file.bug(Memory, "bytes_as_elements", grid(1, 32), [InOut(INT, zeros(25)), I32(100)]),
        file.right(
            "grid_stride",
            grid(3, 32),
            [In(F32, ramp(1000)), Out(F32, 1000), I32(1000)],
            [of(1000, |i| 2 * i)],
        ),
        file.bug(Memory, "rows_unguarded", rows, [Out(U8, 6 * 13), I32(6), I32(13)]),
        file.right(
            "rows_guarded",
            rows,
            [Out(U8, 6 * 13), I32(6), I32(13)],
            [of(6 * 13, |i| 10 * (i / 13) + i % 13)],
        ),
        file.bug(
            Memory,
            "wrong_pitch",
            grid(1, 32),
            [In(BF16, ramp(28)), Out(F32, 28), I32(4), I32(7), I32(8)],
        ),
        file.bug(
            Memory,
            "gather_unchecked",
            grid(1, 32),
            [In(F32, ramp(32)), In(INT, index()), Out(F32, 32)],
        ),
        file.right(
            "gather_checked",
            grid(1, 32),
            [In(F32, ramp(32)), In(INT, index()), Out(F32, 32), I32(32)],
            [index()],
        ),
        file.bug(
            Memory,
            "atomic_past_end",
            grid(1, 32),
            [In(INT, of(32, |i| i % 9)), InOut(INT, zeros(8))],
        ),
        file.bug(Memory, "null_pointer", grid(1, 32), [I64(0), Out(F32, 32)]),
        file.right("optional_pointer", grid(1, 32), [I64(0), Out(F32, 32)], [vec![7.0; 32]]),
        file.bug(
            Memory,
            "vector_read_over_end",
            grid(1, 32),
            [In(F32, ramp(30)), Out(F32, 8), I32(30)],
        ),
        file.bug(Memory, "vector_write_over_end", grid(1, 32), [Out(INT, 30), I32(30)]),
        file.right(
            "vectors_and_tail",
            grid(1, 32),
            [In(F32, ramp(31)), Out(F32, 31), I32(31)],
            [ramp(31)],
        ),
        file.bug(Memory, "misaligned_float4", grid(1, 1), [In(F32, ramp(16)), Out(F32, 1), I32(1)]),
        file.bug(Memory, "misaligned_float2", grid(1, 8), [Out(F32, 32), I32(3)]),
        file.right(
            "misaligned_start",
            grid(1, 32),
            [In(F32, ramp(30)), InOut(F32, zeros(30)), I32(3), I32(30)],
            [of(30, |i| if i < 3 { 0 } else { i })],
        ),
    ]
}
