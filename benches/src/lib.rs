//! The records of `lab bench --record`, in `history/`, and their format, `history/schema.json`.

use std::path::{Path, PathBuf};

use lab_harness::Error;
use lab_harness::record::Run;

/// The directory of the records.
pub fn history_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("history")
}

/// Every record, oldest first.
///
/// # Errors
/// A file of the directory is no record.
pub fn history() -> Result<Vec<(PathBuf, Run)>, Error> {
    let directory = history_directory();
    let failed = |e: std::io::Error| Error::File {
        path: directory.display().to_string(),
        message: e.to_string(),
    };
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&directory)
        .map_err(failed)?
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "json") && !p.ends_with("schema.json"))
        .collect();
    paths.sort();
    paths.into_iter().map(|p| Run::read(&p).map(|run| (p, run))).collect()
}
