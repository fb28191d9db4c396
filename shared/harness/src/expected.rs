//! What must come of a version: right outputs, or the mistake that it is kept for.

use lab_device::KernelSource;
use lab_device::emulator::{Finding, Kind};

/// What must come of a version at the sizes that it names: its test shapes, the small problem and
/// the timed one.
#[derive(Clone, Copy, Debug)]
pub enum Expected {
    /// Every output within its bound.
    Right,
    /// An output out of its bound, because of a mistake that the version is kept for.
    Wrong(&'static Mistake),
}

impl Expected {
    /// The mistake of a version that is wrong on purpose.
    pub fn mistake(self) -> Option<&'static Mistake> {
        match self {
            Self::Right => None,
            Self::Wrong(mistake) => Some(mistake),
        }
    }
}

/// A mistake that a version is kept for, and what the emulator's checks find of it.
#[derive(Debug)]
pub struct Mistake {
    /// What is wrong, as a sentence without its full stop.
    pub because: &'static str,
    /// The kind of each finding.
    pub kind: Kind,
    /// The file of the offending accesses.
    pub source: &'static KernelSource,
    /// Pieces of text, one of which stands in the line of each offending access.
    pub lines: &'static [&'static str],
}

impl Mistake {
    /// Whether a finding is one of this mistake: its kind, at one of its lines.
    pub fn explains(&self, finding: &Finding) -> bool {
        finding.kind == self.kind
            && finding.accesses.first().is_some_and(|access| {
                self.line(&access.place).is_some_and(|l| self.lines.iter().any(|t| l.contains(t)))
            })
    }

    /// The text at a place, `file:line:column`, if that is in this mistake's file.
    fn line(&self, place: &str) -> Option<&'static str> {
        let mut parts = place.rsplitn(3, ':').skip(1);
        let number: usize = parts.next()?.parse().ok()?;
        let file = format!("stages/{}/{}", self.source.crate_name, self.source.file);
        (parts.next()? == file).then(|| self.source.source.lines().nth(number.checked_sub(1)?))?
    }
}
