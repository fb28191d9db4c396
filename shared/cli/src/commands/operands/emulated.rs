//! The module for the emulator: its PTX as C++, compiled.

use std::path::{Path, PathBuf};

use lab_device::Build;
use lab_kernel_build::{Through, compile_through};
use lab_ptx::SCOPE;
use rayon::prelude::*;

use super::module::Module;
use crate::failure::Failure;

/// Kernels of an object.
const KERNELS: usize = 4;

/// Some of the kernels, compiled.
pub(super) struct Object {
    pub(super) bytes: Vec<u8>,
    /// Their names.
    pub(super) kernels: Vec<String>,
}

/// All kernels, in several objects that are compiled at the same time.
pub(super) fn objects(module: &Module) -> Result<Vec<Object>, Failure> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let kernels: Vec<&[(String, String)]> = module.kernels.chunks(KERNELS).collect();
    let object = |kernels: &&[(String, String)]| {
        let names: Vec<String> = kernels.iter().map(|(name, _)| name.clone()).collect();
        let bytes = object(&root, &Module::text_of(kernels), &names).map_err(Failure::Wrong)?;
        Ok(Object { bytes, kernels: names })
    };
    kernels.par_iter().map(object).collect()
}

fn object(root: &Path, text: &str, kernels: &[String]) -> Result<Vec<u8>, String> {
    let out = tempfile::tempdir().map_err(|e| e.to_string())?;
    let name = PathBuf::from("operands.ptx");
    let read = lab_ptx::Module::read(text, &name, &|file| file.to_owned());
    let translated = read.map_err(|e| e.to_string())?.translate();
    if let Some((entry, refusal)) =
        translated.entries.iter().find_map(|entry| Some((entry, entry.refusal.as_ref()?)))
    {
        return Err(format!("{}: {refusal}", entry.name));
    }
    let functions: Vec<String> =
        translated.entries.iter().map(|entry| format!("::{SCOPE}::{}", entry.cpp_name)).collect();
    // The declarations that the launches are held against.
    let declared = kernels.iter().map(|kernel| {
        format!("__global__ void {kernel}(const char* operands, char* results) {{}}\n")
    });
    let file = out.path().join("operands.cu");
    std::fs::write(&file, declared.collect::<String>()).map_err(|e| e.to_string())?;
    let helpers = root.join("shared/emulator/compat/ptx.h");
    let text = format!("#include {:?}\n{}", helpers.display().to_string(), translated.text);
    let through = Through { text: &text, functions: &functions, globals: &[] };
    let compiled = compile_through(root, &file, [kernels, &[]], through, Build::Plain, out.path())?;
    std::fs::read(compiled.object).map_err(|e| e.to_string())
}
