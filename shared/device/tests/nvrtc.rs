//! NVRTC needs no GPU. Where there is no toolkit at all these tests say so and stop; CI has one.
#![allow(missing_docs)]

use lab_device::nvrtc::Nvrtc;
use lab_device::{Error, KernelFile, KernelSource, Object};

/// Of what is asked of NVRTC alone.
fn embedded(file: KernelFile) -> KernelSource {
    // SAFETY: its objects are empty: nothing is loaded.
    unsafe { KernelSource::new(file) }
}

fn source(text: &'static str) -> KernelSource {
    embedded(file(text))
}

fn file(text: &'static str) -> KernelFile {
    KernelFile {
        crate_name: "test",
        name: "t",
        file: "t.cu",
        place: "t.cu",
        source: text,
        headers: &[("lab/t.cuh", "template <class T> __device__ T twice(T v) { return v + v; }\n")],
        instantiations: &[],
        templates: &[],
        globals: &[],
        least_arch: "",
        spills: 0,
        plain: Object::embedded(&[]),
        checked: Object::embedded(&[]),
        kept_in: "",
    }
}

fn nvrtc() -> Option<&'static Nvrtc> {
    match Nvrtc::get() {
        Ok(nvrtc) => Some(nvrtc),
        Err(error) => {
            assert!(std::env::var_os("LAB_REQUIRE_NVRTC").is_none(), "NVRTC was required: {error}");
            println!("skipped, no NVRTC here: {error}");
            None
        }
    }
}

#[test]
fn a_template_compiles_for_every_architecture_with_its_resources() {
    let Some(nvrtc) = nvrtc() else { return };
    let source = source(
        "#include <lab/t.cuh>\n#include <cuda_fp16.h>\n#include <cooperative_groups.h>\n\
         template <class T> __global__ void f(T* x) { __shared__ T s[32];\n\
         s[threadIdx.x] = x[threadIdx.x]; __syncthreads(); x[threadIdx.x] = twice(s[31 - threadIdx.x]); }",
    );
    for arch in ["sm_75", "sm_80", "sm_89", "sm_90a"] {
        let image = nvrtc.compile(&source, &["f<float>", "f<__half>"], arch).unwrap();
        assert!(image.cubin.starts_with(b"\x7fELF"), "{arch}");
        let symbol = &image.symbols["f<float>"];
        let resources = image.resources();
        assert_eq!(resources.len(), 2, "{}", image.log);
        let float = &resources[symbol];
        assert!(float.registers > 0 && float.shared == 128 && float.spills == (0, 0), "{float:?}");
    }
}

#[test]
fn ptx_says_from_which_line_it_comes() {
    let Some(nvrtc) = nvrtc() else { return };
    let source = source(
        "template <class T> __global__ void f(T* x) {\n  x[0] *= 3;\n}\n__global__ void g(int* x) { *x = 1; }\n",
    );
    let ptx = nvrtc.ptx(&source, &["f<float>"], "sm_90a").unwrap();
    let symbol = &ptx.symbols["f<float>"];
    assert!(ptx.text.contains(&format!(".entry {symbol}(")), "{}", ptx.text);
    assert!(ptx.text.contains(".target sm_90a") && ptx.text.contains("mul.f32"), "{}", ptx.text);
    let file = ptx.text.lines().find(|l| l.contains(".file") && l.contains("t.cu")).unwrap();
    let number = file.split_whitespace().nth(1).unwrap();
    assert!(ptx.text.contains(&format!(".loc\t{number} 2 ")), "{}", ptx.text);
}

#[test]
fn what_does_not_compile_is_reported_with_its_line() {
    let Some(nvrtc) = nvrtc() else { return };
    let source = source("__global__ void f(float* x) {\n  x[0] = nonsense;\n}\n");
    let error = nvrtc.compile(&source, &["f"], "sm_80").unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Compile { .. }));
    assert!(text.starts_with("t.cu does not compile for sm_80:"), "{text}");
    assert!(text.contains("t.cu(2)") && text.contains("nonsense"), "{text}");
}

#[test]
fn unknown_architectures_and_names_are_refused() {
    let Some(nvrtc) = nvrtc() else { return };
    let source = source("template <class T> __global__ void f(T* x) {}\n");
    assert!(nvrtc.compile(&source, &["f<float>"], "sm_1").is_err());
    assert!(nvrtc.compile(&source, &["g<float>"], "sm_80").is_err());
}

#[test]
fn what_an_architecture_lacks_is_not_compiled_for_it() {
    let needy = embedded(KernelFile { least_arch: "sm_80", ..file("__global__ void f() {}") });
    assert!(["sm_80", "sm_89", "sm_90a", "sm_100"].iter().all(|a| needy.runs_on(a)));
    assert!(["sm_75", "sm_52"].iter().all(|a| !needy.runs_on(a)));
    assert!(source("").runs_on("sm_52") && needy.runs_on("abacus"));
    let Some(nvrtc) = nvrtc() else { return };
    let error = nvrtc.compile(&needy, &["f"], "sm_75").unwrap_err().to_string();
    assert!(error.contains("sm_75") && error.contains("needs sm_80 or newer"), "{error}");
}

#[test]
fn an_image_is_written_with_its_globals_and_told_without() {
    let Some(nvrtc) = nvrtc() else { return };
    let source = embedded(KernelFile {
        globals: &["limit"],
        ..file(
            "__constant__ int limit;\ntemplate <class T> __global__ void f(T* x) { x[0] = limit; }\n",
        )
    });
    let directory = tempfile::tempdir().unwrap();
    let images = directory.path().join("images");
    let image = lab_device::cache::write(nvrtc, &source, &["f<float>"], "sm_80", &images).unwrap();
    assert_eq!(image.symbols.keys().collect::<Vec<_>>(), ["f<float>"]);
    let file = std::fs::read_dir(&images).unwrap().next().unwrap().unwrap().path();
    let name = file.file_name().unwrap().to_str().unwrap();
    assert!(name.starts_with("t-sm_80-") && name.ends_with(".image"), "{name}");
    assert!(std::fs::read(&file).unwrap().windows(6).any(|part| part == b"&limit"));
    // A file stands where the directory should.
    let refused = lab_device::cache::write(nvrtc, &source, &["f<float>"], "sm_80", &file);
    let path = match refused.unwrap_err() {
        Error::ImageNotWritten { path, .. } => path,
        other => panic!("{other}"),
    };
    assert!(path.starts_with(&file));
}
