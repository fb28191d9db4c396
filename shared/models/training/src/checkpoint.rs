//! A training on disk.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::Path;

use lab_device::DType;
use lab_device::emulator::shown;
use lab_harness::progress::{COUNTS, NUMBERS, STEP, STOPPED, TAKEN};
use lab_harness::tensor::{self, Part};
use lab_harness::{Tensor, Tensors};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{Configuration, Error};

/// How far training is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Position {
    /// The epoch under way, from 0.
    pub epoch: usize,
    /// Steps of it that are done.
    pub step: usize,
    /// Steps of an epoch.
    pub steps_per_epoch: usize,
}

/// A file is no checkpoint of this training.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "checkpoint: {}: expected {}, got {}",
    shown(what, 1000),
    shown(expected, 100),
    shown(got, 200)
)]
pub struct BadCheckpoint {
    /// What is wrong in it.
    pub what: String,
    /// What it may be.
    pub expected: String,
    /// What it is.
    pub got: String,
}

impl BadCheckpoint {
    /// With these words.
    pub fn new(what: impl Into<String>, expected: impl Into<String>, got: impl ToString) -> Self {
        Self { what: what.into(), expected: expected.into(), got: got.to_string() }
    }
}

fn bad(what: impl Into<String>, expected: impl Into<String>, got: impl ToString) -> Error {
    BadCheckpoint::new(what, expected, got).into()
}

/// What is trained, as its checkpoints need it.
pub trait Trained: Copy + Debug + PartialEq + Send + Sync + Serialize + DeserializeOwned {
    /// How it is trained.
    type Config: Configuration
        + Copy
        + Debug
        + PartialEq
        + Send
        + Sync
        + Serialize
        + DeserializeOwned;
    /// The stage, and the key of the metadata.
    const STAGE: &'static str;

    /// Refuses a model, a configuration, parameters and moments that no training could have left.
    ///
    /// # Errors
    /// Of the first of them that is wrong.
    fn check(checkpoint: &Checkpoint<Self>) -> Result<(), Error>;

    /// Whether a step hands states to the next, so that checkpoints have some.
    fn carries_states(_config: &Self::Config) -> bool {
        false
    }
}

/// All that the steps to come depend on, but the data.
///
/// Its file is one of safetensors: the parameters by their names; `optimizer.first.NAME` and
/// `optimizer.second.NAME`, Adam's moments, the first of which is the velocity of SGD, where the optimizer
/// has them; `training.state.NAME`, what a step hands to the next; and `training.…`, where it stands. What is no tensor is in the metadata under the stage's
/// name, as JSON. `training.sha256` is a checksum of all that.
#[derive(Clone, Debug, PartialEq)]
pub struct Checkpoint<M: Trained> {
    /// What is trained.
    pub model: M,
    /// How.
    pub config: M::Config,
    /// How far it is.
    pub position: Position,
    /// By name, in f32, or of an f64 run in f64.
    pub parameters: Tensors,
    /// For whoever takes it: what the numbers mean, a vocabulary, …
    pub notes: BTreeMap<String, String>,
    /// The optimizer's first moments, by the parameters' names.
    pub first: Tensors,
    /// Its second moments.
    pub second: Tensors,
    /// What a step hands to the next beside these: states of streams.
    pub states: Tensors,
    /// As the device has them, `Count` of `lab/progress.cuh`: what is, and what will be.
    pub counts: Vec<i64>,
    /// Likewise, `Number` of it.
    pub numbers: Vec<f64>,
    /// Of the steps of this epoch.
    pub losses: Vec<f64>,
    /// Of the data and the windows that are trained on.
    pub digest: String,
}

/// What the metadata hold.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header<M, C> {
    format: u32,
    model: M,
    config: C,
    position: Position,
    data: String,
    notes: BTreeMap<String, String>,
}

/// Since 2 with a checksum.
const FORMAT: u32 = 2;
const CHECKSUM: &str = "training.sha256";
const FIRST: &str = "optimizer.first.";
const SECOND: &str = "optimizer.second.";
const STATE: &str = "training.state.";
const PROGRESS: [&str; 3] = ["training.counts", "training.numbers", "training.losses"];

