//! The memory of the vLSTM in bf16: what each token rounds, and that nothing else does.

use lab_device::{DType, Device};
use lab_harness::Tensor;

use crate::by_steps::mean_loss_by_steps;
use crate::check_data::{mixed, small, spread, tokens};
use crate::reference::last_logits;
use crate::{Decoded, Decoder, Evaluated, Evaluator, Model, Types, Writer};

/// Half of the last digit of a bf16, of which there are eight: as a share of the number at most.
const ROUNDING: f64 = 1.0 / 256.0;

fn narrow() -> Types {
    Types::new(DType::BF16, DType::BF16).expect("bf16 in a run of bf16")
}

/// C, n and m of a block.
fn memory_of(writer: &Writer, model: &Model, block: usize) -> [Tensor; 3] {
    let (step, blocks) = writer.states();
    let own = blocks.named(model).into_iter().filter(|(n, ..)| *n == block);
    let all: Vec<Tensor> = own.map(|(_, _, slot)| step.read(slot).unwrap()).collect();
    all.try_into().expect("three states of the vLSTM")
}

/// Of the first block, whose inputs are the same whatever it remembers in: n and m are the same bits. C is rounded once a token, and what
/// it was off before is multiplied by at most 1. So behind t tokens it is off by at most Σ_i ≤ t of 2⁻⁸ (|C_i| + what it was off by then).
pub(crate) fn a_narrow_memory_is_rounded_once_a_token(device: &Device) {
    let model = small();
    let parameters = spread(&model, 31);
    let [mut wide, mut writer] = [DType::BF16.into(), narrow()]
        .map(|types: Types| Writer::new(device, model, &parameters, types).unwrap());
    let mut most: Vec<f64> = Vec::new();
    for (position, token) in tokens(24, model.vocabulary).ids.into_iter().enumerate() {
        wide.next(token).unwrap();
        writer.next(token).unwrap();
        let [c, n, m] = memory_of(&wide, &model, 0);
        let [rounded, own_n, own_m] = memory_of(&writer, &model, 0);
        assert_eq!(
            (rounded.dtype, own_n.dtype, own_m.dtype),
            (DType::BF16, DType::F32, DType::F32)
        );
        assert!((own_n, own_m) == (n, m), "token {position}: n and m");
        most.resize(c.len(), 0.0);
        let exact = c.values();
        let largest = exact.iter().fold(0.0, |a: f64, x| a.max(x.abs()));
        let mut is_off = false;
        for ((c, rounded), most) in exact.iter().zip(rounded.values()).zip(&mut most) {
            // And what f32 rounds of both.
            *most += ROUNDING * (c.abs() + *most) + 1e-6 * largest;
            let off = (rounded - c).abs();
            assert!(off <= *most, "token {position}: {rounded} for {c}, off by {most} at most");
            is_off |= off > 1e-6 * largest;
        }
        assert!(is_off, "token {position}: nothing was rounded");
    }
}

/// A prompt that is read at once leaves the memory of f32, rounded once.
pub(crate) fn a_prompt_leaves_a_narrow_memory(device: &Device) {
    let model = small();
    let parameters = spread(&model, 32);
    let prompt = tokens(70, model.vocabulary).ids;
    let read = |types: Types| {
        let mut writer = Writer::new(device, model, &parameters, types).unwrap();
        let logits = writer.read(&prompt).unwrap();
        (logits, [0, 1].map(|block| memory_of(&writer, &model, block)))
    };
    let ((logits, wide), (same, narrow)) = (read(DType::BF16.into()), read(narrow()));
    assert_eq!(logits, same, "the prompt itself is read in f32");
    for ([c, n, m], [own_c, own_n, own_m]) in wide.into_iter().zip(narrow) {
        assert!(own_c == Tensor::rounded(DType::BF16, &c.shape, &c.values()));
        assert!((own_n, own_m) == (n, m));
    }
}

/// Greedily, the tokens that an f64 reference of the quantised model chooses, which rounds nothing; its choices are far enough apart.
pub(crate) fn int8_with_a_narrow_memory_chooses_as_its_reference(device: &Device) {
    // As far as other checks in bf16 let logits be off.
    const APART: f64 = 0.25;
    let model = small();
    let parameters = spread(&model, SEED);
    let of = model.quantized();
    let own = of.quantize(&parameters).unwrap();
    let exact = of.dequantize(&own);
    // Alone, and so many that the products are those of many rows.
    for batch in [1, 20] {
        let decoded = Decoded { model, types: narrow(), batch, room: 32 };
        let mut decoder = Decoder::new(device, decoded, &own).unwrap();
        let mut read = vec![7];
        decoder.put(&vec![7; batch]).unwrap();
        for _ in 0..12 {
            let next = decoder.advance().unwrap();
            let expected = last_logits(&model, &exact, &read);
            let expected: Vec<f64> = expected.into_iter().map(|x| model.capped(x)).collect();
            for found in decoder.logits().unwrap() {
                for (found, expected) in found.iter().zip(&expected) {
                    assert!((found - expected).abs() <= APART, "{found} for {expected}");
                }
            }
            let largest = expected.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let token = expected.iter().position(|x| *x == largest).unwrap() as i32;
            assert!(next.iter().all(|own| *own == token), "{next:?} for {token} behind {read:?}");
            read.push(token);
        }
    }
}

const SEED: u64 = 33;

/// Token by token the losses are those of windows that are read at once; and a narrow memory costs something, but little.
pub(crate) fn losses_by_steps_are_those_of_windows(device: &Device) {
    for model in [small(), mixed()] {
        let parameters = spread(&model, 34);
        let data = tokens(3 * 24 + 1, model.vocabulary);
        let starts = data.starts(24);
        let of = |dtype, document| Evaluated {
            model,
            parameters: &parameters,
            dtype,
            batch: 2,
            window: 24,
            data: &data,
            document,
        };
        let whole = of(DType::F32, None);
        let at_once = Evaluator::of_losses(device, whole).unwrap().mean_loss(&starts).unwrap();
        let by_steps = mean_loss_by_steps(device, whole, DType::F32, &starts).unwrap();
        assert!((at_once - by_steps).abs() <= 1e-5, "{at_once} and {by_steps}");
        let [wide, narrow] = [DType::F32, DType::BF16].map(|states| {
            mean_loss_by_steps(device, of(DType::BF16, None), states, &starts).unwrap()
        });
        assert!((wide - at_once).abs() <= 0.02, "{wide} for {at_once}");
        assert!(wide != narrow && (wide - narrow).abs() <= 0.01, "{wide} and {narrow}");
        let said = |dtype, document, states| {
            mean_loss_by_steps(device, of(dtype, document), states, &starts)
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            said(DType::F32, None, DType::BF16),
            "states: expected f32, or bf16 in a run of bf16, got bf16 in a run of f32"
        );
        let several = said(DType::BF16, Some(3), DType::BF16);
        assert!(several.starts_with("documents: expected windows of one document"), "{several}");
    }
}
