//! `equivalent.toml`: mutants that no test could notice, and why.

use serde::Deserialize;

use crate::bugs::read_toml;
use crate::edit::squeeze;
use crate::{Error, Mutant, Sources};

/// Mutants that change nothing that a test could see.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Equivalent {
    /// The file, from the stage; device headers as `shared/cuda/lab/….cuh`.
    pub file: String,
    /// The function; every one where it is left out.
    pub function: Option<String>,
    /// The lines that the mutant touches.
    pub before: String,
    /// These lines in the mutant.
    pub after: String,
    /// Why nothing changes.
    pub reason: String,
}

/// The explained mutants of a stage.
#[derive(Clone, Debug)]
pub struct Equivalents {
    /// The file, from the workspace's root.
    pub file: String,
    /// Its entries.
    pub entries: Vec<Equivalent>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entries {
    #[serde(default)]
    equivalent: Vec<Equivalent>,
}

impl Equivalents {
    /// Reads the `equivalent.toml` of a stage; one that is not there has no entries.
    ///
    /// # Errors
    /// It cannot be read or understood.
    pub fn read(sources: &Sources) -> Result<Self, Error> {
        let file = format!("{}/equivalent.toml", sources.home);
        let text = read_toml(&sources.workspace.root.join(&file))?;
        Self::parse(&file, &text, &sources.home)
    }

    /// Understands the text of the `equivalent.toml` of the stage in the directory `home`.
    ///
    /// # Errors
    /// It is not TOML of that form.
    pub fn parse(file: &str, text: &str, home: &str) -> Result<Self, Error> {
        let mut parsed: Entries = toml::from_str(text).map_err(|e| Error::toml(file, &e))?;
        for entry in &mut parsed.equivalent {
            if !entry.file.starts_with("shared/") {
                entry.file = format!("{home}/{}", entry.file);
            }
            entry.before = squeeze(&entry.before);
            entry.after = squeeze(&entry.after);
        }
        Ok(Self { file: file.to_owned(), entries: parsed.equivalent })
    }

    /// Why a mutant of this text is equivalent, if it is.
    pub fn reason(&self, mutant: &Mutant, text: &str) -> Option<&str> {
        let lines = mutant.edit.lines(text);
        self.entries.iter().find(|e| e.explains(mutant, &lines)).map(|e| e.reason.as_str())
    }

    /// Refuses entries that explain none of all `mutants` of the sources.
    ///
    /// # Errors
    /// The first entry that fits no mutant any more.
    pub fn check(&self, mutants: &[Mutant], sources: &Sources) -> Result<(), Error> {
        let fits = |entry: &Equivalent, mutant: &Mutant| {
            let text = sources.text(&mutant.edit.file).unwrap_or_default();
            mutant.edit.file == entry.file && entry.explains(mutant, &mutant.edit.lines(text))
        };
        for (index, entry) in self.entries.iter().enumerate() {
            if !mutants.iter().any(|m| fits(entry, m)) {
                return Err(Error::Entry {
                    file: self.file.clone(),
                    entry: (index + 1).to_string(),
                    field: "before, after",
                    expected: format!("the lines of a mutant of {}", entry.file),
                    got: format!("'{}' → '{}'", entry.before, entry.after),
                });
            }
        }
        Ok(())
    }
}

impl Equivalent {
    fn explains(&self, mutant: &Mutant, lines: &(String, String)) -> bool {
        mutant.edit.file == self.file
            && self.function.as_ref().is_none_or(|f| *f == mutant.function)
            && (lines.0 == self.before && lines.1 == self.after)
    }
}
