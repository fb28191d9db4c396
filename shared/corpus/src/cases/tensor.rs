//! `kernels/tensor.cu`.

use lab_device::DType::{BF16, F16, F32, U32 as UINT};

use super::{File, grid, of};
use crate::Arg::{I32, In, Out};
use crate::Case;
use crate::Kind::{Init, Memory, Race, Sync};
use crate::kernels::TENSOR;

/// Small integers, exact in every type, and so are their products and sums.
fn small_integers(len: usize, step: usize) -> Vec<f64> {
    of(len, |i| (step * i + i / 7) % 9)
}

/// Row-major, the other way round.
fn transposed(x: &[f64], columns: usize) -> Vec<f64> {
    let rows = x.len() / columns;
    (0..x.len()).map(|i| x[i % rows * columns + i / rows]).collect()
}

fn product(a: &[f64], b: &[f64], depth: usize) -> Vec<f64> {
    let columns = b.len() / depth;
    let cell =
        |i: usize, j: usize| (0..depth).map(|k| a[i * depth + k] * b[k * columns + j]).sum::<f64>();
    (0..a.len() / depth * columns).map(|n| cell(n / columns, n % columns)).collect()
}

pub(super) fn cases() -> Vec<Case> {
    let file = File(&TENSOR);
    let warp = grid(1, 32);
    let x = of(256, |i| i);
    let each = x.chunks(64).flat_map(|m| transposed(m, 8)).collect();
    let mut cases = vec![file.right(
        "ldmatrix_spreads",
        warp,
        [In(F16, x.clone()), Out(F32, 256), Out(F32, 256)],
        [x.clone(), each],
    )];
    for (name, dtype, depth) in [
        ("mma_product<__half>", F16, 16),
        ("mma_product<__nv_bfloat16>", BF16, 16),
        ("mma_product<float>", F32, 8),
    ] {
        let (a, b) = (small_integers(16 * depth, 5), small_integers(8 * depth, 4));
        let expect = product(&a, &b, depth).iter().map(|c| c + 1.0).collect();
        cases.push(file.right(name, warp, [In(dtype, a), In(dtype, b), Out(F32, 128)], [expect]));
    }
    for (name, dtype, depth) in
        [("wmma_half", F16, 32), ("wmma_bfloat", BF16, 32), ("wmma_tf32", F32, 16)]
    {
        let (a, b) = (small_integers(16 * depth, 5), small_integers(16 * depth, 4));
        let once = product(&a, &b, depth).into_iter().map(|c| 2.0 * c + 1.0);
        let expect = once.collect::<Vec<_>>().repeat(4);
        let (at, bt) = (transposed(&a, depth), transposed(&b, 16));
        let inputs = [a, at, b, bt].map(|values| In(dtype, values));
        let [a, at, b, bt] = inputs;
        cases.push(file.right(name, warp, [a, at, b, bt, Out(F32, 1024)], [expect]));
    }
    let sums = of(256, |i| i);
    let turned = transposed(&sums, 16);
    cases.push(file.right("wmma_sums", warp, [In(F32, sums), Out(F32, 256)], [turned]));

    let input = || In(F16, small_integers(256, 3));
    let words = || In(UINT, of(32, |i| 0x3c00 + i));
    cases.extend([
        file.bug(Race, "ldmatrix_before_syncwarp", warp, [input(), Out(F32, 32)]),
        file.bug(Race, "ldmatrix_before_barrier", grid(1, 64), [input(), Out(F32, 64)]),
        file.bug(Init, "ldmatrix_of_unwritten_rows", warp, [input(), Out(F32, 32), I32(24)]),
        file.bug(Memory, "ldmatrix_of_padded_rows", warp, [input(), Out(F32, 32)]),
        file.bug(Memory, "ldmatrix_past_end", warp, [input(), Out(F32, 32), I32(1)]),
        file.bug(Memory, "ldmatrix_of_device_memory", warp, [input(), Out(F32, 32)]),
        file.bug(Sync, "mma_by_half_a_warp", warp, [words(), Out(F32, 32), I32(16)]).may_hang(),
        file.bug(Sync, "mma_after_exit", warp, [words(), Out(F32, 20), I32(20)]).may_hang(),
        file.bug(Sync, "mma_apart", warp, [words(), Out(F32, 32), I32(16)]).may_hang(),
        file.bug(Memory, "wmma_misaligned", warp, [In(F16, small_integers(260, 3)), Out(F32, 256)]),
        file.bug(Race, "wmma_store_before_barrier", grid(1, 64), [input(), Out(F32, 256)]),
    ]);
    cases
}
