//! What all trainings share: optimizers and learning rates, as a user chooses them; and the checkpoint.

mod checkpoint;
mod settings;

pub use checkpoint::{BadCheckpoint, Checkpoint, Position, Trained};
pub use settings::{Decay, Optimizer, Schedule, count, positive, share};
