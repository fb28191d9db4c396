//! The libraries that are measured from Python: the scripts of `benches/peers`, each a process that is
//! asked for one problem after the other, between the versions. `problems.py` there tells the format.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use lab_harness::record::Products;
use lab_harness::timing::Times;
use lab_harness::{Dims, Error};
use serde::Deserialize;
use serde_json::{Value, json};

/// The scripts and their families.
const SCRIPTS: [(&str, &[&str]); 8] = [
    ("attention.py", &["attention", "attention_fwbw"]),
    ("attention_step.py", &["attention_step"]),
    ("linear.py", &["linear", "weight_gradient"]),
    ("lstm.py", &["lstm_fw", "lstm"]),
    ("mlp.py", &["mlp"]),
    ("qkv.py", &["qkv", "causal_qkv"]),
    ("slstm.py", &["slstm_fw", "slstm"]),
    ("vlstm.py", &["vlstm_fw", "vlstm_fwbw", "vlstm_step"]),
];

/// What a library takes for a problem.
#[derive(Debug, PartialEq, Deserialize)]
pub(super) struct Theirs {
    pub(super) version: String,
    #[serde(flatten)]
    pub(super) times: Times,
    pub(super) replay_us: Option<f64>,
    pub(super) relative_error: Option<f64>,
    pub(super) products: Option<Products>,
    /// Another function, told by its name.
    pub(super) computes: Option<String>,
    pub(super) peak_bytes: Option<u64>,
}

/// A line that a script prints.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(untagged)]
enum Line {
    Libraries {
        libraries: Vec<String>,
    },
    /// No more of this problem.
    End {
        #[serde(rename = "end")]
        _end: bool,
    },
    Failed {
        version: String,
        failed: String,
    },
    Measured(Theirs),
}

/// The scripts of a directory, started when they are first asked.
pub(super) struct Scripts {
    directory: PathBuf,
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
    pub(super) fn new(directory: &Path) -> Result<Self, Error> {
        if !SCRIPTS.iter().any(|(name, _)| directory.join(name).is_file()) {
            let names: Vec<_> = SCRIPTS.iter().map(|s| s.0).collect();
            return Err(Error::File {
                path: directory.display().to_string(),
                message: format!("--peers: expected a directory with {}", names.join(", ")),
            });
        }
        Ok(Self {
            directory: directory.to_owned(),
            running: BTreeMap::new(),
            libraries: Vec::new(),
            said: Vec::new(),
        })
    }

    /// What the libraries of a family take; nothing where there are none. One that cannot run says why
    /// on standard error.
    pub(super) fn ask(&mut self, family: &str, dims: &Dims, dtype: &str) -> Vec<Theirs> {
        let Some((name, _)) = SCRIPTS.iter().find(|s| s.1.contains(&family)) else {
            return Vec::new();
        };
        if !self.running.contains_key(name) {
            let started = Script::start(&self.directory.join(name));
            let script = started.map_err(|message| self.say(format!("{name}: {message}"))).ok();
            let new = script.iter().flat_map(|s| &s.libraries);
            let new: Vec<String> = new.filter(|l| !self.libraries.contains(l)).cloned().collect();
            self.libraries.extend(new);
            self.running.insert(name, script);
        }
        let running = self.running.get_mut(name).expect("it was inserted");
        let Some(script) = running else { return Vec::new() };
        let shape: BTreeMap<&str, usize> = dims.iter().collect();
        let problem = json!({ "family": family, "shape": shape, "dtype": dtype });
        match script.ask(&problem) {
            Ok((found, failed)) => {
                for (version, why) in failed {
                    self.say(format!("{name}, {version}, {dims} {dtype}: {why}"));
                }
                found
            }
            Err(message) => {
                *running = None;
                self.say(format!("{name} has ended at {dims} {dtype}: {message}"));
                Vec::new()
            }
        }
    }

