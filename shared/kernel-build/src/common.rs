//! What the objects of one build have in common, made once and kept: the header that every kernel file
//! begins with, which costs more than most kernels do, and the glue.
//!
//! Only `emulator.h` is compiled in advance. A kernel that forgets to include another header must not
//! compile here: it would not on a GPU either.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::emulator_headers;
use crate::tools::{Build, Common, Tools, header_root, kernel_flags};

impl Common {
    /// In the directory `folder`, made there where it is not. Two build scripts may both make it: that is
    /// less than what a lock would need.
    pub(crate) fn of(tools: &Tools<'_>, build: Build, folder: &Path) -> Result<Self, String> {
        static MAKING: Mutex<()> = Mutex::new(());
        let _one = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        let name = name(build);
        let place = folder.join(format!("{name}.{}", hash(tools, build)?));
        if place.is_dir() {
            return Ok(Self(place));
        }
        let part = folder.join(format!("{name}.{}", std::process::id()));
        // Places in a header that is compiled in advance keep the names that it was compiled with. Those of the tree that it
        // really lies in are known to whoever uses it; a copy of a stage goes.
        let root = header_root(tools).ok_or("the emulator's headers: there are none")?;
        let made = make(&tools.of_tree(&root), build, &part).and_then(|()| {
            remove_old(folder, name);
            match std::fs::rename(&part, &place) {
                // Another build script was faster.
                Err(_) if place.is_dir() => Ok(()),
                renamed => renamed.map_err(|e| format!("{}: {e}", place.display())),
            }
        });
        let _ = std::fs::remove_dir_all(&part);
        made.map(|()| Self(place))
    }

    /// In the target directory of the workspace whose headers these are, if a build has left kernels there: for
    /// compiling a changed copy of a kernel.
    pub(crate) fn beside_build(tools: &Tools<'_>, build: Build) -> Option<Self> {
        let folder = header_root(tools)?.join("target/kernels");
        folder.is_dir().then(|| Self::of(tools, build, &folder).ok())?
    }
}

fn name(build: Build) -> &'static str {
    match build {
        Build::Plain => "emulator",
        Build::Checked => "emulator.checked",
    }
}

fn make(tools: &Tools<'_>, build: Build, part: &Path) -> Result<(), String> {
    std::fs::create_dir_all(part).map_err(|e| format!("{}: {e}", part.display()))?;
    let header = tools.include().join("emulator.h");
    tools.precompile(&header, &part.join("emulator.h.gch"), &kernel_flags(tools.root), build)?;
    tools.compile_glue(&part.join("glue.o"), build)
}

/// g++ looks only at its own version and flags: a header that has changed it would not see.
fn hash(tools: &Tools<'_>, build: Build) -> Result<String, String> {
    let mut hasher = DefaultHasher::new();
    (include_str!("common.rs"), include_str!("tools.rs")).hash(&mut hasher);
    (build.flags(), crate::compiler_version()?, header_root(tools)).hash(&mut hasher);
    for file in emulator_headers(&tools.include())? {
        let bytes = std::fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
        (file.file_name(), bytes).hash(&mut hasher);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// Those of other headers, flags and compilers.
fn remove_old(folder: &Path, name: &str) {
    for old in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if crate::is_kept_of(name, &old.file_name()) {
            let _ = std::fs::remove_dir_all(old.path());
        }
    }
}
