//! What must hold of training, on every device.

use lab_device::emulator::{self, Order};
use lab_device::{DType, Device};
use lab_harness::Tensors;
use lab_harness::suite::without_checks;
use lab_reference::lstm::{Cell, Network};

use super::reference::{Reference, mask, philox};
use super::{
    Config, Data, Decay, Error, Evaluator, Head, LossScale, Model, Optimizer, Schedule, Stream,
    Trainer,
};
use crate::Way;

/// Two waves of unlike lengths, side by side.
pub(crate) fn waves(rows: usize) -> Data {
    let row = |t: usize| [(t as f64 * 0.7).sin(), (t as f64 * 0.31).cos() * 0.5];
    Data::Series { values: (0..rows).flat_map(row).collect(), columns: 2 }
}

pub(crate) fn text(rows: usize) -> Data {
    let token = |t: usize| [0, 1, 2, 1, 3][t % 5] + i32::from(t % 7 == 3);
    Data::Text { tokens: (0..rows).map(token).collect(), classes: 5 }
}

/// A case of [`training_follows_the_reference`].
struct Case {
    name: &'static str,
    model: Model,
    config: Config,
    data: Data,
}

/// Each option in one of them at least. Batches do not divide the windows.
fn cases() -> Vec<Case> {
    let config = Config { window: 5, batch: 4, dtype: DType::F64, seed: 3, ..Config::default() };
    let one = Network::lstm(2, 6);
    let of_text = Network::lstm(5, 6);
    let sgd = |momentum, weight_decay| Optimizer::Sgd { momentum, weight_decay };
    // ε as large as the gradients: with the usual one the first step goes by the sign of a gradient,
    // be it but a rounding.
    let adam = |weight_decay, decoupled| Optimizer::Adam {
        betas: [0.8, 0.95],
        eps: 1e-2,
        weight_decay,
        decoupled,
    };
    let rate = |rate| Schedule::constant(rate);
    let case = |name, model, config, data| Case { name, model, config, data };
    vec![
        case(
            "descent on a series",
            Model::forecast(one),
            Config { optimizer: sgd(0.0, 0.0), schedule: rate(0.2), ..config },
            waves(20),
        ),
        case(
            "momentum on a text, clipped",
            Model::characters(of_text),
            Config { optimizer: sgd(0.9, 0.02), schedule: rate(0.3), clip: Some(0.2), ..config },
            text(18),
        ),
        case(
            "Adam with decay, one output, cosine behind a warm-up",
            Model { outputs: 1, ..Model::forecast(one) },
            Config {
                optimizer: adam(0.03, false),
                schedule: Schedule {
                    rate: 0.05,
                    warm_up: 3,
                    decay: Decay::Cosine { steps: 6, min: 0.01 },
                },
                ..config
            },
            waves(20),
        ),
        case(
            "AdamW on two layers with dropout, falling by steps",
            Model::forecast(Network { layers: 3, ..one }),
            Config {
                optimizer: adam(0.3, true),
                schedule: Schedule {
                    rate: 0.05,
                    warm_up: 0,
                    decay: Decay::Step { every: 2, gamma: 0.5 },
                },
                dropout: 0.4,
                ..config
            },
            waves(16),
        ),
        case(
            "two directions, peepholes, dropout, every step of a series",
            Model {
                head: Head::EveryStep,
                ..Model::forecast(Network { layers: 2, bidirectional: true, peephole: true, ..one })
            },
            Config { optimizer: adam(0.0, false), dropout: 0.25, clip: Some(0.1), ..config },
            waves(14),
        ),
        case(
            "layer norm without biases, the last step of a text",
            Model {
                head: Head::Last,
                ..Model::characters(Network {
                    layer_norm: Some(1e-3),
                    bias: false,
                    hidden: 9,
                    ..of_text
                })
            },
            Config { optimizer: sgd(0.5, 0.0), schedule: rate(0.1), ..config },
            text(17),
        ),
        case(
            "a GRU",
            Model::forecast(Network { layers: 2, ..Network::gru(2, 5) }),
            Config { optimizer: adam(0.0, false), dropout: 0.5, shuffle: false, ..config },
            waves(15),
        ),
    ]
}

/// The largest |a − b| of a parameter, by the largest of all in it.
fn apart(got: &Tensors, expected: &lab_reference::lstm::Tensors) -> f64 {
    assert_eq!(got.len(), expected.len());
    let of = |(name, tensor): (&String, &lab_harness::Tensor)| {
        let expected = &expected[name];
        let largest = expected.iter().fold(1e-2, |a: f64, b| a.max(b.abs()));
        let worst = tensor.values().into_iter().zip(expected).map(|(a, b)| (a - b).abs() / largest);
        worst.fold(0.0, |a: f64, b| if b <= a { a } else { b })
    };
    got.iter().map(of).fold(0.0, |a: f64, b| if b <= a { a } else { b })
}

