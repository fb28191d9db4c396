//! The vLSTM kernels for programs whose tensors are PyTorch's: the native half of the Python package `vlstm`.
//!
//! A [`Pass`] is asked for with the shapes of tensors that somebody else owns; [`choose()`] takes the version that suits
//! the device, and a [`Planned`] runs it on their memory. With the feature `extension` this crate is the Python module
//! `vlstm._native`; without it no Python is needed to build and to test it.
//!
//! ```text
//! names, types, shapes, options ──choose──▶ version ──plan──▶ Planned ──addresses, stream──▶ run
//! ```

pub mod choose;
pub mod devices;
#[cfg(feature = "extension")]
mod module;
pub mod planned;

pub use choose::{Pass, choose};
pub use planned::{Planned, Rooms};
