//! The stages as a flight of stairs: what each adds, and what its newest record says.

use std::collections::BTreeSet;

use lab_harness::record::{Measurement, Of, Run};
use lab_harness::{Dims, Options, Stage, Version};

use crate::STAGES;
use crate::commands::history;
use crate::failure::Failure;
use crate::plot;
use crate::plot::stairs::{Step, stairs};

/// The picture, by file name; nothing where nothing was measured.
pub(super) fn pages(runs: &[Run]) -> Result<Vec<(String, String)>, Failure> {
    let Some(newest) = runs.last() else { return Ok(Vec::new()) };
    let steps: Vec<Step> = STAGES
        .iter()
        .map(|stage| Step {
            name: stage.name.to_owned(),
            adds: stage.teaches.to_owned(),
            figure: figure(runs, stage),
        })
        .collect();
    let title = format!(
        "The stages from the first to the last; times on an {}, from benches/history",
        newest.device.gpu
    );
    Ok(vec![("stairs.svg".into(), stairs(&title, &steps)?)])
}

/// The best figure of a stage's newest record of those with the most problems, in the unit that its question has.
fn figure(runs: &[Run], stage: &Stage) -> String {
    let family = history::families(stage.name).first().copied().unwrap_or_default();
    let own = |run: &'_ Run| -> Vec<Measurement> {
        let of_stage = |m: &&Measurement| {
            let stage_of = m.version.split(':').next();
            m.of == Of::Version && m.family == family && stage_of == Some(stage.name)
        };
        run.results.iter().filter(of_stage).cloned().collect()
    };
    let problems = |all: &Vec<Measurement>| {
        all.iter().map(|m| (&m.shape, &m.dtype)).collect::<BTreeSet<_>>().len()
    };
    // Of equals, the last.
    let fullest = runs.iter().map(own).max_by_key(problems);
    let Some(all) = fullest.filter(|all| !all.is_empty()) else {
        let mistake = |v: &&dyn Version| v.expected(&Options::default()).mistake().is_some();
        let wrong = stage.versions.iter().all(mistake);
        return if wrong { "wrong on purpose" } else { "not measured yet" }.into();
    };
    let three = plot::three_digits;
    let most = |value: fn(&Measurement) -> Option<f64>| {
        let valued = all.iter().filter_map(|m| Some((value(m)?, m)));
        valued.max_by(|a, b| a.0.total_cmp(&b.0))
    };
    if let Some((us, m)) = per_step(&all) {
        return format!("{} µs a step, {}", three(us), m.dtype);
    }
    if let Some((ns, m)) = per_position(&all) {
        return format!("{} ns a position, {}", three(ns), m.dtype);
    }
    // Of what computes next to nothing, the bytes tell.
    let moves = |m: &&Measurement| m.tflops.is_none_or(|t| t < 1.0);
    match (most(|m| m.tflops), most(|m| m.gbps)) {
        (Some((tflops, m)), _) if !all.iter().all(|m| moves(&m)) => {
            format!("{} TFLOP/s, {}", three(tflops), m.dtype)
        }
        (_, Some((gbps, m))) => {
            let share =
                m.roofline_percent.map_or(String::new(), |p| format!(", {p:.0} % of a copy"));
            format!("{gbps:.0} GB/s{share}")
        }
        _ => String::new(),
    }
}

/// Where most of what is counted is not computed, operations a second tell nothing. Of these, which take a sequence of S positions
/// in each of B x NH heads: the time for each position of a head, replayed, where there are the most of them.
fn per_position(all: &[Measurement]) -> Option<(f64, &Measurement)> {
    if !all.iter().any(|m| m.roofline_percent.is_some_and(|p| p > 100.0)) {
        return None;
    }
    let positions = |m: &Measurement| {
        let dims = Dims::parse(&m.shape).ok()?;
        Some((dims.find("B")? * dims.find("NH")? * dims.find("S")?) as f64)
    };
    let timed = all.iter().filter_map(|m| Some((positions(m)?, m.replay_us?, m)));
    let timed: Vec<_> = timed.collect();
    let most = timed.iter().map(|t| t.0).max_by(f64::total_cmp)?;
    let of_most = timed.into_iter().filter(|t| t.0 == most).map(|(n, us, m)| (1e3 * us / n, m));
    of_most.min_by(|a, b| a.0.total_cmp(&b.0))
}

/// Of what goes step by step: the time of one, replayed, where there are the most of them; in f32.
fn per_step(all: &[Measurement]) -> Option<(f64, &Measurement)> {
    let steps = |m: &Measurement| {
        let dims = Dims::parse(&m.shape).ok()?;
        dims.find("T").or_else(|| dims.find("N")).map(|n| n as f64)
    };
    let timed = all.iter().filter(|m| m.dtype == "f32");
    let timed = timed.filter_map(|m| Some((steps(m)?, m.replay_us?, m)));
    let timed: Vec<_> = timed.collect();
    let most = timed.iter().map(|t| t.0).max_by(f64::total_cmp)?;
    let of_most = timed.into_iter().filter(|t| t.0 == most).map(|(n, us, m)| (us / n, m));
    of_most.min_by(|a, b| a.0.total_cmp(&b.0))
}
