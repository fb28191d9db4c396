//! Operations: what layers, models and frameworks' calls are made of.
//!
//! An operation is a struct of slots and sizes. `add_forward` adds its launches to a plan and returns the slots of what they
//! compute and what they have saved; `add_backward` takes that and the gradient from above, and returns the gradients. Which version
//! of a kernel idea does it, [`choose()`] says, by sizes, type and device; or the caller does, by its name.
//!
//! ```text
//! slots, sizes, options ── choose ──▶ version ── plan, cut in two ──▶ parts ── Plan::include ──▶ launches of the caller's plan
//! ```
#![forbid(unsafe_code)]

mod attention;
mod attention_checks;
mod attention_rows;
mod attention_step;
mod check_data;
mod checks;
pub mod choose;
mod composed_checks;
mod cut;
mod gated_delta;
mod gated_delta_checks;
mod gated_delta_step;
mod import_checks;
mod packed_checks;
mod recurrent;
mod recurrent_checks;
mod rows;
mod saved;
mod state_checks;
mod step;
mod vlstm;

pub use attention::{
    Attention, AttentionGradients, AttentionOutputs, AttentionSizes, SavedAttention,
};
pub use attention_rows::{AttentionRows, SavedAttentionRows};
pub use attention_step::AttentionStep;
pub use checks::SUITE;
pub use choose::{Pass, choose, choose_attention};
pub use gated_delta::{
    GatedDelta, GatedDeltaGradients, GatedDeltaOutputs, GatedDeltaSizes, GatedDeltaUpstream,
    SavedGatedDelta,
};
pub use gated_delta_step::GatedDeltaStep;
pub use recurrent::{
    Recurrent, RecurrentCell, RecurrentGradients, RecurrentOutputs, RecurrentSizes,
    RecurrentUpstream, SavedRecurrent,
};
pub use rows::{GateGradients, Rows, SavedRows, VlstmRows};
pub use saved::{Export, Saved, SavedTensor};
pub use step::VlstmStep;
pub use vlstm::{Gradients, NormalizerGrad, Outputs, Sizes, Upstream, Vlstm};
