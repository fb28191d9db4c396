//! What must hold of training, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

#[test]
fn what_must_hold() {
    lab_harness::suite::assert_checks_of_models(lab_mlp::SUITE.checks);
}
