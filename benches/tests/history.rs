//! Every committed record is readable, and the committed schema is the one the code writes.
#![allow(missing_docs)]

use lab_benches::{history, history_directory};

#[test]
fn every_record_is_valid() {
    for (path, run) in history().unwrap() {
        assert!(!run.results.is_empty(), "{}", path.display());
        assert!(run.device.copy_gbps > 0.0, "{}", path.display());
    }
}

/// `LAB_BLESS=1 cargo test -p lab-benches` writes it anew.
#[test]
fn the_schema_is_current() {
    let path = history_directory().join("schema.json");
    let schema = lab_harness::record::schema();
    if std::env::var_os("LAB_BLESS").is_some() {
        std::fs::write(&path, &schema).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&path).unwrap(), schema, "the record format has changed");
}
