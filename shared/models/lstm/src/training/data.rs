//! What there is to learn from.

use lab_device::DType;
use lab_harness::{Error, Tensor};
use sha2::{Digest, Sha256};

use super::{Config, Head, Model};

/// A series of numbers or a text, from which windows are taken: a window at start s has the T rows from s
/// on, and a row's target is the row behind it.
#[derive(Clone, Debug, PartialEq)]
pub enum Data {
    /// Rows of numbers; the loss is the mean squared error of the first O of the target's.
    Series {
        /// `[len, I]`
        values: Vec<f64>,
        /// I.
        columns: usize,
    },
    /// Tokens, each an input with a one in its column; the loss is the cross-entropy with the target.
    Text {
        /// `[len]`, from 0 to I − 1.
        tokens: Vec<i32>,
        /// I, and O.
        classes: usize,
    },
}

/// The most rows: kernels count in 32 bits.
const MOST_ROWS: usize = 1 << 30;

impl Data {
    /// Rows.
    pub fn len(&self) -> usize {
        match self {
            Self::Series { values, columns } => values.len() / (*columns).max(1),
            Self::Text { tokens, .. } => tokens.len(),
        }
    }

    /// Whether there are no rows.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Columns of an input, I.
    pub fn columns(&self) -> usize {
        match self {
            Self::Series { columns, .. } => *columns,
            Self::Text { classes, .. } => *classes,
        }
    }

    /// The starts of all windows of so many steps that have their targets, `stride` rows apart.
    pub fn starts(&self, window: usize, stride: usize) -> Vec<usize> {
        (0..self.len().saturating_sub(window)).step_by(stride.max(1)).collect()
    }

    pub(crate) fn is_text(&self) -> bool {
        matches!(self, Self::Text { .. })
    }

    /// Whether a model can read it.
    pub(crate) fn check(&self, model: &Model) -> Result<(), Error> {
        let (len, columns) = (self.len(), self.columns());
        if columns != model.network.inputs {
            let expected = format!("{}, the network's inputs", model.network.inputs);
            return Err(Error::bad("columns of the data", expected, columns));
        }
        if len == 0 || len > MOST_ROWS {
            return Err(Error::bad("rows of the data", format!("1 to {MOST_ROWS}"), len));
        }
        match self {
            Self::Series { values, .. } => {
                if values.len() % columns != 0 {
                    let expected = format!("rows of {columns}");
                    return Err(Error::bad("numbers of the data", expected, values.len()));
                }
                if model.outputs > columns {
                    let expected = format!("1 to {columns}, the columns of the data");
                    return Err(Error::bad("outputs", expected, model.outputs));
                }
            }
            Self::Text { tokens, classes } => {
                if model.outputs != *classes {
                    let expected = format!("{classes}, the classes of the data");
                    return Err(Error::bad("outputs", expected, model.outputs));
                }
                let fits = |&t: &i32| usize::try_from(t).is_ok_and(|t| t < *classes);
                if let Some(at) = tokens.iter().position(|t| !fits(t)) {
                    let expected = format!("0 to {}", classes - 1);
                    return Err(Error::bad(format!("token {at}"), expected, tokens[at]));
                }
            }
        }
        Ok(())
    }

    /// Refuses windows that end past the data; those that are trained on have a target, too.
    pub(crate) fn check_starts(
        &self,
        starts: &[usize],
        window: usize,
        target: bool,
    ) -> Result<(), Error> {
        let needed = window + usize::from(target);
        let Some(last) = self.len().checked_sub(needed) else {
            let expected = format!("at least {needed}, a window and its target");
            return Err(Error::bad("rows of the data", expected, self.len()));
        };
        if starts.is_empty() || starts.len() > MOST_ROWS {
            return Err(Error::bad("windows", format!("1 to {MOST_ROWS}"), starts.len()));
        }
        match starts.iter().position(|&s| s > last) {
            Some(at) => {
                Err(Error::bad(format!("start of window {at}"), format!("0 to {last}"), starts[at]))
            }
            None => Ok(()),
        }
    }

    /// As the device has it: behind the data a row that nobody has to know, for windows without a target.
    pub(crate) fn padded(&self, dtype: DType) -> Tensor {
        match self {
            Self::Series { values, columns } => {
                let mut all = values.clone();
                all.resize(values.len() + columns, 0.0);
                Tensor::rounded(dtype, &[all.len()], &all)
            }
            Self::Text { tokens, .. } => {
                let mut all = tokens.clone();
                all.push(0);
                Tensor::new(&[all.len()], &all)
            }
        }
    }

    /// What tells data and windows from others.
    pub(crate) fn digest(&self, starts: &[usize]) -> String {
        let mut hash = Sha256::new();
        match self {
            Self::Series { values, columns } => {
                hash.update(format!("series {columns} {};", values.len()));
                values.iter().for_each(|v| hash.update(v.to_le_bytes()));
            }
            Self::Text { tokens, classes } => {
                hash.update(format!("text {classes} {};", tokens.len()));
                tokens.iter().for_each(|t| hash.update(t.to_le_bytes()));
            }
        }
        starts.iter().for_each(|&s| hash.update((s as u64).to_le_bytes()));
        format!("{:x}", hash.finalize())
    }
}

/// Rows of z in a step: B, or T·B.
pub(crate) fn read_rows(model: &Model, config: &Config) -> usize {
    match model.head {
        Head::Last => config.batch,
        Head::EveryStep => config.batch * config.window,
    }
}
