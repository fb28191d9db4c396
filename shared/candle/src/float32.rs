//! States in F32, which no version of the kernels takes: by more positions before, and candle's own operations behind.
//!
//! A state is the sum of what positions have written: C = sum of k vT, n = sum of k, all with the weight exp(m). Any state is that
//! of two positions for each key: one writes its row of C, the other makes up what n lacks.

use candle_core::{D, DType, Result, Tensor};

use crate::MlstmState;

/// Of a forget gate that is open: logsigmoid(100) is 0 in F32, and so is its gradient.
const OPEN: f32 = 100.0;

/// q, k, v, i, f with 2 DHQK positions before, which leave the state.
pub(crate) fn as_positions(tensors: &[Tensor; 5], state: &MlstmState) -> Result<[Tensor; 5]> {
    let [q, k, v, i, f] = tensors;
    let MlstmState { c, n, m } = state;
    let (batch, heads, _, keys) = q.dims4()?;
    let device = q.device();
    // About as large as n, so that n is left with no more error than its own rounding.
    let size = n.detach().abs()?.max_keepdim(D::Minus1)?;
    let ones = size.ones_like()?;
    let is_size = size.gt(0f32)?.mul(&size.lt(f32::INFINITY)?)?;
    let size = is_size.where_cond(&size, &ones)?;
    let diagonal = Tensor::eye(keys, DType::F32, device)?;
    let on_diagonal = |x: &Tensor| x.unsqueeze(D::Minus1)?.broadcast_mul(&diagonal);
    let writing = on_diagonal(&size.broadcast_as(n.shape())?)?;
    let lacking = on_diagonal(&n.broadcast_sub(&size)?)?;
    let first_k = Tensor::cat(&[writing, lacking], 2)?;
    let first_v = c.broadcast_div(&size.unsqueeze(D::Minus1)?)?;
    let first_v = Tensor::cat(&[&first_v, &c.zeros_like()?.detach()], 2)?;
    let rows = (batch, heads, 2 * keys);
    let first_i = m.detach().unsqueeze(D::Minus1)?.broadcast_as(rows)?;
    let first_q = Tensor::zeros((batch, heads, 2 * keys, keys), DType::F32, device)?;
    let first_f = Tensor::full(OPEN, rows, device)?;
    let joined = |first: &Tensor, then: &Tensor| Tensor::cat(&[first, then], 2);
    Ok([
        joined(&first_q, q)?,
        joined(&first_k, k)?,
        joined(&first_v, v)?,
        joined(&first_i, i)?,
        joined(&first_f, f)?,
    ])
}

/// A forget gate of at most this starts anew, as in the kernels.
const SHUT: f64 = -1e5;

/// Larger ones are as open: a sum of it and ∞ would be no number.
const WIDE_OPEN: f64 = 1e5;

/// log(1 / (1 + exp(−x))), for every x there is. Its gradient is that of one formula on both sides of 0 and at 0, where that of |x| is 1.
pub(crate) fn log_sigmoid(x: &Tensor) -> Result<Tensor> {
    let x = x.minimum(WIDE_OPEN)?;
    let positive = x.detach().maximum(0.0)?;
    let less = x.sub(&positive)?;
    less.sub(&(less.exp()? + positive.neg()?.exp()?)?.log()?)
}

/// The state behind the last position; no gradient goes through m.
pub(crate) fn last_state(tensors: &[Tensor; 5]) -> Result<MlstmState> {
    let [_, k, v, i, f] = tensors;
    // In F64: a sum over thousands of positions, of which differences are taken.
    let kept = log_sigmoid(&f.to_dtype(DType::F64)?.maximum(SHUT)?)?;
    let up_to = kept.cumsum(D::Minus1)?;
    let positions = kept.dim(D::Minus1)?;
    let behind = up_to.narrow(2, positions - 1, 1)?.broadcast_sub(&up_to)?;
    let exponents = behind.add(&i.to_dtype(DType::F64)?)?;
    let m = exponents.detach().max_keepdim(D::Minus1)?;
    // Where all is forgotten there is nothing to be seen from.
    let from = m.gt(f64::NEG_INFINITY)?.where_cond(&m, &m.zeros_like()?)?;
    let weights = exponents.broadcast_sub(&from)?.exp()?.to_dtype(DType::F32)?;
    let weighted = k.broadcast_mul(&weights.unsqueeze(D::Minus1)?)?;
    Ok(MlstmState {
        c: weighted.transpose(2, 3)?.contiguous()?.matmul(&v.contiguous()?)?,
        n: weighted.sum(2)?,
        m: m.squeeze(2)?.to_dtype(DType::F32)?,
    })
}
