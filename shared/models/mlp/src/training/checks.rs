//! What must hold of training, against the f64 reference.

use lab_device::{DType, Device};
use lab_harness::suite::{Check, Suite};
use lab_harness::{Tensor, Tensors};
use lab_reference::mlp::{Parameters, Sizes};
use lab_reference::training::{Adam, AdamState, Sgd, clip_factor, global_norm};
use lab_training::Configuration;

use super::{Checkpoint, Config, Data, Error, Evaluator, Model, Optimizer, Schedule, Trainer};

/// The checks of this crate: they need kernels of mlp_fused that nothing else launches.
pub static SUITE: Suite = Suite::new("lab-mlp", "mlp_fused", CHECKS);

static CHECKS: &[Check] = &[
    Check::new("training_follows_the_reference", training_follows_the_reference),
    Check::new("training_in_halves_stays_near", training_in_halves_stays_near),
    Check::new("pairs_that_are_not_there", pairs_that_are_not_there),
    Check::new("a_resumed_run_is_the_same", a_resumed_run_is_the_same),
    Check::new("the_first_bad_tensor_is_named", the_first_bad_tensor_is_named),
    Check::new("training_that_cannot_be_is_refused", training_that_cannot_be_is_refused),
];

const MODEL: Model = Model { vocabulary: 11, embedding: 6, hidden: 9 };

fn data() -> Data {
    let next = |t: &mut i32, step: i32| {
        *t = (*t * 3 + 1 + step % 4 / 3) % 11;
        *t
    };
    let mut token = 1;
    Data { tokens: (0..90).map(|step| next(&mut token, step)).collect(), vocabulary: 11 }
}

fn parameters_of(tensors: &Tensors) -> Parameters {
    let [emb, w1, b1, w2, b2] = Parameters::NAMES.map(|name| tensors[name].values());
    Parameters { emb, w1, b1, w2, b2 }
}

/// What the reference makes of so many epochs: the losses of all steps, and the parameters.
fn followed(
    model: Model,
    config: &Config,
    data: &Data,
    starts: &[usize],
    epochs: usize,
) -> (Vec<f64>, Parameters) {
    let sizes: Sizes = model.sizes();
    let mut p = parameters_of(&model.initial(config.seed));
    let mut first: Vec<Vec<f64>> = p.all().map(|p| vec![0.0; p.len()]).into();
    let mut adam: Vec<AdamState> = p.all().map(|p| AdamState::new(p.len())).into();
    let mut losses = Vec::new();
    for epoch in 0..epochs {
        for chunk in config.course().order(starts, epoch).chunks(config.batch) {
            let ids = |by: usize| chunk.iter().map(|s| data.tokens[s + by] as usize).collect();
            let (tokens, targets): (Vec<_>, Vec<_>) = (ids(0), ids(1));
            let (loss, mut gradient) = sizes.loss_and_gradient(&p, &tokens, &targets);
            let lr = config.schedule.at(losses.len());
            losses.push(loss);
            if let Some(clip) = config.clip {
                let norm = global_norm(gradient.all().map(Vec::as_slice));
                let factor = clip_factor(norm, clip);
                for g in gradient.all_mut() {
                    g.iter_mut().for_each(|g| *g *= factor);
                }
            }
            for (at, (p, g)) in p.all_mut().into_iter().zip(gradient.all()).enumerate() {
                match config.optimizer {
                    Optimizer::Sgd { momentum, weight_decay } => {
                        Sgd { lr, momentum, weight_decay }.step(p, g, &mut first[at]);
                    }
                    Optimizer::Adam { betas, eps, weight_decay, decoupled } => {
                        let rule = Adam { lr, betas, eps, weight_decay, decoupled };
                        rule.step(p, g, &mut adam[at]);
                    }
                }
            }
        }
    }
    (losses, p)
}

fn configs() -> [Config; 5] {
    let usual = Config { batch: 8, seed: 3, ..Config::default() };
    let rate = Schedule::constant;
    [
        Config { schedule: rate(0.5), ..usual },
        Config { schedule: rate(0.2), clip: Some(0.3), ..usual },
        Config { optimizer: Optimizer::sgd(0.9), schedule: rate(0.05), shuffle: false, ..usual },
        Config { optimizer: Optimizer::adam(), schedule: rate(0.01), ..usual },
        Config {
            optimizer: Optimizer::adamw(0.1),
            schedule: Schedule { warm_up: 4, ..rate(0.02) },
            batch: 64,
            ..usual
        },
    ]
}

