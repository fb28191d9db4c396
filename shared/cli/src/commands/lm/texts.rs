//! Texts of files and directories.

use std::path::{Path, PathBuf};

use lab_device::emulator::read_file;
use lab_harness::Error;
use lab_lm::Tokens;

use crate::failure::Failure;

/// All files under these, each directory's in the order of their names, one behind the other.
///
/// # Errors
/// One cannot be read; there is nothing in them.
pub(super) fn read(paths: &[PathBuf]) -> Result<Vec<u8>, Failure> {
    let mut all = Vec::new();
    for path in paths {
        append(&mut all, path)?;
    }
    match all.is_empty() {
        true => Err(Error::bad("TEXT", "at least one byte", "none").into()),
        false => Ok(all),
    }
}

fn append(all: &mut Vec<u8>, path: &Path) -> Result<(), Failure> {
    let failed = |e| Failure::file(path, e);
    if !path.is_dir() {
        all.extend(read_file(path).map_err(failed)?);
        return Ok(());
    }
    let entries: Result<Vec<_>, _> =
        std::fs::read_dir(path).map_err(failed)?.map(|e| e.map(|e| e.path())).collect();
    let mut entries = entries.map_err(failed)?;
    entries.sort();
    entries.iter().try_for_each(|entry| append(all, entry))
}

/// What is trained on, and behind it what is held out: of neither a window reads the other.
pub(super) struct Split {
    pub(super) data: Tokens,
    pub(super) trained: Vec<usize>,
    pub(super) held_out: Vec<usize>,
}

impl Split {
    /// # Errors
    /// There is no window to train on.
    pub(super) fn new(text: &[u8], held_out: f64, window: usize) -> Result<Self, Error> {
        let data = Tokens::of_bytes(text);
        let kept = ((text.len() as f64) * (1.0 - held_out)).round() as usize;
        let whole = data.starts(window);
        let trained: Vec<usize> = whole.iter().copied().filter(|s| s + window < kept).collect();
        let held_out: Vec<usize> =
            (kept..text.len().saturating_sub(window)).step_by(window).collect();
        if trained.is_empty() {
            let expected = format!("at least {}, a window and its last target", window + 1);
            return Err(Error::bad("bytes to train on", expected, kept));
        }
        Ok(Self { data, trained, held_out })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_window_that_is_trained_on_reads_what_is_held_out() {
        let split = Split::new(&[7; 1000], 0.1, 64).unwrap();
        assert!(split.trained.iter().all(|s| s + 64 < 900) && split.trained.len() == 14);
        assert_eq!(split.held_out, [900]);
        let said = Split::new(&[7; 60], 0.1, 64).err().unwrap().to_string();
        let expected =
            "bytes to train on: expected at least 65, a window and its last target, got 54";
        assert_eq!(said, expected);
    }
}
