//! An object that was compiled with other headers is refused, not run.

use std::path::Path;

use lab_emulator::{Module, ModuleError};
use lab_kernel_build::{Build, compile, compile_in};

/// Compiles a kernel with copies of the headers, `old` replaced by `new` in one of them.
fn load_with(header: &str, old: &str, new: &str) -> Result<(), ModuleError> {
    let root = tempfile::tempdir().expect("a temporary directory");
    let include = root.path().join("shared/emulator/include");
    std::fs::create_dir_all(&include).expect("a folder for the headers");
    let headers = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
    for file in std::fs::read_dir(headers).expect("the headers") {
        let file = file.expect("a header").path();
        let name = file.file_name().expect("a name").to_owned();
        let mut text = std::fs::read_to_string(&file).expect("text");
        if name == header {
            assert!(text.contains(old), "{header} has no {old}");
            text = text.replace(old, new);
        }
        std::fs::write(include.join(name), text).expect("a copy");
    }
    let source = root.path().join("empty.cu");
    std::fs::write(&source, "__global__ void empty() {}\n").expect("a kernel");
    let object = compile_in(root.path(), &source, &["empty"], &[], Build::Plain, root.path());
    let bytes = std::fs::read(object.expect("it compiles").object).expect("the object");
    // SAFETY: it has just been compiled; one with another contract is refused before anything of it runs.
    unsafe { Module::load(bytes.leak()) }.map(drop)
}

/// What was asked of a kernel stays where it is when the object is unloaded.
#[test]
fn names_outlive_their_object() {
    let root = tempfile::tempdir().expect("a temporary directory");
    let source = root.path().join("copy.cu");
    std::fs::write(
        &source,
        "__global__ void copy(const float* from, float* to) { *to = *from; }\n",
    )
    .expect("a kernel");
    let object = compile(&source, &["copy"], &[], Build::Plain, root.path()).expect("it compiles");
    let bytes = std::fs::read(object).expect("the object");
    // SAFETY: it has just been compiled.
    let module = unsafe { Module::load(bytes.leak()) }.expect("it loads");
    let kernel = module.kernel("copy").expect("the kernel");
    let (name, parameters) = (kernel.name().to_owned(), kernel.parameters().to_vec());
    drop((kernel, module));
    let types: Vec<&str> = parameters.iter().map(|p| p.type_name.as_str()).collect();
    assert_eq!((&name[..], &types[..]), ("copy", &["const f32*", "f32*"][..]));
}

#[test]
fn headers_of_this_version_are_accepted() {
    load_with("contract.def", "EMU_COORDINATE(THREAD_X)", "EMU_COORDINATE( THREAD_X )").unwrap();
}

#[test]
fn headers_of_another_version_are_refused() {
    for (header, old, new) in [
        ("contract.def", "EMU_HOOK(, void, grid_sync, (), ())\n", ""),
        ("contract.def", "uint32_t mask", "uint64_t mask"),
        ("contract.def", "EMU_BARRIER(AND", "EMU_BARRIER(XOR, \"none\")\nEMU_BARRIER(AND"),
        ("contract.def", "SCOPE_DEVICE, 1", "SCOPE_DEVICE, 2"),
        ("emulator_abi.h", "    float c[4];", "    float c[8];"),
    ] {
        let found = load_with(header, old, new);
        assert!(
            matches!(found, Err(ModuleError::Contract { got: Some(_), .. })),
            "{new}: {found:?}"
        );
    }
    let found = load_with("glue.cpp", "emu_contract", "emu_other");
    assert!(matches!(found, Err(ModuleError::Contract { got: None, .. })), "{found:?}");
}
