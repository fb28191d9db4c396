//! What all trainings share: a [`Trainer`], which repeats the [`Step`] of a model; optimizers and learning
//! rates, as a user chooses them; and the [`Checkpoint`].

#![forbid(unsafe_code)]

mod checkpoint;
mod course;
pub mod dtype_name;
mod error;
mod ranks;
pub mod scaling;
mod settings;
pub mod testing;
mod trainer;
mod update;

pub use checkpoint::{BadCheckpoint, Checkpoint, Position, Trained, checksum};
pub use course::{Configuration, Course};
pub use error::Error;
pub use ranks::{Ranks, SumPiece, Sums};
pub use settings::{Decay, Optimizer, Schedule, count, parameters_fit, positive, share};
pub use trainer::{Epoch, EpochSlots, Phase, Step, Trainer};
pub use update::Update;
