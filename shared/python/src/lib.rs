//! The vLSTM kernels for programs whose tensors are PyTorch's: the native half of the Python package `vlstm`.
//!
//! With the feature `extension` this crate is the Python module `vlstm._native`: [`lab_calls`] with names for Python. Without it
//! no Python is needed to build it, and nothing is in it.

#[cfg(feature = "extension")]
mod module;
