//! The checker of the lab on its own: anybody's kernels and programs, looked at on the emulator.
//!
//! # The problem
//!
//! The tool `lab` knows the lab's own stages, and is built with all of them. Who wants to check a file needs none
//! of that: here are the commands for files alone, and a tool that `cargo install` builds without the stages. `lab`
//! itself takes these commands from here.
//!
//! ```text
//! lab-checker check FILE.cu --kernel k --grid 8 --block 128 --arg 'x=in:f32[n]' --arg n=1000
//! lab-checker app main.cu -- ARGUMENTS
//! ```

/// A line on stdout, as `println!` prints it, but that a full disk or a closed pipe does not end the process: [`out`].
macro_rules! say {
    () => { $crate::out::line(format_args!("")) };
    ($($text:tt)*) => { $crate::out::line(format_args!($($text)*)) };
}

/// A line on stderr, likewise.
macro_rules! note {
    ($($text:tt)*) => { $crate::out::note(format_args!($($text)*)) };
}

pub mod app;
mod arguments;
pub mod counted;
pub mod debug;
mod failure;
mod finding;
pub mod front;
pub mod kernel;
pub mod out;
pub mod own;
mod stdout;
pub mod table;
pub mod usage;
pub mod watch;
pub mod words;

pub use failure::CheckFailure;
pub use finding::{check_target, finding_json};
