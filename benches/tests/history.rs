//! Every committed record is readable, and the committed schema is the one the code writes.
#![allow(missing_docs)]

use lab_benches::history_directory;
use lab_harness::record;

#[test]
fn every_record_is_valid() {
    for run in record::read_all(&history_directory()).unwrap() {
        assert!(!run.results.is_empty() && run.device.copy_gbps > 0.0, "{}", run.date);
    }
}

/// `LAB_BLESS=1 cargo test -p lab-benches` writes it anew.
#[test]
fn the_schema_is_current() {
    let path = history_directory().join("schema.json");
    let schema = record::schema();
    if std::env::var_os("LAB_BLESS").is_some() {
        std::fs::write(&path, &schema).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), schema, "the record format has changed");
}
