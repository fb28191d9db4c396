//! `lab lm quantize`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use lab_device::emulator::write_atomically;
use lab_lm::Int8File;
use serde_json::json;

use super::{saved, texts};
use crate::Common;
use crate::commands::run::check_target;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A file that `lab lm train` wrote, a directory of Hugging Face (model_type xlstm or llama), or a state dict of xlstm_large
    model: PathBuf,
    /// What the matrices of the blocks and the head become: int8 with a scale for each output channel, that of its largest. The
    /// embedding, norms and biases stay f32
    #[arg(long, default_value = "int8")]
    weights: WeightName,
    /// The file, safetensors; what reads a model reads it too: generate, eval, logits, info
    #[arg(long)]
    out: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum WeightName {
    Int8,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { model: path, weights: WeightName::Int8, out } = arguments;
    check_target(out)?;
    let loaded = saved::load(path)?;
    let before: usize = loaded.parameters.values().map(|tensor| tensor.len() * 2).sum();
    let quantized = Int8File::of(loaded.model, &loaded.parameters)?;
    let tokenizer = Some(saved::tokenizer_file(path)).filter(|file| file.exists());
    let json = tokenizer.map(|file| texts::text(&file)).transpose()?;
    quantized.write(out)?;
    if let Some(json) = json {
        let beside = saved::tokenizer_file(out);
        write_atomically(&beside, &json).map_err(|e| Failure::file(&beside, e))?;
    }
    let of = quantized.model.quantized();
    let (matrices, kept) = (of.matrices.count(), of.kept.count());
    let (bytes, out) = (quantized.bytes(), out.display().to_string());
    if common.json {
        say!(
            "{}",
            json!({
                "model": quantized.model, "int8_parameters": matrices, "f32_parameters": kept,
                "bytes": bytes, "bytes_in_halves": before, "out": out,
            })
        );
        return Ok(());
    }
    say!(
        "wrote {matrices} parameters as int8 and {kept} as f32 to {out}, {:.1} MB",
        bytes as f64 / 1e6
    );
    Ok(())
}
