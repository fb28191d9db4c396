//! The mLSTM of xLSTM (vLSTM), the gated delta rule, linear attention and the LSTM as operations of [candle](candle_core), with gradients.
//!
//! | | |
//! |---|---|
//! | [`mlstm()`] | q, k, v and the gates of a sequence → h |
//! | [`mlstm_with_state`] | the same behind a state → h, and the state behind the last position |
//! | [`gated_delta_rule`] | q, k, v and the gates of a sequence, behind a state or none → h, and the last state |
//! | [`linear_attention`] | the same with weights in place of beta, and without erasing: RetNet, simple GLA, Mamba-2's SSD |
//! | [`mlstm_sig()`] | the same with sigmoid gates: mLSTMsig without a normaliser |
//! | [`gated_delta_step`], [`linear_attention_step`], [`mlstm_sig_step`] | one position behind a state, for decoding, without a gradient |
//! | [`Lstm`] | a layer with the parameters of [`candle_nn::LSTM`], all steps in one launch |
//!
//! Tensors on the CPU run on the lab's emulator of a GPU, which is thousands of times slower than one: for tests. With the
//! feature `cuda`, tensors on a CUDA device run there, on the tensors' own memory and in candle's stream: nothing is copied but
//! tensors with gaps, and the host waits for nothing.
//!
//! ```
//! use candle_core::{Device, Result, Tensor, Var};
//! use vlstm_candle::{MlstmOptions, mlstm};
//!
//! # fn main() -> Result<()> {
//! let device = &Device::Cpu;
//! let (batch, heads, positions, keys, values) = (1, 2, 8, 16, 16);
//! let q = Var::randn(0f32, 1., (batch, heads, positions, keys), device)?;
//! let k = Tensor::randn(0f32, 1., (batch, heads, positions, keys), device)?;
//! let v = Tensor::randn(0f32, 1., (batch, heads, positions, values), device)?;
//! let i = Tensor::randn(0f32, 1., (batch, heads, positions), device)?;
//! let f = Tensor::full(3f32, (batch, heads, positions), device)?;
//! let h = mlstm(&q, &k, &v, &i, &f, &MlstmOptions::default())?;
//! assert_eq!(h.dims(), [batch, heads, positions, values]);
//! let gradients = h.sqr()?.sum_all()?.backward()?;
//! assert_eq!(gradients.get(&q).unwrap().dims(), q.dims());
//! # Ok(())
//! # }
//! ```
//!
//! # Errors
//! A [`candle_core::Error`] names the argument, what was expected and what came: `k: expected F32, as q, got F16`. Nothing is
//! computed then.
//!
//! # Several inputs, several outputs
//! candle's custom operations take three tensors at most and return one. An mLSTM takes up to eight and returns up to four. To
//! pack them into one tensor would copy all of them, and their types differ. Here nothing is packed: the kernels run on the
//! tensors as they are, and a chain of operations on a number, the *token*, tells candle's graph what depends on what:
//!
//! ```text
//! inputs:   q  k     v  i     f
//!           │  │     │  │     │
//! token ──▶ Enter ─▶ Enter ─▶ Enter ──▶ token ──▶ Leave ──▶ h
//!                                         └─────▶ Leave ──▶ c
//! ```
//!
//! candle walks back through it from the right: each `Leave` keeps the gradient of its output, the last `Enter` runs the kernels
//! of the backward pass once, and each `Enter` hands out the gradients of its own inputs.
//!
//! # cudarc
//! candle-core 0.11 links the CUDA driver (cudarc 0.19 with `dynamic-linking`); the lab loads it when it is first used, so that its
//! programs also start on a machine without one. cudarc refuses `dynamic-linking` beside `dynamic-loading`. The lab therefore
//! asks for `fallback-dynamic-loading`: it loads the driver unless somebody else in the program wants it linked. The version of
//! CUDA whose interface cudarc offers is then the lab's, 12.0, which later drivers and libraries also have.

mod cell;
mod float32;
mod gated_delta;
mod kernels;
mod linear;
mod lstm;
mod mlstm;
mod mlstm_sig;
mod operation;
mod places;

pub use cell::RecurrenceOptions;
pub use gated_delta::{gated_delta_rule, gated_delta_step};
pub use linear::{linear_attention, linear_attention_step};
pub use lstm::Lstm;
pub use mlstm::{MlstmOptions, MlstmState, NormalizerGrad, mlstm, mlstm_with_state};
pub use mlstm_sig::{mlstm_sig, mlstm_sig_step};

/// An error that names the argument, what was expected and what came.
fn refuse(
    argument: &str,
    expected: impl std::fmt::Display,
    got: impl std::fmt::Display,
) -> candle_core::Error {
    candle_core::Error::Msg(format!("{argument}: expected {expected}, got {got}")).bt()
}
