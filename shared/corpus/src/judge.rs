//! What the emulator says of a case, and whether that is right.

use std::time::Duration;

use lab_device::emulator::{Check, Finding, Options};
use lab_device::{Device, Error, Mode};

use crate::{Case, Kind, Verdict, lines, run};

/// How a verdict stands against the truth.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The planted bug, at a planted line, by the check that it belongs to.
    Found,
    /// Something at a planted line, by another check.
    FoundAs(Check),
    /// Something, elsewhere.
    Elsewhere(Vec<String>),
    /// Nothing, though there is a bug.
    Missed,
    /// What is wrong by the letter alone, at a marked line, and said to be no more.
    Formal,
    /// A bug was said to be one by the letter alone.
    OnlyFormal,
    /// Nothing, and there is no bug.
    Clean,
    /// Something, though there is no bug.
    FalseAlarm,
    /// Nothing, and there is no bug; but the outputs are not what they should be.
    Differs,
}

impl Judgement {
    /// Whether that is how it should be.
    pub fn right(&self) -> bool {
        matches!(self, Self::Found | Self::Clean | Self::Formal)
    }
}

/// An emulator that checks, for all cases: it waits three seconds in place of ten for threads that make no progress, unless
/// the options say otherwise. Of one case it has to be waited for, and no other stands still for so long.
///
/// # Errors
/// As [`Device::emulator_with`].
pub fn emulator(mut options: Options) -> Result<Device, Error> {
    if options.stall_limit == Options::default().stall_limit {
        options.stall_limit = Duration::from_secs(3);
    }
    Device::emulator_with(Mode::Checked, options)
}

/// Runs a case on an emulator that checks.
///
/// # Errors
/// What is no finding: a launch that was refused, a kernel that does not load.
pub fn judge(case: &Case, device: &Device) -> Result<(Judgement, Vec<Finding>), Error> {
    let (findings, holds) = match run(case, device) {
        Ok(outputs) => (Vec::new(), case.holds(&outputs)),
        Err(error) => match error.findings() {
            Some(findings) => (findings.all.clone(), false),
            None => return Err(error),
        },
    };
    let judgement = match case.verdict {
        Verdict::Correct { .. } if findings.is_empty() && holds => Judgement::Clean,
        Verdict::Correct { .. } if findings.is_empty() => Judgement::Differs,
        Verdict::Correct { .. } => Judgement::FalseAlarm,
        Verdict::Bug(_) | Verdict::Formal { .. } if findings.is_empty() => Judgement::Missed,
        Verdict::Bug(_) if findings.iter().all(|f| f.formal.is_some()) => Judgement::OnlyFormal,
        Verdict::Bug(kind) => place(case, kind, &findings),
        Verdict::Formal { .. } if findings.iter().any(|f| f.formal.is_none()) => {
            Judgement::FalseAlarm
        }
        Verdict::Formal { kind, .. } => match place(case, kind, &findings) {
            Judgement::Found => Judgement::Formal,
            other => other,
        },
    };
    Ok((judgement, findings))
}

fn place(case: &Case, kind: Kind, findings: &[Finding]) -> Judgement {
    let file = case.source.file;
    let marked: Vec<String> = lines(case).iter().map(|l| format!("{file}:{l}")).collect();
    let named = |finding: &Finding| {
        finding.places().any(|place| {
            let line = place.rsplit_once(':').map_or(place, |p| p.0);
            marked.iter().any(|m| line.ends_with(m.as_str()))
        })
    };
    // One that may hang may be seen to: what comes too late or too early depends on when it lands.
    let hangs = |f: &&Finding| case.hangs && f.kind.check() == Check::Sync;
    let expected = match kind {
        Kind::Memory => Check::Memory,
        Kind::Init => Check::Init,
        Kind::Race => Check::Race,
        Kind::Sync => Check::Sync,
    };
    let hits: Vec<&Finding> = findings.iter().filter(|f| named(f)).collect();
    match hits.first() {
        _ if hits.iter().any(|f| f.kind.check() == expected || hangs(f)) => Judgement::Found,
        Some(other) => Judgement::FoundAs(other.kind.check()),
        None => Judgement::Elsewhere(
            findings.iter().flat_map(Finding::places).map(Into::into).collect(),
        ),
    }
}
