//! Waits until a file is saved, and does something at each save.

use std::path::Path;
use std::time::{Duration, SystemTime};

use crate::failure::CheckFailure;
use crate::own;

/// How often a watched file is looked at.
const PERIOD: Duration = Duration::from_millis(200);

/// A file at one moment. Both parts count: two saves may fall into one tick of the file system's
/// clock, and a save may change no text.
#[derive(PartialEq, Eq)]
pub struct Saved {
    at: Option<SystemTime>,
    text: Vec<u8>,
}

impl Saved {
    /// `None` while it cannot be read: some editors put a new file in the place of the old one, and
    /// for a moment there is neither.
    fn look(path: &Path) -> Option<Self> {
        let at = std::fs::metadata(path).ok()?.modified().ok();
        Some(Self { at, text: std::fs::read(path).ok()? })
    }

    /// The file as it is now, once it is there and has been the same for a period: an editor may
    /// still be writing.
    pub fn settled(path: &Path) -> Self {
        let mut before = Self::look(path);
        loop {
            std::thread::sleep(PERIOD);
            match (before, Self::look(path)) {
                (Some(before), Some(now)) if before == now => return now,
                (_, now) => before = now,
            }
        }
    }

    /// Waits until the file is another than this.
    pub fn next(&self, path: &Path) -> Self {
        loop {
            let now = Self::settled(path);
            if now != *self {
                return now;
            }
        }
    }

    /// What was in it; what is no UTF-8 is for the compiler to refuse.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.text).into_owned()
    }
}

/// Runs this command line again at each save, without `--watch`: a process each, so that one that a kernel
/// ends does not end the watch. Ctrl-C ends it.
pub fn repeat(file: &Path, json: bool) -> Result<(), CheckFailure> {
    std::fs::metadata(file).map_err(|e| CheckFailure::file(file, e))?;
    let mut saved = Saved::settled(file);
    loop {
        let arguments = own::arguments().into_iter().filter(|a| a != "--watch");
        let status = own::process().and_then(|mut tool| tool.args(arguments).status());
        status.map_err(|e| CheckFailure::file(Path::new(own::name()), e))?;
        if !json {
            say!("\nWaiting for the next save of {} (Ctrl-C ends)\n", file.display());
        }
        saved = saved.next(file);
    }
}
