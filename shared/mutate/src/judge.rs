//! Whether a stage's tests notice.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use lab_device::OBJECTS_VARIABLE;

use crate::{Codes, Error, Kernel, Planted, Sources};

/// How a broken kernel was noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum How {
    /// A result was wrong.
    Result,
    /// The emulator or its sanitizer found the kernel at fault.
    Sanitizer,
    /// The tests did not come to an end.
    Timeout,
    /// The process died.
    Crash,
}

impl How {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Result => "result",
            Self::Sanitizer => "sanitizer",
            Self::Timeout => "timeout",
            Self::Crash => "crash",
        }
    }
}

/// What became of a broken kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The compiler refused it, and said this.
    Rejected(String),
    /// The tests noticed.
    Caught(How, String),
    /// Nobody did.
    Survived,
    /// The compiler makes the same code of it as of the sources as they are; no test was run.
    SameCode,
}

/// Runs the tests of a stage in a child process.
#[derive(Clone, Debug)]
pub struct Judge {
    /// The tool.
    pub program: PathBuf,
    /// What it is to do: the stage's tests, until the first that fails.
    pub arguments: Vec<String>,
    /// Set for it.
    pub environment: Vec<(String, String)>,
    /// How long it may take.
    pub limit: Duration,
    /// How long it may take where it is told to run only what a kernel file concerns, by that file
    /// (as its stage names it). Where this is empty, it is never told so.
    pub limits: BTreeMap<String, Duration>,
    /// Whether the kernel files after the first are compiled and run one by one, not at once.
    pub one_by_one: bool,
    /// What kernel files compile to as they are. A file that is not among them is run whatever
    /// becomes of its code.
    pub codes: Codes,
}

impl Judge {
    /// Breaks the sources, compiles what the change reaches, and runs the tests. The kernel file
    /// that is likely to show it comes first; the others follow only if it does not. Where there
    /// are `limits`, only the tests that concern these files run; where the code of a file does not
    /// change, none do.
    ///
    /// # Errors
    /// Files cannot be written, or the tool does not start.
    pub fn judge(
        &self,
        sources: &Sources,
        edit: &crate::Edit,
        function: Option<&str>,
    ) -> Result<Verdict, Error> {
        let planted = sources.plant(Some(edit))?;
        let reached = sources.reached(&edit.file, function);
        let (first, rest) = reached.split_at(reached.len().min(1));
        let each = if self.one_by_one { 1 } else { rest.len().max(1) };
        let mut outcome = if reached.is_empty() { Verdict::Survived } else { Verdict::SameCode };
        for part in std::iter::once(first).chain(rest.chunks(each)) {
            let mut files: Vec<&str> = Vec::new();
            for kernel in part {
                if let Err(said) = planted.compile(kernel)? {
                    return Ok(Verdict::Rejected(said));
                }
                if self.changes(&planted, kernel)? {
                    files.push(kernel.source.file);
                }
            }
            if files.is_empty() {
                continue;
            }
            outcome = self.run(Some(&planted), &files)?;
            if outcome != Verdict::Survived {
                return Ok(outcome);
            }
        }
        Ok(outcome)
    }

    /// Whether a kernel file of the copy compiles to anything else than it does as it is.
    fn changes(&self, planted: &Planted, kernel: &Kernel) -> Result<bool, Error> {
        match self.codes.get(kernel.source.file) {
            Some(code) => Ok(planted.code(kernel)? != *code),
            None => Ok(true),
        }
    }

    /// Runs the tests against these objects, or against those that are embedded; only what concerns
    /// these kernel files, if there are any and each has its limit.
    ///
    /// # Errors
    /// The tool does not start.
    pub fn run(&self, planted: Option<&Planted>, files: &[&str]) -> Result<Verdict, Error> {
        let limits: Option<Vec<Duration>> =
            files.iter().map(|f| self.limits.get(*f).copied()).collect();
        let (files, limit) = match limits {
            Some(limits) if !limits.is_empty() => (files, limits.iter().sum()),
            _ => (&[] as &[&str], self.limit),
        };
        let own = tempfile::tempdir().map_err(|e| Error::file(&std::env::temp_dir(), e))?;
        let scratch = planted.map_or(own.path().to_owned(), Planted::scratch);
        let said = scratch.join("stderr");
        let stderr = File::create(&said).map_err(|e| Error::file(&said, e))?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).envs(self.environment.iter().cloned());
        files.iter().for_each(|file| {
            command.args(["--source", file]);
        });
        // Objects that are used once are not worth the user's cache.
        command.env("LAB_CACHE", scratch.join("cache")).env_remove(OBJECTS_VARIABLE);
        if let Some(planted) = planted {
            command.env(OBJECTS_VARIABLE, planted.objects());
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        let mut child = command.spawn().map_err(|e| Error::file(&self.program, e))?;
        let start = Instant::now();
        let status = loop {
            match child.try_wait().map_err(|e| Error::file(&self.program, e))? {
                Some(status) => break Some(status),
                None if start.elapsed() > limit => {
                    // It may have ended by itself meanwhile.
                    let _ = child.kill();
                    let _ = child.wait();
                    break None;
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        verdict(status, &said, limit)
    }
}

fn verdict(status: Option<ExitStatus>, said: &Path, limit: Duration) -> Result<Verdict, Error> {
    let Some(status) = status else {
        let said = format!("no end after {:.0} s", limit.as_secs_f64());
        return Ok(Verdict::Caught(How::Timeout, said));
    };
    let bytes = std::fs::read(said).map_err(|e| Error::file(said, e))?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    match status.code() {
        Some(0) => Ok(Verdict::Survived),
        Some(1) => Ok(Verdict::Caught(How::Result, text)),
        Some(3) => Ok(Verdict::Caught(How::Sanitizer, text)),
        Some(2 | 4) => Err(Error::Bad {
            what: "the stage's tests".into(),
            expected: "a verdict".into(),
            got: text,
        }),
        _ => Ok(Verdict::Caught(How::Crash, format!("{status}\n{text}").trim().to_owned())),
    }
}
