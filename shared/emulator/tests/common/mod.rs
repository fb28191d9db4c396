//! Compiles a `.cu` file of this directory and launches its kernels.
#![allow(dead_code, missing_docs, unreachable_pub)]

use std::ffi::c_void;
use std::path::Path;
use std::sync::Arc;

use lab_emulator::{Config, LaunchError, Module, Options, allocate, free, host_wrote, launch};
use lab_kernel_build::Build;

pub fn module(file: &str, names: &[&str]) -> Arc<Module> {
    load(file, names, Build::Plain)
}

pub fn checked(file: &str, names: &[&str]) -> Arc<Module> {
    load(file, names, Build::Checked)
}

fn load(file: &str, names: &[&str], build: Build) -> Arc<Module> {
    let root =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("it is there");
    let source = root.join("shared/emulator/tests/kernels").join(file);
    let out = tempfile::tempdir().expect("a temporary directory");
    let object = if file.contains("compat/") {
        // Its headers include the emulator's, which must then lie there as text.
        lab_kernel_build::compile(&source, names, &[], build, out.path())
    } else {
        // With what a build has compiled in advance, where there was one.
        lab_kernel_build::compile_in(&root, &source, names, &[], build, out.path())
            .map(|made| made.object)
    };
    let object = object.expect("it compiles");
    let bytes = std::fs::read(object).expect("the object");
    // SAFETY: it has just been compiled.
    unsafe { Module::load(Box::leak(bytes.into_boxed_slice())) }.expect("it loads")
}

pub fn plain(grid: u32, block: u32) -> Config {
    Config {
        grid: [grid, 1, 1],
        block: [block, 1, 1],
        dynamic_shared: 0,
        cooperative: false,
        cluster: 0,
        overlap_previous: false,
    }
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
    unsafe { launch(&kernel, config, arguments, options) }.map(drop)
}

/// Arrays in device memory, freed together.
#[derive(Default)]
pub struct Arrays(Vec<(*mut u8, usize)>);

impl Arrays {
    pub fn new() -> Self {
        Self::default()
    }

    /// An array that nobody has written.
    pub fn unwritten<T>(&mut self, len: usize) -> *mut T {
        let bytes = len * size_of::<T>();
        let array = allocate(bytes).expect("device memory");
        // SAFETY: the allocation has these bytes.
        unsafe { array.write_bytes(0xFF, bytes) };
        self.0.push((array, bytes));
        array.cast()
    }

    /// A copy.
    pub fn of<T: Copy>(&mut self, values: &[T]) -> *mut T {
        let array = self.unwritten::<T>(values.len());
        // SAFETY: the allocation holds as many.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), array, values.len()) };
        host_wrote(array.cast(), true);
        array
    }

    /// What an array holds.
    pub fn read<T: Copy>(&self, array: *mut T) -> Vec<T> {
        let bytes = self.0.iter().find(|a| a.0 == array.cast()).expect("one of these").1;
        // SAFETY: the allocation holds as many, all of them bytes that make a T.
        unsafe { std::slice::from_raw_parts(array, bytes / size_of::<T>()) }.to_vec()
    }
}

impl Drop for Arrays {
    fn drop(&mut self) {
        for &(array, _) in &self.0 {
            // SAFETY: allocated above; the launches are over.
            unsafe { free(array) };
        }
    }
}
