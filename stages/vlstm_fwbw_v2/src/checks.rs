//! What else must hold of all pairs.

use lab_harness::suite::{Check, every_kernel_loads};

use crate::STAGE;

pub(crate) static CHECKS: &[Check] = &[Check {
    name: "every_kernel_loads_on_every_device",
    run: |device| every_kernel_loads(&STAGE, device),
}];
