//! `lab lm generate`.

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use lab_harness::{Error, Tensors};
use lab_lm::{Sampler, SavedState, Types, Writer};
use serde_json::json;

use super::saved;
use super::settings::{StateName, TypeName};
use crate::Common;
use crate::commands::run::check_target;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A file that `lab lm train` wrote, a directory of Hugging Face (model_type xlstm or llama), or a state dict of xlstm_large
    model: PathBuf,
    /// What to go on from; a new line where neither it nor --state is said
    #[arg(long)]
    prompt: Option<String>,
    /// Goes on behind the text whose states --save-state has written, without reading it again; a prompt follows that text
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Writes the model's states behind the prompt, for --state
    #[arg(long, value_name = "FILE")]
    save_state: Option<PathBuf>,
    /// Tokens to write: bytes, unless the model has a tokenizer beside it
    #[arg(long, default_value_t = 400)]
    length: usize,
    /// Below 1 the likely gets likelier; 0 takes the likeliest always
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    /// Only so many of the likeliest tokens; 0: all
    #[arg(long, default_value_t = 0)]
    top_k: usize,
    /// Only the likeliest tokens that have this probability together
    #[arg(long, default_value_t = 1.0)]
    top_p: f64,
    /// Tokens that came lately are less likely by this; 1: they are not
    #[arg(long, default_value_t = 1.0)]
    repetition: f64,
    /// Of the choices
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// What the model runs in
    #[arg(long, default_value = "auto")]
    dtype: TypeName,
    /// What the vLSTM's memory is kept in: bf16 halves its bytes, in runs of bf16
    #[arg(long, default_value = "f32")]
    states: StateName,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let Arguments {
        model: path,
        prompt,
        state,
        save_state,
        length,
        temperature,
        top_k,
        top_p,
        repetition,
        seed,
        dtype,
        states,
    } = arguments;
    let mut sampler = Sampler::new(*temperature, *top_k, *top_p, *repetition, *seed)?;
    let prompt = match (prompt, state) {
        (Some(prompt), _) if !prompt.is_empty() => prompt,
        (Some(_), None) => return Err(Error::bad("--prompt", "one byte at least", "none").into()),
        (None, None) => "\n",
        (_, Some(_)) => "",
    };
    if let Some(file) = save_state {
        check_target(file)?;
    }
    let saved = state.as_ref().map(|file| SavedState::read(file)).transpose()?;
    let loaded = saved::load(path)?;
    let tokenizer = saved::tokenizer(path)?;
    let from = tokenizer.encode(prompt.as_bytes())?;
    if from.is_empty() && saved.is_none() {
        return Err(Error::bad("--prompt", "at least one token", "none").into());
    }
    let device = common.open()?;
    note!("{} on {}", path.display(), device.name());
    let types = Types::new(dtype.on(&device), states.dtype())?;
    let before = saved.as_ref().map_or(0, |saved| saved.tokens().len());
    let room = (before + from.len()).saturating_add(*length);
    let mut writer = Writer::with_room(&device, loaded.model, &loaded.parameters, types, room)?;
    let mut out = std::io::stdout().lock();
    // Bytes as they come: a character of several may come in pieces. A reader that has gone ends this as it ends any tool.
    let mut show = |bytes: &[u8]| {
        if !common.json {
            let _ = out.write_all(bytes).and_then(|()| out.flush());
        }
    };
    show(prompt.as_bytes());
    let start = Instant::now();
    let mut text = Vec::new();
    let read = match &saved {
        Some(saved) => resume_and_feed_prompt(saved, &mut writer, &loaded.parameters, &from)?,
        None => (from.clone(), writer.read(&from)?),
    };
    if let Some(file) = save_state {
        SavedState::of(&writer, &loaded.parameters, &read.0, &read.1)?.write(file)?;
    }
    super::go_on(&mut writer, &mut sampler, &tokenizer, read, *length, |bytes| {
        text.extend(bytes);
        show(bytes);
    })?;
    show(b"\n");
    let seconds = start.elapsed().as_secs_f64();
    if common.json {
        say!(
            "{}",
            json!({
                "model": path.display().to_string(), "device": device.name(), "prompt": prompt,
                "text": String::from_utf8_lossy(&text), "temperature": temperature, "top_k": top_k,
                "top_p": top_p, "repetition": repetition, "seed": seed,
                "tokens_per_second": *length as f64 / seconds,
            })
        );
    }
    Ok(())
}

/// All tokens of a saved text and of a prompt that follows it, and the logits behind the last of them.
fn resume_and_feed_prompt(
    saved: &SavedState,
    writer: &mut Writer,
    parameters: &Tensors,
    prompt: &[i32],
) -> Result<(Vec<i32>, Vec<f64>), Error> {
    let mut logits = saved.resume(writer, parameters)?;
    for token in prompt {
        logits = writer.next(*token)?;
    }
    Ok(([saved.tokens(), prompt].concat(), logits))
}
