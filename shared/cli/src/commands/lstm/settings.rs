//! What a training goes by: what was said, and defaults for the rest.

use clap::ValueEnum;
use lab_device::DType;
use lab_harness::Error;
use lab_lstm::training::{Config, Decay, LossScale, Optimizer, Schedule};
use lstm_fused::{Cell, Network};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::options::{CellName, LossName, OptimizerName, Options, ScheduleName, TypeName};

/// What kind of data it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Sine,
    Csv,
    Text,
}

impl Kind {
    pub(super) fn of(data: &str) -> Self {
        let csv = data.rsplit_once('.').is_some_and(|(_, e)| e.eq_ignore_ascii_case("csv"));
        match data {
            "sine" => Self::Sine,
            _ if csv => Self::Csv,
            _ => Self::Text,
        }
    }
}

/// Every option, under its name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) data: String,
    pub(super) column: Option<String>,
    pub(super) frequency: f64,
    pub(super) validation_share: f64,
    pub(super) test_share: f64,
    pub(super) window: usize,
    pub(super) stride: usize,
    pub(super) cell: CellName,
    /// Of the sLSTM, of others 1; not among those of older files.
    #[serde(default = "one_head")]
    pub(super) heads: usize,
    pub(super) hidden: usize,
    pub(super) layers: usize,
    pub(super) bidirectional: bool,
    pub(super) peephole: bool,
    pub(super) layer_norm: bool,
    pub(super) dropout: f64,
    pub(super) batch: usize,
    pub(super) epochs: usize,
    pub(super) patience: usize,
    pub(super) optimizer: OptimizerName,
    pub(super) lr: f64,
    pub(super) momentum: f64,
    pub(super) weight_decay: f64,
    pub(super) clip: f64,
    pub(super) schedule: ScheduleName,
    pub(super) decay_every: usize,
    pub(super) decay_factor: f64,
    pub(super) warm_up: usize,
    pub(super) dtype: TypeName,
    /// Not among those of older files.
    #[serde(default)]
    pub(super) recompute: bool,
    pub(super) seed: u64,
    pub(super) loss: LossName,
}

/// May be said anew when a training goes on, for it changes none of its steps. How often the state
/// is kept is not even recorded.
const FREE: [&str; 3] = ["epochs", "patience", "checkpoint_every"];

/// ε of the layer norm, PyTorch's.
const EPSILON: f64 = 1e-5;

impl Settings {
    /// # Errors
    /// No data are named; an option is out of its range, or not one for these data.
    pub(super) fn new(given: &Options) -> Result<Self, Error> {
        let Some(data) = &given.data else {
            return Err(Error::bad("--data", "sine, a CSV file (.csv) or a text", "none"));
        };
        let kind = Kind::of(data);
        let text = kind == Kind::Text;
        let optimizer = given.optimizer.unwrap_or(OptimizerName::Adam);
        let held = if kind == Kind::Sine { 0.0 } else { 0.1 };
        let window = given.window.unwrap_or(if text { 32 } else { 20 });
        let defaults = Self {
            data: data.clone(),
            column: None,
            frequency: 1.0,
            validation_share: held,
            test_share: held,
            window,
            stride: if text { window } else { 1 },
            cell: CellName::Lstm,
            heads: if given.cell == Some(CellName::Slstm) { 4 } else { one_head() },
            hidden: if text { 64 } else { 32 },
            layers: 1,
            bidirectional: false,
            peephole: false,
            layer_norm: false,
            dropout: 0.0,
            batch: 16,
            epochs: if text { 30 } else { 100 },
            patience: 10,
            optimizer,
            lr: match optimizer {
                OptimizerName::Sgd => 0.1,
                OptimizerName::Adam | OptimizerName::Adamw if text => 0.005,
                OptimizerName::Adam | OptimizerName::Adamw => 0.003,
            },
            momentum: 0.9,
            weight_decay: if optimizer == OptimizerName::Adamw { 0.01 } else { 0.0 },
            clip: 1.0,
            schedule: ScheduleName::Cosine,
            decay_every: 30,
            decay_factor: 0.3,
            warm_up: 0,
            dtype: TypeName::F32,
            recompute: false,
            seed: 0,
            loss: if text { LossName::CrossEntropy } else { LossName::Mse },
        };
        let settings = defaults.with(given)?;
        settings.check(kind, given)?;
        Ok(settings)
    }

