//! Breaks kernels on purpose, to see whether their tests notice.
//!
//! A [`Mutant`] is one [`Edit`] of a kernel file or of a device header that it includes: an
//! [`Operator`] makes them from the syntax tree. A [`Bug`] is an edit that somebody once made by
//! mistake, written down in a stage's `bugs.toml`. Both go the same way: [`Sources::plant`] applies
//! the edit to a copy and compiles that, and [`Judge::judge`] runs the stage's tests against the
//! object in a child process. Mutants that change nothing a test could see are explained in
//! `equivalent.toml` ([`Equivalents`]); of many the compiler makes the same [`Code`] as of the
//! kernel as it is (Papadakis et al., "Trivial Compiler Equivalence", ICSE 2015). An [`Exercise`]
//! leaves out a piece, for a reader to write.

#![forbid(unsafe_code)]

mod bugs;
mod code;
mod edit;
mod equivalent;
mod error;
mod exercise;
mod generate;
mod judge;
mod mutant;
mod operator;
mod sources;
mod syntax;

pub use bugs::{Bug, Bugs, Catch};
pub use code::{Code, Codes};
pub use edit::Edit;
pub use equivalent::{Equivalent, Equivalents};
pub use error::Error;
pub use exercise::{Cut, Exercise, Limit, Tight};
pub use generate::{INSTRUCTIONS, mutants};
pub use judge::{How, Judge, Verdict};
pub use mutant::Mutant;
pub use operator::Operator;
pub use sources::{Kernel, Planted, Sources, Workspace};
