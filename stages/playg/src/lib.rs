//! `playg`, the playground: where a reader meets CUDA, one operation a kernel.
//!
//! Each operation is a version of this stage, in a module of its own that says what its kernel
//! does; the kernels are in `kernels/`.

mod saxpy;
mod softmax;
mod sum;

use lab_harness::Stage;

pub use saxpy::Saxpy;
pub use softmax::Softmax;
pub use sum::Sum;

#[allow(missing_docs)]
pub mod kernels {
    //! The kernel files, embedded by the build script.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// This stage.
pub static STAGE: Stage = Stage {
    name: "playg",
    teaches: "grids, warps and blocks: a vector, a row, a whole array at a time",
    versions: &[&Saxpy, &Softmax::TWO_PASS, &Softmax::ONLINE, &Sum],
    kernels: kernels::KERNELS,
};

/// Threads of every block here.
const THREADS: u32 = 256;

/// Blocks for a grid-stride loop over `packs` packs: no more than the work needs, no more than
/// fill the device.
fn grid_stride_blocks(device: &lab_device::Device, packs: usize) -> u32 {
    let facts = device.facts();
    let full = facts.multiprocessors * (facts.max_threads_per_multiprocessor / THREADS);
    packs.div_ceil(THREADS as usize).clamp(1, full as usize) as u32
}
