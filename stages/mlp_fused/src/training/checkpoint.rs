//! A training on disk.

use std::collections::BTreeMap;
use std::path::Path;

use lab_device::DType;
use lab_harness::{Tensor, Tensors, tensor};
use serde::{Deserialize, Serialize};

use super::trainer::{STEP, STOPPED, TAKEN};
use super::{Config, Error, Model, Position};
use crate::batch::{COUNTS, NUMBERS};

/// All that the steps to come depend on, but the data.
///
/// Its file is one of safetensors: the parameters `emb`, `w1`, `b1`, `w2`, `b2`, in f32;
/// `optimizer.first.NAME` and `optimizer.second.NAME`, Adam's moments, the first of which is the velocity
/// of SGD, where the optimizer has them; and `training.…`, where it stands. What is no tensor is in the
/// metadata under `mlp_fused`, as JSON.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint {
    /// What is trained.
    pub model: Model,
    /// How.
    pub config: Config,
    /// How far it is.
    pub position: Position,
    /// By name, in f32.
    pub parameters: Tensors,
    /// For whoever takes it: what the numbers mean, a vocabulary, …
    pub notes: BTreeMap<String, String>,
    pub(crate) first: Tensors,
    pub(crate) second: Tensors,
    /// As the device has them: what is, and what will be.
    pub(crate) counts: Vec<i64>,
    pub(crate) numbers: Vec<f64>,
    /// Of the steps of this epoch.
    pub(crate) losses: Vec<f64>,
    pub(crate) digest: String,
}

/// What the metadata hold.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: u32,
    model: Model,
    config: Config,
    position: Position,
    data: String,
    notes: BTreeMap<String, String>,
}

const FORMAT: u32 = 1;
const KEY: &str = "mlp_fused";
const FIRST: &str = "optimizer.first.";
const SECOND: &str = "optimizer.second.";
const PROGRESS: [&str; 3] = ["training.counts", "training.numbers", "training.losses"];

