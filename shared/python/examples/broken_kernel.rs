//! A kernel of `vlstm_fw_v1` without one of its barriers, as an object that takes the place of the right one: so that a test
//! of the Python package sees what `vlstm.check` says of it.
//!
//! ```sh
//! cargo run -p vlstm-python --example broken_kernel -- target/broken
//! LAB_KERNEL_OBJECTS=target/broken python -c '…'
//! ```

use std::error::Error;
use std::path::Path;

use lab_kernel_build::{Build, compile_in};
use vlstm_fw_v1::kernels::ONLINE;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("expected a directory to write to, got none")?;
    let directory = Path::new(&directory);
    std::fs::create_dir_all(directory)?;
    let barrier = "__syncthreads();  // a thread reads rows of Q and K";
    if !ONLINE.source.contains(barrier) {
        return Err(format!("expected '{barrier}' in {}, got none", ONLINE.file).into());
    }
    let source = directory.join(format!("{}.cu", ONLINE.name));
    std::fs::write(&source, ONLINE.source.replacen(barrier, "//", 1))?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let names = ONLINE.instantiations;
    let compiled = compile_in(&root, &source, names, &[], Build::Checked, directory)?;
    let object = directory.join(ONLINE.object_file(".checked"));
    std::fs::rename(compiled.object, &object)?;
    println!("{}", object.display());
    Ok(())
}
