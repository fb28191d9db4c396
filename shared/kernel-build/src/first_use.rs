//! Compiles a kernel file when its object is first used, and not when its crate is built.
//!
//! What is compiled are the texts that the program has embedded. So the object is of the same source as the program,
//! whatever lies in the source tree by then, and a source tree is not needed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::compile::{Compiled, compile_keeping};
use crate::tools::{Build, write};
use crate::{NotCompiled, Spending, compiler_version, is_kept_of};

/// A kernel file and all that it includes, as a program has embedded them.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedSource<'a> {
    /// Its path from the root of the workspace, which messages and reports show.
    pub place: &'a str,
    /// Its text.
    pub text: &'a str,
    /// Device headers, name and text: `lab/*.cuh`, and those beside the file.
    pub headers: &'a [(&'a str, &'a str)],
    /// The emulator's headers and `glue.cpp`, name and text.
    pub emulator: &'a [(&'a str, &'a str)],
    /// The instantiations of its templates.
    pub instantiations: &'a [&'a str],
    /// Its variables that the host may set.
    pub globals: &'a [&'a str],
}

/// What [`compile_embedded`] made.
#[derive(Clone, Debug)]
pub struct Made {
    /// The shared object.
    pub object: PathBuf,
    /// Lines in which the compiler warns.
    pub warnings: Vec<String>,
    /// What processors have worked for it, in seconds.
    pub seconds: f64,
}

/// Compiles it in the directory `work`, which holds nothing yet. What it has in common with others is kept in the
/// directory `kept`, which exists.
///
/// # Errors
/// [`NotCompiled`].
pub fn compile_embedded(
    source: &EmbeddedSource<'_>,
    build: Build,
    kept: &Path,
    work: &Path,
) -> Result<Made, NotCompiled> {
    compiler_version().map_err(NotCompiled::NoCompiler)?;
    let spending = Spending::begin();
    let root = work.canonicalize().map_err(|e| at(work, &e))?;
    let compiled = compile_at(source, build, kept, &root);
    let from_root = |said: String| said.replace(&format!("{}/", root.display()), "");
    let seconds = spending.end();
    let Compiled { object, warnings } =
        compiled.map_err(|said| NotCompiled::Refused(from_root(said)))?;
    Ok(Made { object, warnings: warnings.into_iter().map(from_root).collect(), seconds })
}

fn compile_at(
    source: &EmbeddedSource<'_>,
    build: Build,
    kept: &Path,
    root: &Path,
) -> Result<Compiled, String> {
    let common = unpack_headers(source.emulator, kept)?;
    let (file, out) = (root.join(source.place), root.join("out"));
    let beside = file.parent().expect("a file lies in a folder");
    put(&file, source.text)?;
    for (name, text) in source.headers {
        let is_of_lab = name.starts_with("lab/");
        let folder = if is_of_lab { &root.join("shared/cuda") } else { beside };
        put(&folder.join(name), text)?;
    }
    let (from, include) = (common.join(INCLUDE), root.join(INCLUDE));
    let above = include.parent().expect("shared/emulator");
    std::fs::create_dir_all(above).map_err(|e| at(above, &e))?;
    std::os::unix::fs::symlink(&from, &include).map_err(|e| at(&include, &e))?;
    std::fs::create_dir(&out).map_err(|e| at(&out, &e))?;
    let (names, globals) = (source.instantiations, source.globals);
    compile_keeping(root, &file, names, globals, build, &out, &common.join("objects"))
}

const INCLUDE: &str = "shared/emulator/include";

/// The emulator's headers as files: in a directory of `kept` that is named by their content.
fn unpack_headers(headers: &[(&str, &str)], kept: &Path) -> Result<PathBuf, String> {
    static UNPACKING: Mutex<()> = Mutex::new(());
    let _one = UNPACKING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut hasher = DefaultHasher::new();
    headers.hash(&mut hasher);
    let place = kept.join(format!("headers.{:016x}", hasher.finish()));
    if !place.is_dir() {
        let part = kept.join(format!("headers.{}", std::process::id()));
        for (name, text) in headers {
            put(&part.join(INCLUDE).join(name), text)?;
        }
        remove_old(kept);
        // Another process may have been faster.
        if let Err(e) = std::fs::rename(&part, &place) {
            let _ = std::fs::remove_dir_all(&part);
            if !place.is_dir() {
                return Err(at(&place, &e));
            }
        }
    }
    place.canonicalize().map_err(|e| at(&place, &e))
}

/// Headers of other versions that nobody has begun to use within the last hour.
fn remove_old(kept: &Path) {
    const HOUR: std::time::Duration = std::time::Duration::from_secs(3600);
    for old in std::fs::read_dir(kept).into_iter().flatten().flatten() {
        let made = old.metadata().and_then(|m| m.modified()).ok();
        let is_old = made.and_then(|t| t.elapsed().ok()).is_some_and(|age| age > HOUR);
        if is_kept_of("headers", &old.file_name()) && is_old {
            let _ = std::fs::remove_dir_all(old.path());
        }
    }
}

fn put(file: &Path, text: &str) -> Result<(), String> {
    let folder = file.parent().expect("a file lies in a folder");
    std::fs::create_dir_all(folder).map_err(|e| at(folder, &e))?;
    write(file, text)
}

fn at(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}
