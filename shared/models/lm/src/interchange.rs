//! Models as others keep them: directories of Hugging Face (`config.json` of `model_type: xlstm` or `llama`, `model.safetensors`), and
//! state dicts of `xlstm_large`.
//!
//! Held against transformers 5.24.0: `recorded/`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use lab_device::DType;
use lab_device::emulator::{read_text, write_atomically};
use lab_harness::tensor::{self, Part};
use lab_harness::{Error, Tensor, Tensors};
use serde_json::{Map, Value, json};

use crate::model::{EPS, GATE_CAP, HEAD, LOGIT_CAP};
use crate::{Mixer, Mixers, Model};

mod llama;

/// A model without the state of a training.
#[derive(Clone, Debug, PartialEq)]
pub struct Pretrained {
    /// Its sizes.
    pub model: Model,
    /// By the names of `xlstm_large`'s state dict, in f32.
    pub parameters: Tensors,
}

const CONFIG: &str = "config.json";
const TOKENIZER: &str = "tokenizer.json";
const WEIGHTS: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The one name that transformers' xLSTM has otherwise than `xlstm_large`.
const EMBEDDING: [&str; 2] = ["backbone.embeddings.weight", "embedding.weight"];

impl Pretrained {
    /// Whether these tensors are those of such a model.
    pub fn is_state_dict(all: &Tensors) -> bool {
        all.contains_key(HEAD)
    }

    /// Of a state dict, whose shapes say all sizes; weights in halves are widened. `file` is what messages call it.
    ///
    /// # Errors
    /// Tensors that are missing, too many or of other shapes; sizes that no kernel takes.
    pub fn of_state_dict(file: &str, all: Tensors) -> Result<Self, Error> {
        let all = in_f32(all);
        let rows = |name: &str| match all.get(name).map(|t| t.shape.as_slice()) {
            Some(&[rows, columns]) => Ok([rows, columns]),
            _ => {
                let got = all.get(name).map_or_else(|| "none".into(), Tensor::describe);
                let (name, expected) = (name.to_owned(), format!("a matrix, in {file}"));
                Err(Error::Tensor { name, expected, got })
            }
        };
        let [vocabulary, width] = rows(EMBEDDING[1])?;
        let of_first = |name: &str| Ok::<_, Error>(rows(&format!("backbone.blocks.0.{name}"))?[0]);
        let heads = of_first("mlstm_layer.igate_preact.weight")?;
        let keys = of_first("mlstm_layer.q.weight")? / heads.max(1);
        let values = of_first("mlstm_layer.v.weight")? / heads.max(1);
        let hidden = of_first("ffn.proj_up.weight")?;
        let has = |n: &usize| all.contains_key(&format!("backbone.blocks.{n}.norm_ffn.weight"));
        let blocks = (0..).take_while(has).count();
        let of_width = Model::xlstm(vocabulary, width, heads, blocks);
        Self { model: Model { keys, values, hidden, ..of_width }, parameters: all }.checked()
    }

    /// Of a directory.
    ///
    /// # Errors
    /// A file that is missing or damaged; an option of the configuration that is not this model's, by its name; tensors that are
    /// not those that the configuration says.
    pub fn of_directory(directory: &Path) -> Result<Self, Error> {
        let model = Configured::read(&directory.join(CONFIG))?.model()?;
        let mut all = Tensors::new();
        for file in weight_files(directory)? {
            for (name, tensor) in tensor::read(&file)? {
                if all.insert(name.clone(), tensor).is_some() {
                    let got = format!("another in {}", file.display());
                    return Err(Error::Tensor { name, expected: "one of each name".into(), got });
                }
            }
        }
        let all = in_f32(all).into_iter().map(|(name, tensor)| {
            if is_llama(&model) { (llama::our_name(&name), tensor) } else { (name, tensor) }
        });
        let mut parameters: Tensors = all.collect();
        if model.tied {
            // Some have a copy of the embedding there.
            parameters.remove(HEAD);
        }
        Self { model, parameters }.checked()
    }

    fn checked(self) -> Result<Self, Error> {
        self.model.check()?;
        self.model.parameters().check(&self.parameters)?;
        Ok(self)
    }