    fn say(&mut self, line: String) {
        if !self.said.contains(&line) {
            eprintln!("{line}");
            self.said.push(line);
        }
    }
}

/// A script that runs. It ends when its input does.
struct Script {
    child: Child,
    /// `None` once it was closed.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    libraries: Vec<String>,
}

impl Drop for Script {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}

/// What was found of a problem, and what failed, with the reason.
type Answer = (Vec<Theirs>, Vec<(String, String)>);

impl Script {
    fn start(path: &Path) -> Result<Self, String> {
        let python = std::env::var("LAB_PYTHON").unwrap_or_else(|_| "python3".into());
        let mut command = Command::new(&python);
        command.arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("{python}: {e}"))?;
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is a pipe"));
        let mut script = Self { child, input, output, libraries: Vec::new() };
        match script.line()? {
            Line::Libraries { libraries } => script.libraries = libraries,
            other => return Err(format!("expected its libraries, got {other:?}")),
        }
        Ok(script)
    }

    fn line(&mut self) -> Result<Line, String> {
        let mut text = String::new();
        match self.output.read_line(&mut text) {
            Err(e) => Err(e.to_string()),
            Ok(0) => Err("no answer; why stands above".into()),
            Ok(_) => serde_json::from_str(&text).map_err(|e| format!("{e}: {}", text.trim())),
        }
    }

    fn ask(&mut self, problem: &Value) -> Result<Answer, String> {
        let input = self.input.as_mut().expect("it is open as long as this lives");
        writeln!(input, "{problem}").map_err(|e| e.to_string())?;
        let (mut found, mut failed) = (Vec::new(), Vec::new());
        loop {
            match self.line()? {
                Line::End { .. } => return Ok((found, failed)),
                Line::Failed { version, failed: why } => failed.push((version, why)),
                Line::Measured(theirs) => found.push(theirs),
                other => return Err(format!("expected times, got {other:?}")),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A script in a directory of its own.
    fn scripts(text: &str) -> (tempfile::TempDir, Scripts) {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("mlp.py"), text).unwrap();
        let scripts = Scripts::new(directory.path()).unwrap();
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
            let found = scripts.ask("mlp", &dims, "f32");
            assert_eq!(found.len(), 1);
            assert_eq!((&*found[0].version, found[0].times.median_us), ("a", f64::from(n)));
            assert_eq!((found[0].replay_us, found[0].relative_error), (Some(0.5), None));
        }
        assert_eq!(scripts.libraries, ["Some 1.0"]);
        assert_eq!(scripts.said, ["mlp.py, b, N=7 f32: no room", "mlp.py, b, N=9 f32: no room"]);
        assert!(scripts.ask("matmul", &Dims::parse("N=1").unwrap(), "f32").is_empty());
    }

    #[test]
    fn a_script_that_dies_is_left_out() {
        let (_directory, mut scripts) =
            scripts("print('{\"libraries\": []}', flush=True)\ninput()\nraise SystemExit(3)\n");
        let dims = Dims::parse("N=1").unwrap();
        assert!(scripts.ask("mlp", &dims, "f32").is_empty());
        assert!(scripts.ask("mlp", &dims, "f32").is_empty());
        assert_eq!(scripts.said.len(), 1, "{:?}", scripts.said);
        assert!(scripts.said[0].starts_with("mlp.py has ended at N=1 f32: no answer"));
    }

    #[test]
    fn a_script_that_does_not_start_says_so() {
        let (_directory, mut scripts) = scripts("raise SystemExit(1)\n");
        assert!(scripts.ask("mlp", &Dims::parse("N=1").unwrap(), "f32").is_empty());
        assert_eq!(scripts.said.len(), 1);
        let empty = tempfile::tempdir().unwrap();
        let refused = Scripts::new(empty.path()).err().unwrap().to_string();
        assert!(refused.contains("expected a directory with attention.py"), "{refused}");
    }
}
