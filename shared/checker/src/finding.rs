//! Findings as JSON, and files to be written.

use std::path::Path;

use lab_emulator::Finding;
use serde_json::json;

use crate::failure::Failure;

/// A finding as JSON.
pub fn finding_json(finding: &Finding) -> serde_json::Value {
    let accesses = finding.accesses.iter().map(|a| {
        json!({ "what": a.what, "place": a.place, "within": a.within, "block": a.block, "thread": a.thread })
    });
    json!({ "check": finding.kind.check().name(), "kind": format!("{:?}", finding.kind),
            "message": finding.message, "accesses": accesses.collect::<Vec<_>>(),
            "places": finding.places().collect::<Vec<_>>(), "formal": finding.formal, "fix": finding.fix,
            "count": finding.count })
}

/// Said before any work: a result that cannot be written is worth nothing.
pub fn check_target(path: &Path) -> Result<(), Failure> {
    let directory = path.parent().filter(|d| !d.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let refuse = |message: String| Failure::Usage(format!("{}: {message}", path.display()));
    if path.is_dir() {
        return Err(refuse("expected a file to write, got a directory".into()));
    }
    tempfile::tempfile_in(directory).map(drop).map_err(|e| refuse(e.to_string()))
}
