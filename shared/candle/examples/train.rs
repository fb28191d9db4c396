//! Trains a small model on a sentence: after each letter it says which comes next.
//!
//! ```sh
//! cargo run --example train              # with an mLSTM
//! cargo run --example train -- lstm      # with an LSTM
//! ```
//!
//! On the CPU the kernels run on an emulator of a GPU, so the model is small. With `--features cuda` it is trained on the first GPU.

use candle_core::{D, DType, Device, Module, Result, Tensor, bail};
use candle_nn::rnn::LSTMConfig;
use candle_nn::{
    AdamW, Embedding, LayerNorm, Linear, Optimizer, ParamsAdamW, VarBuilder, VarMap, embedding,
    layer_norm, linear, linear_no_bias, loss,
};
use vlstm_candle::{Lstm, MlstmOptions, mlstm};

/// Over and over. What follows an `o`, an `e` or a space depends on what stands before it.
const TEXT: &str = "the quick brown fox jumps over the lazy dog and then over the brown hen. ";
const LETTERS: usize = 128;
const BATCH: usize = 8;
const POSITIONS: usize = 16;
const WIDTH: usize = 32;
const HEADS: usize = 2;

// ANCHOR: layer
/// An mLSTM with its projections: x [B, S, WIDTH] → [B, S, WIDTH].
struct MlstmLayer {
    qkv: Linear,
    gates: Linear,
    norm: LayerNorm,
    out: Linear,
}

impl MlstmLayer {
    fn new(vb: VarBuilder) -> Result<Self> {
        Ok(Self {
            qkv: linear_no_bias(WIDTH, 3 * WIDTH, vb.pp("qkv"))?,
            gates: linear(WIDTH, 2 * HEADS, vb.pp("gates"))?,
            norm: layer_norm(WIDTH / HEADS, 1e-5, vb.pp("norm"))?,
            out: linear_no_bias(WIDTH, WIDTH, vb.pp("out"))?,
        })
    }
}

impl Module for MlstmLayer {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, positions, _) = x.dims3()?;
        // [B, S, NH, D] → [B, NH, S, D]
        let qkv = self.qkv.forward(x)?.reshape((batch, positions, 3 * HEADS, WIDTH / HEADS))?;
        let part = |n: usize| qkv.narrow(2, n * HEADS, HEADS)?.transpose(1, 2);
        let gates = self.gates.forward(x)?.transpose(1, 2)?;
        let i = gates.narrow(1, 0, HEADS)?;
        // Open at the beginning of the training.
        let f = (gates.narrow(1, HEADS, HEADS)? + 3.0)?;
        let h = mlstm(&part(0)?, &part(1)?, &part(2)?, &i, &f, &MlstmOptions::default())?;
        let h = self.norm.forward(&h.transpose(1, 2)?.contiguous()?)?;
        self.out.forward(&h.reshape((batch, positions, WIDTH))?)
    }
}
// ANCHOR_END: layer

struct Model {
    letters: Embedding,
    layer: Box<dyn Module>,
    norm: LayerNorm,
    logits: Linear,
}

impl Model {
    fn new(kind: &str, vb: VarBuilder) -> Result<Self> {
        let layer: Box<dyn Module> = match kind {
            "mlstm" => Box::new(MlstmLayer::new(vb.pp("mlstm"))?),
            "lstm" => Box::new(Lstm::new(WIDTH, WIDTH, LSTMConfig::default(), vb.pp("lstm"))?),
            _ => bail!("model: expected mlstm or lstm, got {kind}"),
        };
        Ok(Self {
            letters: embedding(LETTERS, WIDTH, vb.pp("letters"))?,
            layer,
            norm: layer_norm(WIDTH, 1e-5, vb.pp("norm"))?,
            logits: linear(WIDTH, LETTERS, vb.pp("logits"))?,
        })
    }
}

impl Module for Model {
    fn forward(&self, letters: &Tensor) -> Result<Tensor> {
        let x = self.letters.forward(letters)?;
        let x = (&x + self.layer.forward(&x)?)?;
        self.logits.forward(&self.norm.forward(&x)?)
    }
}

/// Pieces of the text, \[B, S\], and the letter that follows each letter.
fn batch(device: &Device) -> Result<(Tensor, Tensor)> {
    let text = TEXT.as_bytes();
    let starts = Tensor::rand(0f32, text.len() as f32, BATCH, &Device::Cpu)?.to_vec1::<f32>()?;
    let pieces = |shift: usize| {
        let letter = |start: f32, n: usize| u32::from(text[(start as usize + n) % text.len()]);
        let piece = |&start: &f32| (shift..shift + POSITIONS).map(move |n| letter(start, n));
        let letters: Vec<u32> = starts.iter().flat_map(piece).collect();
        Tensor::from_vec(letters, (BATCH, POSITIONS), device)
    };
    Ok((pieces(0)?, pieces(1)?))
}

fn main() -> Result<()> {
    let kind = std::env::args().nth(1).unwrap_or_else(|| "mlstm".into());
    let device = &Device::cuda_if_available(0)?;
    let variables = VarMap::new();
    let model = Model::new(&kind, VarBuilder::from_varmap(&variables, DType::F32, device))?;
    let parameters = ParamsAdamW { lr: 1e-2, weight_decay: 0.0, ..ParamsAdamW::default() };
    let mut optimizer = AdamW::new(variables.all_vars(), parameters)?;
    let (mut first, mut last) = (0.0, 0.0);
    const STEPS: usize = 100;
    for step in 0..=STEPS {
        let (letters, expected) = batch(device)?;
        let expected = expected.flatten_all()?;
        let logits = model.forward(&letters)?.flatten_to(1)?;
        let loss = loss::cross_entropy(&logits, &expected)?;
        optimizer.backward_step(&loss)?;
        if step % 10 == 0 {
            let right = logits.argmax(D::Minus1)?.eq(&expected)?;
            let right = right.to_dtype(DType::F32)?.mean_all()?.to_scalar::<f32>()?;
            last = loss.to_scalar::<f32>()?;
            println!("step {step:3}: loss {last:.3}, {:.0} % right", 100.0 * right);
        }
        if step == 0 {
            first = last;
        }
    }
    if last > 0.25 * first {
        bail!("loss: expected a quarter of {first:.3} at most after {STEPS} steps, got {last:.3}");
    }
    Ok(())
}
