//! The model: its sizes, its parameters, and how it is computed.

use lab_harness::Error;
use lab_harness::plan::Slot;
use lab_layers::{Init, Memory, Parameter, Parameters, Tape, VlstmMixer};
use lab_operations::Sizes;
use serde::{Deserialize, Serialize};

/// Gates are this · tanh(x / this).
pub(crate) const GATE_CAP: f32 = 15.0;

/// ε of all norms and of the mixer, as the layers have it.
pub(crate) const EPS: f64 = 1e-6;

/// So are the logits.
pub(crate) const LOGIT_CAP: f32 = 30.0;

/// The parameter that makes logits.
pub(crate) const HEAD: &str = "lm_head.weight";

/// A language model of xLSTM blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// Words that it knows, V.
    pub vocabulary: usize,
    /// Columns of the residual stream.
    pub width: usize,
    /// Heads of each mixer, NH.
    pub heads: usize,
    /// Blocks, each a mixer and a feed-forward layer.
    pub blocks: usize,
    /// Columns of q and k of a head, DHQK.
    pub keys: usize,
    /// Columns of v of a head, DHHV.
    pub values: usize,
    /// Columns within the feed-forward layer.
    pub hidden: usize,
}

impl Model {
    /// As `xlstm_large` has it: q and k half as wide as the stream, v as wide, and 8/3 of it in the feed-forward layer, rounded up to a
    /// multiple of 64.
    pub fn xlstm(vocabulary: usize, width: usize, heads: usize, blocks: usize) -> Self {
        let [keys, values] = [2, 1].map(|part| width / part / heads.max(1));
        // Whatever is asked for; `check` refuses what no kernel takes.
        let hidden = width.saturating_mul(8).div_ceil(3).next_multiple_of(64);
        Self { vocabulary, width, heads, blocks, keys, values, hidden }
    }

    /// Refuses sizes that no kernel takes.
    ///
    /// # Errors
    /// [`Error::Bad`] with the first of them.
    pub fn check(&self) -> Result<(), Error> {
        let Self { vocabulary, width, heads, blocks, keys, values, hidden } = *self;
        let in_range = |what: &str, size: usize, most: usize, step: usize| {
            if (step..=most).contains(&size) && size.is_multiple_of(step) {
                return Ok(());
            }
            let expected = match step {
                1 => format!("1 to {most}"),
                _ => format!("a multiple of {step} from {step} to {most}"),
            };
            Err(Error::bad(what, expected, size))
        };
        in_range("vocabulary", vocabulary, 1 << 20, 1)?;
        in_range("width", width, 8192, 16)?;
        in_range("heads", heads, 1024, 1)?;
        in_range("blocks", blocks, 1024, 1)?;
        in_range("keys of a head", keys, 256, 16)?;
        in_range("values of a head", values, 512, 16)?;
        in_range("columns of the feed-forward layer", hidden, 1 << 20, 8)
    }

