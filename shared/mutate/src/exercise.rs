//! `exercises.toml`: pieces cut out of a stage's kernels, for a reader to write.

use serde::Deserialize;

use crate::bugs::read_toml;
use crate::{Edit, Error, Sources};

/// A piece of a kernel file that is missing.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cut {
    /// A piece of the file's text that occurs once.
    pub find: String,
    /// What the reader finds in its place.
    pub replace: String,
}

/// How much a run may ask of the memory system.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limit {
    /// The operation, as `lab profile` names it: `shared load`.
    pub operation: String,
    /// The most sectors or wavefronts, as a multiple of the fewest for as many different bytes.
    pub ratio: Option<f64>,
    /// The most sectors, wavefronts or, where these have no cost, requests.
    pub cost: Option<u64>,
}

/// What a solution may not ask for more of than it needs: where a piece asks for less, the emulator must find something.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tight {
    /// The text of such a piece, which each solution has.
    pub find: String,
    /// The same, asking for less.
    pub replace: String,
    /// What there is to say of a piece that could.
    pub says: String,
}

/// One exercise. Its solution is the kernel as it is.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exercise {
    /// Its name.
    pub name: String,
    /// The kernel file, or a header of the stage that kernel files include, from the stage.
    pub file: String,
    /// What is to be done.
    pub task: String,
    /// Where to look when it does not work.
    pub hint: String,
    /// What is missing at first.
    #[serde(rename = "cut")]
    pub cuts: Vec<Cut>,
    /// The version that the limits are of, and the checks of what is tight; none are held without.
    pub version: Option<String>,
    /// The shape at which it is counted.
    pub shape: Option<String>,
    /// What it may ask for.
    #[serde(default, rename = "limit")]
    pub limits: Vec<Limit>,
    /// What it may not ask for more of than it needs.
    #[serde(default, rename = "tight")]
    pub tight: Vec<Tight>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entries {
    #[serde(default)]
    exercise: Vec<Exercise>,
}

impl Exercise {
    /// Reads the `exercises.toml` of a stage; one that is not there has no entries.
    ///
    /// # Errors
    /// It cannot be read, or an entry does not fit the sources.
    pub fn read(sources: &Sources) -> Result<Vec<Self>, Error> {
        let file = format!("{}/exercises.toml", sources.home);
        let text = read_toml(&sources.workspace.root.join(&file))?;
        Self::parse(&file, &text, sources)
    }

    /// Understands the text of an `exercises.toml`.
    ///
    /// # Errors
    /// It is not TOML of that form, or an entry does not fit the sources.
    pub fn parse(file: &str, text: &str, sources: &Sources) -> Result<Vec<Self>, Error> {
        let parsed: Entries = toml::from_str(text).map_err(|e| Error::toml(file, &e))?;
        for (index, exercise) in parsed.exercise.iter().enumerate() {
            let refuse = |field, expected: String, got: String| Error::Entry {
                file: file.to_owned(),
                entry: exercise.name.clone(),
                field,
                expected,
                got,
            };
            if parsed.exercise[..index].iter().any(|e| e.name == exercise.name) {
                return Err(refuse("name", "each name once".into(), exercise.name.clone()));
            }
            let path = exercise.path(sources);
            let Some(mut text) = sources.text(&path).map(str::to_owned) else {
                let known: Vec<_> = sources.kernels.iter().map(|k| k.source.file).collect();
                return Err(refuse("file", known.join(", "), exercise.file.clone()));
            };
            if exercise.cuts.is_empty() {
                return Err(refuse("cut", "at least one".into(), "none".into()));
            }
            for cut in &exercise.cuts {
                let edit = Edit::of(&path, &text, &cut.find, &cut.replace).map_err(|times| {
                    let expected = format!("text that occurs once in {path}");
                    refuse("find", expected, format!("{times} times: {}", cut.find))
                })?;
                text = edit.apply(&text).expect("an edit of this text");
            }
            let is_held = !exercise.limits.is_empty() || !exercise.tight.is_empty();
            if is_held && exercise.version.is_none() {
                return Err(refuse("version", "one that is counted".into(), "none".into()));
            }
            let own = sources.text(&path).unwrap_or_default();
            if let Some(tight) = exercise.tight.iter().find(|t| pieces(own, &t.find).is_empty()) {
                return Err(refuse("tight", format!("text of {path}"), tight.find.clone()));
            }
            if exercise.limits.iter().any(|l| l.ratio.is_none() && l.cost.is_none()) {
                return Err(refuse("limit", "a ratio or a cost".into(), "neither".into()));
            }
        }
        Ok(parsed.exercise)
    }

    /// The kernel file, from the workspace's root.
    pub fn path(&self, sources: &Sources) -> String {
        if self.file.starts_with("shared/") {
            self.file.clone()
        } else {
            format!("{}/{}", sources.home, self.file)
        }
    }

    /// The kernel file with the pieces missing, and without the marks by which the book includes parts of it.
    ///
    /// # Panics
    /// The sources are not those that it was read for.
    pub fn start(&self, sources: &Sources) -> String {
        let path = self.path(sources);
        let text = sources.text(&path).expect("checked when it was read").to_owned();
        let text = self.cuts.iter().fold(text, |text, cut| {
            let edit = Edit::of(&path, &text, &cut.find, &cut.replace);
            edit.ok().and_then(|e| e.apply(&text)).expect("checked when it was read")
        });
        let is_mark = |line: &&str| line.trim_start().starts_with("// ANCHOR");
        text.split_inclusive('\n').filter(|line| !is_mark(line)).collect()
    }

    /// A reader's text with less of one piece, for each piece that [`Tight`] is about: its line, and the text. No piece is told
    /// as an error: what there is to be looked for.
    ///
    /// # Errors
    /// The text has no such piece.
    pub fn loosened<'t>(&'t self, text: &str) -> Result<Vec<(&'t Tight, usize, String)>, &'t str> {
        let mut all = Vec::new();
        for tight in &self.tight {
            let found = pieces(text, &tight.find);
            if found.is_empty() {
                return Err(&tight.find);
            }
            all.extend(found.into_iter().map(|at| {
                let (before, after) = (&text[..at], &text[at + tight.find.len()..]);
                let line = before.matches('\n').count() + 1;
                (tight, line, [before, &tight.replace, after].concat())
            }));
        }
        Ok(all)
    }

    /// The kernel file with `text` in its place, as a change.
    ///
    /// # Panics
    /// The sources are not those that it was read for.
    pub fn solved_by(&self, sources: &Sources, text: &str) -> Edit {
        let path = self.path(sources);
        let original = sources.text(&path).expect("checked when it was read");
        Edit::new(&path, original, 0..original.len(), text.to_owned())
    }
}

/// Where a piece of code stands; comments have none.
fn pieces(text: &str, find: &str) -> Vec<usize> {
    let is_code = |at: usize| {
        let before = &text[..at];
        let line = &before[before.rfind('\n').map_or(0, |n| n + 1)..];
        let in_block = match (before.rfind("/*"), before.rfind("*/")) {
            (Some(begun), ended) => ended.is_none_or(|ended| ended < begun),
            (None, _) => false,
        };
        !line.contains("//") && !in_block
    };
    text.match_indices(find).map(|(at, _)| at).filter(|&at| is_code(at)).collect()
}