/// Losses and parameters over two epochs of a text whose pairs are no multiple of a batch; and the
/// evaluator's.
pub(crate) fn training_follows_the_reference(device: &Device) {
    let data = data();
    let starts = data.starts();
    for config in configs() {
        let mut trainer = Trainer::new(device, MODEL, config, &data, &starts).unwrap();
        let epochs = [trainer.epoch().unwrap(), trainer.epoch().unwrap()];
        let (losses, expected) = followed(MODEL, &config, &data, &starts, 2);
        let got = epochs.iter().flat_map(|e| &e.losses);
        for (step, (got, expected)) in got.zip(&losses).enumerate() {
            assert!((got - expected).abs() <= 1e-5, "{config:?}: step {step}: {got}, {expected}");
        }
        let got = parameters_of(&trainer.parameters().unwrap());
        for ((name, got), expected) in Parameters::NAMES.iter().zip(got.all()).zip(expected.all()) {
            for (got, expected) in got.iter().zip(expected) {
                assert!((got - expected).abs() <= 2e-5, "{config:?} {name}: {got}, {expected}");
            }
        }
        let mut evaluator = Evaluator::new(device, MODEL, config, &data).unwrap();
        evaluator.load(&trainer.parameters().unwrap()).unwrap();
        let ids = |by: usize| starts.iter().map(|s| data.tokens[s + by] as usize).collect();
        let (tokens, targets): (Vec<_>, Vec<_>) = (ids(0), ids(1));
        let (loss, _) = MODEL.sizes().loss_and_gradient(&expected, &tokens, &targets);
        let got = evaluator.loss(&starts).unwrap();
        assert!((got - loss).abs() <= 1e-5, "{config:?}: {got}, not {loss}");
        let context = [1, 4, 4, 10];
        let got = evaluator.predict(&context).unwrap();
        let expected = MODEL.sizes().probabilities(&expected, &context.map(|t| t as usize));
        for (got, expected) in got.iter().zip(&expected) {
            assert!((got - expected).abs() <= 1e-5, "{config:?}: {got}, not {expected}");
        }
    }
}

/// The tensor cores take w2 and what they multiply it with in bf16; what is trained is in f32.
pub(crate) fn training_in_halves_stays_near(device: &Device) {
    let data = data();
    let starts = data.starts();
    for config in [configs()[0], configs()[3]] {
        let halves = Config { dtype: DType::BF16, ..config };
        let mut trainer = Trainer::new(device, MODEL, halves, &data, &starts).unwrap();
        let epochs = [trainer.epoch().unwrap(), trainer.epoch().unwrap()];
        let (losses, _) = followed(MODEL, &config, &data, &starts, 2);
        let got = epochs.iter().flat_map(|e| &e.losses);
        let apart: f64 = got.zip(&losses).map(|(got, expected)| (got - expected).powi(2)).sum();
        let error = (apart / losses.iter().map(|l| l * l).sum::<f64>()).sqrt();
        // At most four times what was seen; and no more exact than it can be.
        assert!((1e-5..=3e-3).contains(&error), "{halves:?}: {error:.2e}");
        let mut evaluator = Evaluator::new(device, MODEL, halves, &data).unwrap();
        evaluator.load(&trainer.parameters().unwrap()).unwrap();
        let mut exact = Evaluator::new(device, MODEL, config, &data).unwrap();
        exact.load(&trainer.parameters().unwrap()).unwrap();
        let [got, expected] = [&mut evaluator, &mut exact].map(|e| e.loss(&starts).unwrap());
        assert!((got - expected).abs() <= 2e-2 * expected, "{halves:?}: {got}, not {expected}");
    }
}

/// Each epoch is one step that has fewer pairs than a batch, and more logits than a block has threads: in the
/// first nothing was written before, in the second the logits of no pair are not zero by themselves.
pub(crate) fn pairs_that_are_not_there(device: &Device) {
    let model = Model { vocabulary: 300, ..MODEL };
    let data = Data { tokens: (0..40).map(|n| n * 37 % 300).collect(), vocabulary: 300 };
    let starts = [3, 9, 11, 20, 38];
    for (dtype, bound) in [(DType::F32, 2e-5), (DType::BF16, 2e-3)] {
        let config = Config { dtype, ..configs()[0] };
        let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
        let losses: Vec<f64> = (0..2).flat_map(|_| trainer.epoch().unwrap().losses).collect();
        let (expected, of) = followed(model, &config, &data, &starts, 2);
        assert_eq!((losses.len(), expected.len()), (2, 2));
        for (loss, exact) in losses.iter().zip(&expected) {
            assert!((loss - exact).abs() <= bound, "{dtype}: {losses:?}, {expected:?}");
        }
        let got = parameters_of(&trainer.parameters().unwrap());
        for ((name, got), of) in Parameters::NAMES.iter().zip(got.all()).zip(of.all()) {
            for (got, of) in got.iter().zip(of) {
                assert!((got - of).abs() <= bound, "{dtype} {name}: {got}, {of}");
            }
        }
    }
}

