//! Runs CUDA C++ kernels on the CPU, unchanged, and finds what is wrong with them.
//!
//! # The problem
//!
//! A kernel is only true on a GPU, and most machines have none. Worse, a GPU hides mistakes: a race
//! that the hardware's timing happens to resolve, an index one past the end that lands in somebody
//! else's memory, an accumulator that starts at zero by luck. The result is right today, on this
//! card.
//!
//! Here the host's C++ compiler builds the same `.cu` file against headers that stand in for CUDA's
//! (`include/`), and this runtime gives every CUDA thread a coroutine: `__syncthreads`, shuffles,
//! votes and a grid-wide sync suspend it until the others have come. Of each kernel there are two
//! builds. The plain one is fast. In the checked one, every access is looked at.
//!
//! ```text
//! kernel.cu ──lab-kernel-build (g++)──▶ kernel.so ──Module::load──▶ Kernel ──launch──▶ result
//!                                          │ emu_barrier, emu_warp, …     ▲       or a report:
//!                                          └──────── hooks ───────────────┘       who, what, where
//! ```
//!
//! # A kernel that is wrong
//!
//! Each block reverses its part of `x` through shared memory. It forgets that the others may not
//! have written theirs yet. Forward, thread by thread, it gives wrong numbers; on a GPU, with 32
//! threads, it mostly gives the right ones.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use lab_emulator::{Check, Config, LaunchError, Module, Options, allocate, host_wrote, launch};
//! use lab_kernel_build::{Build, compile};
//!
//! let source = |barrier: &str| format!("
//! __global__ void reverse(float* x) {{
//!     __shared__ float part[64];
//!     part[threadIdx.x] = x[threadIdx.x];
//!     {barrier}
//!     x[threadIdx.x] = part[63 - threadIdx.x];
//! }}");
//! let run = |barrier: &str| -> Result<Result<_, LaunchError>, Box<dyn std::error::Error>> {
//!     let directory = tempfile::tempdir()?;
//!     let file = directory.path().join("reverse.cu");
//!     std::fs::write(&file, source(barrier))?;
//!     let object = compile(&file, &["reverse"], &[], Build::Checked, directory.path())?;
//!     // SAFETY: it has just been compiled.
//!     let module = unsafe { Module::load(std::fs::read(object)?.leak())? };
//!     let kernel = module.kernel("reverse")?;
//!
//!     let mut x = allocate(64 * 4)?.cast::<f32>();
//!     // SAFETY: 64 floats were allocated.
//!     (0..64).for_each(|i| unsafe { x.add(i).write(i as f32) });
//!     host_wrote(x.cast(), true);
//!     let config = Config {
//!         grid: [1, 1, 1],
//!         block: [64, 1, 1],
//!         dynamic_shared: 0,
//!         cooperative: false,
//!         cluster: 0,
//!         overlap_previous: false,
//!     };
//!     let arguments = [(&raw mut x).cast()];
//!     // SAFETY: one argument, a pointer to 64 floats, as the kernel declares.
//!     Ok(unsafe { launch(&kernel, &config, &arguments, &Options::default()) })
//! };
//!
//! let Err(LaunchError::Kernel { findings, .. }) = run("")? else { panic!("it is a race") };
//! let race = &findings.all[0];
//! assert_eq!(race.kind.check(), Check::Race);
//! println!("{race}");
//! # assert!(race.message.starts_with("race on part["));
//!
//! assert!(run("__syncthreads();")?.is_ok(), "the fix");
//! # Ok(())
//! # }
//! ```
//!
//! The report names the array and the element, both accesses and the threads that made them, and
//! what would order them:
//!
//! ```text
//! race on part[32] (shared memory, f32)
//!   read at reverse.cu:6:22 by block (0,0,0), thread (31,0,0)
//!   write of 4 bytes at reverse.cu:4:23 by block (0,0,0), thread (32,0,0)
//!   fix: __syncthreads() between the two
//!   seen 32 times
//! ```
//!
//! # What the checks see
//!
//! * **Memory** ([`Check::Memory`]): addresses outside of every allocation and every shared array,
//!   which are kept apart so that the end of one is not the start of the next; freed memory;
//!   misaligned vectors, with static shared memory laid out as ptxas does; indices that an array in
//!   registers does not have; `memcpy` and `memset`; shared memory of a cluster's block that may not have begun, or has exited.
//! * **Init** ([`Check::Init`]): bytes that nobody wrote, in device and shared memory, byte by byte;
//!   local variables that never got a value, once that, or a sum that it is in, reaches memory.
//! * **Race** ([`Check::Race`]): two accesses to the same bytes, one of them a write, that nothing
//!   orders, within a warp, a block, or between blocks. Order comes from barriers, `__syncwarp`, a
//!   cluster-wide or grid-wide sync, and from fences with atomics or volatile accesses by the rules of the PTX memory
//!   model; data that a volatile flag announces have it by a fence alone. An asynchronous copy is under way until it was waited for, and what one has written that an
//!   mbarrier counts is known to those alone who have waited for its phase; what threads have written is
//!   seen by bulk copies and wgmma behind a `fence.proxy.async` only. Operands and accumulators of wgmma
//!   are its own until it was waited for. A launch that overlaps the one before it
//!   ([`Config::overlap_previous`]) races with that one until a `griddepcontrol.wait`. Atomics of two blocks race
//!   where one is for a block alone. What `__ldg()` reads, the same launch must not write.
//! * **Sync** ([`Check::Sync`]): deadlocks, with where each thread waits and which arrivals or bytes are
//!   missing; mbarriers that are used against their rules; named barriers whose calls disagree; registers
//!   that `setmaxnreg` asks for and nobody gives back; barriers that a block's threads reach at different
//!   places; masks that name the wrong lanes; shuffles from absent ones.
//!
//! A race is found in whatever order the threads ran, for it is a matter of order by barriers and not
//! of time. All threads that write the same value race, and are let off. So that a forgotten barrier
//! reads as one complaint, unwritten bytes that somebody else writes without being ordered are told as a
//! race only.
//!
//! With [`Options::count`] a checked launch also counts what each instruction asks of the memory
//! system, as [`Profile`]: requests, 32-byte sectors, wavefronts of shared memory. With [`Options::trace`] as well it
//! tells a [`Tracer`] what each thread does, in the order in which it happens.
//!
//! # What they cannot see
//!
//! * What a run does not do. A guard that is wrong for sizes that no test has is not found.
//! * Local variables that only ever decide and are never stored; arrays that a kernel points into
//!   in other ways than by index.
//! * `__device__` variables have no bounds: they are watched for races only, and not between launches that
//!   overlap.
//! * More than three accesses of one 4-byte granule are not remembered, and a block's clock has
//!   8191 ticks between two barriers. Beyond either a race may be missed; neither makes one up.
//! * What only the GPU's compiler does: fused multiply-adds, its own reordering within the rules.
//!
//! # What holds in both builds
//!
//! * A **block** runs on one OS thread, its threads in turns ([`Order`]: forward, reverse, seeded
//!   random, warp by warp, some warps starved). Blocks of a plain launch spread over all cores; a checked one runs on one,
//!   so that it is the same every time. A cooperative launch keeps all its blocks resident, each on
//!   an OS thread of its own; so do the blocks of a cluster, one cluster after the other.
//! * **Shared memory** is that OS thread's `thread_local` storage, or for the dynamic array a
//!   buffer; every block finds it filled with `0xFF`, which is NaN in each float format.
//! * **Copies** that are asynchronous land as late as they may ([`Landing`]: or at once, or at random).
//! * **Nothing hangs.** A deadlock is seen at once, an endless spin after [`Options::stall_limit`];
//!   both reports say where each thread stands. A bad address, a division by zero or a stack overflow
//!   ends the launch, not the process.
//! * Arithmetic is the host's, without contraction to fused multiply-add: results agree with a
//!   GPU to rounding, not to the bit.
//!
//! # Cost
//!
//! Checked, a tiled matrix product takes 7 times as long as plain, with counters 10 times
//! (`tests/speed.rs`). A byte of memory that a checked kernel touches has 8 bytes of shadow.
//!
//! The crate is usable by itself: `examples/own_kernel.rs` checks a `.cu` file of yours.
//!
//! # Where each part lives
//!
//! From the top down; nothing imports from above itself.
//!
//! | | |
//! |---|---|
//! | [`launch`] (`grid`) | grids: which blocks run when |
//! | `block` | one block: its threads' turns, barriers, collectives |
//! | `watchdog` | signals and stalls |
//! | `hooks` | what kernels call, a function each |
//! | `running` | the thread that runs, as those functions see it |
//! | `check` | the checks of each access, and what they find |
//! | `cluster`, `counters`, `trace`, `clock` | what blocks see of each other; what is counted, and told; who knows what |
//! | `grids` | earlier launches that may not have ended |
//! | `memory`, `shared`, `shadow` | device memory, shared memory, what is remembered of each granule |
//! | `module`, `names`, `symbols` | objects, and their debugging information |
//! | `input` | files and texts of others |
//! | `thread`, `stack`, `geometry`, `access` | the state of a thread, its stack; the sizes of a launch; one access |
//! | `completion` | what is in flight: copies, mbarriers, products of wgmma, and when each lands |
//! | `warp`, `matrix` | what a collective computes; the same for ldmatrix and mma |
//! | `abi` | the contract with compiled kernels: `include/contract.def` |
//!
//! # A new instruction
//!
//! A warp collective is a line of `include/contract.def` and what it computes in `warp` (in `matrix`, if it
//! is about matrices); anything else that the runtime has to do is a line there and a function in `hooks`. A
//! device header has the PTX for the GPU, and calls `emu_warp` or the hook's `emu_` function for the
//! emulator. The line makes the rest: constants and declarations for kernels, the forwarding function in
//! every object, the types on this side. An object that was compiled with other lines is refused
//! ([`ModuleError::Contract`]).

