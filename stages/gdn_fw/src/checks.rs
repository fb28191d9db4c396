//! What else must hold of the stage.

use lab_families::gdn::checks::correlated_keys_are_right;
use lab_families::gdn::packed_checks::packed_sequences_are_each_alone;
use lab_harness::Version;
use lab_harness::suite::Check;

use crate::{BLOCKS, CHUNKS, FUSED, PACKED, PACKED_RESIDENT, RESIDENT};

/// Versions share the family's checks by turns; this one asks each that makes an inverse.
pub(crate) static CHECKS: &[Check] = &[
    Check::new("the_inverse_of_correlated_keys_is_right", |device| {
        let versions: [&dyn Version; 4] = [&CHUNKS, &BLOCKS, &RESIDENT, &FUSED];
        for version in versions {
            correlated_keys_are_right(version, device);
        }
    }),
    Check::new("packed_sequences_are_each_alone", |device| {
        packed_sequences_are_each_alone(&PACKED, &FUSED, device);
        packed_sequences_are_each_alone(&PACKED_RESIDENT, &RESIDENT, device);
    }),
];
