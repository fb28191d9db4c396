//! Versions, libraries and the scripts' libraries in turns: a run of each, whichever process makes it.

use std::time::Duration;

use lab_device::Device;
use lab_harness::timing::{REPLAYS, Replays, Rows, Times, take_turns, time_in_turns, time_one};
use lab_harness::{Error, Prepared};

use super::lines::Timed;
use super::scripts::{Ready, Scripts, Theirs};
use crate::commands::measure::BUDGET;

/// What is checked, and waits for its turn to be timed.
pub(super) struct InTurn {
    pub(super) timed: Timed,
    pub(super) prepared: Box<dyn Prepared>,
}

/// Times each of them, `runs` times or as often as the budget allows.
///
/// # Errors
/// A launch's.
pub(super) fn time_alone(device: &Device, ours: &mut [InTurn], runs: usize) -> Result<(), Error> {
    if ours.is_empty() {
        return Ok(());
    }
    let mut prepared: Vec<&mut dyn Prepared> =
        ours.iter_mut().map(|each| each.prepared.as_mut() as _).collect();
    let times = time_in_turns(device, &mut prepared, runs, BUDGET)?;
    for (each, times) in ours.iter_mut().zip(times) {
        each.timed.m.times = Some(times);
    }
    Ok(())
}

/// The same with the libraries of a family's script, which are prepared: first runs with a cold cache, then rows of replays of all
/// that have a steady state. A run ends before the next one begins, so that no process waits for another's work.
///
/// # Errors
/// A launch's. What fails in a script falls out, and is said on standard error.
pub(super) fn time_with_scripts(
    device: &Device,
    ours: &mut [InTurn],
    scripts: &mut Scripts,
    family: &str,
    theirs: Vec<Ready>,
    runs: usize,
) -> Result<Vec<Theirs>, Error> {
    let count = ours.len();
    let all = count + theirs.len();
    let times = take_turns(all, runs, BUDGET, Duration::clone, |who| match ours.get_mut(who) {
        Some(own) => time_one(device, own.prepared.as_mut()).map(Some),
        None => Ok::<_, Error>(scripts.turn(family, &theirs[who - count].about.version)),
    })?;
    let (own, others) = times.split_at(count);
    for (each, times) in ours.iter_mut().zip(own) {
        each.timed.m.times = Some(Times::of(times));
    }
    let timed = theirs.into_iter().zip(others).filter(|(_, times)| !times.is_empty());
    let timed: Vec<_> = timed.map(|(ready, times)| (ready, Times::of(times))).collect();
    let ready: Vec<&Ready> = timed.iter().map(|(ready, _)| ready).collect();
    let steady = time_replays(device, ours, scripts, family, &ready)?;
    let lines = timed.into_iter().zip(steady);
    Ok(lines
        .map(|((ready, times), replay_us)| Theirs { about: ready.about, times, replay_us })
        .collect())
}

/// The steady state of those of the script that have one, in µs, and of ours that had one alone: rows of replays in turns.
fn time_replays(
    device: &Device,
    ours: &mut [InTurn],
    scripts: &mut Scripts,
    family: &str,
    theirs: &[&Ready],
) -> Result<Vec<Option<f64>>, Error> {
    let replayed: Vec<usize> = (0..theirs.len()).filter(|&who| theirs[who].replayed).collect();
    let mut steady = vec![None; theirs.len()];
    if replayed.is_empty() {
        return Ok(steady);
    }
    let mut graphs = Vec::new();
    for InTurn { timed, prepared } in
        ours.iter_mut().filter(|each| each.timed.m.replay_us.is_some())
    {
        graphs.push((&mut timed.m.replay_us, Replays::new(device, prepared.as_mut())?));
    }
    let count = graphs.len();
    let all = count + replayed.len();
    let rows = take_turns(all, REPLAYS, BUDGET, Rows::length, |who| match graphs.get_mut(who) {
        Some((_, graph)) => graph.rows().map(Some),
        None => {
            Ok::<_, Error>(scripts.steady(family, &theirs[replayed[who - count]].about.version))
        }
    })?;
    let (own, others) = rows.split_at(count);
    for ((replay_us, _), rows) in graphs.into_iter().zip(own) {
        *replay_us = Rows::steady_us(rows);
    }
    for (who, rows) in replayed.into_iter().zip(others) {
        steady[who] = Rows::steady_us(rows);
    }
    Ok(steady)
}