    /// Those of a training that goes on: what was said then, and now of what may change.
    ///
    /// # Errors
    /// Something is said that is not what was said then.
    pub(super) fn resumed(self, given: &Options) -> Result<Self, Error> {
        let then = serde_json::to_value(&self).expect("settings are JSON");
        for (name, value) in &given_options(given) {
            if !FREE.contains(&name.as_str()) && then[name] != *value {
                let option = format!("--{}", name.replace('_', "-"));
                let expected = format!("{}, with which training began", plain_text(&then[name]));
                return Err(Error::bad(option, expected, plain_text(value)));
            }
        }
        let epochs = self.epochs;
        let settings = self.with(given)?;
        if settings.schedule == ScheduleName::Cosine && settings.epochs != epochs {
            let expected = format!("{epochs}, over which the learning rate falls as a cosine");
            return Err(Error::bad("--epochs", expected, settings.epochs));
        }
        let kind = Kind::of(&settings.data);
        settings.check(kind, given)?;
        Ok(settings)
    }

    fn with(self, given: &Options) -> Result<Self, Error> {
        let mut all = serde_json::to_value(self).expect("settings are JSON");
        for (name, value) in given_options(given) {
            all[name] = value;
        }
        serde_json::from_value(all).map_err(|e| Error::bad("options", "settings", e))
    }

    /// What kind of data it is about.
    ///
    /// # Errors
    /// They are none that [`Settings::new`] gives.
    pub(super) fn checked(&self) -> Result<Kind, Error> {
        let kind = Kind::of(&self.data);
        self.check(kind, &Options::default())?;
        Ok(kind)
    }

    fn check(&self, kind: Kind, given: &Options) -> Result<(), Error> {
        let counts = [
            ("--window", self.window),
            ("--stride", self.stride),
            ("--hidden", self.hidden),
            ("--layers", self.layers),
            ("--batch", self.batch),
            ("--epochs", self.epochs),
            ("--decay-every", self.decay_every),
            ("--checkpoint-every", given.checkpoint_every.unwrap_or(1)),
        ];
        if let Some((name, _)) = counts.into_iter().find(|c| c.1 == 0) {
            return Err(Error::bad(name, "at least 1", 0));
        }
        for (name, value) in [
            ("--validation-share", self.validation_share),
            ("--test-share", self.test_share),
            ("--dropout", self.dropout),
            ("--momentum", self.momentum),
        ] {
            if !(0.0..1.0).contains(&value) {
                return Err(Error::bad(name, "a number from 0 to below 1", value));
            }
        }
        for (name, value) in [
            ("--frequency", self.frequency),
            ("--lr", self.lr),
            ("--decay-factor", self.decay_factor),
        ] {
            if value <= 0.0 {
                return Err(Error::bad(name, "a number above 0", value));
            }
        }
        for (name, value) in [("--weight-decay", self.weight_decay), ("--clip", self.clip)] {
            if value < 0.0 {
                return Err(Error::bad(name, "a number that is not negative", value));
            }
        }
        let needs = [
            ("--decay-every", given.decay_every.is_some(), self.schedule == ScheduleName::Step),
            ("--decay-factor", given.decay_factor.is_some(), self.schedule == ScheduleName::Step),
            ("--momentum", given.momentum.is_some(), self.optimizer == OptimizerName::Sgd),
        ];
        if let Some((name, ..)) = needs.into_iter().find(|(_, given, used)| *given && !used) {
            let (expected, got) = match name {
                "--momentum" => ("--optimizer sgd", name_of(&self.optimizer)),
                _ => ("--schedule step", name_of(&self.schedule)),
            };
            return Err(Error::bad(name, format!("{expected}, which uses it"), got));
        }
        if self.dropout > 0.0 && self.layers < 2 {
            let expected = "0 in a network of one layer: it stands between two";
            return Err(Error::bad("--dropout", expected, self.dropout));
        }
        let cell = match self.cell {
            CellName::Lstm => "an LSTM",
            CellName::Gru => "a GRU",
            CellName::Slstm => "an sLSTM",
        };
        if self.cell != CellName::Lstm && (self.peephole || self.layer_norm) {
            let option = if self.peephole { "--peephole" } else { "--layer-norm" };
            return Err(Error::bad(option, "an LSTM", cell));
        }
        if self.cell == CellName::Slstm && self.bidirectional {
            return Err(Error::bad("--bidirectional", "an LSTM or a GRU", cell));
        }
        if self.recompute && (self.cell != CellName::Lstm || self.layer_norm) {
            let got = if self.layer_norm { "layer norm" } else { cell };
            return Err(Error::bad("--recompute", "an LSTM without layer norm", got));
        }
        if self.cell != CellName::Slstm && given.heads.is_some() {
            return Err(Error::bad("--heads", "an sLSTM (--cell slstm)", cell));
        }
        if self.heads == 0 || !self.hidden.is_multiple_of(self.heads) {
            let expected = format!("a divisor of the {} units of --hidden", self.hidden);
            return Err(Error::bad("--heads", expected, self.heads));
        }
        if kind != Kind::Csv && self.column.is_some() {
            return Err(Error::bad("--column", "none without a CSV file", "one"));
        }
        if kind != Kind::Sine && given.frequency.is_some() {
            return Err(Error::bad("--frequency", "none without the sine", self.frequency));
        }
        if kind == Kind::Text && self.bidirectional {
            let expected = "one direction for a text: the other one reads what is to be told";
            return Err(Error::bad("--bidirectional", expected, "two"));
        }
        match (kind, self.loss) {
            (Kind::Text, LossName::Mse) => {
                Err(Error::bad("--loss", "cross-entropy for a text", "mse"))
            }
            (Kind::Sine | Kind::Csv, LossName::CrossEntropy) => {
                Err(Error::bad("--loss", "mse for a series", "cross-entropy"))
            }
            _ => Ok(()),
        }
    }

