//! What must hold beside the error bounds.

use lab_device::{DType, Device, DeviceKind};
use lab_families::qkv::checks::{
    any_schedule_gives_the_same, assert_right, dtype_of, heads_do_not_meet, inputs_of, outputs_of,
    results_do_not_change_from_run_to_run, shapes_that_do_not_fit_are_refused,
};
use lab_families::qkv::sizes;
use lab_harness::suite::{VersionCheck, check, schedules, without_checks};
use lab_harness::tensor::tensors;
use lab_harness::{Options, Problem, Tensor, Version, run, version_checks};

use crate::{CLUSTER, RESIDENT, Reordered};

pub(crate) static OF_EACH: &[VersionCheck] = version_checks![
    large_problems in Large,
    heads_do_not_meet,
    nan_in_a_query_stays_in_its_row,
    nan_in_a_value_stays_in_its_column,
    infinity_meets_no_zeros_that_fill_a_tile,
    a_state_out_of_the_range_of_halves_is_scaled,
    large_sums_of_ones_stay_in_range in Large,
    f32_is_rounded_to_tf32,
    results_do_not_change_from_run_to_run,
    any_schedule_gives_the_same in Ends,
    shapes_that_do_not_fit_are_refused,
];

/// S = 2000, on a GPU 8192.
fn large_problems(version: &dyn Version, device: &Device) {
    let shapes = match device.kind() {
        DeviceKind::Emulator => [[1, 1, 2000, 64, 64], [1, 1, 600, 128, 104]],
        DeviceKind::Cuda => [[1, 8, 8192, 64, 64], [2, 4, 2000, 128, 256]],
    };
    assert_right(version, device, version.info().dtypes, &shapes);
}

/// O of one head whose tensors are ones, but for those elements of this one that have other values.
fn output_with(
    version: &dyn Version,
    device: &Device,
    [s, dh]: [usize; 2],
    name: &str,
    others: &[(usize, f64)],
) -> Vec<f64> {
    let inputs = ["q", "k", "v"].map(|own| {
        let mut values = vec![1.0; s * dh];
        for &(at, value) in others.iter().filter(|_| own == name) {
            values[at] = value;
        }
        (own, Tensor::rounded(dtype_of(version), &[1, 1, s, dh], &values))
    });
    outputs_of(version, device, &tensors(inputs))["o"].values()
}

/// The row of the query that holds it, at an edge of a tile and within.
fn nan_in_a_query_stays_in_its_row(version: &dyn Version, device: &Device) {
    for (s, dh) in [(70, 7), (70, 104)] {
        for row in [33, s - 1] {
            let nan = (row * dh + dh - 1, f64::NAN);
            let o = output_with(version, device, [s, dh], "q", &[nan]);
            for (i, o) in o.chunks(dh).enumerate() {
                assert!(o.iter().all(|v| v.is_nan() == (i == row)), "S={s} DH={dh}: row {i}");
            }
        }
    }
}

fn nan_in_a_value_stays_in_its_column(version: &dyn Version, device: &Device) {
    for (s, dh) in [(70, 36), (70, 40)] {
        for column in [17, dh - 1] {
            let nan = ((s - 1) * dh + column, f64::NAN);
            let o = output_with(version, device, [s, dh], "v", &[nan]);
            for (at, o) in o.into_iter().enumerate() {
                assert_eq!(o.is_nan(), at % dh == column, "element {at} of S={s} DH={dh}");
            }
        }
    }
}

/// An infinite element gives infinite outputs; 0 · ∞, where a tile ends past the last row or column, would
/// make them NaN.
fn infinity_meets_no_zeros_that_fill_a_tile(version: &dyn Version, device: &Device) {
    for (s, dh) in [(1, 8), (5, 3), (70, 40)] {
        let at = |row: usize, column: usize| [(row * dh + column, f64::INFINITY)];
        let of = |name: &str, others: &[_]| output_with(version, device, [s, dh], name, others);
        let last = dh - 1;
        for (n, o) in of("q", &at(s - 1, last)).into_iter().enumerate() {
            let right = if n / dh == s - 1 { o == f64::INFINITY } else { o.is_finite() };
            assert!(right, "q, S={s} DH={dh}: element {n} is {o}");
        }
        for (n, o) in of("v", &at(s - 1, last)).into_iter().enumerate() {
            let right = if n % dh == last { o == f64::INFINITY } else { o.is_finite() };
            assert!(right, "v, S={s} DH={dh}: element {n} is {o}");
        }
        for (n, o) in of("k", &at(s - 1, last)).into_iter().enumerate() {
            assert!(o == f64::INFINITY, "k, S={s} DH={dh}: element {n} is {o}");
        }
    }
}

/// O of one head in f16 with these q, and k and v of that value, is what it must be. All are powers of two:
/// no rounding matters.
fn assert_in_range(version: &dyn Version, device: &Device, [s, dh]: [usize; 2], q: f64, kv: f64) {
    let dtype = DType::F16;
    let all = |value| Tensor::rounded(dtype, &[1, 1, s, dh], &vec![value; s * dh]);
    let inputs = tensors([("q", all(q)), ("k", all(kv)), ("v", all(kv))]);
    let o = outputs_of(version, device, &inputs)["o"].values();
    let right = q * kv * kv * (s * dh) as f64 / (dh as f64).sqrt();
    let close = o.iter().all(|&o| (o - right).abs() <= 0.001 * right);
    assert!(close, "{dtype} S={s} k=v={kv}: {} is not {right}", o[0]);
}

