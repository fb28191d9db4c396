//! How long the emulator takes to train on 10,000 tokens in batches, and on a tenth of them pair by pair in
//! one launch.
//!
//! `cargo run -p lab-mlp --example emulated`, with another number of tokens behind it where that is wanted

use std::time::Instant;

use lab_device::{DType, Device, Mode};
use lab_families::mlp;
use lab_harness::{Options, Problem, Version, run};
use lab_mlp::training::{Config, Data, Model, Trainer};
use mlp_fused::RESIDENT;

/// The seconds that it took, and the mean of the first and of the last losses.
fn say(what: &str, start: Instant, losses: &[f64]) {
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let some = losses.len().div_ceil(20);
    let [first, last] = [&losses[..some], &losses[losses.len() - some..]].map(mean);
    println!("{what}: {:.1} s, loss {first:.3} to {last:.3}", start.elapsed().as_secs_f64());
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let tokens = match std::env::args().nth(1) {
        Some(text) => text.parse()?,
        None => 10_000,
    };
    // A mean of the first and the last losses needs some, and each pair costs memory.
    if !(20..=1_000_000).contains(&tokens) {
        return Err(format!("expected 20 to 1000000 tokens, got {tokens}").into());
    }
    let device = Device::emulator_in(Mode::Plain)?;
    let model = Model { vocabulary: 1000, embedding: 32, hidden: 64 };
    let pairs = |n| {
        let dims = mlp::sizes([n, 1, model.vocabulary, model.embedding, model.hidden]);
        RESIDENT.inputs(&Problem::new(dims, DType::F32))
    };
    let ids = pairs(tokens)["tokens"].values().into_iter().map(|id| id as i32);
    let data = Data { tokens: ids.collect(), vocabulary: model.vocabulary };
    let config = Config { batch: 16, ..Config::default() };
    let mut trainer = Trainer::new(&device, model, config, &data, &data.starts())?;
    let start = Instant::now();
    say(&format!("{tokens} tokens, 16 pairs a step"), start, &trainer.epoch()?.losses);

    let start = Instant::now();
    let out = run(&RESIDENT, &device, &pairs(tokens / 10), &Options::default())?;
    say(&format!("{} pairs, one a step", tokens / 10), start, &out["loss"].values());
    Ok(())
}
