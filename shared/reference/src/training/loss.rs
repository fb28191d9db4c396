//! Losses, each with its gradient.

use crate::playg::softmax;

/// The mean of (y − target)² over all elements, and its gradient by `y`: 2 (y − target) / n
/// (`torch.nn.functional.mse_loss`).
///
/// ```
/// let (loss, dy) = lab_reference::training::mean_squared_error(&[1.0, 5.0], &[2.0, 2.0]);
/// assert_eq!((loss, dy), (5.0, vec![-1.0, 3.0]));
/// ```
///
/// # Panics
/// The lengths differ.
pub fn mean_squared_error(y: &[f64], target: &[f64]) -> (f64, Vec<f64>) {
    assert_eq!(y.len(), target.len(), "target");
    let n = y.len() as f64;
    let differences = || y.iter().zip(target).map(|(y, target)| y - target);
    (differences().map(|d| d * d).sum::<f64>() / n, differences().map(|d| 2.0 * d / n).collect())
}

/// The mean over rows of −log softmax(logits)\[target\], and its gradient by `logits`:
/// (softmax(logits) − one-hot(target)) / rows (`torch.nn.functional.cross_entropy`).
///
/// `logits` is `[rows, classes]`, `targets` a class of each row, `[rows]`.
///
/// ```
/// let (loss, d) = lab_reference::training::cross_entropy(&[3f64.ln(), 0.0], &[1]);
/// assert!((loss - 4f64.ln()).abs() < 1e-15);
/// assert!((d[0] - 0.75).abs() < 1e-15 && (d[1] + 0.75).abs() < 1e-15);
/// ```
///
/// # Panics
/// The rows of `logits` are not as many as `targets`, or a target is not a class.
pub fn cross_entropy(logits: &[f64], targets: &[usize]) -> (f64, Vec<f64>) {
    let rows = targets.len();
    let classes = logits.len() / rows;
    assert_eq!(logits.len(), rows * classes, "logits");
    let mut d = softmax(logits, classes);
    let mut loss = 0.0;
    for ((row, d), &target) in logits.chunks(classes).zip(d.chunks_mut(classes)).zip(targets) {
        let largest = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        // Not the logarithm of the softmax, which may be zero.
        loss += row.iter().map(|v| (v - largest).exp()).sum::<f64>().ln() + largest - row[target];
        d[target] -= 1.0;
        d.iter_mut().for_each(|d| *d /= rows as f64);
    }
    (loss / rows as f64, d)
}
