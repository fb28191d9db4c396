//! `lab lm tokenize`.

use std::path::PathBuf;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lab_device::emulator::write_atomically;
use lab_harness::Error;
use lab_lm::{TokenFile, Tokenizer};
use serde_json::json;

use super::texts;
use crate::Common;
use crate::commands::run::check_target;
use crate::commands::training::beside;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The texts: files of any kind, and directories, of which all files are read in the order of their names
    #[arg(value_name = "TEXT", required = true)]
    texts: Vec<PathBuf>,
    /// The file for the tokens; beside it goes what made them (.tokenizer.json), unless that is bytes
    #[arg(long)]
    out: PathBuf,
    /// The tokens of a tokenizer.json; without it and --bpe a token is a byte
    #[arg(long, conflicts_with = "bpe")]
    tokenizer: Option<PathBuf>,
    /// Learns a byte pair encoding of so many tokens from the texts
    #[arg(long)]
    bpe: Option<usize>,
    /// Each file is a document, and begins with this token, as `lab lm train --end-of-text` wants it: 256 for one that is no byte
    #[arg(long, value_name = "ID")]
    end_of_text: Option<i32>,
}

/// The largest vocabulary of a file of tokens.
const MOST_TOKENS: i32 = 1 << 30;

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { texts: paths, out, tokenizer, bpe, end_of_text } = arguments;
    if let Some(id) = end_of_text.filter(|id| !(0..MOST_TOKENS).contains(id)) {
        return Err(Error::bad("--end-of-text", format!("0 to {}", MOST_TOKENS - 1), id).into());
    }
    let kept = beside(out, "tokenizer.json");
    let files = texts::files(paths)?;
    for path in &files {
        if TokenFile::is_one(path)? {
            let got = format!("tokens, {}", path.display());
            return Err(Error::bad("TEXT", "a text", got).into());
        }
    }
    let tokenizer = match (tokenizer, bpe) {
        (Some(path), _) => Tokenizer::read(path)?,
        (None, None) => Tokenizer::Bytes,
        (None, Some(tokens)) => {
            let all = files.iter().map(|path| texts::text(path)).collect::<Result<Vec<_>, _>>()?;
            Tokenizer::train(&all, *tokens)?
        }
    };
    check_target(out)?;
    let json = tokenizer.json();
    match json {
        Some(_) => check_target(&kept)?,
        None if kept.exists() => {
            let expected = format!("no tokenizer beside {}, whose tokens are bytes", out.display());
            return Err(Error::bad("tokenizer", expected, kept.display()).into());
        }
        None => {}
    }

    let bar = ProgressBar::new(files.len() as u64);
    let style = ProgressStyle::with_template("{wide_bar} {pos}/{len} files, {eta} left");
    bar.set_style(style.expect("a template"));
    let (mut ids, mut bytes) = (Vec::new(), 0);
    for path in &files {
        let text = texts::text(path)?;
        bytes += text.len() as u64;
        ids.extend(end_of_text);
        ids.extend(texts::encode(&tokenizer, path, &text)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    // As many as kernels count.
    if ids.is_empty() || ids.len() > 1 << 30 {
        return Err(
            Error::bad("tokens of the texts", format!("1 to {}", 1 << 30), ids.len()).into()
        );
    }
    let least = end_of_text.map_or(0, |id| id as usize + 1);
    let (vocabulary, tokens) = (tokenizer.vocabulary().max(least), ids.len());
    TokenFile { vocabulary, bytes, ids }.write(out)?;
    let mut written = vec![out.display().to_string()];
    if let Some(json) = json {
        write_atomically(&kept, json.as_bytes()).map_err(|e| Failure::file(&kept, e))?;
        written.push(kept.display().to_string());
    }
    if common.json {
        say!(
            "{}",
            json!({ "texts": files.len(), "bytes": bytes, "tokens": tokens, "vocabulary": vocabulary, "files": written })
        );
        return Ok(());
    }
    let each = bytes as f64 / tokens as f64;
    say!(
        "{bytes} bytes of {} texts are {tokens} tokens of {vocabulary}, {each:.2} bytes each",
        files.len()
    );
    say!("wrote {}", written.join(" and "));
    Ok(())
}
