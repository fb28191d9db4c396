//! How long a launch takes.

use std::time::Duration;

use lab_device::Device;
use serde::{Deserialize, Serialize};

use crate::{Error, Prepared};

/// Times of many runs, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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

/// As [`time`], with as many of the `runs` as the budget allows, but [`LEAST_RUNS`] at least: how
/// a slow kernel does not hold up the others.
///
/// # Errors
/// A launch's.
pub fn time_within(
    device: &Device,
    prepared: &mut dyn Prepared,
    runs: usize,
    budget: Duration,
) -> Result<Times, Error> {
    prepared.launch()?;
    device.synchronize()?;
    let first = device.time(1, || prepared.launch())?;
    let runs = runs_within(budget, first[0], runs);
    for _ in 0..5.min(runs - 1) {
        prepared.launch()?;
    }
    device.synchronize()?;
    let times = device.time(runs, || prepared.launch())?;
    Ok(Times::of(&times))
}

/// As [`time_within`], of several, a run of each in turn: a GPU's clock falls while it is busy, and so it falls for all of
/// them alike. Each follows each other one equally often (a Williams design), for it finds the caches as that one left
/// them. The first round does not count.
///
/// # Errors
/// A launch's.
pub fn time_in_turns(
    device: &Device,
    prepared: &mut [&mut dyn Prepared],
    runs: usize,
    budget: Duration,
) -> Result<Vec<Times>, Error> {
    let mut times: Vec<Vec<Duration>> = vec![Vec::new(); prepared.len()];
    let mut rounds = Vec::with_capacity(prepared.len());
    for each in prepared.iter_mut() {
        each.launch()?;
        let first = device.time(1, || each.launch())?;
        rounds.push(1 + runs_within(budget, first[0], runs));
    }
    // All in one row, so that no run waits for a slow host: what a library does before it launches is not the GPU's time.
    let turns = turns(&rounds);
    let mut next = turns.iter();
    let all = device.time(turns.len(), || {
        let turn = *next.next().expect("as many runs as turns");
        prepared[turn].launch()
    })?;
    for (turn, time) in turns.iter().zip(all) {
        times[*turn].push(time);
    }
    Ok(times.iter().map(|times| Times::of(&times[1..])).collect())
}

/// Whose turn it is, where each takes part in so many rounds.
fn turns(rounds: &[usize]) -> Vec<usize> {
    let all = rounds.len();
    // 0, 1, n - 1, 2, n - 2, …: each difference modulo n once, where n is even; where it is odd, once among a row and its reverse.
    let first: Vec<usize> =
        (0..all).map(|n| if n % 2 == 1 { n.div_ceil(2) } else { (all - n / 2) % all }).collect();
    let of_round = |round: usize| {
        let mut row: Vec<usize> = first.iter().map(|&who| (who + round) % all).collect();
        if round / all % 2 == 1 {
            row.reverse();
        }
        row
    };
    let in_it = |round: usize| of_round(round).into_iter().filter(move |&who| round < rounds[who]);
    (0..rounds.iter().copied().max().unwrap_or(0)).flat_map(in_it).collect()
}

/// What a run takes in the steady state of a replayed graph, in µs: no launch waits for the host, and
/// the caches hold what the run before left there. From two rows of replays, by what the longer one
/// takes more, so that how they begin and end does not count.
///
/// # Errors
/// A launch's.
pub fn replayed(device: &Device, prepared: &mut dyn Prepared) -> Result<f64, Error> {
    prepared.launch()?;
    device.synchronize()?;
    let mut graph = device.graph(|| prepared.launch())?;
    let first = device.time(1, || graph.launch())?[0];
    let replays = runs_within(Duration::from_millis(10), first, REPLAYS);
    let mut median = |replays: usize| -> Result<f64, Error> {
        let row = || (0..replays).try_for_each(|_| graph.launch());
        let times = runs_within(Duration::from_millis(100), first * replays as u32, REPLAYS);
        Ok(Times::of(&device.time(times, row)?).median_us)
    };
    median(replays)?;
    let (one, two) = (median(replays)?, median(2 * replays)?);
    Ok((two - one) / replays as f64)
}

/// The most replays of a row, and times that a row is timed.
const REPLAYS: usize = 20;

/// The least runs of which quantiles are given.
pub const LEAST_RUNS: usize = 3;

/// How many runs of this length fit the budget: `runs` at most, [`LEAST_RUNS`] at least, unless
/// fewer are asked for.
pub(crate) fn runs_within(budget: Duration, one: Duration, runs: usize) -> usize {
    let fit = budget.as_secs_f64() / one.as_secs_f64().max(1e-9);
    (fit as usize).max(LEAST_RUNS).min(runs.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slow_work_runs_less_often() {
        let second = Duration::from_secs(1);
        assert_eq!(runs_within(second, Duration::from_micros(10), 100), 100);
        assert_eq!(runs_within(second, Duration::from_millis(100), 100), 10);
        assert_eq!(runs_within(second, Duration::from_secs(60), 100), LEAST_RUNS);
        assert_eq!(runs_within(second, Duration::ZERO, 1), 1);
    }

    #[test]
    fn each_follows_each_other_as_often_and_slow_ones_leave_early() {
        assert_eq!(turns(&[3, 1, 3]), [0, 1, 2, 2, 0, 2, 0]);
        assert_eq!(turns(&[2]), [0, 0]);
        assert!(turns(&[]).is_empty());
        for all in 2..12 {
            let mut after = vec![vec![0; all]; all];
            for row in turns(&vec![2 * all; all]).chunks(all) {
                row.windows(2).for_each(|pair| after[pair[0]][pair[1]] += 1);
            }
            for (who, after) in after.iter().enumerate() {
                let others = after.iter().enumerate().filter(|(other, _)| *other != who);
                assert_eq!(after[who], 0);
                assert!(others.clone().all(|(_, &times)| times == 2), "{all}: {who}: {after:?}");
            }
        }
    }

    #[test]
    fn quantiles_are_the_nearest_ranks() {
        let times: Vec<_> = (1..=10).rev().map(Duration::from_micros).collect();
        let t = Times::of(&times);
        assert_eq!((t.median_us, t.p10_us, t.p90_us, t.runs), (5.0, 1.0, 9.0, 10));
    }
}
