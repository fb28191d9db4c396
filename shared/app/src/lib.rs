//! Other people's CUDA programs, whole and as published, on the emulator.
//!
//! # The problem
//!
//! The emulator runs kernels, and a `.cu` file is more: it allocates, copies, launches and prints. To
//! check one kernel of it, one had to cut it out and to write by hand what the program does anyway.
//!
//! Here the whole file is compiled by the host's C++ compiler. A launch `k<<<grid, block>>>(x)` becomes
//! a call of `k` (`rewrite`), the runtime API's functions are headers (`../emulator/compat`) on top of a
//! small table (`host`), and each launch runs checked.
//!
//! ```text
//! main.cu ──rewrite──▶ C++ ──g++──▶ program.so ──▶ main(argc, argv)
//!                                                   │ cudaMalloc, cudaMemcpy, k<<<…>>>
//!                                                   ▼
//!                                        the emulator ──▶ what is wrong, and where
//! ```
//!
//! [`Built`] is a program that nvcc has built: it runs as it is, in a process of its own, and finds a runtime library of this
//! crate's. [`Nvcc`] builds one of what the host's compiler does not take.
//!
//! [`Single`] launches one kernel of such a file with arguments of its own.
//!
//! The program runs natively, in this process, with the rights of whoever runs it.

mod arch;
mod assembly;
mod branches;
mod built;
mod cache;
mod clusters;
mod compiling;
mod conditions;
mod cuts;
mod early;
mod facts;
mod fault;
mod given;
mod headers;
mod host;
mod instructions;
mod limit;
mod made;
mod names;
mod nvcc;
mod object;
mod program;
mod reading;
mod rewrite;
mod single;
mod sources;
mod tokens;
mod values;

use std::path::PathBuf;

pub use arch::Arch;
pub use built::Built;
pub use compiling::time_to_run;
pub use facts::Facts;
pub use given::{
    Argument, BadArgument, Buffer, Component, Element, Fill, Role, TensorName, Value, split_list,
};
pub use lab_ptx::Entry;
pub use limit::limit_memory;
pub use nvcc::Nvcc;
pub use program::{Options, Program, Report, end_without_fail};
pub use rewrite::Kernel;
pub use single::{Array, Launch, Outcome, Settings, Single};
pub use values::{Tensor, decode, read_tensor, write_tensors};

/// A program or a kernel cannot be run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read, or holds what is not understood.
    #[error("{}: {reason}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The compiler refuses it.
    #[error("{summary}")]
    Compile {
        /// One line: where, and what.
        summary: String,
        /// All that the compiler said.
        said: String,
    },
    /// The compiler took too long.
    #[error("--timeout: expected the compiler's end within {} s, got none", limit.as_secs_f32())]
    Late {
        /// How long it had.
        limit: std::time::Duration,
    },
    /// What a launch is given.
    #[error(transparent)]
    Argument(#[from] BadArgument),
    /// The launch was refused before it began.
    #[error("{0}")]
    Refused(String),
    /// The object cannot be loaded.
    #[error(transparent)]
    Module(#[from] lab_emulator::ModuleError),
    /// An environment variable of the emulator.
    #[error(transparent)]
    Option(#[from] lab_emulator::BadOption),
    /// It has no `main`.
    #[error(
        "program: expected a function main, got {}",
        if kernels.is_empty() { "no function".into() } else { format!("only {}", kernels.join(", ")) }
    )]
    NoMain {
        /// Its kernels.
        kernels: Vec<String>,
    },
    /// This process runs one already.
    #[error("program: expected the only one of this process, got another")]
    Second,
}
