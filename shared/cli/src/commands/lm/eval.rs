//! `lab lm eval`.

use std::path::PathBuf;

use clap::Args;
use lab_harness::Error;
use lab_lm::{Evaluator, Tokens};
use serde_json::json;

use super::settings::TypeName;
use super::{bits, saved, texts};
use crate::Common;
use crate::commands::training::digits;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A file that `lab lm train` wrote
    model: PathBuf,
    /// The texts: files, and directories with all of their files
    #[arg(required = true)]
    texts: Vec<PathBuf>,
    /// What the model runs in
    #[arg(long, default_value = "auto")]
    dtype: TypeName,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { model: path, texts, dtype } = arguments;
    let (checkpoint, _) = saved::read(path)?;
    let text = texts::read(texts)?;
    let data = Tokens::of_bytes(&text);
    let window = checkpoint.config.window;
    let starts = data.starts(window);
    if starts.is_empty() {
        let expected = format!("at least {}, a window and its last target", window + 1);
        return Err(Error::bad("bytes of the text", expected, text.len()).into());
    }
    let device = common.open()?;
    let sizes = [checkpoint.config.batch.min(starts.len()), window];
    let (model, parameters) = (checkpoint.model, &checkpoint.parameters);
    let mut evaluator =
        Evaluator::new(&device, model, parameters, dtype.on(&device), sizes, &data)?;
    let loss = evaluator.mean_loss(&starts)?;
    let read = starts.len() * window;
    if common.json {
        println!(
            "{}",
            json!({
                "model": path.display().to_string(), "device": device.name(), "bytes": text.len(),
                "judged": read, "window": window, "loss": loss, "bits_a_byte": bits(loss),
            })
        );
        return Ok(());
    }
    let per_byte = digits(bits(loss));
    println!(
        "{per_byte} bits a byte, over {read} bytes in windows of {window}, on {}",
        device.name()
    );
    Ok(())
}