#[cfg(test)]
mod tests {
    use lab_harness::{Comparison, Tensors};
    use lab_records::record::Of;

    use super::*;
    use crate::commands::measure::Measured;

    /// Takes no time, and counts its launches.
    struct Counted(usize);

    impl Prepared for Counted {
        fn launch(&mut self) -> Result<(), lab_device::Error> {
            self.0 += 1;
            Ok(())
        }

        fn outputs(&self) -> Result<Tensors, Error> {
            Ok(Tensors::new())
        }

        fn poison_outputs(&mut self) -> Result<(), Error> {
            Ok(())
        }
    }

    fn ours(replay_us: Option<f64>) -> InTurn {
        let comparison = Comparison {
            name: "out",
            relative_error: 0.0,
            bound: 1.0,
            element_share: 0.0,
            worst: None,
            wrong_elements: 0,
            elements: 0,
            rounding: 0.0,
            rounding_bound: 1.0,
        };
        let timed = Timed {
            place: (0, 0),
            name: "ours".into(),
            of: Of::Version,
            m: Measured { replay_us, ..Measured::of(vec![comparison]) },
            arithmetic: None,
        };
        InTurn { timed, prepared: Box::new(Counted(0)) }
    }

    /// Three peers: of `a` each run takes 7 µs; `b` takes 300 ms and has no steady state; `c` fails in its fourth turn. At its
    /// end the script says on standard error whose turn it was.
    const SCRIPT: &str = r#"
import json, sys
print('{"libraries": []}', flush=True)
said, order = {"a": {"us": 7}, "b": {"us": 3e5}, "c": {"us": 1}}, []
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("turns"):
        for version in said:
            print(json.dumps({"version": version, "prepared": True, "replayed": version != "b"}))
        row = {"end": True}
    elif "turn" in asked:
        order.append(asked["turn"])
        failed = order.count("c") == 4 and asked["turn"] == "c"
        row = {"version": "c", "failed": "no room"} if failed else said[asked["turn"]]
    elif "steady" in asked:
        row = {"replays": 10, "rows_us": [100, 160]}
    else:
        open(__file__ + ".order", "w").write("".join(order))
        row = {"end": True}
    print(json.dumps(row), flush=True)
"#;

    #[test]
    fn versions_and_scripts_take_turns() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("mlp.py");
        std::fs::write(&path, SCRIPT).unwrap();
        let mut scripts = Scripts::new(directory.path(), &[]).unwrap();
        let device = Device::emulator().unwrap();
        let mut own = [ours(Some(1e9)), ours(None)];
        let dims = lab_harness::Dims::parse("N=1").unwrap();
        let ready = scripts.prepare("mlp", &dims, "f32");
        let found = time_with_scripts(&device, &mut own, &mut scripts, "mlp", ready, 20).unwrap();
        scripts.release("mlp");
        let lines: Vec<_> =
            found.iter().map(|t| (&*t.about.version, t.times.median_us, t.times.runs)).collect();
        assert_eq!(lines, [("a", 7.0, 20), ("b", 3e5, 3)]);
        let steady: Vec<_> = found.iter().map(|t| t.replay_us).collect();
        assert_eq!(steady, [Some(6.0), None]);
        assert!(own.iter().all(|each| each.timed.m.times.unwrap().runs == 20));
        assert!(own[0].timed.m.replay_us.unwrap() < 1e9 && own[1].timed.m.replay_us.is_none());
        // The first turn of each finds out how long it takes; then each comes once a round, not always behind the same one.
        let order = std::fs::read_to_string(directory.path().join("mlp.py.order")).unwrap();
        let rounds: Vec<_> = (3..12).step_by(3).map(|at| &order[at..at + 3]).collect();
        assert!(order.starts_with("abc"), "{order}");
        assert!(rounds.iter().all(|round| "abc".chars().all(|c| round.contains(c))), "{order}");
        assert!(rounds.iter().any(|round| *round != rounds[0]), "{order}");
        assert_eq!(["a", "b", "c"].map(|c| order.matches(c).count()), [22, 5, 4]);
    }
}
