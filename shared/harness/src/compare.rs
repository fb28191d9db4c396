//! How far a result is from its reference: each element, and all of an output together.
//!
//! An element may be off by its own rounding and by what rounding has left in the sums that it was made
//! of:
//!
//! ```text
//! |out − ref| ≤ u |ref| + c · magnitude        u: unit roundoff of the output's type
//! ```
//!
//! The magnitude is the family's, of each element: for a product Σ |a||b|, the sum without its
//! cancellation, which is what componentwise error analysis relates an error to (Higham, Accuracy and
//! Stability of Numerical Algorithms, 2nd ed., section 3.5). c is the version's, by output and type
//! ([`Output::elements`]), some multiple of the [unit roundoff](mod@unit) of what it sums in.
//!
//! A result whose errors all lean one way may keep that for each element. So ‖out − ref‖ / ‖ref‖ of the
//! whole output has a bound too, which is tighter, for errors of roundings are of both signs.

use std::fmt;

use lab_device::DType;
use serde::Serialize;

use crate::{Options, Output, Tensors, Version};

/// Unit roundoffs: half the distance from 1 to the next larger number.
pub mod unit {
    /// Of f64.
    pub const F64: f64 = 1.0 / (1u64 << 53) as f64;
    /// Of f32.
    pub const F32: f64 = 1.0 / (1u64 << 24) as f64;
    /// Of f16.
    pub const F16: f64 = 1.0 / (1u64 << 11) as f64;
    /// Of TF32, to which tensor cores round f32.
    pub const TF32: f64 = 1.0 / (1u64 << 11) as f64;
    /// Of bf16.
    pub const BF16: f64 = 1.0 / (1u64 << 8) as f64;
}

/// A bound, of what is f32 in runs of every type.
pub const fn in_f32(bound: f64) -> [(DType, f64); 3] {
    [(DType::F32, bound), (DType::F16, bound), (DType::BF16, bound)]
}

/// A bound, of what is f32 in runs of halves.
pub const fn in_f32_of_halves(bound: f64) -> [(DType, f64); 2] {
    [(DType::F16, bound), (DType::BF16, bound)]
}

/// The unit roundoff of a type; 0 of integers, which do not round.
pub const fn unit_roundoff(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => unit::F64,
        DType::F32 => unit::F32,
        DType::F16 => unit::F16,
        DType::BF16 => unit::BF16,
        _ => 0.0,
    }
}

/// What an output that states no bound of its elements is held to: so many times its bound of the whole.
pub const UNSTATED: f64 = 4.0;

/// A reference in f64 of no more than this share of its magnitudes is nothing but roundings.
const CANCELLED: f64 = 1e-12;

/// What the rounding errors of an output's elements are relative to.
#[derive(Clone, Debug, PartialEq)]
pub enum Magnitude {
    /// Of each element a number of its own. Where it is not finite, as [`Magnitude::Row`].
    Each(Vec<f64>),
    /// The largest |ref| of the element's row, which runs along the last index.
    Row,
    /// The largest |ref| of the whole output.
    Whole,
}

/// Outputs by name, each with what its errors are relative to. One that is not there has
/// [`Magnitude::Row`].
pub type Magnitudes = Vec<(&'static str, Magnitude)>;

/// Of each element the number that is given for it.
pub fn each(all: Vec<(&'static str, Vec<f64>)>) -> Magnitudes {
    all.into_iter().map(|(name, values)| (name, Magnitude::Each(values))).collect()
}

/// One element of an output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Element {
    /// Its indices, the outermost first.
    pub at: Vec<usize>,
    /// What the run has there.
    pub got: f64,
    /// What should be there.
    pub reference: f64,
    /// By how much it may be off.
    pub allowed: f64,
}

/// `[3, 4] is 0.25, the reference 0.5, and 1.2e-8 is allowed`
impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { at, got, reference, allowed } = self;
        write!(f, "{at:?} is {got}, the reference {reference}")?;
        // An element that is no number where it should be one, or the reverse, has no error in digits.
        if got.is_finite() && reference.is_finite() {
            write!(f, ", and {allowed:.1e} is allowed")?;
        }
        Ok(())
    }
}

