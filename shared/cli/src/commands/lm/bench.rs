//! `lab lm bench`.

use std::collections::BTreeMap;
use std::time::Instant;

use clap::{Args, ValueEnum};
use lab_device::{Device, DeviceKind};
use lab_harness::Error;
use lab_harness::timing::Times;
use lab_lm::{Bytes, Decoded, Decoder, Types};
use serde_json::json;

use super::settings::{Sizes, StateName};
use crate::Common;
use crate::commands::bench::copy_bandwidth;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    sizes: Sizes,
    /// Sequences that are decoded at once
    #[arg(long, default_value_t = 1)]
    sequences: usize,
    /// What the matrices are kept as; auto: what the model runs in
    #[arg(long, default_value = "auto")]
    weights: WeightName,
    /// What the vLSTM's memory is kept in: bf16 halves its bytes, in runs of bf16
    #[arg(long, default_value = "f32")]
    states: StateName,
    /// Tokens of each sequence in a run
    #[arg(long, default_value_t = 32)]
    tokens: usize,
    /// Runs, of which the median is told
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Lengths of the text at which a token is timed, as if so much had been read: 1024,16384,131072
    #[arg(long, value_delimiter = ',', conflicts_with = "launches")]
    lengths: Vec<usize>,
    /// Tokens of a prompt of one sequence, whose time is told as well: to the logits behind its last token
    #[arg(long, conflicts_with = "lengths")]
    prompt: Option<usize>,
    /// The time of each launch as well, alone and with a cold L2 cache
    #[arg(long)]
    launches: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WeightName {
    Auto,
    Int8,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { sizes, sequences, weights, states, tokens, runs, prompt, launches, lengths } =
        arguments;
    lab_training::count("--tokens", *tokens, 1 << 20)?;
    lab_training::count("--runs", *runs, 1 << 10)?;
    let model = sizes.model();
    model.check()?;
    if let Some(length) = lengths.iter().find(|length| **length > MOST_LENGTH) {
        return Err(Error::bad("--lengths", format!("0 to {MOST_LENGTH}"), length).into());
    }
    let device = common.open()?;
    if !lengths.is_empty() {
        return time_lengths(common, arguments, &device);
    }
    let is_gpu = device.kind() == DeviceKind::Cuda;
    let copy_gbps = is_gpu.then(|| copy_bandwidth(&device)).transpose()?;
    let dtype = sizes.dtype.on(&device);
    let start = Instant::now();
    // Attention has room for all runs, and for the one before them.
    let room = ((runs + 1) * tokens).max(prompt.unwrap_or(0));
    let types = Types::new(dtype, states.dtype())?;
    let of = Decoded { model, types, batch: *sequences, room };
    let mut decoder = Decoder::random(&device, of, *weights == WeightName::Int8)?;
    device.synchronize()?;
    let made = start.elapsed().as_secs_f64();
    decoder.time(*tokens, 1)?;
    let times = Times::of(&decoder.time(*tokens, *runs)?);
    let ms = times.median_us * 1e-3 / *tokens as f64;
    let Bytes { weights: of_weights, states: of_states } = decoder.bytes_moved();
    let gbps = (of_weights + of_states) as f64 / ms * 1e-6;
    let share = copy_gbps.map(|copy| gbps / copy);
    let per_second = *sequences as f64 / ms * 1e3;
    let of_prompt = |tokens: usize| -> Result<f64, Failure> {
        // The first run makes what the others find.
        Ok(Times::of(&decoder.time_prompt(tokens, runs + 1)?[1..]).median_us * 1e-3)
    };
    let prompt_ms = prompt.map(of_prompt).transpose()?;
    let by_launch = launches.then(|| by_layer(&mut decoder)).transpose()?;
    if common.json {
        let rows = by_launch.map(|rows| {
            let row = |(what, launches, us): &(String, usize, f64)| {
                json!({ "what": what, "launches": launches, "us": us })
            };
            rows.iter().map(row).collect::<Vec<_>>()
        });
        say!(
            "{}",
            json!({
                "device": device.name(), "model": model, "dtype": dtype.name(),
                "weights": if *weights == WeightName::Int8 { "int8" } else { dtype.name() },
                "states": types.states().name(),
                "sequences": sequences, "tokens": tokens, "runs": runs, "ms_a_token": ms,
                "tokens_per_second": per_second, "weight_bytes": of_weights, "state_bytes": of_states,
                "gbps": gbps, "copy_gbps": copy_gbps, "share_of_copy": share,
                "launches": decoder.launches(), "memory_bytes": decoder.memory(),
                "seconds_to_make": made, "prompt": prompt, "prompt_ms": prompt_ms, "by_launch": rows,
            })
        );
        return Ok(());
    }
    let of = if *weights == WeightName::Int8 { "int8" } else { dtype.name() };
    say!(
        "{}: {} parameters, matrices of {of}, made in {made:.1} s",
        device.name(),
        model.parameters().count()
    );
    say!("{sequences} sequences: {ms:.3} ms a token of each, {per_second:.0} tokens a second");
    let [of_weights, of_states] = [of_weights, of_states].map(|bytes| bytes as f64 / 1e6);
    say!(
        "  {of_weights:.1} MB of weights and {of_states:.1} MB of states in {} a token, {} launches",
        types.states(),
        decoder.launches()
    );
    match (copy_gbps, share) {
        (Some(copy), Some(share)) => {
            let share = 100.0 * share;
            say!("  {gbps:.0} GB/s: {share:.1} % of a copy, which moves {copy:.0} GB/s");
        }
        _ => say!("  the emulator's own time, which says nothing of a GPU's"),
    }
    if let (Some(tokens), Some(ms)) = (prompt, prompt_ms) {
        let per_second = *tokens as f64 / ms * 1e3;
        say!("a prompt of {tokens} tokens: {ms:.1} ms, {per_second:.0} tokens a second");
    }
    for (what, launches, us) in by_launch.into_iter().flatten() {
        say!("{us:9.1} µs {launches:5}  {what}");
    }
    Ok(())
}

