//! `lab lm convert`.

use std::path::PathBuf;

use clap::Args;
use lab_device::emulator::write_atomically;
use lab_harness::Error;
use lab_lm::Pretrained;
use serde_json::json;

use super::{saved, texts};
use crate::Common;
use crate::commands::run::check_target;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A file that `lab lm train` wrote, a directory of Hugging Face (model_type xlstm or llama), or a state dict of xlstm_large
    model: PathBuf,
    /// A name that ends with .safetensors: a state dict of xlstm_large; another: a directory of Hugging Face, which is not there or is
    /// empty. The state of a training is left out
    #[arg(long)]
    out: PathBuf,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { model: path, out } = arguments;
    let loaded = saved::load(path)?;
    if loaded.is_int8() {
        let expected = "a model of f32: others have no names for the scales of int8";
        return Err(Error::bad("MODEL", expected, path.display()).into());
    }
    let of = Pretrained { model: loaded.model, parameters: loaded.parameters };
    let is_file = out.extension().is_some_and(|ending| ending == "safetensors");
    let tokenizer = Some(saved::tokenizer_file(path)).filter(|file| file.exists());
    let json = tokenizer.map(|file| texts::text(&file)).transpose()?;
    if is_file {
        check_target(out)?;
        of.write_state_dict(out)?;
        if let Some(json) = json {
            let beside = saved::tokenizer_file(out);
            write_atomically(&beside, &json).map_err(|e| Failure::file(&beside, e))?;
        }
    } else {
        of.write_directory(out, json.as_deref())?;
    }
    let (parameters, out) = (of.model.parameters().count(), out.display().to_string());
    let format = if is_file { "xlstm_large" } else { "transformers" };
    if common.json {
        say!(
            "{}",
            json!({ "model": of.model, "parameters": parameters, "format": format, "out": out })
        )
    } else {
        say!("wrote {parameters} parameters to {out}, as {format} has them")
    }
    Ok(())
}
