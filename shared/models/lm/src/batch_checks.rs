//! What must hold of sequences that join and leave, and of long prompts.

use lab_device::{DType, Device, DeviceKind};
use lab_harness::Tensors;

use crate::check_data::{attention, mixed, recurrent, small, spread, tokens};
use crate::{Batch, Batched, Draw, Mixer, Model, Sampler, Types, Writer};

/// A text that somebody asks for: the step before which it joins, its prompt, how much of it, how hot.
type Wanted = (usize, Vec<i32>, usize, f64);

/// What each gets, and the logits of its last token.
fn texts_of(batch: &mut Batch, wanted: &[Wanted]) -> Vec<(Vec<i32>, Vec<f64>)> {
    let mut texts = vec![(Vec::new(), Vec::new()); wanted.len()];
    let sampler = |(.., hot): &Wanted| Sampler::new(*hot, 0, 0.9, 1.0, 9).unwrap();
    let mut samplers: Vec<Sampler> = wanted.iter().map(sampler).collect();
    let mut running = Vec::new();
    for step in 0.. {
        for (n, (from, prompt, ..)) in wanted.iter().enumerate() {
            if *from == step {
                running.push((batch.join(prompt).unwrap(), n));
            }
        }
        batch.read_piece().unwrap();
        for (sequence, logits) in batch.advance().unwrap() {
            let n = running.iter().find(|(own, _)| *own == sequence).unwrap().1;
            let (text, last) = &mut texts[n];
            let token = samplers[n].draw(&logits, text);
            text.push(token);
            *last = logits;
            if text.len() == wanted[n].2 {
                batch.leave(sequence).unwrap();
                running.retain(|(own, _)| *own != sequence);
            } else {
                batch.put(sequence, token).unwrap();
            }
        }
        if running.is_empty() && wanted.iter().all(|(from, ..)| *from <= step) {
            break;
        }
    }
    texts
}

/// Greedy or drawn, of any length, four at once at most. Two are long, one of which comes while the other is read, and a short one behind them.
fn wanted() -> Vec<Wanted> {
    let long = |len: i32, step: i32| (0..len).map(|n| step * n % 19).collect();
    vec![
        (0, vec![3, 1], 4, 0.0),
        (0, long(16, 1), 3, 1.0),
        (1, vec![18], 6, 0.7),
        (4, vec![3, 1], 4, 0.0),
        (5, vec![5, 6, 7], 4, 1.0),
        (11, long(70, 3), 3, 0.0),
        (12, long(66, 5), 2, 1.0),
        (13, vec![8], 6, 0.0),
    ]
}

/// Of these, the first that are short.
const SHORT: usize = 5;

/// Each text of a batch has the bits that it has alone. Which buckets give the same bits is the device's; on the emulator they are these.
fn assert_decoded_as_alone(
    device: &Device,
    of: Batched,
    own: &Tensors,
    (wanted, buckets): (&[Wanted], &[usize]),
) {
    let mut batch = Batch::new(device, of, own).unwrap();
    let types = of.types;
    if device.kind() == DeviceKind::Emulator {
        assert_eq!(batch.buckets(), buckets, "{types:?}");
    }
    let together = texts_of(&mut batch, wanted);
    assert!(batch.is_empty());
    for (n, (_, prompt, length, hot)) in wanted.iter().enumerate() {
        assert_eq!(together[n].0.len(), *length);
        if n == 3 {
            assert_eq!(together[3], together[0], "{types:?}: the same prompt at another time");
            continue;
        }
        // It joins where the others have been: nothing of theirs is left.
        let alone = texts_of(&mut batch, &[(0, prompt.clone(), *length, *hot)]);
        assert_eq!(together[n], alone[0], "{types:?}: sequence {n}");
    }
}

/// One block of one head.
fn tiny() -> Model {
    Model { hidden: 32, ..Model::xlstm(19, 32, 1, 1) }
}

