//! `libcudart.so`, as a program finds it: the host's compiler makes it of `compat/cudart`.

use std::path::{Path, PathBuf};
use std::process::Command;

use lab_kernel_build::compiler;

use crate::arch::Arch;
use crate::{Error, headers};

/// A directory with the library in these versions, for a GPU.
pub(crate) fn folder(versions: &[u32], arch: Arch) -> Result<PathBuf, Error> {
    let root = headers::root()?;
    let folder = headers::objects(&root).join(format!("cudart.{arch}"));
    let at = |path: &Path, e: std::io::Error| Error::File {
        path: path.to_owned(),
        reason: e.to_string(),
    };
    std::fs::create_dir_all(&folder).map_err(|e| at(&folder, e))?;
    for version in versions {
        // The linker's name for it.
        let link = folder.join("libcudart.so");
        let _ = std::os::unix::fs::symlink(format!("libcudart.so.{version}"), &link);
        let library = folder.join(format!("libcudart.so.{version}"));
        if library.metadata().is_ok_and(|file| file.len() > 0) {
            continue;
        }
        // In a directory of its own: another process may do the same.
        let scratch = tempfile::tempdir_in(&folder).map_err(|e| at(&folder, e))?;
        let made = scratch.path().join("library");
        let exports = scratch.path().join("exports");
        let text = format!("libcudart.so.{version} {{ global: cuda*; __cuda*; local: *; }};\n");
        std::fs::write(&exports, text).map_err(|e| at(&exports, e))?;
        compile(&root, *version, arch, &exports, &made)?;
        std::fs::rename(&made, &library).map_err(|e| at(&library, e))?;
    }
    Ok(folder)
}

fn compile(root: &Path, version: u32, arch: Arch, exports: &Path, to: &Path) -> Result<(), Error> {
    let failed = |said: String| Error::Compile { summary: crate::program::summary(&said), said };
    let compat = root.join("shared/emulator/compat");
    let output = Command::new(compiler().map_err(failed)?)
        .args(["-std=c++17", "-O1", "-fPIC", "-shared", "-w"])
        .arg(format!("-DLAB_CUDART={version}"))
        .args(arch.flags())
        .arg("-I")
        .arg(&compat)
        .arg("-I")
        .arg(root.join("shared/emulator/include"))
        .arg(format!("-Wl,-soname,libcudart.so.{version}"))
        .arg(format!("-Wl,--version-script={}", exports.display()))
        .args(["-pthread", "-o"])
        .arg(to)
        .arg(compat.join("cudart/cudart.cpp"))
        .output()
        .map_err(|e| failed(e.to_string()))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(failed(String::from_utf8_lossy(&output.stderr).into_owned()))
    }
}
