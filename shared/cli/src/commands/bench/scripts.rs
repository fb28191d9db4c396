//! The libraries that are measured from Python: the scripts of `benches/peers`, each a process that is
//! asked for one problem after the other, between the versions: for all times at once, or for one turn after the other.

mod process;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lab_harness::timing::Rows;
use lab_harness::{Dims, Error};
use serde_json::{Value, json};

use self::process::{Answer, Script, Turn};
pub(super) use self::process::{Ready, Theirs};

/// The scripts and their families.
const SCRIPTS: [(&str, &[&str]); 10] = [
    ("attention.py", &["attention", "attention_fwbw"]),
    ("attention_step.py", &["attention_step"]),
    ("gdn.py", &["gdn_fw", "gdn_fwbw", "gdn_step", "linear_step", "sigmoid_step"]),
    (
        "linear.py",
        &[
            "linear",
            "weight_gradient",
            "linear_swiglu",
            "linear_swiglu_back",
            "few_rows",
            "few_rows_int8",
        ],
    ),
    ("lstm.py", &["lstm_fw", "lstm"]),
    ("mlp.py", &["mlp"]),
    ("passes.py", PASSES),
    ("qkv.py", &["qkv", "causal_qkv"]),
    ("slstm.py", &["slstm_fw", "slstm"]),
    ("vlstm.py", &["vlstm_fw", "vlstm_fwbw", "vlstm_step"]),
];

/// Of the stage `passes`: all families but append_to_cache.
const PASSES: &[&str] = &[
    "rms_norm",
    "rms_norm_back",
    "head_norm",
    "head_norm_back",
    "swiglu",
    "swiglu_back",
    "soft_cap_gates",
    "soft_cap_gates_back",
    "split_heads",
    "merge_heads",
    "rope",
    "dropout",
    "widen",
    "embedding",
    "embedding_back",
    "cross_entropy",
    "cross_entropy_back",
    "adamw",
];

/// The script that measures the libraries of a family; `None` where there is none.
pub(super) fn script_of(family: &str) -> Option<&'static str> {
    SCRIPTS.iter().find(|script| script.1.contains(&family)).map(|script| script.0)
}

/// The scripts of a directory, started when they are first asked.
pub(super) struct Scripts {
    directory: PathBuf,
    /// Those that are measured, by name; all where none is named.
    names: Vec<String>,
    /// `None` of one that has said why it does not run.
    running: BTreeMap<&'static str, Option<Script>>,
    /// What they measure, with versions.
    pub(super) libraries: Vec<String>,
    /// Why something was not measured: each said once.
    said: Vec<String>,
}

impl Scripts {
    /// # Errors
    /// There is no such directory, or none of the scripts in it.
    pub(super) fn new(directory: &Path, names: &[String]) -> Result<Self, Error> {
        if !SCRIPTS.iter().any(|(name, _)| directory.join(name).is_file()) {
            let names: Vec<_> = SCRIPTS.iter().map(|s| s.0).collect();
            return Err(Error::File {
                path: directory.display().to_string(),
                message: format!("--peers: expected a directory with {}", names.join(", ")),
            });
        }
        Ok(Self {
            directory: directory.to_owned(),
            names: names.to_vec(),
            running: BTreeMap::new(),
            libraries: Vec::new(),
            said: Vec::new(),
        })
    }

    /// What the libraries of a family take; nothing where there are none. One that cannot run says why
    /// on standard error.
    pub(super) fn measure(&mut self, family: &str, dims: &Dims, dtype: &str) -> Vec<Theirs> {
        let problem = problem(family, dims, dtype, false);
        self.ask(family, &format!("{dims} {dtype}"), |script| script.measure(&problem))
    }

    /// The libraries of a family that are prepared for a problem and wait for their turns, until they are released.
    pub(super) fn prepare(&mut self, family: &str, dims: &Dims, dtype: &str) -> Vec<Ready> {
        let problem = problem(family, dims, dtype, true);
        self.ask(family, &format!("{dims} {dtype}"), |script| script.prepare(&problem))
    }

