//! A family's versions on each of its problems, then its peers, then the libraries of scripts.

use lab_device::{Arithmetic, DType, Device};
use lab_harness::Products;
use lab_harness::prepared::launch_measured;
use lab_harness::{Dims, Peer, Posed, Prepared, Problem, Tensors, Version};
use lab_records::record::Of;

use super::asked::{Asked, Family, peers};
use super::chosen::Chosen;
use super::lines::{Line, OfProblem, Timed};
use super::repeat::Recorded;
use super::scripts::{Scripts, Theirs};
use super::turns::{InTurn, time_alone, time_with_scripts};
use crate::commands::measure::{self, Beside, Measured, Runs, time_counterpart};
use crate::failure::Failure;

/// What is measured, and how.
pub(super) struct Bench<'a> {
    pub(super) device: &'a Device,
    /// Of each version.
    pub(super) runs: usize,
    /// Whether they run in turns.
    pub(super) in_turns: bool,
    /// Whether launches alone are timed, and no replayed graphs.
    pub(super) launched: bool,
    /// Sizes that a problem must have, or, where a family has no such problem, may have; or several problems.
    pub(super) sizes: &'a [Dims],
    /// Of a record that is measured again by its lines: these problems, whatever the sizes.
    pub(super) recorded: Option<&'a Recorded>,
    /// The one type that is measured; all where there is none.
    pub(super) dtype: Option<DType>,
    /// The problem that results are judged on, where it is another one than that which is timed.
    pub(super) judged_on: Option<&'a Dims>,
    pub(super) copy_gbps: f64,
    pub(super) scripts: &'a mut Option<Scripts>,
    /// What has been measured.
    pub(super) lines: Vec<Line>,
    /// Why peers were not: each said once, not for every problem.
    pub(super) missing: Vec<String>,
}

/// A problem with its inputs and reference, and what is being measured on it.
struct OnProblem<'c> {
    chosen: &'c Chosen,
    /// The versions that take it.
    able: Family,
    posed: Posed,
    /// The inputs that are timed, where those that are judged are others.
    large: Option<Tensors>,
    lines: OfProblem,
    /// What has been checked and waits for its turn.
    in_turn: Vec<InTurn>,
}

impl OnProblem<'_> {
    fn dtype(&self) -> DType {
        self.lines.problem.dtype
    }
}

