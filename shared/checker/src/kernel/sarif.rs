//! Findings in SARIF 2.1.0, which tools for code review read.

use std::path::Path;

use lab_app::Outcome;
use lab_emulator::{Check, Finding, write_atomically};
use serde_json::{Value, json};

use crate::counted::Place;
use crate::failure::CheckFailure;

const SCHEMA: &str = "https://json.schemastore.org/sarif-2.1.0.json";

const RULES: [(Check, &str); 5] = [
    (Check::Memory, "Addresses that belong to nobody, misaligned or freed"),
    (Check::Init, "Bytes that nobody has written"),
    (Check::Race, "Accesses to the same bytes that nothing orders"),
    (Check::Sync, "Barriers, collectives and waiting"),
    (Check::Stop, "The kernel stopped by itself"),
];

pub(super) fn write(path: &Path, outcome: &Outcome) -> Result<(), CheckFailure> {
    let text = format!("{:#}\n", log(outcome));
    write_atomically(path, text.as_bytes()).map_err(|e| CheckFailure::file(path, e))
}

fn log(outcome: &Outcome) -> Value {
    let rules = RULES.map(|(check, text)| {
        json!({ "id": check.name(), "shortDescription": { "text": text },
                "defaultConfiguration": { "level": "error" } })
    });
    let driver =
        json!({ "name": crate::own::name(), "version": env!("CARGO_PKG_VERSION"), "rules": rules });
    let results: Vec<Value> = outcome.findings.iter().map(|f| result(f, outcome)).collect();
    json!({
        "$schema": SCHEMA, "version": "2.1.0",
        "runs": [{ "tool": { "driver": driver }, "columnKind": "unicodeCodePoints",
                   "results": results }],
    })
}

fn result(finding: &Finding, outcome: &Outcome) -> Value {
    let check = finding.kind.check();
    let rule = RULES.iter().position(|(c, _)| *c == check).unwrap_or(0);
    let level = if finding.formal.is_some() { "note" } else { "error" };
    // A finding of the launch as a whole stands at its kernel.
    let own = format!("{}:1", outcome.place);
    let mut places = finding.places();
    let first = places.next().unwrap_or(&own);
    let related: Vec<Value> = places.map(location).collect();
    let text = format!("{}: {finding}", outcome.kernel);
    json!({
        "ruleId": check.name(), "ruleIndex": rule, "level": level, "message": { "text": text },
        "locations": [location(first)], "relatedLocations": related,
        "properties": { "kind": format!("{:?}", finding.kind), "count": finding.count },
    })
}

fn location(place: &str) -> Value {
    let Place { file, line, column } = Place::of(place);
    let mut physical = json!({ "artifactLocation": { "uri": uri(file) } });
    if line > 0 {
        physical["region"] = json!({ "startLine": line, "startColumn": column.max(1) });
    }
    json!({ "physicalLocation": physical })
}

/// Relative to where the tool runs, where that is possible.
fn uri(file: &str) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    let path = Path::new(file);
    let own = path.strip_prefix(&here).unwrap_or(path);
    let scheme = if own.is_absolute() { "file://" } else { "" };
    let text = own.display().to_string();
    let text = text.strip_prefix("./").unwrap_or(&text);
    let encoded = text.bytes().map(|b| match b {
        b if b.is_ascii_alphanumeric() || b"/-_.~+".contains(&b) => char::from(b).to_string(),
        b => format!("%{b:02X}"),
    });
    format!("{scheme}{}", encoded.collect::<String>())
}
