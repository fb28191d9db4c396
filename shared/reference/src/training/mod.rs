//! What training needs around a network: losses, optimisers, learning rates, first weights. All
//! with PyTorch's meaning of every constant.

mod init;
mod loss;
mod optimizer;
mod schedule;

pub use init::xavier_uniform_bound;
pub use loss::{cross_entropy, mean_squared_error};
pub use optimizer::{Adam, AdamState, Sgd, clip_factor, global_norm};
pub use schedule::{cosine, linear_warm_up, step_decay};

#[cfg(test)]
mod tests;