impl Bench<'_> {
    /// Every problem that a version of the family is timed on: its inputs and reference once, then
    /// each version, checked on that very problem before it is timed, then the peers, then those that the
    /// scripts measure.
    pub(super) fn measure(&mut self, versions: &Family) -> Result<(), Failure> {
        let all: Vec<_> = versions.iter().map(|v| v.1).collect();
        let recorded = self.recorded.map(|lines| Asked::Recorded(lines.clone()));
        let asked = recorded.or_else(|| Asked::of(self.sizes, &all));
        let Some(asked) = asked else { return Ok(()) };
        let (versions, old): (Vec<_>, Vec<_>) = versions
            .iter()
            .copied()
            .partition(|(_, v)| measure::too_old(*v, self.device).is_none());
        old.iter()
            .filter_map(|(_, v)| measure::too_old(*v, self.device))
            .for_each(|m| note!("{m}"));
        let family = all[0].info().family.name();
        // Those of the stages are judged on what they are timed on.
        let peers = if self.judged_on.is_some() { Vec::new() } else { peers(&versions, family) };
        let chosen = Chosen { family, versions, asked, dtype: self.dtype, peers };
        for (dtype, dims) in chosen.problems() {
            self.measure_problem(&chosen, dtype, dims)?;
        }
        Ok(())
    }

    fn measure_problem(
        &mut self,
        chosen: &Chosen,
        dtype: DType,
        dims: Dims,
    ) -> Result<(), Failure> {
        let able = chosen.those_that_take(dtype, &dims);
        let Some(&(_, first)) = able.first() else { return Ok(()) };
        let mut on = self.pose(chosen, able, first, Problem::new(dims, dtype));
        for (place, version) in on.able.clone() {
            self.measure_version(&mut on, place, version)?;
        }
        for (index, &peer) in chosen.peers.iter().enumerate() {
            self.measure_peer(&mut on, index, peer)?;
        }
        let theirs = self.take_turns(&mut on)?;
        for InTurn { timed, .. } in std::mem::take(&mut on.in_turn) {
            self.add(&on, timed);
        }
        self.add_of_scripts(&on, theirs);
        Ok(())
    }

    /// Draws the inputs and computes what is judged.
    fn pose<'c>(
        &self,
        chosen: &'c Chosen,
        able: Family,
        first: &dyn Version,
        timed: Problem,
    ) -> OnProblem<'c> {
        let dtype = timed.dtype;
        let judged = self.judged_on.map(|dims| Problem::new(dims.clone(), dtype));
        let large = judged.is_some().then(|| first.inputs(&timed));
        let posed = match judged {
            Some(judged) => Posed::new(first, judged),
            None if all_heads() => Posed::new(first, timed.clone()),
            None => Posed::affordable(first, timed.clone()),
        };
        if let Some(heads) = posed.heads() {
            note!("{} {} {dtype}: judged on {heads}", chosen.family, timed.dims);
        }
        let lines = OfProblem {
            family: chosen.family,
            cost: first.cost(&timed.dims, dtype),
            problem: timed,
            is_judged: large.is_none(),
            heads: posed.heads().cloned(),
        };
        OnProblem { chosen, able, posed, large, lines, in_turn: Vec::new() }
    }

    /// Checks a version, and times it or lets it wait for its turn; then its counterpart on the host.
    fn measure_version(
        &mut self,
        on: &mut OnProblem<'_>,
        place: usize,
        version: &'static dyn Version,
    ) -> Result<(), Failure> {
        let (m, prepared) = self.check_version(on, version)?;
        let timed = Timed {
            place: (place, 0),
            name: version.info().full_name(),
            of: Of::Version,
            m,
            arithmetic: version.arithmetic(on.dtype()),
        };
        self.add_or_wait(on, timed, prepared);
        let counterpart = on.large.is_none().then(|| time_counterpart(version, &on.posed.inputs));
        if let Some((times, comparison)) = counterpart.flatten() {
            let timed = Timed {
                place: (place, 1),
                name: "cpu".into(),
                of: Of::Host,
                m: Measured { times: Some(times), ..Measured::of(vec![comparison]) },
                arithmetic: Arithmetic::fastest_for(on.dtype()),
            };
            self.add(on, timed);
        }
        Ok(())
    }

    /// A version that is right on the problem, with its times where they are not taken in turns.
    fn check_version(
        &self,
        on: &OnProblem<'_>,
        version: &dyn Version,
    ) -> Result<(Measured, Box<dyn Prepared>), Failure> {
        let (device, posed, runs) = (self.device, &on.posed, self.runs_at_once());
        let problem = &posed.problem;
        let prepare =
            |inputs| launch_measured(device, || version.prepare(device, inputs, &problem.options));
        let (mut prepared, mut peak_bytes) = prepare(&posed.inputs)?;
        let runs = Runs { count: runs, replayed: !self.launched };
        let at_once = if on.large.is_some() { Runs { count: 0, ..runs } } else { runs };
        let mut m = measure::finish(version, device, posed, prepared.as_mut(), at_once)?;
        if !m.passed() {
            return Err(Failure::Wrong(format!(
                "{} {} {} is wrong and is not timed: {}",
                version.info().full_name(),
                problem.dims,
                problem.dtype,
                m.comparison.complaint()
            )));
        }
        if let Some(inputs) = &on.large {
            drop(prepared);
            (prepared, peak_bytes) = prepare(inputs)?;
            m = measure::timed(version, device, m, prepared.as_mut(), runs)?;
        }
        m.peak_bytes = peak_bytes;
        Ok((m, prepared))
    }

    /// The same of a peer, if there is a version whose bounds it can be held to.
    fn measure_peer(
        &mut self,
        on: &mut OnProblem<'_>,
        index: usize,
        peer: &'static dyn Peer,
    ) -> Result<(), Failure> {
        let (info, dtype) = (peer.info(), on.dtype());
        if !info.dtypes.contains(&dtype) || !info.runs_beside(self.device) {
            return Ok(());
        }
        // One that rounds as it does says how far off it may be.
        let rounds = |v: &dyn Version| Products::of(v.arithmetic(dtype), dtype) == info.products;
        let like = on.able.iter().map(|&(_, v)| v).find(|&v| rounds(v));
        let first = on.able.first().map(|&(_, v)| v).filter(|_| info.products.is_none());
        let Some(like) = like.or(first) else { return Ok(()) };
        match measure::peer(peer, like, self.device, &on.posed, self.runs_at_once())? {
            Beside::Ran(m, prepared) => {
                let units = info.products.map(Products::units);
                let timed = Timed {
                    place: (on.chosen.last(), 2 + index),
                    name: info.name.to_string(),
                    of: measure::of(peer),
                    m: *m,
                    arithmetic: units.or(Arithmetic::fastest_for(dtype)),
                };
                self.add_or_wait(on, timed, prepared);
            }
            Beside::Not(reason) => {
                let line = format!("{}: {reason}", info.name);
                if !self.missing.contains(&line) {
                    note!("{line}");
                    self.missing.push(line);
                }
            }
        }
        Ok(())
    }

    /// Times what waits for its turn, and what the scripts have for the problem.
    fn take_turns(&mut self, on: &mut OnProblem<'_>) -> Result<Vec<Theirs>, Failure> {
        let (family, dims, dtype) = (on.chosen.family, &on.lines.problem.dims, on.dtype().name());
        let (device, runs, ours) = (self.device, self.runs, &mut on.in_turn);
        // What the versions had is free for scripts, which have memory of their own.
        device.synchronize()?;
        let Some(scripts) = self.scripts.as_mut() else {
            time_alone(device, ours, runs)?;
            return Ok(Vec::new());
        };
        if !self.in_turns {
            return Ok(scripts.measure(family, dims, dtype));
        }
        let mut ready = scripts.prepare(family, dims, dtype);
        ready.iter_mut().for_each(|peer| peer.replayed &= !self.launched);
        let theirs = if ready.is_empty() {
            time_alone(device, ours, runs)?;
            Vec::new()
        } else {
            time_with_scripts(device, ours, scripts, family, ready, runs)?
        };
        scripts.release(family);
        Ok(theirs)
    }

    /// In turns they are timed once all of them have been checked.
    fn runs_at_once(&self) -> usize {
        if self.in_turns { 1 } else { self.runs }
    }

    /// Of what runs on the device in turns, later; of all else, now.
    fn add_or_wait(&mut self, on: &mut OnProblem<'_>, timed: Timed, prepared: Box<dyn Prepared>) {
        if self.in_turns && timed.of != Of::Host {
            on.in_turn.push(InTurn { timed, prepared });
        } else {
            drop(prepared);
            self.add(on, timed);
        }
    }

    fn add(&mut self, on: &OnProblem<'_>, timed: Timed) {
        let line = on.lines.line(timed, self.device, self.copy_gbps);
        self.lines.extend(line.inspect(Line::print));
    }

    fn add_of_scripts(&mut self, on: &OnProblem<'_>, theirs: Vec<Theirs>) {
        for (index, theirs) in theirs.into_iter().enumerate() {
            let place = (on.chosen.last(), 100 + index);
            let line = on.lines.line_of_script(place, theirs, self.device, self.copy_gbps);
            line.print();
            self.lines.push(line);
        }
    }
}

/// Whether no head is left out, however long the reference of all takes.
fn all_heads() -> bool {
    std::env::var_os("LAB_ALL_CHECKS").is_some()
}
