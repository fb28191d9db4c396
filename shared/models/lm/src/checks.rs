//! What must hold of language models, on every device.

use lab_device::{DType, Device};
use lab_harness::suite::{Check, Suite};
use lab_harness::{Tensors, distance_beside};

use crate::batch_checks;
use crate::check_data::{
    attention, mixed, norm, recurrent, small, spread, tempfile_directory, tokens,
};
use crate::draw_checks;
use crate::fill_checks;
use crate::reference::{last_logits, loss_and_gradients};
use crate::state_checks;
use crate::stream_checks;
use crate::sum_checks;
use crate::{
    Config, Decoded, Decoder, Evaluated, Evaluator, Mixer, Mixers, Model, SavedState, Schedule,
    Tokens, Trainer, Writer,
};

/// The checks of this crate. They stand on the passes between mixers most of all.
pub static SUITE: Suite = Suite::new("lab-lm", "passes", CHECKS)
    .with_kernels("shared/models/lm", crate::kernels::KERNELS);

static CHECKS: &[Check] = &[
    Check::new("a_step_follows_the_reference", a_step_follows_the_reference),
    Check::new(
        "a_step_in_parts_is_that_of_the_whole_batch",
        a_step_in_parts_is_that_of_the_whole_batch,
    ),
    Check::new(
        "gradients_are_clipped_by_the_norm_of_all",
        gradients_are_clipped_by_the_norm_of_all,
    ),
    Check::new("gradients_are_of_what_dropout_has_left", gradients_are_of_what_dropout_has_left),
    Check::new("a_resumed_training_is_the_same", a_resumed_training_is_the_same),
    Check::new(
        "a_second_document_is_learnt_as_alone",
        stream_checks::a_second_document_is_learnt_as_alone,
    ),
    Check::new(
        "two_windows_are_one_that_is_as_long",
        stream_checks::two_windows_are_one_that_is_as_long,
    ),
    Check::new(
        "a_gradient_behind_a_state_is_that_of_the_loss",
        stream_checks::a_gradient_behind_a_state_is_that_of_the_loss,
    ),
    Check::new(
        "tokens_behind_the_last_target_change_no_gradient",
        stream_checks::tokens_behind_the_last_target_change_no_gradient,
    ),
    Check::new("a_training_of_streams_is_resumed", stream_checks::a_training_of_streams_is_resumed),
    Check::new(
        "tokens_of_files_are_as_those_in_memory",
        stream_checks::tokens_of_files_are_as_those_in_memory,
    ),
    Check::new(
        "documents_and_streams_are_refused_where_they_cannot_be",
        stream_checks::documents_and_streams_are_refused_where_they_cannot_be,
    ),
    Check::new("a_writer_reads_as_the_model_does", a_writer_reads_as_the_model_does),
    Check::new("sequences_are_decoded_as_alone", sequences_are_decoded_as_alone),
    Check::new(
        "sequences_that_join_and_leave_are_decoded_as_alone",
        batch_checks::sequences_that_join_and_leave_are_decoded_as_alone,
    ),
    Check::new(
        "buckets_of_int8_weights_and_states_of_halves_give_the_same_bits",
        batch_checks::buckets_of_int8_weights_and_states_of_halves_give_the_same_bits,
    ),
    Check::new(
        "a_prompt_in_pieces_is_as_one_at_once",
        batch_checks::a_prompt_in_pieces_is_as_one_at_once,
    ),
    Check::new("tokens_are_drawn_as_on_the_host", draw_checks::tokens_are_drawn_as_on_the_host),
    Check::new(
        "tokens_are_drawn_as_often_as_they_are_likely",
        draw_checks::tokens_are_drawn_as_often_as_they_are_likely,
    ),
    Check::new("equal_logits_share_alike", draw_checks::equal_logits_share_alike),
    Check::new("rows_without_numbers_give_a_token", draw_checks::rows_without_numbers_give_a_token),
    Check::new("a_saved_state_goes_on", a_saved_state_goes_on),
    Check::new(
        "what_a_batch_cannot_take_is_refused",
        batch_checks::what_a_batch_cannot_take_is_refused,
    ),
    Check::new("many_sequences_follow_the_reference", many_sequences_follow_the_reference),
    Check::new("int8_chooses_what_its_reference_chooses", int8_chooses_what_its_reference_chooses),
    Check::new(
        "a_narrow_memory_is_rounded_once_a_token",
        state_checks::a_narrow_memory_is_rounded_once_a_token,
    ),
    Check::new("a_prompt_leaves_a_narrow_memory", state_checks::a_prompt_leaves_a_narrow_memory),
    Check::new(
        "int8_with_a_narrow_memory_chooses_as_its_reference",
        state_checks::int8_with_a_narrow_memory_chooses_as_its_reference,
    ),
    Check::new(
        "losses_by_steps_are_those_of_windows",
        state_checks::losses_by_steps_are_those_of_windows,
    ),
    Check::new(
        "random_weights_are_as_wide_as_first_values",
        fill_checks::random_weights_are_as_wide_as_first_values,
    ),
    Check::new(
        "gradients_are_rounded_to_the_nearest",
        sum_checks::gradients_are_rounded_to_the_nearest,
    ),
    Check::new("a_text_is_learnt", a_text_is_learnt),
    Check::new("what_cannot_be_trained_is_refused", what_cannot_be_trained_is_refused),
];

