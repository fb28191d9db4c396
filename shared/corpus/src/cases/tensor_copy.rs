//! `kernels/tensor_copy.cu`.

use lab_device::DType::{self, F16, F32, I32 as INT};
use lab_device::{Launch, Swizzle, TensorMap};

use super::{File, falling, grid, of, ramp};
use crate::Arg::{I32, Loaded, Out, Stored};
use crate::Case;
use crate::Kind::{Init, Memory, Race, Sync};
use crate::kernels::TENSOR_COPY;

/// One cluster of so many blocks of two warps.
fn cluster(blocks: u32) -> Launch {
    grid(blocks, 64).cluster(blocks)
}

fn map(dtype: DType, sizes: &[usize], extents: &[usize]) -> TensorMap {
    TensorMap::new(dtype, sizes, extents).expect("as many extents as sizes")
}

/// Floats, in boxes of 8 rows and all of the columns.
fn rows(columns: usize, rows: usize) -> TensorMap {
    map(F32, &[columns, rows], &[columns, 8])
}

/// 8 columns, of whose boxes every second row is taken.
fn every_second(rows: usize) -> TensorMap {
    self::rows(8, rows).steps(&[1, 2]).expect("two steps")
}

/// What a box has of a ramp that lies in these sizes, innermost first.
fn of_ramp(sizes: [i64; 3], at: [i64; 3], extents: [i64; 3], outside: f64) -> Vec<f64> {
    let cell = |i: i64| {
        let [x, y] = [i % extents[0], i / extents[0] % extents[1]];
        let at = [at[0] + x, at[1] + y, at[2] + i / extents[0] / extents[1]];
        let inside = at.iter().zip(&sizes).all(|(at, size)| (0..*size).contains(at));
        if inside { ((at[2] * sizes[1] + at[1]) * sizes[0] + at[0]) as f64 } else { outside }
    };
    (0..extents.iter().product()).map(cell).collect()
}

/// So many boxes of 8 x 8 of a ramp.
fn boxes(count: usize) -> crate::Arg {
    Loaded(ramp(64 * count), rows(8, 8 * count))
}

/// The same box, its rows shorter than the span.
fn short_rows() -> crate::Arg {
    Loaded(ramp(64), rows(8, 8).swizzle(Swizzle::Bytes64))
}

pub(super) fn cases() -> Vec<Case> {
    [loads(), right_loads(), stores(), multicasts()].concat()
}

fn loads() -> Vec<Case> {
    let file = File(&TENSOR_COPY);
    let block = grid(1, 64);
    let (one, two) = (|| boxes(1), || boxes(2));
    let out = || Out(F32, 64);
    vec![
        file.bug(Race, "tensor_read_without_wait", block, [one(), out()]),
        file.bug(Race, "tensor_awaited_by_one_thread", block, [one(), out()]),
        // It hangs where the copy has come before the wait.
        file.bug(Race, "tensor_wrong_parity", block, [one(), out()]).may_hang(),
        file.bug(Sync, "tensor_expect_inside_only", block, [Loaded(ramp(96), rows(8, 12)), out()])
            .may_hang(),
        file.bug(Sync, "tensor_expect_too_large", block, [one(), out()]).may_hang(),
        file.bug(
            Sync,
            "tensor_expect_skipped_rows",
            block,
            [Loaded(ramp(64), every_second(8)), Out(F32, 32)],
        )
        .may_hang(),
        file.bug(Memory, "tensor_tile_misaligned", block, [one(), out()]).may_hang(),
        file.bug(
            Memory,
            "tensor_odd_column",
            block,
            [Loaded(ramp(128), map(F32, &[16, 8], &[8, 8])), out()],
        )
        .may_hang(),
        file.bug(Race, "tensor_refilled_too_early", block, [two(), out()]),
        file.bug(Race, "tensor_refilled_after_one_warp", grid(1, 96), [two(), out()]),
        file.bug(Race, "tensor_load_over_stores", block, [one(), out()]),
        file.bug(
            Init,
            "tensor_rows_not_loaded",
            block,
            [Loaded(ramp(64), map(F32, &[8, 8], &[8, 4])), out()],
        ),
        file.bug(Init, "tensor_gaps_read", block, [short_rows(), out()]),
        file.bug(
            Memory,
            "tensor_no_room_for_gaps",
            block.shared(256),
            [short_rows(), Out(F32, 32)],
        ),
    ]
}

