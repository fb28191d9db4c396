//! `lab mlp eval MODEL [TEXT]`.

use std::f64::consts::LN_2;
use std::path::PathBuf;

use clap::Args;
use lab_harness::Error;
use lab_mlp::training::{Data, Evaluator};
use serde_json::json;

use super::corpus::Corpus;
use super::saved;
use crate::Common;
use crate::commands::training::digits;
use crate::failure::Failure;
use crate::table::table;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A file that `lab mlp train` wrote
    model: PathBuf,
    /// Another text than what the training held out
    text: Option<PathBuf>,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { model: path, text } = arguments;
    let (checkpoint, notes) = saved::read(path)?;
    let corpus = Corpus::load(&notes.settings, Some(&notes.vocabulary))?;
    let (what, told) = match text {
        Some(text) => (text.display().to_string(), notes.vocabulary.encode_file(text)?),
        None => {
            let of = notes.settings.text.display();
            (format!("what was held out of {of}"), corpus.data.tokens[corpus.held_out()].to_vec())
        }
    };
    if told.len() < 2 {
        return Err(Error::bad(what, "two tokens or more", told.len()).into());
    }
    let device = common.open()?;
    let data = Data { tokens: told, vocabulary: notes.vocabulary.len() };
    let mut evaluator = Evaluator::new(&device, checkpoint.model, checkpoint.config, &data)?;
    evaluator.load(&checkpoint.parameters)?;
    let model = evaluator.loss(&data.starts())? / LN_2;
    let all: Vec<(&str, f64)> =
        std::iter::once(("model", model)).chain(corpus.baselines(&data.tokens)).collect();
    // The first is only what the second is told from.
    let unknown = data.tokens[1..].iter().filter(|id| **id == 0).count();
    let tokens = data.tokens.len() - 1;
    if common.json {
        let by = all.iter().map(|(name, bits)| {
            let value = json!({ "bits_per_token": bits, "perplexity": bits.exp2() });
            ((*name).to_owned(), value)
        });
        say!(
            "{}",
            json!({ "model": path.display().to_string(), "device": device.name(), "of": what,
                    "tokens": tokens, "unknown": unknown,
                    "models": by.collect::<serde_json::Map<_, _>>() })
        );
        return Ok(());
    }
    say!("{what}, {tokens} tokens, {unknown} of them unknown, on {}", device.name());
    let mut rows = table(&["told by", ">bits a token", ">perplexity"]);
    for (name, bits) in all {
        rows.add_row([name.to_owned(), digits(bits), digits(bits.exp2())]);
    }
    say!("{rows}");
    Ok(())
}