impl Checkpoint {
    /// Writes it, whole or not at all: what stood there before stays where that fails.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let header = Header {
            format: FORMAT,
            model: self.model,
            config: self.config,
            position: self.position,
            data: self.digest.clone(),
            notes: self.notes.clone(),
        };
        let header = serde_json::to_string(&header)
            .map_err(|e| Error::checkpoint("metadata", "texts and numbers", e))?;
        let mut all = self.parameters.clone();
        for (prefix, moments) in [(FIRST, &self.first), (SECOND, &self.second)] {
            all.extend(moments.iter().map(|(name, t)| (format!("{prefix}{name}"), t.clone())));
        }
        let progress = [
            Tensor::new(&[self.counts.len()], &self.counts),
            Tensor::new(&[self.numbers.len()], &self.numbers),
            Tensor::new(&[self.losses.len()], &self.losses),
        ];
        all.extend(PROGRESS.map(str::to_owned).into_iter().zip(progress));
        let notes = BTreeMap::from([(KEY.to_owned(), header)]);
        Ok(tensor::write_with_notes(path, &all, &notes)?)
    }

    /// Reads it.
    ///
    /// # Errors
    /// The file is missing, cut short or no safetensors file; it is no checkpoint of this stage; a tensor
    /// is missing, or of another shape or type than its model and its position say.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let (mut all, notes) = tensor::read_with_notes(path)?;
        let file = path.display().to_string();
        let Some(header) = notes.get(KEY) else {
            let expected = format!("'{KEY}', which a checkpoint has");
            return Err(Error::checkpoint(format!("metadata of {file}"), expected, "none"));
        };
        let header: Header = serde_json::from_str(header).map_err(|e| {
            Error::checkpoint(format!("metadata of {file}"), "a model and its training", e)
        })?;
        let Header { format, model, config, position, data, notes } = header;
        if format != FORMAT {
            return Err(Error::checkpoint(format!("format of {file}"), FORMAT.to_string(), format));
        }
        let mut moments = |prefix: &str| {
            let names: Vec<String> =
                all.keys().filter(|n| n.starts_with(prefix)).cloned().collect();
            let take = |name: String| {
                let tensor = all.remove(&name).expect("a name of it");
                (name[prefix.len()..].to_owned(), tensor)
            };
            names.into_iter().map(take).collect::<Tensors>()
        };
        let [first, second] = [FIRST, SECOND].map(&mut moments);
        let mut progress = |name: &str, dtype: DType, len: usize| match all.remove(name) {
            Some(t) if t.dtype == dtype && t.shape == [len] => Ok(t),
            other => {
                let got = other.map_or_else(|| "none".to_owned(), |t| t.describe());
                Err(Error::checkpoint(
                    format!("'{name}' of {file}"),
                    format!("{dtype} [{len}]"),
                    got,
                ))
            }
        };
        let counts = progress(PROGRESS[0], DType::I64, 2 * COUNTS)?;
        let numbers = progress(PROGRESS[1], DType::F64, 2 * NUMBERS)?;
        let losses = progress(PROGRESS[2], DType::F64, position.step)?;
        let checkpoint = Self {
            model,
            config,
            position,
            parameters: all,
            notes,
            first,
            second,
            counts: counts.values().into_iter().map(|v| v as i64).collect(),
            numbers: numbers.values(),
            losses: losses.values(),
            digest: data,
        };
        checkpoint.check()?;
        Ok(checkpoint)
    }

    /// Refuses to go on with another model, or in another way, than it was taken with.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] with the first field that differs.
    pub fn expect(&self, model: &Model, config: &Config) -> Result<(), Error> {
        fn fields(of: impl Serialize) -> serde_json::Map<String, serde_json::Value> {
            match serde_json::to_value(of) {
                Ok(serde_json::Value::Object(all)) => all,
                _ => serde_json::Map::new(),
            }
        }
        let (mut own, mut asked) = (fields(self.model), fields(model));
        own.extend(fields(self.config));
        asked.extend(fields(config));
        match own.iter().find(|(name, value)| asked.get(*name) != Some(value)) {
            Some((name, value)) => {
                let got = asked.get(name).map_or_else(|| "none".to_owned(), ToString::to_string);
                Err(Error::checkpoint(name, value.to_string(), got))
            }
            None => Ok(()),
        }
    }

    /// What a file may say and no training would.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let Self { model, config, position, counts, numbers, .. } = self;
        model.check()?;
        config.check()?;
        model.check_parameters(&self.parameters)?;
        for moments in [&self.first, &self.second] {
            match config.descends() {
                false => model.check_parameters(moments)?,
                true if moments.is_empty() => {}
                true => {
                    let what = "moments of the optimizer";
                    return Err(Error::checkpoint(what, "none", moments.len()));
                }
            }
        }
        let Position { epoch, step, steps_per_epoch } = *position;
        let taken = epoch.checked_mul(steps_per_epoch).and_then(|t| t.checked_add(step));
        let fits = step < steps_per_epoch
            && counts[COUNTS + STEP] == step as i64
            && taken.is_some_and(|t| counts[COUNTS + TAKEN] == t as i64)
            && self.losses.len() == step;
        if !fits {
            let expected = "as many steps as 'training.counts' says";
            return Err(Error::checkpoint("position", expected, format!("{position:?}")));
        }
        if counts[COUNTS + STOPPED] != 0 || counts.iter().any(|&c| c < 0) {
            return Err(Error::checkpoint(
                "'training.counts'",
                "none below 0",
                format!("{counts:?}"),
            ));
        }
        if let Some(bad) = numbers.iter().find(|n| !n.is_finite() || **n < 0.0) {
            return Err(Error::checkpoint("'training.numbers'", "finite numbers from 0 on", bad));
        }
        Ok(())
    }
}
