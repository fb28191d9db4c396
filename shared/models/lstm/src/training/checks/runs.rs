//! Whole runs: again, resumed, and what they learn.

use lab_device::emulator::{self, Order};
use lab_device::{DType, Device};
use lab_harness::suite::without_checks;
use lab_reference::lstm::Network;

use super::{series, waves};
use crate::training::{
    Config, Data, Decay, Error, Evaluator, LossScale, Model, Optimizer, Schedule, Trainer,
};
use lstm_fused::Way;

/// Bit for bit; of an emulator with other orders of threads, too.
pub(crate) fn training_again_is_the_same(device: &Device) {
    let mut devices = vec![device.clone()];
    if let Some(mode) = device.mode() {
        for (order, threads) in [(Order::Reverse, 1), (Order::Random(1), 3)] {
            let options = emulator::Options { order, threads, ..emulator::Options::default() };
            devices.push(Device::emulator_with(mode, options).unwrap());
        }
    }
    for way in [Way::Cell, Way::Sequence] {
        let train = |device: &Device| {
            let (model, config, data, starts) = series(Config {
                way: Some(way),
                dropout: 0.3,
                clip: Some(0.1),
                ..Config::default()
            });
            let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
            let epochs = [trainer.epoch().unwrap(), trainer.epoch().unwrap()];
            (epochs, trainer.checkpoint().unwrap())
        };
        let first = train(device);
        for device in &devices {
            assert_eq!(train(device), first, "on {} by {way:?}", device.name());
        }
    }
}

/// The windows; forward; the loss; backward; all sums over rows; the update.
pub(crate) fn a_step_of_one_layer_is_six_launches(device: &Device) {
    let data = Data::Series { values: (0..40).map(|t| f64::from(t).sin()).collect(), columns: 1 };
    let model = Model::forecast(Network::lstm(1, 32));
    let starts = data.starts(20, 1);
    let config = Config { way: Some(Way::Sequence), batch: 1, ..Config::default() };
    let trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
    assert_eq!(trainer.launches(), 6);
    // With more parameters than each block of the optimizer squares, their squares are a launch.
    let model = Model::forecast(Network::lstm(1, 64));
    let trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
    assert_eq!(trainer.launches(), 7);
}

/// Of the network that is trained only the memory is another: losses and parameters come close.
pub(crate) fn training_with_gates_computed_again(device: &Device) {
    let train = |recompute, way| {
        let (model, config, data, starts) = series(Config {
            dtype: DType::F64,
            dropout: 0.3,
            recompute,
            way: Some(way),
            ..Config::default()
        });
        let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
        let losses = [trainer.epoch().unwrap().losses, trainer.epoch().unwrap().losses].concat();
        (losses, trainer.launches())
    };
    for way in [Way::Cell, Way::Sequence] {
        let [(kept, launches), (again, more)] = [false, true].map(|r| train(r, way));
        assert_eq!(more, launches + 1, "one for each layer but the last");
        for (kept, again) in kept.iter().zip(&again) {
            assert!((kept - again).abs() <= 1e-13, "{again}, not {kept}");
        }
    }
}

