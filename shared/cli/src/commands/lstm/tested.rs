//! What `lab lstm test` is asked for, and the model that it tests.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use super::saved;
use crate::Common;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A file that `lab lstm train` wrote
    pub(super) model: PathBuf,
    /// Another file to test on, all of it; by default the test part of what the model was trained on
    #[arg(long)]
    pub(super) data: Option<String>,
    /// The column of that CSV file; by default the name of the one that was trained on
    #[arg(long)]
    pub(super) column: Option<String>,
    /// Steps of the free run at most: forecasts from forecasts
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) steps: u32,
    /// Writes the hidden states of the heat map: a .csv or a .safetensors file
    #[arg(long)]
    pub(super) states: Option<PathBuf>,
}

/// A model under test.
pub(super) struct Tested<'a> {
    pub(super) common: &'a Common,
    pub(super) arguments: &'a Arguments,
    pub(super) model: &'a PathBuf,
    pub(super) device: lab_device::Device,
    pub(super) checkpoint: lab_lstm::training::Checkpoint,
    pub(super) notes: saved::Notes,
}

impl Tested<'_> {
    /// The file to test on, where it is another than that of the training, or another column of it.
    pub(super) fn other(&self) -> Option<&str> {
        let (then, now) = (&self.notes.settings, self.arguments);
        let same = now.data.as_deref().is_none_or(|d| d == then.data)
            && (now.column.is_none() || now.column == then.column);
        now.data.as_deref().filter(|_| !same)
    }

    /// What all reports begin with.
    pub(super) fn json(&self) -> serde_json::Value {
        json!({
            "model": self.model.display().to_string(), "device": self.device.name(),
            "settings": self.notes.settings,
        })
    }
}
