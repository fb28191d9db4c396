//! The device layer on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_device::{Device, Selector};
use lab_harness::device_checks::CHECKS;
use lab_harness::suite::assert_checks;

#[test]
fn the_device_layer() {
    assert_checks(CHECKS);
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
