//! Training: a model, its data, and the steps of an optimizer, all on the device.
//!
//! [`Trainer`] takes pairs of neighbouring tokens of a [`Data`] in random order, in batches, and steps
//! down the gradient of their loss. What a step needs is on the device, where it stands in the epoch
//! too, so that its launches are recorded once and repeated with nothing but their start from the host
//! (a CUDA graph). The results are bit for bit the same at every run on a device, and a run that goes on
//! from a [`Checkpoint`] gives what it would have given without the stop.
//!
//! [`Evaluator`] gives losses without training, and what may follow a few tokens.
//!
//! ```
//! use lab_device::Device;
//! use lab_mlp::training::{Config, Data, Evaluator, Model, Optimizer, Schedule, Trainer};
//! // 0 1 2 3 4 0 1 2 …
//! let data = Data { tokens: (0..200).map(|t| t % 5).collect(), vocabulary: 5 };
//! let device = Device::emulator()?;
//! let model = Model { vocabulary: 5, embedding: 4, hidden: 8 };
//! let config = Config {
//!     batch: 20,
//!     optimizer: Optimizer::adam(),
//!     schedule: Schedule::constant(0.05),
//!     ..Config::default()
//! };
//! let mut trainer = Trainer::new(&device, model, config, &data, &data.starts())?;
//! while trainer.epoch()?.loss > 0.1 {}
//! let mut evaluator = Evaluator::new(&device, model, config, &data)?;
//! evaluator.load(&trainer.parameters()?)?;
//! assert!(evaluator.loss(&[0, 1, 2])? < 0.1);
//! assert!(evaluator.predict(&[3])?[4] > 0.9);
//! # Ok::<(), lab_mlp::training::Error>(())
//! ```

mod checkpoint;
pub(crate) mod checks;
mod config;
mod data;
mod evaluate;
mod model;
mod step;

pub use checkpoint::Checkpoint;
pub use config::{Config, Decay, Optimizer, Schedule};
pub use data::Data;
pub use evaluate::Evaluator;
pub use lab_training::{Epoch, Error, Position};
pub use model::Model;

/// A model in training.
pub type Trainer = lab_training::Trainer<step::Step>;
