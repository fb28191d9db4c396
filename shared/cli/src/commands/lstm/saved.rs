//! A model's file: a checkpoint, and what the tool notes in it.

use std::collections::BTreeMap;
use std::path::Path;

use lab_harness::Error;
use lab_lstm::data::{Scale, Vocabulary};
use lab_lstm::training::{self, Checkpoint, Head};

use super::settings::{Kind, Settings};
use super::source::Source;
use crate::commands::training::history::History;
use crate::failure::Failure;

/// How the network's numbers are meant.
#[derive(Clone, Debug)]
pub(super) enum Meaning {
    Series(Scale),
    Text(Vocabulary),
}

/// What the tool notes beside parameters and state.
#[derive(Clone, Debug)]
pub(super) struct Notes {
    pub(super) settings: Settings,
    pub(super) meaning: Meaning,
    pub(super) history: History,
}

impl Notes {
    pub(super) fn new(settings: Settings, source: &Source, history: History) -> Self {
        let meaning = match source {
            Source::Series { scale, .. } => Meaning::Series(*scale),
            Source::Text { vocabulary, .. } => Meaning::Text(vocabulary.clone()),
        };
        Self { settings, meaning, history }
    }

    pub(super) fn write(&self) -> BTreeMap<String, String> {
        let settings = serde_json::to_string(&self.settings).expect("settings are JSON");
        let (name, meaning) = match &self.meaning {
            Meaning::Series(Scale { mean, deviation }) => ("scale", format!("{mean} {deviation}")),
            Meaning::Text(known) => ("vocabulary", known.characters().iter().collect()),
        };
        let notes = [("settings", settings), (name, meaning), ("losses", self.history.text())];
        notes.map(|(name, text)| (name.to_owned(), text)).into()
    }

    fn read(notes: &BTreeMap<String, String>) -> Option<Self> {
        let settings: Settings = serde_json::from_str(notes.get("settings")?).ok()?;
        let kind = settings.checked().ok()?;
        let history = History::parse(notes.get("losses")?)?;
        let meaning = match (notes.get("scale"), notes.get("vocabulary")) {
            (Some(scale), None) => {
                let (mean, deviation) = scale.split_once(' ')?;
                let [mean, deviation] = [mean, deviation].map(|n| n.parse::<f64>().ok());
                let scale = Scale { mean: mean?, deviation: deviation? };
                let usable = scale.mean.is_finite() && scale.deviation.is_normal();
                Meaning::Series(usable.then_some(scale)?)
            }
            (None, Some(characters)) => {
                Meaning::Text(Vocabulary::new(characters.chars().collect()).ok()?)
            }
            _ => return None,
        };
        let fits = matches!(meaning, Meaning::Text(_)) == (kind == Kind::Text);
        fits.then_some(Self { settings, meaning, history })
    }

    /// Whether they can be those of this checkpoint.
    fn fit(&self, checkpoint: &Checkpoint) -> bool {
        let Checkpoint { model, config, position, .. } = checkpoint;
        let (columns, head) = match &self.meaning {
            Meaning::Series(_) => (1, Head::Last),
            Meaning::Text(vocabulary) => (vocabulary.len(), Head::EveryStep),
        };
        (model.network.inputs, model.outputs, model.head) == (columns, columns, head)
            && config.window == self.settings.window
            && self.history.0.len() == position.epoch
    }
}

/// Reads a model's file.
///
/// # Errors
/// It cannot be read, or is none that this tool wrote.
pub(super) fn read(path: &Path) -> Result<(Checkpoint, Notes), Failure> {
    let checkpoint = Checkpoint::read(path)?;
    let foreign = || {
        let message = "expected a model that `lab lstm train` wrote, got a checkpoint of another";
        Error::File { path: path.display().to_string(), message: message.into() }
    };
    let notes =
        Notes::read(&checkpoint.notes).filter(|n| n.fit(&checkpoint)).ok_or_else(foreign)?;
    Ok((checkpoint, notes))
}

/// Writes one, whole or not at all.
pub(super) fn write(
    path: &Path,
    mut checkpoint: Checkpoint,
    notes: &Notes,
) -> Result<(), training::Error> {
    checkpoint.notes = notes.write();
    checkpoint.write(path)
}
