//! How long the emulator takes to train on 10,000 tokens in batches, and on 1,000 pair by pair in one
//! launch.
//!
//! `cargo run -p lab-mlp --example emulated`

use std::time::Instant;

use lab_device::{DType, Device, Mode};
use lab_harness::{Options, Problem, Version, mlp, run};
use lab_mlp::training::{Config, Data, Model, Trainer};
use mlp_fused::RESIDENT;

/// The seconds that it took, and the mean of the first and of the last losses.
fn say(what: &str, start: Instant, losses: &[f64]) {
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let some = losses.len() / 20;
    let [first, last] = [&losses[..some], &losses[losses.len() - some..]].map(mean);
    println!("{what}: {:.1} s, loss {first:.3} to {last:.3}", start.elapsed().as_secs_f64());
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::emulator_in(Mode::Plain)?;
    let model = Model { vocabulary: 1000, embedding: 32, hidden: 64 };
    let pairs = |n| {
        let dims = mlp::sizes([n, 1, model.vocabulary, model.embedding, model.hidden]);
        RESIDENT.inputs(&Problem::new(dims, DType::F32))
    };
    let ids = pairs(10_000)["tokens"].values().into_iter().map(|id| id as i32);
    let data = Data { tokens: ids.collect(), vocabulary: model.vocabulary };
    let config = Config { batch: 16, ..Config::default() };
    let mut trainer = Trainer::new(&device, model, config, &data, &data.starts())?;
    let start = Instant::now();
    say("10,000 tokens, 16 pairs a step", start, &trainer.epoch()?.losses);

    let start = Instant::now();
    let out = run(&RESIDENT, &device, &pairs(1000), &Options::default())?;
    say("1,000 pairs, one a step", start, &out["loss"].values());
    Ok(())
}
