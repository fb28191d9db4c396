//! The mLSTM with sigmoid gates and without a normaliser.

use candle_core::{DType, Result, Tensor};

use crate::RecurrenceOptions;
use crate::cell::{Cell, Named, checked, checked_step, each_alone, sequence, step};
use crate::float32::log_sigmoid;
use crate::linear::{plain, with_positive_scale};

/// The mLSTM with a sigmoid for its input gate (mLSTMsig) and without a normaliser over a sequence, behind a state or none: h, and the
/// state behind the last position.
///
/// For position t of each head, with s the scale and C the state:
///
/// ```text
/// C_t = sigmoid(f_t) C_(t-1) + sigmoid(i_t) k_t v_t^T
/// h_t = s C_t^T q_t
/// ```
///
/// A norm over the head usually follows. With a normaliser of at least 1 it is [`mlstm()`](crate::mlstm()) with the logarithm of
/// sigmoid(i) for i. Source: Beck et al. 2025, arXiv 2503.14376.
///
/// | | shape | type |
/// |---|---|---|
/// | `q`, `k` | \[B, NKV, S, DHQK\], DHQK a multiple of 16 up to 128 | F32, F16 or BF16 |
/// | `v` | \[B, NH, S, DHHV\], DHHV a multiple of 16 up to 1024, with gradients up to 256, NH of NKV | that of q |
/// | `i`, `f`, before their activations | \[B, NH, S\] | F32, F16 or BF16; kernels take them in F32 |
/// | `state` → the last state | \[B, NH, DHQK, DHHV\] | F32 |
/// | → h | \[B, NH, S, DHHV\] | that of q |
///
/// All else is as of [`linear_attention`](crate::linear_attention()), of which it is a case.
///
/// # Errors
/// An argument of another type, shape or device; a size that no version takes; an option; what the device says.
pub fn mlstm_sig(
    [q, k, v]: [&Tensor; 3],
    [i, f]: [&Tensor; 2],
    state: Option<&Tensor>,
    options: &RecurrenceOptions,
) -> Result<(Tensor, Tensor)> {
    let (q, options) = with_positive_scale(q, options)?;
    let named = checked([&q, k, v], [("f", f), ("i", i)], state, &options, false)?;
    if q.dtype() == DType::F32 {
        let as_linear = named.into_iter().map(activated).collect::<Result<_>>()?;
        return each_alone(as_linear, &options, plain);
    }
    sequence(Cell::Sigmoid, named, &options)
}

/// One position of it, for decoding: q, k \[B, NKV, DHQK\], v \[B, NH, DHHV\], i, f \[B, NH\], behind a state, or none, to h
/// \[B, NH, DHHV\] and a new state, of the type of the one that is given. A state may be of BF16 where q is. DHQK goes up to 512, and
/// kernels take F32, too. There is no gradient.
///
/// # Errors
/// As [`mlstm_sig()`]; also where a tensor needs a gradient, and `cu_seqlens`.
pub fn mlstm_sig_step(
    qkv: [&Tensor; 3],
    [i, f]: [&Tensor; 2],
    state: Option<&Tensor>,
    options: &RecurrenceOptions,
) -> Result<(Tensor, Tensor)> {
    let gates = [("f", f), ("i", i)];
    step(Cell::Sigmoid, checked_step(Cell::Sigmoid, qkv, gates, state, options)?, options)
}

/// A gate as linear attention has it, and all else as it is. The decay is of F64, which its sums need.
fn activated((name, tensor): Named) -> Result<Named> {
    Ok(match name {
        "f" => ("g", log_sigmoid(&tensor.to_dtype(DType::F64)?)?),
        "i" => ("w", candle_nn::ops::sigmoid(&tensor)?),
        _ => (name, tensor),
    })
}
