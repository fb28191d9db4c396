//! A model's file.

use std::collections::BTreeMap;
use std::path::Path;

use lab_device::DType;
use lab_harness::{Error, Tensors};
pub(super) use lab_lm::tokenizer_file;
use lab_lm::{Checkpoint, Config, Model, Tokenizer};
use serde::{Deserialize, Serialize};

use super::settings::Settings;
use crate::failure::Failure;

/// A look at a training: what it has come to by some step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Look {
    /// Steps that are done.
    pub(super) step: usize,
    /// The mean over the steps since the last look, in nats.
    pub(super) loss: f64,
    /// Of what is held out, if there is any.
    pub(super) held_out: Option<f64>,
}

/// What the tool notes beside parameters and state.
#[derive(Clone, Debug)]
pub(super) struct Notes {
    pub(super) settings: Settings,
    pub(super) looks: Vec<Look>,
    /// Of the steps since the last look, in nats; there are some only where a training was stopped between two.
    pub(super) losses: Vec<f64>,
}

impl Notes {
    pub(super) fn write(&self) -> BTreeMap<String, String> {
        let settings = serde_json::to_string(&self.settings).expect("settings are JSON");
        let looks = serde_json::to_string(&self.looks).expect("numbers are JSON");
        let mut all = BTreeMap::from([("settings".into(), settings), ("looks".into(), looks)]);
        if !self.losses.is_empty() {
            let losses = serde_json::to_string(&self.losses).expect("numbers are JSON");
            all.insert("losses".into(), losses);
        }
        all
    }

    fn read(notes: &BTreeMap<String, String>) -> Option<Self> {
        let settings: Settings = serde_json::from_str(notes.get("settings")?).ok()?;
        settings.check().ok()?;
        let looks = serde_json::from_str(notes.get("looks")?).ok()?;
        let losses = notes.get("losses").map(|text| serde_json::from_str(text));
        Some(Self { settings, looks, losses: losses.transpose().ok()?.unwrap_or_default() })
    }
}

/// A model, from wherever it comes.
pub(super) struct Loaded {
    pub(super) model: Model,
    pub(super) parameters: Tensors,
    /// How it was trained here, if it was.
    pub(super) config: Option<Config>,
}

impl Loaded {
    /// Whether its matrices are of int8.
    pub(super) fn is_int8(&self) -> bool {
        self.parameters.values().any(|tensor| tensor.dtype == DType::I8)
    }

    /// That of its training, or what is usual.
    pub(super) fn config(&self) -> Config {
        self.config.unwrap_or_default()
    }
}

/// Reads a model: a file that `lab lm train` or `lab lm quantize` wrote, a directory of Hugging Face, or a state dict of `xlstm_large`.
///
/// # Errors
/// It cannot be read, or is none of these.
pub(super) fn load(path: &Path) -> Result<Loaded, Failure> {
    let lab_lm::Loaded { model, parameters, checkpoint } = lab_lm::Loaded::read(path)?;
    let checkpoint = checkpoint.map(|checkpoint| checked(path, checkpoint)).transpose()?;
    let config = checkpoint.map(|(checkpoint, _)| checkpoint.config);
    Ok(Loaded { model, parameters, config })
}

/// What makes tokens of texts for a model: bytes where no tokenizer lies beside it.
///
/// # Errors
/// There is one, and it cannot be read.
pub(super) fn tokenizer(path: &Path) -> Result<Tokenizer, Failure> {
    Ok(Tokenizer::of_model(path)?)
}

/// Reads a file that `lab lm train` wrote.
///
/// # Errors
/// It cannot be read, or is none that this tool wrote.
pub(super) fn read(path: &Path) -> Result<(Checkpoint, Notes), Failure> {
    checked(path, Checkpoint::read(path)?)
}

/// The same, or a training that has taken no step yet, which has no parameters.
///
/// # Errors
/// As [`read`].
pub(super) fn read_to_resume(path: &Path) -> Result<(Checkpoint, Notes), Failure> {
    checked(path, Checkpoint::read_to_resume(path)?)
}

fn checked(path: &Path, checkpoint: Checkpoint) -> Result<(Checkpoint, Notes), Failure> {
    let notes = Notes::read(&checkpoint.notes)
        .filter(|notes| notes.settings.sizes.model() == checkpoint.model);
    let notes = notes.ok_or_else(|| {
        let message = "expected a model that `lab lm train` wrote, got a checkpoint of another";
        Error::File { path: path.display().to_string(), message: message.into() }
    })?;
    Ok((checkpoint, notes))
}

/// Writes one, whole or not at all.
pub(super) fn write(path: &Path, mut checkpoint: Checkpoint, notes: &Notes) -> Result<(), Failure> {
    checkpoint.notes = notes.write();
    Ok(checkpoint.write(path)?)
}
