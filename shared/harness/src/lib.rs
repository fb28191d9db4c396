//! What every stage shares.
//!
//! A [`Version`] is one kernel idea: it knows its inputs, its reference, its cost and its error
//! bounds, and can be prepared to run on a device. Tests, benches, the tool and the book loop over
//! versions and know nothing of any particular one.
//!
//! ```text
//! Problem (sizes, dtype, seed, options) ──inputs()──▶ Tensors ──prepare(device)──▶ Prepared
//!                                                       │                 launch(), outputs()
//!                                                       └─reference() in f64 ──compare──▶ Report
//! ```

pub mod agreement;
pub mod compare;
pub mod device_checks;
pub mod error;
pub mod launch_cost;
pub mod lstm;
pub mod mlp;
pub mod peer;
pub mod posed;
pub mod problem;
pub mod program;
pub mod progress;
pub mod qkv;
pub mod record;
pub mod roofline;
pub mod suite;
pub mod tensor;
pub mod tiling;
pub mod timing;
pub mod tuned;
pub mod version;
pub mod vlstm;

pub use compare::{Comparison, compare};
pub use error::Error;
pub use peer::{Peer, PeerInfo, Place};
pub use posed::Posed;
pub use problem::{Dims, Options, Problem};
pub use program::Program;
pub use tensor::{Tensor, Tensors};
pub use tiling::Tiling;
pub use version::{
    Cost, Dim, Expected, Host, Info, Input, Mistake, Output, Prepared, Setting, Stage, Version, run,
};
