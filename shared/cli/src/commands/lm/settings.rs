//! What may be said about a model and its training.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use lab_device::{DType, Device, DeviceKind};
use lab_harness::Error;
use lab_lm::{Config, Decay, Mixers, Model, Schedule};
use serde::{Deserialize, Serialize};

/// What the memory C of the vLSTM is kept in between tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StateName {
    F32,
    Bf16,
}

impl StateName {
    /// Its type.
    pub(crate) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::Bf16 => DType::BF16,
        }
    }
}

/// Sizes of a model.
#[derive(Args, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Sizes {
    /// Columns of the residual stream
    #[arg(long, default_value_t = 128, help_heading = "Model")]
    pub(crate) width: usize,
    /// Heads of each mixer; a head has width / heads values and half as many keys, in multiples of 16
    #[arg(long, default_value_t = 4, help_heading = "Model")]
    pub(crate) heads: usize,
    /// Blocks, each a mixer and a feed-forward layer
    #[arg(long, default_value_t = 2, help_heading = "Model")]
    pub(crate) blocks: usize,
    /// The mixer of each block, vlstm, attention, lstm or slstm; or runs of them that repeat, such as '7 vlstm : 1 attention'
    #[arg(long, default_value_t, help_heading = "Model")]
    #[serde(default, skip_serializing_if = "is_default")]
    pub(crate) mixer: Mixers,
    /// Heads of keys and values in attention, each for as many heads of queries; as many as --heads where it is not said
    #[arg(long, help_heading = "Model")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) kv_heads: Option<usize>,
    /// One matrix for the tokens that come in and for the logits that go out
    #[arg(long, help_heading = "Model")]
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) tied: bool,
    /// Tokens that it knows; those of a text are its bytes, so that 256 suffice, those of a file of tokens as many as its tokenizer has
    #[arg(long, default_value_t = 256, help_heading = "Model")]
    pub(crate) vocabulary: usize,
    /// Tokens of a window
    #[arg(long, default_value_t = 128, help_heading = "Training")]
    pub(crate) window: usize,
    /// Windows of a step
    #[arg(long, default_value_t = 8, help_heading = "Training")]
    pub(crate) batch: usize,
    /// Parts of a step, each of a batch of windows: the step is that of all of them, in the memory of one
    #[arg(long, default_value_t = 1, help_heading = "Training")]
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub(crate) accumulate: usize,
    /// What the model runs in; auto: bf16 on a GPU, f32 on the emulator. Parameters are kept in f32
    #[arg(long, default_value = "auto", help_heading = "Training")]
    pub(crate) dtype: TypeName,
}

