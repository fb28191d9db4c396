//! Objects that stand in for embedded ones: how a broken kernel is run without building the tool
//! anew.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::{Error, KernelSource};

/// The environment variable that names a directory of kernel objects. The emulator runs those that
/// are there ([`KernelSource::object_file`]) in place of the embedded ones.
pub const OBJECTS_VARIABLE: &str = "LAB_KERNEL_OBJECTS";

/// The directory, where one is named; asked for once a process.
pub(crate) fn directory() -> Result<Option<&'static Path>, Error> {
    static DIRECTORY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let named = DIRECTORY.get_or_init(|| {
        std::env::var_os(OBJECTS_VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from)
    });
    let Some(path) = named else { return Ok(None) };
    let reason = match std::fs::metadata(path) {
        Ok(there) if there.is_dir() => return Ok(Some(path)),
        Ok(_) => "a file".to_owned(),
        Err(e) => e.to_string(),
    };
    Err(Error::Replacement {
        expected: "a directory of kernel objects",
        path: path.clone(),
        reason,
    })
}

impl KernelSource {
    /// The file that replaces its object, `CRATE-NAME.so`; of its other objects, with a `suffix`
    /// before the ending.
    pub fn object_file(&self, suffix: &str) -> String {
        format!("{}-{}{suffix}.so", self.crate_name, self.name)
    }

    /// Where its replacement is, if there is one.
    ///
    /// # Errors
    /// [`OBJECTS_VARIABLE`] names no directory.
    pub fn replaced_by(&self, suffix: &str) -> Result<Option<PathBuf>, Error> {
        let file = directory()?.map(|d| d.join(self.object_file(suffix)));
        Ok(file.filter(|f| f.exists()))
    }

    /// The replacement's bytes, read once and kept for as long as the process runs: loaded kernels
    /// point into their object.
    pub(crate) fn replacement(&self, suffix: &str) -> Result<Option<&'static [u8]>, Error> {
        static READ: OnceLock<Mutex<HashMap<PathBuf, &'static [u8]>>> = OnceLock::new();
        let Some(path) = self.replaced_by(suffix)? else { return Ok(None) };
        let mut read =
            READ.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bytes) = read.get(&path) {
            return Ok(Some(bytes));
        }
        match std::fs::read(&path) {
            Ok(bytes) => {
                let bytes: &'static [u8] = bytes.leak();
                read.insert(path, bytes);
                Ok(Some(bytes))
            }
            Err(e) => {
                let expected = "kernel objects that can be read";
                Err(Error::Replacement { expected, path, reason: e.to_string() })
            }
        }
    }
}
