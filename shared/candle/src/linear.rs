//! Linear attention with a scalar decay.

use candle_core::{D, DType, Result, Tensor};

use crate::RecurrenceOptions;
use crate::cell::{Cell, Named, checked, checked_step, each_alone, no_state, sequence, step};

/// Linear attention with a scalar decay (RetNet, simple GLA, Lightning, Mamba-2's SSD) over a sequence, behind a state or none: h, and
/// the state behind the last position.
///
/// For position t of each head, with s the scale and C the state:
///
/// ```text
/// C_t = exp(g_t) C_(t-1) + w_t k_t v_t^T
/// h_t = s C_t^T q_t
/// ```
///
/// Mamba-2's SSD has q = C, k = B, v = x, w = dt, g = dt A and s = 1. Source: Yang et al. 2024, arXiv 2312.06635; Dao and Gu 2024, arXiv
/// 2405.21060.
///
/// | | shape | type |
/// |---|---|---|
/// | `q`, `k` | \[B, NKV, S, DHQK\], DHQK a multiple of 16 up to 128 | F32, F16 or BF16 |
/// | `v` | \[B, NH, S, DHHV\], DHHV a multiple of 16 up to 1024, with gradients up to 256, NH of NKV | that of q |
/// | `g` ≤ 0, the logarithm of what is kept; none keeps all | \[B, NH, S\] | F32, F16 or BF16; kernels take it in F32 |
/// | `w` > 0, the weight of what is written; none is 1 | \[B, NH, S\] | the same |
/// | `state` → the last state | \[B, NH, DHQK, DHHV\] | F32 |
/// | → h | \[B, NH, S, DHHV\] | that of q |
///
/// Head a of v reads head a · NKV / NH of q and k, rounded down. A gradient goes to all that is given, and comes from both results. The
/// kernels are of F16 and BF16, on a Hopper GPU or the emulator, and their backward pass makes the forward pass once more. In F32
/// candle's own operations compute it, chunk by chunk, of any DHQK and DHHV.
///
/// # Errors
/// An argument of another type, shape or device; a size that no version takes; an option; what the device says.
pub fn linear_attention(
    [q, k, v]: [&Tensor; 3],
    g: Option<&Tensor>,
    w: Option<&Tensor>,
    state: Option<&Tensor>,
    options: &RecurrenceOptions,
) -> Result<(Tensor, Tensor)> {
    let (q, options) = with_positive_scale(q, options)?;
    let open = open_gate(g, v)?;
    let g = g.or(open.as_ref()).map(|g| ("g", g));
    let gates = g.into_iter().chain(w.map(|w| ("w", w)));
    let named = checked([&q, k, v], gates, state, &options, false)?;
    if q.dtype() == DType::F32 {
        return each_alone(named, &options, plain);
    }
    sequence(Cell::Linear, named, &options)
}

/// The kernels over chunks have the scale's logarithm: where it is below 0, q is the negative one.
pub(crate) fn with_positive_scale(
    q: &Tensor,
    options: &RecurrenceOptions,
) -> Result<(Tensor, RecurrenceOptions)> {
    let (q, scale) = match options.scale {
        Some(scale) if scale < 0.0 => (q.neg()?, Some(-scale)),
        scale => (q.clone(), scale),
    };
    Ok((q, RecurrenceOptions { scale, ..options.clone() }))
}

/// One position of it, for decoding: q, k \[B, NKV, DHQK\], v \[B, NH, DHHV\], g, w \[B, NH\], behind a state, or none, to h
/// \[B, NH, DHHV\] and a new state, of the type of the one that is given. A state may be of BF16 where q is. DHQK goes up to 512, and
/// kernels take F32, too. There is no gradient.
///
/// # Errors
/// As [`linear_attention`]; also where a tensor needs a gradient, and `cu_seqlens`.
pub fn linear_attention_step(
    qkv: [&Tensor; 3],
    g: Option<&Tensor>,
    w: Option<&Tensor>,
    state: Option<&Tensor>,
    options: &RecurrenceOptions,
) -> Result<(Tensor, Tensor)> {
    let open = open_gate(g, qkv[2])?;
    let g = g.or(open.as_ref()).map(|g| ("g", g));
    let gates = g.into_iter().chain(w.map(|w| ("w", w)));
    step(Cell::Linear, checked_step(Cell::Linear, qkv, gates, state, options)?, options)
}