/// The loss and each gradient of a first step, in both types; the last batch is not full. In one piece; and in two parts, each with its
/// logits in pieces, with a z-loss. Of two mixers, of attention alone, and of what goes step by step.
fn a_step_follows_the_reference(device: &Device) {
    for model in [mixed(), attention(), recurrent()] {
        assert_step_right(device, model);
    }
}

fn assert_step_right(device: &Device, model: Model) {
    let window = 21;
    let data = tokens(3 * window + 1, model.vocabulary);
    let starts = data.starts(window);
    assert_eq!(starts.len(), 3);
    let parameters = spread(&model, 3);
    let [inputs, targets] = [0, 1].map(|at| {
        starts.iter().flat_map(|s| data.ids[s + at..s + at + window].to_vec()).collect::<Vec<_>>()
    });
    let whole = Config { window, batch: 4, clip: None, ..Config::default() };
    let parts = Config { batch: 2, accumulate: 2, logit_rows: Some(10), z_loss: 0.02, ..whole };
    // Halves: what plain rounding of all activations does to so small a model.
    for (dtype, bound, config) in
        [(DType::F32, 2e-5, whole), (DType::F32, 2e-5, parts), (DType::BF16, 0.12, parts)]
    {
        let (loss, gradients) =
            loss_and_gradients(&model, &parameters, &inputs, &targets, [3, window], config.z_loss);
        let config = Config { dtype, ..config };
        let mut trainer = with_parameters(device, model, config, &data, &parameters);
        let epoch = trainer.epoch().unwrap();
        assert!((epoch.loss - loss).abs() <= bound * loss, "{dtype}: {} for {loss}", epoch.loss);
        let found = trainer.gradients().unwrap();
        assert_eq!(found.len(), gradients.len());
        let mut errors = Vec::new();
        for (name, expected) in &gradients {
            // What is added to all gates alike hardly moves h, which the normaliser divides: terms of the bias's gradient cancel.
            let weight = &gradients[&name.replace(".bias", ".weight")];
            let least = norm(weight) / (expected.len() as f64).sqrt();
            errors.push((distance_beside(&found[name].values(), expected, least), name));
        }
        errors.sort_by(|a, b| b.0.total_cmp(&a.0));
        assert!(errors[0].0 <= bound, "{dtype}: {:?}", &errors[..4]);
    }
}

/// The first moments of the first step tell by what the gradients were clipped: by the norm of all, whatever has left its squares.
fn gradients_are_clipped_by_the_norm_of_all(device: &Device) {
    let (window, clip) = (21, 1e-3);
    for (model, dtype) in
        [mixed(), attention()].into_iter().flat_map(|m| [(m, DType::F32), (m, DType::BF16)])
    {
        let data = tokens(3 * window + 1, model.vocabulary);
        let parts = Config { window, batch: 2, accumulate: 2, ..Config::default() };
        let config = Config { dtype, logit_rows: Some(10), clip: Some(clip), ..parts };
        let mut trainer = with_parameters(device, model, config, &data, &spread(&model, 3));
        trainer.epoch().unwrap();
        let (gradients, checkpoint) = (trainer.gradients().unwrap(), trainer.checkpoint().unwrap());
        let of_all: Vec<f64> = gradients.values().flat_map(|g| g.values()).collect();
        let factor = (1.0 - config.betas[0]) * clip / (norm(&of_all) + 1e-6);
        for (name, g) in &gradients {
            let expected: Vec<f64> = g.values().iter().map(|g| g * factor).collect();
            let error = distance_beside(&checkpoint.first[name].values(), &expected, 1e-9);
            assert!(error <= 2e-6, "{dtype}, {name}: off by {error}");
        }
    }
}

