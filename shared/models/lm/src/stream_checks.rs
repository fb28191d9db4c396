//! What must hold of windows that have several documents, and of streams whose state goes from window to window.

use lab_device::{DType, Device};
use lab_harness::{Tensor, Tensors};

use crate::check_data::{norm, recurrent, small, spread, tempfile_directory, tokens};
use crate::{Checkpoint, Config, Decay, Model, Schedule, Tokens, Trainer};

/// So small a rate that parameters stay as they are.
const STILL: Schedule = Schedule { rate: 1e-30, warm_up: 0, decay: Decay::Constant };

/// A training of these parameters, from a step of an epoch on where a checkpoint is there.
fn trainer(
    device: &Device,
    (model, config): (Model, Config),
    (data, starts): (&Tokens, &[usize]),
    parameters: &Tensors,
    from: Option<&Checkpoint>,
) -> Trainer {
    let first = || Trainer::new(device, model, config, data, starts).unwrap().checkpoint().unwrap();
    let mut checkpoint = from.cloned().unwrap_or_else(first);
    checkpoint.parameters = parameters.clone();
    Trainer::resume(device, &checkpoint, data, starts).unwrap()
}

/// Of two documents in a window the second has the loss and the gradients that it has alone, whatever stands in the first; without the
/// reset it has others.
pub(crate) fn a_second_document_is_learnt_as_alone(device: &Device) {
    let model = small();
    let parameters = spread(&model, 6);
    let (first, [before, own]) = (7, [13, 20]);
    let ids = |salt: usize, len: usize| -> Vec<i32> {
        (0..len).map(|n| if n == 0 { first } else { ((n * n + salt) % 7) as i32 }).collect()
    };
    // The last target is the beginning of a third.
    let document = [ids(3, own), vec![first]].concat();
    let run = |dtype, salt: Option<usize>, is_reset: bool| {
        let other = salt.map_or_else(Vec::new, |salt| ids(salt, before));
        let targets = [vec![-1; other.len()], document[1..].to_vec(), vec![-1]].concat();
        let window = other.len() + own;
        let data =
            Tokens { ids: [other, document.clone()].concat(), targets: Some(targets), files: None };
        let config = Config {
            window,
            batch: 1,
            dtype,
            clip: None,
            schedule: STILL,
            document: is_reset.then_some(first),
            ..Config::default()
        };
        let mut trainer = trainer(device, (model, config), (&data, &[0]), &parameters, None);
        (trainer.epoch().unwrap().loss, trainer.gradients().unwrap())
    };
    for (dtype, bound) in [(DType::F32, 1e-5), (DType::BF16, 0.05)] {
        let (loss, gradients) = run(dtype, None, false);
        for salt in [0, 4] {
            let (found, others) = run(dtype, Some(salt), true);
            assert!((found - loss).abs() <= bound * loss, "{dtype}: {found} for {loss}");
            let far = distance(&others, &gradients);
            assert!(far <= bound, "{dtype}: gradients are off by {far}");
        }
        let (mixed, others) = run(dtype, Some(0), false);
        let far = distance(&others, &gradients);
        assert!(far > 2.0 * bound && mixed != loss, "{dtype}: without a reset {mixed}, {far}");
    }
}

fn distance(found: &Tensors, expected: &Tensors) -> f64 {
    let all = |of: &Tensors| of.values().flat_map(Tensor::values).collect::<Vec<f64>>();
    let (found, expected) = (all(found), all(expected));
    let apart: Vec<f64> = found.iter().zip(&expected).map(|(a, b)| a - b).collect();
    norm(&apart) / norm(&expected)
}

/// One block of the vLSTM.
fn tiny() -> Model {
    Model { hidden: 48, ..Model::xlstm(19, 32, 1, 1) }
}

/// Models whose state is carried, with the type that they run in, and how far a loss in it may be off.
fn carried() -> [(Model, DType, f64); 2] {
    [(recurrent(), DType::F32, 1e-5), (tiny(), DType::BF16, 1e-2)]
}

/// Windows of `window` tokens, as two streams a step where the states are carried.
fn streams(data: &Tokens, window: usize) -> Vec<usize> {
    Tokens::streams(&data.starts(window), 2)
}

fn config(dtype: DType, window: usize) -> Config {
    let (batch, in_order) = (2, true);
    Config { window, batch, dtype, in_order, clip: None, schedule: STILL, ..Config::default() }
}