/// C is larger than any f16, or smaller, and O is neither.
fn a_state_out_of_the_range_of_halves_is_scaled(version: &dyn Version, device: &Device) {
    assert_in_range(version, device, [128, 8], 2f64.powi(-14), 256.0);
    assert_in_range(version, device, [256, 8], 64.0, 2f64.powi(-13));
}

/// C of ones is S.
fn large_sums_of_ones_stay_in_range(version: &dyn Version, device: &Device) {
    let device = &without_checks(device).unwrap();
    assert_in_range(version, device, [1 << 16, 8], 2f64.powi(-12), 1.0);
}

/// Of Q, K, V and C. A rounding that is forgotten is a cut, which costs less than an error bound shows.
fn f32_is_rounded_to_tf32(version: &dyn Version, device: &Device) {
    if !version.info().dtypes.contains(&DType::F32) {
        return;
    }
    // TF32 has 10 bits behind the point. Three quarters of the last is rounded up.
    const LAST: f32 = 1.0 / 1024.0;
    let (one, up) = (1.0, 1.0 + 0.75 * LAST);
    let rounded = f64::from(1.0 + LAST);
    let c = f64::from(1.25 + 4.0 * LAST); // of 1.25 (1 + 3 LAST)
    let dh = 64;
    for (q, k, v, expected) in [
        (up, one, one, rounded),
        (one, up, one, rounded),
        (one, one, up, rounded),
        (one, 1.25, 1.0 + 3.0 * LAST, c),
    ] {
        let all = |value: f32| Tensor::new(&[1, 1, dh, dh], &vec![value; dh * dh]);
        let inputs = tensors([("q", all(q)), ("k", all(k)), ("v", all(v))]);
        let o = outputs_of(version, device, &inputs)["o"].values();
        let expected = expected * (dh * dh) as f64 / (dh as f64).sqrt();
        assert!(
            o.iter().all(|&o| o == expected),
            "q {q}, k {k}, v {v}: {} is not {expected}",
            o[0]
        );
    }
}

fn runs_on(version: &Reordered, device: &Device) -> bool {
    version.sources().iter().all(|source| source.runs_on(&device.facts().arch))
}

/// Blocks of three heads each, or two, in any schedule; and counters are zero after a launch, for the next.
pub(crate) fn blocks_take_heads_in_turn(device: &Device) {
    if !runs_on(&RESIDENT, device) {
        return;
    }
    // Four blocks a head, of 8 that the emulator has at once, of 132 on an H200.
    let heads = match device.kind() {
        DeviceKind::Emulator => 5,
        DeviceKind::Cuda => 70,
    };
    let inputs = inputs_of(&RESIDENT, [1, heads, 260, 16, 16]);
    let before = outputs_of(&RESIDENT, device, &inputs);
    for device in schedules(device) {
        let mut prepared = RESIDENT.prepare(&device, &inputs, &Options::default()).unwrap();
        for launch in ["first", "second"] {
            prepared.launch().unwrap();
            let same = prepared.outputs().unwrap() == before;
            assert!(same, "{launch} launch on {}", device.name());
            prepared.poison_outputs().unwrap();
        }
    }
}

/// Of those that share a head: those that divide its tiles and its columns, and others; with fewer tiles
/// than that, a refusal.
pub(crate) fn any_number_of_blocks_is_right(device: &Device) {
    for version in [&CLUSTER, &RESIDENT].into_iter().filter(|v| runs_on(v, device)) {
        any_number_is_right(version, device);
    }
}

fn any_number_is_right(version: &Reordered, device: &Device) {
    let info = version.info();
    let with = |blocks: &str| Options::parse(&[format!("blocks={blocks}")], info).unwrap();
    for (n, blocks) in info.settings[0].choices.iter().enumerate() {
        let dtype = info.dtypes[n % info.dtypes.len()];
        for dims in [[1, 2, 540, 64, 40], [1, 1, 580, 72, 136]] {
            let problem = Problem { options: with(blocks), ..Problem::new(sizes(dims), dtype) };
            let case = check(version, device, &problem);
            assert!(case.passed(), "{} {blocks}: {}", info.name, case.describe());
        }
    }
    let refused = |dims, blocks: &str| {
        let inputs = version.inputs(&Problem::new(sizes(dims), info.dtypes[0]));
        run(version, device, &inputs, &with(blocks)).unwrap_err().to_string()
    };
    let said = refused([1, 1, 128, 64, 64], "3");
    let expected = "--set blocks: expected auto or at most 2: S has so many tiles of 64, got 3";
    assert!(said.starts_with(expected), "{said}");
    let said = refused([1, 1, 128, 64, 60], "2");
    assert!(said.starts_with("--set blocks: expected auto, for DHQK"), "{said}");
}
