//! `kernels/shared.cu`.

use lab_device::DType::{F32, F64, I32 as INT, U8};
use lab_device::Launch;

use super::{File, grid, of, ramp};
use crate::Arg::{I32, In, Out};
use crate::Case;
use crate::Kind::Memory;
use crate::kernels::SHARED;

pub(super) fn cases() -> Vec<Case> {
    let file = File(&SHARED);
    let rows = Launch::new_3d([1, 1, 1], [8, 4, 1]);
    let halo = of(64, |t| (if t == 0 { 100 } else { t - 1 }) + (if t == 63 { 100 } else { t + 1 }));
    let carved =
        (0..32).rev().map(|i| if i % 3 == 0 { 0.5 * f64::from(i) } else { -1.0 }).collect();
    vec![
        file.bug(Memory, "shared_neighbour", grid(1, 32), [Out(INT, 32), I32(1)]),
        file.bug(Memory, "row_overflow", rows, [Out(F32, 32), I32(1)]),
        file.right("row_with_padding", rows, [Out(F32, 32), I32(1)], [ramp(32)]),
        file.bug(Memory, "negative_shared_index", grid(1, 64), [Out(INT, 64), I32(3)]),
        file.right("halo", grid(1, 64), [Out(INT, 64), I32(1)], [halo]),
        file.bug(Memory, "dynamic_shared_too_small", grid(1, 64).shared(128), [Out(F32, 64)]),
        file.right(
            "dynamic_shared_carved",
            grid(1, 32).shared(32 * 8 + 32),
            [Out(F64, 32), I32(32)],
            [carved],
        ),
        file.bug(Memory, "memcpy_too_many", grid(1, 32), [In(U8, ramp(40)), Out(U8, 39), I32(40)]),
        file.bug(Memory, "memset_too_many", grid(1, 16), [Out(INT, 16), I32(65)]),
        file.right(
            "struct_memcpy",
            grid(1, 32),
            [In(F32, ramp(128)), Out(F32, 128)],
            [of(128, |i| i + usize::from(i % 4 == 1))],
        ),
        file.right(
            "shared_vectors",
            grid(1, 32),
            [In(F32, ramp(128)), Out(F32, 128)],
            [of(128, |i| 124 - i / 4 * 4 + i % 4)],
        ),
        file.bug(Memory, "misaligned_shared", grid(1, 32), [Out(F32, 32), I32(1)]),
        file.bug(Memory, "vectors_behind_a_flag", grid(1, 32), [In(F32, ramp(128)), Out(F32, 128)]),
        file.right(
            "vectors_behind_a_table",
            grid(1, 32),
            [In(F32, ramp(128)), Out(F32, 128)],
            [of(128, |i| i + if i % 4 == 3 { i / 4 % 3 } else { 0 })],
        ),
    ]
}