/// Two windows, the second behind the first, have the loss of one that is as long as both. The next epoch begins anew.
pub(crate) fn two_windows_are_one_that_is_as_long(device: &Device) {
    for (model, dtype, bound) in carried() {
        let parameters = spread(&model, 8);
        let data = tokens(2 * 48 + 1, model.vocabulary);
        let losses = |window: usize, carry_state: bool, epochs: usize| -> Vec<f64> {
            let starts = streams(&data, window);
            let config = Config { carry_state, ..config(dtype, window) };
            let mut trainer = trainer(device, (model, config), (&data, &starts), &parameters, None);
            (0..epochs).map(|_| trainer.epoch().unwrap().loss).collect()
        };
        let whole = losses(48, false, 1)[0];
        let found = losses(24, true, 2);
        assert!((found[0] - whole).abs() <= bound * whole, "{dtype}: {} for {whole}", found[0]);
        assert!(found[0] == found[1], "{dtype}: {found:?}");
        let apart = losses(24, false, 1)[0];
        assert!(
            (apart - whole).abs() > 2.0 * (found[0] - whole).abs(),
            "{dtype}: {apart}, {whole}"
        );
    }
}

/// The gradient of a window that goes on is that of its loss behind the state as it is: what the loss grows by along it says its size. Of the
/// vLSTM it is not, for its backward pass holds the normaliser constant.
pub(crate) fn a_gradient_behind_a_state_is_that_of_the_loss(device: &Device) {
    let (model, config) = (recurrent(), Config { carry_state: true, ..config(DType::F32, 24) });
    let parameters = spread(&model, 9);
    let data = tokens(2 * 48 + 1, model.vocabulary);
    let starts = streams(&data, 24);
    let (of, what) = ((model, config), (&data, starts.as_slice()));
    let behind = behind_a_step(device, of, what, &parameters);
    let run = |parameters: &Tensors| {
        let mut trainer = trainer(device, of, what, parameters, Some(&behind));
        let loss = trainer.epoch().unwrap().losses[1];
        (loss, trainer.gradients().unwrap())
    };
    let (_, gradients) = run(&parameters);
    let all: Vec<f64> = gradients.values().flat_map(Tensor::values).collect();
    let size = norm(&all);
    let moved = |by: f64| {
        let mut moved = parameters.clone();
        for (name, tensor) in &mut moved {
            let along = gradients[name].values().into_iter();
            let values: Vec<f64> =
                tensor.values().into_iter().zip(along).map(|(p, g)| p + by * g / size).collect();
            *tensor = Tensor::rounded(DType::F32, &tensor.shape, &values);
        }
        run(&moved).0
    };
    const WAY: f64 = 5e-3;
    let slope = (moved(WAY) - moved(-WAY)) / (2.0 * WAY);
    assert!((slope - size).abs() <= 2e-3 * size, "{slope} along {size}");
}

/// Of streams, what a checkpoint behind the first step of an epoch has.
fn behind_a_step(
    device: &Device,
    of: (Model, Config),
    what: (&Tokens, &[usize]),
    parameters: &Tensors,
) -> Checkpoint {
    let mut first = trainer(device, of, what, parameters, None);
    first.run(1).unwrap();
    let behind = first.checkpoint().unwrap();
    assert!(!behind.states.is_empty(), "states are kept");
    behind
}

/// The backward pass reads the state that its window began with, and not the one that it has left there: tokens behind the last target
/// change the latter, and no gradient.
pub(crate) fn tokens_behind_the_last_target_change_no_gradient(device: &Device) {
    for (model, dtype, _) in carried() {
        let parameters = spread(&model, 10);
        let run = |last: i32| {
            let mut data = tokens(2 * 48 + 1, model.vocabulary);
            let mut targets: Vec<i32> = data.ids[1..].iter().copied().chain([-1]).collect();
            for end in [48, 96] {
                data.ids[end - 6..end].fill(last);
                targets[end - 7..end].fill(-1);
            }
            let data = Tokens { targets: Some(targets), ..data };
            let starts = streams(&data, 24);
            let (of, what) =
                ((model, Config { carry_state: true, ..config(dtype, 24) }), (&data, &starts[..]));
            let mut trainer = trainer(device, of, what, &parameters, None);
            trainer.run(1).unwrap();
            let first = trainer.checkpoint().unwrap().states;
            trainer.epoch().unwrap();
            (first, trainer.checkpoint().unwrap().states, trainer.gradients().unwrap())
        };
        let [(first, last, gradients), (same, others, found)] = [3, 11].map(run);
        assert!(first == same && last != others, "{dtype}: states of the second windows differ");
        let far = distance(&found, &gradients);
        // The vLSTM's gates are held against the largest of all.
        let bound = if dtype == DType::F32 { 1e-6 } else { 1e-3 };
        assert!(far <= bound, "{dtype}: gradients are off by {far}");
    }
}

