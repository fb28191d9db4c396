//! `counted.cu`: kernels whose traffic is known.

use lab_device::{DType, Launch};

use super::{File, grid, of};
use crate::kernels::COUNTED;
use crate::{Arg, Case};

const N: usize = 4096;
const F32: DType = DType::F32;

/// Small integers, exact in every type.
fn small_integers(len: usize) -> Vec<f64> {
    of(len, |i| (7 * i + i / 13) % 64)
}

fn pick(x: &[f64], index: impl Fn(usize) -> usize) -> Vec<f64> {
    (0..N).map(|i| x[index(i)]).collect()
}

/// Kernels that access memory in patterns of all kinds.
pub fn counted() -> Vec<Case> {
    let file = File(&COUNTED);
    let n = Arg::I32(N as i32);
    let (x, wide) = (small_integers(N), small_integers(2 * N + 1));
    let input = |dtype, x: &[f64]| Arg::In(dtype, x.to_vec());
    let blocks = grid(N as u32 / 256, 256);
    let moved = |name, dtype, x: &[f64], expect: Vec<f64>| {
        file.right(name, blocks, [input(dtype, x), Arg::Out(dtype, N), n.clone()], [expect])
    };
    let through = |name, launch, dtype, x: &[f64], expect: Vec<f64>| {
        file.right(name, launch, [input(dtype, x), Arg::Out(dtype, expect.len())], [expect])
    };
    let quads = |launch: Launch, name, expect: &dyn Fn(usize) -> usize| {
        let all = small_integers(4 * N);
        let moved =
            of(4 * N, |i| expect(i / 4) * 4 + i % 4).iter().map(|&i| all[i as usize]).collect();
        (launch, name, all.clone(), moved)
    };
    let mut cases = vec![
        moved("copy_f32", F32, &x, x.clone()),
        moved("copy_strided", F32, &wide, pick(&wide, |i| 2 * i)),
        moved("copy_misaligned", F32, &wide, pick(&wide, |i| i + 1)),
        moved("copy_half", DType::F16, &x, x.clone()),
        moved("copy_double", DType::F64, &x, x.clone()),
        moved("read_columns", F32, &x, pick(&x, |i| i % 32 * 32 + i / 32 % 32 + i / 1024 * 1024)),
        moved("read_one", F32, &x, pick(&x, |i| i / 32)),
        moved(
            "copy_even",
            F32,
            &x,
            of(N, |i| i).iter().map(|&i| value_if_even(&x, i as usize)).collect(),
        ),
    ];
    let index = of(N, |i| (i * 2741 + 17) % N);
    cases.push(file.right(
        "gather",
        blocks,
        [input(F32, &x), input(DType::I32, &index), Arg::Out(F32, N), n.clone()],
        [index.iter().map(|&i| x[i as usize]).collect()],
    ));
    let transposed = pick(&x, |i| i % 32 * 32 + i / 32 % 32 + i / 1024 * 1024);
    let tiles = grid(N as u32 / 1024, 256);
    cases.push(through("shared_columns", tiles, F32, &x, transposed.clone()));
    cases.push(through("shared_padded", tiles, F32, &x, transposed));
    let backwards = pick(&x, |i| i / 256 * 256 + 255 - i % 256);
    cases.push(through("shared_double", blocks, DType::F64, &x, backwards.clone()));
    cases.push(through("shared_stride_2", blocks, F32, &x, backwards.clone()));
    cases.push(through("shared_half", blocks, DType::F16, &x, backwards));
    for (name, within) in [
        ("shared_double_one", &(|t: usize| t / 32) as &dyn Fn(usize) -> usize),
        ("shared_double_halves", &|t: usize| t / 16 * 4),
        ("shared_double_twice", &|t: usize| t % 16),
    ] {
        let expect = pick(&x, |i| i / 256 * 256 + within(i % 256));
        cases.push(through(name, blocks, DType::F64, &x, expect));
    }
    let sums = x.chunks(256).map(|c| c.iter().sum()).collect();
    cases.push(through("tree", blocks, F32, &x, sums));
    // float4: four times as many elements.
    let (launch, name, all, expect) = quads(blocks, "copy_float4", &|i| i);
    let count = Arg::I32(N as i32);
    cases.push(file.right(name, launch, [input(F32, &all), Arg::Out(F32, 4 * N), count], [expect]));
    for (launch, name, all, expect) in [
        quads(blocks, "shared_float4", &|i| i ^ 32),
        quads(blocks, "shared_float4_one", &|i| i / 256 * 256 + i % 256 / 32),
        quads(blocks, "shared_float4_halves", &|i| i / 256 * 256 + i % 256 / 16 * 4),
        quads(blocks, "shared_float4_quarters", &|i| i / 256 * 256 + i % 256 / 8 * 4),
        quads(blocks, "shared_float4_two_apart", &|i| i / 256 * 256 + i % 256 / 4 * 2 + i % 2),
        quads(blocks, "shared_float4_in_turns", &|i| i / 256 * 256 + i % 256 / 8 * 2 + i % 2),
        quads(blocks, "shared_float4_apart", &|i| i / 256 * 256 + i % 64 * 4 + i % 256 / 64),
    ] {
        cases.push(through(name, launch, F32, &all, expect));
    }
    // A matrix is 8 rows of 4; lane l gets element l of each of its warp's four.
    for (name, row) in [
        ("ldmatrix_dense", &(|w: usize, r: usize| 32 * w + r) as &dyn Fn(usize, usize) -> usize),
        ("ldmatrix_column", &|w, r| r * 8 + w),
    ] {
        let all = small_integers(4 * N);
        let expect = (0..4 * N).map(|i| {
            let (block, thread, matrix) = (i / 1024, i % 1024 / 4, i % 4);
            let (warp, lane) = (thread / 32, thread % 32);
            all[block * 1024 + row(warp, 8 * matrix + lane / 4) * 4 + lane % 4]
        });
        cases.push(through(name, blocks, F32, &all, expect.collect()));
    }
    let side = 64;
    let (a, b) = (of(side * side, |i| i % 5), of(side * side, |i| i % 3));
    let product = (0..side * side)
        .map(|i| (0..side).map(|k| a[i / side * side + k] * b[k * side + i % side]).sum::<f64>());
    let product: Vec<f64> = product.collect();
    for name in ["matmul_naive", "matmul_tiled"] {
        let arguments =
            [input(F32, &a), input(F32, &b), Arg::Out(F32, side * side), Arg::I32(side as i32)];
        let launch = Launch::new_3d([4, 4, 1], [16, 16, 1]);
        cases.push(file.right(name, launch, arguments, [product.clone()]));
    }
    cases
}

/// Only the even ones are copied.
fn value_if_even(x: &[f64], i: usize) -> f64 {
    if i.is_multiple_of(2) { x[i] } else { f64::NAN }
}
