//! `lab lm`: trains a language model of xLSTM blocks on texts, judges it, and lets it write.

mod bench;
mod convert;
mod eval;
mod generate;
mod info;
mod logits;
mod profile;
mod quantize;
mod ranks;
mod recall;
mod saved;
mod serve;
mod settings;
mod texts;
mod tokenize;
mod train;

use std::path::Path;

use clap::Subcommand;
use lab_harness::Error;
use lab_lm::{Checkpoint, Sampler, Tokenizer, Writer};

use crate::Common;
use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Makes a file of tokens of texts: of their bytes, or by a tokenizer
    Tokenize(tokenize::Arguments),
    /// Trains a model on texts, or on files of tokens
    #[command(allow_negative_numbers = true)]
    Train(Box<train::Arguments>),
    /// The loss of a text, in bits a byte
    Eval(eval::Arguments),
    /// Writes on from a prompt
    #[command(allow_negative_numbers = true)]
    Generate(generate::Arguments),
    /// The logits behind each token of tensors of yours
    Logits(logits::Arguments),
    /// Writes a model as others read it: transformers, xlstm_large
    Convert(convert::Arguments),
    /// Makes the matrices of a model int8, with a scale for each output channel
    Quantize(quantize::Arguments),
    /// The time of each launch of a training step, by layer and kernel
    Profile(profile::Arguments),
    /// What mixers remember: pairs of keys and values, and how many of them each mixer tells again
    #[command(allow_negative_numbers = true)]
    Recall(recall::Arguments),
    /// The time of decoding a token, of random weights of a model of these sizes, and its share of a copy's bandwidth
    Bench(bench::Arguments),
    /// Serves a model over HTTP, as clients of OpenAI's completions ask for it: starts `lab-serve`
    Serve(serve::Arguments),
    /// Parameters, memory and operations of a model, before any of it is taken
    Info(info::Arguments),
}

/// Refuses settings that no training has.
pub(crate) fn check_arguments(command: &Command) -> Result<(), Failure> {
    match command {
        Command::Train(arguments) => Ok(arguments.settings.check()?),
        Command::Info(arguments) => Ok(arguments.check()?),
        _ => Ok(()),
    }
}

/// Reads a model's file. The notes of the checkpoint are made anew from what was understood.
pub(crate) fn model(path: &Path) -> Result<Checkpoint, Failure> {
    let (mut checkpoint, notes) = saved::read(path)?;
    checkpoint.notes = notes.write();
    Ok(checkpoint)
}

pub(crate) fn run(common: &Common, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Tokenize(arguments) => tokenize::run(common, arguments),
        Command::Train(arguments) => train::run(common, arguments),
        Command::Eval(arguments) => eval::run(common, arguments),
        Command::Generate(arguments) => generate::run(common, arguments),
        Command::Logits(arguments) => logits::run(common, arguments),
        Command::Convert(arguments) => convert::run(common, arguments),
        Command::Quantize(arguments) => quantize::run(common, arguments),
        Command::Profile(arguments) => profile::run(common, arguments),
        Command::Recall(arguments) => recall::run(common, arguments),
        Command::Bench(arguments) => bench::run(common, arguments),
        Command::Serve(arguments) => serve::run(common, arguments),
        Command::Info(arguments) => info::run(common, arguments),
    }
}

/// Reads a prompt and writes so many tokens behind it, of which the bytes go to `show` as they come.
fn write_on(
    writer: &mut Writer,
    sampler: &mut Sampler,
    tokenizer: &Tokenizer,
    prompt: &[i32],
    length: usize,
    show: impl FnMut(&[u8]),
) -> Result<(), Error> {
    let read = (prompt.to_vec(), writer.read(prompt)?);
    go_on(writer, sampler, tokenizer, read, length, show)
}

/// The same behind a text that the writer has read, and the logits of its last token.
fn go_on(
    writer: &mut Writer,
    sampler: &mut Sampler,
    tokenizer: &Tokenizer,
    (mut written, mut logits): (Vec<i32>, Vec<f64>),
    mut left: usize,
    mut show: impl FnMut(&[u8]),
) -> Result<(), Error> {
    let (vocabulary, mut stream) = (tokenizer.vocabulary(), tokenizer.stream());
    // The text goes on where the prompt ends, within a character say.
    written.iter().for_each(|&token| drop(stream(token)));
    // A model may know tokens that the tokenizer does not; no text has them.
    logits.truncate(vocabulary);
    let mut next = (left > 0).then(|| sampler.draw(&logits, &written));
    while let Some(token) = next {
        written.push(token);
        show(&stream(token));
        left -= 1;
        next = match left {
            0 => None,
            _ => Some(writer.next_drawn(token, &sampler.next(&written, vocabulary))?),
        };
    }
    Ok(())
}

/// Of nats.
fn bits(nats: f64) -> f64 {
    nats / std::f64::consts::LN_2
}
