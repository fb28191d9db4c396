//! A family's versions on each of its problems, then its peers.

use lab_device::{Arithmetic, DType, Device};
use lab_harness::prepared::launch_measured;
use lab_harness::record::{Measurement, Of, Products};
use lab_harness::roofline::Roofline;
use lab_harness::timing::Times;
use lab_harness::{Cost, Dims, Peer, Posed, Problem, Version};

use super::scripts::{Scripts, Theirs};
use super::turns::{InTurn, time_alone, time_with_scripts};
use crate::commands::measure::{self, Beside, Measured, time_counterpart};
use crate::failure::Failure;

pub(super) fn told(m: &Measurement) {
    eprintln!("{} {} {}: {:.1} µs", m.version, m.shape, m.dtype, m.median_us);
}

/// A result, and where it stands: versions in their order, then what is shown beside them.
pub(super) struct Line {
    pub(super) place: (usize, usize),
    pub(super) result: Measurement,
}

/// The versions of one family, each with its place among all that were chosen.
pub(super) type Family = Vec<(usize, &'static dyn Version)>;

/// The versions of each family, in their order.
pub(super) fn by_family(chosen: &[&'static dyn Version]) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for (place, &version) in chosen.iter().enumerate() {
        let same = |f: &&mut Family| f[0].1.info().family.name() == version.info().family.name();
        match families.iter_mut().find(same) {
            Some(family) => family.push((place, version)),
            None => families.push(vec![(place, version)]),
        }
    }
    families
}

/// What the stages of these versions have beside them.
fn peers(versions: &[(usize, &'static dyn Version)], family: &str) -> Vec<&'static dyn Peer> {
    let mut peers: Vec<&'static dyn Peer> = Vec::new();
    for (_, version) in versions {
        let stage = crate::stage(version.info().stage).expect("a version names its own stage");
        let new = |p: &&'static dyn Peer| peers.iter().all(|q| q.info().name != p.info().name);
        let new: Vec<_> = stage.peers_of(family).filter(new).collect();
        peers.extend(new);
    }
    peers
}

/// What is measured, and how.
pub(super) struct Bench<'a> {
    pub(super) device: &'a Device,
    /// Of each version.
    pub(super) runs: usize,
    /// Whether they run in turns.
    pub(super) in_turns: bool,
    /// Sizes that a problem must have, or, where a family has no such problem, may have.
    pub(super) sizes: &'a Dims,
    /// The problem that results are judged on, where it is another one than that which is timed.
    pub(super) judged_on: Option<&'a Dims>,
    pub(super) copy_gbps: f64,
    pub(super) scripts: &'a mut Option<Scripts>,
    /// What has been measured.
    pub(super) lines: Vec<Line>,
}

/// Whether a problem has these sizes.
fn has_sizes(dims: &Dims, only: &Dims) -> bool {
    only.iter().all(|(name, size)| dims.find(name) == Some(size))
}

/// What `--shape` asks for.
pub(super) enum Asked {
    /// Of the problems that versions are timed on, those that have these sizes.
    Having(Dims),
    /// A problem that no version is timed on otherwise.
    New(Dims),
}

impl Asked {
    /// Sizes that some problem of these versions has, or all sizes of a problem that some of them take.
    pub(super) fn of(only: Dims, versions: &[&dyn Version]) -> Option<Self> {
        [Self::Having(only.clone()), Self::New(only)].into_iter().find(|asked| {
            let any = |v: &&dyn Version| {
                v.info().dtypes.iter().any(|t| !asked.problems(*v, *t).is_empty())
            };
            versions.iter().any(any)
        })
    }

    /// The problems of a version and type.
    fn problems(&self, version: &dyn Version, dtype: DType) -> Vec<Dims> {
        match self {
            Self::Having(sizes) => {
                let mut all = version.bench_shapes(dtype);
                all.retain(|dims| has_sizes(dims, sizes));
                all
            }
            Self::New(dims) => {
                let taken = version.info().complete(dims).is_ok_and(|all| all == *dims);
                if taken { vec![dims.clone()] } else { Vec::new() }
            }
        }
    }
}

impl Bench<'_> {
    /// Every problem that a version of the family is timed on: its inputs and reference once, then
    /// each version, checked on that very problem before it is timed, then the peers, then those that the
    /// scripts measure.
    pub(super) fn measure(
        &mut self,
        versions: &[(usize, &'static dyn Version)],
    ) -> Result<(), Failure> {
        let Self { device, runs, in_turns, sizes, judged_on, copy_gbps, scripts, lines } = self;
        let (device, all_runs, in_turns, copy_gbps) = (*device, *runs, *in_turns, *copy_gbps);
        let judged_on = *judged_on;
        // In turns they are timed once all of them have been checked.
        let runs = if in_turns { 1 } else { all_runs };
        let family = versions[0].1.info().family.name();
        let all: Vec<_> = versions.iter().map(|v| v.1).collect();
        let Some(asked) = Asked::of(sizes.clone(), &all) else { return Ok(()) };
        let (versions, old): (Vec<_>, Vec<_>) =
            versions.iter().copied().partition(|(_, v)| measure::too_old(*v, device).is_none());
        old.iter().filter_map(|(_, v)| measure::too_old(*v, device)).for_each(|m| eprintln!("{m}"));
        let mut problems: Vec<(DType, Dims)> = Vec::new();
        for (_, version) in &versions {
            for &dtype in version.info().dtypes {
                let all = asked.problems(*version, dtype).into_iter().map(|dims| (dtype, dims));
                let new: Vec<_> = all.filter(|p| !problems.contains(p)).collect();
                problems.extend(new);
            }
        }
        let last = versions.iter().map(|v| v.0).max().unwrap_or(0);
        // Those of the stages are judged on what they are timed on.
        let peers = if judged_on.is_some() { Vec::new() } else { peers(&versions, family) };
        // Said once, not for every problem.
        let mut missing: Vec<String> = Vec::new();
        for (dtype, dims) in problems {
            let has = |v: &dyn Version| {
                v.info().dtypes.contains(&dtype) && asked.problems(v, dtype).contains(&dims)
            };
            let able: Vec<_> = versions.iter().copied().filter(|(_, v)| has(*v)).collect();
            let Some(&(_, first)) = able.first() else { continue };
            let timed = Problem::new(dims, dtype);
            let judged = judged_on.map(|dims| Problem::new(dims.clone(), dtype));
            let large = judged.is_some().then(|| first.inputs(&timed));
            let posed = Posed::new(first, judged.unwrap_or_else(|| timed.clone()));
            let of_problem = Lines {
                family,
                cost: first.cost(&timed.dims, dtype),
                problem: timed,
                is_judged: large.is_none(),
            };
            let roofline = |arithmetic| Roofline::new(device.facts(), arithmetic, copy_gbps);
            // Of what does not round.
            let of_peers = Arithmetic::fastest_for(dtype);
            let mut add = |place, name: String, of: Of, m: Measured, arithmetic| {
                let Some(line) = of_problem.line(name, of, &m, &roofline(arithmetic)) else {
                    return;
                };
                let result = Measurement { products: Products::of(arithmetic, dtype), ..line };
                told(&result);
                lines.push(Line { place, result });
            };
            let mut in_turn: Vec<InTurn> = Vec::new();
            for &(place, version) in &able {
                let (info, problem) = (version.info(), &posed.problem);
                let prepare = |inputs| {
                    launch_measured(device, || version.prepare(device, inputs, &problem.options))
                };
                let (mut prepared, mut peak_bytes) = prepare(&posed.inputs)?;
                let at_once = if large.is_some() { 0 } else { runs };
                let mut m = measure::finish(version, device, &posed, prepared.as_mut(), at_once)?;
                if !m.passed() {
                    return Err(Failure::Wrong(format!(
                        "{} {} {dtype} is wrong and is not timed: {}",
                        info.full_name(),
                        problem.dims,
                        m.comparison.complaint()
                    )));
                }
                if let Some(inputs) = &large {
                    drop(prepared);
                    (prepared, peak_bytes) = prepare(inputs)?;
                    m = measure::timed(version, device, m, prepared.as_mut(), runs)?;
                }
                m.peak_bytes = peak_bytes;
                let arithmetic = version.arithmetic(dtype);
                let (place, name) = ((place, 0), info.full_name());
                if in_turns {
                    in_turn.push(InTurn { place, name, of: Of::Version, m, arithmetic, prepared });
                } else {
                    drop(prepared);
                    add(place, name, Of::Version, m, arithmetic);
                }
                let counterpart = large.is_none().then(|| time_counterpart(version, &posed.inputs));
                if let Some((times, comparison)) = counterpart.flatten() {
                    let m = Measured {
                        comparison,
                        times: Some(times),
                        replay_us: None,
                        usage: None,
                        peak_bytes: None,
                    };
                    add((place.0, 1), "cpu".into(), Of::Host, m, of_peers);
                }
            }
            for (index, &peer) in peers.iter().enumerate() {
                let info = peer.info();
                if !info.dtypes.contains(&dtype) || !info.runs_beside(device) {
                    continue;
                }
                // One that rounds as it does says how far off it may be.
                let rounds =
                    |v: &dyn Version| Products::of(v.arithmetic(dtype), dtype) == info.products;
                let like = able.iter().map(|&(_, v)| v).find(|&v| rounds(v));
                let Some(like) = like.or(info.products.is_none().then_some(first)) else {
                    continue;
                };
                match measure::peer(peer, like, device, &posed, runs)? {
                    Beside::Ran(m, prepared) => {
                        let arithmetic = info.products.map(Products::units).or(of_peers);
                        let (place, name) = ((last, 2 + index), info.name.to_string());
                        let of = measure::of(peer);
                        if in_turns && of != Of::Host {
                            in_turn.push(InTurn { place, name, of, m, arithmetic, prepared });
                        } else {
                            add(place, name, of, m, arithmetic);
                        }
                    }
                    Beside::Not(reason) => {
                        let line = format!("{}: {reason}", info.name);
                        if !missing.contains(&line) {
                            eprintln!("{line}");
                            missing.push(line);
                        }
                    }
                }
            }
            let (dims, name) = (&of_problem.problem.dims, dtype.name());
            // What the versions had is free for scripts, which have memory of their own.
            device.synchronize()?;
            let theirs = match scripts.as_mut() {
                Some(scripts) if in_turns => {
                    let ready = scripts.prepare(family, dims, name);
                    let ours = &mut in_turn;
                    let theirs = if ready.is_empty() {
                        time_alone(device, ours, all_runs)?;
                        Vec::new()
                    } else {
                        time_with_scripts(device, ours, scripts, family, ready, all_runs)?
                    };
                    scripts.release(family);
                    theirs
                }
                Some(scripts) => scripts.measure(family, dims, name),
                None => {
                    time_alone(device, &mut in_turn, all_runs)?;
                    Vec::new()
                }
            };
            for InTurn { place, name, of, m, arithmetic, .. } in in_turn {
                add(place, name, of, m, arithmetic);
            }
            for (index, theirs) in theirs.into_iter().enumerate() {
                let units = theirs.about.products.map(Products::units).or(of_peers);
                let result = of_problem.line_of_script(theirs, &roofline(units));
                told(&result);
                lines.push(Line { place: (last, 100 + index), result });
            }
        }
        Ok(())
    }
}

/// What all lines on a problem share.
struct Lines<'a> {
    family: &'a str,
    problem: Problem,
    cost: Cost,
    /// Whether results were judged on this problem.
    is_judged: bool,
}

impl Lines<'_> {
    /// `None` of what was not timed.
    fn line(
        &self,
        version: String,
        of: Of,
        m: &Measured,
        roofline: &Roofline,
    ) -> Option<Measurement> {
        let line = Measurement {
            replay_us: m.replay_us,
            relative_error: self.is_judged.then_some(m.comparison.relative_error),
            element_share: self.is_judged.then_some(m.comparison.element_share),
            registers: m.usage.map(|u| u.0),
            local_bytes: m.usage.map(|u| u.1),
            peak_bytes: m.peak_bytes,
            ..self.timed(version, of, m.times?)
        };
        Some(match of {
            Of::Host => line,
            _ => self.rated(line, roofline),
        })
    }

    fn line_of_script(&self, theirs: Theirs, roofline: &Roofline) -> Measurement {
        let Theirs { about, times, replay_us } = theirs;
        let line = Measurement {
            replay_us,
            relative_error: about.relative_error,
            products: about.products,
            peak_bytes: about.peak_bytes,
            computes: about.computes,
            ..self.timed(about.version, Of::Library, times)
        };
        match line.computes {
            None => self.rated(line, roofline),
            Some(_) => Measurement { tflops: None, gbps: None, ..line },
        }
    }

    /// Of the problem, with the rates that come from its cost.
    fn timed(&self, version: String, of: Of, times: Times) -> Measurement {
        let (cost, us) = (&self.cost, times.median_us);
        Measurement {
            tflops: (cost.flops > 0.0).then(|| cost.flops / us * 1e-6),
            gbps: Some(cost.bytes / us * 1e-3),
            ..Measurement::timed(
                self.family,
                version,
                of,
                &self.problem.dims.to_string(),
                self.problem.dtype.name(),
                times,
            )
        }
    }

    fn rated(&self, line: Measurement, roofline: &Roofline) -> Measurement {
        let percent = roofline.percent(&self.cost, line.median_us);
        Measurement { roofline_percent: Some(percent), ..line }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_of_several_stages_is_posed_each_problem_once() {
        let all: Vec<_> = crate::versions().collect();
        let families = by_family(&all);
        let of = |family: &str| {
            let found: Vec<_> =
                families.iter().filter(|f| f[0].1.info().family.name() == family).collect();
            assert_eq!(found.len(), 1, "{family}");
            let mut stages: Vec<_> = found[0].iter().map(|v| v.1.info().stage).collect();
            stages.dedup();
            stages
        };
        assert_eq!(
            of("vlstm_fwbw"),
            ["vlstm_fwbw_v0", "vlstm_fwbw_v1", "vlstm_fwbw_v2", "vlstm_fwbw_v3", "vlstm_fwbw_v4"]
        );
        let places = families.iter().flatten().map(|v| v.0);
        assert_eq!(places.max(), Some(all.len() - 1));
    }

    #[test]
    fn what_two_stages_have_beside_them_comes_once() {
        let all: Vec<_> = crate::versions().collect();
        let families = by_family(&all);
        let matmul = families.iter().find(|f| f[0].1.info().family.name() == "matmul").unwrap();
        let twice = [matmul.as_slice(), matmul.as_slice()].concat();
        let names = |versions: &[_]| -> Vec<_> {
            peers(versions, "matmul").iter().map(|p| p.info().name).collect()
        };
        assert!(!names(matmul).is_empty());
        assert_eq!(names(&twice), names(matmul));
    }

    #[test]
    fn a_problem_may_be_one_that_nobody_is_timed_on() {
        let versions = vlstm_fw_v4::STAGE.versions;
        let problems = |shape: &str| {
            let asked = Asked::of(Dims::parse(shape).unwrap(), versions)?;
            Some(versions.iter().map(|v| asked.problems(*v, DType::BF16).len()).collect::<Vec<_>>())
        };
        let takers =
            |problems: Option<Vec<usize>>| problems.map(|p| p.iter().filter(|n| **n > 0).count());
        // One of the set; a part of several.
        assert_eq!(takers(problems("B=8,NH=8,S=2048,DHQK=256,DHHV=512")), Some(1));
        assert_eq!(takers(problems("S=1024")), Some(4));
        // A whole one that is not: of all that take it, and of none but those.
        assert_eq!(problems("B=1,NH=16,S=65536,DHQK=128,DHHV=256"), Some(vec![1, 1, 1, 0, 1]));
        assert_eq!(problems("B=1,NH=16,S=65536,DHQK=192,DHHV=256"), Some(vec![0, 0, 0, 0, 1]));
        // Not a whole one; one that nobody takes.
        assert_eq!(problems("S=65536"), None);
        assert_eq!(problems("B=1,NH=16,S=65536,DHQK=512,DHHV=256"), None);
    }
}