#[cfg(not(all(target_os = "linux", target_pointer_width = "64")))]
compile_error!("the emulator knows 64-bit Linux only: signals, thread-local storage, ELF");

mod abi;
mod access;
mod block;
mod callers;
mod check;
mod clock;
mod cluster;
mod completion;
mod copied_out;
mod counters;
mod crowd;
mod geometry;
mod grid;
mod grids;
mod hooks;
mod input;
mod locals;
mod matrix;
mod memory;
mod module;
mod named;
mod names;
mod order;
mod registers;
mod report;
mod running;
mod shadow;
mod shared;
mod stack;
mod starve;
mod symbols;
mod thread;
mod trace;
mod warp;
mod watchdog;

pub use cluster::MAX_CLUSTER;
pub use completion::tensor::TensorMap;
pub use completion::{BadLanding, Landing};
pub use copied_out::{
    host_copied_out, host_gave_back, host_overwrote, keep_writes, watch_host, write_beside,
};
pub use counters::{Counts, Line, Operation, Profile, Sample};
pub use crowd::MAX_COOPERATIVE_BLOCKS;
pub use grid::{
    BadOption, Config, LaunchError, MAX_DYNAMIC_SHARED, MAX_THREADS_PER_BLOCK, Options, launch,
};
pub use grids::{Grids, exchange_grids, grids_ended};
pub use hooks::in_kernel;
pub use input::{host_memory, open_file, read_file, read_text, repeated_name, shown, shown_lines};
pub use memory::{
    NotAdopted, Shared, adopt, allocate, disown, forget_pages, free, host_copied,
    host_copied_bytes, host_took_bytes, host_wrote, host_wrote_bytes, never_written, share,
};
pub use module::{
    BlockSize, Field, Kernel, Module, ModuleError, Parameter, Target, cache_directory,
    write_atomically, write_atomically_by,
};
pub use order::{BadOrder, Order};
pub use report::{Access, Check, Finding, Findings, Kind, Standing, Suspect};
pub use stack::STACK_BYTES;
pub use trace::{Array, Event, Mbarrier, Place, Signal, Step, Tracer};
pub use watchdog::Cancel;
