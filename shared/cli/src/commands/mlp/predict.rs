//! `lab mlp predict MODEL WORDS`.

use std::path::PathBuf;

use clap::Args;
use lab_harness::Error;
use lab_mlp::training::{Data, Evaluator};
use serde_json::json;

use super::saved;
use crate::Common;
use crate::failure::Failure;
use crate::table::table;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A file that `lab mlp train` wrote
    model: PathBuf,
    /// What stands before
    words: String,
    /// So many of the likeliest
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    top: u32,
    /// The last so many tokens count: the mean of their embeddings. A model is trained on one
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    context: u32,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { model: path, words, top, context } = arguments;
    let (checkpoint, notes) = saved::read(path)?;
    let vocabulary = &notes.vocabulary;
    let given = vocabulary.encode(words);
    if given.is_empty() {
        let got = format!("'{words}'");
        return Err(Error::bad("WORDS", "one token at least", got).into());
    }
    let given = &given[given.len().saturating_sub(*context as usize)..];
    let unknown: Vec<String> = given
        .iter()
        .filter(|(_, id)| *id == 0)
        .map(|(token, _)| format!("'{}'", String::from_utf8_lossy(token)))
        .collect();
    let device = common.open()?;
    let data = Data { tokens: vec![0, 0], vocabulary: vocabulary.len() };
    let mut evaluator = Evaluator::new(&device, checkpoint.model, checkpoint.config, &data)?;
    evaluator.load(&checkpoint.parameters)?;
    let ids: Vec<i32> = given.iter().map(|(_, id)| *id).collect();
    let odds = evaluator.predict(&ids)?;
    let mut all: Vec<usize> = (0..odds.len()).collect();
    all.sort_by(|a, b| odds[*b].total_cmp(&odds[*a]));
    all.truncate(*top as usize);
    if common.json {
        let told = all
            .iter()
            .map(|&id| json!({ "id": id, "token": vocabulary.show(id), "probability": odds[id] }));
        say!(
            "{}",
            json!({ "model": path.display().to_string(), "device": device.name(),
                    "context": ids, "unknown": unknown.len(), "next": told.collect::<Vec<_>>() })
        );
        return Ok(());
    }
    if !unknown.is_empty() {
        note!("not in the vocabulary, and taken as unknown: {}", unknown.join(", "));
    }
    let mut rows = table(&["next", ">probability"]);
    for id in all {
        rows.add_row([vocabulary.show(id), format!("{:.2} %", 100.0 * odds[id])]);
    }
    say!("{rows}");
    Ok(())
}