/// The longest text.
const MOST_LENGTH: usize = 1 << 20;

/// A token behind texts of several lengths, and the memory that each takes: attention's grows, and so does what it reads.
fn time_lengths(common: &Common, arguments: &Arguments, device: &Device) -> Result<(), Failure> {
    let Arguments { sizes, sequences, weights, states, tokens, runs, lengths, .. } = arguments;
    let (model, dtype) = (sizes.model(), sizes.dtype.on(device));
    let is_int8 = *weights == WeightName::Int8;
    let types = Types::new(dtype, states.dtype())?;
    let mut rows = Vec::new();
    for &length in lengths {
        let room = length + (runs + 1) * tokens;
        let of = Decoded { model, types, batch: *sequences, room };
        let mut decoder = Decoder::random(device, of, is_int8)?;
        decoder.pretend_read(length)?;
        decoder.time(*tokens, 1)?;
        let times = Times::of(&decoder.time(*tokens, *runs)?);
        let ms = times.median_us * 1e-3 / *tokens as f64;
        rows.push((length, ms, *sequences as f64 / ms * 1e3, decoder.memory()));
    }
    if common.json {
        let row = |&(length, ms, per_second, memory): &(usize, f64, f64, usize)| {
            json!({ "length": length, "ms_a_token": ms, "tokens_per_second": per_second,
                    "memory_bytes": memory })
        };
        let rows: Vec<_> = rows.iter().map(row).collect();
        println!(
            "{}",
            json!({
                "device": device.name(), "model": model, "dtype": dtype.name(),
                "parameters": model.parameters().count(), "sequences": sequences,
                "weights": if is_int8 { "int8" } else { dtype.name() },
                "states": types.states().name(),
                "tokens": tokens, "runs": runs, "rows": rows,
            })
        );
        return Ok(());
    }
    println!(
        "{}: {} parameters, mixer {}, {sequences} sequences",
        device.name(),
        model.parameters().count(),
        model.mixers
    );
    if device.kind() != DeviceKind::Cuda {
        println!("  the emulator's own time, which says nothing of a GPU's");
    }
    println!("{:>9} {:>12} {:>12} {:>10}", "length", "ms a token", "tokens/s", "MB");
    for (length, ms, per_second, memory) in rows {
        println!("{length:9} {ms:12.3} {per_second:12.0} {:10.1}", memory as f64 / 1e6);
    }
    Ok(())
}

/// Layers and kernels, blocks taken together, with their launches and microseconds, the longest first.
fn by_layer(decoder: &mut Decoder) -> Result<Vec<(String, usize, f64)>, Failure> {
    let mut sums: BTreeMap<String, (usize, f64)> = BTreeMap::new();
    for step in decoder.time_launches(5)? {
        let layer: Vec<&str> =
            step.layer.split('.').filter(|part| part.parse::<usize>().is_err()).collect();
        let kernel: String = step.kernel.chars().take(60).collect();
        let sum = sums.entry(format!("{}  {kernel}", layer.join("."))).or_default();
        sum.0 += 1;
        sum.1 += step.time.as_secs_f64() * 1e6;
    }
    let mut rows: Vec<_> = sums.into_iter().map(|(what, (n, us))| (what, n, us)).collect();
    rows.sort_by(|a, b| b.2.total_cmp(&a.2));
    Ok(rows)
}
