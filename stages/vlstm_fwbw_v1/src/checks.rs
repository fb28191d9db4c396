//! What must hold beside the error bounds and the checks of the family.

use std::time::Duration;

use lab_device::emulator::{Line, Operation};
use lab_device::{DType, Device, DeviceKind, Mode};
use lab_families::qkv::sizes;
use lab_harness::suite::{Check, Tier};
use lab_harness::{Options, Posed, Problem, Request, Version, timing};
use vlstm_fwbw_v0::FLAGS;

use crate::{AHEAD, tuning};

pub(crate) static CHECKS: &[Check] = &[
    Check::new("tiles_of_any_shape_are_right", tiles_of_any_shape_are_right)
        .in_tier(Tier::ManySizes),
    Check::new("temporaries_are_32_bytes_a_position", temporaries_are_32_bytes_a_position),
    Check::new("asks_for_no_piece_past_the_diagonal", asks_for_no_piece_past_the_diagonal),
    Check::new("asks_less_than_v0", asks_less_than_v0),
    Check::new("faster_than_v0", faster_than_v0),
];

/// Tiles of Q larger than those of K and V, and the other way round, in one kernel after the other.
fn tiles_of_any_shape_are_right(device: &Device) {
    let tilings = tuning::built(64);
    assert_eq!(tilings.len(), 6, "two of each kernel");
    for (n, shape) in [[1, 2, 300, 64, 48], [1, 1, 129, 16, 64]].into_iter().enumerate() {
        let problem = Problem { seed: n as u64, ..Problem::new(sizes(shape), DType::F32) };
        let posed = Posed::new(&AHEAD, problem);
        for tiling in &tilings {
            let prepared = AHEAD.prepare_tiled(device, &posed.inputs, &Options::default(), tiling);
            let mut prepared = prepared.unwrap();
            prepared.launch().unwrap();
            for c in posed.compare(&AHEAD, &prepared.outputs().unwrap(), DType::F32) {
                assert!(c.passed(), "{tiling}, {shape:?}: {}", c.complaint());
            }
        }
    }
}

/// Beside inputs and outputs; and of each tile of gates a sum and a flag, and one ticket.
fn temporaries_are_32_bytes_a_position(device: &Device) {
    for (shape, dtype) in [([1, 1, 1, 16, 16], DType::F32), ([2, 3, 300, 64, 112], DType::BF16)] {
        let [b, nh, s, dhqk, dhhv] = shape;
        let inputs = AHEAD.inputs(&Problem::new(sizes(shape), dtype));
        let options = Options::default();
        let request = Request::of(AHEAD.info(), &inputs, &options).unwrap();
        let plan = AHEAD.plan(device, &request).unwrap();
        // q, k, v, dh, h, dq, dk, dv in the run's type; i, f, m, n, di, df in f32.
        let of_a_position = 4 * (dhqk + dhhv) * dtype.size() + 6 * 4 + 32;
        let of_gates = 12 * b * nh * s.div_ceil(128) + 4;
        assert_eq!(plan.bytes(), b * nh * s * of_a_position + of_gates, "{shape:?} {dtype}");
    }
}

/// Each pair of tiles up to the diagonal once forward, once for dq, once for dv and once for dk: all
/// rows of two matrices. One piece more would be fetched for nobody, and still be under way when the
/// next products fetch theirs to the same place. The emulator counts, whatever the device.
fn asks_for_no_piece_past_the_diagonal(_: &Device) {
    let device = Device::emulator_in(Mode::Counted).unwrap();
    let (n, rows, dh) = (3, 64, 64);
    let inputs = AHEAD.inputs(&Problem::new(sizes([1, 2, n * rows, dh, dh]), DType::F32));
    device.take_profile();
    lab_harness::run(&AHEAD, &device, &inputs, &Options::default()).unwrap();
    // Of 32 lanes with 16 bytes each.
    let profile = device.take_profile();
    let of_pieces = |l: &&Line| {
        l.operation == Operation::GlobalLoad && l.place.contains("lab/ptx/cp_async.cuh")
    };
    let got: u64 = profile.lines.iter().filter(of_pieces).map(|l| l.counts.requests).sum();
    let of_a_pair = 4 * 2 * rows * dh * 4 / (32 * 16);
    assert_eq!(got, (2 * n * (n + 1) / 2 * of_a_pair) as u64, "{n} tiles of {rows} x {dh}");
}

/// Wavefronts of shared memory, three quarters as many loads and half as many stores, without a
/// conflict. The emulator counts, whatever the device.
fn asks_less_than_v0(_: &Device) {
    let device = Device::emulator_in(Mode::Counted).unwrap();
    for dh in [64, 128] {
        let count = |version: &dyn Version| {
            let inputs = version.inputs(&Problem::new(sizes([1, 1, 256, dh, dh]), DType::F32));
            device.take_profile();
            lab_harness::run(version, &device, &inputs, &Options::default()).unwrap();
            let profile = device.take_profile();
            [Operation::SharedLoad, Operation::SharedStore].map(|o| profile.total(o))
        };
        let ([loads, stores], [loads_v0, stores_v0]) = (count(&AHEAD), count(&FLAGS));
        assert!(4 * loads.cost < 3 * loads_v0.cost + loads_v0.cost / 16, "{dh}: {loads:?}");
        assert!(2 * stores.cost <= stores_v0.cost, "{dh}: {stores:?} {stores_v0:?}");
        assert_eq!((loads.cost, stores.cost), (loads.ideal, stores.ideal), "{dh}");
    }
}

/// By a tenth at least, in each class and type; where there is a GPU.
fn faster_than_v0(device: &Device) {
    if device.kind() == DeviceKind::Emulator {
        return;
    }
    for dh in [64, 128, 256] {
        for &dtype in AHEAD.info().dtypes {
            let problem = Problem::new(sizes([1, 64, 2048, dh, dh]), dtype);
            let time = |version: &dyn Version| {
                let inputs = version.inputs(&problem);
                let prepared = version.prepare(device, &inputs, &Options::default());
                let mut prepared = prepared.unwrap();
                let budget = Duration::from_secs(1);
                timing::time_within(device, prepared.as_mut(), 20, budget).unwrap().median_us
            };
            let (ahead, flags) = (time(&AHEAD), time(&FLAGS));
            assert!(ahead <= 0.9 * flags, "{dh} columns, {dtype}: {ahead:.0} µs, v0 {flags:.0}");
        }
    }
}
