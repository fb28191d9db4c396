//! First weights.

/// The a for which weights uniform in \[−a, a\] keep the variance of what passes through them, in
/// both directions about: `gain` · √(6 / (fan_in + fan_out)) (Glorot & Bengio 2010, equation 16).
///
/// `fan_in` are the columns of a matrix of weights, `fan_out` its rows. The gates of an LSTM or a
/// GRU are stacked in one matrix, but each is one of its own: `fan_out` is H.
///
/// ```
/// assert_eq!(lab_reference::training::xavier_uniform_bound(2, 4, 1.0), 1.0);
/// ```
pub fn xavier_uniform_bound(fan_in: usize, fan_out: usize, gain: f64) -> f64 {
    gain * (6.0 / (fan_in + fan_out) as f64).sqrt()
}