/// Trains beside the reference for some steps of the second epoch, too; how far losses and parameters
/// come apart.
fn follow(device: &Device, case: &Case) -> [f64; 2] {
    let Case { model, config, data, .. } = case;
    let starts = data.starts(config.window, 1);
    let mut trainer = Trainer::new(device, *model, *config, data, &starts).unwrap();
    let first = trainer.parameters().unwrap();
    let mut reference = Reference::new(*model, *config, data, &starts, &first);
    let mut losses: Vec<f64> = Vec::new();
    let epoch = trainer.epoch().unwrap();
    losses.extend(&epoch.losses);
    assert!(trainer.run(2).unwrap().is_none());
    let steps = epoch.losses.len();
    let expected: Vec<f64> = (0..steps).map(|_| reference.step()).collect();
    let windows = starts.len() as f64;
    let of_step = |n: usize| config.batch.min(starts.len() - n * config.batch) as f64;
    let mean = expected.iter().enumerate().map(|(n, l)| l * of_step(n)).sum::<f64>() / windows;
    reference.step();
    reference.step();
    let of_losses = losses.iter().zip(&expected).map(|(a, b)| (a - b).abs() / b.abs());
    let worst = of_losses.fold((epoch.loss - mean).abs() / mean, f64::max);
    let position = trainer.position();
    assert_eq!((position.epoch, position.step, position.steps_per_epoch), (1, 2, steps));
    assert_eq!(epoch.rate, config.schedule.at(steps - 1));
    [worst, apart(&trainer.parameters().unwrap(), &reference.parameters)]
}

/// In f64, and in f32 as far as its roundings go.
pub(crate) fn training_follows_the_reference(device: &Device) {
    for case in cases() {
        let plain =
            case.model.network.cell == Cell::Lstm && case.model.network.layer_norm.is_none();
        let ways = if plain { vec![Way::Cell, Way::Sequence] } else { vec![Way::Cell] };
        for (dtype, bound) in [(DType::F64, 5e-15), (DType::F32, 3.5e-6)] {
            for way in ways.iter().copied().map(Some) {
                let config = Config { dtype, way, ..case.config };
                let Case { name, model, data, .. } = &case;
                let own = Case { name, model: *model, config, data: data.clone() };
                let apart = follow(device, &own);
                for apart in apart {
                    assert!(apart <= bound, "{name} in {dtype} by {way:?}: {apart:.2e} apart");
                }
            }
        }
    }
}

/// Parameters are kept in f32: after some steps they are as near to the reference as the type's
/// roundings of the gradients leave them, which descent adds up.
pub(crate) fn training_in_halves_stays_near(device: &Device) {
    for (dtype, bound) in [(DType::F16, 3e-3), (DType::BF16, 4e-2)] {
        for mut case in cases().into_iter().take(2) {
            case.config.dtype = dtype;
            case.config.loss_scale = LossScale::Static { factor: 256.0 };
            let apart = follow(device, &case);
            for apart in apart {
                assert!(apart <= bound, "{} in {dtype}: {apart:.2e} apart", case.name);
            }
        }
    }
}

/// Of the loss that [`Evaluator`] gives, by every parameter.
pub(crate) fn gradients_are_those_of_differences(device: &Device) {
    const STEP: f64 = 1e-5;
    let device = &without_checks(device).unwrap(); // some hundred launches of what is checked elsewhere
    for case in cases() {
        let Case { name, model, config, data } = case;
        let starts = data.starts(config.window, 3);
        let batch = starts.len(); // all of them in one step
        let config = Config { batch, dropout: 0.0, ..config };
        let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
        let at = trainer.parameters().unwrap();
        trainer.run(1).unwrap();
        let gradients = trainer.gradients().unwrap();
        let mut evaluator = Evaluator::new(device, model, config, &data).unwrap();
        for (parameter, tensor) in &at {
            let (values, gradient) = (tensor.values(), gradients[parameter].values());
            for n in (0..values.len()).step_by(values.len().div_ceil(5)) {
                let mut moved = |by: f64| {
                    let mut values = values.clone();
                    values[n] += by;
                    let mut all = at.clone();
                    let tensor = lab_harness::Tensor::new(&tensor.shape, &values);
                    all.insert(parameter.clone(), tensor);
                    evaluator.load(&all).unwrap();
                    evaluator.loss(&starts).unwrap()
                };
                let expected = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
                let error = (gradient[n] - expected).abs();
                assert!(error <= 1e-9, "{name}: {parameter} {n}: {} not {expected}", gradient[n]);
            }
        }
    }
}

