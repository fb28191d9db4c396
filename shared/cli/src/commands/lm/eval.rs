//! `lab lm eval`.

use std::path::PathBuf;

use clap::Args;
use lab_harness::Error;
use lab_lm::{Config, Evaluated, Evaluator, mean_loss_by_steps};
use serde_json::json;

use super::settings::{StateName, TypeName};
use super::{bits, saved, texts};
use crate::Common;
use crate::commands::training::digits;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A file that `lab lm train` wrote, a directory of Hugging Face (model_type xlstm or llama), or a state dict of xlstm_large
    model: PathBuf,
    /// The texts, or files of their tokens; directories with all of their files
    #[arg(required = true)]
    texts: Vec<PathBuf>,
    /// Tokens of a window; as many as it was trained on where it was trained here, else 128
    #[arg(long)]
    window: Option<usize>,
    /// Windows at once; likewise, else 8
    #[arg(long)]
    batch: Option<usize>,
    /// What the model runs in
    #[arg(long, default_value = "auto")]
    dtype: TypeName,
    /// Reads a token at a time, as a model that writes, with the vLSTM's memory kept in this; bf16 in runs of bf16. Where it is not said
    /// windows are read at once
    #[arg(long)]
    states: Option<StateName>,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { model: path, texts, window, batch, dtype, states } = arguments;
    let loaded = saved::load(path)?;
    let of_training = loaded.config();
    let window = window.unwrap_or(of_training.window);
    let batch = batch.unwrap_or(of_training.batch);
    Config { window, batch, accumulate: 1, ..of_training }.check()?;
    let mut corpus = texts::read(texts, || saved::tokenizer(path))?;
    corpus.data = corpus.data.in_memory()?;
    let starts = corpus.data.starts(window);
    if starts.is_empty() {
        let expected = format!("at least {}, a window and its last target", window + 1);
        let what = format!("{} of the text", corpus.unit());
        return Err(Error::bad(what, expected, corpus.data.len()).into());
    }
    let device = common.open()?;
    let of = Evaluated {
        model: loaded.model,
        parameters: &loaded.parameters,
        dtype: dtype.on(&device),
        batch: batch.min(starts.len()),
        window,
        data: &corpus.data,
        document: of_training.document,
    };
    let loss = match states {
        Some(states) => mean_loss_by_steps(&device, of, states.dtype(), &starts)?,
        None => Evaluator::of_losses(&device, of)?.mean_loss(&starts)?,
    };
    let read = starts.len() * window;
    let of_byte = bits(loss) * corpus.tokens_of_byte();
    if common.json {
        say!(
            "{}",
            json!({
                "model": path.display().to_string(), "device": device.name(), "bytes": corpus.bytes,
                "judged": read, "window": window,
                "states": states.map(|states| states.dtype().name()), "loss": loss, "bits_a_byte": of_byte,
            })
        );
        return Ok(());
    }
    let (per_byte, unit) = (digits(of_byte), corpus.unit());
    say!("{per_byte} bits a byte, over {read} {unit} in windows of {window}, on {}", device.name());
    Ok(())
}
