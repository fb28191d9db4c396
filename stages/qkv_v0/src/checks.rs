//! Right with one block, wrong with several, and found at the reads that make it so.

use lab_device::{DType, Device, Mode};
use lab_families::qkv::sizes;
use lab_harness::suite::{Case, Check, check, without_checks};
use lab_harness::{Options, Problem, Version, run};

use crate::{GRID_TILE, INFO, MISTAKE};

pub(crate) static CHECKS: &[Check] = &[
    Check::new("one_block_is_right", one_block_is_right),
    Check::new(
        "several_blocks_are_wrong_with_and_without_checks",
        several_blocks_are_wrong_with_and_without_checks,
    ),
    Check::new(
        "the_checks_find_the_reads_of_what_others_hold",
        the_checks_find_the_reads_of_what_others_hold,
    ),
    Check::new("a_wrong_number_of_blocks_is_refused", a_wrong_number_of_blocks_is_refused),
];

fn with_blocks(blocks: u32) -> Options {
    Options::parse(&[format!("blocks={blocks}")], &INFO).expect("a finite number")
}

fn checked(device: &Device, shape: [usize; 5], dtype: DType, seed: u64, blocks: u32) -> Case {
    let options = with_blocks(blocks);
    check(&GRID_TILE, device, &Problem { seed, options, ..Problem::new(sizes(shape), dtype) })
}

fn one_block_is_right(device: &Device) {
    let shapes = [
        [1, 1, 1, 1, 1],
        [1, 1, 1, 64, 64],
        [1, 1, 16, 64, 64],
        [2, 3, 5, 3, 4],
        [1, 2, 37, 64, 64],
        [1, 1, 17, 100, 1],
        [1, 1, 9, 1, 100],
        [1, 1, 33, 128, 128],
        [1, 1, 11, 256, 256],
        [1, 1, 9, 3, 200],
        [1, 1, 300, 8, 8],
    ];
    for (seed, shape) in shapes.into_iter().enumerate() {
        for &dtype in INFO.dtypes {
            let case = checked(device, shape, dtype, seed as u64, 1);
            assert!(case.right() && case.passed(), "{}", case.describe());
        }
    }
}

/// The very problem that is right with one block, and after that one has left its tiles behind.
fn several_blocks_are_wrong_with_and_without_checks(device: &Device) {
    let plain = without_checks(device).expect("the emulator");
    for device in [device, &plain] {
        for (blocks, shape) in
            [(2, [1, 1, 32, 64, 64]), (4, [1, 1, 32, 64, 64]), (7, [1, 2, 33, 64, 128])]
        {
            let alone = checked(device, shape, DType::F32, 1, 1);
            assert!(alone.right(), "{}", alone.describe());
            let case = checked(device, shape, DType::F32, 1, blocks);
            assert!(!case.right(), "{blocks} blocks: {}", case.describe());
            assert!(case.wrong_on_purpose().is_some(), "{blocks} blocks: {}", case.describe());
        }
    }
}

/// At every shape: a tile is spread over all blocks, and each reads all of it. Where there are as
/// many scores as threads, both products are found.
fn the_checks_find_the_reads_of_what_others_hold(_: &Device) {
    let device = Device::emulator_in(Mode::Checked).expect("the emulator");
    for shape in [[1, 1, 1, 1, 1], [1, 1, 5, 64, 64], [1, 1, 40, 64, 64], [2, 2, 3, 100, 7]] {
        let case = checked(&device, shape, DType::F32, 0, 4);
        assert!(case.wrong_on_purpose().is_some(), "{}", case.describe());
        let found = case.findings.iter().flatten();
        let places: Vec<&str> = found.flat_map(|f| f.places()).collect();
        for line in MISTAKE.lines {
            let number = 1 + MISTAKE.source.source.lines().position(|l| l.contains(line)).unwrap();
            let place = format!("stages/qkv_v0/kernels/grid_tile.cu:{number}:");
            assert!(places.iter().any(|p| p.starts_with(&place)), "{place} in {places:?}");
        }
    }
}

fn a_wrong_number_of_blocks_is_refused(device: &Device) {
    let inputs = GRID_TILE.inputs(&Problem::new(sizes([1, 1, 2, 2, 2]), DType::F32));
    for blocks in ["0", "-1", "2.5", "33", "1e300"] {
        let options = Options::parse(&[format!("blocks={blocks}")], &INFO).unwrap();
        let error = run(&GRID_TILE, device, &inputs, &options).unwrap_err().to_string();
        let said = "--set blocks: expected a whole number from 1 to 32, got";
        assert!(error.starts_with(said), "{error}");
    }
}