/// In buckets of one, two and four, and with attention in that of all slots; a long prompt in pieces, and at once.
pub(crate) fn sequences_that_join_and_leave_are_decoded_as_alone(device: &Device) {
    let (all, short) = (wanted(), &wanted()[..SHORT]);
    for (model, dtype, wanted, buckets) in [
        (small(), DType::F32, short, &[1, 2, 4][..]),
        (tiny(), DType::BF16, &all, &[1, 2, 4]),
        (recurrent(), DType::F32, &all, &[1, 2, 4]),
        (mixed(), DType::BF16, &all, &[4]),
    ] {
        let of = Batched { model, types: dtype.into(), slots: 4, room: 80, piece: 32 };
        assert_decoded_as_alone(device, of, &spread(&model, 14), (wanted, buckets));
    }
    // More rows than a product of few has: all buckets choose theirs as that of all slots does.
    let (model, parameters) = (small(), spread(&small(), 14));
    let of = Batched { model, types: DType::F32.into(), slots: 18, room: 0, piece: 16 };
    let buckets = Batch::new(device, of, &parameters).unwrap().buckets();
    if device.kind() == DeviceKind::Emulator {
        assert_eq!(buckets, [1, 2, 4, 8, 16, 18]);
    }
}

/// As int8, and with states of halves: the LSTM has h and c in the run's type, the sLSTM h; the vLSTM its memory where that is asked for.
pub(crate) fn buckets_of_int8_weights_and_states_of_halves_give_the_same_bits(device: &Device) {
    let narrow = Types::new(DType::BF16, DType::BF16).unwrap();
    for (model, types, int8) in [
        (tiny(), DType::F32.into(), true),
        (tiny(), DType::BF16.into(), true),
        (tiny(), narrow, true),
        (recurrent(), DType::BF16.into(), true),
        (recurrent(), DType::F16.into(), false),
    ] {
        let parameters = spread(&model, 14);
        let own = if int8 { model.quantized().quantize(&parameters).unwrap() } else { parameters };
        let of = Batched { model, types, slots: 4, room: 0, piece: 32 };
        assert_decoded_as_alone(device, of, &own, (&wanted()[..SHORT], &[1, 2, 4]));
    }
}

/// Lengths of the pieces of a prompt, and the logits behind its last token and behind some more.
fn logits_behind(batch: &mut Batch, prompt: &[i32], more: &[i32]) -> (Vec<usize>, Vec<Vec<f64>>) {
    let sequence = batch.join(prompt).unwrap();
    let mut pieces = Vec::new();
    while batch.next_to_read() == Some(sequence) {
        assert!(batch.advance().unwrap().is_empty(), "it has no slot yet");
        pieces.push(batch.read_piece().unwrap());
    }
    assert_eq!(batch.read_piece().unwrap(), 0);
    let mut all = Vec::new();
    let mut more = more.iter();
    loop {
        for (_, logits) in batch.advance().unwrap() {
            all.push(logits);
            match more.next() {
                Some(token) => batch.put(sequence, *token).unwrap(),
                None => {
                    batch.leave(sequence).unwrap();
                    return (pieces, all);
                }
            }
        }
    }
}

fn likeliest(logits: &[f64]) -> i32 {
    Draw::likeliest(logits.len()).choose(logits)
}

