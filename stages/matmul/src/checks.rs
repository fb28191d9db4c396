//! What must hold beside every version's error bounds.

use lab_device::{Arithmetic, DType, Device};
use lab_harness::suite::schedules;
use lab_harness::suite::{Check, Tier, VersionCheck, check, without_checks};
use lab_harness::tensor::tensors;
use lab_harness::{Options, Problem, Tensor, Tensors, Version, run, version_checks};

use crate::linear_checks::{
    bare_products_have_the_same_bits, every_epilogue_is_right, gradients_of_a_layer_add_up,
    large_layers_are_right, weight_gradients_add_up, what_a_layer_cannot_take_is_refused,
    wide_results_take_turns,
};
use crate::narrow_round::narrow_tiles;
use crate::settings::TILE;
use crate::sizes::sizes;
use crate::swiglu_checks::{
    swiglu_is_that_of_what_is_stored, what_a_layer_with_swiglu_cannot_take_is_refused,
};
use crate::{BEHIND, GRID, MMA, Matmul, NARROW, SNAKE, SPLIT, STORES, TENSOR, TURNED, TURNED_GRID};

pub(crate) static OF_EACH: &[VersionCheck] = version_checks![
    large_problems in Large,
    a_batch_has_any_leading_indices,
    nan_stays_in_its_row_or_column_of_tiles,
    results_do_not_change_from_run_to_run_in_any_order,
    f32_is_rounded_to_tf32,
];

/// A check of versions on the tensor cores, which launches no kernel of the others.
const fn on_tensor_cores(name: &'static str, run: fn(&Device)) -> Check {
    Check::new(name, run).apart_from(CUDA_CORES)
}

const CUDA_CORES: &[&str] = &[
    "kernels/v0_naive.cu",
    "kernels/v1_coalesced.cu",
    "kernels/v2_tiled.cu",
    "kernels/v3_rows.cu",
    "kernels/v4_blocks.cu",
    "kernels/v5_warps.cu",
    "kernels/v6_async.cu",
];

pub(crate) static CHECKS: &[Check] = &[
    on_tensor_cores("large_layers_are_right", large_layers_are_right).in_tier(Tier::Large),
    on_tensor_cores("every_epilogue_is_right", every_epilogue_is_right),
    on_tensor_cores("gradients_of_a_layer_add_up", gradients_of_a_layer_add_up),
    on_tensor_cores("bare_products_have_the_same_bits", bare_products_have_the_same_bits),
    on_tensor_cores("wide_results_take_turns", wide_results_take_turns),
    on_tensor_cores("weight_gradients_add_up", weight_gradients_add_up),
    on_tensor_cores("what_a_layer_cannot_take_is_refused", what_a_layer_cannot_take_is_refused),
    on_tensor_cores("swiglu_is_that_of_what_is_stored", swiglu_is_that_of_what_is_stored),
    on_tensor_cores(
        "what_a_layer_with_swiglu_cannot_take_is_refused",
        what_a_layer_with_swiglu_cannot_take_is_refused,
    ),
    on_tensor_cores("overlap_changes_no_bit", overlap_changes_no_bit),
    on_tensor_cores("every_cut_is_right", every_cut_is_right).in_tier(Tier::ManySizes),
    on_tensor_cores("a_narrow_last_round_is_right", a_narrow_last_round_is_right),
    on_tensor_cores("tiles_behind_others_are_right", tiles_behind_others_are_right),
    on_tensor_cores("large_tiles_behind_in_any_order", large_tiles_behind_in_any_order)
        .in_tier(Tier::Large),
    on_tensor_cores("tiles_back_and_forth_are_right", tiles_back_and_forth_are_right),
];

/// Both versions on the tensor cores add up the same products in the same order.
fn overlap_changes_no_bit(device: &Device) {
    let old = matches!(device.facts().compute_capability.0, 1..8);
    for &dtype in MMA.info().dtypes.iter().filter(|_| !old) {
        let inputs = MMA.inputs(&Problem::new(sizes([2, 140, 260, 72]), dtype));
        let of =
            |version: &dyn Version| run(version, device, &inputs, &Options::default()).unwrap();
        assert_eq!(of(&MMA), of(&TENSOR), "{dtype}");
    }
}