    /// The network, for so many columns.
    pub(super) fn network(&self, inputs: usize) -> Network {
        Network {
            cell: match self.cell {
                CellName::Lstm => Cell::Lstm,
                CellName::Gru => Cell::Gru,
                CellName::Slstm => Cell::Slstm { heads: self.heads },
            },
            inputs,
            hidden: self.hidden,
            layers: self.layers,
            bidirectional: self.bidirectional,
            bias: true,
            peephole: self.peephole,
            layer_norm: self.layer_norm.then_some(EPSILON),
        }
    }

    /// How it is trained, with so many sequences an epoch.
    pub(super) fn config(&self, sequences: usize) -> Config {
        let steps = sequences.div_ceil(self.batch);
        let all = self.epochs.saturating_mul(steps);
        let weight_decay = self.weight_decay;
        let adam =
            |decoupled| Optimizer::Adam { betas: [0.9, 0.999], eps: 1e-8, weight_decay, decoupled };
        Config {
            window: self.window,
            batch: self.batch,
            dtype: match self.dtype {
                TypeName::F32 => DType::F32,
                TypeName::Bf16 => DType::BF16,
                TypeName::F16 => DType::F16,
            },
            seed: self.seed,
            optimizer: match self.optimizer {
                OptimizerName::Adam => adam(false),
                OptimizerName::Adamw => adam(true),
                OptimizerName::Sgd => Optimizer::Sgd { momentum: self.momentum, weight_decay },
            },
            schedule: Schedule {
                rate: self.lr,
                warm_up: self.warm_up,
                decay: match self.schedule {
                    ScheduleName::Constant => Decay::Constant,
                    ScheduleName::Step => Decay::Step {
                        every: self.decay_every.saturating_mul(steps),
                        gamma: self.decay_factor,
                    },
                    ScheduleName::Cosine => {
                        Decay::Cosine { steps: all.saturating_sub(self.warm_up).max(1), min: 0.0 }
                    }
                },
            },
            clip: (self.clip > 0.0).then_some(self.clip),
            dropout: self.dropout,
            // PyTorch's.
            loss_scale: match self.dtype {
                TypeName::F16 => LossScale::Dynamic { initial: 65536.0, every: 2000 },
                _ => LossScale::None,
            },
            recompute: self.recompute,
            ..Config::default()
        }
    }
}

fn one_head() -> usize {
    1
}

/// The options that were given, by name.
fn given_options(given: &Options) -> serde_json::Map<String, Value> {
    match serde_json::to_value(given) {
        Ok(Value::Object(mut all)) => {
            all.remove("checkpoint_every");
            all.retain(|_, value| !matches!(value, Value::Null | Value::Bool(false)));
            all
        }
        _ => unreachable!("options are a JSON object"),
    }
}

/// What an option's value is called on the command line.
fn name_of(value: &impl ValueEnum) -> String {
    value.to_possible_value().map_or(String::new(), |v| v.get_name().to_owned())
}

/// As a user writes it.
fn plain_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "none".into(),
        other => other.to_string(),
    }
}
