//! What else must hold of the stage.

use lab_harness::suite::{Check, every_kernel_loads};

use crate::STAGE;

pub(crate) static CHECKS: &[Check] =
    &[Check::new("every_kernel_loads_on_every_device", |device| {
        every_kernel_loads(&STAGE, device)
    })];
