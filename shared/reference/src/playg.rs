//! The operations of the stage `playg`.

/// `a·x + y`, element by element.
pub fn saxpy(a: f64, x: &[f64], y: &[f64]) -> Vec<f64> {
    x.iter().zip(y).map(|(x, y)| a * x + y).collect()
}

/// Softmax over the last index: rows of `columns` elements.
///
/// ```
/// let p = lab_reference::playg::softmax(&[0.0, 2f64.ln()], 2);
/// assert!((p[0] - 1.0 / 3.0).abs() < 1e-15 && (p[1] - 2.0 / 3.0).abs() < 1e-15);
/// ```
pub fn softmax(x: &[f64], columns: usize) -> Vec<f64> {
    x.chunks(columns)
        .flat_map(|row| {
            let m = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let e: Vec<f64> = row.iter().map(|v| (v - m).exp()).collect();
            let l: f64 = e.iter().sum();
            e.into_iter().map(move |e| e / l)
        })
        .collect()
}

/// The sum of all elements, by Neumaier's compensated summation (1974), so that the reference's
/// own rounding does not depend on the order.
pub fn sum(x: &[f64]) -> f64 {
    let (mut total, mut lost) = (0f64, 0f64);
    for &v in x {
        let next = total + v;
        lost += if total.abs() >= v.abs() { (total - next) + v } else { (v - next) + total };
        total = next;
    }
    // Past infinity or NaN there is nothing to compensate.
    if total.is_finite() { total + lost } else { total }
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;

    #[test]
    fn softmax_rows_are_distributions_that_a_shift_leaves_alone() {
        let x: Vec<f64> = (0..60).map(|i| f64::from(i * 37 % 23) - 11.0).collect();
        let shifted: Vec<f64> = x.iter().map(|v| v + 700.0).collect();
        let (p, q) = (softmax(&x, 20), softmax(&shifted, 20));
        for (row, shifted) in p.chunks(20).zip(q.chunks(20)) {
            assert_relative_eq!(row.iter().sum::<f64>(), 1.0, epsilon = 1e-14);
            for (a, b) in row.iter().zip(shifted) {
                assert_relative_eq!(a, b, max_relative = 1e-12);
            }
        }
        // Against the definition, where that does not overflow.
        let naive: f64 = x[..20].iter().map(|v| v.exp()).sum();
        assert_relative_eq!(p[3], x[3].exp() / naive, max_relative = 1e-13);
    }

    #[test]
    fn softmax_of_a_row_with_nan_is_nan() {
        assert!(softmax(&[1.0, f64::NAN, 2.0], 3).iter().all(|v| v.is_nan()));
    }

    #[test]
    fn the_sum_survives_cancellation() {
        assert_relative_eq!(sum(&[1e100, 1.0, -1e100]), 1.0);
        assert_relative_eq!(sum(&vec![0.1; 1_000_000]), 100_000.0, epsilon = 1e-8);
        assert_eq!(sum(&[1.0, f64::INFINITY]), f64::INFINITY);
        assert!(sum(&[f64::INFINITY, f64::NEG_INFINITY]).is_nan());
    }

    #[test]
    fn saxpy_is_elementwise() {
        assert_eq!(saxpy(2.0, &[1.0, 2.0], &[10.0, 20.0]), [12.0, 24.0]);
    }
}