    /// All of them, by the names of `xlstm_large`'s state dict.
    pub fn parameters(&self) -> Parameters {
        let Self { vocabulary, width, heads, blocks, keys, values, hidden } = *self;
        // As `xlstm_large`: small_init of what reads the stream, wang_init of what writes to it.
        let reads = Init::Normal((2.0 / (5.0 * width as f64)).sqrt());
        let writes = Init::Normal(2.0 / blocks as f64 / (width as f64).sqrt());
        let ones = Init::Constant(1.0);
        let mut all = Vec::new();
        let matrix = |name: String, rows: usize, columns: usize, init| {
            Parameter::new(name, &[rows, columns], init).decays()
        };
        all.push(matrix("embedding.weight".into(), vocabulary, width, reads));
        for n in 0..blocks {
            let block = format!("backbone.blocks.{n}");
            let mixer = |name: &str| format!("{block}.mlstm_layer.{name}");
            all.push(matrix(mixer("q.weight"), heads * keys, width, reads));
            all.push(matrix(mixer("k.weight"), heads * keys, width, reads).joined());
            all.push(matrix(mixer("v.weight"), heads * values, width, reads).joined());
            all.push(matrix(mixer("ogate_preact.weight"), heads * values, width, reads).joined());
            // Rows of the gates' product in eights, as its tiles want them.
            let room = (2 * heads).next_multiple_of(8) - heads;
            let gate = |name: &str| matrix(mixer(name), heads, width, Init::Constant(0.0));
            all.push(gate("igate_preact.weight"));
            all.push(gate("fgate_preact.weight").joined().with_room(room * width));
            all.push(matrix(mixer("out_proj.weight"), width, heads * values, writes));
            let ffn = |name: &str| format!("{block}.ffn.{name}");
            all.push(matrix(ffn("proj_up_gate.weight"), hidden, width, reads));
            all.push(matrix(ffn("proj_up.weight"), hidden, width, reads).joined());
            all.push(matrix(ffn("proj_down.weight"), width, hidden, writes));
            let bias = |name: &str, init| Parameter::new(mixer(name), &[heads], init);
            all.push(bias("igate_preact.bias", Init::Constant(-10.0)));
            all.push(bias("fgate_preact.bias", Init::Linear(3.0, 6.0)).joined());
            let norm = mixer("multihead_norm.weight");
            all.push(Parameter::new(norm, &[heads * values], ones));
            for name in ["norm_mlstm", "norm_ffn"] {
                all.push(Parameter::new(format!("{block}.{name}.weight"), &[width], ones));
            }
        }
        all.push(Parameter::new("backbone.out_norm.weight", &[width], ones));
        let room = vocabulary.next_multiple_of(8) * width;
        all.push(matrix(HEAD.into(), vocabulary, width, reads).with_room(room));
        Parameters::new(all)
    }

    /// What the head reads, \[rows, width\], of tokens i32 \[B S\]; `memory` says of each block what its mixer begins with.
    ///
    /// # Errors
    /// What the layers say.
    // ANCHOR: forward
    pub fn forward(
        &self,
        tape: &mut Tape<'_>,
        tokens: Slot,
        [batch, positions]: [usize; 2],
        memory: impl Fn(usize) -> Memory,
    ) -> Result<Slot, Error> {
        let Self { heads, keys, values, .. } = *self;
        let sizes = Sizes { batch, heads, positions, keys, values };
        let x = tape.embedding("embedding.weight", tokens)?;
        let mut x = tape.dropout(x)?;
        for n in 0..self.blocks {
            x = tape.within(&format!("backbone.blocks.{n}"), |tape| {
                let mixer = VlstmMixer { sizes, cap: GATE_CAP, memory: memory(n) };
                let y = tape.rms_norm("norm_mlstm.weight", x)?;
                let x = tape.within("mlstm_layer", |tape| {
                    let h = tape.vlstm(y, mixer)?;
                    let h = tape.dropout(h)?;
                    tape.linear(&["out_proj.weight"], h, Some(x))
                })?;
                let z = tape.rms_norm("norm_ffn.weight", x)?;
                tape.within("ffn", |tape| {
                    let up = tape.linear(&["proj_up_gate.weight", "proj_up.weight"], z, None)?;
                    tape.swiglu_linear("proj_down.weight", up, x)
                })
            })?;
        }
        tape.rms_norm("backbone.out_norm.weight", x)
    }
    // ANCHOR_END: forward

    /// The logits before the cap, \[rows, V or more\], of what the head reads.
    ///
    /// # Errors
    /// What the layers say.
    pub fn logits(&self, tape: &mut Tape<'_>, y: Slot) -> Result<Slot, Error> {
        tape.linear(&[HEAD], y, None)
    }

    /// Floating-point operations of a token in training: six for each weight of a product, and the mixers', by chunks of 64.
    pub fn flops_per_token(&self) -> f64 {
        let Self { vocabulary, width, heads, blocks, keys, values, hidden } = *self;
        let of_block =
            width * (2 * heads * (keys + values) + 2 * heads + heads * values) + 3 * width * hidden;
        let of_products = 6.0 * (blocks * of_block + width * vocabulary) as f64;
        // Of each position: C is read and written, and 64 scores are made, two operations each; thrice with the way back.
        let of_mixer = 3.0 * 2.0 * (heads * (2 * keys * values + 32 * (keys + values))) as f64;
        of_products + blocks as f64 * of_mixer
    }
}
