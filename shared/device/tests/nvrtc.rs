//! NVRTC needs no GPU. Where there is no toolkit at all these tests say so and stop; CI has one.
#![allow(missing_docs)]

use lab_device::nvrtc::Nvrtc;
use lab_device::{Error, KernelSource};

fn source(text: &'static str) -> KernelSource {
    KernelSource {
        crate_name: "test",
        name: "t",
        file: "t.cu",
        source: text,
        headers: &[("lab/t.cuh", "template <class T> __device__ T twice(T v) { return v + v; }\n")],
        instantiations: &[],
        globals: &[],
        object: &[],
        checked: &[],
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
