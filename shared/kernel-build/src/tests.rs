//! What is compiled in advance, and what is compiled with it. Not in `common.rs`: its text is hashed.

use std::path::Path;

use crate::Build;
use crate::compile::{compile, compile_sharing, with_aligned_shared, with_first_symbols};
use crate::{
    Embed, EmbeddedSource, NotCompiled, Program, Stage, compile_embedded, compile_program,
};
use crate::{kept_in, shared_directory, shared_of};

#[test]
fn shared_arrays_lie_at_multiples_of_16() {
    let given = "\t.bss\n\t.align 4\n\t.section\t.tbss,\"awT\",@nobits\n\t.align 4\n\t.align 32\n\t.text\n\t.align 2\n";
    let aligned = given.replacen("T\",@nobits\n\t.align 4", "T\",@nobits\n\t.align 16", 1);
    assert_eq!(with_aligned_shared(given), aligned);
    assert!(aligned.contains("16"));
}

#[test]
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
fn functions_are_asked_for_in_their_first_version() {
    let given = "\tcall\texp@PLT\n\tcall\temu_log@PLT\n\tmovq\tpow@GOTPCREL(%rip), %rax\n\tcall\texpf@PLT\n";
    let asked = with_first_symbols(given.to_owned());
    let expected = "\t.symver\texp, exp@GLIBC_2.2.5\n\t.symver\tpow, pow@GLIBC_2.2.5\n";
    assert_eq!(asked.strip_prefix(given), Some(expected));
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
    let source = folder.path().join("halve.cu");
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

#[test]
fn what_programs_begin_with_is_compiled_for_flags_that_come_again_and_changes_no_code() {
    let tree = tempfile::tempdir().unwrap();
    let root = tree.path().canonicalize().unwrap();
    std::fs::create_dir(root.join("shared")).unwrap();
    let emulator = shared_directory().join("emulator");
    std::os::unix::fs::symlink(emulator, root.join("shared/emulator")).unwrap();
    let prelude =
        "#define __CUDACC__ 1\n#define __CUDA_ARCH__ EMU_ARCH\n#include \"cuda_runtime.h\"\n";
    let text = "#line 1 \"halve.cu\"\n#include <vector>\n__global__ void halve(float* x) { x[threadIdx.x] /= 2; }\n\
                int main() { return std::vector<int>(3).size() - 3; }\n";
    let compile = |defined: &str| {
        let program = Program {
            prelude: prelude.to_owned(),
            units: vec![(format!("{prelude}{text}"), "halve.cu".into())],
            flags: ["-std=c++17", "-DEMU_ARCH=800", "-DEMU_SHARED=166912", defined]
                .map(String::from)
                .to_vec(),
            libraries: vec!["-pthread".into(), "-lm".into()],
        };
        let out = tempfile::tempdir().unwrap();
        compile_program(&root, &program, Build::Checked, out.path()).unwrap();
        let assembly = std::fs::read_to_string(out.path().join("unit0.s")).unwrap();
        let is_one = |line: &&str| line.starts_with('\t') && !line.starts_with("\t.");
        assembly.lines().filter(is_one).map(str::to_owned).collect::<Vec<_>>()
    };
    let kept = || {
        let all = std::fs::read_dir(root.join("objects")).unwrap();
        all.filter(|e| e.as_ref().unwrap().path().extension().is_some_and(|e| e == "gch")).count()
    };
    let first = compile("-DONE");
    assert!(!first.is_empty());
    assert_eq!(kept(), 0, "one program is compiled faster without");
    for _ in 0..2 {
        assert!(compile("-DONE") == first);
        assert_eq!(kept(), 1);
    }
    compile("-DTWO");
    assert_eq!(kept(), 1, "other flags have come once");
    // Nobody else has made it.
    let left = std::fs::read_dir(root.join("objects")).unwrap();
    let names = left.map(|e| e.unwrap().file_name().into_string().unwrap());
    assert!(names.into_iter().all(|name| !name.ends_with(".lock")));
}

#[test]
fn a_tree_that_was_moved_is_the_one_that_is_built() {
    let moved = tempfile::tempdir().unwrap();
    let package = moved.path().join("stages/playg");
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    assert_eq!([shared_of(None), shared_of(Some(&package))], [own, own]);
    std::fs::create_dir_all(moved.path().join("shared/kernel-build/src")).unwrap();
    std::fs::write(moved.path().join("shared/kernel-build/src/lib.rs"), "").unwrap();
    assert_eq!(shared_of(Some(&package)), moved.path().join("shared"));
}

#[test]
fn a_build_embeds_what_the_variable_says() {
    let named = |name, profile| Embed::from_names(name, profile);
    for profile in ["debug", "release"] {
        assert_eq!(named(Some("all"), profile), Ok(Embed::All));
        assert_eq!(named(Some("plain"), profile), Ok(Embed::Plain));
        let said = named(Some("checked"), profile).unwrap_err();
        assert_eq!(said, "LAB_EMBED_KERNELS: expected all, plain or none, got 'checked'");
        assert_eq!(named(Some("none"), profile), Ok(Embed::None));
    }
    assert_eq!(
        [named(None, "debug"), named(Some(""), "debug")],
        [Ok(Embed::None), Ok(Embed::None)]
    );
    assert_eq!(named(None, "release"), Ok(Embed::All));

    let folder = tempfile::tempdir().unwrap();
    let (root, out) =
        (folder.path().join("demo"), folder.path().join("target/debug/build/demo-1/out"));
    std::fs::create_dir_all(root.join("kernels")).unwrap();
    std::fs::create_dir_all(&out).unwrap();
    let text = "__global__ void twice(float* x) { x[threadIdx.x] *= 2; }\n";
    std::fs::write(root.join("kernels/double.cu"), text).unwrap();
    let stage = Stage::new().kernel("kernels/double.cu", &["twice"]);
    for (embed, objects) in [
        (Embed::None, &[][..]),
        (Embed::Plain, &["double.so"]),
        (Embed::All, &["double.checked.so", "double.so"]),
    ] {
        let generated = stage.generate(&root, "demo", &out, embed).unwrap();
        let mut found: Vec<_> =
            std::fs::read_dir(&out).unwrap().map(|e| e.unwrap().path()).collect();
        found.retain(|path| path.extension().is_some_and(|e| e == "so"));
        found.sort();
        let names: Vec<_> =
            found.iter().map(|p| p.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, objects);
        assert_eq!(generated.matches("Object::embedded(include_bytes!(").count(), objects.len());
        let later = generated.matches("::lab_device::Object::at_first_use(\"demo-double.");
        assert_eq!(later.count(), 2 - objects.len());
        let kept_in = folder.path().join("target/kernels").display().to_string();
        assert_eq!(generated.contains(&kept_in), embed != Embed::All, "{generated}");
        assert!(generated.contains("place: \"demo/kernels/double.cu\""), "{generated}");
    }
}

#[test]
fn a_text_that_a_program_brings_along_is_compiled_as_its_file_is() {
    let shared = shared_directory();
    let root = shared.parent().unwrap();
    let place = "stages/playg/kernels/saxpy.cu";
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let headers: Vec<(String, String)> = crate::included(&root.join(place), &shared.join("cuda"))
        .unwrap()
        .into_iter()
        .filter_map(|path| {
            let name = path.strip_prefix(shared.join("cuda")).ok()?.display().to_string();
            Some((name, read(&path)))
        })
        .collect();
    let emulator: Vec<(String, String)> = crate::emulator_headers(&shared.join("emulator/include"))
        .unwrap()
        .into_iter()
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), read(&path)))
        .collect();
    fn lent(all: &[(String, String)]) -> Vec<(&str, &str)> {
        all.iter().map(|(name, text)| (&name[..], &text[..])).collect()
    }
    let text = read(&root.join(place));
    let (headers, emulator) = (lent(&headers), lent(&emulator));
    let source = EmbeddedSource {
        place,
        text: &text,
        headers: &headers,
        emulator: &emulator,
        instantiations: &["saxpy<float>"],
        globals: &[],
    };
    let [kept, work, out, spoiled] = [(); 4].map(|()| tempfile::tempdir().unwrap());
    let made = compile_embedded(&source, Build::Checked, kept.path(), work.path()).unwrap();
    assert!(made.warnings.is_empty(), "{:?}", made.warnings);
    let names = source.instantiations;
    compile(&root.join(place), names, &[], Build::Checked, out.path()).unwrap();
    let instructions = |object: &Path| {
        let text = read(&object.with_extension("s"));
        let is_one = |line: &&str| line.starts_with('\t') && !line.starts_with("\t.");
        text.lines().filter(is_one).map(str::to_owned).collect::<Vec<_>>()
    };
    assert!(instructions(&made.object) == instructions(&out.path().join("saxpy.checked.so")));

    let text = text.replacen("{", "{ nonsense;", 1);
    let broken = EmbeddedSource { text: &text, ..source };
    let refused = compile_embedded(&broken, Build::Checked, kept.path(), spoiled.path());
    let Err(NotCompiled::Refused(said)) = refused else { panic!("{refused:?}") };
    assert!(said.starts_with(&format!("{place} does not compile for the emulator:\n")), "{said}");
    assert!(said.contains(&format!("{place}:")) && said.contains("nonsense"), "{said}");
}
