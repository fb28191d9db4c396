//! Training: a network with a linear layer on it, its data, and the steps of an optimizer, all on the
//! device.
//!
//! [`Trainer`] takes windows of a [`Data`] in random order, in batches, and steps down the gradient of
//! their loss. What a step needs is on the device, where it stands in the epoch too, so that its
//! launches are recorded once and repeated with nothing but their start from the host (a CUDA graph).
//! The results are bit for bit the same at every run on a device, and a run that goes on from a
//! [`Checkpoint`] gives what it would have given without the stop.
//!
//! [`Evaluator`] gives the network's outputs and losses without training; [`Stream`] goes step by step.
//!
//! ```
//! use lab_device::Device;
//! use lstm_fused::Network;
//! use lab_lstm::training::{Config, Data, Model, Trainer};
//! let values: Vec<f64> = (0..60).map(|t| (f64::from(t) * 0.3).sin()).collect();
//! let data = Data::Series { values, columns: 1 };
//! let device = Device::emulator()?;
//! let model = Model::forecast(Network::lstm(1, 4));
//! let config = Config { window: 8, batch: 16, ..Config::default() };
//! let mut trainer = Trainer::new(&device, model, config, &data, &data.starts(8, 1))?;
//! let first = trainer.epoch()?;
//! let second = trainer.epoch()?;
//! assert!(second.loss < first.loss);
//! # Ok::<(), lab_lstm::training::Error>(())
//! ```

mod checkpoint;
pub(crate) mod checks;
mod config;
mod data;
mod evaluate;
mod flat;
mod model;
mod reference;
mod step;
mod stream;

pub use checkpoint::Checkpoint;
pub use config::{Config, Decay, LossScale, Optimizer, Schedule};
pub use data::Data;
pub use evaluate::Evaluator;
pub use lab_training::{Epoch, Error, Position};
pub use model::{Head, Model};
pub use stream::Stream;

/// A model in training.
pub type Trainer = lab_training::Trainer<step::Step>;
