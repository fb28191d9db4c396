//! The model: its sizes, its parameters, and how it is computed.

use lab_harness::Error;
use lab_harness::plan::Slot;
use lab_layers::{
    AttentionMixer, Init, Memory, Parameter, Parameters, Quantized, RecurrentMixer, State, Tape,
    VlstmMixer,
};
use lab_operations::{AttentionSizes, RecurrentCell, Sizes};
use passes::Rope;
use serde::{Deserialize, Serialize};

use crate::{Mixer, Mixers, Types};

/// Gates are this · tanh(x / this).
pub(crate) const GATE_CAP: f32 = 15.0;

/// ε of the mixer's norms, as the layers have it, and mostly of all others.
pub(crate) const EPS: f64 = 1e-6;

/// So are the logits, where a block has the vLSTM.
pub(crate) const LOGIT_CAP: f32 = 30.0;

/// The base of the angles of attention's positions, mostly.
pub(crate) const THETA: f64 = 10_000.0;

/// The parameter that makes logits, where it is not the embedding.
pub(crate) const HEAD: &str = "lm_head.weight";

/// The parameter whose rows are those of the tokens.
pub(crate) const EMBEDDING: &str = "embedding.weight";

/// A language model of xLSTM blocks; with attention in all of them a Llama.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
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
    /// The mixer of each block.
    #[serde(default, skip_serializing_if = "Mixers::is_default")]
    pub mixers: Mixers,
    /// Heads of k and v in attention, a divisor of NH; as many as those of q where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_heads: Option<usize>,
    /// Whether the embedding makes the logits as well.
    #[serde(default, skip_serializing_if = "is_false")]
    pub tied: bool,
    /// ε of the norms of whole rows.
    #[serde(default = "usual_eps", skip_serializing_if = "is_usual_eps")]
    pub norm_eps: f64,
    /// The base of the angles by which attention's positions turn q and k.
    #[serde(default = "usual_theta", skip_serializing_if = "is_usual_theta")]
    pub theta: f64,
}

// What a field that files of before do not have is in them; it is not written either.
fn usual_eps() -> f64 {
    EPS
}