/// One output against its reference.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The output.
    pub name: &'static str,
    /// ‖out − ref‖ / ‖ref‖ over the elements whose reference is finite. Infinite where an element
    /// is NaN or infinite and its reference is not the same.
    pub relative_error: f64,
    /// The bound on `relative_error`.
    pub bound: f64,
    /// The largest |out − ref| of an element over what is allowed there: at most 1 where each is right.
    pub element_share: f64,
    /// That element, or the first that is not finite where it should be; none of an output without
    /// elements.
    pub worst: Option<Element>,
    /// How many elements are further off than is allowed, those that are not finite where they should be among them.
    pub wrong_elements: usize,
    /// How many there are.
    pub elements: usize,
    /// The largest (|out − ref| − u |ref|) / magnitude: what [`Output::elements`] bounds.
    pub rounding: f64,
    /// That bound.
    pub rounding_bound: f64,
}

impl Comparison {
    /// Whether each element is within what is allowed, and all together within their bound; NaN is not.
    pub fn passed(&self) -> bool {
        self.within(1.0)
    }

    /// Whether no error is more than so many times what is allowed.
    pub fn within(&self, times: f64) -> bool {
        self.relative_error <= times * self.bound && self.element_share <= times
    }

    /// The largest share that an error takes of what is allowed, of the whole and of each element.
    pub fn share(&self) -> f64 {
        let of_whole =
            if self.relative_error == 0.0 { 0.0 } else { self.relative_error / self.bound };
        of_whole.max(self.element_share)
    }

    /// What is wrong, as one clause: `'out' is off by 1.2e-3, bound 5e-7; 2 of 1000 elements are
    /// wrong: [3, 4] is …`.
    pub fn complaint(&self) -> String {
        let Self { name, relative_error, bound, wrong_elements, elements, .. } = self;
        let mut said = format!("'{name}' is off by {relative_error:.2e}, bound {bound:.2e}");
        if let Some(worst) = &self.worst {
            said += &match wrong_elements {
                0 => format!("; the worst of {elements} elements: {worst}"),
                1 => format!("; 1 of {elements} elements is wrong: {worst}"),
                _ => format!("; {wrong_elements} of {elements} elements are wrong: {worst}"),
            };
        }
        said
    }
}

/// `out: error 1.2e-3, bound 5e-7; out[3, 4] is 0.25, the reference 0.5, and 1.2e-8 is allowed`
impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, relative_error, bound, .. } = self;
        write!(f, "{name}: ")?;
        if relative_error.is_finite() {
            write!(f, "error {relative_error:.2e}, bound {bound:.2e}; ")?;
        }
        match &self.worst {
            Some(worst) => write!(f, "{name}{worst}"),
            None => write!(f, "no elements"),
        }
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
    let reference = version.reference(inputs, options);
    let magnitudes = version.magnitudes(inputs, options, &reference);
    against(&expected, &reference, &magnitudes, outputs, dtype)
}

