//! The gated delta rule.

use candle_core::{DType, Result, Tensor};

use crate::RecurrenceOptions;
use crate::cell::{Cell, checked, checked_step, each_alone, sequence, step};

/// The gated delta rule (Gated DeltaNet, Qwen3-Next) over a sequence, behind a state or none: h, and the state behind the last
/// position.
///
/// For position t of each head, with s the scale and C the state:
///
/// ```text
/// D_t = exp(g_t) C_(t-1)
/// u_t = beta_t (v_t - D_t^T k_t)
/// C_t = D_t + k_t u_t^T
/// h_t = s C_t^T q_t
/// ```
///
/// Source: Yang et al. 2024, arXiv 2412.06464.
///
/// | | shape | type |
/// |---|---|---|
/// | `q`, `k`, keys of length one | \[B, NKV, S, DHQK\], DHQK a multiple of 16 up to 256 | F32, F16 or BF16 |
/// | `v` | \[B, NH, S, DHHV\], DHHV a multiple of 16 up to 1024, NH of NKV | that of q |
/// | `g` ≤ 0, the logarithm of what is kept, and `beta` | \[B, NH, S\] | F32, F16 or BF16; kernels take them in F32 |
/// | `state` → the last state | \[B, NH, DHQK, DHHV\] | F32 |
/// | → h | \[B, NH, S, DHHV\] | that of q |
///
/// Head a of v reads head a · NKV / NH of q and k, rounded down. Tensors with gaps are copied. A gradient goes to all six, and comes
/// from both results; it is differentiated once. The backward pass makes the forward pass once more.
///
/// Packed sequences, which the options' `cu_seqlens` says, are of F16 and BF16, on a GPU from Ampere on or the emulator; in F32
/// each is a call of its own.
///
/// # Errors
/// An argument of another type, shape or device; a size that no version takes; an option; what the device says.
pub fn gated_delta_rule(
    qkv: [&Tensor; 3],
    [g, beta]: [&Tensor; 2],
    state: Option<&Tensor>,
    options: &RecurrenceOptions,
) -> Result<(Tensor, Tensor)> {
    let named = checked(qkv, [("g", g), ("beta", beta)], state, options, false)?;
    let call = |named, options: &_| sequence(Cell::Delta, named, options);
    if qkv[0].dtype() == DType::F32 {
        return each_alone(named, options, call);
    }
    call(named, options)
}

/// One position of it, for decoding: q, k \[B, NKV, DHQK\], v \[B, NH, DHHV\], g, beta \[B, NH\], behind a state, or none, to h
/// \[B, NH, DHHV\] and a new state, of the type of the one that is given. A state may be of BF16 where q is. There is no gradient.
///
/// # Errors
/// As [`gated_delta_rule`]; also where a tensor needs a gradient, and `cu_seqlens`.
pub fn gated_delta_step(
    qkv: [&Tensor; 3],
    [g, beta]: [&Tensor; 2],
    state: Option<&Tensor>,
    options: &RecurrenceOptions,
) -> Result<(Tensor, Tensor)> {
    let gates = [("g", g), ("beta", beta)];
    step(Cell::Delta, checked_step(Cell::Delta, qkv, gates, state, options)?, options)
}