/// Words that its authors' program gives; and the share of what is kept.
pub(crate) fn dropout_is_philox(device: &Device) {
    let zero = philox([0; 4], [0; 2]);
    assert_eq!(zero, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
    let ones = philox([u32::MAX; 4], [u32::MAX; 2]);
    assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    let config = Config { dropout: 0.3, seed: 1 << 40 | 5, ..Config::default() };
    let kept = |step, layer| -> Vec<bool> {
        mask(&config, step, layer, 4000).into_iter().map(|m| m != 0.0).collect()
    };
    let share = |a: &[bool], b: &[bool]| a.iter().zip(b).filter(|(a, b)| **a && **b).count();
    let first = kept(0, 0);
    // Four standard deviations of as many throws.
    assert!(share(&first, &first).abs_diff(2800) <= 116);
    for (step, layer) in [(1, 0), (0, 1), (1 << 33, 0)] {
        assert!(share(&first, &kept(step, layer)).abs_diff(1960) <= 127, "{step} {layer}");
    }
    // The device's: a seed of 64 bits, steps of two epochs.
    let mut case = cases().swap_remove(3);
    (case.config.seed, case.config.dropout) = (config.seed, 0.3);
    assert!(follow(device, &case).into_iter().all(|apart| apart <= 5e-15));
}

fn series(config: Config) -> (Model, Config, Data, Vec<usize>) {
    let config = Config { window: 4, batch: 3, schedule: Schedule::constant(0.05), ..config };
    let data = waves(14);
    let starts = data.starts(4, 1);
    (Model::forecast(Network { layers: 2, ..Network::lstm(2, 5) }), config, data, starts)
}

/// Nothing is rounded otherwise.
pub(crate) fn a_power_of_two_as_loss_scale(device: &Device) {
    let train = |loss_scale, clip| {
        let (model, config, data, starts) =
            series(Config { loss_scale, clip, dropout: 0.2, ..Config::default() });
        let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
        let losses = trainer.epoch().unwrap().losses;
        (losses, trainer.parameters().unwrap())
    };
    for clip in [None, Some(0.05)] {
        let plain = train(LossScale::None, clip);
        for loss_scale in
            [LossScale::Static { factor: 1024.0 }, LossScale::Dynamic { initial: 64.0, every: 2 }]
        {
            assert_eq!(train(loss_scale, clip), plain, "{loss_scale:?}");
        }
    }
}

pub(crate) fn the_loss_scale_follows_the_gradients(device: &Device) {
    let dynamic = LossScale::Dynamic { initial: 16_777_216.0, every: 3 };
    let (model, config, data, starts) =
        series(Config { dtype: DType::F16, loss_scale: dynamic, ..Config::default() });
    let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
    let first = trainer.parameters().unwrap();
    // Too large by far: the first step is left out.
    trainer.run(1).unwrap();
    assert_eq!(trainer.parameters().unwrap(), first);
    let mut skipped = 0;
    for _ in 0..8 {
        skipped += trainer.epoch().unwrap().skipped;
    }
    let epoch = trainer.epoch().unwrap();
    assert!(skipped >= 2, "{skipped} steps left out");
    assert!((1.0..16_777_216.0).contains(&epoch.scale), "a scale of {}", epoch.scale);
    assert!(epoch.losses.iter().all(|l| l.is_finite()));
    assert_ne!(trainer.parameters().unwrap(), first);
    // One that stays has to fit.
    let config =
        Config { loss_scale: LossScale::Static { factor: 16_777_216.0 }, ..*trainer.config() };
    let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
    let error = trainer.epoch().unwrap_err();
    let Error::NotFinite { epoch: 0, step: 0, tensor, .. } = &error else { panic!("{error}") };
    assert!(tensor.starts_with("the gradient by "), "{error}");
    // Small ones grow: once in three steps, of which an epoch has four.
    let dynamic = LossScale::Dynamic { initial: 1.0, every: 3 };
    let config = Config { loss_scale: dynamic, ..*trainer.config() };
    let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
    let scales: Vec<f64> = (0..3).map(|_| trainer.epoch().unwrap().scale).collect();
    assert_eq!(scales, [2.0, 4.0, 16.0]);
}

pub(crate) fn the_first_bad_tensor_is_named(device: &Device) {
    let (model, config, data, starts) = series(Config { shuffle: false, ..Config::default() });
    let Data::Series { values, columns } = data else { panic!("a series") };
    // In the input of the windows from 5 on, whose step is the second; in the target of window 5, too.
    for (row, step, layer, tensor) in [(9, 1, "the loss", "the mean"), (8, 1, "the data", "x")] {
        let mut values = values.clone();
        values[row * columns + 1] = f64::NAN;
        let data = Data::Series { values, columns };
        let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
        trainer.run(1).unwrap();
        let before = trainer.parameters().unwrap();
        // And again, for it stays there.
        for _ in 0..2 {
            let error = trainer.epoch().unwrap_err();
            let Error::NotFinite { epoch, step: at, layer: of, tensor: name, value, .. } = &error
            else {
                panic!("{error}")
            };
            assert_eq!((*epoch, *at, of.as_str(), name.as_str()), (0, step, layer, tensor));
            assert!(value.is_nan());
            assert_eq!(trainer.parameters().unwrap(), before);
            assert_eq!(trainer.position().step, step);
        }
    }
    // A rate that throws the parameters out of the numbers.
    let data = Data::Series { values, columns };
    let optimizer = Optimizer::sgd(0.0);
    let config = Config { optimizer, schedule: Schedule::constant(1e38), ..config };
    let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
    let said = (0..9).find_map(|_| trainer.epoch().err()).expect("no number is left").to_string();
    assert!(
        said.starts_with("epoch 0, step ") && said.ends_with("expected finite numbers"),
        "{said}"
    );
}

/// [`Evaluator`] and [`Stream`] against the reference.
pub(crate) fn outputs_without_training(device: &Device) {
    for case in cases() {
        let Case { name, model, config, data } = case;
        // Of seven in threes: the last are padded.
        let config = Config { dtype: DType::F32, batch: 3, ..config };
        let starts: Vec<usize> = (0..7).map(|n| n * 5 % 9).collect();
        let parameters = model.initial(DType::F32, 5);
        let mut evaluator = Evaluator::new(device, model, config, &data).unwrap();
        evaluator.load(&parameters).unwrap();
        let reference = Reference::new(model, config, &data, &starts, &parameters);
        let close = |got: &[f64], expected: &[f64]| {
            assert_eq!(got.len(), expected.len(), "{name}");
            for (got, expected) in got.iter().zip(expected) {
                assert!((got - expected).abs() <= 2e-6, "{name}: {got}, not {expected}");
            }
        };
        let z: Vec<f64> = starts.iter().flat_map(|&s| reference.pass(&[s], None).z).collect();
        close(&evaluator.predict(&starts).unwrap(), &z);
        let loss = starts.iter().map(|&s| reference.pass(&[s], None).loss).sum::<f64>() / 7.0;
        close(&[evaluator.loss(&starts).unwrap()], &[loss]);
        // Behind the data there is no target, and a forecast all the same.
        let last = data.len() - config.window;
        assert_eq!(evaluator.predict(&[last]).unwrap().len() % model.outputs, 0);
        assert!(evaluator.loss(&[last]).is_err());
        assert!(evaluator.predict(&[last + 1]).is_err());
        let hidden = evaluator.hidden(&starts).unwrap();
        let features = model.network.hidden * model.network.directions();
        assert_eq!(hidden.len(), 7 * config.window * features);

        if model.network.bidirectional {
            assert!(Stream::new(device, model, &parameters).is_err());
            continue;
        }
        let mut stream = Stream::new(device, model, &parameters).unwrap();
        for (n, &start) in starts.iter().enumerate().take(2) {
            stream.reset().unwrap();
            let outputs = (0..config.window).map(|t| {
                let row = match &data {
                    Data::Series { values, columns } => {
                        values[(start + t) * columns..][..*columns].to_vec()
                    }
                    Data::Text { tokens, classes } => {
                        (0..*classes).map(|c| f64::from(tokens[start + t] == c as i32)).collect()
                    }
                };
                stream.step(&row).unwrap()
            });
            let outputs: Vec<f64> = outputs.collect::<Vec<_>>().concat();
            let of_window = z.len() / 7;
            let read = &outputs[outputs.len() - of_window..];
            close(read, &z[n * of_window..][..of_window]);
            let own = &hidden[n * config.window * features..][..config.window * features];
            let state = stream.state().unwrap()["hn"].values();
            close(&state[state.len() - features..], &own[own.len() - features..]);
        }
    }
}

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

pub(crate) fn training_that_cannot_be_is_refused(device: &Device) {
    let (model, config, data, starts) = series(Config::default());
    let refused = |model: Model, config: Config, data: &Data, starts: &[usize], said: &str| {
        let error = Trainer::new(device, model, config, data, starts).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}, not {said}");
    };
    let nan = f64::NAN;
    for (own, said) in [
        (Config { window: 0, ..config }, "window: expected 1 to 32768, got 0"),
        (Config { batch: 1 << 20, ..config }, "batch: expected 1 to 32768, got 1048576"),
        (Config { dtype: DType::I32, ..config }, "dtype: expected f32, f64, f16 or bf16, got i32"),
        (Config { dropout: 1.0, ..config }, "dropout: expected 0 to below 1, got 1"),
        (Config { dropout: nan, ..config }, "dropout: expected 0 to below 1, got NaN"),
        (Config { clip: Some(0.0), ..config }, "clip: expected a number above 0, got 0"),
        (
            Config { schedule: Schedule::constant(nan), ..config },
            "learning rate: expected a number above 0, got NaN",
        ),
        (
            Config { optimizer: Optimizer::sgd(1.0), ..config },
            "momentum: expected 0 to below 1, got 1",
        ),
        (
            Config { loss_scale: LossScale::Static { factor: 0.0 }, ..config },
            "loss scale: expected 2^-16 to 2^24, got 0",
        ),
        (
            Config { way: Some(Way::Sequence), ..config },
            "hidden: expected 1 to 256 in a launch for all steps, got 300",
        ),
    ] {
        let wide = Model { network: Network { hidden: 300, ..model.network }, ..model };
        refused(wide, own, &data, &starts, said);
    }
    let one_layer = Model::forecast(Network::lstm(2, 5));
    let said = "dropout: expected 0 in a network of one layer, got 0.5";
    refused(one_layer, Config { dropout: 0.5, ..config }, &data, &starts, said);
    let said = "outputs: expected 1 to 2, the columns of the data, got 3";
    refused(Model { outputs: 3, ..model }, config, &data, &starts, said);
    let said = "columns of the data: expected 3, the network's inputs, got 2";
    refused(Model::forecast(Network::lstm(3, 5)), config, &data, &starts, said);
    refused(model, config, &data, &[], "windows: expected 1 to 1073741824, got 0");
    refused(model, config, &data, &[3, 10], "start of window 1: expected 0 to 9, got 10");
    let said = "rows of the data: expected at least 5, a window and its target, got 4";
    refused(model, config, &waves(4), &[0], said);
    let half = Data::Series { values: vec![1.0; 21], columns: 2 };
    refused(model, config, &half, &[0], "numbers of the data: expected rows of 2, got 21");
    let of_text = Model::characters(Network::lstm(5, 4));
    let odd = Data::Text { tokens: vec![0, 4, 5, 1, 1, 1, 1], classes: 5 };
    refused(of_text, config, &odd, &[0], "token 2: expected 0 to 4, got 5");
    let said = "outputs: expected 5, the classes of the data, got 4";
    refused(Model { outputs: 4, ..of_text }, config, &text(20), &[0], said);

    let mut evaluator = Evaluator::new(device, model, config, &data).unwrap();
    let mut parameters = model.initial(DType::F32, 0);
    parameters.remove("head_bias");
    let error = evaluator.load(&parameters).unwrap_err().to_string();
    assert_eq!(error, "tensor 'head_bias': expected f32 [2], got none");
    let mut stream = Stream::new(device, model, &model.initial(DType::F32, 0)).unwrap();
    let error = stream.step(&[1.0]).unwrap_err().to_string();
    assert_eq!(error, "columns of x: expected 2, got 1");
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::trainer::order;

    #[test]
    fn every_epoch_has_all_windows_in_an_order_of_its_own() {
        let starts: Vec<usize> = (0..100).map(|n| 3 * n).collect();
        let config = Config { seed: 9, ..Config::default() };
        let all: Vec<Vec<usize>> = (0..4).map(|epoch| order(&starts, &config, epoch)).collect();
        for (n, order) in all.iter().enumerate() {
            assert!(all[..n].iter().all(|other| other != order));
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert_eq!(sorted, starts);
        }
        assert_eq!(order(&starts, &config, 2), all[2]);
        assert_ne!(order(&starts, &Config { seed: 10, ..config }, 2), all[2]);
        assert_eq!(order(&starts, &Config { shuffle: false, ..config }, 2), starts);
    }
}