/// Bit for bit, stopped between two windows of a stream, in parts of a step that are others before and behind.
pub(crate) fn a_training_of_streams_is_resumed(device: &Device) {
    for (model, dtype, _) in carried() {
        let data = tokens(4 * 36 + 1, model.vocabulary);
        let starts = Tokens::streams(&data.starts(12), 4);
        let config = Config {
            batch: 2,
            accumulate: 2,
            carry_state: true,
            schedule: Schedule::constant(1e-3),
            ..config(dtype, 12)
        };
        let mut whole = Trainer::new(device, model, config, &data, &starts).unwrap();
        let mut first = Trainer::new(device, model, config, &data, &starts).unwrap();
        whole.epoch().unwrap();
        whole.run(1).unwrap();
        first.run(2).unwrap();
        let directory = tempfile_directory();
        let file = directory.join("streams.safetensors");
        first.checkpoint().unwrap().write(&file).unwrap();
        let read = Checkpoint::read(&file).unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        let mut second = Trainer::resume(device, &read, &data, &starts).unwrap();
        second.epoch().unwrap();
        second.run(1).unwrap();
        assert!(whole.checkpoint().unwrap() == second.checkpoint().unwrap(), "{dtype}");

        let other = Checkpoint { config: Config { carry_state: false, ..config }, ..read.clone() };
        let error = Trainer::resume(device, &other, &data, &starts).expect_err("states of nobody");
        assert!(error.to_string().contains("its steps hand no state on"), "{error}");
        let mut without = read;
        without.states.pop_last();
        let error =
            Trainer::resume(device, &without, &data, &starts).expect_err("a state is missing");
        assert!(error.to_string().contains("elements, got none"), "{error}");
    }
}

/// A training on files of tokens is that on the same tokens in memory, over more steps than the device has windows of at once, and where it is
/// resumed between.
pub(crate) fn tokens_of_files_are_as_those_in_memory(device: &Device) {
    let model = tiny();
    // 35 windows are 18 steps, the last with one window.
    let data = tokens(35 * 8 + 1, model.vocabulary);
    let starts = data.starts(8);
    let directory = tempfile_directory();
    let paths = [directory.join("a.tokens"), directory.join("b.tokens")];
    for (path, ids) in paths.iter().zip([&data.ids[..100], &data.ids[100..]]) {
        let ids = ids.to_vec();
        crate::TokenFile { vocabulary: model.vocabulary, bytes: 1, ids }.write(path).unwrap();
    }
    let files = Tokens::of_files(crate::TokenFiles::open(&paths).unwrap());
    assert_eq!(files.starts(8), starts);
    let config = Config { window: 8, batch: 2, ..Config::default() };
    let mut expected = Trainer::new(device, model, config, &data, &starts).unwrap();
    let mut found = Trainer::new(device, model, config, &files, &starts).unwrap();
    let loss = expected.epoch().unwrap().loss;
    assert_eq!(found.epoch().unwrap().loss, loss);
    expected.run(2).unwrap();
    found.run(1).unwrap();
    let middle = found.checkpoint().unwrap();
    let mut resumed = Trainer::resume(device, &middle, &files, &starts).unwrap();
    resumed.run(1).unwrap();
    assert_eq!(resumed.losses().unwrap(), expected.losses().unwrap());
    assert!(resumed.parameters().unwrap() == expected.parameters().unwrap());
    let (own, places) = files.excerpt(&starts[7..9], 8).unwrap();
    assert_eq!(own.ids[places[1]..], data.ids[starts[8]..=starts[8] + 8]);
    let in_memory = Trainer::resume(device, &middle, &data, &starts).expect_err("other data");
    assert!(in_memory.to_string().contains("those that it was taken with"), "{in_memory}");
    std::fs::remove_dir_all(&directory).unwrap();
}

/// By what is wrong, with the mixer's name.
pub(crate) fn documents_and_streams_are_refused_where_they_cannot_be(device: &Device) {
    let data = tokens(200, 19);
    let windows = data.starts(24);
    let said = |model: Model, config: Config, starts: &[usize]| {
        Trainer::new(device, model, config, &data, starts).expect_err("refused").to_string()
    };
    let attention = small().with_mixers("7 vlstm : 1 attention".parse().expect("a pattern"), None);
    let documents = Config { document: Some(3), ..config(DType::F32, 24) };
    for model in [attention, recurrent()] {
        let expected = format!(
            "mixer of windows with documents: expected vlstm alone, whose forget gate shuts where a document begins, got {}",
            model.mixers
        );
        assert_eq!(said(model, documents, &windows), expected);
    }
    let beyond = Config { document: Some(19), ..documents };
    assert_eq!(said(small(), beyond, &windows), "token: expected 0 to 18, got 19");

    let carry = Config { carry_state: true, ..config(DType::F32, 24) };
    let streams = streams(&data, 24);
    for (model, config, starts, expected) in [
        (
            attention,
            carry,
            &streams,
            "mixer whose state is carried: expected none that keeps all positions",
        ),
        (small(), carry, &streams, "dtype of a training that carries states: expected bf16"),
        (
            recurrent(),
            Config { in_order: false, ..carry },
            &streams,
            "windows of streams: expected those in order",
        ),
        (
            recurrent(),
            Config { batch: 3, ..carry },
            &streams,
            "windows of streams: expected a multiple of 3",
        ),
        (recurrent(), carry, &windows, "start of window 2: expected 24, got 48"),
    ] {
        let said = said(model, config, starts);
        assert!(said.starts_with(expected), "{said}");
    }
}
