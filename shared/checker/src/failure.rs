//! How a check fails, and the exit code that goes with it.

use std::path::Path;

use lab_emulator::{shown, shown_lines};

/// A check of a file or program did not succeed.
#[derive(Debug)]
#[non_exhaustive]
pub enum CheckFailure {
    /// 1: a result is wrong, or a bench was refused. What there is to say has been said, but for
    /// this.
    Wrong(String),
    /// 1: the same, before there was anything to say.
    Refused(String),
    /// 2: bad usage or bad input.
    Usage(String),
    /// 3: the emulator found the kernel at fault.
    Finding(String),
    /// 3: the same, after a report that has said so.
    Found(String),
    /// 4: no such device, driver or toolkit.
    Unavailable(String),
}

impl CheckFailure {
    /// 2: a file or directory cannot be read or written.
    pub(crate) fn file(path: &Path, error: std::io::Error) -> Self {
        Self::Usage(format!("{}: {error}", shown(&path.to_string_lossy(), 1000)))
    }

    /// 2: stdout has not taken all that was printed.
    pub fn lost(why: &str) -> Self {
        Self::Usage(format!("standard output: {why}"))
    }

    /// The exit code.
    pub fn code(&self) -> u8 {
        match self {
            Self::Wrong(_) | Self::Refused(_) => 1,
            Self::Usage(_) => 2,
            Self::Finding(_) | Self::Found(_) => 3,
            Self::Unavailable(_) => 4,
        }
    }

    /// What went wrong.
    pub fn message(&self) -> &str {
        match self {
            Self::Wrong(m)
            | Self::Refused(m)
            | Self::Usage(m)
            | Self::Finding(m)
            | Self::Found(m)
            | Self::Unavailable(m) => m,
        }
    }

    /// Says it on stderr, and with `--json` as an object on stdout; what follows a report
    /// has had its object already.
    pub fn tell(&self, json: bool) {
        note!("{}: {}", crate::own::name(), shown_lines(self.message()));
        if json && !matches!(self, Self::Wrong(_) | Self::Found(_)) {
            say!("{}", serde_json::json!({ "error": self.message(), "exit": self.code() }));
        }
    }
}