/// The logits and the tokens of a writer that reads a prompt at once, whatever its length is to that of a piece. The kernel of the vLSTM
/// that the emulator runs goes in chunks of 64: pieces of 64 and of 128 leave the same bits, and so do those of the LSTM and the sLSTM in f32.
/// In bf16 the LSTM's c is rounded where it is handed on, and so is a narrow memory of the vLSTM.
pub(crate) fn a_prompt_in_pieces_is_as_one_at_once(device: &Device) {
    let narrow = Types::new(DType::BF16, DType::BF16).unwrap();
    for (model, types, int8, bound, same_bits) in [
        (tiny(), DType::F32.into(), false, 2e-4, false),
        (tiny(), DType::BF16.into(), false, 0.25, true),
        (tiny(), DType::BF16.into(), true, 0.25, true),
        (tiny(), narrow, true, 0.25, false),
        (recurrent(), DType::F32.into(), false, 2e-4, true),
        (recurrent(), DType::BF16.into(), false, 0.25, false),
    ] {
        let types: Types = types;
        let dtype = types.run();
        let parameters = spread(&model, 21);
        let own = if int8 { model.quantized().quantize(&parameters).unwrap() } else { parameters };
        let of = Batched { model, types, slots: 2, room: 0, piece: PIECE };
        let mut batch = Batch::new(device, of, &own).unwrap();
        let mut writer = Writer::new(device, model, &own, types).unwrap();
        let reads_by_step = dtype == DType::F32 && model.mixers.has(Mixer::Vlstm);
        let text = tokens(4 * PIECE, model.vocabulary).ids;
        for (len, pieces) in [
            (1, &[][..]),
            (PIECE - 1, &[]),
            (PIECE, &[32, 16]),
            (PIECE + 1, &[PIECE]),
            (3 * PIECE + 7, &[PIECE; 3]),
        ] {
            if reads_by_step && len > PIECE + 1 {
                continue;
            }
            let (prompt, what) = (&text[..len], format!("{types:?}, int8 {int8}, {len} tokens"));
            let (more, expected) = written_on(&mut writer, prompt);
            let (read, found) = logits_behind(&mut batch, prompt, &more);
            assert_eq!(read, if reads_by_step { &[][..] } else { pieces }, "{what}");
            for (found, expected) in found.iter().zip(&expected) {
                for (found, expected) in found.iter().zip(expected) {
                    assert!((found - expected).abs() <= bound, "{what}: {found} for {expected}");
                }
            }
            if device.kind() != DeviceKind::Emulator {
                continue;
            }
            let chosen: Vec<i32> = found.iter().map(|logits| likeliest(logits)).collect();
            assert_eq!(chosen[..more.len()], more, "{what}");
            if len > 2 * PIECE && same_bits {
                let of = Batched { piece: 2 * PIECE, ..of };
                let mut longer = Batch::new(device, of, &own).unwrap();
                let (read, same) = logits_behind(&mut longer, prompt, &more);
                assert_eq!(read, [2 * PIECE, PIECE]);
                assert_eq!(same, found, "{what}: pieces of another length");
            }
        }
    }
}

const PIECE: usize = 64;

/// Two tokens that a writer chooses behind a prompt, and the logits behind that and behind each of them.
fn written_on(writer: &mut Writer, prompt: &[i32]) -> (Vec<i32>, Vec<Vec<f64>>) {
    let mut logits = vec![writer.read(prompt).unwrap()];
    let mut tokens = Vec::new();
    for n in 0..2 {
        tokens.push(likeliest(&logits[n]));
        logits.push(writer.next(tokens[n]).unwrap());
    }
    (tokens, logits)
}

pub(crate) fn what_a_batch_cannot_take_is_refused(device: &Device) {
    let model = attention();
    let parameters = spread(&model, 15);
    let of = Batched { model, types: DType::F32.into(), slots: 1, room: 3, piece: 16 };
    let none = Batch::new(device, Batched { slots: 0, ..of }, &parameters).err().unwrap();
    assert_eq!(none.to_string(), "slots: expected 1 to 256, got 0");
    for piece in [0, 8, 48, 1 << 17] {
        let none = Batch::new(device, Batched { piece, ..of }, &parameters).err().unwrap();
        let expected = "piece of a prompt: expected a power of two from 16 to 65536, got";
        assert_eq!(none.to_string(), format!("{expected} {piece}"));
    }
    let mut batch = Batch::new(device, of, &parameters).unwrap();
    for (prompt, expected) in [
        (&[][..], "prompt: expected at least one token, got 0"),
        (&[19], "token: expected 0 to 18, got 19"),
        (&[1, 2, 3, 4], "tokens of a prompt: expected at most 3, as there is room for, got 4"),
    ] {
        assert_eq!(batch.join(prompt).err().unwrap().to_string(), expected);
    }
    let joined = batch.join(&[1, 2]).unwrap();
    assert_eq!(
        batch.join(&[1]).err().unwrap().to_string(),
        "sequences before another joins: expected fewer than 1, as there are slots, got 1"
    );
    assert!(batch.advance().unwrap().is_empty(), "the prompt has another token");
    assert_eq!(batch.advance().unwrap().len(), 1);
    assert_eq!(
        batch.advance().unwrap_err().to_string(),
        "tokens to read: expected one of each sequence, got none of one"
    );
    batch.put(joined, 5).unwrap();
    assert_eq!(
        batch.put(joined, 6).unwrap_err().to_string(),
        "tokens to read: expected at most 3, as there is room for, got 4"
    );
    batch.leave(joined).unwrap();
    let said = batch.leave(joined).unwrap_err().to_string();
    assert!(said.starts_with("sequence: expected one of the batch"), "{said}");
}
