//! The emulator by itself, on a kernel file of your own:
//!
//! ```sh
//! cargo run -p lab-emulator --example own_kernel -- FILE.cu 'kernel<float>'
//! ```
//!
//! The kernel must take `(float* x, int n)`. It runs on 1000 numbers with four blocks of 256
//! threads, in three orders; the example says whether they agree, or what went wrong and where.
//! Without arguments it runs on a kernel that forgets a barrier, and the orders do not agree.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use lab_emulator::{Config, Module, Options, Order, launch};

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

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let file = arguments.next().map(PathBuf::from).unwrap_or_else(|| {
        let file = scratch.path().join("reverse.cu");
        std::fs::write(&file, FORGETFUL).expect("a file to write");
        file
    });
    let name = arguments.next().unwrap_or_else(|| "reverse<float>".into());
    match compare_orders(&file, &name, scratch.path()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

fn compare_orders(file: &Path, name: &str, scratch: &Path) -> Result<bool, String> {
    let object =
        lab_kernel_build::compile(file, &[name], &[], lab_kernel_build::Build::Plain, scratch)?;
    let bytes = std::fs::read(object).map_err(|e| e.to_string())?;
    // The module keeps the bytes for its line tables.
    let module = Module::load(bytes.leak()).map_err(|e| e.to_string())?;
    let kernel = module.kernel(name).map_err(|e| e.to_string())?;
    let types: Vec<_> = kernel.parameters().iter().map(|p| p.type_name).collect();
    if types != ["f32*", "i32"] {
        return Err(format!("{name}: expected the parameters (float*, int), got {types:?}"));
    }
    let config =
        Config { grid: [4, 1, 1], block: [256, 1, 1], dynamic_shared: 0, cooperative: false };
    let mut results = Vec::new();
    for order in [Order::Forward, Order::Reverse, Order::Random(1)] {
        let mut x: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let (mut pointer, mut n) = (x.as_mut_ptr(), x.len() as i32);
        let mut arguments = [(&raw mut pointer).cast(), (&raw mut n).cast()];
        let options = Options { order, ..Options::default() };
        // SAFETY: the parameters were looked at above, and x has n elements.
        unsafe { launch(&kernel, &config, &mut arguments, &options) }.map_err(|e| e.to_string())?;
        println!("{order:?}: {:?} …", &x[..4]);
        results.push(x);
    }
    let bits = |x: &[f32]| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let agree = results.iter().all(|r| bits(r) == bits(&results[0]));
    println!(
        "{}",
        if agree { "all orders agree" } else { "the result depends on the order: a race" }
    );
    Ok(agree)
}
