//! `lab lm info`.

use std::path::PathBuf;

use clap::Args;
use lab_harness::Error;
use lab_lm::{Mixer, Step};
use serde_json::json;

use super::saved;
use super::settings::Sizes;
use crate::Common;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A file that `lab lm train` wrote, a directory of Hugging Face (model_type xlstm or llama), or a state dict of xlstm_large; without one,
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
    let mut is_int8 = false;
    let (model, config) = match path {
        Some(path) => {
            let loaded = saved::load(path)?;
            is_int8 = loaded.is_int8();
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
    let flops = model.flops_per_token(config.window);
    let [state, of_token] = model.bytes_of_memory(config.dtype);
    if common.json {
        say!(
            "{}",
            json!({
                "model": model, "config": config, "parameters": parameters,
                "int8": is_int8, "training_bytes": bytes, "flops_per_token": flops, "state_bytes": state,
                "cache_bytes_per_token": of_token,
            })
        );
        return Ok(());
    }
    let lab_lm::Model { width, blocks, heads, keys, values, hidden, vocabulary, .. } = model;
    let has_attention = model.mixers.has(Mixer::Attention);
    let of_heads = if model.mixers.has(Mixer::Vlstm) {
        format!("{heads} heads of {keys} keys and {values} values")
    } else {
        format!("{heads} heads of {values} columns")
    };
    say!("{parameters} parameters: {blocks} blocks of width {width}, {of_heads},");
    say!("  feed-forward layers of {hidden}, {vocabulary} tokens");
    if is_int8 {
        let of = model.quantized();
        let bytes = of.matrices.count() + 4 * of.scales.count();
        say!("  matrices of int8: {:.1} MB with their scales", bytes as f64 / 1e6);
    }
    if has_attention {
        let shared = model.shared_heads.unwrap_or(heads);
        say!("  mixers: {}; in attention {shared} heads of keys and values", model.mixers);
    }
    let (batch, window) = (config.batch, config.window);
    say!(
        "{:.1} MB to train it in {}, {batch} windows of {window}",
        bytes as f64 / 1e6,
        config.dtype
    );
    say!("{:.1} MFLOP a token in training", flops / 1e6);
    if state > 0 || !has_attention {
        let kilobytes = state as f64 / 1e3;
        say!("{kilobytes:.1} kB of state for each text that it writes, however long");
    }
    if has_attention {
        say!("{:.1} kB of keys and values for each token of it", of_token as f64 / 1e3);
    }
    Ok(())
}
