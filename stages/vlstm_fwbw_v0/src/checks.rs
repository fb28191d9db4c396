//! What must hold beside the error bounds and the checks of the family.

use lab_device::{Device, DeviceKind, Launch};
use lab_harness::qkv::checks::schedules;
use lab_harness::suite::{Check, every_kernel_loads};
use lab_reference::vlstm::log_sigmoid;

use crate::{GATES, STAGE, THREADS, kernels};

pub(crate) static CHECKS: &[Check] = &[
    Check { name: "blocks_may_begin_in_any_order", run: blocks_may_begin_in_any_order },
    Check {
        name: "every_kernel_loads_on_every_device",
        run: |device| every_kernel_loads(&STAGE, device),
    },
];

/// F by flags, of heads with so many positions each: the sums, as they are stored.
fn sums_by_flags(device: &Device, f: &[f32], s: usize) -> Vec<f64> {
    let (heads, tiles) = (f.len() / s, s.div_ceil(GATES));
    let kernel = device.kernel(&kernels::FLAGS, "gate_sums_flags<128>").unwrap();
    let uploaded = device.upload(f).unwrap();
    let mut carried = device.buffer::<f64>(heads * tiles).unwrap();
    let mut ready = device.upload(&vec![0u32; heads * tiles]).unwrap();
    let mut ticket = device.upload(&[0u32]).unwrap();
    let mut sums = device.buffer::<f32>(2 * f.len()).unwrap();
    let [heads, all, s] = [heads, heads * tiles, s].map(|n| n as i32);
    let arguments = [
        uploaded.arg(),
        carried.arg_mut(),
        ready.arg_mut(),
        ticket.arg_mut(),
        sums.arg_mut(),
        heads.into(),
        (all / heads).into(),
        s.into(),
    ];
    kernel.launch(Launch::new(all as u32, THREADS), &arguments).unwrap();
    let pairs = sums.download().unwrap();
    pairs.chunks(2).map(|pair| f64::from(pair[0]) + f64::from(pair[1])).collect()
}

/// More blocks than run at a time, each of which waits for another: 60 on a thread or some of the
/// emulator, in every order; 65536 on a GPU.
fn blocks_may_begin_in_any_order(device: &Device) {
    let emulated = device.kind() == DeviceKind::Emulator;
    let (heads, s) = if emulated { (15, 500) } else { (16, 1 << 19) };
    let gate = |n: usize| (n * 37 % 101) as f32 / 10.0 - 3.0;
    let f: Vec<f32> = (0..heads * s).map(gate).collect();
    let mut before = Vec::new();
    for device in schedules(device) {
        let sums = sums_by_flags(&device, &f, s);
        for (head, f) in f.chunks(s).enumerate() {
            let mut expected = 0.0;
            for (t, &f) in f.iter().enumerate() {
                expected += log_sigmoid(f64::from(f));
                let got = sums[head * s + t];
                // A term is in f32: CUDA promises expf to 2 units in the last place, log1pf to 1.
                let close = (got - expected).abs() <= 4e-7 * expected.abs();
                assert!(close, "{head} {t}: {got}, not {expected}");
            }
        }
        assert!(before.is_empty() || before == sums, "the same on {}", device.name());
        before = sums;
    }
}
