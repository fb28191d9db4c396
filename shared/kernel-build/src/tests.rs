//! What is compiled in advance, and what is compiled with it. Not in `common.rs`: its text is hashed.

use std::path::Path;

use crate::Build;
use crate::compile::{compile, compile_sharing, with_aligned_shared};
use crate::kept_in;

#[test]
fn shared_arrays_lie_at_multiples_of_16() {
    let given = "\t.bss\n\t.align 4\n\t.section\t.tbss,\"awT\",@nobits\n\t.align 4\n\t.align 32\n\t.text\n\t.align 2\n";
    let aligned = given.replacen("T\",@nobits\n\t.align 4", "T\",@nobits\n\t.align 16", 1);
    assert_eq!(with_aligned_shared(given), aligned);
    assert!(aligned.contains("16"));
}

#[test]
fn it_is_made_once_and_changes_no_code() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("kept");
    let source = folder.path().join("double.cu");
    let text = "__global__ void twice(float* x) { x[threadIdx.x] *= 2; __syncthreads(); }\n";
    std::fs::write(&source, text).unwrap();
    for build in [Build::Plain, Build::Checked] {
        let assembly = folder.path().join(build.file_name("double")).with_extension("s");
        let instructions = || {
            let text = std::fs::read_to_string(&assembly).unwrap();
            let is_one = |line: &&str| line.starts_with('\t') && !line.starts_with("\t.");
            text.lines().filter(is_one).map(str::to_owned).collect::<Vec<_>>()
        };
        let names = ["twice"];
        compile(&source, &names, &[], build, folder.path()).unwrap();
        let alone = instructions();
        let mut made = Vec::new();
        for _ in 0..2 {
            compile_sharing(&source, &names, &[], build, folder.path(), &kept).unwrap();
            assert!(!alone.is_empty() && instructions() == alone);
            made.push(std::fs::read_dir(&kept).unwrap().count());
        }
        let expected = if build == Build::Plain { 1 } else { 2 };
        assert_eq!(made, [expected; 2]);
    }
}

#[test]
fn a_header_that_is_not_included_is_missed() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("half.cu");
    std::fs::write(&source, "__global__ void zero(__half* x) { *x = __half(0.0f); }\n").unwrap();
    let (out, names) = (folder.path(), ["zero"]);
    let said = compile_sharing(&source, &names, &[], Build::Plain, out, out).unwrap_err();
    assert!(said.contains("__half"), "{said}");
}

#[test]
fn workspaces_that_build_into_one_directory_share_what_is_kept() {
    for (out, kept) in [
        ("lab/target/debug/build/x-1/out", "lab/target/kernels"),
        ("lab/target/candle/debug/build/x-1/out", "lab/target/kernels"),
        ("lab/target/x86_64-unknown-linux-gnu/debug/build/x-1/out", "lab/target/kernels"),
        ("elsewhere/debug/build/x-1/out", "elsewhere/kernels"),
    ] {
        assert_eq!(kept_in(Path::new(out)), Path::new(kept), "{out}");
    }
}
