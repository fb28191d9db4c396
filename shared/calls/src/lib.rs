//! A call of a framework, on the framework's own tensors: what the packages for PyTorch and for candle share.
//!
//! A [`Pass`] is asked for with the shapes of tensors that somebody else owns; [`choose()`] takes the version that suits
//! the device, and a [`Planned`] runs it on their memory.
//!
//! ```text
//! names, types, shapes, options ──choose──▶ version ──plan──▶ Planned ──addresses, stream──▶ run
//! ```

pub mod away;
pub mod devices;
pub mod mlp;
pub mod planned;

pub use away::run_away;
pub use devices::device;
pub use lab_operations::choose::Candidate;
pub use lab_operations::{Pass, choose};
pub use mlp::Training;
pub use planned::{Planned, Rooms};