/// All of them; a training that goes on has those that it was begun with.
#[derive(Args, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// The texts, or files of their tokens (`lab lm tokenize`); of directories all files, in the order of their names
    #[arg(value_name = "TEXT", required = true)]
    pub(crate) texts: Vec<PathBuf>,
    /// Share at the end of the text that the model is not trained on, but judged by
    #[arg(long, default_value_t = 0.05, help_heading = "Data")]
    pub(crate) held_out: f64,
    #[command(flatten)]
    pub(crate) sizes: Sizes,
    /// Steps
    #[arg(long, default_value_t = 1000, help_heading = "Training")]
    pub(crate) steps: usize,
    /// The largest learning rate
    #[arg(long, default_value_t = 3e-3, help_heading = "Training")]
    pub(crate) lr: f64,
    /// Steps in which the rate grows to that
    #[arg(long, default_value_t = 50, help_heading = "Training")]
    pub(crate) warm_up: usize,
    /// How the rate falls to a tenth at the last step: not at all, as a cosine does, or in a straight line over the last --decay-steps
    #[arg(long, default_value = "cosine", help_heading = "Training")]
    pub(crate) schedule: ScheduleName,
    /// Steps at the end in which the rate of wsd falls; a fifth of all where it is not said
    #[arg(long, help_heading = "Training")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) decay_steps: Option<usize>,
    /// Share of the activations that are dropped in training, of the embedding and of what a block adds to the stream
    #[arg(long, default_value_t = 0.0, help_heading = "Training")]
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) dropout: f64,
    /// Factor in the loss of the squared logarithm of the softmax's denominator
    #[arg(long, default_value_t = 0.0, help_heading = "Training")]
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) z_loss: f64,
    /// AdamW's, of matrices
    #[arg(long, default_value_t = 0.1, help_heading = "Training")]
    pub(crate) weight_decay: f64,
    /// The largest norm of all gradients together; 0: any
    #[arg(long, default_value_t = 1.0, help_heading = "Training")]
    pub(crate) clip: f64,
    /// Of the first parameters and the order of the windows
    #[arg(long, default_value_t = 0, help_heading = "Training")]
    pub(crate) seed: u64,
    /// Takes the windows as they stand in the data, which somebody has shuffled already
    #[arg(long, help_heading = "Training")]
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) in_order: bool,
    /// The token that each document begins with (`lab lm tokenize --end-of-text` writes it): the vLSTM remembers nothing of the documents before it in
    /// its window
    #[arg(long, value_name = "ID", help_heading = "Data")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) end_of_text: Option<i32>,
    /// Each row of a step is a stream of its own: a window begins with the state that the one before it has left, without a gradient through it. Not for
    /// attention
    #[arg(long, help_heading = "Data")]
    #[serde(default, skip_serializing_if = "is_false")]
    pub(crate) carry_state: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ScheduleName {
    Constant,
    Cosine,
    Wsd,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_false(value: &bool) -> bool {
    !*value
}

fn is_default(mixers: &Mixers) -> bool {
    *mixers == Mixers::default()
}

fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_one(value: &usize) -> bool {
    *value == 1
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TypeName {
    Auto,
    F32,
    Bf16,
}

impl TypeName {
    pub(super) fn on(self, device: &Device) -> DType {
        match (self, device.kind()) {
            (Self::F32, _) | (Self::Auto, DeviceKind::Emulator) => DType::F32,
            (Self::Bf16, _) | (Self::Auto, DeviceKind::Cuda) => DType::BF16,
        }
    }
}

impl Sizes {
    pub(super) fn model(&self) -> Model {
        let Self { vocabulary, width, heads, blocks, mixer, kv_heads, tied, .. } = *self;
        Model { tied, ..Model::xlstm(vocabulary, width, heads, blocks) }
            .with_mixers(mixer, kv_heads)
    }

    /// Of the defaults, with these sizes.
    pub(super) fn config(&self, dtype: DType) -> Config {
        let Self { window, batch, accumulate, .. } = *self;
        Config { window, batch, accumulate, dtype, ..Config::default() }
    }
}

impl Settings {
    /// Refuses numbers that mean nothing, before any file is read.
    pub(super) fn check(&self) -> Result<(), Error> {
        if let Some(path) = self.texts.iter().find(|path| path.to_str().is_none()) {
            // The model keeps it, in JSON.
            return Err(Error::bad("TEXT", "a file whose name is UTF-8", path.display()));
        }
        if !(0.0..1.0).contains(&self.held_out) {
            let expected = "a number from 0 on and below 1";
            return Err(Error::bad("--held-out", expected, self.held_out));
        }
        if !(0.0..f64::MAX).contains(&self.clip) {
            return Err(Error::bad("--clip", "a number from 0 on", self.clip));
        }
        lab_training::count("--steps", self.steps, 1 << 30)?;
        if let Some(steps) = self.decay_steps {
            if self.schedule != ScheduleName::Wsd {
                return Err(Error::bad("--decay-steps", "--schedule wsd beside it", "another"));
            }
            lab_training::count("--decay-steps", steps, self.steps)?;
        }
        self.sizes.model().check()?;
        self.config(DType::F32).check()
    }

    pub(super) fn config(&self, dtype: DType) -> Config {
        let Self {
            steps,
            lr,
            warm_up,
            weight_decay,
            clip,
            seed,
            in_order,
            end_of_text: document,
            carry_state,
            dropout,
            z_loss,
            ..
        } = *self;
        let (after_warm_up, min) = (steps.saturating_sub(warm_up).max(1), 0.1 * lr);
        let decay = match self.schedule {
            ScheduleName::Constant => Decay::Constant,
            ScheduleName::Cosine => Decay::Cosine { steps: after_warm_up, min },
            ScheduleName::Wsd => {
                let falling = self.decay_steps.unwrap_or(steps.div_ceil(5)).min(after_warm_up);
                Decay::Wsd { stable: after_warm_up - falling, steps: falling, min }
            }
        };
        Config {
            seed,
            // Streams have their own order.
            in_order: in_order || carry_state,
            document,
            carry_state,
            dropout,
            z_loss,
            schedule: Schedule { rate: lr, warm_up, decay },
            weight_decay,
            clip: (clip > 0.0).then_some(clip),
            ..self.sizes.config(dtype)
        }
    }
}
