//! The emulator by itself, on a kernel file of your own:
//!
//! ```sh
//! cargo run -p lab-emulator --example own_kernel -- FILE.cu 'kernel<float>'
//! ```
//!
//! The kernel must take `(float* x, int n)`. It runs on 1000 numbers with four blocks of 256
//! threads, checked and counted; the example prints what is wrong, or the result and what each line
//! asked of the memory system. Without arguments it runs on a kernel that forgets a barrier.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lab_emulator::{Config, Module, Options, allocate, free, host_wrote, launch};
use lab_kernel_build::Build;

/// Each block reverses its part of x, through shared memory.
const FORGETFUL: &str = "
template <class T> __global__ void reverse(T* x, int n) {
    __shared__ T part[256];
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : T(0);
    // __syncthreads() belongs here
    if (i < n) x[i] = part[255 - threadIdx.x];
}
";

const N: usize = 1000;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let file = arguments.next().map(PathBuf::from).unwrap_or_else(|| {
        let file = scratch.path().join("reverse.cu");
        std::fs::write(&file, FORGETFUL).expect("a file to write");
        file
    });
    let name = arguments.next().unwrap_or_else(|| "reverse<float>".into());
    match check(&file, &name, scratch.path()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}

fn check(file: &Path, name: &str, scratch: &Path) -> Result<(), String> {
    let object = lab_kernel_build::compile(file, &[name], &[], Build::Checked, scratch)?;
    let bytes = std::fs::read(object).map_err(|e| e.to_string())?;
    // SAFETY: it has just been compiled. The module keeps the bytes for its line tables.
    let module = unsafe { Module::load(bytes.leak()) }.map_err(|e| e.to_string())?;
    let kernel = module.kernel(name).map_err(|e| e.to_string())?;
    let types: Vec<_> = kernel.parameters().iter().map(|p| p.type_name.as_str()).collect();
    if types != ["f32*", "i32"] {
        return Err(format!("{name}: expected the parameters (float*, int), got {types:?}"));
    }
    let x = allocate(N * size_of::<f32>()).map_err(|e| e.to_string())?.cast::<f32>();
    // SAFETY: N floats were allocated.
    (0..N).for_each(|i| unsafe { x.add(i).write(i as f32) });
    host_wrote(x.cast(), true);

    let config = Config {
        grid: [4, 1, 1],
        block: [256, 1, 1],
        dynamic_shared: 0,
        cooperative: false,
        cluster: 0,
        overlap_previous: false,
    };
    let options = Options { count: true, ..Options::default() };
    let (mut pointer, mut n) = (x, N as i32);
    let arguments = [(&raw mut pointer).cast(), (&raw mut n).cast()];
    // SAFETY: the parameters were looked at above, and x has n elements.
    let outcome = unsafe { launch(&kernel, &config, &arguments, &options) };
    let outcome = outcome.map_err(|e| e.to_string()).map(|profile| {
        // SAFETY: x has n elements, of which these are the first, and the launch that wrote them is over.
        println!("x = {:?} …", unsafe { std::slice::from_raw_parts(x, 4) });
        for line in profile.lines {
            let (counts, what) = (line.counts, line.operation.name());
            let unit = if line.operation.shared() { "wavefronts" } else { "sectors" };
            println!(
                "{}: {what}: {} requests, {} {unit} ({} ideal)",
                line.place, counts.requests, counts.cost, counts.ideal
            );
        }
    });
    // SAFETY: allocated above, and used no more.
    unsafe { free(x.cast()) };
    outcome
}