fn usual_theta() -> f64 {
    THETA
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_false(value: &bool) -> bool {
    !*value
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_usual_eps(value: &f64) -> bool {
    *value == EPS
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_usual_theta(value: &f64) -> bool {
    *value == THETA
}

impl Model {
    /// As `xlstm_large` has it: q and k half as wide as the stream, v as wide, and 8/3 of it in the feed-forward layer, rounded up to a
    /// multiple of 64.
    pub fn xlstm(vocabulary: usize, width: usize, heads: usize, blocks: usize) -> Self {
        let [keys, values] = [2, 1].map(|part| width / part / heads.max(1));
        // Whatever is asked for; `check` refuses what no kernel takes.
        let hidden = width.saturating_mul(8).div_ceil(3).next_multiple_of(64);
        Self {
            vocabulary,
            width,
            heads,
            blocks,
            keys,
            values,
            hidden,
            mixers: Mixers::default(),
            shared_heads: None,
            tied: false,
            norm_eps: EPS,
            theta: THETA,
        }
    }

    /// The same with other mixers. A head of attention has as many columns as one of the vLSTM has values.
    #[must_use]
    pub fn with_mixers(self, mixers: Mixers, shared_heads: Option<usize>) -> Self {
        let is_said = |own: &usize| *own != self.heads || !mixers.has(Mixer::Attention);
        Self { mixers, shared_heads: shared_heads.filter(is_said), ..self }
    }

    /// The name of the parameter that makes the logits.
    pub(crate) fn head(&self) -> &'static str {
        if self.tied { EMBEDDING } else { HEAD }
    }

    /// Heads of k and v in attention.
    pub(crate) fn key_heads(&self) -> usize {
        self.shared_heads.unwrap_or(self.heads)
    }

    /// What the logits are capped at.
    pub(crate) fn logit_cap(&self) -> Option<f32> {
        self.mixers.has(Mixer::Vlstm).then_some(LOGIT_CAP)
    }

    /// A logit with its cap.
    pub(crate) fn capped(&self, logit: f64) -> f64 {
        self.logit_cap().map_or(logit, |cap| f64::from(cap) * (logit / f64::from(cap)).tanh())
    }

    /// Refuses tokens that it does not know.
    pub(crate) fn check_tokens(&self, tokens: &[i32]) -> Result<(), Error> {
        let is_known = |&&id: &&i32| usize::try_from(id).is_ok_and(|id| id < self.vocabulary);
        match tokens.iter().find(|id| !is_known(id)) {
            Some(id) => Err(Error::bad("token", format!("0 to {}", self.vocabulary - 1), id)),
            None => Ok(()),
        }
    }

    /// Refuses sizes that no kernel takes.
    ///
    /// # Errors
    /// [`Error::Bad`] with the first of them.
    pub fn check(&self) -> Result<(), Error> {
        let Self { vocabulary, width, heads, blocks, keys, values, hidden, .. } = *self;
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
        if self.mixers.has(Mixer::Vlstm) {
            in_range("keys of a head", keys, 256, 16)?;
            in_range("values of a head", values, 512, 16)?;
        } else if keys > 1 << 16 {
            // Nobody reads them.
            in_range("keys of a head", keys, 1 << 16, 1)?;
        }
        if self.mixers.has(Mixer::Attention) {
            in_range("columns of a head of attention", values, 256, 16)?;
        }
        if self.mixers.has(Mixer::Lstm) || self.mixers.has(Mixer::Slstm) {
            in_range("units of a head", values, 4096, 8)?;
        }
        if !(self.norm_eps > 0.0 && self.norm_eps <= 1.0) {
            return Err(Error::bad("ε of the norms", "above 0 and at most 1", self.norm_eps));
        }
        if self.mixers.has(Mixer::Vlstm) && !is_usual_eps(&self.norm_eps) {
            return Err(Error::bad(
                "ε of the norms",
                format!("{EPS}, beside the vLSTM"),
                self.norm_eps,
            ));
        }
        if !(self.theta > 1.0 && self.theta.is_finite()) {
            let expected = "a finite number above 1";
            return Err(Error::bad("theta of the positions", expected, self.theta));
        }
        if let Some(shared) = self.shared_heads {
            if !self.mixers.has(Mixer::Attention) {
                return Err(Error::bad("heads of k and v", "a mixer with attention", "none"));
            }
            if shared == 0 || !heads.is_multiple_of(shared) {
                let expected = format!("a divisor of all heads, {heads}");
                return Err(Error::bad("heads of k and v", expected, shared));
            }
        }
        in_range("columns of the feed-forward layer", hidden, 1 << 20, 8)
    }

    /// All of them, by the names of `xlstm_large`'s state dict; it has no attention, whose names are like those.
    pub fn parameters(&self) -> Parameters {
        let Self { vocabulary, width, heads, blocks, keys, values, hidden, .. } = *self;
        // As `xlstm_large`: small_init of what reads the stream, wang_init of what writes to it.
        let reads = Init::Normal((2.0 / (5.0 * width as f64)).sqrt());
        let writes = Init::Normal(2.0 / blocks as f64 / (width as f64).sqrt());
        let ones = Init::Constant(1.0);
        let mut all = Vec::new();
        let matrix = |name: String, rows: usize, columns: usize, init| {
            Parameter::new(name, &[rows, columns], init).decays()
        };
        // Rows of the logits' product in eights, as its tiles want them.
        let room = vocabulary.next_multiple_of(8) * width;
        let embedding = matrix(EMBEDDING.into(), vocabulary, width, reads);
        all.push(if self.tied { embedding.with_room(room) } else { embedding });
        for n in 0..blocks {
            let block = format!("backbone.blocks.{n}");
            let [norm, layer] = self.mixers.of_block(n).names();
            let mixer = |name: &str| format!("{block}.{layer}.{name}");
            let own = self.mixers.of_block(n);
            let units = heads * values;
            let qkv = match own {
                Mixer::Vlstm => Some([heads * keys, heads * keys, units]),
                Mixer::Attention => {
                    Some([units, self.key_heads() * values, self.key_heads() * values])
                }
                Mixer::Lstm | Mixer::Slstm => None,
            };
            for (name, rows) in ["q", "k", "v"].into_iter().zip(qkv.into_iter().flatten()) {
                let one = matrix(mixer(&format!("{name}.weight")), rows, width, reads);
                all.push(if name == "q" { one } else { one.joined() });
            }
            // As wide as PyTorch's, which are uniform.
            let hands_on = Init::Normal(1.0 / (3.0 * units as f64).sqrt());
            if own == Mixer::Lstm {
                all.push(matrix(mixer("weight_ih"), 4 * units, width, reads));
                all.push(matrix(mixer("weight_hh"), 4 * units, units, hands_on));
            }
            if own == Mixer::Slstm {
                all.push(matrix(mixer("w"), 4 * units, width, reads));
                let shape = [4, heads, values, values];
                all.push(Parameter::new(mixer("r"), &shape, hands_on).decays());
            }
            if own == Mixer::Vlstm {
                let ogate = matrix(mixer("ogate_preact.weight"), heads * values, width, reads);
                all.push(ogate.joined());
                // Rows of the gates' product in eights, as its tiles want them.
                let room = (2 * heads).next_multiple_of(8) - heads;
                let gate = |name: &str| matrix(mixer(name), heads, width, Init::Constant(0.0));
                all.push(gate("igate_preact.weight"));
                all.push(gate("fgate_preact.weight").joined().with_room(room * width));
            }
            all.push(matrix(mixer("out_proj.weight"), width, heads * values, writes));
            let ffn = |name: &str| format!("{block}.ffn.{name}");
            all.push(matrix(ffn("proj_up_gate.weight"), hidden, width, reads));
            all.push(matrix(ffn("proj_up.weight"), hidden, width, reads).joined());
            all.push(matrix(ffn("proj_down.weight"), width, hidden, writes));
            if own == Mixer::Vlstm {
                let bias = |name: &str, init| Parameter::new(mixer(name), &[heads], init);
                all.push(bias("igate_preact.bias", Init::Constant(-10.0)));
                all.push(bias("fgate_preact.bias", Init::Linear(3.0, 6.0)).joined());
                let norm = mixer("multihead_norm.weight");
                all.push(Parameter::new(norm, &[heads * values], ones));
            }
            // Forget gates, the second of four, begin open.
            let open = |value| Init::Within(value, [units, 2 * units]);
            if own == Mixer::Lstm {
                all.push(Parameter::new(mixer("bias_ih"), &[4 * units], open(1.0)));
                let zeros = Init::Constant(0.0);
                all.push(Parameter::new(mixer("bias_hh"), &[4 * units], zeros));
            }
            if own == Mixer::Slstm {
                all.push(Parameter::new(mixer("b"), &[4, heads, values], open(3.0)));
            }
            for name in [norm, "norm_ffn"] {
                all.push(Parameter::new(format!("{block}.{name}.weight"), &[width], ones));
            }
        }
        all.push(Parameter::new("backbone.out_norm.weight", &[width], ones));
        if !self.tied {
            all.push(matrix(HEAD.into(), vocabulary, width, reads).with_room(room));
        }
        Parameters::new(all)
    }

    /// The same with the matrices of blocks and the head as int8. The embedding stays as it is, of which a token reads a row, and so does
    /// what a recurrent kernel reads.
    pub fn quantized(&self) -> Quantized {
        let is_int8 = |p: &Parameter| {
            let stays = [EMBEDDING].contains(&p.name.as_str())
                || ["weight_ih", "weight_hh"].iter().any(|name| p.name.ends_with(name));
            p.shape.len() == 2 && p.decays && !stays && p.shape[1].is_multiple_of(16)
        };
        Quantized::of(&self.parameters(), is_int8)
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
        let angles = self.add_angles(tape, [batch, positions], &memory);
        tape.set_norm_eps(self.norm_eps as f32);
        let x = tape.embedding(EMBEDDING, tokens, self.tied)?;
        let mut x = tape.dropout(x)?;
        for n in 0..self.blocks {
            x = tape.within(&format!("backbone.blocks.{n}"), |tape| {
                let (mixer, memory) = (self.mixers.of_block(n), memory(n));
                let [norm, layer] = mixer.names();
                let y = tape.rms_norm_before_products(&format!("{norm}.weight"), x)?;
                let x = tape.within(layer, |tape| {
                    let h = self.mix(tape, y, (mixer, memory), [batch, positions], angles)?;
                    let h = tape.dropout(h)?;
                    tape.linear(&["out_proj.weight"], h, Some(x))
                })?;
                let z = tape.rms_norm_before_products("norm_ffn.weight", x)?;
                tape.within("ffn", |tape| {
                    let gate_up = ["proj_up_gate.weight", "proj_up.weight"];
                    tape.feed_forward(gate_up, "proj_down.weight", z, x)
                })
            })?;
        }
        tape.rms_norm_before_products("backbone.out_norm.weight", x)
    }
    // ANCHOR_END: forward

    // ANCHOR: mix
    fn mix(
        &self,
        tape: &mut Tape<'_>,
        y: Slot,
        (mixer, memory): (Mixer, Memory),
        [batch, positions]: [usize; 2],
        angles: Option<Slot>,
    ) -> Result<Slot, Error> {
        let Self { heads, keys, values, .. } = *self;
        let recurrent =
            |cell| RecurrentMixer { cell, batch, positions, heads, units: values, memory };
        match mixer {
            Mixer::Vlstm => {
                let sizes = Sizes { batch, heads, positions, keys, values };
                tape.vlstm(y, VlstmMixer { sizes, cap: GATE_CAP, memory })
            }
            Mixer::Attention => {
                let shared_heads = self.key_heads();
                let sizes =
                    AttentionSizes { batch, heads, shared_heads, positions, columns: values };
                let angles = angles.expect("made where a block has attention");
                tape.attention(y, AttentionMixer { sizes, angles, memory })
            }
            Mixer::Lstm => tape.recurrent(y, recurrent(RecurrentCell::Lstm)),
            Mixer::Slstm => tape.recurrent(y, recurrent(RecurrentCell::Slstm)),
        }
    }
    // ANCHOR_END: mix

    /// The angles of all positions that a block with attention may see, where there is one.
    fn add_angles(
        &self,
        tape: &mut Tape<'_>,
        [batch, positions]: [usize; 2],
        memory: impl Fn(usize) -> Memory,
    ) -> Option<Slot> {
        let mut blocks = 0..self.blocks;
        let first = blocks.find(|n| self.mixers.of_block(*n) == Mixer::Attention)?;
        let seen = match memory(first) {
            Memory::Step(State { slots: [keys, ..] }) => {
                keys.len() / (batch * self.key_heads() * self.values)
            }
            _ => positions,
        };
        Some(tape.plan().constant(&Rope::table(seen, self.values, self.theta)))
    }

    /// The logits before the cap, \[rows, V or more\], of what the head reads.
    ///
    /// # Errors
    /// What the layers say.
    pub fn logits(&self, tape: &mut Tape<'_>, y: Slot) -> Result<Slot, Error> {
        tape.linear(&[self.head()], y, None)
    }

    /// Floating-point operations of a token in training, in windows of so many: six for each weight of a product, and the mixers'. The
    /// vLSTM's are counted by chunks of 64.
    pub fn flops_per_token(&self, window: usize) -> f64 {
        let Self { vocabulary, width, heads, blocks, keys, values, hidden, .. } = *self;
        let of_block = |n: usize| {
            let (weights, of_mixer) = match self.mixers.of_block(n) {
                // Of each position: C is read and written, and 64 scores are made, two operations each.
                Mixer::Vlstm => (
                    2 * heads * (keys + values) + 2 * heads + heads * values,
                    2 * heads * (2 * keys * values + 32 * (keys + values)),
                ),
                // What a step makes of the one before it.
                Mixer::Lstm => (5 * heads * values, 2 * 4 * (heads * values) * (heads * values)),
                Mixer::Slstm => (5 * heads * values, 2 * 4 * heads * values * values),
                // Of each position: two products of all columns with half of the positions of its window.
                Mixer::Attention => {
                    ((2 * heads + 2 * self.key_heads()) * values, 2 * heads * values * window)
                }
            };
            // Thrice with the way back.
            6.0 * (width * (weights + 3 * hidden)) as f64 + 3.0 * of_mixer as f64
        };
        6.0 * (width * vocabulary) as f64 + (0..blocks).map(of_block).sum::<f64>()
    }

    /// Bytes of the state that a text takes that the model writes, however long it is; and of what is kept of each token of it.
    pub fn bytes_of_memory(&self, types: impl Into<Types>) -> [usize; 2] {
        let types = types.into();
        let Self { heads, keys, values, .. } = *self;
        let count = |mixer| (0..self.blocks).filter(|n| self.mixers.of_block(*n) == mixer).count();
        let of_state = heads * (types.states().size() * keys * values + 4 * (keys + 1));
        let of_token = 2 * self.key_heads() * values * types.run().size();
        let of_units = 4 * heads * values * (2 * count(Mixer::Lstm) + 4 * count(Mixer::Slstm));
        [count(Mixer::Vlstm) * of_state + of_units, count(Mixer::Attention) * of_token]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files of before there were other mixers are read, and are written as they were.
    #[test]
    fn a_model_of_the_vlstm_alone_is_written_as_ever() {
        let model = Model::xlstm(256, 64, 2, 3);
        let text = r#"{"vocabulary":256,"width":64,"heads":2,"blocks":3,"keys":16,"values":32,"hidden":192}"#;
        assert_eq!(serde_json::to_string(&model).unwrap(), text);
        assert_eq!(serde_json::from_str::<Model>(text).unwrap(), model);
        let mixed = model.with_mixers("2 vlstm : 1 attention".parse().unwrap(), Some(1));
        let text = serde_json::to_string(&mixed).unwrap();
        assert!(text.ends_with(r#","mixers":"2 vlstm : 1 attention","shared_heads":1}"#), "{text}");
        assert_eq!(serde_json::from_str::<Model>(&text).unwrap(), mixed);
        assert_eq!(model.with_mixers(Mixers::only(Mixer::Attention), Some(2)).shared_heads, None);
    }
}
