//! How long a launch takes.

use std::fmt;
use std::time::Duration;

use lab_device::{Device, Graph};
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

/// As [`time_in_turns`], of runs that other processes make as well, each of which ends before the next begins: `run(who)` is one
/// turn, and `None` of one that has fallen out, which has no more turns. `length` is what counts of a turn against the budget. The
/// first turn of each and the first round are left out; of one that fell out there is nothing.
///
/// # Errors
/// The first of `run`.
pub fn take_turns<T, E>(
    all: usize,
    runs: usize,
    budget: Duration,
    length: impl Fn(&T) -> Duration,
    mut run: impl FnMut(usize) -> Result<Option<T>, E>,
) -> Result<Vec<Vec<T>>, E> {
    let mut rounds = vec![0; all];
    for (who, rounds) in rounds.iter_mut().enumerate() {
        if let Some(first) = run(who)? {
            *rounds = 1 + runs_within(budget, length(&first), runs);
        }
    }
    let mut found: Vec<Vec<T>> = (0..all).map(|_| Vec::new()).collect();
    let mut out: Vec<bool> = rounds.iter().map(|rounds| *rounds == 0).collect();
    for who in turns(&rounds) {
        if out[who] {
            continue;
        }
        match run(who)? {
            Some(one) => found[who].push(one),
            None => out[who] = true,
        }
    }
    for (found, out) in found.iter_mut().zip(out) {
        found.drain(..if out { found.len() } else { 1 });
    }
    Ok(found)
}

/// One run, as a turn among those of other processes: behind one that does not count, so that it finds code and addresses where it
/// left them, and does not wait for the host.
///
/// # Errors
/// A launch's.
pub fn time_one(device: &Device, prepared: &mut dyn Prepared) -> Result<Duration, Error> {
    Ok(device.time(2, || prepared.launch())?[1])
}

/// What a run takes in the steady state of a replayed graph, in µs: no launch waits for the host, and
/// the caches hold what the run before left there. From two rows of replays, by what the longer one
/// takes more, so that how they begin and end does not count.
///
/// # Errors
/// A launch's.
pub fn replayed(device: &Device, prepared: &mut dyn Prepared) -> Result<f64, Error> {
    let mut graph = Replays::new(device, prepared)?;
    graph.median(graph.replays)?;
    let (one, two) = (graph.median(graph.replays)?, graph.median(2 * graph.replays)?);
    Ok((two - one) / graph.replays as f64)
}

/// A graph that is replayed, one row after the other.
pub struct Replays<'a> {
    device: &'a Device,
    graph: Graph<'a>,
    /// What one replay took.
    first: Duration,
    /// Replays of a row.
    replays: usize,
}

/// What a row of replays took, and one of twice as many.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rows {
    /// Replays of the first row.
    pub replays: usize,
    /// What the first row took.
    pub one: Duration,
    /// What the second row took.
    pub two: Duration,
}

impl fmt::Debug for Replays<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replays").field("replays", &self.replays).finish_non_exhaustive()
    }
}

impl<'a> Replays<'a> {
    /// Captures what a run launches; as many replays are a row as take 10 ms, 20 at most.
    ///
    /// # Errors
    /// A launch's.
    pub fn new(device: &'a Device, prepared: &'a mut dyn Prepared) -> Result<Self, Error> {
        prepared.launch()?;
        device.synchronize()?;
        let mut graph = device.graph(|| prepared.launch())?;
        let first = device.time(1, || graph.launch())?[0];
        let replays = runs_within(Duration::from_millis(10), first, REPLAYS);
        Ok(Self { device, graph, first, replays })
    }

    /// Times rows of so many replays.
    fn time(&mut self, replays: usize, times: usize) -> Result<Vec<Duration>, Error> {
        let row = || (0..replays).try_for_each(|_| self.graph.launch());
        Ok(self.device.time(times, row)?)
    }

    fn median(&mut self, replays: usize) -> Result<f64, Error> {
        let times = self.first * replays as u32;
        let times = runs_within(Duration::from_millis(100), times, REPLAYS);
        Ok(Times::of(&self.time(replays, times)?).median_us)
    }

    /// A row, and one of twice as many replays.
    ///
    /// # Errors
    /// A launch's.
    pub fn rows(&mut self) -> Result<Rows, Error> {
        let replays = self.replays;
        let [one, two] = [replays, 2 * replays];
        Ok(Rows { replays, one: self.time(one, 1)?[0], two: self.time(two, 1)?[0] })
    }
}

impl Rows {
    /// What both took.
    pub fn length(&self) -> Duration {
        self.one + self.two
    }

    /// What a run takes in the steady state, in µs: what the median of the longer rows takes more than that of the shorter ones.
    /// `None` of no rows.
    pub fn steady_us(all: &[Self]) -> Option<f64> {
        let median = |of: fn(&Self) -> Duration| {
            Times::of(&all.iter().map(of).collect::<Vec<_>>()).median_us
        };
        let replays = all.first()?.replays;
        Some((median(|r| r.two) - median(|r| r.one)) / replays as f64)
    }
}

/// The most replays of a row, and times that a row is timed.
pub const REPLAYS: usize = 20;

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
    fn who_falls_out_has_no_more_turns() {
        let us = Duration::from_micros;
        let mut asked = Vec::new();
        // 1 falls out in its third turn, 2 at once; 3 is slow.
        let found = take_turns(
            4,
            5,
            us(500),
            |t| *t,
            |who| {
                asked.push(who);
                let own = asked.iter().filter(|a| **a == who).count() as u64;
                Ok::<_, Error>(match who {
                    1 if own == 3 => None,
                    2 => None,
                    3 => Some(us(1000 + own)),
                    _ => Some(us(own)),
                })
            },
        );
        let found = found.unwrap();
        assert_eq!(found[0], (3..=7).map(us).collect::<Vec<_>>());
        assert!(found[1].is_empty() && found[2].is_empty());
        assert_eq!(found[3], [1003, 1004, 1005].map(us));
        let times = |who| asked.iter().filter(|a| **a == who).count();
        assert_eq!([0, 1, 2, 3].map(times), [7, 3, 1, 5]);
        assert!(take_turns(1, 5, us(1), |_: &()| us(1), |_| Err(())).is_err());
    }

    #[test]
    fn the_steady_state_is_what_the_longer_row_takes_more() {
        let row = |one, two| {
            let us = Duration::from_micros;
            Rows { replays: 10, one: us(one), two: us(two) }
        };
        assert_eq!(Rows::steady_us(&[row(30, 80), row(500, 70), row(20, 900)]), Some(5.0));
        assert_eq!(Rows::steady_us(&[]), None);
        assert_eq!(row(30, 80).length(), Duration::from_micros(110));
    }

    #[test]
    fn quantiles_are_the_nearest_ranks() {
        let times: Vec<_> = (1..=10).rev().map(Duration::from_micros).collect();
        let t = Times::of(&times);
        assert_eq!((t.median_us, t.p10_us, t.p90_us, t.runs), (5.0, 1.0, 9.0, 10));
    }
}
