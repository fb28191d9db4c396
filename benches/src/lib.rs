//! The records of `lab bench --record`, in `history/`, and their format, `history/schema.json`.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

/// The directory of what `lab tune --record` found, with the format in `schema.json`.
pub fn tuned_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tuned")
}

/// The directory of the records over the length of a text, of which `measure.sh` there makes one a family.
pub fn lengths_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("lengths")
}

/// The directory of the records.
pub fn history_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("history")
}
