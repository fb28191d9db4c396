//! What programs begin with, compiled in advance: CUDA's headers are most of what there is to read in a
//! small program.
//!
//! It takes longer than one program saves, and some 60 MB. So it is made for flags that come a second time,
//! and few are kept.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use crate::tools::{Build, Tools, write};

/// So many are kept: checked or not, of some architectures and flags.
const KEPT: usize = 6;

/// A build that takes longer than this has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// A header that g++ finds compiled beside it.
#[derive(Clone, Debug)]
pub(crate) struct Prelude(PathBuf);

impl Prelude {
    /// Of this text, for these flags; `None` the first time, while another process makes it, and of no text.
    pub(crate) fn of(
        tools: &Tools<'_>,
        text: &str,
        flags: &[String],
        build: Build,
    ) -> Result<Option<Self>, String> {
        if text.is_empty() {
            return Ok(None);
        }
        // The headers' tree is named by its content.
        let mut hasher = DefaultHasher::new();
        (include_str!("tools.rs"), tools.root, text, flags, build.flags()).hash(&mut hasher);
        crate::compiler_version()?.hash(&mut hasher);
        let folder = tools.root.join("objects");
        fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        let header = folder.join(format!("prelude.{:016x}.h", hasher.finish()));
        let compiled = header.with_extension("h.gch");
        if compiled.is_file() {
            // The one that has not been used for the longest time goes first.
            let _ = File::open(&compiled).and_then(|f| f.set_modified(SystemTime::now()));
            return Ok(Some(Self(header)));
        }
        if !header.is_file() {
            write(&header, text)?;
            return Ok(None);
        }
        let lock = header.with_extension("h.lock");
        let is_left = |path: &Path| {
            let made = path.metadata().and_then(|m| m.modified());
            made.is_ok_and(|t| t.elapsed().is_ok_and(|passed| passed > PATIENCE))
        };
        if is_left(&lock) {
            let _ = fs::remove_file(&lock);
        }
        if File::create_new(&lock).is_err() {
            return Ok(None);
        }
        let part = header.with_extension(format!("h.{}", std::process::id()));
        let made = tools.precompile(&header, &part, flags, build);
        let renamed = made.is_ok() && fs::rename(&part, &compiled).is_ok();
        let _ = fs::remove_file(&part);
        let _ = fs::remove_file(&lock);
        remove_old(&folder);
        Ok(renamed.then_some(Self(header)))
    }

    /// What the compiler is told to include.
    pub(crate) fn header(&self) -> &Path {
        &self.0
    }
}

/// All but the newest. A compiler that looks for one that has just gone reads the header itself.
fn remove_old(folder: &Path) {
    let compiled = fs::read_dir(folder).into_iter().flatten().flatten().filter_map(|entry| {
        let path = entry.path();
        let is_one = path.extension().is_some_and(|e| e == "gch");
        let time = entry.metadata().and_then(|m| m.modified()).ok()?;
        is_one.then_some((time, path))
    });
    let mut compiled: Vec<_> = compiled.collect();
    compiled.sort();
    for (_, path) in compiled.iter().rev().skip(KEPT) {
        let _ = fs::remove_file(path);
    }
}
