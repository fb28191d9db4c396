//! `lab lm info`.

use std::path::PathBuf;

use clap::Args;
use lab_harness::Error;
use lab_lm::Step;
use serde_json::json;

use super::saved;
use super::settings::Sizes;
use crate::Common;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A file that `lab lm train` wrote, a directory of Hugging Face (model_type xlstm), or a state dict of xlstm_large; without one,
    /// a model of these sizes
    model: Option<PathBuf>,
    #[command(flatten)]
    sizes: Sizes,
}

impl Arguments {
    pub(super) fn check(&self) -> Result<(), Error> {
        self.sizes.model().check()
    }
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { model: path, sizes } = arguments;
    let device = common.open()?;
    let (model, config) = match path {
        Some(path) => {
            let loaded = saved::load(path)?;
            let usual = sizes.config(sizes.dtype.on(&device));
            (loaded.model, loaded.config.unwrap_or(usual))
        }
        None => {
            arguments.check()?;
            (sizes.model(), sizes.config(sizes.dtype.on(&device)))
        }
    };
    let parameters = model.parameters().count();
    let bytes = Step::bytes(&device, &model, &config)?;
    let flops = model.flops_per_token();
    let state = 4 * model.blocks * model.heads * (model.keys * model.values + model.keys + 1);
    if common.json {
        println!(
            "{}",
            json!({
                "model": model, "config": config, "parameters": parameters,
                "training_bytes": bytes, "flops_per_token": flops, "state_bytes": state,
            })
        );
        return Ok(());
    }
    let lab_lm::Model { width, blocks, heads, keys, values, hidden, vocabulary } = model;
    println!(
        "{parameters} parameters: {blocks} blocks of width {width}, {heads} heads of {keys} keys and {values} values,"
    );
    println!("  feed-forward layers of {hidden}, {vocabulary} tokens");
    let (batch, window) = (config.batch, config.window);
    println!(
        "{:.1} MB to train it in {}, {batch} windows of {window}",
        bytes as f64 / 1e6,
        config.dtype
    );
    println!("{:.1} MFLOP a token in training", flops / 1e6);
    println!("{:.1} kB of state for each text that it writes, however long", state as f64 / 1e3);
    Ok(())
}
