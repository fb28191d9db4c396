//! What there is to learn from.

use std::sync::Arc;

use lab_harness::Error;
use sha2::{Digest, Sha256};

use crate::TokenFiles;

/// A stream of tokens. A window at start s has the S tokens from s on, and each token's target is the one behind it, unless it has one of
/// its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tokens {
    /// From 0 to V − 1; none where they stay in files.
    pub ids: Vec<i32>,
    /// Of each token its target, from 0 to V − 1, or −1 for none.
    pub targets: Option<Vec<i32>>,
    /// Where they are in files, of which a training reads the windows of its next steps.
    pub files: Option<Arc<TokenFiles>>,
}

/// The most tokens: kernels count in 32 bits.
const MOST: usize = 1 << 30;

impl Tokens {
    /// The bytes of a text, a token each.
    pub fn of_bytes(text: &[u8]) -> Self {
        Self::of_ids(text.iter().map(|&byte| i32::from(byte)).collect())
    }

    /// These, each the target of the one before.
    pub fn of_ids(ids: Vec<i32>) -> Self {
        Self { ids, ..Self::default() }
    }

    /// Those of files, which stay there.
    pub fn of_files(files: TokenFiles) -> Self {
        Self { files: Some(Arc::new(files)), ..Self::default() }
    }

    /// How many there are.
    #[allow(clippy::len_without_is_empty)] // nobody asks
    pub fn len(&self) -> usize {
        self.files.as_ref().map_or(self.ids.len(), |files| files.len())
    }

    /// These windows alone, each with its last target, and where each of them begins then: in memory, wherever these are.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn excerpt(&self, starts: &[usize], window: usize) -> Result<(Self, Vec<usize>), Error> {
        let mut ids = Vec::with_capacity(starts.len() * (window + 1));
        for &start in starts {
            match &self.files {
                Some(files) => ids.extend(files.read(start, window + 1)?),
                None => ids.extend_from_slice(&self.ids[start..=start + window]),
            }
        }
        let starts = (0..starts.len()).map(|n| n * (window + 1)).collect();
        Ok((Self::of_ids(ids), starts))
    }

    /// All of them in memory.
    ///
    /// # Errors
    /// A file cannot be read, or they are more than 2³⁰.
    pub fn in_memory(self) -> Result<Self, Error> {
        let Some(files) = &self.files else { return Ok(self) };
        if files.len() > MOST {
            return Err(Error::bad("tokens", format!("at most {MOST}"), files.len()));
        }
        Ok(Self { ids: files.read(0, files.len())?, targets: self.targets, files: None })
    }

    /// The starts of windows one behind the other, each with the target of its last token.
    pub fn starts(&self, window: usize) -> Vec<usize> {
        (0..self.len().saturating_sub(window)).step_by(window.max(1)).collect()
    }

    /// The same windows as so many streams, in the order in which steps take them: row by row of a step, and of each row the window
    /// behind that of the step before. What is left over, less than a window of each stream, nobody reads.
    pub fn streams(windows: &[usize], rows: usize) -> Vec<usize> {
        let steps = windows.len() / rows.max(1);
        (0..steps).flat_map(|step| (0..rows).map(move |row| windows[row * steps + step])).collect()
    }

    /// Refuses tokens that a model of so many words does not know, and windows that end past the last target.
    pub(crate) fn check(
        &self,
        vocabulary: usize,
        starts: &[usize],
        window: usize,
    ) -> Result<(), Error> {
        let len = self.len();
        let most = if self.files.is_some() { usize::MAX } else { MOST };
        if len <= window || len > most {
            let expected = format!("{} to {most}, a window and its last target", window + 1);
            return Err(Error::bad("tokens of the data", expected, len));
        }
        if let Some(files) = &self.files {
            if files.vocabulary() > vocabulary {
                let expected = format!("at most {vocabulary}, as the model's");
                return Err(Error::bad("vocabulary of the data", expected, files.vocabulary()));
            }
            if self.targets.is_some() {
                return Err(Error::bad("targets of tokens in files", "the next token", "others"));
            }
        }
        let is_known = |&id: &i32| usize::try_from(id).is_ok_and(|id| id < vocabulary);
        if let Some(at) = self.ids.iter().position(|id| !is_known(id)) {
            let expected = format!("0 to {}", vocabulary - 1);
            return Err(Error::bad(format!("token {at} of the data"), expected, self.ids[at]));
        }
        if let Some(targets) = &self.targets {
            if targets.len() != len {
                let expected = format!("{len}, as there are tokens");
                return Err(Error::bad("targets of the data", expected, targets.len()));
            }
            if let Some(at) = targets.iter().position(|id| *id != -1 && !is_known(id)) {
                let expected = format!("-1 to {}", vocabulary - 1);
                return Err(Error::bad(format!("target {at} of the data"), expected, targets[at]));
            }
        }
        if starts.is_empty() {
            return Err(Error::bad("windows", "at least 1", 0));
        }
        match starts.iter().position(|&start| start > len - window - 1) {
            Some(at) => {
                let expected = format!("0 to {}", len - window - 1);
                Err(Error::bad(format!("start of window {at}"), expected, starts[at]))
            }
            None => Ok(()),
        }
    }

    /// What tells tokens and windows from others.
    pub(crate) fn digest(&self, starts: &[usize]) -> String {
        let mut hash = Sha256::new();
        hash.update(format!("tokens {};", self.len()));
        if let Some(files) = &self.files {
            hash.update(files.digest());
        }
        update(&mut hash, &self.ids);
        if let Some(targets) = &self.targets {
            hash.update(";targets;");
            update(&mut hash, targets);
        }
        starts.iter().for_each(|&start| hash.update((start as u64).to_le_bytes()));
        format!("{:x}", hash.finalize())
    }
}

/// Adds ids, each as its four bytes from the lowest on: many at once, for a text has millions.
fn update(hash: &mut Sha256, ids: &[i32]) {
    if cfg!(target_endian = "little") {
        hash.update(bytemuck::cast_slice::<i32, u8>(ids));
    } else {
        ids.iter().for_each(|id| hash.update(id.to_le_bytes()));
    }
}
