//! How to train.

use lab_device::DType;
use lab_harness::Error;
use lab_training::{Configuration, Course, Optimizer, Schedule, count, positive, share};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{Mixer, Model};

/// How to train: AdamW, in windows of a stream of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Config {
    /// Tokens of a window, S.
    pub window: usize,
    /// Windows of a step, B. The last step of an epoch has what is left.
    pub batch: usize,
    /// Parts of a step, each of B windows, whose gradients are added: the step is that of as many times B windows, in the memory of B.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub accumulate: usize,
    /// Share of the elements that are dropped of the embedding and of what a block's products read that write to the stream.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub dropout: f64,
    /// ζ, the factor in the loss of the squared logarithm of the softmax's denominator.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub z_loss: f64,
    /// Rows whose logits are in memory at a time; chosen by their size where it is not said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logit_rows: Option<usize>,
    /// What the model runs in. Parameters are kept in f32, and rounded for it.
    #[serde(serialize_with = "dtype_to_name", deserialize_with = "dtype_of_name")]
    pub dtype: DType,
    /// Of the first parameters and the order of the windows.
    pub seed: u64,
    /// Whether the windows come as they stand in the data, for data that has been shuffled already; else in another order in each epoch.
    #[serde(default, skip_serializing_if = "is_false")]
    pub in_order: bool,
    /// The token that each document begins with, where a window may have several: of what stands in one, nothing is left in the next.
    /// It is the last target of the document before, and is read as the first of the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<i32>,
    /// Whether a window begins with the states that the one before it in its row has left: rows are streams then, see
    /// [`Tokens::streams`](crate::Tokens::streams). No gradient goes from window to window.
    #[serde(default, skip_serializing_if = "is_false")]
    pub carry_state: bool,
    /// How fast.
    pub schedule: Schedule,
    /// Of both moments.
    pub betas: [f64; 2],
    /// Of matrices, not of norms and biases.
    pub weight_decay: f64,
    /// The largest norm of all gradients together.
    pub clip: Option<f64>,
}

impl Default for Config {
    /// Windows of 128 in batches of 8, f32; a rate of 10⁻³, betas 0.9 and 0.95, decay 0.1, norms up to 1.
    fn default() -> Self {
        Self {
            window: 128,
            batch: 8,
            accumulate: 1,
            dropout: 0.0,
            z_loss: 0.0,
            logit_rows: None,
            dtype: DType::F32,
            seed: 0,
            in_order: false,
            document: None,
            carry_state: false,
            schedule: Schedule::constant(1e-3),
            betas: [0.9, 0.95],
            weight_decay: 0.1,
            clip: Some(1.0),
        }
    }
}

// What a field that files of before do not have is in them; it is not written either.
fn one() -> usize {
    1
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn is_one(value: &usize) -> bool {
    *value == 1
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !*value
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// Added outside of the root.
pub(crate) const EPS: f64 = 1e-8;

impl Configuration for Config {
    fn course(&self) -> Course {
        let Self { seed, schedule, in_order, .. } = *self;
        Course { batch: self.windows_of_step(), seed, shuffle: !in_order, schedule }
    }
}

impl Config {
    /// Windows of a step, those of all of its parts.
    pub fn windows_of_step(&self) -> usize {
        self.batch * self.accumulate
    }

    /// Refuses documents and streams that a model does not take, and windows that are none of streams.
    ///
    /// # Errors
    /// [`Error::Bad`] with the first of it, which names the mixer.
    pub(crate) fn check_for(&self, model: &Model, starts: &[usize]) -> Result<(), Error> {
        let mixers = model.mixers;
        if let Some(document) = self.document {
            model.check_tokens(&[document])?;
            let others = [Mixer::Attention, Mixer::Lstm, Mixer::Slstm];
            if others.into_iter().any(|mixer| mixers.has(mixer)) {
                let expected = "vlstm alone, whose forget gate shuts where a document begins";
                return Err(Error::bad("mixer of windows with documents", expected, mixers));
            }
        }
        if !self.carry_state {
            return Ok(());
        }
        if mixers.has(Mixer::Attention) {
            let expected = "none that keeps all positions, as attention does";
            return Err(Error::bad("mixer whose state is carried", expected, mixers));
        }
        if mixers.has(Mixer::Vlstm) && self.dtype == DType::F32 {
            let expected = "bf16: in f32 no version of the vLSTM leaves its state";
            return Err(Error::bad(
                "dtype of a training that carries states",
                expected,
                self.dtype,
            ));
        }
        if !self.in_order {
            return Err(Error::bad("windows of streams", "those in order", "shuffled ones"));
        }
        let rows = self.windows_of_step();
        if !starts.len().is_multiple_of(rows) {
            let expected = format!("a multiple of {rows}, as a step has rows");
            return Err(Error::bad("windows of streams", expected, starts.len()));
        }
        let goes_on = |at: &usize| starts[*at] == starts[at - rows] + self.window;
        match (rows..starts.len()).find(|at| !goes_on(at)) {
            None => Ok(()),
            Some(at) => {
                let expected = (starts[at - rows] + self.window).to_string();
                Err(Error::bad(format!("start of window {at}"), expected, starts[at]))
            }
        }
    }

    /// Refuses what no training can be done with.
    ///
    /// # Errors
    /// [`Error::Bad`] with the first of it.
    pub fn check(&self) -> Result<(), Error> {
        count("window", self.window, 1 << 20)?;
        count("batch", self.batch, 1 << 16)?;
        // Kernels count rows in 32 bits.
        count("parts of a step", self.accumulate, 1 << 10)?;
        count("tokens of a step", self.window * self.windows_of_step(), 1 << 26)?;
        share("dropout", self.dropout)?;
        if !(0.0..=1.0).contains(&self.z_loss) {
            return Err(Error::bad("z-loss", "0 to 1", self.z_loss));
        }
        if let Some(rows) = self.logit_rows {
            count("rows of logits", rows, 1 << 26)?;
        }
        if ![DType::F32, DType::BF16].contains(&self.dtype) {
            return Err(Error::bad("dtype", "f32 or bf16", self.dtype));
        }
        self.schedule.check()?;
        let Self { betas, weight_decay, .. } = *self;
        Optimizer::Adam { betas, eps: EPS, weight_decay, decoupled: true }.check()?;
        self.clip.map_or(Ok(()), |clip| positive("clip", clip))
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
fn dtype_to_name<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(dtype.name())
}

fn dtype_of_name<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}
