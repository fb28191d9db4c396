//! A model, from wherever it comes.

use std::path::{Path, PathBuf};

use lab_harness::{Tensors, tensor};
use lab_training::Trained as _;

use crate::{Checkpoint, Error, Int8File, Model, Pretrained, Tokenizer};

/// What Hugging Face calls it.
const TOKENIZER: &str = "tokenizer.json";

/// A model, and how it was trained here, if it was.
pub struct Loaded {
    /// The model.
    pub model: Model,
    /// In f32, or quantized.
    pub parameters: Tensors,
    /// The rest of the file of a training.
    pub checkpoint: Option<Checkpoint>,
}

impl Loaded {
    /// Reads a file of a training or of a quantised model, a directory of Hugging Face, or a state dict of `xlstm_large`.
    ///
    /// # Errors
    /// It cannot be read, or is none of these.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let pretrained = |of: Pretrained| {
            let Pretrained { model, parameters } = of;
            Self { model, parameters, checkpoint: None }
        };
        if path.is_dir() {
            return Ok(pretrained(Pretrained::of_directory(path)?));
        }
        let (all, notes) = tensor::read_with_notes(path)?;
        if Int8File::is_one(&notes) {
            let Int8File { model, parameters } = Int8File::of_file(path, all, &notes)?;
            return Ok(Self { model, parameters, checkpoint: None });
        }
        if !notes.contains_key(Model::STAGE) && Pretrained::is_state_dict(&all) {
            return Ok(pretrained(Pretrained::of_state_dict(&path.display().to_string(), all)?));
        }
        let mut checkpoint = Checkpoint::of_file(path, all, &notes)?;
        let parameters = std::mem::take(&mut checkpoint.parameters);
        Ok(Self { model: checkpoint.model, parameters, checkpoint: Some(checkpoint) })
    }
}

/// The file of a model's tokenizer: within its directory, or beside its file.
pub fn tokenizer_file(model: &Path) -> PathBuf {
    if model.is_dir() { model.join(TOKENIZER) } else { model.with_extension(TOKENIZER) }
}

impl Tokenizer {
    /// What makes tokens of texts for the model in a file or directory: bytes where no tokenizer lies beside it.
    ///
    /// # Errors
    /// There is one, and it cannot be read.
    pub fn of_model(model: &Path) -> Result<Self, Error> {
        let file = tokenizer_file(model);
        if file.exists() { Ok(Self::read(&file)?) } else { Ok(Self::Bytes) }
    }
}
