//! Who compiles a file of CUDA C++.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use lab_app::{Nvcc, Options};

use crate::failure::CheckFailure;
use crate::own;

/// What reads a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Front {
    /// The host's C++ compiler, which needs nothing of NVIDIA's
    #[default]
    Host,
    /// NVIDIA's compiler, if it is installed: no GPU is needed
    Nvcc,
    /// The host's compiler, and nvcc where that refuses the file
    Auto,
}

/// What a message about a file that the host's compiler refuses ends with, where nvcc is installed. A header that is missing it
/// does not have either.
pub(crate) fn hint(refusal: &str) -> String {
    if refusal.contains("No such file") {
        return String::new();
    }
    match Nvcc::find() {
        Ok(nvcc) => format!(
            "; {} is installed: --front nvcc takes what NVIDIA's compiler takes",
            nvcc.name()
        ),
        Err(_) => String::new(),
    }
}

/// A file of CUDA C++ as a module of PTX by nvcc.
pub(crate) fn module(file: &Path, options: &Options) -> Result<PathBuf, CheckFailure> {
    let nvcc = Nvcc::find().map_err(|error| CheckFailure::Unavailable(error.to_string()))?;
    let module =
        nvcc.module(file, options).map_err(|error| CheckFailure::Usage(error.to_string()))?;
    note!("{}: {} has read {}", own::name(), nvcc.name(), file.display());
    Ok(module)
}
