//! Texts of files and directories, and files of their tokens.

use std::path::{Path, PathBuf};

use lab_device::emulator::read_file;
use lab_harness::Error;
use lab_lm::{TokenFile, TokenFiles, Tokenizer, Tokens};

use crate::commands::training::beside;
use crate::failure::Failure;

/// All files under these, each directory's in the order of their names.
///
/// # Errors
/// A directory cannot be read.
pub(super) fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>, Failure> {
    let mut all = Vec::new();
    for path in paths {
        append(&mut all, path)?;
    }
    Ok(all)
}

fn append(all: &mut Vec<PathBuf>, path: &Path) -> Result<(), Failure> {
    let failed = |e| Failure::file(path, e);
    if !path.is_dir() {
        all.push(path.to_owned());
        return Ok(());
    }
    let entries: Result<Vec<_>, _> =
        std::fs::read_dir(path).map_err(failed)?.map(|e| e.map(|e| e.path())).collect();
    let mut entries = entries.map_err(failed)?;
    entries.sort();
    entries.iter().try_for_each(|entry| append(all, entry))
}

/// A text's bytes.
///
/// # Errors
/// It cannot be read.
pub(super) fn text(path: &Path) -> Result<Vec<u8>, Failure> {
    read_file(path).map_err(|e| Failure::file(path, e))
}

/// Its tokens.
///
/// # Errors
/// It is not what the tokenizer takes: the error names the file.
pub(super) fn encode(tokenizer: &Tokenizer, path: &Path, text: &[u8]) -> Result<Vec<i32>, Failure> {
    let named = |error| match error {
        Error::Bad { what, expected, got } => {
            Error::Bad { what: format!("{what} {}", path.display()), expected, got }
        }
        other => other,
    };
    Ok(tokenizer.encode(text).map_err(named)?)
}

/// What is learnt from, or judged by.
pub(super) struct Corpus {
    pub(super) data: Tokens,
    /// Of the text.
    pub(super) bytes: usize,
    /// Of files of tokens, what their tokens are below; none where texts were read.
    pub(super) vocabulary: Option<usize>,
    /// What made them, if it lies beside them.
    pub(super) tokenizer: Option<PathBuf>,
}

impl Corpus {
    /// What the tokens are, as messages call them.
    pub(super) fn unit(&self) -> &'static str {
        if self.data.len() == self.bytes { "bytes" } else { "tokens" }
    }

    /// Tokens of a byte.
    pub(super) fn tokens_of_byte(&self) -> f64 {
        self.data.len() as f64 / self.bytes.max(1) as f64
    }
}

/// The tokens of all files under these, one behind the other: as files of tokens have them, or as the tokenizer makes them of texts.
///
/// # Errors
/// One cannot be read; there is nothing in them; some are texts and some are tokens, or tokens of two tokenizers.
pub(super) fn read(
    paths: &[PathBuf],
    tokenizer: impl FnOnce() -> Result<Tokenizer, Failure>,
) -> Result<Corpus, Failure> {
    let all = files(paths)?;
    let is_tokens: Vec<bool> =
        all.iter().map(|path| TokenFile::is_one(path)).collect::<Result<_, _>>()?;
    if let Some(first) = is_tokens.iter().position(|is_tokens| *is_tokens) {
        if let Some(text) = is_tokens.iter().position(|is_tokens| !*is_tokens) {
            let got = format!("{} beside {}", all[text].display(), all[first].display());
            return Err(Error::bad("TEXT", "texts alone, or files of tokens alone", got).into());
        }
        return read_tokens(&all);
    }
    let (mut ids, mut bytes) = (Vec::new(), 0);
    let mut maker = None;
    let mut tokenizer = Some(tokenizer);
    for path in &all {
        let text = text(path)?;
        if maker.is_none() {
            maker = tokenizer.take().map(|make| make()).transpose()?;
        }
        bytes += text.len();
        let maker = maker.as_ref().expect("made for the first text");
        ids.extend(encode(maker, path, &text)?);
    }
    if ids.is_empty() {
        return Err(Error::bad("TEXT", "at least one byte", "none").into());
    }
    Ok(Corpus { data: Tokens::of_ids(ids), bytes, vocabulary: None, tokenizer: None })
}

fn read_tokens(all: &[PathBuf]) -> Result<Corpus, Failure> {
    let tokenizer_of = |path: &Path| Some(beside(path, "tokenizer.json")).filter(|t| t.exists());
    let maker = |path: &Path| tokenizer_of(path).map(|t| text(&t)).transpose();
    let first = maker(&all[0])?;
    for path in all {
        if maker(path)? != first {
            let expected = format!("tokens of the tokenizer beside {}", all[0].display());
            return Err(Error::bad("TEXT", expected, path.display()).into());
        }
    }
    let files = TokenFiles::open(all)?;
    if files.len() == 0 {
        return Err(Error::bad("TEXT", "at least one token", "none").into());
    }
    let (bytes, vocabulary) = (files.bytes() as usize, Some(files.vocabulary()));
    let data = Tokens::of_files(files);
    Ok(Corpus { data, bytes, vocabulary, tokenizer: tokenizer_of(&all[0]) })
}

/// What is trained on, and behind it what is held out: of neither a window reads the other.
pub(super) struct Split {
    pub(super) trained: Vec<usize>,
    pub(super) held_out: Vec<usize>,
}

impl Split {
    /// # Errors
    /// There is no window to train on.
    pub(super) fn new(corpus: &Corpus, held_out: f64, window: usize) -> Result<Self, Error> {
        let all = corpus.data.len();
        let kept = ((all as f64) * (1.0 - held_out)).round() as usize;
        let whole = corpus.data.starts(window);
        let trained: Vec<usize> = whole.into_iter().filter(|s| s + window < kept).collect();
        let held_out: Vec<usize> = (kept..all.saturating_sub(window)).step_by(window).collect();
        if trained.is_empty() {
            let expected = format!("at least {}, a window and its last target", window + 1);
            return Err(Error::bad(format!("{} to train on", corpus.unit()), expected, kept));
        }
        Ok(Self { trained, held_out })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_window_that_is_trained_on_reads_what_is_held_out() {
        let of = |bytes: usize| {
            let data = Tokens::of_bytes(&vec![7; bytes]);
            Corpus { data, bytes, vocabulary: None, tokenizer: None }
        };
        let split = Split::new(&of(1000), 0.1, 64).unwrap();
        assert!(split.trained.iter().all(|s| s + 64 < 900) && split.trained.len() == 14);
        assert_eq!(split.held_out, [900]);
        let said = Split::new(&of(60), 0.1, 64).err().unwrap().to_string();
        let expected =
            "bytes to train on: expected at least 65, a window and its last target, got 54";
        assert_eq!(said, expected);
    }
}