    /// Writes a state dict of `xlstm_large`, whole or not at all.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_state_dict(&self, path: &Path) -> Result<(), Error> {
        if !self.model.mixers.is_default() {
            return Err(Error::bad("mixer", "vlstm, as xlstm_large has it", self.model.mixers));
        }
        self.write_weights(path, str::to_owned)
    }

    fn write_weights(&self, path: &Path, name: impl Fn(&str) -> String) -> Result<(), Error> {
        // Where it is the embedding, others have a copy, but for a Llama, whose configuration says so.
        let is_copied = self.model.tied && !is_llama(&self.model);
        let copy = is_copied.then(|| (HEAD, &self.parameters[EMBEDDING[1]]));
        let own = self.parameters.iter().map(|(own, t)| (own.as_str(), t)).chain(copy);
        let all = own.map(|(own, t)| (name(own), Part::Given(t)));
        // Without it transformers refuses the file.
        let notes = [("format".to_owned(), "pt".to_owned())].into();
        tensor::write_parts(path, all.collect(), &notes)
    }

    /// Writes a directory, whole or not at all: one that is not there, or is empty. The text of a `tokenizer.json` goes with it.
    ///
    /// # Errors
    /// There is something else of that name; it cannot be written.
    pub fn write_directory(&self, directory: &Path, tokenizer: Option<&[u8]>) -> Result<(), Error> {
        let their_name: fn(&str) -> String = match self.model.mixers {
            mixers if mixers.is_default() => {
                |own| if own == EMBEDDING[1] { EMBEDDING[0] } else { own }.to_owned()
            }
            _ if is_llama(&self.model) => llama::their_name,
            mixers => {
                let expected = "vlstm or attention alone, as transformers has them";
                return Err(Error::bad("mixer", expected, mixers));
            }
        };
        let failed = |e: std::io::Error| file_error(directory, e);
        let is_empty = |d: &Path| d.read_dir().is_ok_and(|mut entries| entries.next().is_none());
        if directory.symlink_metadata().is_ok() && !is_empty(directory) {
            let expected = "a directory that is not there, or is empty";
            return Err(Error::bad("directory", expected, directory.display()));
        }
        // Beside it, under a name that nobody else has; what renames it renames all of it.
        let parent = directory.parent().filter(|d| !d.as_os_str().is_empty());
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        let draft = format!(".{name}.{}.draft", std::process::id());
        let draft = parent.unwrap_or(Path::new(".")).join(draft);
        std::fs::create_dir(&draft).map_err(failed)?;
        let config = serde_json::to_string_pretty(&self.config()).expect("JSON") + "\n";
        let written = self
            .write_weights(&draft.join(WEIGHTS), their_name)
            .and_then(|()| write_atomically(&draft.join(CONFIG), config.as_bytes()).map_err(failed))
            .and_then(|()| match tokenizer {
                Some(json) => write_atomically(&draft.join(TOKENIZER), json).map_err(failed),
                None => Ok(()),
            })
            .and_then(|()| std::fs::rename(&draft, directory).map_err(failed));
        if written.is_err() {
            // Nobody has seen it.
            let _ = std::fs::remove_dir_all(&draft);
        }
        written
    }

    fn config(&self) -> Value {
        if is_llama(&self.model) {
            return llama::config(&self.model);
        }
        let Model { vocabulary, width, heads, blocks, keys, values, hidden, .. } = self.model;
        let (ffn_factor, multiple) = match hidden_width(width, 2.667, 64) {
            own if own == hidden => (2.667, 64),
            _ => (hidden as f64 / width as f64, 8),
        };
        let sizes = json!({
            "architectures": ["xLSTMForCausalLM"], "dtype": "float32",
            "vocab_size": vocabulary, "hidden_size": width, "embedding_dim": width,
            "num_hidden_layers": blocks, "num_blocks": blocks, "num_heads": heads,
            "qk_dim_factor": factor(heads * keys, width),
            "v_dim_factor": factor(heads * values, width),
            "ffn_proj_factor": ffn_factor, "ffn_round_up_to_multiple_of": multiple,
            // Of a tokenizer, which is not part of the model.
            "bos_token_id": null, "eos_token_id": null, "pad_token_id": null,
        });
        let mut all = sizes.as_object().expect("an object").clone();
        all.extend(fixed().into_iter().map(|(name, value)| (name.to_owned(), value)));
        Value::Object(all)
    }
}

