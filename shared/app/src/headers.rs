//! The emulator's headers, which this crate brings along: a program is compiled wherever the tool runs.

use std::path::{Path, PathBuf};

use include_dir::{Dir, include_dir};
use lab_emulator::{cache_directory, write_atomically};
use sha2::{Digest, Sha256};

use crate::{Error, cache};

static INCLUDE: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/headers/include");
static COMPAT: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/headers/compat");

/// A directory of the user's cache that holds them as this repository does, written where it is missing. Where that
/// cannot be written, a directory of the system's for temporary files has them.
pub(crate) fn root() -> Result<PathBuf, Error> {
    let own = match cache_directory() {
        Some(cache) => match root_in(&cache) {
            Ok(root) => return Ok(root),
            Err(reason) => reason,
        },
        None => "neither LAB_CACHE nor HOME is set".to_owned(),
    };
    let temporary = cache::temporary().map_err(|e| e.to_string());
    temporary.and_then(|directory| root_in(&directory)).map_err(|reason| {
        Error::Refused(format!(
            "cache: expected a directory that can be written, got {own}; and {reason}: set LAB_CACHE to another one"
        ))
    })
}

fn root_in(directory: &Path) -> Result<PathBuf, String> {
    let mut files = Vec::new();
    collect(&INCLUDE, Path::new("shared/emulator/include"), &mut files);
    collect(&COMPAT, Path::new("shared/emulator/compat"), &mut files);
    let mut hash = Sha256::new();
    for (path, bytes) in &files {
        hash.update(path.as_os_str().as_encoded_bytes());
        hash.update(bytes);
    }
    let root = directory.join("headers").join(&format!("{:x}", hash.finalize())[..16]);
    let at = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    for (path, bytes) in files {
        let path = root.join(path);
        if std::fs::read(&path).is_ok_and(|there| there == bytes) {
            continue;
        }
        std::fs::create_dir_all(path.parent().unwrap_or(&root)).map_err(|e| at(&path, e))?;
        write_atomically(&path, bytes).map_err(|e| at(&path, e))?;
    }
    let objects = objects(&root);
    std::fs::create_dir_all(&objects).map_err(|e| at(&objects, e))?;
    cache::try_writing(&objects).map_err(|e| at(&objects, e))?;
    cache::clean(directory, &root);
    Ok(root)
}

/// Where such a directory keeps what is compiled once for all programs.
pub(crate) fn objects(root: &Path) -> PathBuf {
    root.join("objects")
}

fn collect(directory: &'static Dir<'_>, at: &Path, files: &mut Vec<(PathBuf, &'static [u8])>) {
    files.extend(directory.files().map(|f| (at.join(f.path()), f.contents())));
    directory.dirs().for_each(|d| collect(d, at, files));
}
