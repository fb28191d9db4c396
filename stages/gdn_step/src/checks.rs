//! What else must hold of the step.

use lab_device::{DType, Device};
use lab_families::gdn;
use lab_families::step_checks::assert_steps_go_on_from_a_prompt;
use lab_harness::suite::VersionCheck;
use lab_harness::{Version, version_checks};

pub(crate) static VERSION_CHECKS: &[VersionCheck] =
    version_checks![a_prefill_and_steps_are_the_sequence];

fn a_prefill_and_steps_are_the_sequence(version: &dyn Version, device: &Device) {
    let dims = gdn::sizes([1, 2, 1, 46, 32, 48]);
    // In bf16 C is rounded in every step.
    let cases = [
        (DType::F32, DType::F32, 2e-6, 1e-6),
        (DType::BF16, DType::F32, 4e-3, 1e-6),
        (DType::BF16, DType::BF16, 1.6e-2, 8e-3),
    ];
    assert_steps_go_on_from_a_prompt([&gdn_fw::STEPS, version], device, &dims, 40, &cases);
}