/// Bit for bit: again, and from a checkpoint at any step.
pub(crate) fn a_resumed_run_is_the_same(device: &Device) {
    let data = data();
    let starts = data.starts();
    let halves = Config { dtype: DType::BF16, ..configs()[0] };
    for config in [configs()[0], configs()[3], halves] {
        let to_the_end = |mut trainer: Trainer| {
            while trainer.position().epoch < 3 {
                trainer.epoch().unwrap();
            }
            trainer.checkpoint().unwrap()
        };
        let start = || Trainer::new(device, MODEL, config, &data, &starts).unwrap();
        let whole = to_the_end(start());
        assert_eq!(to_the_end(start()), whole, "again");
        for steps in [0, 1, 7, 12] {
            let mut trainer = start();
            trainer.run(steps).unwrap();
            let checkpoint: Checkpoint = trainer.checkpoint().unwrap();
            let resumed = Trainer::resume(device, &checkpoint, &data, &starts).unwrap();
            assert_eq!(to_the_end(resumed), whole, "from step {steps}");
        }
    }
}

/// A loss that is no number: the step, the tensor, and the parameters as they were.
pub(crate) fn the_first_bad_tensor_is_named(device: &Device) {
    let data = data();
    let halves = Config { dtype: DType::BF16, ..configs()[0] };
    for config in [configs()[0], configs()[3], halves] {
        let mut trainer = Trainer::new(device, MODEL, config, &data, &data.starts()).unwrap();
        trainer.run(3).unwrap();
        let mut checkpoint = trainer.checkpoint().unwrap();
        let mut values = checkpoint.parameters["w1"].values();
        values[7] = f64::NAN;
        let shape = checkpoint.parameters["w1"].shape.clone();
        let bad = Tensor::rounded(DType::F32, &shape, &values);
        checkpoint.parameters.insert("w1".into(), bad);
        let mut trainer = Trainer::resume(device, &checkpoint, &data, &data.starts()).unwrap();
        let before = trainer.parameters().unwrap();
        for _ in 0..2 {
            match trainer.run(20).unwrap_err() {
                Error::NotFinite { epoch: 0, step: 3, tensor, index: 7, .. } => {
                    assert_eq!(tensor, "w1");
                }
                other => panic!("{other}"),
            }
            let bits = |t: &Tensors| t.values().map(|t| t.bytes.clone()).collect::<Vec<_>>();
            assert_eq!(bits(&trainer.parameters().unwrap()), bits(&before));
        }
    }
}

/// What cannot be trained is refused by name.
pub(crate) fn training_that_cannot_be_is_refused(device: &Device) {
    let (data, config) = (data(), Config::default());
    let starts = data.starts();
    let refused = |model, config, data: &Data, starts: &[usize], said: &str| {
        let error = Trainer::new(device, model, config, data, starts).unwrap_err().to_string();
        assert_eq!(error, said);
    };
    let wide = Model { hidden: 4097, ..MODEL };
    refused(wide, config, &data, &starts, "hidden: expected 1 to 4096, got 4097");
    let none = Model { embedding: 0, ..MODEL };
    refused(none, config, &data, &starts, "embedding: expected 1 to 4096, got 0");
    let other = Model { vocabulary: 12, ..MODEL };
    let said = "vocabulary of the data: expected 12, the model's, got 11";
    refused(other, config, &data, &starts, said);
    let empty = Config { batch: 0, ..config };
    refused(MODEL, empty, &data, &starts, "batch: expected 1 to 32768, got 0");
    let still = Config { schedule: Schedule::constant(0.0), ..config };
    refused(MODEL, still, &data, &starts, "learning rate: expected a number above 0, got 0");
    let clip = Config { clip: Some(-1.0), ..config };
    refused(MODEL, clip, &data, &starts, "clip: expected a number above 0, got -1");
    let doubles = Config { dtype: DType::F64, ..config };
    refused(MODEL, doubles, &data, &starts, "dtype: expected f32 or bf16, got f64");
    refused(MODEL, config, &data, &[], "pairs: expected 1 to 1073741824, got 0");
    refused(MODEL, config, &data, &[0, 89], "start of pair 1: expected 0 to 88, got 89");
    let mut strange = data.clone();
    strange.tokens[4] = 11;
    refused(MODEL, config, &strange, &starts, "token 4: expected 0 to 10, got 11");
    let short = Data { tokens: vec![3], ..data.clone() };
    refused(MODEL, config, &short, &[0], "tokens: expected 2 to 1073741824, got 1");

    let mut evaluator = Evaluator::new(device, MODEL, config, &data).unwrap();
    let said = |result: Result<(), Error>, said: &str| {
        assert_eq!(result.unwrap_err().to_string(), said);
    };
    said(evaluator.loss(&[89]).map(drop), "start of pair 0: expected 0 to 88, got 89");
    said(evaluator.predict(&[]).map(drop), "context: expected at least one token, got none");
    said(evaluator.predict(&[2, -1]).map(drop), "token 1: expected 0 to 10, got -1");
    let mut parameters = MODEL.initial(0);
    parameters.remove("b1");
    said(evaluator.load(&parameters), "tensor 'b1': expected f32 [9], got none");
}
