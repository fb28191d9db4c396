//! How far values are from what they should be, as one number, for checks that are not of a version's outputs.

use crate::compare::UNSTATED;

/// ‖got − expected‖ / ‖expected‖, or, where that is more, the largest |got − expected| of an element over
/// [`UNSTATED`] times the largest |expected|. So whatever is within a bound has no element that is off by more than as many
/// times that bound: one that is zero, or another's, does not hide among the others.
///
/// Infinite where an element is NaN or infinite and not the same as what is expected.
///
/// # Panics
/// There are more of the one than of the other.
pub fn distance(got: &[f64], expected: &[f64]) -> f64 {
    distance_beside(got, expected, 0.0)
}

/// The same of values whose terms may cancel: what is expected counts as numbers of this root mean square at least.
///
/// # Panics
/// As [`distance`].
pub fn distance_beside(got: &[f64], expected: &[f64], least: f64) -> f64 {
    assert_eq!(got.len(), expected.len(), "as many values as are expected");
    let (mut squares, mut norm) = (0f64, 0f64);
    let (mut worst, mut largest) = (0f64, least);
    for (&g, &e) in got.iter().zip(expected) {
        if !g.is_finite() || !e.is_finite() {
            if g == e || g.is_nan() && e.is_nan() {
                continue;
            }
            return f64::INFINITY;
        }
        let off = (g - e).abs();
        (squares, norm) = (squares + off * off, norm + e * e);
        (worst, largest) = (worst.max(off), largest.max(e.abs()));
    }
    if worst == 0.0 {
        return 0.0;
    }
    let norm = norm.sqrt().max(least * (got.len() as f64).sqrt());
    (squares.sqrt() / norm).max(worst / (UNSTATED * largest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_and_its_worst_element_count() {
        assert_eq!(distance(&[3.0, 4.0], &[3.0, 5.0]), 1.0 / 34f64.sqrt());
        // One zero in ten thousand: a hundredth of the whole, a quarter of the largest.
        let (mut got, expected) = (vec![1.0; 10_000], vec![1.0; 10_000]);
        assert_eq!(distance(&got, &expected), 0.0);
        got[17] = 0.0;
        assert_eq!(distance(&got, &expected), 0.25);
    }

    #[test]
    fn what_is_expected_counts_as_the_least() {
        assert_eq!(distance(&[1e-9, 0.0], &[0.0, 0.0]), f64::INFINITY);
        assert_eq!(distance_beside(&[0.5, 0.0], &[0.0, 0.0], 1.0), 0.5 / 2f64.sqrt());
        assert_eq!(distance_beside(&[1.0, 1.0], &[1.0, 0.0], 0.0), 1.0);
    }

    #[test]
    fn nan_is_far_unless_it_is_expected() {
        assert_eq!(distance(&[f64::NAN, 1.0], &[f64::NAN, 1.0]), 0.0);
        assert_eq!(distance(&[f64::NAN], &[1.0]), f64::INFINITY);
        assert_eq!(distance(&[1.0], &[f64::INFINITY]), f64::INFINITY);
    }
}