/// Whether a model is what transformers calls a Llama.
fn is_llama(model: &Model) -> bool {
    model.mixers == Mixers::only(Mixer::Attention)
}

fn file_error(path: &Path, error: std::io::Error) -> Error {
    Error::File { path: path.display().to_string(), message: error.to_string() }
}

/// By the names of `xlstm_large`.
fn in_f32(all: Tensors) -> Tensors {
    let own = |(name, tensor): (String, Tensor)| {
        let name = if name == EMBEDDING[0] { EMBEDDING[1].to_owned() } else { name };
        let tensor = match tensor.dtype {
            DType::F16 | DType::BF16 => {
                Tensor::rounded(DType::F32, &tensor.shape, &tensor.values())
            }
            _ => tensor,
        };
        (name, tensor)
    };
    all.into_iter().map(own).collect()
}

/// What the options must be that all of these models have alike; each is its default of transformers, too.
fn fixed() -> [(&'static str, Value); 9] {
    [
        ("model_type", "xlstm".into()),
        ("weight_mode", "single".into()),
        ("use_bias", false.into()),
        ("tie_word_embeddings", false.into()),
        ("add_out_norm", true.into()),
        ("norm_eps", EPS.into()),
        ("eps", EPS.into()),
        ("gate_soft_cap", f64::from(GATE_CAP).into()),
        ("output_logit_soft_cap", f64::from(LOGIT_CAP).into()),
    ]
}

/// What is multiplied with `width`, and cut off, to give `columns`.
fn factor(columns: usize, width: usize) -> f64 {
    let factor = columns as f64 / width as f64;
    if columns_of(width, factor) == columns { factor } else { factor.next_up() }
}

fn columns_of(width: usize, factor: f64) -> usize {
    (width as f64 * factor) as usize
}

/// Rounded up to a multiple, in the arithmetic of transformers: ⌊(x + m − 1) / m⌋ m in f64.
fn hidden_width(width: usize, factor: f64, multiple: usize) -> usize {
    let m = multiple as f64;
    let x = width as f64 * factor + m - 1.0;
    (x - x % m) as usize
}

/// A `config.json`.
struct Configured {
    file: String,
    options: Map<String, Value>,
}

impl Configured {
    fn read(path: &Path) -> Result<Self, Error> {
        let text = read_text(path).map_err(|e| file_error(path, e))?;
        let file = path.display().to_string();
        match serde_json::from_str(&text) {
            Ok(Value::Object(options)) => Ok(Self { file, options }),
            Ok(_) => Err(Error::File { path: file, message: "expected a JSON object".into() }),
            Err(e) => Err(Error::File { path: file, message: format!("expected JSON: {e}") }),
        }
    }

    fn refuse<T>(
        &self,
        option: &str,
        expected: impl Into<String>,
        got: impl ToString,
    ) -> Result<T, Error> {
        Err(Error::bad(format!("{option} of {}", self.file), expected, got))
    }

    /// A size, or its default where there is none.
    fn size(&self, option: &str, default: usize) -> Result<usize, Error> {
        match self.options.get(option) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => match value.as_u64().and_then(|v| usize::try_from(v).ok()) {
                Some(size) if size > 0 && size <= 1 << 30 => Ok(size),
                _ => self.refuse(option, format!("1 to {}", 1 << 30), value),
            },
        }
    }

    /// A number above 0, or its default where there is none.
    fn number(&self, option: &str, default: f64) -> Result<f64, Error> {
        match self.options.get(option) {
            None | Some(Value::Null) => Ok(default),
            Some(value) => match value.as_f64() {
                Some(number) if number > 0.0 => Ok(number),
                _ => self.refuse(option, "a number above 0", value),
            },
        }
    }

    fn factor(&self, option: &str, default: f64) -> Result<f64, Error> {
        match self.options.get(option) {
            None => Ok(default),
            Some(value) => match value.as_f64() {
                Some(factor) if factor > 0.0 && factor <= 1024.0 => Ok(factor),
                _ => self.refuse(option, "a number above 0, at most 1024", value),
            },
        }
    }

    /// Two names of one size.
    fn size_of_two_names(&self, names: [&str; 2], default: usize) -> Result<usize, Error> {
        let first = self.size(names[0], default)?;
        let other = self.size(names[1], first)?;
        if other != first {
            return self.refuse(names[1], format!("{first}, as {} is", names[0]), other);
        }
        Ok(first)
    }

    /// Columns of a head: of so many in all.
    fn of_head(&self, option: &str, columns: usize, heads: usize) -> Result<usize, Error> {
        if !columns.is_multiple_of(heads) {
            let expected = format!("one that makes columns for {heads} heads");
            return self.refuse(option, expected, format!("one that makes {columns}"));
        }
        Ok(columns / heads)
    }

    /// Refuses options that are there and are others than these.
    fn check_fixed(&self, fixed: &[(&'static str, Value)]) -> Result<(), Error> {
        for (option, expected) in fixed {
            let Some(got) = self.options.get(*option) else { continue };
            let is_same = match (got.as_f64(), expected.as_f64()) {
                (Some(got), Some(expected)) => got == expected,
                _ => got == expected,
            };
            if !is_same {
                return self.refuse(option, expected.to_string(), got);
            }
        }
        Ok(())
    }

    fn model(&self) -> Result<Model, Error> {
        match self.options.get("model_type").and_then(Value::as_str) {
            Some("llama") => return llama::model(self),
            Some("xlstm") => {}
            _ => {
                let got = self.options.get("model_type");
                let got = got.map_or_else(|| "none".to_owned(), Value::to_string);
                return self.refuse("model_type", "\"xlstm\" or \"llama\"", got);
            }
        }
        self.check_fixed(&fixed())?;
        let vocabulary = self.size("vocab_size", 50304)?;
        let width = self.size_of_two_names(["hidden_size", "embedding_dim"], 4096)?;
        let blocks = self.size_of_two_names(["num_hidden_layers", "num_blocks"], 32)?;
        let heads = self.size("num_heads", 8)?;
        let columns = |option, default| {
            let columns = columns_of(width, self.factor(option, default)?);
            self.of_head(option, columns, heads)
        };
        let (keys, values) = (columns("qk_dim_factor", 0.5)?, columns("v_dim_factor", 1.0)?);
        let multiple = self.size("ffn_round_up_to_multiple_of", 64)?;
        let hidden = hidden_width(width, self.factor("ffn_proj_factor", 2.667)?, multiple);
        let model =
            Model { keys, values, hidden, ..Model::xlstm(vocabulary, width, heads, blocks) };
        model.check()?;
        Ok(model)
    }
}

/// The one file, or those that the index names.
fn weight_files(directory: &Path) -> Result<Vec<PathBuf>, Error> {
    let (one, index) = (directory.join(WEIGHTS), directory.join(INDEX));
    if one.exists() || !index.exists() {
        return Ok(vec![one]);
    }
    let file = index.display().to_string();
    let refuse = |message: String| Err(Error::File { path: file.clone(), message });
    let text = read_text(&index).map_err(|e| file_error(&index, e))?;
    let all: Value = match serde_json::from_str(&text) {
        Ok(all) => all,
        Err(e) => return refuse(format!("expected JSON: {e}")),
    };
    let Some(map) = all.get("weight_map").and_then(Value::as_object) else {
        return refuse("expected an object 'weight_map', got none".into());
    };
    let mut files = BTreeSet::new();
    for (name, file) in map {
        // Files of this directory only.
        let is_own = |file: &&str| Path::new(file).file_name().is_some_and(|own| own == *file);
        match file.as_str().filter(is_own) {
            Some(file) => files.insert(directory.join(file)),
            None => return refuse(format!("'{name}': expected the name of a file, got {file}")),
        };
    }
    Ok(files.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(options: &Value) -> String {
        let options = options.as_object().unwrap().clone();
        match (Configured { file: "config.json".into(), options }).model() {
            Ok(model) => format!("{model:?}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn options_that_are_not_there_are_refused_by_name() {
        let base = json!({ "model_type": "xlstm", "vocab_size": 37, "hidden_size": 32, "num_heads": 2, "qk_dim_factor": 1.0 });
        let with = |name: &str, value: Value| {
            let mut all = base.clone();
            all[name] = value;
            said(&all)
        };
        for (name, value, expected) in [
            ("model_type", json!("gpt2"), "expected \"xlstm\" or \"llama\", got \"gpt2\""),
            ("weight_mode", json!("fused"), "expected \"single\", got \"fused\""),
            ("use_bias", json!(true), "expected false, got true"),
            ("tie_word_embeddings", json!(true), "expected false, got true"),
            ("add_out_norm", json!(false), "expected true, got false"),
            ("norm_eps", json!(1e-5), "expected 1e-6, got 0.00001"),
            ("eps", json!(0), "expected 1e-6, got 0"),
            ("gate_soft_cap", json!(10), "expected 15.0, got 10"),
            ("output_logit_soft_cap", Value::Null, "expected 30.0, got null"),
            ("vocab_size", json!(-1), "expected 1 to 1073741824, got -1"),
            ("embedding_dim", json!(64), "expected 32, as hidden_size is, got 64"),
            ("num_blocks", json!(2), "expected 32, as num_hidden_layers is, got 2"),
            ("v_dim_factor", json!("1"), "expected a number above 0, at most 1024, got \"1\""),
            (
                "v_dim_factor",
                json!(0.99),
                "expected one that makes columns for 2 heads, got one that makes 31",
            ),
        ] {
            assert_eq!(with(name, value), format!("{name} of config.json: {expected}"));
        }
        let none = "model_type of config.json: expected \"xlstm\" or \"llama\", got none";
        assert_eq!(said(&json!({})), none);
        assert_eq!(
            with("num_heads", json!(4)),
            "keys of a head: expected a multiple of 16 from 16 to 256, got 8"
        );
        let whole = with("gate_soft_cap", json!(15));
        assert!(whole.contains("blocks: 32, keys: 16, values: 16, hidden: 128"), "{whole}");
    }

    /// What is written is read as the same sizes, in the other side's arithmetic.
    #[test]
    fn all_sizes_come_back() {
        let sizes = (1..=40).map(|n| 16 * n).flat_map(|width| {
            [(1, 16, 32), (3, 48, 16), (7, 16, 48)].map(|(heads, keys, values)| {
                let model = Model::xlstm(99, width, heads, 3);
                [model.hidden, 8, 8 * width / 16 + 8].map(|hidden| Model {
                    keys,
                    values,
                    hidden,
                    ..model
                })
            })
        });
        for model in sizes.flatten() {
            let options = Pretrained { model, parameters: Tensors::new() }.config();
            assert_eq!(said(&options), format!("{model:?}"));
        }
    }

    #[test]
    fn weights_in_pieces_lie_in_the_directory_itself() {
        let directory = tempfile::tempdir().unwrap();
        let index = directory.path().join(INDEX);
        let ask = |text: &str| {
            std::fs::write(&index, text).unwrap();
            weight_files(directory.path()).map_err(|e| e.to_string())
        };
        let two = r#"{ "weight_map": { "a": "1.safetensors", "b": "2.safetensors", "c": "1.safetensors" } }"#;
        let files = ["1.safetensors", "2.safetensors"].map(|name| directory.path().join(name));
        assert_eq!(ask(two).unwrap(), files);
        for (text, said) in [
            ("{", "expected JSON"),
            ("{}", "expected an object 'weight_map', got none"),
            (r#"{ "weight_map": { "a": 1 } }"#, "'a': expected the name of a file, got 1"),
            (r#"{ "weight_map": { "a": "../b" } }"#, "expected the name of a file, got \"../b\""),
            (r#"{ "weight_map": { "a": "/b" } }"#, "expected the name of a file, got \"/b\""),
        ] {
            let found = ask(text).unwrap_err();
            assert!(found.contains(said), "{found}");
        }
    }
}
