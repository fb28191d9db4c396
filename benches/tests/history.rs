//! Every committed record is readable, and the committed schema is the one the code writes.
#![allow(missing_docs)]

use lab_benches::{history_directory, tuned_directory};
use lab_harness::tuned::{self, Tuned};
use lab_harness::{Dims, record};

#[test]
fn every_record_is_valid() {
    for run in record::read_all(&history_directory()).unwrap() {
        assert!(!run.results.is_empty() && run.device.copy_gbps > 0.0, "{}", run.date);
    }
}

/// `LAB_BLESS=1 cargo test -p lab-benches` writes it anew.
#[test]
fn the_schema_is_current() {
    let formats = [(history_directory(), record::schema()), (tuned_directory(), tuned::schema())];
    for (directory, schema) in formats {
        let path = directory.join("schema.json");
        if std::env::var_os("LAB_BLESS").is_some() {
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(&path, &schema).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&path).unwrap(), schema, "the format has changed");
    }
}

/// Each is readable, lies under its own name, and is of a tiling that its version still lists.
#[test]
fn every_tuned_tiling_is_valid() {
    for entry in std::fs::read_dir(tuned_directory()).unwrap() {
        let path = entry.unwrap().path();
        if path.ends_with("schema.json") {
            continue;
        }
        let tuned = Tuned::read(&path).unwrap();
        assert_eq!(path.file_name().unwrap().to_str().unwrap(), tuned.file_name());
        let version = lab::named_one(&tuned.version, None, "").unwrap().version;
        let dims = Dims::parse(&tuned.shape).unwrap();
        let known = version.tilings(&dims, tuned.dtype.parse().unwrap());
        let listed = known.iter().any(|t| tuned::Trial::new(t, None).tiling == tuned.best.tiling);
        assert!(listed, "{}: {:?}", path.display(), tuned.best.tiling);
    }
}
