//! What a reader has solved: `exercises/progress.json`.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use lab_device::emulator::write_atomically;
use serde::{Deserialize, Serialize};

use super::{DIRECTORY, Task};
use crate::failure::Failure;

const FILE: &str = "progress.json";

/// One of each idea, in the order of the book, whose page has it, too. Then come all others.
const FIRST: [&str; 6] = [
    "transpose-conflicts",
    "tile-barriers",
    "load-q-once",
    "up-to-the-diagonal",
    "a-maximum-that-grows",
    "raise-the-flag",
];

/// The exercises that were solved. Those that are begun have a file.
#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Progress {
    solved: BTreeSet<String>,
    #[serde(skip)]
    path: PathBuf,
}

impl Progress {
    /// Reads it; nothing is solved where there is none.
    ///
    /// # Errors
    /// It cannot be read, or is not such a file.
    pub(super) fn read(root: &Path) -> Result<Self, Failure> {
        let path = root.join(DIRECTORY).join(FILE);
        let text = match lab_device::emulator::read_file(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                return Ok(Self { path, ..Self::default() });
            }
            Err(e) => return Err(Failure::file(&path, e)),
        };
        let read: Self = serde_json::from_slice(&text).map_err(|e| {
            Failure::Usage(format!(
                "{DIRECTORY}/{FILE}: expected {{\"solved\": [\"NAME\"]}}, got: {e}. Mend it, or \
                 delete it: the list then begins with nothing solved"
            ))
        })?;
        Ok(Self { path, ..read })
    }

    /// Takes down that an exercise is solved, or is not any more.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub(super) fn set(&mut self, name: &str, solved: bool) -> Result<(), Failure> {
        // While this one was watched, another call may have taken down another one.
        let root = self.path.ancestors().nth(2).unwrap_or(Path::new("."));
        *self = Self::read(root)?;
        let changed =
            if solved { self.solved.insert(name.to_owned()) } else { self.solved.remove(name) };
        if !changed {
            return Ok(());
        }
        let mut text = serde_json::to_vec_pretty(self)
            .map_err(|e| Failure::file(&self.path, std::io::Error::from(e)))?;
        text.push(b'\n');
        write_atomically(&self.path, &text).map_err(|e| Failure::file(&self.path, e))
    }

    /// Whether an exercise was solved once.
    pub(super) fn is_solved(&self, name: &str) -> bool {
        self.solved.contains(name)
    }

    /// One word on an exercise; none where it was not begun.
    pub(super) fn state(&self, task: &Task) -> &'static str {
        if self.is_solved(&task.exercise.name) {
            "solved"
        } else if task.path().exists() {
            "begun"
        } else {
            ""
        }
    }

    /// The first that is not solved, of [`FIRST`] and then of all.
    pub(super) fn next<'a>(&self, tasks: &'a [Task]) -> Option<&'a str> {
        let names = || tasks.iter().map(|t| t.exercise.name.as_str());
        let first = FIRST.iter().filter_map(|first| names().find(|name| name == first));
        first.chain(names()).find(|name| !self.solved.contains(*name))
    }

    /// How many are solved, and what to do next.
    pub(super) fn sum_up(&self, tasks: &[Task]) -> String {
        // A name in the file may be one that is no exercise any more.
        let solved = tasks.iter().filter(|t| self.solved.contains(&t.exercise.name)).count();
        match self.next(tasks) {
            Some(next) => format!("{solved} of {} solved; next: {next}", tasks.len()),
            None => format!("{solved} of {} solved", tasks.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::FIRST;

    #[test]
    fn the_book_shows_the_first_path() {
        let page = include_str!("../../../../../book/src/exercises.md");
        let path = FIRST.map(|name| format!("`{name}`")).join(", ");
        assert!(page.contains(&format!("A first path: {path}.")), "{path}");
    }
}
