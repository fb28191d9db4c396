//! What the tests share.

use candle_core::{DType, Device, Result, Tensor, Var};

/// Numbers from −1 to 1 whose sum over many is about 0, the same in each run.
pub(crate) fn numbers(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1u32 << 30) - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// A variable of these values in this type.
pub(crate) fn variable(values: &[f64], shape: &[usize], dtype: DType) -> Result<Var> {
    Var::from_tensor(&Tensor::from_slice(values, shape, &Device::Cpu)?.to_dtype(dtype)?)
}

/// Its values, which are those given but for the type's rounding.
pub(crate) fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).and_then(|t| t.flatten_all()).and_then(|t| t.to_vec1()).unwrap()
}

/// ‖out − reference‖ / ‖reference‖, or, where that is more, the error of the worst element over four times the largest one. NaN
/// where there is one.
pub(crate) fn error(out: &[f64], reference: &[f64]) -> f64 {
    assert_eq!(out.len(), reference.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let largest = |x: &mut dyn Iterator<Item = f64>| x.map(f64::abs).fold(0.0, f64::max);
    let wrong = || out.iter().zip(reference).map(|(a, b)| a - b);
    let of_all = norm(&mut wrong()) / norm(&mut reference.iter().copied());
    let of_worst = largest(&mut wrong()) / (4.0 * largest(&mut reference.iter().copied()));
    if of_worst > of_all { of_worst } else { of_all }
}
