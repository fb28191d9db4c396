//! The operations of the stage `playg`.

/// `a·x + y`, element by element.
pub fn saxpy(a: f64, x: &[f64], y: &[f64]) -> Vec<f64> {
    x.iter().zip(y).map(|(x, y)| a * x + y).collect()
}

/// `1 / (1 + exp(−v))`.
pub fn sigmoid(v: f64) -> f64 {
    1.0 / (1.0 + (-v).exp())
}

/// `max(v, 0)`; NaN stays NaN.
pub fn relu(v: f64) -> f64 {
    if v < 0.0 { 0.0 } else { v }
}

/// `[rows, columns]` → `[columns, rows]`.
pub fn transpose(x: &[f64], columns: usize) -> Vec<f64> {
    let rows = x.len() / columns;
    (0..columns).flat_map(|c| (0..rows).map(move |r| x[r * columns + c])).collect()
}

/// Layer norm over the last index, with a weight and a shift for each column
/// (Ba, Kiros & Hinton 2016, arXiv 1607.06450).
pub fn layernorm(x: &[f64], gamma: &[f64], beta: &[f64], eps: f64) -> Vec<f64> {
    let columns = gamma.len();
    x.chunks(columns)
        .flat_map(|row| {
            let mean = row.iter().sum::<f64>() / columns as f64;
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / columns as f64;
            let scale = 1.0 / (variance + eps).sqrt();
            row.iter().zip(gamma).zip(beta).map(move |((v, g), b)| (v - mean) * scale * g + b)
        })
        .collect()
}

/// What the rounding errors of [`layernorm`] are relative to, for `gamma` and `beta` of absolute values: with
/// z_j = (|x_j| + mean |x|) scale, |γ_j| z_j (1 + mean z²) + |β_j|. The variance is off by its own roundings and
/// by those of the differences that it is made of.
pub fn layernorm_magnitude(x: &[f64], gamma: &[f64], beta: &[f64], eps: f64) -> Vec<f64> {
    let columns = gamma.len();
    x.chunks(columns)
        .flat_map(|row| {
            let count = columns as f64;
            let mean = row.iter().sum::<f64>() / count;
            let variance = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
            let scale = 1.0 / (variance + eps).sqrt();
            let mean = row.iter().map(|v| v.abs()).sum::<f64>() / count;
            let z: Vec<f64> = row.iter().map(|v| (v.abs() + mean) * scale).collect();
            let spread = z.iter().map(|z| z * z).sum::<f64>() / count;
            let all = z.into_iter().zip(gamma).zip(beta);
            all.map(move |((z, g), b)| g * z * (1.0 + spread) + b)
        })
        .collect()
}

/// What the rounding errors of [`softmax`] are relative to: p_j (1 + |x_j − max| + Σ_k p_k |x_k − max|), for a
/// difference that is rounded makes its exponential be off by as much as it is itself, and so the sum.
pub fn softmax_magnitude(x: &[f64], columns: usize) -> Vec<f64> {
    let p = softmax(x, columns);
    let rows = x.chunks(columns).zip(p.chunks(columns));
    rows.flat_map(|(row, p)| {
        let m = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        // What is masked has no part in it: 0 · ∞ would be NaN.
        let part = move |(x, p): (&f64, &f64)| if *p == 0.0 { 0.0 } else { p * (x - m).abs() };
        let of_sum: f64 = row.iter().zip(p).map(part).sum();
        row.iter().zip(p).map(move |(x, p)| part((x, p)) + p * (1.0 + of_sum))
    })
    .collect()
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
    fn layernorm_rows_have_mean_zero_and_variance_one() {
        let x: Vec<f64> = (0..60).map(|i| f64::from(i * 37 % 23) * 0.3 + 100.0).collect();
        let out = layernorm(&x, &[1.0; 20], &[0.0; 20], 0.0);
        for row in out.chunks(20) {
            assert_relative_eq!(row.iter().sum::<f64>(), 0.0, epsilon = 1e-10);
            assert_relative_eq!(row.iter().map(|v| v * v).sum::<f64>(), 20.0, epsilon = 1e-10);
        }
        let scaled = layernorm(&x, &[2.0; 20], &[3.0; 20], 0.0);
        assert!(out.iter().zip(&scaled).all(|(a, b)| (2.0 * a + 3.0 - b).abs() < 1e-12));
    }

    #[test]
    fn transposing_twice_is_the_identity() {
        let x: Vec<f64> = (0..12).map(f64::from).collect();
        let once = transpose(&x, 4);
        assert_eq!(once[..4], [0.0, 4.0, 8.0, 1.0]);
        assert_eq!(transpose(&once, 3), x);
    }

    #[test]
    fn activations_at_known_points() {
        assert_eq!((relu(-2.0), relu(3.0), relu(f64::NAN).is_nan()), (0.0, 3.0, true));
        assert_relative_eq!(sigmoid(0.0), 0.5);
        assert_relative_eq!(sigmoid(2.0) + sigmoid(-2.0), 1.0);
    }

    #[test]
    fn saxpy_is_elementwise() {
        assert_eq!(saxpy(2.0, &[1.0, 2.0], &[10.0, 20.0]), [12.0, 24.0]);
    }
}