fn right_loads() -> Vec<Case> {
    let file = File(&TENSOR_COPY);
    let (warp, block) = (grid(1, 32), grid(1, 64));
    let swizzled = |columns: usize, swizzle| {
        let map = rows(columns, 8).swizzle(swizzle);
        ([Loaded(ramp(8 * columns), map), Out(F32, 8 * columns)], [ramp(8 * columns)])
    };
    let span = |name, columns, swizzle| {
        let (arguments, expect) = swizzled(columns, swizzle);
        file.right(name, block, arguments, expect)
    };
    let row = |at| of_ramp([40, 1, 1], [at, 0, 0], [32, 1, 1], 0.0);
    let corner = |x, y| of_ramp([12, 5, 1], [x, y, 0], [8, 4, 1], 0.0);
    // Sums of 16 products of small integers are exact.
    let (a, b) = (of(64 * 16, |i| (7 * i + i / 16) % 5), of(8 * 16, |i| (3 * i + i / 16) % 4));
    let sum = |c: usize| (0..16).map(|k| a[c / 8 * 16 + k] * b[c % 8 * 16 + k]).sum();
    let product = (0..64 * 8).map(sum).collect();
    let operand = |values: &[f64]| {
        let sizes = [16, values.len() / 16];
        Loaded(values.to_vec(), map(F16, &sizes, &sizes).swizzle(Swizzle::Bytes32))
    };
    vec![
        file.right(
            "tensor_row_beyond_ends",
            block,
            [Loaded(ramp(40), map(F32, &[40], &[32])), Out(F32, 64)],
            [[row(-8), row(24)].concat()],
        ),
        file.right(
            "tensor_cut_at_corners",
            block,
            [Loaded(ramp(60), map(F32, &[12, 5], &[8, 4])), Out(F32, 96)],
            [[corner(-4, -2), corner(8, 3), corner(0, 100)].concat()],
        ),
        file.right(
            "tensor_of_three_dimensions",
            warp,
            [Loaded(ramp(72), map(INT, &[8, 3, 3], &[8, 2, 2])), Out(INT, 32)],
            [of_ramp([8, 3, 3], [4, 2, -1], [8, 2, 2], 0.0)],
        ),
        file.right(
            "tensor_every_second_row",
            warp,
            [Loaded(ramp(64), every_second(8)), Out(F32, 32)],
            [of(32, |i| if i < 24 { 24 + i / 8 * 16 + i % 8 } else { 0 })],
        ),
        file.right(
            "tensor_nan_outside",
            warp,
            [Loaded(ramp(72), map(F16, &[24, 3], &[16, 2]).nan_outside()), Out(F32, 32)],
            [of_ramp([24, 3, 1], [16, 2, 0], [16, 2, 1], -1.0)],
        ),
        file.right("tensor_expect_after_load", block, [boxes(1), Out(F32, 64)], [falling(64)]),
        span("tensor_swizzled<32>", 8, Swizzle::Bytes32),
        span("tensor_swizzled<64>", 16, Swizzle::Bytes64),
        span("tensor_swizzled<128>", 32, Swizzle::Bytes128),
        span("tensor_swizzled_from_third_line", 32, Swizzle::Bytes128),
        file.right("tensor_swizzled_short_rows", block, [short_rows(), Out(F32, 64)], [ramp(64)]),
        file.right(
            "tensor_ring",
            grid(1, 96),
            [boxes(5), Out(F32, 64), I32(5)],
            [of(64, |t| 640 + 5 * (63 - t))],
        ),
        file.right(
            "tensor_product",
            grid(1, 128),
            [operand(&a), operand(&b), Out(F32, 64 * 8)],
            [product],
        ),
    ]
}

fn stores() -> Vec<Case> {
    let file = File(&TENSOR_COPY);
    let block = grid(1, 64);
    let (x, y, out) = (|| boxes(1), || Stored(64, rows(8, 8)), || Out(F32, 64));
    let short = map(F32, &[6, 8], &[8, 8]).strides(&[32]).expect("one stride");
    vec![
        file.bug(Race, "tensor_store_unfenced", block, [y()]),
        file.bug(Race, "tensor_change_unfenced", block, [x(), y()]),
        file.bug(Race, "tensor_source_overwritten", block, [y()]),
        file.bug(Race, "tensor_store_awaited_by_another", block, [y()]),
        file.bug(Race, "tensor_loaded_back_too_early", block, [y(), out()]),
        file.bug(Race, "tensor_stores_overlap", block, [Stored(96, rows(8, 12))]),
        file.bug(Race, "tensor_adds_overlap", block, [y()]),
        file.bug(Memory, "tensor_store_at_negative", block, [y()]),
        // What a copy still reads is memory of a block that is no more.
        file.bug(Memory, "tensor_exit_without_wait", block, [y()]),
        file.right(
            "tensor_store_cut",
            block,
            [Stored(60, map(F32, &[12, 5], &[8, 4]))],
            [of(60, |i| 16 * (i / 12) + i % 12)],
        ),
        file.right(
            "tensor_store_short_rows",
            block,
            [Stored(64, short)],
            [(0..64).map(|i| if i % 8 < 6 { i as f64 } else { f64::NAN }).collect()],
        ),
        file.right("tensor_in_and_out", block, [x(), y()], [of(64, |t| 2 * t)]),
        file.right("tensor_straight_through", block, [x(), y()], [ramp(64)]),
        file.right("tensor_source_read", block, [Stored(128, rows(8, 16))], [ramp(128)]),
        file.right("tensor_stored_and_added", block, [y()], [of(64, |t| 2 * t)]),
        file.right("tensor_loaded_back", block, [y(), out()], [ramp(64), falling(64)]),
        file.right(
            "tensor_swizzled_store",
            block,
            [Stored(256, rows(32, 8).swizzle(Swizzle::Bytes128))],
            [ramp(256)],
        ),
    ]
}

/// To both blocks of a cluster.
fn multicasts() -> Vec<Case> {
    let file = File(&TENSOR_COPY);
    let pair = cluster(2);
    let (both, one) = (|| Out(F32, 128), Out(F32, 64));
    let halves = Loaded(ramp(192), map(F32, &[8, 24], &[8, 4]));
    vec![
        file.bug(Race, "tensor_multicast_before_init", pair, [boxes(1), both()]).may_hang(),
        file.bug(Memory, "tensor_multicast_to_exited", pair, [boxes(1), one]).may_hang(),
        file.bug(Race, "tensor_multicast_slot_reused", pair, [boxes(2), both()]),
        file.right(
            "tensor_multicast",
            pair,
            [halves, both(), I32(3)],
            [of(128, |i| 192 + 3 * (63 - i % 64))],
        ),
    ]
}