/// Tiles of each kind, and a tile by as many blocks as a cluster may have, whether or not they divide its
/// rows; with fewer steps of k than that, a refusal.
fn every_cut_is_right(device: &Device) {
    let arch = &device.facts().arch;
    if !SPLIT.sources().iter().all(|source| source.runs_on(arch)) {
        return;
    }
    let info = SPLIT.info();
    for (n, tile) in TILE.choices.iter().enumerate() {
        let options = Options::parse(&[format!("tile={tile}")], info).unwrap();
        let dtype = info.dtypes[n % info.dtypes.len()];
        for dims in [[1, 120, 136, 1000], [2, 140, 264, 520]] {
            let problem = Problem { options: options.clone(), ..Problem::new(sizes(dims), dtype) };
            let case = check(&SPLIT, device, &problem);
            assert!(case.passed(), "{tile}: {}", case.describe());
        }
    }
    let options = Options::parse(&["tile=grid"], GRID.info()).unwrap();
    for (dims, dtype) in [[1, 120, 136, 1000], [2, 140, 264, 520]].into_iter().zip(info.dtypes) {
        let problem = Problem { options: options.clone(), ..Problem::new(sizes(dims), *dtype) };
        let case = check(&GRID, device, &problem);
        assert!(case.passed(), "{}", case.describe());
    }
    let options = Options::parse(&["tile=grid"], TURNED_GRID.info()).unwrap();
    // Parts of one pair of steps, and of unlike many; rows that the parts do not divide.
    for dims in [[1, 120, 136, 1000], [2, 260, 132, 200], [1, 8, 8, 8]] {
        let problem = Problem { options: options.clone(), ..Problem::new(sizes(dims), DType::F32) };
        let case = check(&TURNED_GRID, device, &problem);
        assert!(case.passed(), "{}", case.describe());
    }
    let inputs = GRID.inputs(&Problem::new(sizes([200, 8, 8, 8]), info.dtypes[0]));
    let refused = run(&GRID, device, &inputs, &options).unwrap_err().to_string();
    assert!(refused.starts_with("--set tile: expected auto, for 200 tiles are more"), "{refused}");
    let options = Options::parse(&["tile=128x128/3"], info).unwrap();
    let inputs = SPLIT.inputs(&Problem::new(sizes([1, 8, 8, 128]), info.dtypes[0]));
    let refused = run(&SPLIT, device, &inputs, &options).unwrap_err().to_string();
    let expected = "--set tile: expected at most 2 blocks for a tile: K has so many steps of 64, got 128x128/3";
    assert!(refused.starts_with(expected), "{refused}");
    let inputs = SPLIT.inputs(&Problem::new(sizes([1, 8, 9, 256]), info.dtypes[0]));
    let refused = run(&SPLIT, device, &inputs, &options).unwrap_err().to_string();
    assert!(refused.starts_with("--set tile: expected auto, for N or K"), "{refused}");
}

/// Of a last round in tiles of so many columns, behind a full round or two: in one row of tiles, in several of which the first
/// have a tile less, in the second of two matrices. Those that the device has such a round of, one at least.
fn narrow_dims(blocks: usize, last: usize) -> Vec<[usize; 4]> {
    let mut dims = vec![
        [1, 120, columns(blocks + blocks * 3 / 4), 200],
        [1, 5 * 128 - 8, columns(blocks * 9 / 25), 136],
        [1, 3 * 128 - 8, columns(blocks * 15 / 8 / 3) - 48, 72],
        [2, 120, columns(blocks * 3 / 4), 72],
        [1, 120, columns(blocks * 5 / 2), 64],
        [1, 248, columns((blocks + blocks / 4) / 2), 64],
    ];
    dims.retain(|&dims| narrow_tiles(dims, blocks, last).is_some_and(|tiles| tiles <= blocks));
    assert!(!dims.is_empty(), "{last}");
    dims
}

/// So many tiles side by side: the last one is short, and now and then a narrow one lies outside.
fn columns(tiles: usize) -> usize {
    tiles * 256 - 8
}

fn a_narrow_last_round_is_right(device: &Device) {
    if !NARROW.sources().iter().all(|source| source.runs_on(&device.facts().arch)) {
        return;
    }
    let blocks = device.facts().multiprocessors as usize;
    let info = NARROW.info();
    for last in [64, 144, 192] {
        let options = Options::parse(&[format!("last={last}")], info).unwrap();
        for (n, dims) in narrow_dims(blocks, last).into_iter().enumerate() {
            let dtype = info.dtypes[n % info.dtypes.len()];
            let problem = Problem { options: options.clone(), ..Problem::new(sizes(dims), dtype) };
            let case = check(&NARROW, device, &problem);
            assert!(case.passed(), "{last}: {}", case.describe());
        }
    }
    let options = Options::parse(&["last=192"], info).unwrap();
    for dims in [[blocks, 8, 8, 512], [blocks + 2, 8, 8, 64], [1, 8, 9, 512]] {
        let inputs = NARROW.inputs(&Problem::new(sizes(dims), info.dtypes[0]));
        let refused = run(&NARROW, device, &inputs, &options).unwrap_err().to_string();
        assert!(refused.starts_with("--set last: expected -1 or 0 for these sizes"), "{refused}");
    }
    // Of v20's widths another one may be asked for instead.
    let options = Options::parse(&["last=192"], BEHIND.info()).unwrap();
    let inputs = BEHIND.inputs(&Problem::new(sizes([blocks, 8, 8, 512]), info.dtypes[0]));
    let refused = run(&BEHIND, device, &inputs, &options).unwrap_err().to_string();
    assert!(refused.starts_with("--set last: expected -1, 0, or one of [256] for"), "{refused}");
}

