//! What may be said about a network and its training.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// What is left out has a default, by the kind of data.
#[derive(Args, Clone, Debug, Default, Serialize)]
pub(crate) struct Options {
    /// `sine`, a CSV file (.csv) or a text (any other file)
    #[arg(long, help_heading = "Data", value_name = "SINE|FILE")]
    pub(crate) data: Option<String>,
    /// The column of the CSV file
    #[arg(long, help_heading = "Data")]
    pub(crate) column: Option<String>,
    /// The sine's frequency: 1 is a point each tenth of a radian
    #[arg(long, help_heading = "Data", value_parser = parse_finite)]
    pub(crate) frequency: Option<f64>,
    /// Share of the series or text that says when to stop [default: 0.1; sine: 0]
    #[arg(long, help_heading = "Data", value_parser = parse_finite)]
    pub(crate) validation_share: Option<f64>,
    /// Share at the end, kept for `lab lstm test` [default: 0.1; sine: 0]
    #[arg(long, help_heading = "Data", value_parser = parse_finite)]
    pub(crate) test_share: Option<f64>,
    /// Steps of a sequence [default: 20; text: 32]
    #[arg(long, help_heading = "Data")]
    pub(crate) window: Option<usize>,
    /// Steps from one sequence to the next [default: 1; text: the window]
    #[arg(long, help_heading = "Data")]
    pub(crate) stride: Option<usize>,

    /// [default: lstm]
    #[arg(long, help_heading = "Network")]
    pub(crate) cell: Option<CellName>,
    /// Heads of the sLSTM: a unit sees the h of its own head alone [default: 4]
    #[arg(long, help_heading = "Network")]
    pub(crate) heads: Option<usize>,
    /// Units of a layer in one direction [default: 32; text: 64]
    #[arg(long, help_heading = "Network")]
    pub(crate) hidden: Option<usize>,
    /// Layers, each on the outputs of the one before [default: 1]
    #[arg(long, help_heading = "Network")]
    pub(crate) layers: Option<usize>,
    /// Each layer also reads from the last step to the first; not for a text (LSTM, GRU)
    #[arg(long, help_heading = "Network")]
    pub(crate) bidirectional: bool,
    /// The gates see c (LSTM)
    #[arg(long, help_heading = "Network")]
    pub(crate) peephole: bool,
    /// Layer norm of the gates and of c (LSTM)
    #[arg(long, help_heading = "Network")]
    pub(crate) layer_norm: bool,
    /// Share of each layer's outputs that the next one does not see [default: 0]
    #[arg(long, help_heading = "Network", value_parser = parse_finite)]
    pub(crate) dropout: Option<f64>,

    /// Sequences of a step [default: 16]
    #[arg(long, help_heading = "Training")]
    pub(crate) batch: Option<usize>,
    /// Times through all sequences [default: 100; text: 30]
    #[arg(long, help_heading = "Training")]
    pub(crate) epochs: Option<usize>,
    /// Stops after so many epochs without a smaller loss on the validation part; 0: never [default: 10]
    #[arg(long, help_heading = "Training")]
    pub(crate) patience: Option<usize>,
    /// [default: adam]
    #[arg(long, help_heading = "Training")]
    pub(crate) optimizer: Option<OptimizerName>,
    /// Learning rate [default: 0.003; text: 0.005; sgd: 0.1]
    #[arg(long, help_heading = "Training", value_parser = parse_finite)]
    pub(crate) lr: Option<f64>,
    /// Share of the last step that SGD keeps [default: 0.9]
    #[arg(long, help_heading = "Training", value_parser = parse_finite)]
    pub(crate) momentum: Option<f64>,
    /// [default: 0; adamw: 0.01]
    #[arg(long, help_heading = "Training", value_parser = parse_finite)]
    pub(crate) weight_decay: Option<f64>,
    /// The largest norm of all gradients together; 0: any [default: 1]
    #[arg(long, help_heading = "Training", value_parser = parse_finite)]
    pub(crate) clip: Option<f64>,
    /// How the learning rate falls: never, every so many epochs, to 0 at the last [default: cosine]
    #[arg(long, help_heading = "Training")]
    pub(crate) schedule: Option<ScheduleName>,
    /// Epochs from one fall to the next, of the schedule `step` [default: 30]
    #[arg(long, help_heading = "Training")]
    pub(crate) decay_every: Option<usize>,
    /// What the rate is multiplied by then [default: 0.3]
    #[arg(long, help_heading = "Training", value_parser = parse_finite)]
    pub(crate) decay_factor: Option<f64>,
    /// Steps in which the learning rate rises to its value [default: 0]
    #[arg(long, help_heading = "Training")]
    pub(crate) warm_up: Option<usize>,
    /// What is computed in; f16 and bf16 keep weights in f32 [default: f32]
    #[arg(long, help_heading = "Training")]
    pub(crate) dtype: Option<TypeName>,
    /// Keeps the gates of one layer only and computes the others again: less memory, more time (LSTM)
    #[arg(long, help_heading = "Training")]
    pub(crate) recompute: bool,
    /// Of first weights, order and dropout [default: 0]
    #[arg(long, help_heading = "Training")]
    pub(crate) seed: Option<u64>,
    /// mse for a series, cross-entropy for a text
    #[arg(long, help_heading = "Training")]
    pub(crate) loss: Option<LossName>,
    /// Also keeps the state every so many steps, not only at the end of an epoch
    #[arg(long, help_heading = "Training")]
    pub(crate) checkpoint_every: Option<usize>,
}

/// JSON has no NaN and no infinity, and no option has a use for them.
fn parse_finite(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|v| v.is_finite());
    value.ok_or_else(|| "expected a finite number".into())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum CellName {
    Lstm,
    Gru,
    Slstm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum OptimizerName {
    Adam,
    Adamw,
    Sgd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ScheduleName {
    Constant,
    Step,
    Cosine,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TypeName {
    F32,
    Bf16,
    F16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum LossName {
    Mse,
    CrossEntropy,
}
