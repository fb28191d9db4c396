//! Compiles a `.cu` file of this directory and launches its kernels.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

use lab_emulator::{Config, LaunchError, Module, Options, launch};

pub fn module(file: &str, names: &[&str]) -> Arc<Module> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernels").join(file);
    let out = tempfile::tempdir().expect("a temporary directory");
    let object = lab_kernel_build::compile(&source, names, &[], out.path()).expect("it compiles");
    let bytes = std::fs::read(object).expect("the object");
    Module::load(Box::leak(bytes.into_boxed_slice())).expect("it loads")
}

pub fn plain(grid: u32, block: u32) -> Config {
    Config { grid: [grid, 1, 1], block: [block, 1, 1], dynamic_shared: 0, cooperative: false }
}

/// A kernel argument: the address of a value.
pub fn arg<T>(value: &mut T) -> *mut c_void {
    std::ptr::from_mut(value).cast()
}

pub fn run(
    module: &Arc<Module>,
    kernel: &str,
    config: &Config,
    arguments: &mut [*mut c_void],
    options: &Options,
) -> Result<(), LaunchError> {
    let kernel = module.kernel(kernel).expect("the kernel");
    // SAFETY: each test passes what its kernel declares.
    unsafe { launch(&kernel, config, arguments, options) }
}
