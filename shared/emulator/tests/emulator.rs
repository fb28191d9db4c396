//! What kernels do on the emulator. One program for all of these tests: linked once, and while one waits for threads that
//! stand still the others go on. Apart is what measures time (speed.rs), and
//! what needs an address that is nobody's (faults.rs).
#![allow(missing_docs)]

mod asynchronous;
mod checks;
mod clusters;
mod common;
mod compat;
mod contract;
mod features;
mod groups;
mod overlap;
mod wgmma;
