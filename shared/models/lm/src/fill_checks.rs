//! Random weights are as wide as what a training begins with.

use lab_device::{DType, Device};
use lab_harness::Tensors;
use lab_layers::{Init, Parameter};

use crate::check_data::small;
use crate::fill;
use crate::store::Store;

/// Each element of each parameter, in all types and as int8; no two matrices are alike, and a second time all bits are the same.
pub(crate) fn random_weights_are_as_wide_as_first_values(device: &Device) {
    for (dtype, int8) in [(DType::F32, false), (DType::BF16, false), (DType::F16, true)] {
        let store = Store::new(&small(), int8);
        let [first, again] = [0; 2].map(|_| filled(device, &store, dtype));
        assert_eq!(first, again, "{dtype}: a second time");
        let mut seen: Vec<(String, Vec<f64>)> = Vec::new();
        let mut scaled = 0;
        for (arena, dtype, all) in store.arenas(dtype) {
            let tensors = all.unpack(&first[arena]);
            for parameter in all.iter() {
                let values = tensors[&parameter.name].values();
                if dtype == DType::I8 {
                    assert_wide(&parameter.name, &values, 0.0, 127.0);
                } else if arena == "scales" {
                    // 0 of a matrix that begins with one number.
                    let scale = values[0];
                    assert!(scale >= 0.0 && values.iter().all(|v| *v == scale), "{values:?}");
                    scaled += usize::from(scale > 0.0);
                } else {
                    assert_begun(parameter, &values);
                }
                if values.len() > 100 && values.iter().any(|v| *v != values[0]) {
                    let twin = seen.iter().find(|(_, other)| other[..100] == values[..100]);
                    assert_eq!(twin.map(|(name, _)| name), None, "as {}", parameter.name);
                    seen.push((parameter.name.clone(), values));
                }
            }
        }
        assert!(seen.len() > 8, "{dtype}: {} matrices", seen.len());
        assert!(scaled > 8 || !int8, "{scaled} scales");
    }
}

/// The arenas by their names.
fn filled(device: &Device, store: &Store, dtype: DType) -> Tensors {
    let binding = fill::random(device, store, dtype).unwrap();
    let read = |name: &str| binding.read(binding.plan().slot(name).expect("its arena")).unwrap();
    store.arenas(dtype).iter().map(|(name, ..)| ((*name).to_owned(), read(name))).collect()
}

/// By what the parameter begins with; a half is off by 2⁻⁹.
fn assert_begun(parameter: &Parameter, values: &[f64]) {
    let Parameter { name, init, .. } = parameter;
    match *init {
        Init::Constant(value) => {
            let near = |v: &f64| (v - value).abs() <= value.abs() / 250.0;
            assert!(values.iter().all(near), "{name}: expected {value}, got {values:?}");
        }
        Init::Linear(from, to) => {
            assert_wide(name, values, (from + to) / 2.0, (to - from).abs() / 2.0)
        }
        Init::Normal(deviation) => assert_wide(name, values, 0.0, deviation * 3f64.sqrt()),
        Init::Within(..) => assert_wide(name, values, 0.0, 1.0),
    }
}

/// Uniform in `middle` ± `spread`: within it, and of many values the mean and the standard deviation, by four standard errors.
fn assert_wide(name: &str, values: &[f64], middle: f64, spread: f64) {
    let most = (middle.abs() + spread) / 250.0;
    let strays = values.iter().find(|v| (*v - middle).abs() > spread + most);
    assert_eq!(strays, None, "{name}: expected {middle} by {spread} at most");
    let n = values.len() as f64;
    if n < 100.0 {
        return;
    }
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
    let deviation = spread / 3f64.sqrt();
    assert!((mean - middle).abs() <= 4.0 * deviation / n.sqrt() + most, "{name}: a mean of {mean}");
    // The variance of a uniform variance is 4/5 of its square, over n.
    let error = (variance / deviation.powi(2) - 1.0).abs();
    assert!(
        error <= 4.0 * (0.8 / n).sqrt() + 0.02,
        "{name}: a variance of {variance}, {error} off"
    );
}
