//! `bugs.toml`: mistakes that were made once, to be made again.

use std::path::Path;

use serde::Deserialize;

use crate::{Edit, Error, Sources};

/// The check that must notice a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Catch {
    /// A result is wrong.
    Result,
    /// Two threads meet at one place without order.
    Race,
    /// Memory is read that nobody has written.
    Init,
    /// An access outside of its memory.
    Memory,
    /// Threads that wait for each other.
    Sync,
}

impl Catch {
    /// Its name in files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Result => "result",
            Self::Race => "race",
            Self::Init => "init",
            Self::Memory => "memory",
            Self::Sync => "sync",
        }
    }
}

impl Catch {
    /// The sanitizer's name for it; `None` where a result is to be wrong.
    pub fn sanitizer(self) -> Option<&'static str> {
        match self {
            Self::Result => None,
            Self::Race => Some("racecheck"),
            Self::Init => Some("initcheck"),
            Self::Memory => Some("memcheck"),
            Self::Sync => Some("synccheck"),
        }
    }
}

/// One mistake.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bug {
    /// Its name.
    pub name: String,
    /// The file, from the stage; device headers as `shared/cuda/lab/….cuh`.
    pub file: String,
    /// A piece of the file's text that occurs once.
    pub find: String,
    /// What comes in its place.
    pub replace: String,
    /// What is seen.
    pub symptom: String,
    /// The check that must notice.
    pub check: Catch,
    /// Where the story is told.
    pub chapter: String,
}

/// The mistakes of a stage.
#[derive(Clone, Debug)]
pub struct Bugs {
    /// The file, from the workspace's root.
    pub file: String,
    /// Its entries, each with the change that it makes.
    pub entries: Vec<(Bug, Edit)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entries {
    #[serde(default)]
    bug: Vec<Bug>,
}

impl Bugs {
    /// Reads the `bugs.toml` of a stage; one that is not there has no entries.
    ///
    /// # Errors
    /// It cannot be read, or an entry does not fit the sources.
    pub fn read(sources: &Sources) -> Result<Self, Error> {
        let file = format!("{}/bugs.toml", sources.home);
        let text = read_toml(&sources.workspace.root.join(&file))?;
        Self::parse(&file, &text, sources)
    }

    /// Understands the text of a `bugs.toml`.
    ///
    /// # Errors
    /// It is not TOML of that form, or an entry does not fit the sources.
    pub fn parse(file: &str, text: &str, sources: &Sources) -> Result<Self, Error> {
        let parsed: Entries = toml::from_str(text).map_err(|e| Error::toml(file, &e))?;
        let mut entries: Vec<(Bug, Edit)> = Vec::new();
        for bug in parsed.bug {
            let refuse = |field, expected: String, got: String| Error::Entry {
                file: file.to_owned(),
                entry: bug.name.clone(),
                field,
                expected,
                got,
            };
            if entries.iter().any(|(b, _)| b.name == bug.name) {
                return Err(refuse("name", "each name once".into(), bug.name.clone()));
            }
            let path = if bug.file.starts_with("shared/") {
                bug.file.clone()
            } else {
                format!("{}/{}", sources.home, bug.file)
            };
            let Some(text) = sources.text(&path) else {
                let known: Vec<_> = sources.files().map(|f| f.0).collect();
                return Err(refuse("file", known.join(", "), path));
            };
            if bug.find == bug.replace {
                return Err(refuse("replace", "another text than find".into(), "the same".into()));
            }
            let edit = Edit::of(&path, text, &bug.find, &bug.replace).map_err(|times| {
                let expected = format!("text that occurs once in {path}");
                refuse("find", expected, format!("{times} times"))
            })?;
            entries.push((bug, edit));
        }
        Ok(Self { file: file.to_owned(), entries })
    }
}

/// The text of a TOML file; nothing where there is none.
pub(crate) fn read_toml(path: &Path) -> Result<String, Error> {
    match lab_device::emulator::read_text(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        other => other.map_err(|e| Error::file(path, e)),
    }
}
