//! Findings as JSON, and files to be written.

use std::io::ErrorKind;
use std::path::Path;

use lab_emulator::{Finding, Target};
use serde_json::json;

use crate::failure::CheckFailure;

/// A finding as JSON.
pub fn finding_json(finding: &Finding) -> serde_json::Value {
    let accesses = finding.accesses.iter().map(|a| {
        json!({ "what": a.what, "place": a.place, "within": a.within, "block": a.block, "thread": a.thread })
    });
    let standing = finding.standing.iter().map(ToString::to_string);
    let details: Vec<String> = finding.missing.iter().cloned().chain(standing).collect();
    json!({ "check": finding.kind.check().name(), "kind": format!("{:?}", finding.kind),
            "message": finding.message, "accesses": accesses.collect::<Vec<_>>(),
            "details": details,
            "places": finding.places().collect::<Vec<_>>(), "formal": finding.formal, "fix": finding.fix,
            "count": finding.count })
}

/// Said before any work: a result that cannot be written is worth nothing.
pub fn check_target(path: &Path) -> Result<(), CheckFailure> {
    let refuse = |message: String| CheckFailure::Usage(format!("{}: {message}", path.display()));
    let target = match Target::of(path) {
        Ok(Target::File(target)) => target,
        Ok(Target::Through(_)) => return Ok(()),
        Err(e) if e.kind() == ErrorKind::IsADirectory => {
            return Err(refuse("expected a file to write, got a directory".into()));
        }
        Err(e) => return Err(refuse(e.to_string())),
    };
    let directory = target.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::tempfile_in(directory).map(drop).map_err(|e| refuse(e.to_string()))
}
