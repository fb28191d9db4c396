//! The emulator's headers, which this crate brings along: a program is compiled wherever the tool runs.

use std::path::{Path, PathBuf};

use include_dir::{Dir, include_dir};
use lab_emulator::{cache_directory, write_atomically};
use sha2::{Digest, Sha256};

use crate::Error;

static INCLUDE: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/headers/include");
static COMPAT: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/headers/compat");

/// A directory of the user's cache that holds them as this repository does, written where it is missing.
pub(crate) fn root() -> Result<PathBuf, Error> {
    let mut files = Vec::new();
    collect(&INCLUDE, Path::new("shared/emulator/include"), &mut files);
    collect(&COMPAT, Path::new("shared/emulator/compat"), &mut files);
    let mut hash = Sha256::new();
    for (path, bytes) in &files {
        hash.update(path.as_os_str().as_encoded_bytes());
        hash.update(bytes);
    }
    let cache = cache_directory().unwrap_or_else(std::env::temp_dir);
    let root = cache.join("headers").join(&format!("{:x}", hash.finalize())[..16]);
    for (path, bytes) in files {
        let path = root.join(path);
        if std::fs::read(&path).is_ok_and(|there| there == bytes) {
            continue;
        }
        let refuse = |e: std::io::Error| Error::File { path: path.clone(), reason: e.to_string() };
        std::fs::create_dir_all(path.parent().unwrap_or(&root)).map_err(refuse)?;
        write_atomically(&path, bytes).map_err(refuse)?;
    }
    Ok(root)
}

fn collect(directory: &'static Dir<'_>, at: &Path, files: &mut Vec<(PathBuf, &'static [u8])>) {
    files.extend(directory.files().map(|f| (at.join(f.path()), f.contents())));
    directory.dirs().for_each(|d| collect(d, at, files));
}
