//! The device layer on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_device::{Device, Selector};
use lab_harness::suite::assert_checks;
use lab_harness::{agreement, binding_checks, device_checks, map_checks};

#[test]
fn the_device_layer() {
    assert_checks(device_checks::CHECKS);
}

#[test]
fn tensor_maps() {
    assert_checks(map_checks::CHECKS);
}

#[test]
fn plans_and_bindings() {
    assert_checks(binding_checks::CHECKS);
}

#[test]
fn the_emulator_and_the_gpu_agree() {
    assert_checks(agreement::CHECKS);
}

#[test]
fn a_device_that_is_not_there() {
    for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "Emulator"] {
        assert!(text.parse::<Selector>().is_err(), "{text}");
    }
    let error = Device::open(Selector::Cuda(99)).unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert!(error.to_string().starts_with("no CUDA device: "), "{error}");
}

/// From sm_80 on: the warp reductions of integers came with it.
#[test]
fn the_kernels_of_the_checks_compile_for_gpus() {
    let Ok(nvrtc) = lab_device::nvrtc::Nvrtc::get() else {
        assert!(std::env::var_os("LAB_REQUIRE_NVRTC").is_none(), "NVRTC was required");
        return println!("no NVRTC here");
    };
    for source in device_checks::kernels::KERNELS {
        for arch in ["sm_80", "sm_90a"].into_iter().filter(|arch| source.runs_on(arch)) {
            nvrtc.compile(source, source.instantiations, arch).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}
