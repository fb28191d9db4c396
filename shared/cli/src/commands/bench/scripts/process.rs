//! A script of `benches/peers` that runs, and the lines that it prints. `problems.py` there tells the format.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use lab_harness::Products;
use lab_harness::timing::{Rows, Times};
use serde::Deserialize;
use serde_json::{Value, json};

/// What a library's line says beside its times.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(in crate::commands::bench) struct About {
    pub(in crate::commands::bench) version: String,
    pub(in crate::commands::bench) relative_error: Option<f64>,
    pub(in crate::commands::bench) products: Option<Products>,
    /// Another function, told by its name.
    pub(in crate::commands::bench) computes: Option<String>,
    pub(in crate::commands::bench) peak_bytes: Option<u64>,
}

/// What a library takes for a problem.
#[derive(Debug, PartialEq, Deserialize)]
pub(in crate::commands::bench) struct Theirs {
    #[serde(flatten)]
    pub(in crate::commands::bench) about: About,
    #[serde(flatten)]
    pub(in crate::commands::bench) times: Times,
    pub(in crate::commands::bench) replay_us: Option<f64>,
}

/// A library that waits for its turns.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(in crate::commands::bench) struct Ready {
    #[serde(rename = "prepared")]
    _prepared: bool,
    /// Whether its steady state can be asked for.
    pub(in crate::commands::bench) replayed: bool,
    #[serde(flatten)]
    pub(in crate::commands::bench) about: About,
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
    Ready(Ready),
    Turn {
        us: f64,
    },
    Rows {
        replays: usize,
        rows_us: [f64; 2],
    },
    Measured(Theirs),
}

/// A script that runs. It ends when its input does.
pub(super) struct Script {
    child: Child,
    /// `None` once it was closed.
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    pub(super) libraries: Vec<String>,
}

impl Drop for Script {
    fn drop(&mut self) {
        self.input = None;
        let _ = self.child.wait();
    }
}

/// What was found of a problem's peers, and what failed, with the reason.
pub(super) type Answer<T> = (Vec<T>, Vec<(String, String)>);

/// What a turn has given, or why the peer gave nothing. `Err` of a script that is of no use any more.
pub(super) type Turn<T> = Result<Result<T, String>, String>;

impl Script {
    /// `names`: the peers that it measures; all where none is named.
    pub(super) fn start(path: &Path, names: &[String]) -> Result<Self, String> {
        let python = std::env::var("LAB_PYTHON").unwrap_or_else(|_| "python3".into());
        let mut command = Command::new(&python);
        command.arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        if !names.is_empty() {
            command.env("LAB_PEERS", names.join(","));
        }
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

    fn send(&mut self, line: &Value) -> Result<(), String> {
        let input = self.input.as_mut().expect("it is open as long as this lives");
        writeln!(input, "{line}").map_err(|e| e.to_string())
    }

    /// Has it measure the peers of a problem by itself.
    pub(super) fn measure(&mut self, problem: &Value) -> Result<Answer<Theirs>, String> {
        self.ask(problem, |line| match line {
            Line::Measured(theirs) => Ok(theirs),
            other => Err(format!("expected times, got {other:?}")),
        })
    }

    /// Has it prepare the peers of a problem, which stay in memory until they are released.
    pub(super) fn prepare(&mut self, problem: &Value) -> Result<Answer<Ready>, String> {
        self.ask(problem, |line| match line {
            Line::Ready(ready) => Ok(ready),
            other => Err(format!("expected a peer that is prepared, got {other:?}")),
        })
    }

    fn ask<T>(
        &mut self,
        problem: &Value,
        read: impl Fn(Line) -> Result<T, String>,
    ) -> Result<Answer<T>, String> {
        self.send(problem)?;
        let (mut found, mut failed) = (Vec::new(), Vec::new());
        loop {
            match self.line()? {
                Line::End { .. } => return Ok((found, failed)),
                Line::Failed { version, failed: why } => failed.push((version, why)),
                other => found.push(read(other)?),
            }
        }
    }

    /// One run of a peer that is prepared, with a cold cache.
    pub(super) fn turn(&mut self, version: &str) -> Turn<Duration> {
        self.send(&json!({ "turn": version }))?;
        match self.line()? {
            Line::Turn { us } => duration(us).map(Ok),
            Line::Failed { failed, .. } => Ok(Err(failed)),
            other => Err(format!("expected a time, got {other:?}")),
        }
    }

    /// Two rows of replays of a peer that is prepared.
    pub(super) fn steady(&mut self, version: &str) -> Turn<Rows> {
        self.send(&json!({ "steady": version }))?;
        match self.line()? {
            Line::Rows { replays, rows_us: [one, two] } if replays > 0 => {
                Ok(Ok(Rows { replays, one: duration(one)?, two: duration(two)? }))
            }
            Line::Failed { failed, .. } => Ok(Err(failed)),
            other => Err(format!("expected the times of two rows, got {other:?}")),
        }
    }

    /// Has it free what the peers have taken.
    pub(super) fn release(&mut self) -> Result<(), String> {
        self.send(&json!({ "release": true }))?;
        match self.line()? {
            Line::End { .. } => Ok(()),
            other => Err(format!("expected an end, got {other:?}")),
        }
    }
}

fn duration(us: f64) -> Result<Duration, String> {
    Duration::try_from_secs_f64(us * 1e-6).map_err(|e| format!("a time of {us} µs: {e}"))
}