/// C by a version with so narrow a last round. `None` on a device that does not run it.
fn with_last(version: &Matmul, last: usize, device: &Device, inputs: &Tensors) -> Option<Tensors> {
    let arch = &device.facts().arch;
    version.sources().iter().all(|source| source.runs_on(arch)).then(|| {
        let options = Options::parse(&[format!("last={last}")], version.info()).unwrap();
        run(version, device, inputs, &options).unwrap()
    })
}

/// The same sums as v13's, in the same order, so the same bits. Two or three tiles a block, and then a narrow one or none: with
/// fewer steps of k than a tile has panels, and with more, so that all of them are stored between products.
fn tiles_behind_others_are_right(device: &Device) {
    let blocks = device.facts().multiprocessors as usize;
    let mut all = vec![
        (256, [1, 120, columns(blocks * 17 / 8), 512]),
        (256, [2, 248, columns(blocks * 5 / 8), 192]),
    ];
    let several_rows = narrow_dims(blocks, 192).into_iter().filter(|dims| dims[1] > 128);
    all.extend(several_rows.map(|dims| (192, dims)));
    for (n, (last, dims)) in all.into_iter().enumerate() {
        let dtype = BEHIND.info.dtypes[n % BEHIND.info.dtypes.len()];
        let inputs = BEHIND.inputs(&Problem::new(sizes(dims), dtype));
        let Some(c) = with_last(&BEHIND, last, device, &inputs) else { return };
        assert!(
            c == run(&STORES, device, &inputs, &Options::default()).unwrap(),
            "{last} {dims:?}"
        );
    }
}

/// Whatever the order, and whenever copies arrive.
fn large_tiles_behind_in_any_order(device: &Device) {
    let blocks = device.facts().multiprocessors as usize;
    let dims = sizes([1, 120, columns(blocks * 9 / 8), 520]);
    let inputs = BEHIND.inputs(&Problem::new(dims, BEHIND.info.dtypes[0]));
    let expected = run(&STORES, device, &inputs, &Options::default()).unwrap();
    for device in schedules(device) {
        let Some(c) = with_last(&BEHIND, 64, &device, &inputs) else { return };
        assert!(c == expected, "{}", device.name());
    }
}

/// A tile up k, the next one down. Of small whole numbers, whose sums are exact in any order, all bits are v13's: with a part of
/// a step at its end, a stripe that goes back, of two in each matrix, narrow tiles. Of other numbers only those of tiles up k.
fn tiles_back_and_forth_are_right(device: &Device) {
    let blocks = device.facts().multiprocessors as usize;
    let mut all = vec![(256, [2, 2184, columns(2), 40])];
    let several_rows = narrow_dims(blocks, 144).into_iter().filter(|dims| dims[1] > 128);
    all.extend(several_rows.map(|dims| (144, dims)));
    let v13 = |inputs: &Tensors| run(&STORES, device, inputs, &Options::default()).unwrap();
    for (n, (last, dims)) in all.into_iter().enumerate() {
        let dtype = SNAKE.info.dtypes[n % SNAKE.info.dtypes.len()];
        let [g, m, n, k] = dims;
        let whole = |shape: &[usize], factor: usize| {
            let values = (0..shape.iter().product()).map(|e| (e * factor % 11 % 5) as f64 - 2.0);
            Tensor::rounded(dtype, shape, &values.collect::<Vec<_>>())
        };
        let inputs = tensors([("A", whole(&[g, m, k], 7)), ("B", whole(&[g, k, n], 3))]);
        let Some(c) = with_last(&SNAKE, last, device, &inputs) else { return };
        assert!(c == v13(&inputs), "{last} {dims:?}");
    }
    let [rows, across] = [120, columns(blocks * 17 / 8)];
    let dims = sizes([1, rows, across, 136]);
    let inputs = SNAKE.inputs(&Problem::new(dims, SNAKE.info.dtypes[0]));
    let Some(c) = with_last(&SNAKE, 256, device, &inputs) else { return };
    let [c, up] = [c, v13(&inputs)].map(|all| all["C"].values());
    let equal = |round: usize| {
        let of_round = round * blocks * 256..across.min((round + 1) * blocks * 256);
        (0..rows).all(|i| of_round.clone().all(|j| c[i * across + j] == up[i * across + j]))
    };
    assert_eq!([0, 1, 2].map(equal), [true, false, true]);
}

