//! What must hold beside the error bounds and the checks of the family.

use lab_device::{Buffer, Device, DeviceKind};
use lab_harness::suite::Check;
use lab_harness::suite::schedules;
use lab_reference::vlstm::log_sigmoid;

use crate::{GATES, kernels};

pub(crate) static CHECKS: &[Check] = &[
    Check::new("blocks_may_begin_in_any_order", blocks_may_begin_in_any_order),
    Check::new("a_grid_of_any_size_sums_up_all_tiles", a_grid_of_any_size_sums_up_all_tiles),
];

/// Gates from -3 to 7.
fn gates(heads: usize, s: usize) -> Vec<f32> {
    (0..heads * s).map(|n| (n * 37 % 101) as f32 / 10.0 - 3.0).collect()
}

/// F by flags, of heads with so many positions each: the sums, as they are stored.
fn sums_by_flags(device: &Device, f: &[f32], s: usize) -> Vec<f64> {
    let (heads, tiles) = (f.len() / s, s.div_ceil(GATES));
    let kernel = device.kernel(&kernels::FLAGS, "gate_sums_flags<128>").unwrap();
    let uploaded = device.upload(f).unwrap();
    let mut carried = device.buffer::<f64>(heads * tiles).unwrap();
    let mut ready = device.upload(&vec![0u32; heads * tiles]).unwrap();
    let mut ticket = device.upload(&[0u32]).unwrap();
    let mut sums = device.buffer::<f32>(2 * f.len()).unwrap();
    let launch = kernel.grid([(heads * tiles) as u32, 1, 1]).unwrap();
    let arguments = [
        ("f", uploaded.arg()),
        ("carried", carried.arg_mut()),
        ("ready", ready.arg_mut()),
        ("ticket", ticket.arg_mut()),
        ("F", sums.arg_mut()),
        ("heads", heads.into()),
        ("tiles", tiles.into()),
        ("S", s.into()),
    ];
    // SAFETY: f has S elements of each head, F two each, the others one of each tile.
    unsafe { kernel.launch(launch, &arguments) }.unwrap();
    stored(&sums)
}

/// F by a sync of a grid of so many blocks.
fn sums_by_grid_sync(device: &Device, f: &[f32], s: usize, blocks: u32) -> Vec<f64> {
    let (heads, tiles) = (f.len() / s, s.div_ceil(GATES));
    let kernel = device.kernel(&kernels::GRID_SYNC, "gate_sums_grid_sync<128>").unwrap();
    let uploaded = device.upload(f).unwrap();
    let mut total = device.buffer::<f64>(heads * tiles).unwrap();
    let mut sums = device.buffer::<f32>(2 * f.len()).unwrap();
    let arguments = [
        ("f", uploaded.arg()),
        ("total", total.arg_mut()),
        ("F", sums.arg_mut()),
        ("heads", heads.into()),
        ("tiles", tiles.into()),
        ("S", s.into()),
    ];
    let launch = kernel.grid([blocks, 1, 1]).unwrap();
    // SAFETY: f has S elements of each head, F two each, total one of each tile.
    unsafe { kernel.launch(launch.cooperative(), &arguments) }.unwrap();
    stored(&sums)
}

/// Each sum is two floats.
fn stored(sums: &Buffer<f32>) -> Vec<f64> {
    let pairs = sums.download().unwrap();
    pairs.chunks(2).map(|pair| f64::from(pair[0]) + f64::from(pair[1])).collect()
}

fn assert_sums(sums: &[f64], f: &[f32], s: usize) {
    for (head, (sums, f)) in sums.chunks(s).zip(f.chunks(s)).enumerate() {
        let mut expected = 0.0;
        for (t, (got, &f)) in sums.iter().zip(f).enumerate() {
            expected += log_sigmoid(f64::from(f));
            // A term is in f32: CUDA promises expf to 2 units in the last place, log1pf to 1.
            let close = (got - expected).abs() <= 4e-7 * expected.abs();
            assert!(close, "{head} {t}: {got}, not {expected}");
        }
    }
}

/// More blocks than run at a time, each of which waits for another: 60 on a thread or some of the
/// emulator, in every order; 65536 on a GPU.
fn blocks_may_begin_in_any_order(device: &Device) {
    let emulated = device.kind() == DeviceKind::Emulator;
    let (heads, s) = if emulated { (15, 500) } else { (16, 1 << 19) };
    let f = gates(heads, s);
    let mut before = Vec::new();
    for device in schedules(device) {
        let sums = sums_by_flags(&device, &f, s);
        assert_sums(&sums, &f, s);
        assert!(before.is_empty() || before == sums, "the same on {}", device.name());
        before = sums;
    }
}

/// One block for all tiles, some, and one a tile; and a head of more tiles than a block has threads
/// to add them up.
fn a_grid_of_any_size_sums_up_all_tiles(device: &Device) {
    for (heads, s, grids) in [(2, 1000, &[1, 3, 16][..]), (1, 130 * GATES + 1, &[2])] {
        let f = gates(heads, s);
        for &blocks in grids {
            assert_sums(&sums_by_grid_sync(device, &f, s, blocks), &f, s);
        }
    }
}
