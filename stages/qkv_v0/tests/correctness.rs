//! Wrong as it must be, on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_device::emulator::Kind;
use lab_device::{DType, Device, Mode};
use lab_harness::suite::{Case, Share, assert_all_tested, assert_stage, check};
use lab_harness::{Expected, Options, Problem, Version, version_tests};
use qkv_v0::{GRID_TILE, STAGE};

version_tests!(STAGE: grid_tile = GRID_TILE);

#[test]
fn what_else_must_hold() {
    assert_stage(&STAGE, Share::Short);
}

#[test]
#[should_panic(expected = "versions that tests of qkv_v0 name")]
fn a_version_that_no_test_names_is_found() {
    assert_all_tested(&STAGE, &[]);
}

fn small(mode: Mode, options: &[&str]) -> Case {
    let info = GRID_TILE.info();
    let options = Options::parse(options, info).unwrap();
    let device = Device::emulator_in(mode).unwrap();
    check(&GRID_TILE, &device, &Problem { options, ..Problem::new(info.small(), DType::F32) })
}

/// Only the mistake that is expected passes: no other finding, none at another place, none at all,
/// and no right result.
#[test]
fn what_is_wrong_in_another_way_fails() {
    let case = small(Mode::Checked, &[]);
    assert!(case.passed() && !case.right() && case.wrong_on_purpose().is_some());
    assert!(case.describe().contains("(wrong, as expected)"), "{}", case.describe());
    let changed = |change: fn(&mut Case)| {
        let mut case = case.clone();
        change(&mut case);
        case
    };
    let others: [fn(&mut Case); 6] = [
        |c| c.findings.as_mut().unwrap()[0].kind = Kind::Race,
        |c| c.findings.as_mut().unwrap().clear(),
        |c| c.findings.as_mut().unwrap()[0].accesses.clear(),
        |c| c.findings.as_mut().unwrap()[0].accesses[0].place = "grid_tile.cu:1:1".into(),
        |c| {
            c.findings.as_mut().unwrap()[0].accesses[0].place =
                "stages/qkv_v0/kernels/grid_tile.cu:1:1".into();
        },
        |c| c.expected = Expected::Right,
    ];
    for (number, change) in others.into_iter().enumerate() {
        let case = changed(change);
        assert!(!case.passed() && case.wrong_on_purpose().is_none(), "change {number}");
    }

    let unchecked = small(Mode::Plain, &[]);
    assert!(unchecked.passed() && unchecked.findings.is_none() && !unchecked.right());
    let right = Case { outcome: small(Mode::Plain, &["blocks=1"]).outcome, ..unchecked.clone() };
    assert!(right.right() && !right.passed());
    assert!(right.describe().contains("expected to be wrong, and otherwise"));
    let failed = Case { outcome: Err("no device".into()), ..unchecked };
    assert!(!failed.passed());
}