    /// One run of a library that is prepared; `None` of one that has failed, and why on standard error.
    pub(super) fn turn(&mut self, family: &str, version: &str) -> Option<Duration> {
        self.take_turn(family, version, |script| script.turn(version))
    }

    /// Two rows of replays of a library that is prepared; `None` as of a turn.
    pub(super) fn steady(&mut self, family: &str, version: &str) -> Option<Rows> {
        self.take_turn(family, version, |script| script.steady(version))
    }

    /// Frees what the libraries of a family have taken.
    pub(super) fn release(&mut self, family: &str) {
        let Some((name, script)) = self.script(family) else { return };
        if let Err(message) = script.release() {
            self.leave_out(name, &format!("{name} has ended: {message}"));
        }
    }

    /// The script of a family, which is started if it has not been; `None` where there is none, or none that runs.
    fn script(&mut self, family: &str) -> Option<(&'static str, &mut Script)> {
        let name = script_of(family)?;
        if !self.running.contains_key(name) {
            let started = Script::start(&self.directory.join(name), &self.names);
            let script = started.map_err(|message| self.say(format!("{name}: {message}"))).ok();
            let new = script.iter().flat_map(|s| &s.libraries);
            let new: Vec<String> = new.filter(|l| !self.libraries.contains(l)).cloned().collect();
            self.libraries.extend(new);
            self.running.insert(name, script);
        }
        let script = self.running.get_mut(name)?.as_mut()?;
        Some((name, script))
    }

    fn ask<T>(
        &mut self,
        family: &str,
        problem: &str,
        ask: impl FnOnce(&mut Script) -> Result<Answer<T>, String>,
    ) -> Vec<T> {
        let Some((name, script)) = self.script(family) else { return Vec::new() };
        match ask(script) {
            Ok((found, failed)) => {
                for (version, why) in failed {
                    self.say(format!("{name}, {version}, {problem}: {why}"));
                }
                found
            }
            Err(message) => {
                self.leave_out(name, &format!("{name} has ended at {problem}: {message}"));
                Vec::new()
            }
        }
    }

    fn take_turn<T>(
        &mut self,
        family: &str,
        version: &str,
        take: impl FnOnce(&mut Script) -> Turn<T>,
    ) -> Option<T> {
        let (name, script) = self.script(family)?;
        match take(script) {
            Ok(Ok(found)) => Some(found),
            Ok(Err(why)) => {
                self.say(format!("{name}, {version}, in its turn: {why}"));
                None
            }
            Err(message) => {
                self.leave_out(name, &format!("{name} has ended in {version}'s turn: {message}"));
                None
            }
        }
    }

    /// A script that is of no use any more is not asked again.
    fn leave_out(&mut self, name: &'static str, why: &str) {
        self.running.insert(name, None);
        self.say(why.to_owned());
    }

    fn say(&mut self, line: String) {
        if !self.said.contains(&line) {
            note!("{line}");
            self.said.push(line);
        }
    }
}

