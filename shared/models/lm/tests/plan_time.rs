//! Host time of a plan of many layers, beside the compilation of kernels: the emulator's are compiled with the lab.
#![allow(missing_docs)]

use std::time::{Duration, Instant};

use lab_device::{DType, Device};
use lab_lm::{Config, Model, Step};

/// Of several turns the shortest: others use this machine, too.
fn planned_in(model: &Model, config: &Config) -> Duration {
    let device = Device::emulator().unwrap();
    let turn = |_| {
        let start = Instant::now();
        assert!(Step::bytes(&device, model, config).unwrap() > 0);
        start.elapsed()
    };
    (0..5).map(turn).min().expect("five turns")
}

/// The aim is 50 ms on a core of its own. The bound is for a machine with other work, and finds what grows with the square of the layers.
#[test]
fn a_training_step_of_32_blocks_is_planned_at_once() {
    let model = Model::xlstm(1000, 256, 4, 32);
    for dtype in [DType::F32, DType::BF16] {
        let config = Config { window: 256, batch: 2, dtype, ..Config::default() };
        let took = planned_in(&model, &config);
        println!("{dtype}: {:.1} ms", took.as_secs_f64() * 1e3);
        assert!(took <= Duration::from_millis(500), "{dtype}: {took:?}");
    }
}
