//! `lab lstm test MODEL`.

use std::path::PathBuf;

use clap::Args;
use lab_harness::Error;
use serde_json::json;

use super::saved::{self, Meaning};
use super::settings::Kind;
use super::{forecast, text};
use crate::Common;
use crate::commands::run::check_target;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A file that `lab lstm train` wrote
    model: PathBuf,
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

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { model, data, column, .. } = arguments;
    let (checkpoint, notes) = saved::read(model)?;
    let trained = Kind::of(&notes.settings.data);
    let fits = |data: &String| match trained {
        Kind::Text => Kind::of(data) == Kind::Text,
        _ => Kind::of(data) != Kind::Text,
    };
    if let Some(other) = data.as_ref().filter(|d| !fits(d)) {
        let expected = match trained {
            Kind::Text => "a text, as the model was trained on",
            _ => "sine or a CSV file, for the model was trained on a series",
        };
        return Err(Error::bad("--data", expected, format!("'{other}'")).into());
    }
    let kind = data.as_deref().map_or(trained, Kind::of);
    if let Some(column) = column.as_ref().filter(|_| data.is_none() || kind != Kind::Csv) {
        return Err(Error::bad("--column", "none without a CSV file in --data", column).into());
    }
    if let Some(path) = &arguments.states {
        check_target(path)?;
        let known = path.extension().is_some_and(|e| e == "csv" || e == "safetensors");
        if !known {
            let got = format!("'{}'", path.display());
            return Err(Error::bad("--states", "a .csv or a .safetensors file", got).into());
        }
    }
    let device = common.open()?;
    eprintln!("{} on {}", model.display(), device.name());
    let tested = Tested { common, arguments, model, device, checkpoint, notes };
    match tested.notes.meaning.clone() {
        Meaning::Series(scale) => forecast::run(&tested, kind, scale),
        Meaning::Text(vocabulary) => text::run(&tested, &vocabulary),
    }
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