/// These outputs of a run against a reference that is there.
pub(crate) fn against(
    expected: &[&'static Output],
    reference: &[(&'static str, Vec<f64>)],
    magnitudes: &Magnitudes,
    outputs: &Tensors,
    dtype: DType,
) -> Vec<Comparison> {
    assert_eq!(reference.len(), expected.len(), "a reference for every output");
    expected
        .iter()
        .map(|output| {
            let reference = &reference
                .iter()
                .find(|r| r.0 == output.name)
                .expect("a reference of each output")
                .1;
            let magnitude = magnitudes.iter().find(|m| m.0 == output.name);
            let magnitude = magnitude.map_or(&Magnitude::Row, |m| &m.1);
            let tensor = outputs.get(output.name).expect("every declared output");
            let got = tensor.values();
            assert_eq!(
                got.len(),
                reference.len(),
                "{}: as many elements as the reference",
                output.name
            );
            judge(
                output,
                dtype,
                Stored { dtype: tensor.dtype, shape: &tensor.shape },
                &got,
                reference,
                magnitude,
            )
        })
        .collect()
}

/// How an output lies in memory.
#[derive(Clone, Copy)]
struct Stored<'a> {
    dtype: DType,
    shape: &'a [usize],
}

/// An output against its reference, with the bounds of a run in `dtype`.
fn judge(
    output: &Output,
    dtype: DType,
    stored: Stored<'_>,
    got: &[f64],
    expected: &[f64],
    magnitude: &Magnitude,
) -> Comparison {
    let of_type = |all: &[(DType, f64)]| all.iter().find(|b| b.0 == dtype).map(|b| b.1);
    let bound = of_type(output.bounds).unwrap_or(0.0);
    let rounding_bound = of_type(output.elements).unwrap_or(UNSTATED * bound);
    let scale = Scale::of(magnitude, stored.shape, expected);
    let (unit, least) = (unit_roundoff(stored.dtype), smallest_before_zero(stored.dtype));
    let (mut difference, mut norm, mut of_terms) = (0f64, 0f64, 0f64);
    let (mut share, mut rounding, mut wrong_elements) = (0f64, 0f64, 0);
    let mut worst: Option<(usize, f64)> = None;
    let mut is_undefined = false; // an element was not finite where it should be, or the reverse
    for (index, (&g, &e)) in got.iter().zip(expected).enumerate() {
        // What the output's type cannot hold rounds to infinity.
        let e = if e.is_finite() && e.abs() >= overflow(stored.dtype) {
            e.signum() * f64::INFINITY
        } else {
            e
        };
        if !e.is_finite() || !g.is_finite() {
            if g == e || g.is_nan() && e.is_nan() {
                continue;
            }
            (share, rounding) = (f64::INFINITY, f64::INFINITY);
            (difference, norm) = (f64::INFINITY, norm.max(1.0));
            wrong_elements += 1;
            if !is_undefined {
                (worst, is_undefined) = (Some((index, 0.0)), true);
            }
            continue;
        }
        let off = (g - e).abs();
        difference += off * off;
        norm += e * e;
        let of_rounding = scale.at(index);
        of_terms += of_rounding * of_rounding;
        let of_result = unit * e.abs() + least;
        let allowed = of_result + rounding_bound * of_rounding;
        let beyond = off - of_result;
        if beyond > 0.0 && beyond > rounding * of_rounding {
            rounding = beyond / of_rounding;
        }
        if off > allowed {
            wrong_elements += 1;
        }
        if worst.is_none() || off > share * allowed {
            share = if off == 0.0 { 0.0 } else { off / allowed };
            worst = Some((index, allowed));
        }
    }
    // Against a reference of zeros only zeros are right. But of sums whose terms cancel altogether, as the gradient of a
    // softmax over one position does, nothing is left that errors could lean on: each element has its bound.
    let cancels = scale.each.is_some()
        && difference.is_finite()
        && norm.sqrt() <= CANCELLED * of_terms.sqrt();
    let ratio = |a: f64, b: f64| if a == 0.0 || cancels { 0.0 } else { a / b };
    let worst = worst.map(|(index, allowed)| Element {
        at: coordinates(stored.shape, index),
        got: got[index],
        reference: expected[index],
        allowed,
    });
    Comparison {
        name: output.name,
        relative_error: ratio(difference.sqrt(), norm.sqrt()),
        bound,
        element_share: share,
        worst,
        wrong_elements,
        elements: got.len(),
        rounding,
        rounding_bound,
    }
}

/// What the errors of each element are relative to, as it is asked for.
struct Scale<'a> {
    each: Option<&'a [f64]>,
    /// The largest |ref| of each run of so many elements.
    rows: Vec<f64>,
    columns: usize,
}

impl<'a> Scale<'a> {
    fn of(magnitude: &'a Magnitude, shape: &[usize], expected: &[f64]) -> Self {
        let row = shape.last().copied().unwrap_or(1).max(1);
        let (each, columns) = match magnitude {
            Magnitude::Each(all) => (Some(all.as_slice()), row),
            Magnitude::Row => (None, row),
            Magnitude::Whole => (None, expected.len().max(1)),
        };
        assert!(each.is_none_or(|all| all.len() == expected.len()), "a magnitude of each element");
        let largest = |row: &[f64]| {
            row.iter().filter(|v| v.is_finite()).fold(0f64, |largest, v| largest.max(v.abs()))
        };
        // Of magnitudes that are all finite the rows are not asked for.
        let is_asked = each.is_none_or(|all| all.iter().any(|m| !m.is_finite()));
        let rows =
            if is_asked { expected.chunks(columns).map(largest).collect() } else { Vec::new() };
        Self { each, rows, columns }
    }

    fn at(&self, index: usize) -> f64 {
        let own = self.each.map(|all| all[index]).filter(|m| m.is_finite());
        own.unwrap_or_else(|| self.rows[index / self.columns])
    }
}

/// The indices of an element, the outermost first.
fn coordinates(shape: &[usize], index: usize) -> Vec<usize> {
    let mut at = vec![0; shape.len()];
    let mut rest = index;
    for (at, &size) in at.iter_mut().zip(shape).rev() {
        (*at, rest) = (rest % size.max(1), rest / size.max(1));
    }
    at
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

/// Below this a value may round to 0, whatever it is relative to: half the least f16; the least f32
/// that is no subnormal, for GPUs take those for 0, and bf16 is computed in f32.
fn smallest_before_zero(dtype: DType) -> f64 {
    match dtype {
        DType::F16 => 1.0 / (1u64 << 25) as f64,
        DType::BF16 | DType::F32 => f64::from(f32::MIN_POSITIVE),
        DType::F64 => f64::MIN_POSITIVE,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUT: Output = Output {
        name: "out",
        bounds: &[(DType::F32, 1e-2), (DType::F16, 1e-2)],
        elements: &[(DType::F32, 4.0 * unit::F32), (DType::F16, 4.0 * unit::F32)],
    };

    fn judged(got: &[f64], expected: &[f64], dtype: DType, magnitude: &Magnitude) -> Comparison {
        let stored = Stored { dtype, shape: &[got.len()] };
        judge(&OUT, dtype, stored, got, expected, magnitude)
    }

    #[test]
    fn a_comparison_says_what_is_there_and_what_should_be() {
        let stored = Stored { dtype: DType::F32, shape: &[2, 3] };
        let expected = [1.0, 1.0, 1.0, 1.0, 0.5, 1.0];
        let of = |fifth: f64| {
            let mut got = expected;
            got[4] = fifth;
            judge(&OUT, DType::F32, stored, &got, &expected, &Magnitude::Row)
        };
        assert_eq!(of(f64::NAN).to_string(), "out: out[1, 1] is NaN, the reference 0.5");
        assert!(!of(f64::NAN).passed());
        let quarter = of(0.25);
        assert_eq!(
            quarter.to_string(),
            "out: error 1.09e-1, bound 1.00e-2; out[1, 1] is 0.25, the reference 0.5, and 2.7e-7 is \
             allowed"
        );
        assert_eq!(
            quarter.complaint(),
            "'out' is off by 1.09e-1, bound 1.00e-2; 1 of 6 elements is wrong: [1, 1] is 0.25, the \
             reference 0.5, and 2.7e-7 is allowed"
        );
        assert!(of(0.5 + 2e-7).passed() && !of(0.5 + 3e-7).passed());
    }

    /// Not up to the first NaN alone.
    #[test]
    fn all_that_is_no_number_is_counted() {
        let expected = [1.0, 2.0, f64::INFINITY, 4.0, 5.0];
        let got = [1.0, f64::NAN, 3.0, f64::INFINITY, 6.0];
        let wrong = judged(&got, &expected, DType::F32, &Magnitude::Row);
        assert_eq!((wrong.wrong_elements, wrong.worst.as_ref().unwrap().at.clone()), (4, vec![1]));
        assert!(wrong.relative_error.is_infinite() && wrong.element_share.is_infinite(), "{wrong}");
        assert!(wrong.complaint().contains("; 4 of 5 elements are wrong: [1] is NaN"), "{wrong}");
    }

    /// What the norm of the whole does not see.
    #[test]
    fn one_wrong_element_of_many_is_seen() {
        let expected: Vec<f64> = (0..1 << 16).map(|i| f64::from(i % 7) - 3.0).collect();
        let mut got = expected.clone();
        got[1 << 15] = 0.0; // for 1
        for magnitude in [
            Magnitude::Row,
            Magnitude::Whole,
            Magnitude::Each(expected.iter().map(|e| 10.0 * e.abs()).collect()),
        ] {
            assert!(judged(&expected, &expected, DType::F32, &magnitude).passed());
            let wrong = judged(&got, &expected, DType::F32, &magnitude);
            assert!(wrong.relative_error <= wrong.bound, "{wrong}");
            assert!(!wrong.passed(), "{wrong}");
            assert_eq!((wrong.wrong_elements, wrong.worst.unwrap().at), (1, vec![1 << 15]));
        }
    }

    /// The reference is 0 but for its own roundings, and so is the result but for those of f32.
    #[test]
    fn where_all_terms_cancel_each_element_has_its_bound_alone() {
        let (expected, terms) = ([1e-17, 0.0, -2e-17], Magnitude::Each(vec![1.0; 3]));
        let judged =
            |got: f64, terms: &Magnitude| judged(&[0.0, got, 0.0], &expected, DType::F32, terms);
        assert!(judged(3.0 * unit::F32, &terms).passed());
        assert!(!judged(5.0 * unit::F32, &terms).passed());
        assert!(!judged(f64::NAN, &terms).passed());
        assert!(!judged(3.0 * unit::F32, &Magnitude::Row).passed());
    }

    /// A bound of each element that the norm of the whole must hold down.
    #[test]
    fn a_bias_of_every_element_is_seen_by_the_norm() {
        let expected = vec![1.0; 1000];
        let got = vec![1.02; 1000];
        let each = Magnitude::Each(vec![1e6; 1000]);
        let biased = judged(&got, &expected, DType::F32, &each);
        assert!(biased.element_share <= 1.0 && !biased.passed(), "{biased}");
    }

    #[test]
    fn a_magnitude_that_is_no_number_is_the_rows() {
        let each = Magnitude::Each(vec![f64::NAN, f64::INFINITY, 1.0]);
        let of = |got: &[f64]| judged(got, &[1.0, 1.0, 1.0], DType::F32, &each).passed();
        assert!(of(&[1.0 + 2e-7, 1.0 + 2e-7, 1.0]));
        assert!(!of(&[1.0 + 4e-7, 1.0, 1.0]) && !of(&[1.0, 1.0 + 4e-7, 1.0]));
    }

    #[test]
    fn what_is_not_stated_is_some_times_the_bound_of_the_whole() {
        let stored = Stored { dtype: DType::F32, shape: &[4] };
        let output = Output { elements: &[], ..OUT };
        let expected = [1.0, 100.0, 1.0, 1.0];
        let of = |by: f64| {
            let got = [1.0, 100.0, 1.0 + by, 1.0];
            judge(&output, DType::F32, stored, &got, &expected, &Magnitude::Row).element_share
        };
        assert!(of(3.9) <= 1.0 && of(4.1) > 1.0, "{} {}", of(3.9), of(4.1));
    }

    #[test]
    fn the_output_is_rounded_to_its_own_type() {
        // A neighbour of an f16, and what lies half way to it.
        let of = |got: f64, expected: f64| {
            judged(&[got, 1e-3], &[expected, 1e-3], DType::F16, &Magnitude::Each(vec![0.0; 2]))
                .passed()
        };
        let (one, next) = (1.0, 1.0 + 2.0 * unit::F16);
        assert!(of(one, one + unit::F16) && of(next, one + unit::F16));
        assert!(!of(one, next) && !of(0.0, one) && !of(-one, one));
        // Below the least f16 there is none.
        assert!(of(0.0, 2e-8) && !of(0.0, 4e-8));
    }

    #[test]
    fn nan_and_infinity_count_unless_they_belong_there() {
        let of = |got: &[f64], expected: &[f64], dtype| {
            judged(got, expected, dtype, &Magnitude::Row).relative_error
        };
        let e = |got: &[f64], expected: &[f64]| of(got, expected, DType::F32);
        assert_eq!(e(&[1.0, f64::NAN], &[1.0, f64::NAN]), 0.0);
        assert_eq!(e(&[f64::INFINITY], &[f64::INFINITY]), 0.0);
        assert_eq!(e(&[f64::NAN], &[1.0]), f64::INFINITY);
        assert_eq!(e(&[1.0], &[f64::NAN]), f64::INFINITY);
        assert_eq!(e(&[f64::INFINITY], &[f64::NEG_INFINITY]), f64::INFINITY);
        assert_eq!(e(&[0.0], &[0.0]), 0.0);
        assert_eq!(e(&[1e-30], &[0.0]), f64::INFINITY);
        assert_eq!(e(&[3.0, 4.0], &[3.0, 5.0]), 1.0 / 34f64.sqrt());
        assert_eq!(of(&[f64::INFINITY], &[1e5], DType::F16), 0.0);
        assert_eq!(of(&[f64::INFINITY], &[6e4], DType::F16), f64::INFINITY);
    }
}
