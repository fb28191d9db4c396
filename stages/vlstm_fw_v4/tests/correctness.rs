//! Against the f64 reference, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_harness::suite::assert_version;
use vlstm_fw_v4::SCORES;

#[test]
fn scores() {
    assert_version(&SCORES);
}
