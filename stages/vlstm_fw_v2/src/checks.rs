//! What else must hold of all pairs.

use lab_families::qkv::checks::any_schedule_gives_the_same;
use lab_harness::suite::VersionCheck;
use lab_harness::version_checks;

pub(crate) static VERSION_CHECKS: &[VersionCheck] =
    version_checks![any_schedule_gives_the_same in Ends];
