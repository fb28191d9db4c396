//! `model_type: llama`: the options and the names of transformers' Llama.

use lab_harness::Error;
use serde_json::{Value, json};

use super::Configured;
use crate::{Mixer, Mixers, Model};

/// What the options must be that all of these models have alike; each is its default of transformers, too.
pub(super) fn fixed() -> [(&'static str, Value); 4] {
    [
        ("model_type", "llama".into()),
        ("hidden_act", "silu".into()),
        ("attention_bias", false.into()),
        ("mlp_bias", false.into()),
    ]
}

/// Of parts of names: ours, and theirs.
const NAMES: [[&str; 2]; 11] = [
    ["embedding.", "model.embed_tokens."],
    ["backbone.blocks.", "model.layers."],
    [".norm_attention.", ".input_layernorm."],
    [".attention_layer.q.", ".self_attn.q_proj."],
    [".attention_layer.k.", ".self_attn.k_proj."],
    [".attention_layer.v.", ".self_attn.v_proj."],
    [".attention_layer.out_proj.", ".self_attn.o_proj."],
    [".norm_ffn.", ".post_attention_layernorm."],
    [".ffn.proj_up_gate.", ".mlp.gate_proj."],
    [".ffn.proj_up.", ".mlp.up_proj."],
    [".ffn.proj_down.", ".mlp.down_proj."],
];

/// The norm before the head, whose name begins as that of a block does.
const OUT_NORM: [&str; 2] = ["backbone.out_norm.weight", "model.norm.weight"];

fn renamed(name: &str, [from, to]: [usize; 2]) -> String {
    if name == OUT_NORM[from] {
        return OUT_NORM[to].to_owned();
    }
    NAMES.iter().fold(name.to_owned(), |name, pair| name.replacen(pair[from], pair[to], 1))
}

pub(super) fn our_name(theirs: &str) -> String {
    renamed(theirs, [1, 0])
}

pub(super) fn their_name(ours: &str) -> String {
    renamed(ours, [0, 1])
}

pub(super) fn config(model: &Model) -> Value {
    let Model { vocabulary, width, heads, blocks, values, hidden, norm_eps, theta, tied, .. } =
        *model;
    let mut all = json!({
        "architectures": ["LlamaForCausalLM"], "dtype": "float32",
        "vocab_size": vocabulary, "hidden_size": width, "num_hidden_layers": blocks,
        "num_attention_heads": heads, "num_key_value_heads": model.key_heads(),
        "head_dim": values, "intermediate_size": hidden, "rms_norm_eps": norm_eps,
        "tie_word_embeddings": tied,
        // The second as before transformers 5.
        "rope_parameters": { "rope_type": "default", "rope_theta": theta }, "rope_theta": theta,
        // Of a tokenizer, which is not part of the model.
        "bos_token_id": null, "eos_token_id": null, "pad_token_id": null,
    });
    for (name, value) in fixed() {
        all[name] = value;
    }
    all
}

pub(super) fn model(of: &Configured) -> Result<Model, Error> {
    of.check_fixed(&fixed())?;
    let theta = theta(of)?;
    let vocabulary = of.size("vocab_size", 32000)?;
    let width = of.size("hidden_size", 4096)?;
    let blocks = of.size("num_hidden_layers", 32)?;
    let heads = of.size("num_attention_heads", 32)?;
    let shared = of.size("num_key_value_heads", heads)?;
    let values = of.size("head_dim", width / heads)?;
    let hidden = of.size("intermediate_size", 11008)?;
    let norm_eps = of.number("rms_norm_eps", 1e-6)?;
    let tied = match of.options.get("tie_word_embeddings") {
        None => false,
        Some(Value::Bool(tied)) => *tied,
        Some(other) => return of.refuse("tie_word_embeddings", "true or false", other),
    };
    let sizes = Model {
        values,
        hidden,
        norm_eps,
        theta,
        tied,
        ..Model::xlstm(vocabulary, width, heads, blocks)
    };
    let model = sizes.with_mixers(Mixers::only(Mixer::Attention), Some(shared));
    model.check()?;
    Ok(model)
}

/// The base of the angles. It stands by itself, or beside the way in which they are made, of which there is one here.
fn theta(of: &Configured) -> Result<f64, Error> {
    const SCALING: &str = "rope_scaling";
    const PARAMETERS: &str = "rope_parameters";
    let by_itself = of.number("rope_theta", crate::model::THETA)?;
    for option in [SCALING, PARAMETERS] {
        let Some(Value::Object(all)) = of.options.get(option) else { continue };
        for name in ["rope_type", "type"] {
            match all.get(name) {
                None => {}
                Some(kind) if kind == "default" => {}
                Some(other) => {
                    return of.refuse(&format!("{name} in {option}"), "\"default\"", other);
                }
            }
        }
        if let Some(theta) = all.get("rope_theta") {
            return match theta.as_f64() {
                Some(theta) => Ok(theta),
                None => of.refuse(&format!("rope_theta in {option}"), "a number", theta),
            };
        }
    }
    Ok(by_itself)
}

#[cfg(test)]
mod tests {
    use lab_harness::Tensors;

    use super::super::Pretrained;
    use super::*;

    fn said(options: &Value) -> String {
        let options = options.as_object().unwrap().clone();
        match (Configured { file: "config.json".into(), options }).model() {
            Ok(model) => format!("{model:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn options_that_this_model_does_not_have_are_refused_by_name() {
        let base = json!({
            "model_type": "llama", "vocab_size": 37, "hidden_size": 64, "num_attention_heads": 2,
            "num_hidden_layers": 1, "intermediate_size": 56
        });
        let with = |name: &str, value: Value| {
            let mut all = base.clone();
            all[name] = value;
            said(&all)
        };
        for (name, value, expected) in [
            (
                "hidden_act",
                json!("gelu"),
                "hidden_act of config.json: expected \"silu\", got \"gelu\"",
            ),
            (
                "attention_bias",
                json!(true),
                "attention_bias of config.json: expected false, got true",
            ),
            ("mlp_bias", json!(true), "mlp_bias of config.json: expected false, got true"),
            (
                "tie_word_embeddings",
                json!(1),
                "tie_word_embeddings of config.json: expected true or false, got 1",
            ),
            (
                "rope_scaling",
                json!({ "type": "linear", "factor": 2 }),
                "type in rope_scaling of config.json: expected \"default\", got \"linear\"",
            ),
            (
                "rope_parameters",
                json!({ "rope_type": "llama3", "rope_theta": 1e4 }),
                "rope_type in rope_parameters of config.json: expected \"default\", got \"llama3\"",
            ),
            (
                "rope_parameters",
                json!({ "rope_theta": "1e4" }),
                "rope_theta in rope_parameters of config.json: expected a number, got \"1e4\"",
            ),
            (
                "rope_theta",
                json!(0.5),
                "theta of the positions: expected a finite number above 1, got 0.5",
            ),
            (
                "rms_norm_eps",
                json!(-1),
                "rms_norm_eps of config.json: expected a number above 0, got -1",
            ),
            (
                "num_key_value_heads",
                json!(3),
                "heads of k and v: expected a divisor of all heads, 2, got 3",
            ),
            (
                "head_dim",
                json!(24),
                "columns of a head of attention: expected a multiple of 16 from 16 to 256, got 24",
            ),
            (
                "vocab_size",
                json!(-1),
                "vocab_size of config.json: expected 1 to 1073741824, got -1",
            ),
        ] {
            assert_eq!(with(name, value), expected);
        }
        let whole = with("rope_theta", json!(500.0));
        assert!(
            whole.contains("values: 32, hidden: 56") && whole.contains("theta: 500.0"),
            "{whole}"
        );
        // Beside the way it counts more.
        let mut both = base.clone();
        both["rope_theta"] = json!(7.0);
        both["rope_parameters"] = json!({ "rope_type": "default", "rope_theta": 500.0 });
        assert_eq!(said(&both), whole);
        both["rope_parameters"] = Value::Null;
        both["rope_scaling"] = Value::Null;
        assert!(said(&both).contains("theta: 7.0"));
    }

    #[test]
    fn all_options_and_names_come_back() {
        let sizes = Model { values: 48, hidden: 72, ..Model::xlstm(99, 64, 6, 3) };
        let sizes = Model { norm_eps: 1e-5, theta: 500_000.0, ..sizes };
        for (shared, tied) in [(None, false), (Some(2), true), (Some(1), false)] {
            let sizes = Model { tied, ..sizes };
            let model = sizes.with_mixers(Mixers::only(Mixer::Attention), shared);
            let options = Pretrained { model, parameters: Tensors::new() }.config();
            assert_eq!(said(&options), format!("{model:?}"));
            let parameters = model.parameters();
            for parameter in parameters.iter() {
                let theirs = their_name(&parameter.name);
                assert!(theirs.starts_with("model.") || theirs == "lm_head.weight", "{theirs}");
                assert_eq!(our_name(&theirs), parameter.name);
            }
            assert_eq!(parameters.iter().count(), 3 * 9 + 3 - usize::from(tied));
        }
    }
}