/// Gates of all rows of v that keep everything, where none are given.
fn open_gate(g: Option<&Tensor>, v: &Tensor) -> Result<Option<Tensor>> {
    let rows = &v.dims()[..v.rank().saturating_sub(1)];
    g.is_none().then(|| Tensor::zeros(rows, DType::F32, v.device())).transpose()
}

/// The most that a decay takes away, as in the kernels: sums of larger ones would lose the digits of the gates between.
const SHUT: f64 = -1e5;

/// Positions that the plain form takes at once.
const CHUNK: usize = 64;

/// h and the last state by candle's operations, chunk by chunk: what F32 takes.
pub(crate) fn plain(named: Vec<Named>, options: &RecurrenceOptions) -> Result<(Tensor, Tensor)> {
    let of = |name: &str| named.iter().find(|(own, _)| *own == name).map(|(_, tensor)| tensor);
    let (q, k, v) = (&named[0].1, &named[1].1, &named[2].1);
    let (batch, shared, positions, keys) = q.dims4()?;
    let (_, heads, _, values) = v.dims4()?;
    let each_head = |t: &Tensor| -> Result<Tensor> {
        let spread = (batch, shared, heads / shared, positions, keys);
        t.unsqueeze(2)?.broadcast_as(spread)?.reshape((batch, heads, positions, keys))
    };
    let scale = options.scale.unwrap_or(1.0 / (keys as f64).sqrt());
    let (q, k) = ((each_head(q)? * scale)?, each_head(k)?);
    let v = match of("w") {
        Some(w) => v.broadcast_mul(&w.unsqueeze(D::Minus1)?)?,
        None => v.clone(),
    };
    let g = of("g").expect("checked tensors have it").maximum(SHUT)?.to_dtype(DType::F64)?;
    let mut state = match of("C0") {
        Some(state) => state.clone(),
        None => no_state(&named, batch)?,
    };
    let mut rows = Vec::new();
    for first in (0..positions).step_by(CHUNK) {
        let length = CHUNK.min(positions - first);
        let [x, y, z] = [&q, &k, &v].map(|t| t.narrow(2, first, length)?.contiguous());
        let (x, y, z) = (x?, y?, z?);
        // In F64: in F32 one unit in the last place behind a shut gate would be 0.008.
        let kept = g.narrow(2, first, length)?.contiguous()?.cumsum(D::Minus1)?;
        let between = kept.unsqueeze(3)?.broadcast_sub(&kept.unsqueeze(2)?)?;
        // Of later positions a number above 0, which may be ∞: they are left out ahead of the exponential.
        let causal = Tensor::tril2(length, DType::U8, q.device())?;
        let causal = causal.broadcast_as((batch, heads, length, length))?;
        let shut = between.zeros_like()?.affine(0.0, f64::NEG_INFINITY)?;
        let decay = causal.where_cond(&between, &shut)?.to_dtype(DType::F32)?.exp()?;
        let since = kept.to_dtype(DType::F32)?.exp()?.unsqueeze(3)?;
        let all = kept.narrow(2, length - 1, 1)?;
        let left = all.broadcast_sub(&kept)?.to_dtype(DType::F32)?.exp()?.unsqueeze(3)?;
        let pairs = x.matmul(&y.t()?.contiguous()?)?.mul(&decay)?;
        let of_state = x.broadcast_mul(&since)?.matmul(&state)?;
        rows.push((pairs.matmul(&z)? + of_state)?);
        let written = y.broadcast_mul(&left)?.t()?.contiguous()?.matmul(&z)?;
        let whole = all.to_dtype(DType::F32)?.exp()?.reshape((batch, heads, 1, 1))?;
        state = (state.broadcast_mul(&whole)? + written)?;
    }
    let h = match rows.is_empty() {
        true => Tensor::zeros((batch, heads, positions, values), DType::F32, v.device())?,
        false => Tensor::cat(&rows, 2)?,
    };
    Ok((h, state))
}