/// SHA-256 of what the metadata say of the training, the `header`, and of all other tensors: 32 bytes. For who
/// writes a checkpoint by other means.
pub fn checksum(header: &str, all: &Tensors) -> Tensor {
    let all: Vec<(&str, &Tensor)> = all.iter().map(|(name, t)| (name.as_str(), t)).collect();
    Tensor::new::<u8>(&[CHECKSUM_BYTES], &digest(header, &all))
}

const CHECKSUM_BYTES: usize = 32;

/// Of tensors in the order of their names.
fn digest(header: &str, all: &[(&str, &Tensor)]) -> Vec<u8> {
    let mut hash = Sha256::new();
    let mut text = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    };
    text(header);
    for (name, tensor) in all {
        text(name);
        text(&tensor.describe());
    }
    all.iter().for_each(|(_, tensor)| hash.update(&tensor.bytes));
    hash.finalize().to_vec()
}

impl<M: Trained> Checkpoint<M> {
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
            .map_err(|e| BadCheckpoint::new("metadata", "texts and numbers", e))?;
        let progress = [
            Tensor::new(&[self.counts.len()], &self.counts),
            Tensor::new(&[self.numbers.len()], &self.numbers),
            Tensor::new(&[self.losses.len()], &self.losses),
        ];
        // Where they are: the moments alone are twice the parameters.
        let mut all: Vec<(String, &Tensor)> = Vec::new();
        for (prefix, tensors) in [
            ("", &self.parameters),
            (FIRST, &self.first),
            (SECOND, &self.second),
            (STATE, &self.states),
        ] {
            all.extend(tensors.iter().map(|(name, t)| (format!("{prefix}{name}"), t)));
        }
        all.extend(PROGRESS.map(str::to_owned).into_iter().zip(&progress));
        all.sort_by(|(a, _), (b, _)| a.cmp(b));
        let notes = BTreeMap::from([(M::STAGE.to_owned(), header.clone())]);
        std::thread::scope(|scope| {
            // The checksum is made while the rest is written, and comes last.
            let named: Vec<(&str, &Tensor)> = all.iter().map(|(n, t)| (n.as_str(), *t)).collect();
            let sum = scope.spawn(move || digest(&header, &named));
            let sum = Box::new(|| sum.join().expect("a sum of bytes"));
            let given = all.iter().map(|(name, tensor)| (name.clone(), Part::Given(tensor)));
            let mut parts: Vec<(String, Part<'_>)> = given.collect();
            parts.push((CHECKSUM.to_owned(), Part::Made(CHECKSUM_BYTES, sum)));
            Ok(tensor::write_parts(path, parts, &notes)?)
        })
    }

    /// The same without parameters and moments: before its first step, a training is what its configuration says. The file of it
    /// is small. A training goes on from it ([`Checkpoint::read_to_resume`]); a model it is not.
    #[must_use]
    pub fn without_tensors(self) -> Self {
        let [parameters, first, second, states] = [(); 4].map(|()| Tensors::new());
        Self { parameters, first, second, states, ..self }
    }

    /// Whether it is such a beginning.
    pub fn is_bare(&self) -> bool {
        let Position { epoch, step, .. } = self.position;
        let holds_none = [&self.parameters, &self.first, &self.second].iter().all(|t| t.is_empty());
        (epoch, step) == (0, 0) && holds_none
    }

