//! Runs CUDA C++ kernels on the CPU, unchanged.
//!
//! A kernel is only true on a GPU, and most machines have none. Here the host's C++ compiler
//! builds the same `.cu` file against headers that stand in for CUDA's (`include/`), and this
//! runtime gives every CUDA thread a coroutine: `__syncthreads`, shuffles, votes and a grid-wide
//! sync suspend it until the others have come.
//!
//! ```text
//! kernel.cu ──lab-kernel-build (g++)──▶ kernel.so ──Module::load──▶ Kernel ──launch──▶ result
//!                                          │ emu_barrier, emu_warp, …     ▲       or a report:
//!                                          └──────── hooks ───────────────┘       who waits where
//! ```
//!
//! What holds and what does not:
//!
//! * A **block** runs on one OS thread, its threads in turns ([`Order`]: forward, reverse, seeded
//!   random). Blocks of a plain launch spread over all cores; a cooperative launch keeps all its
//!   blocks resident, each on an OS thread of its own.
//! * **Shared memory** is that OS thread's `thread_local` storage, or for the dynamic array a
//!   buffer; every block finds it filled with `0xFF`, which is NaN in each float format.
//! * **Nothing hangs.** A deadlock is seen at once, an endless spin after [`Options::stall_limit`];
//!   both reports say where each thread stands, as `file:line:column`. A bad address, a division
//!   by zero or a stack overflow ends the launch, not the process.
//! * Arithmetic is the host's, without contraction to fused multiply-add: results agree with a
//!   GPU to rounding, not to the bit.
//!
//! The crate is usable by itself: `examples/own_kernel.rs` runs a `.cu` file of yours in several
//! orders, and finds a forgotten barrier that way.
//!
//! Where each part lives: [`launch`] (grids), `block` (turns and barriers), `warp` (what a
//! collective computes), `stack` (coroutine stacks), `hooks` (what kernels call), `watchdog`
//! (signals, stalls), `module` and `symbols` (objects and their line tables), `report`.

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("the emulator knows 64-bit Linux only: signals, thread-local storage, ELF");

mod block;
mod check;
mod clock;
mod counters;
mod grid;
mod hooks;
mod memory;
mod module;
mod names;
mod order;
mod report;
mod shadow;
mod stack;
mod symbols;
mod warp;
mod watchdog;

pub use counters::{Counts, Line, Operation, Profile, Sample};
pub use grid::{
    BadOption, Config, LaunchError, MAX_COOPERATIVE_BLOCKS, MAX_DYNAMIC_SHARED,
    MAX_THREADS_PER_BLOCK, Options, launch,
};
pub use memory::{allocate, free, host_copied, host_wrote};
pub use module::{Kernel, Module, ModuleError, Parameter, cache_directory, write_atomically};
pub use order::{BadOrder, Order};
pub use report::{Access, Check, Finding, Findings, Kind, Standing};
pub use stack::STACK_BYTES;
