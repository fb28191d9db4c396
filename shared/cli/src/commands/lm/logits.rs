//! `lab lm logits`.

use std::path::PathBuf;

use clap::Args;
use lab_device::DType;
use lab_harness::tensor::{self, tensors};
use lab_harness::{Error, Tensor};
use lab_lm::{Evaluated, Evaluator, Tokens};
use serde_json::json;

use super::saved;
use super::settings::TypeName;
use crate::Common;
use crate::commands::run::check_target;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// A file that `lab lm train` wrote, a directory of Hugging Face (model_type xlstm or llama), or a state dict of xlstm_large
    model: PathBuf,
    /// A safetensors file with `ids`, i32 [B, S]
    #[arg(long)]
    input: PathBuf,
    /// The file for `logits`, f32 [B, S, V]
    #[arg(long)]
    output: PathBuf,
    /// What the model runs in
    #[arg(long, default_value = "f32")]
    dtype: TypeName,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let Arguments { model: path, input, output, dtype } = arguments;
    check_target(output)?;
    let loaded = saved::load(path)?;
    let all = tensor::read(input)?;
    let refuse = |got: String| {
        let expected = "i32 [B, S], neither of them 0".to_owned();
        Error::Tensor { name: "ids".into(), expected, got }
    };
    let ids = all.get("ids").ok_or_else(|| refuse("none".into()))?;
    let (batch, window) = match *ids.shape {
        [b, s] if ids.dtype == DType::I32 && b * s > 0 => (b, s),
        _ => return Err(refuse(ids.describe()).into()),
    };
    let mut tokens = ids.values().into_iter().map(|id| id as i32).collect::<Vec<_>>();
    // The last token's target, which nobody looks at.
    tokens.push(0);
    let starts: Vec<usize> = (0..batch).map(|b| b * window).collect();
    let device = common.open()?;
    let data = Tokens::of_ids(tokens);
    let of = Evaluated {
        model: loaded.model,
        parameters: &loaded.parameters,
        dtype: dtype.on(&device),
        batch,
        window,
        document: None,
        data: &data,
    };
    let mut evaluator = Evaluator::of_logits(&device, of)?;
    let logits: Tensor = evaluator.logits(&starts)?;
    let described = logits.describe();
    tensor::write(output, &tensors([("logits", logits)]))?;
    let file = output.display().to_string();
    if common.json {
        println!("{}", json!({ "device": device.name(), "logits": described, "file": file }))
    } else {
        println!("wrote logits {described} to {file}, on {}", device.name())
    }
    Ok(())
}