    /// Reads it.
    ///
    /// # Errors
    /// The file is missing, cut short or no safetensors file; it is no checkpoint of this stage; a tensor
    /// is missing, or of another shape or type than its model and its position say; something in it was
    /// changed since it was written.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let (all, notes) = tensor::read_with_notes(path)?;
        Self::of_file(path, all, &notes)
    }

    /// The same, or what [`Checkpoint::without_tensors`] has left: what a training can go on from.
    ///
    /// # Errors
    /// As [`Checkpoint::read`].
    pub fn read_to_resume(path: &Path) -> Result<Self, Error> {
        let (all, notes) = tensor::read_with_notes(path)?;
        Self::of_file_or_beginning(path, all, &notes)
    }

    /// The same of a file that has been read: its tensors, and the texts of its metadata.
    ///
    /// # Errors
    /// As [`Checkpoint::read`].
    pub fn of_file(
        path: &Path,
        all: Tensors,
        notes: &BTreeMap<String, String>,
    ) -> Result<Self, Error> {
        let checkpoint = Self::of_file_or_beginning(path, all, notes)?;
        if checkpoint.is_bare() {
            let expected = "those of a training that was kept behind its first step";
            return Err(bad(format!("parameters of {}", path.display()), expected, "none"));
        }
        Ok(checkpoint)
    }

    fn of_file_or_beginning(
        path: &Path,
        mut all: Tensors,
        notes: &BTreeMap<String, String>,
    ) -> Result<Self, Error> {
        let file = path.display().to_string();
        let Some(header) = notes.get(M::STAGE) else {
            let expected = format!("'{}', which a checkpoint has", M::STAGE);
            return Err(bad(format!("metadata of {file}"), expected, "none"));
        };
        let written = all.remove(CHECKSUM);
        let sum = checksum(header, &all);
        let header: Header<M, M::Config> = serde_json::from_str(header).map_err(|e| {
            BadCheckpoint::new(format!("metadata of {file}"), "a model and its training", e)
        })?;
        let Header { format, model, config, position, data, notes } = header;
        if format != FORMAT {
            return Err(bad(format!("format of {file}"), FORMAT.to_string(), format));
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
        let [first, second, states] = [FIRST, SECOND, STATE].map(&mut moments);
        let mut progress = |name: &str, dtype: DType, len: usize| match all.remove(name) {
            Some(t) if t.dtype == dtype && t.shape == [len] => Ok(t),
            other => {
                let got = other.map_or_else(|| "none".to_owned(), |t| t.describe());
                Err(BadCheckpoint::new(
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
            states,
            counts: counts.values().into_iter().map(|v| v as i64).collect(),
            numbers: numbers.values(),
            losses: losses.values(),
            digest: data,
        };
        checkpoint.check()?;
        // Last: what else is wrong says more.
        if written.as_ref() == Some(&sum) {
            return Ok(checkpoint);
        }
        let hexadecimal =
            |sum: &Tensor| sum.bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let got = match written {
            None => "none".into(),
            Some(t) if t.shape != sum.shape => t.describe(),
            Some(t) => hexadecimal(&t),
        };
        Err(bad(
            format!("'{CHECKSUM}' of {file}"),
            format!("{}, of what it holds", hexadecimal(&sum)),
            got,
        ))
    }

    /// Refuses to go on with another model, or in another way, than it was taken with.
    ///
    /// # Errors
    /// [`BadCheckpoint`] with the first field that differs.
    pub fn expect(&self, model: &M, config: &M::Config) -> Result<(), Error> {
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
                Err(bad(name, value.to_string(), got))
            }
            None => Ok(()),
        }
    }

    /// What a file may say and no training would.
    ///
    /// # Errors
    /// As [`Trained::check`]; a position that its counts do not have.
    pub fn check(&self) -> Result<(), Error> {
        // The first step finds out about the rest: nothing of it is in the file.
        if !self.is_bare() {
            M::check(self)?;
        }
        let Self { position, counts, numbers, states, .. } = self;
        if !states.is_empty() && !M::carries_states(&self.config) {
            let expected = "none, for its steps hand no state on";
            return Err(bad(format!("'{STATE}…'"), expected, states.len()));
        }
        let Position { epoch, step, steps_per_epoch } = *position;
        let taken = epoch.checked_mul(steps_per_epoch).and_then(|t| t.checked_add(step));
        let fits = step < steps_per_epoch
            && counts[COUNTS + STEP] == step as i64
            && taken.is_some_and(|t| counts[COUNTS + TAKEN] == t as i64)
            && self.losses.len() == step;
        if !fits {
            let expected = "as many steps as 'training.counts' says";
            let got = format!("step {step} of {steps_per_epoch} in epoch {epoch}");
            return Err(bad("position", expected, got));
        }
        if counts[COUNTS + STOPPED] != 0 || counts.iter().any(|&c| c < 0) {
            return Err(bad("'training.counts'", "none below 0", format!("{counts:?}")));
        }
        if let Some(wrong) = numbers.iter().find(|n| !n.is_finite() || **n < 0.0) {
            return Err(bad("'training.numbers'", "finite numbers from 0 on", wrong));
        }
        Ok(())
    }
}
