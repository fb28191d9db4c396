//! How far a result is from its reference.

use std::fmt;

use lab_device::DType;
use serde::Serialize;

use crate::{Options, Output, Tensors, Version};

/// One output against its reference.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The output.
    pub name: &'static str,
    /// ‖out − ref‖ / ‖ref‖ over the elements whose reference is finite. Infinite where an element
    /// is NaN or infinite and its reference is not the same.
    pub relative_error: f64,
    /// The largest |out − ref| of an element, over the largest |ref|.
    pub worst: f64,
    /// Index of that element, or of the first that is not finite where it should be.
    pub worst_index: usize,
    /// What the run has there, and the reference.
    #[serde(skip)]
    pub worst_values: [f64; 2],
    /// The bound on `relative_error`.
    pub bound: f64,
}

impl Comparison {
    /// Whether the error is within its bound; NaN is not.
    pub fn passed(&self) -> bool {
        self.relative_error <= self.bound
    }
}

/// `out: error 1.2e-3, bound 5e-7; element 300 is 0.25, the reference 0.5`
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name, relative_error, worst_index, worst_values: [got, reference], bound, ..
        } = self;
        write!(f, "{name}: ")?;
        // An element that is no number where it should be one, or the reverse, has no error in digits.
        if relative_error.is_finite() {
            write!(f, "error {relative_error:.2e}, bound {bound:.2e}; ")?;
        }
        write!(f, "element {worst_index} is {got}, the reference {reference}")
    }
}

/// All outputs of a run against the f64 reference.
pub fn compare(
    version: &dyn Version,
    inputs: &Tensors,
    outputs: &Tensors,
    options: &Options,
    dtype: DType,
) -> Vec<Comparison> {
    let expected = version.info().outputs_under(options);
    against(&expected, &version.reference(inputs, options), outputs, dtype)
}

/// These outputs of a run against a reference that is there.
pub(crate) fn against(
    expected: &[&'static Output],
    reference: &[(&'static str, Vec<f64>)],
    outputs: &Tensors,
    dtype: DType,
) -> Vec<Comparison> {
    assert_eq!(reference.len(), expected.len(), "a reference for every output");
    expected
        .iter()
        .map(|output| {
            let bound = output.bounds.iter().find(|b| b.0 == dtype).map_or(0.0, |b| b.1);
            let expected = &reference
                .iter()
                .find(|r| r.0 == output.name)
                .expect("a reference of each output")
                .1;
            let tensor = outputs.get(output.name).expect("every declared output");
            let got = tensor.values();
            assert_eq!(
                got.len(),
                expected.len(),
                "{}: as many elements as the reference",
                output.name
            );
            let (relative_error, worst, worst_index) = error(&got, expected, tensor.dtype);
            let worst_values = match got.is_empty() {
                true => [0.0; 2],
                false => [got[worst_index], expected[worst_index]],
            };
            Comparison {
                name: output.name,
                relative_error,
                worst,
                worst_index,
                worst_values,
                bound,
            }
        })
        .collect()
}

/// Relative error, worst element and its index.
fn error(got: &[f64], expected: &[f64], stored: DType) -> (f64, f64, usize) {
    let (mut difference, mut norm, mut largest) = (0f64, 0f64, 0f64);
    let (mut worst, mut worst_index) = (0f64, 0usize);
    for (index, (&g, &e)) in got.iter().zip(expected).enumerate() {
        // What the output's type cannot hold rounds to infinity.
        let e = if e.is_finite() && e.abs() >= overflow(stored) {
            e.signum() * f64::INFINITY
        } else {
            e
        };
        if !e.is_finite() || !g.is_finite() {
            if g == e || g.is_nan() && e.is_nan() {
                continue;
            }
            return (f64::INFINITY, f64::INFINITY, index);
        }
        difference += (g - e) * (g - e);
        norm += e * e;
        largest = largest.max(e.abs());
        if (g - e).abs() > worst {
            (worst, worst_index) = ((g - e).abs(), index);
        }
    }
    // Against a reference of zeros only zeros are right.
    let ratio = |a: f64, b: f64| if a == 0.0 { 0.0 } else { a / b };
    (ratio(difference.sqrt(), norm.sqrt()), ratio(worst, largest), worst_index)
}

/// From here on a value rounds to infinity.
fn overflow(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 65520.0,
        DType::BF16 => 3.396_039_e38,
        DType::F32 => 3.402_823_567_797_336_6e38,
        _ => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_says_what_is_there_and_what_should_be() {
        let of = |relative_error, worst_values| Comparison {
            name: "out",
            relative_error,
            worst: 0.0,
            worst_index: 300,
            worst_values,
            bound: 5e-7,
        };
        let infinite = of(f64::INFINITY, [0.25, f64::NAN]).to_string();
        assert_eq!(infinite, "out: element 300 is 0.25, the reference NaN");
        let expected = "out: error 1.25e-3, bound 5.00e-7; element 300 is 0.25, the reference 0.5";
        assert_eq!(of(1.25e-3, [0.25, 0.5]).to_string(), expected);
    }

    #[test]
    fn nan_and_infinity_count_unless_they_belong_there() {
        let e = |got: &[f64], expected: &[f64]| error(got, expected, DType::F32).0;
        assert_eq!(e(&[1.0, f64::NAN], &[1.0, f64::NAN]), 0.0);
        assert_eq!(e(&[f64::INFINITY], &[f64::INFINITY]), 0.0);
        assert_eq!(e(&[f64::NAN], &[1.0]), f64::INFINITY);
        assert_eq!(e(&[1.0], &[f64::NAN]), f64::INFINITY);
        assert_eq!(e(&[f64::INFINITY], &[f64::NEG_INFINITY]), f64::INFINITY);
        assert_eq!(e(&[0.0], &[0.0]), 0.0);
        assert_eq!(e(&[1e-30], &[0.0]), f64::INFINITY);
        assert_eq!(e(&[3.0, 4.0], &[3.0, 5.0]), 1.0 / 34f64.sqrt());
        assert_eq!(error(&[f64::INFINITY], &[1e5], DType::F16).0, 0.0);
        assert_eq!(error(&[f64::INFINITY], &[6e4], DType::F16).0, f64::INFINITY);
    }
}