/// A training before its first step, of these parameters.
fn with_parameters(
    device: &Device,
    model: Model,
    config: Config,
    data: &Tokens,
    parameters: &Tensors,
) -> Trainer {
    let starts = data.starts(config.window);
    let trainer = Trainer::new(device, model, config, data, &starts).unwrap();
    let mut checkpoint = trainer.checkpoint().unwrap();
    drop(trainer);
    checkpoint.parameters = parameters.clone();
    Trainer::resume(device, &checkpoint, data, &starts).unwrap()
}

/// The same losses, step by step, but for rounding: of another order of sums.
fn a_step_in_parts_is_that_of_the_whole_batch(device: &Device) {
    let model = Model { hidden: 48, ..Model::xlstm(19, 32, 1, 1) };
    let data = tokens(12 * 8 + 1, model.vocabulary);
    let parameters = spread(&model, 4);
    let rate = Schedule::constant(5e-3);
    let whole = Config { window: 8, batch: 4, schedule: rate, ..Config::default() };
    let parts = Config { batch: 1, accumulate: 4, ..whole };
    let [whole, parts] = [whole, parts].map(|config| {
        let mut trainer = with_parameters(device, model, config, &data, &parameters);
        (0..3).flat_map(|_| trainer.epoch().unwrap().losses).collect::<Vec<_>>()
    });
    assert_eq!(whole.len(), 9);
    assert!(whole[0] > 1.2 * whole[8], "it learns: {whole:?}");
    for (whole, parts) in whole.iter().zip(&parts) {
        assert!((whole - parts).abs() <= 2e-5 * whole, "{parts} for {whole}");
    }
}

/// Gradients are those of the loss with the same elements dropped: what it grows by along them says their size.
fn gradients_are_of_what_dropout_has_left(device: &Device) {
    let model = Model { hidden: 48, ..Model::xlstm(19, 32, 1, 1) };
    let window = 8;
    let data = tokens(4 * window + 1, model.vocabulary);
    let parameters = spread(&model, 3);
    let config =
        Config { window, batch: 2, accumulate: 2, dropout: 0.3, clip: None, ..Config::default() };
    let run = |config, parameters: &Tensors| {
        let mut trainer = with_parameters(device, model, config, &data, parameters);
        (trainer.epoch().unwrap().loss, trainer.gradients().unwrap())
    };
    let (loss, gradients) = run(config, &parameters);
    let (without, _) = run(Config { dropout: 0.0, ..config }, &parameters);
    assert!((loss - without).abs() > 1e-3 * loss, "{loss} and {without}");
    let all: Vec<f64> = gradients.values().flat_map(lab_harness::Tensor::values).collect();
    let size = norm(&all);
    let moved = |by: f64| {
        let mut moved = parameters.clone();
        for (name, tensor) in &mut moved {
            let along = gradients[name].values().into_iter();
            let values: Vec<f64> =
                tensor.values().into_iter().zip(along).map(|(p, g)| p + by * g / size).collect();
            *tensor = lab_harness::Tensor::rounded(DType::F32, &tensor.shape, &values);
        }
        run(config, &moved).0
    };
    const STEP: f64 = 1e-3;
    let slope = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
    assert!((slope - size).abs() <= 5e-3 * size, "{slope} along a gradient of {size}");
}

/// Bit for bit: stopped within an epoch, and without a stop.
fn a_resumed_training_is_the_same(device: &Device) {
    let model = mixed();
    let data = tokens(300, model.vocabulary);
    let starts = data.starts(24);
    let config = Config { window: 24, batch: 2, accumulate: 2, dropout: 0.1, ..Config::default() };
    let mut whole = Trainer::new(device, model, config, &data, &starts).unwrap();
    let mut first = Trainer::new(device, model, config, &data, &starts).unwrap();
    whole.epoch().unwrap();
    whole.run(2).unwrap();
    first.run(2).unwrap();
    let directory = tempfile_directory();
    let file = directory.join("lm.safetensors");
    first.checkpoint().unwrap().write(&file).unwrap();
    let read = crate::Checkpoint::read(&file).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let mut second = Trainer::resume(device, &read, &data, &starts).unwrap();
    second.epoch().unwrap();
    second.run(2).unwrap();
    assert!(whole.checkpoint().unwrap() == second.checkpoint().unwrap());
}

