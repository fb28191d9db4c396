//! A model's file.

use std::collections::BTreeMap;
use std::path::Path;

use lab_harness::Error;
use lab_mlp::data::Vocabulary;
use lab_mlp::training::Checkpoint;

use super::settings::Settings;
use crate::commands::training::history::History;
use crate::failure::Failure;

/// What the tool notes beside parameters and state.
#[derive(Clone, Debug)]
pub(super) struct Notes {
    pub(super) settings: Settings,
    pub(super) vocabulary: Vocabulary,
    pub(super) history: History,
}

impl Notes {
    pub(super) fn write(&self) -> BTreeMap<String, String> {
        let settings = serde_json::to_string(&self.settings).expect("settings are JSON");
        let notes = [
            ("settings", settings),
            ("vocabulary", self.vocabulary.write()),
            ("losses", self.history.text()),
        ];
        notes.map(|(name, text)| (name.to_owned(), text)).into()
    }

    fn read(notes: &BTreeMap<String, String>) -> Option<Self> {
        let settings: Settings = serde_json::from_str(notes.get("settings")?).ok()?;
        settings.check().ok()?;
        let vocabulary = Vocabulary::parse(notes.get("vocabulary")?)?;
        let history = History::parse(notes.get("losses")?)?;
        (vocabulary.unit() == settings.unit()).then_some(Self { settings, vocabulary, history })
    }

    /// Whether they can be those of this checkpoint.
    fn fit(&self, checkpoint: &Checkpoint) -> bool {
        checkpoint.model == self.settings.model(self.vocabulary.len())
            && self.history.0.len() == checkpoint.position.epoch
    }
}

/// Reads a model's file.
///
/// # Errors
/// It cannot be read, or is none that this tool wrote.
pub(super) fn read(path: &Path) -> Result<(Checkpoint, Notes), Failure> {
    let checkpoint = Checkpoint::read(path)?;
    let foreign = || {
        let message = "expected a model that `lab mlp train` wrote, got a checkpoint of another";
        Error::File { path: path.display().to_string(), message: message.into() }
    };
    let notes =
        Notes::read(&checkpoint.notes).filter(|n| n.fit(&checkpoint)).ok_or_else(foreign)?;
    Ok((checkpoint, notes))
}

/// Writes one, whole or not at all.
pub(super) fn write(path: &Path, mut checkpoint: Checkpoint, notes: &Notes) -> Result<(), Failure> {
    checkpoint.notes = notes.write();
    Ok(checkpoint.write(path)?)
}