/// 300³, on a GPU 1000³: the emulator without its checks.
fn large_problems(version: &dyn Version, device: &Device) {
    let device = &without_checks(device).unwrap();
    let emulated = device.kind() == lab_device::DeviceKind::Emulator;
    let (all, even) = if emulated { (300, 304) } else { (1000, 1024) };
    for &dtype in version.info().dtypes {
        for size in [all, even] {
            let case = check(version, device, &Problem::new(sizes([1, size, size, size]), dtype));
            assert!(case.passed(), "{}", case.describe());
        }
    }
}

/// A type that it has.
fn any(version: &dyn Version) -> DType {
    version.info().dtypes[0]
}

fn product(version: &dyn Version, device: &Device, a: Tensor, b: Tensor) -> Tensor {
    let inputs = tensors([("A", a), ("B", b)]);
    run(version, device, &inputs, &Options::default()).unwrap().remove("C").unwrap()
}

fn a_batch_has_any_leading_indices(version: &dyn Version, device: &Device) {
    let ones = |shape: &[usize]| {
        Tensor::rounded(any(version), shape, &vec![1.0; shape.iter().product::<usize>()])
    };
    for leading in [&[][..], &[4], &[2, 3], &[1, 2, 1]] {
        let shape = |last: [usize; 2]| [leading, &last].concat();
        let c = product(version, device, ones(&shape([3, 7])), ones(&shape([7, 5])));
        assert_eq!(c.shape, shape([3, 5]));
        assert!(c.values().iter().all(|&v| v == 7.0));
    }
    let refused = tensors([("A", ones(&[2, 3, 4, 7])), ("B", ones(&[3, 2, 7, 5]))]);
    let error = run(version, device, &refused, &Options::default()).unwrap_err().to_string();
    assert!(error.starts_with("tensor 'B': expected [2, 3] before K and N"), "{error}");
}

/// Zeros that fill a tile up must not meet what lies in the matrix: 0 · NaN is NaN.
fn nan_stays_in_its_row_or_column_of_tiles(version: &dyn Version, device: &Device) {
    // The second in packs of 16 bytes in every type.
    for n in [140, 136] {
        let mut a = vec![1.0; n * n];
        a[7 * n + 5] = f64::NAN;
        a[8 * n + n - 1] = f64::INFINITY;
        let of = |values: &[f64]| Tensor::rounded(any(version), &[n, n], values);
        let c = product(version, device, of(&a), of(&vec![1.0; n * n]));
        for (row, c) in c.values().chunks(n).enumerate() {
            let right = match row {
                7 => c.iter().all(|v| v.is_nan()),
                8 => c.iter().all(|&v| v == f64::INFINITY),
                _ => c.iter().all(|&v| v == n as f64),
            };
            assert!(right, "{}: row {row} of {n}", version.info().full_name());
        }
    }
}

fn results_do_not_change_from_run_to_run_in_any_order(version: &dyn Version, device: &Device) {
    let problem = Problem::new(version.info().small(), any(version));
    let inputs = version.inputs(&problem);
    let once = run(version, device, &inputs, &problem.options).unwrap();
    // The first of them is the same device again.
    for device in &schedules(device) {
        let again = run(version, device, &inputs, &problem.options).unwrap();
        // Not assert_eq: a tensor is not to be printed.
        assert!(once == again, "{} on {}", version.info().full_name(), device.name());
    }
}

/// Of every element of A and of B; but what wgmma finds in shared memory, A of the turned versions, it cuts. A rounding that is
/// forgotten is a cut, too: it costs less than an error bound shows, where it is but one register of four.
fn f32_is_rounded_to_tf32(version: &dyn Version, device: &Device) {
    let tf32 = version.arithmetic(DType::F32) == Some(Arithmetic::Tf32);
    if !(tf32 && version.info().dtypes.contains(&DType::F32)) {
        return;
    }
    // TF32 has 10 bits behind the point. Three quarters of the last is rounded up.
    const LAST: f32 = 1.0 / 1024.0;
    let [m, n, k] = [70, 72, 40];
    let (up, one) = (|len| vec![1.0 + 0.75 * LAST; len], |len| vec![1f32; len]);
    let rounded = 1.0 + LAST;
    let turned = [&TURNED, &TURNED_GRID].map(|v| v.info.name);
    let of_a = if turned.contains(&version.info().name) { 1.0 } else { rounded };
    for (a, b, value) in [(up(m * k), one(k * n), of_a), (one(m * k), up(k * n), rounded)] {
        let c = product(version, device, Tensor::new(&[m, k], &a), Tensor::new(&[k, n], &b));
        let expected = f64::from(k as f32 * value);
        assert!(c.values().iter().all(|&v| v == expected), "{}", version.info().full_name());
    }
}