/// Token by token, in one piece, and as windows of an evaluation. Of two mixers, of attention alone, and of what goes step by step.
fn a_writer_reads_as_the_model_does(device: &Device) {
    for model in [mixed(), attention(), recurrent()] {
        assert_writes_as_it_reads(device, model);
    }
}

fn assert_writes_as_it_reads(device: &Device, model: Model) {
    let parameters = spread(&model, 5);
    let data = tokens(34, model.vocabulary);
    for (dtype, bound) in [(DType::F32, 2e-4), (DType::BF16, 0.25)] {
        let window = 33;
        let of = Evaluated {
            model,
            parameters: &parameters,
            dtype,
            batch: 2,
            window,
            data: &data,
            document: None,
        };
        let mut evaluator = Evaluator::of_logits(device, of).unwrap();
        let logits = evaluator.logits(&[0]).unwrap().values();
        let row = |t: usize| &logits[t * model.vocabulary..][..model.vocabulary];
        let mut writer = Writer::with_room(device, model, &parameters, dtype, window).unwrap();
        let near = |found: &[f64], t: usize| {
            let worst = found.iter().zip(row(t)).map(|(f, e)| (f - e).abs()).fold(0.0, f64::max);
            assert!(worst <= bound, "{dtype}, behind token {t}: {worst}");
        };
        for prompt in [1, 20] {
            let mut found = writer.read(&data.ids[..prompt]).unwrap();
            for t in prompt..window {
                near(&found, t - 1);
                found = writer.next(data.ids[t]).unwrap();
            }
            near(&found, window - 1);
        }
        if model.mixers.has(Mixer::Attention) {
            let said = writer.next(1).unwrap_err().to_string();
            let expected = "tokens to read: expected at most 33, as there is room for, got 34";
            assert_eq!(said, expected);
        }
    }
}

/// A period of words is known by heart after some steps.
fn a_text_is_learnt(device: &Device) {
    let model = Model { hidden: 64, ..Model::xlstm(256, 64, 2, 1) };
    assert_learns(device, model);
    let model = Model { hidden: 32, ..Model::xlstm(128, 32, 2, 1) };
    assert_learns(device, model.with_mixers(Mixers::only(Mixer::Attention), Some(1)));
}

fn assert_learns(device: &Device, model: Model) {
    let text = b"the lazy dog sleeps. ".repeat(12);
    let data = Tokens::of_bytes(&text);
    let config = Config {
        window: 32,
        batch: 4,
        schedule: Schedule { warm_up: 5, ..Schedule::constant(5e-3) },
        ..Config::default()
    };
    let starts = data.starts(config.window);
    let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
    let first = trainer.epoch().unwrap().loss;
    // They follow the training without being told.
    let mut beside = Evaluator::beside(&trainer, config.batch).unwrap();
    let mut writing = Writer::beside(&trainer, 64).unwrap();
    let mut last = first;
    for _ in 0..30 {
        if last < 0.1 {
            break;
        }
        last = trainer.epoch().unwrap().loss;
    }
    assert!(first > 4.0 && last < 0.2, "{first} to {last}");
    let parameters = trainer.parameters().unwrap();
    let Config { dtype, batch, window, .. } = config;
    let of = Evaluated {
        model,
        parameters: &parameters,
        dtype,
        batch,
        window,
        data: &data,
        document: None,
    };
    let mut evaluator = Evaluator::of_losses(device, of).unwrap();
    let evaluated = evaluator.mean_loss(&starts).unwrap();
    assert!(evaluated < 1.2 * last + 0.01, "{evaluated} for {last}");
    assert!(beside.mean_loss(&starts).unwrap() == evaluated, "beside the training");
    let mut writer = Writer::new(device, model, &parameters, config.dtype).unwrap();
    let mut logits = writer.read(&data.ids[..24]).unwrap();
    assert!(writing.read(&data.ids[..24]).unwrap() == logits, "beside the training");
    let mut sampler = crate::Sampler::new(0.0, 0, 1.0, 1.0, 0).unwrap();
    let mut written = data.ids[..24].to_vec();
    // Attention knows no position but those of a window.
    let more = if model.mixers.has(Mixer::Attention) { window - 24 } else { 40 };
    for _ in 0..more {
        let token = sampler.draw(&logits, &written);
        written.push(token);
        logits = writer.next(token).unwrap();
    }
    assert_eq!(written, data.ids[..24 + more]);
}

