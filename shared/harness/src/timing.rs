//! How long a launch takes.

use std::time::Duration;

use lab_device::Device;
use serde::Serialize;

use crate::{Error, Prepared};

/// Times of many runs, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Times {
    /// Half of the runs took less.
    pub median_us: f64,
    /// A tenth of the runs took less.
    pub p10_us: f64,
    /// Nine tenths of the runs took less.
    pub p90_us: f64,
    /// How many runs.
    pub runs: usize,
}

impl Times {
    /// Quantiles, by the nearest rank. There must be at least one time.
    pub fn of(times: &[Duration]) -> Self {
        let mut us: Vec<f64> = times.iter().map(|t| t.as_secs_f64() * 1e6).collect();
        us.sort_by(f64::total_cmp);
        let at = |q: f64| us[((us.len() as f64 * q).ceil() as usize).clamp(1, us.len()) - 1];
        Self { median_us: at(0.5), p10_us: at(0.1), p90_us: at(0.9), runs: us.len() }
    }
}

/// Warms up, then times launches, each alone on the device with a cold L2 cache.
pub fn time(device: &Device, prepared: &mut dyn Prepared, runs: usize) -> Result<Times, Error> {
    for _ in 0..5.min(runs) {
        prepared.launch()?;
    }
    device.synchronize()?;
    let times = device.time(runs.max(1), || prepared.launch())?;
    Ok(Times::of(&times))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_the_nearest_ranks() {
        let times: Vec<_> = (1..=10).rev().map(Duration::from_micros).collect();
        let t = Times::of(&times);
        assert_eq!((t.median_us, t.p10_us, t.p90_us, t.runs), (5.0, 1.0, 9.0, 10));
    }
}
