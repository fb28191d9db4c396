//! `lab lstm generate MODEL`.

use std::io::Write as _;
use std::path::PathBuf;

use clap::Args;
use lab_harness::Error;
use lab_lstm::data::Choice;
use lab_lstm::training::Stream;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::saved::{self, Meaning};
use crate::Common;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A file that `lab lstm train` wrote, trained on a text
    model: PathBuf,
    /// What to go on from; by default the model's most frequent character, which is not shown
    #[arg(long)]
    prompt: Option<String>,
    /// Characters to write
    #[arg(long, default_value_t = 400)]
    length: usize,
    /// Below 1 the likely gets likelier; 0 takes the likeliest always
    #[arg(long, default_value_t = 0.8)]
    temperature: f64,
    /// Only so many of the likeliest characters
    #[arg(long)]
    top_k: Option<usize>,
    /// Of the choices
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { model: path, prompt, length, temperature, top_k, seed } = arguments;
    let choice = Choice::new(*temperature, *top_k)?;
    let (checkpoint, notes) = saved::read(path)?;
    let Meaning::Text(vocabulary) = notes.meaning else {
        let got = format!("one of a series, {}", path.display());
        return Err(Error::bad("MODEL", "a model of a text", got).into());
    };
    let prompt = match prompt {
        Some(text) if text.is_empty() => {
            return Err(Error::bad("--prompt", "one character at least", "none").into());
        }
        Some(text) => vocabulary.encode("--prompt", text)?,
        None => vec![0],
    };
    let shown = if arguments.prompt.is_some() { prompt.as_slice() } else { &[] };
    let device = common.open()?;
    note!("{} on {}", path.display(), device.name());
    let mut stream = Stream::new(&device, checkpoint.model, &checkpoint.parameters)?;
    let mut rng = ChaCha8Rng::seed_from_u64(*seed);
    let mut row = vec![0.0; vocabulary.len()];
    let mut step = |token: usize| {
        row.fill(0.0);
        row[token] = 1.0;
        stream.step(&row)
    };
    let mut logits = Vec::new();
    for token in &prompt {
        logits = step(*token)?;
    }
    let mut out = std::io::stdout().lock();
    // A reader that has gone ends this as it ends any tool; nothing else can be done about it.
    let mut show = |text: &str| {
        if !common.json {
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        }
    };
    show(&vocabulary.decode(shown));
    let mut tokens = Vec::new();
    for n in 0..*length {
        let token = choice.sample(&logits, &mut rng)?;
        tokens.push(token);
        show(&vocabulary.decode(&[token]));
        if n + 1 < *length {
            logits = step(token)?;
        }
    }
    show("\n");
    if common.json {
        say!(
            "{}",
            json!({
                "model": path.display().to_string(), "device": device.name(),
                "prompt": vocabulary.decode(shown), "text": vocabulary.decode(&tokens),
                "temperature": temperature, "top_k": top_k, "seed": seed,
            })
        );
    }
    Ok(())
}
