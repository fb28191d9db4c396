//! What else must hold of all pairs.

use lab_families::qkv::checks::any_schedule_gives_the_same;
use lab_harness::suite::{Check, VersionCheck, every_kernel_loads};
use lab_harness::version_checks;

use crate::STAGE;

pub(crate) static VERSION_CHECKS: &[VersionCheck] =
    version_checks![any_schedule_gives_the_same in Ends];

pub(crate) static CHECKS: &[Check] =
    &[Check::new("every_kernel_loads_on_every_device", |device| {
        every_kernel_loads(&STAGE, device)
    })];
