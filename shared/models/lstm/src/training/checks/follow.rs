//! Against the reference, and against differences.

use lab_device::{DType, Device};
use lab_harness::suite::without_checks;
use lab_harness::{Tensor, Tensors};
use lab_reference::lstm::{Cell, Network};

use super::{series, text, waves};
use crate::training::reference::{Reference, mask, philox};
use crate::training::{
    Config, Data, Decay, Evaluator, Head, LossScale, Model, Optimizer, Schedule, Trainer,
};
use lstm_fused::Way;

/// A case of [`training_follows_the_reference`].
#[derive(Clone)]
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) model: Model,
    pub(super) config: Config,
    pub(super) data: Data,
}

/// Each option in one of them at least. Batches do not divide the windows.
pub(super) fn cases() -> Vec<Case> {
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
                // More elements than a block has threads, of x and of what is dropped.
                batch: 26,
                ..config
            },
            waves(80),
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
            "more parameters than a block of the optimizer has, more columns than a warp",
            Model::characters(Network::lstm(5, 70)),
            Config {
                optimizer: adam(0.01, true),
                clip: Some(0.1),
                window: 3,
                schedule: rate(3e-3),
                ..config
            },
            text(13),
        ),
        case(
            "more outputs and columns than a warp has lanes",
            Model::characters(Network::lstm(40, 38)),
            Config { optimizer: sgd(0.0, 0.0), schedule: rate(0.5), window: 3, ..config },
            Data::Text { tokens: (0..14).map(|t| t * 11 % 40).collect(), classes: 40 },
        ),
        case(
            "more columns of a series than a warp has lanes, no room behind the last parameter, clipped",
            Model::forecast(Network::lstm(64, 4)),
            Config {
                optimizer: sgd(0.0, 0.0),
                schedule: rate(0.5),
                window: 3,
                clip: Some(0.05),
                ..config
            },
            Data::Series {
                values: (0..14 * 64).map(|n| (f64::from(n) * 0.37).sin()).collect(),
                columns: 64,
            },
        ),
        case(
            "a GRU",
            Model::forecast(Network { layers: 2, ..Network::gru(2, 5) }),
            // Gradients are smaller than that, and stay as they are.
            Config {
                optimizer: adam(0.0, false),
                dropout: 0.5,
                shuffle: false,
                clip: Some(50.0),
                ..config
            },
            waves(15),
        ),
        case(
            "an sLSTM of two layers with dropout on a series",
            Model::forecast(Network { layers: 2, ..Network::slstm(2, 6, 3) }),
            Config { optimizer: adam(0.1, true), dropout: 0.5, ..config },
            waves(15),
        ),
        case(
            "an sLSTM without biases on a text, clipped",
            Model::characters(Network { bias: false, ..Network::slstm(5, 40, 2) }),
            Config { optimizer: sgd(0.9, 0.02), schedule: rate(0.3), clip: Some(0.2), ..config },
            text(18),
        ),
    ]
}

/// The largest |a − b| of a parameter, by the largest of all in it.
fn apart(got: &Tensors, expected: &lab_reference::lstm::Tensors) -> f64 {
    assert_eq!(got.len(), expected.len());
    let of = |(name, tensor): (&String, &Tensor)| {
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

/// In f64, and in f32 as far as its roundings go. What a way computes is held against the reference
/// elsewhere: here each has a case or all, and none both types.
pub(crate) fn training_follows_the_reference(device: &Device) {
    const F32: (DType, f64) = (DType::F32, 3.5e-6);
    for (n, case) in cases().into_iter().enumerate() {
        let cell = case.model.network.cell;
        let mut ways = Vec::new();
        // An sLSTM has no kernels for f64.
        ways.extend((!cell.is_slstm()).then_some((Way::Cell, (DType::F64, 5e-15))));
        ways.push(if cell == Cell::Lstm { (Way::Sequence, F32) } else { (Way::Cell, F32) });
        ways.extend((n < 2).then_some((Way::Cluster, F32)));
        for (way, (dtype, bound)) in ways {
            let config = Config { dtype, way: Some(way), ..case.config };
            let Case { name, model, data, .. } = &case;
            let own = Case { name, model: *model, config, data: data.clone() };
            for apart in follow(device, &own) {
                assert!(apart <= bound, "{name} in {dtype} by {way:?}: {apart:.2e} apart");
            }
        }
    }
}

/// All windows are in the one step of an epoch then.
pub(crate) fn a_batch_may_be_larger_than_the_data(device: &Device) {
    let (model, config, data, starts) = series(Config { dtype: DType::F64, ..Config::default() });
    // More rows than the block has threads that adds up their losses, and such with a window behind.
    let model = Model { head: Head::EveryStep, ..model };
    let config = Config { batch: 90, ..config };
    let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
    let first = trainer.parameters().unwrap();
    let mut reference = Reference::new(model, config, &data, &starts, &first);
    for epoch in 0..3 {
        let [loss, expected] = [trainer.epoch().unwrap().loss, reference.step()];
        assert!((loss - expected).abs() <= 5e-15, "epoch {epoch}: {loss}, not {expected}");
    }
}

/// Parameters are kept in f32: after some steps they are as near to the reference as the type's
/// roundings of the gradients leave them, which descent adds up.
pub(crate) fn training_in_halves_stays_near(device: &Device) {
    for (dtype, bound) in [(DType::F16, 3e-3), (DType::BF16, 4e-2)] {
        let (slstms, others): (Vec<Case>, Vec<Case>) =
            cases().into_iter().partition(|case| case.model.network.cell.is_slstm());
        let mut all = [&others[..2], &slstms].concat();
        if dtype == DType::F16 {
            // On tensor cores: a layer that has few columns of x, and one that has a multiple of 8.
            let Case { model, config, data, .. } = all[0].clone();
            let network = Network { layers: 2, hidden: 8, ..model.network };
            let config = Config { way: Some(Way::TensorProduct), ..config };
            all.push(Case {
                name: "on tensor cores",
                model: Model { network, ..model },
                config,
                data,
            });
            let Case { name, model, config, .. } = all[1].clone();
            assert!(name.contains("text"), "{name}");
            // More outputs than lanes, and more rows than a tile has, of which some have no window.
            let Data::Text { tokens, .. } = text(170) else { unreachable!() };
            let data = Data::Text { tokens, classes: 70 };
            let model = Model::characters(Network { inputs: 70, hidden: 16, ..model.network });
            let config = Config { way: Some(Way::TensorProduct), batch: 50, ..config };
            all.push(Case { name: "a text on tensor cores", model, config, data });
            let Case { model, config, data, .. } = slstms[0].clone();
            let config = Config { way: Some(Way::Tensor), ..config };
            all.push(Case { name: "an sLSTM on tensor cores", model, config, data });
        }
        for mut case in all {
            case.config.dtype = dtype;
            case.config.loss_scale = LossScale::Static { factor: 256.0 };
            let apart = follow(device, &case);
            for apart in apart {
                assert!(apart <= bound, "{} in {dtype}: {apart:.2e} apart", case.name);
            }
        }
    }
}

/// Of the loss that [`Evaluator`] gives, by every parameter, in f64; those of the sLSTM are held against the reference.
pub(crate) fn gradients_are_those_of_differences(device: &Device) {
    const STEP: f64 = 1e-5;
    let device = &without_checks(device).unwrap(); // some hundred launches of what is checked elsewhere
    for case in cases().into_iter().filter(|case| !case.model.network.cell.is_slstm()) {
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
                    let tensor = Tensor::new(&tensor.shape, &values);
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