fn problem(family: &str, dims: &Dims, dtype: &str, turns: bool) -> Value {
    let shape: BTreeMap<&str, usize> = dims.iter().collect();
    json!({ "family": family, "shape": shape, "dtype": dtype, "turns": turns })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script in a directory of its own.
    fn scripts(text: &str) -> (tempfile::TempDir, Scripts) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("mlp.py"), text).unwrap();
        let scripts = Scripts::new(directory.path(), &[]).unwrap();
        (directory, scripts)
    }

    #[test]
    fn a_script_is_asked_for_one_problem_after_the_other() {
        let (_directory, mut scripts) = scripts(
            r#"
import json, sys
print('{"libraries": ["Some 1.0"]}', flush=True)
for line in sys.stdin:
    n = json.loads(line)["shape"]["N"]
    print(json.dumps({"version": "a", "median_us": n, "p10_us": n, "p90_us": n, "runs": 3, "replay_us": 0.5}))
    print('{"version": "b", "failed": "no room"}')
    print('{"end": true}', flush=True)
"#,
        );
        for n in [7, 9] {
            let dims = Dims::parse(&format!("N={n}")).unwrap();
            let found = scripts.measure("mlp", &dims, "f32");
            assert_eq!(found.len(), 1);
            assert_eq!((&*found[0].about.version, found[0].times.median_us), ("a", f64::from(n)));
            assert_eq!((found[0].replay_us, found[0].about.relative_error), (Some(0.5), None));
        }
        assert_eq!(scripts.libraries, ["Some 1.0"]);
        assert_eq!(scripts.said, ["mlp.py, b, N=7 f32: no room", "mlp.py, b, N=9 f32: no room"]);
        assert!(scripts.measure("matmul", &Dims::parse("N=1").unwrap(), "f32").is_empty());
    }

    #[test]
    fn a_script_that_dies_is_left_out() {
        let (_directory, mut scripts) =
            scripts("print('{\"libraries\": []}', flush=True)\ninput()\nraise SystemExit(3)\n");
        let dims = Dims::parse("N=1").unwrap();
        assert!(scripts.measure("mlp", &dims, "f32").is_empty());
        assert!(scripts.measure("mlp", &dims, "f32").is_empty());
        assert_eq!(scripts.said.len(), 1, "{:?}", scripts.said);
        assert!(scripts.said[0].starts_with("mlp.py has ended at N=1 f32: no answer"));
    }

    #[test]
    fn a_script_that_does_not_start_says_so() {
        let (_directory, mut scripts) = scripts("raise SystemExit(1)\n");
        assert!(scripts.measure("mlp", &Dims::parse("N=1").unwrap(), "f32").is_empty());
        assert_eq!(scripts.said.len(), 1);
        let empty = tempfile::tempdir().unwrap();
        let refused = Scripts::new(empty.path(), &[]).err().unwrap().to_string();
        assert!(refused.contains("expected a directory with attention.py"), "{refused}");
    }

    /// Two peers that are prepared, and a third that is not; `b` fails in its second turn.
    const IN_TURNS: &str = r#"
import json, sys
print('{"libraries": []}', flush=True)
runs = 0
for line in sys.stdin:
    asked = json.loads(line)
    if asked.get("turns"):
        for version in "ab":
            print(json.dumps({"version": version, "prepared": True, "replayed": version == "a", "relative_error": 0.5}))
        print('{"version": "c", "failed": "no room"}')
        print('{"end": true}', flush=True)
    elif asked.get("turn") == "b" and runs > 2:
        print('{"version": "b", "failed": "no more room"}', flush=True)
    elif "turn" in asked:
        runs += 1
        print(json.dumps({"us": 10 * runs}), flush=True)
    elif "steady" in asked:
        print('{"replays": 20, "rows_us": [200.0, 390.5]}', flush=True)
    else:
        print('{"end": true}', flush=True)
"#;

    #[test]
    fn a_script_takes_turns_and_measures_nothing_else() {
        let (_directory, mut scripts) = scripts(IN_TURNS);
        let dims = Dims::parse("N=1").unwrap();
        let ready = scripts.prepare("mlp", &dims, "f32");
        let told: Vec<_> = ready.iter().map(|r| (&*r.about.version, r.replayed)).collect();
        assert_eq!(told, [("a", true), ("b", false)]);
        let us = Duration::from_micros;
        let turns = ["a", "b", "a", "b", "a"].map(|version| scripts.turn("mlp", version));
        assert_eq!(turns, [Some(us(10)), Some(us(20)), Some(us(30)), None, Some(us(40))]);
        let rows = scripts.steady("mlp", "a").unwrap();
        assert_eq!(
            (rows.replays, rows.one, rows.two),
            (20, us(200), Duration::from_nanos(390_500))
        );
        scripts.release("mlp");
        assert_eq!(scripts.prepare("mlp", &dims, "f32").len(), 2);
        let said = ["mlp.py, c, N=1 f32: no room", "mlp.py, b, in its turn: no more room"];
        assert_eq!(scripts.said, said);
        assert!(scripts.turn("matmul", "a").is_none());
    }

    #[test]
    fn a_script_that_dies_in_a_turn_is_left_out() {
        let dies = IN_TURNS.replace("runs += 1", "raise SystemExit(3)");
        let (_directory, mut scripts) = scripts(&dies);
        assert_eq!(scripts.prepare("mlp", &Dims::parse("N=1").unwrap(), "f32").len(), 2);
        assert_eq!(["a", "a", "b"].map(|version| scripts.turn("mlp", version)), [None; 3]);
        scripts.release("mlp");
        assert_eq!(scripts.said.len(), 2, "{:?}", scripts.said);
        assert!(scripts.said[1].starts_with("mlp.py has ended in a's turn: no answer"));
    }

    #[test]
    fn a_time_that_is_none_ends_the_script() {
        let (_directory, mut scripts) = scripts(&IN_TURNS.replace("10 * runs", "-1"));
        scripts.prepare("mlp", &Dims::parse("N=1").unwrap(), "f32");
        assert_eq!(scripts.turn("mlp", "a"), None);
        assert!(scripts.said[1].contains("a time of -1 µs"), "{:?}", scripts.said);
    }

    /// Enough of PyTorch for `problems.py`: a clock that each run, and each launch of the sweep, advances.
    const TORCH: &str = r#"
