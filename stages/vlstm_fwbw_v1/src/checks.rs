//! What must hold beside the error bounds.

use lab_device::Device;
use lab_harness::suite::{Check, every_kernel_loads};

use crate::STAGE;

pub(crate) static CHECKS: &[Check] =
    &[Check { name: "every_kernel_loads_on_every_device", run: every_kernel_loads_on_every_device }];

fn every_kernel_loads_on_every_device(device: &Device) {
    every_kernel_loads(&STAGE, device);
}