fn what_cannot_be_trained_is_refused(device: &Device) {
    let model = small();
    let attention = Mixers::only(Mixer::Attention);
    let data = tokens(100, model.vocabulary);
    let starts = data.starts(24);
    let said = |model: Model, config: Config, data: &Tokens, starts: &[usize]| {
        Trainer::new(device, model, config, data, starts).expect_err("refused").to_string()
    };
    let config = Config { window: 24, batch: 4, ..Config::default() };
    for (message, expected) in [
        (
            said(Model { keys: 24, ..model }, config, &data, &starts),
            "keys of a head: expected a multiple of 16 from 16 to 256, got 24",
        ),
        (
            said(model.with_mixers(Mixers::default(), Some(1)), config, &data, &starts),
            "heads of k and v: expected a mixer with attention, got none",
        ),
        (
            said(model.with_mixers(attention, Some(3)), config, &data, &starts),
            "heads of k and v: expected a divisor of all heads, 2, got 3",
        ),
        (
            said(
                Model { values: 24, ..model.with_mixers(attention, None) },
                config,
                &data,
                &starts,
            ),
            "columns of a head of attention: expected a multiple of 16 from 16 to 256, got 24",
        ),
        (
            said(
                Model { keys: 1 << 17, ..model.with_mixers(attention, None) },
                config,
                &data,
                &starts,
            ),
            "keys of a head: expected 1 to 65536, got 131072",
        ),
        (
            said(model, Config { dtype: DType::F64, ..config }, &data, &starts),
            "dtype: expected f32 or bf16, got f64",
        ),
        (
            said(model, Config { accumulate: 0, ..config }, &data, &starts),
            "parts of a step: expected 1 to 1024, got 0",
        ),
        (
            said(model, Config { dropout: 1.0, ..config }, &data, &starts),
            "dropout: expected 0 to below 1, got 1",
        ),
        (
            said(model, Config { z_loss: f64::NAN, ..config }, &data, &starts),
            "z-loss: expected 0 to 1, got NaN",
        ),
        (
            said(model, Config { logit_rows: Some(0), ..config }, &data, &starts),
            "rows of logits: expected 1 to 67108864, got 0",
        ),
        (
            said(Model { vocabulary: 7, ..model }, config, &data, &starts),
            "token 2 of the data: expected 0 to 6, got 11",
        ),
        (said(model, config, &data, &[76]), "start of window 0: expected 0 to 75, got 76"),
        (said(model, config, &data, &[]), "windows: expected at least 1, got 0"),
    ] {
        assert_eq!(message, expected);
    }
}

/// Of sequences that are decoded together each has the bits that it has alone, whatever the others are; of any type, and with int8.
fn sequences_are_decoded_as_alone(device: &Device) {
    for model in [small(), mixed()] {
        let parameters = spread(&model, 11);
        for (dtype, int8) in [(DType::F32, false), (DType::F32, true), (DType::BF16, true)] {
            let own = if int8 {
                model.quantized().quantize(&parameters).unwrap()
            } else {
                parameters.clone()
            };
            let begins = [3, 18];
            let decode = |begins: &[i32]| {
                let of = Decoded { model, types: dtype.into(), batch: begins.len(), room: 8 };
                let mut decoder = Decoder::new(device, of, &own).unwrap();
                decoder.put(begins).unwrap();
                let tokens: Vec<Vec<i32>> = (0..6).map(|_| decoder.advance().unwrap()).collect();
                (tokens, decoder.logits().unwrap())
            };
            let (tokens, logits) = decode(&begins);
            for (b, begin) in begins.into_iter().enumerate() {
                let (alone, of_alone) = decode(&[begin]);
                let own: Vec<i32> = tokens.iter().map(|all| all[b]).collect();
                assert_eq!(own, alone.concat(), "{dtype}, int8 {int8}: sequence {b}");
                assert_eq!(logits[b], of_alone[0], "{dtype}, int8 {int8}: sequence {b}");
            }
        }
    }
}