/// From a checkpoint at any step, in the middle of an epoch or at its end.
pub(crate) fn a_resumed_run_is_the_same(device: &Device) {
    let adam = Config {
        dtype: DType::F16,
        loss_scale: LossScale::Dynamic { initial: 4096.0, every: 2 },
        optimizer: Optimizer::adamw(0.1),
        ..Config::default()
    };
    let sgd = Config { optimizer: Optimizer::sgd(0.9), dtype: DType::F64, ..adam };
    for config in [adam, sgd] {
        let config = Config { dropout: 0.3, clip: Some(0.5), seed: 11, ..config };
        let (model, mut config, data, starts) = series(config);
        let decay = Decay::Cosine { steps: 9, min: 1e-3 };
        config.schedule = Schedule { rate: 0.02, warm_up: 2, decay };
        // Ten windows in threes: four steps an epoch, three epochs.
        let whole = |mut trainer: Trainer| {
            let mut epochs = Vec::new();
            while trainer.position().epoch < 3 {
                epochs.push(trainer.epoch().unwrap());
            }
            (epochs, trainer.checkpoint().unwrap())
        };
        let new = || Trainer::new(device, model, config, &data, &starts).unwrap();
        let (epochs, end) = whole(new());
        for stop in 0..9 {
            let mut trainer = new();
            let mut left = stop;
            while left > 0 {
                let most = left.min(trainer.position().steps_per_epoch - trainer.position().step);
                trainer.run(most).unwrap();
                left -= most;
            }
            let checkpoint = trainer.checkpoint().unwrap();
            assert_eq!(checkpoint.position, trainer.position());
            drop(trainer);
            let resumed = Trainer::resume(device, &checkpoint, &data, &starts).unwrap();
            assert_eq!(resumed.checkpoint().unwrap(), checkpoint, "stopped after {stop}");
            let (rest, own_end) = whole(resumed);
            assert_eq!(rest, epochs[stop / 4..], "stopped after {stop}");
            assert_eq!(own_end, end, "stopped after {stop}");
        }
        // Other data, other windows.
        let checkpoint = new().checkpoint().unwrap();
        for (data, starts) in [(waves(15), &starts[..]), (data, &starts[1..])] {
            let error = Trainer::resume(device, &checkpoint, &data, starts).unwrap_err();
            assert!(matches!(error, Error::Checkpoint { .. }), "{error}");
        }
    }
}

/// The forecast of a sine becomes better than that it goes on as it is.
pub(crate) fn the_sine_is_learnt(device: &Device) {
    let device = &without_checks(device).unwrap();
    let values: Vec<f64> = (0..200).map(|t| (f64::from(t) * 0.4).sin()).collect();
    let persistence = values.windows(2).map(|w| (w[1] - w[0]).powi(2)).sum::<f64>() / 199.0;
    let data = Data::Series { values, columns: 1 };
    let config = Config { window: 10, schedule: Schedule::constant(0.01), ..Config::default() };
    let starts = data.starts(10, 1);
    let (train, test) = starts.split_at(150);
    let model = Model::forecast(Network::lstm(1, 12));
    let mut trainer = Trainer::new(device, model, config, &data, train).unwrap();
    let losses: Vec<f64> = (0..12).map(|_| trainer.epoch().unwrap().loss).collect();
    assert!(losses[11] < losses[0] / 20.0, "{losses:?}");
    let mut evaluator = Evaluator::new(device, model, config, &data).unwrap();
    evaluator.load(&trainer.parameters().unwrap()).unwrap();
    let loss = evaluator.loss(test).unwrap();
    assert!(loss < persistence / 4.0, "{loss}, of persistence {persistence}");
}

/// Tokens in a circle, of which each says the next.
pub(crate) fn a_text_is_learnt(device: &Device) {
    let device = &without_checks(device).unwrap();
    let tokens: Vec<i32> = (0..121).map(|t| t % 6).collect();
    let data = Data::Text { tokens, classes: 6 };
    for loss_scale in [LossScale::None, LossScale::Dynamic { initial: 1024.0, every: 20 }] {
        let halves = loss_scale != LossScale::None;
        let dtype = if halves { DType::F16 } else { DType::F32 };
        let schedule = Schedule::constant(0.03);
        let config =
            Config { window: 8, batch: 5, dtype, loss_scale, schedule, ..Config::default() };
        let model = Model::characters(Network::lstm(6, 10));
        let starts = data.starts(8, 8);
        let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
        let first = trainer.epoch().unwrap().loss;
        assert!((first - 6f64.ln()).abs() < 0.5, "{first}: nothing is known yet");
        let losses: Vec<f64> = (0..25).map(|_| trainer.epoch().unwrap().loss).collect();
        let last = losses[24];
        assert!(last < 0.1, "{last} in {dtype}");
    }
}
