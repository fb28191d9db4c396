//! What checks of the vLSTM share: inputs of a certain kind, and comparisons of outputs.

use lab_device::{DType, Device};

use super::NORMALIZER_GRAD;
use crate::qkv::checks::inputs_of;
use lab_harness::{Options, Tensor, Tensors, Version, run};

/// Whether its n is held constant, is not, or both are offered.
pub(super) fn normalizer_grads(version: &dyn Version) -> &'static [&'static str] {
    let setting = version.info().settings.iter().find(|s| s.name == NORMALIZER_GRAD.name);
    setting.expect("a setting of the family").choices
}

/// The same with matrices in that type, rounded.
pub(super) fn in_type(mut inputs: Tensors, dtype: DType) -> Tensors {
    for tensor in inputs.values_mut().filter(|t| t.shape.len() == 4) {
        *tensor = Tensor::rounded(dtype, &tensor.shape, &tensor.values());
    }
    inputs
}

/// An output is the same from this element on, but for df of halves, whose sums from both sides may round otherwise: to its
/// bound, of the largest di.
#[track_caller]
pub(super) fn assert_same_from(
    version: &dyn Version,
    name: &str,
    start: usize,
    before: &Tensors,
    after: &Tensors,
) {
    let slack = match name {
        "df" => rounding_of(version, name, before["dq"].dtype, &Options::default()),
        _ => 0.0,
    };
    let scale = before["di"].values().iter().fold(0f64, |a, v| a.max(v.abs()));
    let (before, after) = (before[name].values(), after[name].values());
    for (at, (a, b)) in after.iter().zip(&before).enumerate().skip(start) {
        assert!((a - b).abs() <= slack * scale, "{name}, element {at}: {a}, before {b}");
    }
}

/// One head with these gates. q and k are positive, so that no row's sum of C cancels, which would
/// tell of the data and not of the gates.
pub(super) fn with_gates(
    version: &dyn Version,
    s: usize,
    i: impl Fn(usize) -> f64,
    f: impl Fn(usize) -> f64,
) -> Tensors {
    let mut all = inputs_of(version, [1, 1, s, 16, 16]);
    for name in ["q", "k"] {
        let positive: Vec<f64> = all[name].values().iter().map(|v| v.abs()).collect();
        all.insert(name.to_owned(), Tensor::rounded(all[name].dtype, &[1, 1, s, 16], &positive));
    }
    set_gate(&mut all, "i", i);
    set_gate(&mut all, "f", f);
    all
}

/// A gate that is `at(t)` at position t of each head.
pub(super) fn set_gate(inputs: &mut Tensors, name: &str, at: impl Fn(usize) -> f64) {
    let shape = inputs[name].shape.clone();
    let all: Vec<f64> = (0..shape.iter().product()).map(|n| at(n % shape[2])).collect();
    inputs.insert(name.to_owned(), Tensor::rounded(DType::F32, &shape, &all));
}

/// What the version's roundings to its halves make of an output, at most: its bound there. In f32 nothing.
pub(super) fn rounding_of(
    version: &dyn Version,
    output: &str,
    dtype: DType,
    options: &Options,
) -> f64 {
    let all = version.info().outputs_under(options);
    let bounds = all.iter().find(|o| o.name == output).map_or(&[][..], |o| o.bounds);
    let bound = bounds.iter().find(|b| b.0 == dtype && dtype.size() < DType::F32.size());
    bound.map_or(0.0, |b| b.1)
}

/// The same under these options, with every head of CN and nN as a row.
#[track_caller]
pub(super) fn assert_rows_under(
    version: &dyn Version,
    device: &Device,
    inputs: &Tensors,
    options: &Options,
    bound: f64,
    what: &str,
) {
    let got = run(version, device, inputs, options).unwrap();
    let outputs = version.reference(inputs, options);
    let of_values = ["h", "m", "n", "CN", "nN", "mN"];
    for (name, expected) in outputs.into_iter().filter(|o| of_values.contains(&o.0)) {
        let [dhqk, dhhv] = ["q", "v"].map(|x| inputs[x].shape[3]);
        let columns = match name {
            "h" => dhhv,
            "CN" => dhqk * dhhv,
            "nN" => dhqk,
            _ => 1,
        };
        let bound = match name {
            "h" | "n" | "CN" | "nN" => {
                bound.max(rounding_of(version, name, inputs["q"].dtype, options))
            }
            _ => bound,
        };
        let got = got[name].values();
        for (row, (got, expected)) in got.chunks(columns).zip(expected.chunks(columns)).enumerate()
        {
            let largest = expected.iter().fold(0f64, |a, v| a.max(v.abs()));
            for (&g, &e) in got.iter().zip(expected) {
                if name == "mN" && g == e {
                    continue; // −∞ where nothing was written
                }
                assert!(e.is_finite(), "{what}: {name} row {row}: the reference is {e}");
                let right = if e.abs() > f64::from(f32::MAX) {
                    g == e.signum() * f64::INFINITY
                } else {
                    (g - e).abs() <= bound * largest + f64::from(f32::MIN_POSITIVE)
                };
                assert!(right, "{what}: {name} row {row}: {g}, expected {e}");
            }
        }
    }
}