/// By a file, and with another room for attention: the bits of a writer that has gone on at once. Of other weights it is refused.
fn a_saved_state_goes_on(device: &Device) {
    let directory = tempfile_directory();
    for (model, dtype) in [(mixed(), DType::F32), (mixed(), DType::BF16), (recurrent(), DType::F32)]
    {
        let parameters = spread(&model, 16);
        let write = |room| Writer::with_room(device, model, &parameters, dtype, room).unwrap();
        let mut first = write(24);
        let prompt: Vec<i32> = (0..17).map(|n| n % 19).collect();
        let logits = first.read(&prompt).unwrap();
        let file = directory.join("state.safetensors");
        SavedState::of(&first, &parameters, &prompt, &logits).unwrap().write(&file).unwrap();
        let expected: Vec<Vec<f64>> = (0..4).map(|token| first.next(token).unwrap()).collect();
        let saved = SavedState::read(&file).unwrap();
        assert_eq!(saved.tokens(), prompt);
        let mut second = write(32);
        // What it has read before is forgotten.
        second.read(&[1, 2, 3]).unwrap();
        for _ in 0..2 {
            assert_eq!(saved.resume(&mut second, &parameters).unwrap(), logits, "{dtype}");
            let found: Vec<Vec<f64>> = (0..4).map(|token| second.next(token).unwrap()).collect();
            assert_eq!(found, expected, "{dtype}");
        }
        let other = spread(&model, 17);
        let said = saved.resume(&mut second, &other).unwrap_err().to_string();
        assert!(said.starts_with("state: expected one of "), "{said}");
        if model.mixers.has(Mixer::Attention) {
            let said = saved.resume(&mut write(16), &parameters).unwrap_err().to_string();
            let expected = "tokens to read: expected at most 16, as there is room for, got 17";
            assert_eq!(said, expected);
        }
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

/// So many that x is shared by blocks with many rows of W, in halves and with int8.
fn many_sequences_follow_the_reference(device: &Device) {
    let model = small();
    let parameters = spread(&model, 13);
    let quantized = model.quantized().quantize(&parameters).unwrap();
    let dequantized = model.quantized().dequantize(&quantized);
    for (own, exact) in [(&parameters, &parameters), (&quantized, &dequantized)] {
        let batch = 20;
        let decoded = Decoded { model, types: DType::BF16.into(), batch, room: 2 };
        let mut decoder = Decoder::new(device, decoded, own).unwrap();
        let [first, second]: [Vec<i32>; 2] =
            [1, 7].map(|step| (0..batch as i32).map(|b| b * step % 19).collect());
        for tokens in [&first, &second] {
            decoder.put(tokens).unwrap();
            decoder.advance().unwrap();
        }
        for (b, found) in decoder.logits().unwrap().into_iter().enumerate() {
            let expected = last_logits(&model, exact, &[first[b], second[b]]);
            for (found, expected) in found.into_iter().zip(expected) {
                let expected = model.capped(expected);
                assert!((found - expected).abs() <= 0.25, "sequence {b}: {found} for {expected}");
            }
        }
    }
}

/// Greedily, the tokens that an f64 reference of the quantised model chooses; a writer reads it as the decoder does, token by token and
/// a long prompt at once.
fn int8_chooses_what_its_reference_chooses(device: &Device) {
    for model in [small(), attention()] {
        let parameters = spread(&model, 12);
        let of = model.quantized();
        let own = of.quantize(&parameters).unwrap();
        let exact = of.dequantize(&own);
        let dtype = DType::F32;
        let decoded = Decoded { model, types: dtype.into(), batch: 1, room: 32 };
        let mut decoder = Decoder::new(device, decoded, &own).unwrap();
        let mut tokens = vec![7];
        decoder.put(&tokens).unwrap();
        for _ in 0..12 {
            let logits = last_logits(&model, &exact, &tokens);
            let next = decoder.advance().unwrap()[0];
            let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let expected = logits.iter().position(|l| *l == largest).unwrap() as i32;
            assert_eq!(next, expected, "behind {tokens:?}");
            tokens.push(next);
        }
        let mut writer = Writer::with_room(device, model, &own, dtype, 32).unwrap();
        for prompt in [1, 5, tokens.len()] {
            let found = writer.read(&tokens[..prompt]).unwrap();
            let expected = last_logits(&model, &exact, &tokens[..prompt]);
            for (found, expected) in found.iter().zip(expected) {
                let expected = model.capped(expected);
                assert!((found - expected).abs() <= 2e-4, "{found} for {expected}");
            }
        }
        // Many rows: matrices are made f32 first.
        let data = Tokens::of_ids([&tokens[..], &[0; 20]].concat());
        let window = 20;
        let evaluated = Evaluated {
            model,
            parameters: &own,
            dtype,
            batch: 1,
            window,
            data: &data,
            document: None,
        };
        let logits = Evaluator::of_logits(device, evaluated).unwrap().logits(&[0]).unwrap();
        let expected = last_logits(&model, &exact, &data.ids[..window]);
        let row = &logits.values()[(window - 1) * model.vocabulary..];
        for (found, expected) in row.iter().zip(expected) {
            let expected = model.capped(expected);
            assert!((found - expected).abs() <= 2e-4, "{found} for {expected}");
        }
    }
}
