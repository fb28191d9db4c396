//! Weights as int8.

use lab_harness::Error;

/// The largest int8: −128 is not used, so that signs are alike.
const MOST: f32 = 127.0;

/// Each row of a matrix \[N, K\] as int8, and a scale a row: w ≈ scale · q with scale = max |w| / 127. A row of zeros has the scale 1.
///
/// An element is off by half a scale at most. Source: absmax quantisation of vectors, Dettmers et al. 2022 (arXiv 2208.07339),
/// section 2.1.
///
/// # Errors
/// `columns` does not divide the length; an element is not finite.
pub fn quantize_rows(weights: &[f32], columns: usize) -> Result<(Vec<i8>, Vec<f32>), Error> {
    if columns == 0 || !weights.len().is_multiple_of(columns) {
        let expected = format!("a divisor of {} elements", weights.len());
        return Err(Error::bad("columns of weights", expected, columns));
    }
    let mut scales = Vec::with_capacity(weights.len() / columns);
    let mut all = Vec::with_capacity(weights.len());
    for (n, row) in weights.chunks(columns).enumerate() {
        if let Some(bad) = row.iter().find(|w| !w.is_finite()) {
            return Err(Error::bad(format!("row {n} of weights"), "finite numbers", bad));
        }
        let largest = row.iter().fold(0f32, |most, w| most.max(w.abs()));
        // Of a row whose largest is subnormal the quotient may be zero.
        let scale = if largest / MOST > 0.0 { largest / MOST } else { 1.0 };
        scales.push(scale);
        // In f64: a quotient rounded to f32 may fall on the other side of a half.
        let of = |w: &f32| (f64::from(*w) / f64::from(scale)).round().clamp(-127.0, 127.0) as i8;
        all.extend(row.iter().map(of));
    }
    Ok((all, scales))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_is_off_by_half_a_scale_at_most() {
        let weights: Vec<f32> = (0..96).map(|n| ((n * 37 % 96) as f32 - 40.0) * 0.013).collect();
        let (q, scales) = quantize_rows(&weights, 32).unwrap();
        for (n, row) in weights.chunks(32).enumerate() {
            let largest = row.iter().fold(0f32, |most, w| most.max(w.abs()));
            assert_eq!(scales[n], largest / 127.0);
            for (w, q) in row.iter().zip(&q[n * 32..]) {
                let off = f64::from(*w) - f64::from(scales[n]) * f64::from(*q);
                assert!(off.abs() <= 0.5 * f64::from(scales[n]) * 1.000_001, "{w}: {q}");
            }
            assert!(q[n * 32..][..32].iter().any(|q| q.abs() == 127), "the largest has all digits");
        }
    }

    #[test]
    fn zeros_stay_zeros_and_what_is_no_number_is_refused() {
        assert_eq!(quantize_rows(&[0.0; 4], 2).unwrap(), (vec![0; 4], vec![1.0; 2]));
        assert_eq!(quantize_rows(&[1e-45, -1e-45], 2).unwrap(), (vec![0; 2], vec![1.0]));
        let said = quantize_rows(&[0.0, 1.0, f32::NAN, 0.0], 2).unwrap_err().to_string();
        assert_eq!(said, "row 1 of weights: expected finite numbers, got NaN");
        assert!(quantize_rows(&[0.0; 4], 3).is_err());
        assert!(quantize_rows(&[0.0; 4], 0).is_err());
    }
}
