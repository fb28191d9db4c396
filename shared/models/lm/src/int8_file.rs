//! A model whose matrices are of int8, in a file.

use std::collections::BTreeMap;
use std::path::Path;

use lab_harness::{Error, Tensors, tensor};

use crate::Model;
use crate::store::is_int8;

/// A file of a quantised model: safetensors with matrices of int8 under their own names, `NAME.scale` of f32 beside each, one for each
/// of its rows, and all else in f32. Its metadata has the model.
#[derive(Clone, Debug)]
pub struct Int8File {
    /// The model.
    pub model: Model,
    /// What [`lab_layers::Quantized::quantize`] gives.
    pub parameters: Tensors,
}

/// What the metadata calls the model.
const NOTE: &str = "lm.int8";

impl Int8File {
    /// Of parameters in f32.
    ///
    /// # Errors
    /// They are not the model's, or are quantised already; one of a matrix is not finite.
    pub fn of(model: Model, parameters: &Tensors) -> Result<Self, Error> {
        model.check()?;
        if is_int8(parameters) {
            return Err(Error::bad("matrices to quantise", "f32", "int8"));
        }
        model.parameters().check(parameters)?;
        Ok(Self { model, parameters: model.quantized().quantize(parameters)? })
    }

    /// Whether a file's metadata says that it is one.
    pub fn is_one(notes: &BTreeMap<String, String>) -> bool {
        notes.contains_key(NOTE)
    }

    /// Of a file's tensors and metadata.
    ///
    /// # Errors
    /// It is none, or its model or tensors are not right.
    pub fn of_file(
        path: &Path,
        parameters: Tensors,
        notes: &BTreeMap<String, String>,
    ) -> Result<Self, Error> {
        let refuse = |message: String| Error::File { path: path.display().to_string(), message };
        let note = notes
            .get(NOTE)
            .ok_or_else(|| refuse(format!("expected metadata '{NOTE}' with a model, got none")))?;
        let model: Model = serde_json::from_str(note).map_err(|error| {
            refuse(format!("metadata '{NOTE}': expected a model, got one that is wrong: {error}"))
        })?;
        model.check()?;
        model.quantized().check(&parameters)?;
        Ok(Self { model, parameters })
    }

    /// Writes it, whole or not at all.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let model = serde_json::to_string(&self.model).expect("a model is JSON");
        tensor::write_with_notes(path, &self.parameters, &BTreeMap::from([(NOTE.into(), model)]))
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> usize {
        self.parameters.values().map(|tensor| tensor.bytes.len()).sum()
    }
}
