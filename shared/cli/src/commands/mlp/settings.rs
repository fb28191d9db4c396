//! What may be said about a model and its training.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use lab_device::DType;
use lab_harness::Error;
use lab_mlp::data::Unit;
use lab_mlp::training::{Config, Decay, Model, Optimizer, Schedule};
use serde::{Deserialize, Serialize};

/// All of them; a training that goes on has those that it was begun with.
#[derive(Args, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    /// The text, a file
    #[arg(value_name = "TEXT")]
    pub(crate) text: PathBuf,
    /// What a token is: `words` of a text in UTF-8, or `bytes` of any file
    #[arg(long, default_value = "words", help_heading = "Data")]
    pub(crate) tokens: UnitName,
    /// The most tokens that the model knows; all others are one, the unknown token, which is counted
    #[arg(long, default_value_t = 5000, help_heading = "Data")]
    pub(crate) max_vocab: usize,
    /// Share at the end of the text that the model is not trained on, but judged by
    #[arg(long, default_value_t = 0.1, help_heading = "Data")]
    pub(crate) held_out: f64,

    /// Columns of an embedding
    #[arg(long, default_value_t = 64, help_heading = "Model")]
    pub(crate) embed: usize,
    /// Hidden units
    #[arg(long, default_value_t = 128, help_heading = "Model")]
    pub(crate) hidden: usize,

    /// Times through the text, in another order each
    #[arg(long, default_value_t = 5, help_heading = "Training")]
    pub(crate) epochs: usize,
    /// Pairs of a step
    #[arg(long, default_value_t = 32, help_heading = "Training")]
    pub(crate) batch: usize,
    /// How gradients move the parameters
    #[arg(long, default_value = "adam", help_heading = "Training")]
    pub(crate) optimizer: OptimizerName,
    /// Learning rate [default: 0.003; sgd: 0.1]
    #[arg(long, help_heading = "Training")]
    pub(crate) lr: Option<f64>,
    /// How the learning rate falls: never, or to 0 at the last step as a cosine does
    #[arg(long, default_value = "cosine", help_heading = "Training")]
    pub(crate) schedule: ScheduleName,
    /// The largest norm of all gradients together; 0: any
    #[arg(long, default_value_t = 0.0, help_heading = "Training")]
    pub(crate) clip: f64,
    /// What the largest products are of: f32, or bf16 on the tensor cores; parameters are in f32
    #[arg(long, default_value = "f32", help_heading = "Training")]
    pub(crate) dtype: TypeName,
    /// Of the first parameters and the order of the pairs
    #[arg(long, default_value_t = 0, help_heading = "Training")]
    pub(crate) seed: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum UnitName {
    Words,
    Bytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OptimizerName {
    Adam,
    Sgd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ScheduleName {
    Constant,
    Cosine,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TypeName {
    F32,
    Bf16,
}

impl Settings {
    /// Refuses numbers that mean nothing, before any file is read.
    pub(super) fn check(&self) -> Result<(), Error> {
        let within = |what: &str, value: f64, least: f64, below: f64| {
            let expected = format!("a number from {least} on and below {below}");
            let fits = value >= least && value < below;
            if fits { Ok(()) } else { Err(Error::bad(what, expected, value)) }
        };
        if self.text.to_str().is_none() {
            // The model keeps it, in JSON.
            let got = self.text.display().to_string();
            return Err(Error::bad("TEXT", "a file whose name is UTF-8", got));
        }
        within("--held-out", self.held_out, 0.0, 1.0)?;
        within("--clip", self.clip, 0.0, f64::INFINITY)?;
        if self.lr.is_some_and(|lr| !(lr > 0.0 && lr.is_finite())) {
            let got = self.lr.unwrap_or(f64::NAN);
            return Err(Error::bad("--lr", "a number above 0", got));
        }
        lab_training::count("--epochs", self.epochs, 1 << 20)?;
        lab_training::count("--embed", self.embed, 4096)?;
        lab_training::count("--hidden", self.hidden, 4096)?;
        lab_training::count("--batch", self.batch, 1 << 15)
    }

    pub(super) fn unit(&self) -> Unit {
        match self.tokens {
            UnitName::Words => Unit::Words,
            UnitName::Bytes => Unit::Bytes,
        }
    }

    pub(super) fn model(&self, vocabulary: usize) -> Model {
        Model { vocabulary, embedding: self.embed, hidden: self.hidden }
    }

    pub(super) fn config(&self, pairs: usize) -> Config {
        let steps = self.epochs.saturating_mul(pairs.div_ceil(self.batch));
        let (optimizer, rate) = match self.optimizer {
            OptimizerName::Adam => (Optimizer::adam(), 0.003),
            OptimizerName::Sgd => (Optimizer::sgd(0.0), 0.1),
        };
        let decay = match self.schedule {
            ScheduleName::Constant => Decay::Constant,
            ScheduleName::Cosine => Decay::Cosine { steps, min: 0.0 },
        };
        Config {
            batch: self.batch,
            dtype: match self.dtype {
                TypeName::F32 => DType::F32,
                TypeName::Bf16 => DType::BF16,
            },
            seed: self.seed,
            shuffle: true,
            optimizer,
            schedule: Schedule { rate: self.lr.unwrap_or(rate), warm_up: 0, decay },
            clip: (self.clip > 0.0).then_some(self.clip),
        }
    }
}
