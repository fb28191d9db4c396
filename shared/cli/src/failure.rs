//! How a command fails, and the exit code that goes with it.

use std::path::Path;

use lab_device::emulator::{shown, shown_lines};
use lab_harness::{Error, Version};

/// A command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
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
    /// 4: the same, after a report that has said so.
    Missing(String),
}

impl Failure {
    /// 2: a file or directory cannot be read or written.
    pub(crate) fn file(path: &Path, error: std::io::Error) -> Self {
        Self::Usage(format!("{}: {error}", shown(&path.to_string_lossy(), 1000)))
    }

    /// The same, of a problem that another version takes.
    pub(crate) fn naming(self, other: Option<&dyn Version>) -> Self {
        match (self, other) {
            (Self::Usage(message), Some(other)) => {
                Self::Usage(format!("{message}; {} takes it", other.info().full_name()))
            }
            (refused, _) => refused,
        }
    }

    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Wrong(_) | Self::Refused(_) => 1,
            Self::Usage(_) => 2,
            Self::Finding(_) | Self::Found(_) => 3,
            Self::Unavailable(_) | Self::Missing(_) => 4,
        }
    }

    pub(crate) fn message(&self) -> &str {
        match self {
            Self::Wrong(m)
            | Self::Refused(m)
            | Self::Usage(m)
            | Self::Finding(m)
            | Self::Found(m)
            | Self::Unavailable(m)
            | Self::Missing(m) => m,
        }
    }

    fn message_mut(&mut self) -> &mut String {
        match self {
            Self::Wrong(m)
            | Self::Refused(m)
            | Self::Usage(m)
            | Self::Finding(m)
            | Self::Found(m)
            | Self::Unavailable(m)
            | Self::Missing(m) => m,
        }
    }

    /// Says it on stderr, and with `--json` as an object on stdout; what follows a report
    /// has had its object already.
    pub(crate) fn tell(&self, json: bool) {
        note!("lab: {}", shown_lines(self.message()));
        if json && !matches!(self, Self::Wrong(_) | Self::Found(_) | Self::Missing(_)) {
            say!("{}", serde_json::json!({ "error": self.message(), "exit": self.code() }));
        }
    }
}

impl From<lab_device::Error> for Failure {
    fn from(error: lab_device::Error) -> Self {
        let message = error.to_string();
        match error {
            e if e.is_unavailable() => Self::Unavailable(message),
            e if e.findings().is_some() => Self::Finding(message),
            lab_device::Error::Compile { .. } => Self::Wrong(message),
            lab_device::Error::Rank { .. } => Self::Refused(message),
            _ => Self::Usage(message),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Device(e) => e.into(),
            Error::Layer { layer, error } => {
                let mut failure = Self::from(*error);
                failure.message_mut().insert_str(0, &format!("{layer}: "));
                failure
            }
            // The emulator's checks looked, and found it.
            e @ Error::NeverWritten { .. } => Self::Finding(e.to_string()),
            other => Self::Usage(other.to_string()),
        }
    }
}

impl From<lab_checker::CheckFailure> for Failure {
    fn from(failure: lab_checker::CheckFailure) -> Self {
        use lab_checker::CheckFailure as Of;
        match failure {
            Of::Wrong(m) => Self::Wrong(m),
            Of::Refused(m) => Self::Refused(m),
            Of::Usage(m) => Self::Usage(m),
            Of::Finding(m) => Self::Finding(m),
            Of::Found(m) => Self::Found(m),
            Of::Unavailable(m) => Self::Unavailable(m),
            other => Self::Usage(other.message().to_owned()),
        }
    }
}

impl From<lab_traces::Error> for Failure {
    fn from(error: lab_traces::Error) -> Self {
        match error {
            lab_traces::Error::Wrong(message) => Self::Wrong(message),
            lab_traces::Error::Harness(error) => error.into(),
            other => Self::Usage(other.to_string()),
        }
    }
}

impl From<lab_history::Error> for Failure {
    fn from(error: lab_history::Error) -> Self {
        match error {
            lab_history::Error::Harness(error) => error.into(),
            lab_history::Error::Sources(error) => error.into(),
            other => Self::Usage(other.to_string()),
        }
    }
}

impl From<lab_mutate::Error> for Failure {
    fn from(error: lab_mutate::Error) -> Self {
        match error {
            lab_mutate::Error::NoCompiler(message) => Self::Unavailable(message),
            other => Self::Usage(other.to_string()),
        }
    }
}
