//! What else must hold of the stage.

use lab_families::gdn::packed_checks::packed_sequences_are_each_alone;
use lab_harness::suite::Check;

use crate::{PACKED, TENSOR};

pub(crate) static CHECKS: &[Check] = &[Check::new("packed_sequences_are_each_alone", |device| {
    packed_sequences_are_each_alone(&PACKED, &TENSOR, device);
})];
