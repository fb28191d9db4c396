//! The records speak of the corpus as it is: no case is missing, none is gone.

use std::path::Path;

use lab_corpus::records::{Counters, Sanitizers, TOOLS};
use lab_corpus::{Case, Kind, asynchronous, cases, counted};

fn text(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("records").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn sanitizers() -> Sanitizers {
    serde_json::from_str(&text("sanitizers.json")).unwrap()
}

#[test]
fn the_sanitizers_saw_every_case() {
    let record = sanitizers();
    let mut recorded: Vec<(&str, &str, Option<Kind>)> =
        record.cases.iter().map(|c| (c.name.as_str(), c.file.as_str(), c.bug)).collect();
    let all = cases();
    let mut known: Vec<_> = all.iter().map(|c| (c.name, c.source.file, c.bug())).collect();
    recorded.sort_unstable();
    known.sort_unstable();
    assert_eq!(recorded, known, "`compare.py` on a GPU machine writes the record anew");
    for case in &record.cases {
        assert_eq!(case.bug.is_some(), case.tools.is_some(), "{}", case.name);
        assert_eq!(case.bug.is_some(), case.plain.is_some(), "{}", case.name);
        assert_eq!(case.bug.is_some(), !case.lines.is_empty(), "{}", case.name);
        for said in case.tools.iter().flat_map(|t| t.all()) {
            assert!(said.ended || said.errors.is_none(), "{}: {said:?}", case.name);
        }
    }
    for (alarms, name) in record.alarms.all().into_iter().zip(TOOLS) {
        assert!(alarms.ended && alarms.errors.is_some(), "{name} did not get through: {alarms:?}");
    }
}

#[test]
fn every_counted_kernel_was_measured() {
    measured("counters.json", counted());
    measured("bulk_counters.json", asynchronous());
}

fn measured(record: &str, cases: Vec<Case>) {
    let record: Counters = serde_json::from_str(&text(record)).unwrap();
    let mut recorded: Vec<&str> = record.counted.iter().map(|c| c.kernel.as_str()).collect();
    let mut known: Vec<&str> = cases.iter().map(|c| c.name).collect();
    recorded.sort_unstable();
    recorded.dedup();
    known.sort_unstable();
    assert_eq!(recorded, known, "`compare.py` on a GPU machine writes the record anew");
    for c in &record.counted {
        let measured = c.measured.requests.is_some() && c.measured.cost.is_some();
        assert!(measured, "{}, {}: not measured", c.kernel, c.operation);
    }
}

#[test]
fn a_record_with_other_fields_is_refused() {
    let text = text("sanitizers.json");
    for (from, to) in [
        ("\"gpu\"", "\"gqu\""),
        ("\"alarms\"", "\"more\": 1, \"alarms\""),
        ("\"said\": \"line\"", "\"said\": \"near\""),
        ("\"bug\": \"Memory\"", "\"bug\": \"memory\""),
        ("\"memcheck\"", "\"memcheque\""),
    ] {
        assert!(text.contains(from), "{from}");
        let changed = text.replacen(from, to, 1);
        assert!(serde_json::from_str::<Sanitizers>(&changed).is_err(), "{to}");
    }
}

#[test]
fn the_origin_is_one_line_with_a_commit_or_without() {
    let mut record = sanitizers();
    record.commit = Some("0123456789abcdef".into());
    assert!(record.origin().ends_with("commit `0123456789ab`"), "{}", record.origin());
    record.commit = None;
    assert!(record.origin().ends_with("no commit named"), "{}", record.origin());
}