import contextlib
class Cuda:
    us = 0.0
    def Event(self, enable_timing):
        return Event()
    def Stream(self):
        return Stream()
    current_stream = Stream
    def stream(self, _):
        return contextlib.nullcontext()
    def CUDAGraph(self):
        return Graph()
    @contextlib.contextmanager
    def graph(self, graph):
        before = self.us
        yield
        graph.us, self.us = self.us - before, before
    def empty_cache(self):
        pass
class Event:
    def record(self):
        self.at = cuda.us
    def synchronize(self):
        pass
    def elapsed_time(self, other):
        return (other.at - self.at) / 1e3
class Stream:
    def wait_stream(self, other):
        pass
class Graph:
    def replay(self):
        cuda.us += self.us - 1
class Tensor:
    def sum(self):
        cuda.us += 1000
cuda = Cuda()
def ones(count, device):
    return Tensor()
"#;

    /// `short` takes 5 µs a run, `long` 50; `large` does not fit.
    const PEERS: &str = r#"
import torch
from problems import Peer, answer
def prepare(us):
    if us > 100:
        raise MemoryError(us)
    def run():
        torch.cuda.us += us
    return Peer(run, {"relative_error": us / 1000}, is_replayed=us < 10)
def lines(asked):
    for name, us in [("short", 5), ("long", 50), ("large", 500)]:
        yield name, lambda: prepare(us)
answer(["Fake 1"], lines)
"#;

    #[test]
    fn problems_py_answers_in_turns_what_it_measures_by_itself() {
        let (directory, mut scripts) = scripts(PEERS);
        std::fs::write(directory.path().join("torch.py"), TORCH).unwrap();
        let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benches/peers/problems.py");
        std::fs::copy(own, directory.path().join("problems.py")).unwrap();
        let dims = Dims::parse("N=1").unwrap();
        let near = |a: f64, b: f64| (a - b).abs() < 1e-3;
        for _ in 0..2 {
            let alone = scripts.measure("mlp", &dims, "f32");
            let ready = scripts.prepare("mlp", &dims, "f32");
            assert_eq!(alone.len(), 2, "{:?}", scripts.said);
            for (alone, ready) in alone.iter().zip(&ready) {
                assert_eq!((&alone.about, alone.times.runs), (&ready.about, 20));
                let turn = scripts.turn("mlp", &ready.about.version).unwrap();
                let us = turn.as_secs_f64() * 1e6;
                assert!(near(us, alone.times.median_us), "{us}");
                assert_eq!(ready.replayed, alone.replay_us.is_some());
            }
            assert!(near(alone[0].times.median_us, 5.0) && near(alone[1].times.median_us, 50.0));
            let rows = scripts.steady("mlp", "short").unwrap();
            let steady = (rows.two - rows.one).as_secs_f64() * 1e6 / rows.replays as f64;
            assert!(near(steady, 4.0) && near(alone[0].replay_us.unwrap(), 4.0), "{steady}");
            scripts.release("mlp");
        }
        assert_eq!(scripts.said, ["mlp.py, large, N=1 f32: MemoryError: 500"]);
    }
}
