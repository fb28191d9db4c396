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

/// Headers that come with CUDA, and that the lab has none of.
const OF_CUDA: [&str; 4] = ["cub/", "thrust/", "cuda/", "cooperative_groups/"];

/// What a message about a file that the host's compiler refuses ends with, where nvcc is installed. A header that is missing it
/// does not have either, unless it comes with CUDA.
pub(crate) fn hint(refusal: &str) -> String {
    let missing = refusal.lines().find(|line| line.contains("No such file"));
    if let Some(line) = missing {
        if !OF_CUDA.iter().any(|folder| line.contains(&format!("error: {folder}"))) {
            return String::new();
        }
        if Nvcc::find().is_err() {
            return "; the lab does not have this header: --front nvcc reads CUDA's own, where nvcc is installed".into();
        }
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

#[cfg(test)]
mod tests {
    use super::hint;

    #[test]
    fn a_header_of_cuda_that_is_missing_may_be_with_nvcc() {
        let missing = |header| format!("x.cu:1:10: error: {header}: No such file or directory");
        assert!(hint(&missing("cub/cub.cuh")).contains("--front nvcc"));
        assert_eq!(hint(&missing("nowhere.h")), "");
    }
}
