//! The vLSTM (the mLSTM of xLSTM) in its parallel form, and its gradients.
//!
//! With F_t = Σ_{τ ≤ t} logsigmoid(f_τ), for each position i of a head and all j ≤ i
//!
//! ```text
//! D̃_ij = F_i − F_j + i_j          m_i = max_j D̃_ij
//! C̃_ij = (q_i · k_j / √DHQK) exp(D̃_ij − m_i)
//! l_i  = Σ_j C̃_ij                 n_i = max(|l_i|, exp(−m_i))
//! h_i  = Σ_j C̃_ij v_j / (n_i + ε)
//! ```
//!
//! With a state C₀, n₀, m₀ of what came before, as a first position would have left it whose exponent
//! at i is F_i + m₀:
//!
//! ```text
//! m_i  = max(F_i + m₀, max_j D̃_ij)         β_i = exp(F_i + m₀ − m_i)
//! l_i  = Σ_j C̃_ij + β_i (n₀ · q_i) / √DHQK
//! h_i  = (Σ_j C̃_ij v_j + β_i C₀ᵀ q_i / √DHQK) / (n_i + ε)
//! m_N  = m_S      γ = exp(F_S + m₀ − m_N)      α_j = exp(D̃_Sj − m_N)
//! C_N  = γ C₀ + Σ_j α_j k_j v_jᵀ              n_N = γ n₀ + Σ_j α_j k_j
//! ```
//!
//! C and n are without 1 / √DHQK, and smaller by exp(m) than the sums that they stand for. No state is
//! C₀ = 0, n₀ = 0, m₀ = −∞.
//!
//! Beck et al. 2024, "xLSTM: Extended Long Short-Term Memory", arXiv 2405.04517, appendix A.

mod pieces;

use rayon::prelude::*;

use crate::matmul::matmul;

pub use self::pieces::{backward_in_pieces, forward_in_pieces};

/// The sizes of a head.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Positions, S: rows of q, k, v and h.
    pub positions: usize,
    /// DHQK: columns of q and k.
    pub qk: usize,
    /// DHHV: columns of v and h.
    pub hv: usize,
}

/// What goes in: heads one after the other, each row-major.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// `[heads, S, DHQK]`
    pub q: &'a [f64],
    /// `[heads, S, DHQK]`
    pub k: &'a [f64],
    /// `[heads, S, DHHV]`
    pub v: &'a [f64],
    /// Input gate pre-activations, `[heads, S]`.
    pub i: &'a [f64],
    /// Forget gate pre-activations, `[heads, S]`.
    pub f: &'a [f64],
}

/// What comes out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outputs {
    /// `[heads, S, DHHV]`
    pub h: Vec<f64>,
    /// The largest exponent of each row, `[heads, S]`.
    pub m: Vec<f64>,
    /// The normaliser of each row, `[heads, S]`.
    pub n: Vec<f64>,
}

/// What positions leave to those that follow them: heads one after the other, each row-major.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct State {
    /// C, `[heads, DHQK, DHHV]`, smaller by exp(m) than Σ k vᵀ with all gates.
    pub c: Vec<f64>,
    /// n, `[heads, DHQK]`, smaller alike.
    pub n: Vec<f64>,
    /// The largest exponent, `[heads]`; −∞ where nothing was written.
    pub m: Vec<f64>,
}

/// The gradient of a loss by each input, given that by h.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gradients {
    /// `[heads, S, DHQK]`
    pub dq: Vec<f64>,
    /// `[heads, S, DHQK]`
    pub dk: Vec<f64>,
    /// `[heads, S, DHHV]`
    pub dv: Vec<f64>,
    /// `[heads, S]`
    pub di: Vec<f64>,
    /// `[heads, S]`
    pub df: Vec<f64>,
}

/// The gradient by a state; m is a constant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StateGradient {
    /// As [`State::c`].
    pub c: Vec<f64>,
    /// As [`State::n`].
    pub n: Vec<f64>,
}

/// Whether the gradient goes through the normaliser n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormalizerGrad {
    /// n is held constant: exact where a norm over the head follows, which takes the scale of a row
    /// away; what Tiled Flash Linear Attention (arXiv 2503.14376) does.
    Constant,
    /// The gradient of h as it is.
    Exact,
}

/// log(1 / (1 + exp(−x))), for every x there is.
pub fn log_sigmoid(x: f64) -> f64 {
    x.min(0.0) - (-x.abs()).exp().ln_1p()
}

/// A forget gate of at most this, −∞ too, starts anew: nothing of what was before is left, whatever the input gates are.
pub const SHUT: f64 = -1e5;

/// Rows that are computed at a time: all of them would be S² numbers.
const ROWS: usize = 1024;

impl Sizes {
    fn heads(&self, x: Inputs<'_>) -> usize {
        let heads = x.i.len() / self.positions;
        let rows = heads * self.positions;
        let lengths = [x.q.len(), x.k.len(), x.v.len(), x.i.len(), x.f.len()];
        assert_eq!(
            lengths,
            [rows * self.qk, rows * self.qk, rows * self.hv, rows, rows],
            "q k v i f"
        );
        heads
    }

    /// The state of `heads` heads before any position.
    pub fn no_state(&self, heads: usize) -> State {
        State {
            c: vec![0.0; heads * self.qk * self.hv],
            n: vec![0.0; heads * self.qk],
            m: vec![f64::NEG_INFINITY; heads],
        }
    }

    fn head<'a>(&self, x: Inputs<'a>, head: usize) -> Inputs<'a> {
        let part = |all: &'a [f64], columns: usize| {
            &all[head * self.positions * columns..][..self.positions * columns]
        };
        Inputs {
            q: part(x.q, self.qk),
            k: part(x.k, self.qk),
            v: part(x.v, self.hv),
            i: part(x.i, 1),
            f: part(x.f, 1),
        }
    }
}

fn transposed(x: &[f64], columns: usize) -> Vec<f64> {
    (0..columns).flat_map(|c| x.iter().skip(c).step_by(columns).copied()).collect()
}

/// exp(exponent − largest); 0 of −∞, which is also the largest of nothing.
fn weight(exponent: f64, largest: f64) -> f64 {
    if exponent == f64::NEG_INFINITY { 0.0 } else { (exponent - largest).exp() }
}

/// Some rows of a head: C̃ and what belongs to it.
struct Rows {
    first: usize,
    count: usize,
    /// How much of the state is left at each row: β.
    kept: Vec<f64>,
    /// exp(D̃ − m), 0 behind the diagonal, `[count, S]`.
    weights: Vec<f64>,
    /// C̃, `[count, S]`.
    c: Vec<f64>,
    m: Vec<f64>,
    l: Vec<f64>,
}

/// The rows of a head behind a state whose largest exponent is `m0`, some at a time.
fn rows(x: Inputs<'_>, m0: f64, sizes: Sizes) -> impl Iterator<Item = Rows> {
    let Sizes { positions, qk, .. } = sizes;
    // Of each position the last one that starts anew, and F from there on.
    let mut forgotten = Vec::with_capacity(positions);
    let (mut start, mut sum) = (None, 0.0);
    for (t, &f) in x.f.iter().enumerate() {
        if f <= SHUT {
            (start, sum) = (Some(t), 0.0)
        } else {
            sum += log_sigmoid(f)
        }
        forgotten.push((start, sum));
    }
    let (kt, scale) = (transposed(x.k, qk), 1.0 / (qk as f64).sqrt());
    (0..positions).step_by(ROWS).map(move |first| {
        let count = ROWS.min(positions - first);
        let mut c = matmul(&x.q[first * qk..][..count * qk], &kt, count, positions, qk);
        let (mut weights, mut kept) = (vec![0.0; c.len()], Vec::new());
        let (mut m, mut l) = (Vec::new(), Vec::new());
        for (row, (c, weights)) in
            c.chunks_mut(positions).zip(weights.chunks_mut(positions)).enumerate()
        {
            let i = first + row;
            let (start, sum) = forgotten[i];
            let exponent = |j: usize| match forgotten[j] {
                (same, before) if same == start => sum - before + x.i[j],
                _ => f64::NEG_INFINITY,
            };
            let of_state = if start.is_none() { sum + m0 } else { f64::NEG_INFINITY };
            let largest = (0..=i).map(exponent).fold(of_state, f64::max);
            (0..=i).for_each(|j| weights[j] = weight(exponent(j), largest));
            kept.push(weight(of_state, largest));
            c.iter_mut().zip(weights.iter()).for_each(|(c, w)| *c *= scale * w);
            m.push(largest);
            l.push(c.iter().sum());
        }
        Rows { first, count, kept, weights, c, m, l }
    })
}

/// h, m and n.
///
/// ```
/// use lab_reference::vlstm::{Inputs, Sizes, forward};
/// // One position: D̃ = i, so that h = (q·k) v / max(|q·k|, exp(−i)).
/// let x = Inputs { q: &[3.0], k: &[2.0], v: &[5.0], i: &[0.0], f: &[-1.0] };
/// let out = forward(x, Sizes { positions: 1, qk: 1, hv: 1 }, 0.0);
/// assert_eq!((out.h[0], out.m[0], out.n[0]), (5.0, 0.0, 6.0));
/// ```
///
/// # Panics
/// The lengths are not those of equally many heads.
pub fn forward(x: Inputs<'_>, sizes: Sizes, epsilon: f64) -> Outputs {
    forward_from(x, &sizes.no_state(sizes.heads(x)), sizes, epsilon).0
}

/// h, m and n of positions that follow others, which have left `state`; and what these leave.
///
/// ```
/// use lab_reference::vlstm::{Inputs, Sizes, State, forward_from};
/// // As in `forward`, behind C = 1, n = 1 at the exponent 0, of which half is forgotten: with F = ln ½,
/// // m = 0, l = 6 + 3/2 and h = (6 · 5 + 3/2) / l.
/// let x = Inputs { q: &[3.0], k: &[2.0], v: &[5.0], i: &[0.0], f: &[0.0] };
/// let state = State { c: vec![1.0], n: vec![1.0], m: vec![0.0] };
/// let (out, last) = forward_from(x, &state, Sizes { positions: 1, qk: 1, hv: 1 }, 0.0);
/// assert!((out.n[0] - 7.5).abs() < 1e-12 && (out.h[0] - 31.5 / 7.5).abs() < 1e-12);
/// assert!((last.c[0] - 10.5).abs() < 1e-12 && (last.n[0] - 2.5).abs() < 1e-12);
/// ```
///
/// # Panics
/// The lengths are not those of equally many heads, or the state's are not those of as many.
pub fn forward_from(x: Inputs<'_>, state: &State, sizes: Sizes, epsilon: f64) -> (Outputs, State) {
    let Sizes { positions, qk, hv } = sizes;
    let heads = sizes.heads(x);
    let lengths = [state.c.len(), state.n.len(), state.m.len()];
    assert_eq!(lengths, [heads * qk * hv, heads * qk, heads], "C n m of the state");
    let scale = 1.0 / (qk as f64).sqrt();
    let (mut out, mut last) = (Outputs::default(), State::default());
    for head in 0..heads {
        let x = sizes.head(x, head);
        let (c0, n0) = (&state.c[head * qk * hv..][..qk * hv], &state.n[head * qk..][..qk]);
        for rows in rows(x, state.m[head], sizes) {
            let q = &x.q[rows.first * qk..][..rows.count * qk];
            let mut h = matmul(&rows.c, x.v, rows.count, hv, positions);
            let of_state = matmul(q, c0, rows.count, hv, qk);
            let along_n = matmul(q, n0, rows.count, 1, qk);
            for (row, h) in h.chunks_mut(hv).enumerate() {
                // Where nothing is left of the state, nothing of it is read: 0 · ∞ would be NaN.
                let kept = scale * rows.kept[row];
                let part = |x: f64| if kept == 0.0 { 0.0 } else { kept * x };
                let l = rows.l[row] + part(along_n[row]);
                let n = l.abs().max((-rows.m[row]).exp());
                let of_state = &of_state[row * hv..][..hv];
                h.iter_mut().zip(of_state).for_each(|(h, c)| *h = (*h + part(*c)) / (n + epsilon));
                out.n.push(n);
            }
            out.h.extend(h);
            if rows.first + rows.count == positions {
                last.m.push(rows.m[rows.count - 1]);
                let kept = rows.kept[rows.count - 1];
                let alpha = &rows.weights[(rows.count - 1) * positions..];
                let part = |x: f64| if kept == 0.0 { 0.0 } else { kept * x };
                let written: Vec<f64> =
                    x.k.chunks(qk)
                        .zip(alpha)
                        .flat_map(|(k, a)| k.iter().map(move |k| a * k))
                        .collect();
                let c = matmul(&transposed(&written, qk), x.v, qk, hv, positions);
                last.c.extend(c.iter().zip(c0).map(|(new, old)| part(*old) + new));
                let n = (0..qk).map(|a| written.iter().skip(a).step_by(qk).sum::<f64>());
                last.n.extend(n.zip(n0).map(|(new, old)| part(*old) + new));
            }
            out.m.extend(rows.m);
        }
    }
    (out, last)
}

/// h without gates and normaliser: h_i = Σ_{j ≤ i} (q_i · k_j / √DHQK) v_j.
///
/// # Panics
/// The lengths are not those of equally many heads.
pub fn forward_ungated(q: &[f64], k: &[f64], v: &[f64], sizes: Sizes) -> Vec<f64> {
    let Sizes { positions, qk, hv } = sizes;
    // D̃ = 0 wherever f never forgets and i is 0.
    let heads = v.len() / (positions * hv);
    let (i, f) = (vec![0.0; heads * positions], vec![f64::INFINITY; heads * positions]);
    let x = Inputs { q, k, v, i: &i, f: &f };
    let head = |head: usize| {
        let x = sizes.head(x, head);
        rows(x, f64::NEG_INFINITY, sizes)
            .flat_map(|r| matmul(&r.c, x.v, r.count, hv, positions))
            .collect::<Vec<_>>()
    };
    assert_eq!((q.len(), k.len()), (heads * positions * qk, heads * positions * qk), "q k v");
    let all: Vec<_> = (0..heads).into_par_iter().map(head).collect();
    all.concat()
}

/// The gradients of Σ h · `dh` by each input; m is held constant, for h does not depend on it but
/// through `epsilon`.
///
/// dF is taken as it stands, from the rows and columns of D̃'s gradient: kernels take it from
/// q · dq − k · dk, and can be held against this.
///
/// # Panics
/// The lengths are not those of equally many heads.
pub fn backward(
    x: Inputs<'_>,
    dh: &[f64],
    sizes: Sizes,
    epsilon: f64,
    through: NormalizerGrad,
) -> Gradients {
    let none = sizes.no_state(sizes.heads(x));
    let nothing = StateGradient { c: vec![0.0; none.c.len()], n: vec![0.0; none.n.len()] };
    backward_from(x, dh, &none, &nothing, sizes, epsilon, through).0
}

/// The gradients of Σ h · `dh` + Σ C_N · `last.c` + Σ n_N · `last.n`, where `state` comes before the first position:
/// by each input, and by C₀ and n₀. m is held constant, m₀ too.
///
/// With β_i, γ and α_j of the state as above, and r_i what n_i adds to the gradient of each C̃_ij:
///
/// ```text
/// dC₀ = γ dC_N + Σ_i β_i q_i (dh_i / (n_i + ε))ᵀ / √DHQK      dn₀ = γ dn_N + Σ_i β_i r_i q_i / √DHQK
/// dq_i += β_i (C₀ dh_i / (n_i + ε) + r_i n₀) / √DHQK
/// dk_j += α_j (dC_N v_j + dn_N)                               dv_j += α_j dC_Nᵀ k_j
/// ```
///
/// # Panics
/// The lengths are not those of equally many heads, or the states' are not those of as many.
pub fn backward_from(
    x: Inputs<'_>,
    dh: &[f64],
    state: &State,
    last: &StateGradient,
    sizes: Sizes,
    epsilon: f64,
    through: NormalizerGrad,
) -> (Gradients, StateGradient) {
    let Sizes { positions, qk, hv } = sizes;
    let heads = sizes.heads(x);
    assert_eq!(dh.len(), x.v.len(), "dh");
    let lengths = [state.c.len(), state.n.len(), state.m.len(), last.c.len(), last.n.len()];
    let [c_len, n_len] = [heads * qk * hv, heads * qk];
    assert_eq!(lengths, [c_len, n_len, heads, c_len, n_len], "C n m dC dn of the states");
    let scale = 1.0 / (qk as f64).sqrt();
    let (mut out, mut of_state) = (Gradients::default(), StateGradient::default());
    for head in 0..heads {
        let dh = &dh[head * positions * hv..][..positions * hv];
        let of_head = |c: &'_ [f64], n: &'_ [f64]| {
            (c[head * qk * hv..][..qk * hv].to_vec(), n[head * qk..][..qk].to_vec())
        };
        let (c0, n0) = of_head(&state.c, &state.n);
        let (dc_last, dn_last) = of_head(&last.c, &last.n);
        let x = sizes.head(x, head);
        let (vt, c0t) = (transposed(x.v, hv), transposed(&c0, hv));
        let (mut dk, mut dv) = (vec![0.0; positions * qk], vec![0.0; positions * hv]);
        let (mut di, mut d_forgotten) = (vec![0.0; positions], vec![0.0; positions]);
        let (mut dc0, mut dn0) = (vec![0.0; qk * hv], vec![0.0; qk]);
        let add = |sum: &mut [f64], part: Vec<f64>| {
            sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        };
        for rows in rows(x, state.m[head], sizes) {
            let Rows { first, count, .. } = rows;
            let q = &x.q[first * qk..][..count * qk];
            let mut h = matmul(&rows.c, x.v, count, hv, positions); // not divided yet
            let read = matmul(q, &c0, count, hv, qk);
            let read_n = matmul(q, &n0, count, 1, qk);
            let dh = &dh[first * hv..][..count * hv];
            let mut dc = matmul(dh, &vt, count, positions, hv);
            let mut ds = vec![0.0; dc.len()];
            let (mut dh_over_n, mut dh_kept) = (dh.to_vec(), dh.to_vec());
            let mut r_kept = vec![0.0; count];
            for row in 0..count {
                let at = row * hv..(row + 1) * hv;
                // Where nothing is left of the state, nothing of it is read.
                let kept = scale * rows.kept[row];
                let part = |x: f64| if kept == 0.0 { 0.0 } else { kept * x };
                h[at.clone()].iter_mut().zip(&read[at.clone()]).for_each(|(h, c)| *h += part(*c));
                let (l, m) = (rows.l[row] + part(read_n[row]), rows.m[row]);
                let n = l.abs().max((-m).exp()) + epsilon;
                let along: f64 =
                    dh[at.clone()].iter().zip(&h[at.clone()]).map(|(a, b)| a * b).sum();
                let of_n = match through {
                    NormalizerGrad::Exact if l.abs() > (-m).exp() => -l.signum() * along / (n * n),
                    _ => 0.0,
                };
                dh_over_n[at.clone()].iter_mut().for_each(|v| *v /= n);
                dh_kept[at.clone()].iter_mut().for_each(|v| *v *= kept / n);
                r_kept[row] = kept * of_n;
                let of_read: f64 = dh[at.clone()].iter().zip(&read[at]).map(|(a, b)| a * b).sum();
                d_forgotten[first + row] += part(of_read / n + of_n * read_n[row]);
                for j in 0..=first + row {
                    let cell = row * positions + j;
                    dc[cell] = dc[cell] / n + of_n;
                    ds[cell] = dc[cell] * rows.weights[cell] * scale;
                    let of_exponent = dc[cell] * rows.c[cell];
                    di[j] += of_exponent;
                    d_forgotten[j] -= of_exponent;
                    d_forgotten[first + row] += of_exponent;
                }
            }
            let mut dq = matmul(&ds, x.k, count, qk, positions);
            add(&mut dq, matmul(&dh_kept, &c0t, count, qk, hv));
            add(&mut dq, matmul(&r_kept, &n0, count, qk, 1));
            out.dq.extend(dq);
            let qt = transposed(q, qk);
            add(&mut dk, matmul(&transposed(&ds, positions), q, positions, qk, count));
            add(&mut dv, matmul(&transposed(&rows.c, positions), &dh_over_n, positions, hv, count));
            add(&mut dc0, matmul(&qt, &dh_kept, qk, hv, count));
            add(&mut dn0, matmul(&qt, &r_kept, qk, 1, count));
            if first + count == positions {
                let alpha = &rows.weights[(count - 1) * positions..];
                let gamma = rows.kept[count - 1];
                let of_v = matmul(x.v, &transposed(&dc_last, hv), positions, qk, hv);
                let of_k = matmul(x.k, &dc_last, positions, hv, qk);
                for j in 0..positions {
                    for (a, dk) in dk[j * qk..][..qk].iter_mut().enumerate() {
                        let of_last = alpha[j] * (of_v[j * qk + a] + dn_last[a]);
                        *dk += of_last;
                        di[j] += of_last * x.k[j * qk + a];
                        d_forgotten[j] -= of_last * x.k[j * qk + a];
                        d_forgotten[positions - 1] += of_last * x.k[j * qk + a];
                    }
                    for (c, dv) in dv[j * hv..][..hv].iter_mut().enumerate() {
                        *dv += alpha[j] * of_k[j * hv + c];
                    }
                }
                let part = |x: f64| if gamma == 0.0 { 0.0 } else { gamma * x };
                let pairs = c0.iter().zip(&dc_last).chain(n0.iter().zip(&dn_last));
                d_forgotten[positions - 1] += part(pairs.map(|(a, b)| a * b).sum());
                add(&mut dc0, dc_last.iter().map(|d| gamma * d).collect());
                add(&mut dn0, dn_last.iter().map(|d| gamma * d).collect());
            }
        }
        let mut later = 0.0;
        let mut df = vec![0.0; positions];
        for t in (0..positions).rev() {
            later += d_forgotten[t];
            df[t] = if x.f[t] <= SHUT { 0.0 } else { log_sigmoid(-x.f[t]).exp() * later };
        }
        out.dk.extend(dk);
        out.dv.extend(dv);
        out.di.extend(di);
        out.df.extend(df);
        of_state.c.extend(dc0);
        of_state.n.extend(dn0);
    }
    (out, of_state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;
    use approx::assert_relative_eq;

    #[derive(Clone)]
    struct Problem {
        sizes: Sizes,
        x: [Vec<f64>; 5],
        dh: Vec<f64>,
    }

    impl Problem {
        fn new(heads: usize, sizes: Sizes, gates: f64) -> Self {
            let rows = heads * sizes.positions;
            let of = |columns: usize, seed: u64, scale: f64| {
                noise(rows * columns, seed).iter().map(|v| v * scale).collect::<Vec<_>>()
            };
            let x = [
                of(sizes.qk, 1, 2.0),
                of(sizes.qk, 2, 2.0),
                of(sizes.hv, 3, 1.0),
                of(1, 4, gates),
                of(1, 5, gates),
            ];
            Self { sizes, x, dh: of(sizes.hv, 6, 1.0) }
        }

        fn inputs(&self) -> Inputs<'_> {
            let [q, k, v, i, f] = &self.x;
            Inputs { q, k, v, i, f }
        }
    }

    fn problems() -> Vec<Problem> {
        let of = |heads, positions, qk, hv, gates| {
            Problem::new(heads, Sizes { positions, qk, hv }, gates)
        };
        vec![of(1, 1, 1, 1, 1.0), of(2, 7, 3, 4, 1.0), of(1, 12, 4, 2, 5.0), of(3, 5, 2, 3, 0.1)]
    }

    /// States to begin with: none, one of usual size, ones from long ago and that count for all.
    fn states(heads: usize, sizes: Sizes) -> Vec<State> {
        let of = |m: f64| State {
            c: noise(heads * sizes.qk * sizes.hv, 7),
            n: noise(heads * sizes.qk, 8),
            m: vec![m; heads],
        };
        vec![sizes.no_state(heads), of(0.3), of(-100.0), of(100.0), of(f64::NEG_INFINITY)]
    }

    #[test]
    fn pieces_are_the_whole() {
        for p in problems() {
            let heads = p.x[3].len() / p.sizes.positions;
            let n = noise(heads * p.sizes.qk, 10);
            let last = StateGradient { c: noise(heads * p.sizes.qk * p.sizes.hv, 9), n };
            for state in &states(heads, p.sizes)[..2] {
                let (out, end) = forward_from(p.inputs(), state, p.sizes, 1e-6);
                let of_grad = |through| {
                    backward_from(p.inputs(), &p.dh, state, &last, p.sizes, 1e-6, through)
                };
                for piece in [1, 3, 5, 100] {
                    let (own, own_end) = forward_in_pieces(p.inputs(), state, p.sizes, 1e-6, piece);
                    let assert_equal = |a: &[f64], b: &[f64]| {
                        assert_eq!(a.len(), b.len());
                        let scale = b.iter().fold(1f64, |s, b| s.max(b.abs()));
                        a.iter().zip(b).for_each(|(a, b)| {
                            assert!((a - b).abs() <= 1e-11 * scale, "{a} {b} in pieces of {piece}");
                        });
                    };
                    for (a, b) in [(&own.h, &out.h), (&own.m, &out.m), (&own.n, &out.n)] {
                        assert_equal(a, b);
                    }
                    for (a, b) in [(&own_end.c, &end.c), (&own_end.n, &end.n), (&own_end.m, &end.m)]
                    {
                        assert_equal(a, b);
                    }
                    for through in [NormalizerGrad::Constant, NormalizerGrad::Exact] {
                        let (whole, first) = of_grad(through);
                        let (own, own_first) = backward_in_pieces(
                            p.inputs(),
                            &p.dh,
                            state,
                            &last,
                            p.sizes,
                            1e-6,
                            through,
                            piece,
                        );
                        for (a, b) in [
                            (&own.dq, &whole.dq),
                            (&own.dk, &whole.dk),
                            (&own.dv, &whole.dv),
                            (&own.di, &whole.di),
                            (&own.df, &whole.df),
                            (&own_first.c, &first.c),
                            (&own_first.n, &first.n),
                        ] {
                            assert_equal(a, b);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn equals_the_recurrent_form() {
        // C_t = e^{logsig f + m' − m} C + e^{i − m} k vᵀ, n alike, h = Cᵀq / max(|n q|, e^{−m}): the
        // same function in another way.
        let of = |p: Problem| {
            let heads = p.x[3].len() / p.sizes.positions;
            let all = states(heads, p.sizes).into_iter();
            all.map(move |s| (Problem { sizes: p.sizes, x: p.x.clone(), dh: Vec::new() }, s))
        };
        for (p, state) in problems().into_iter().flat_map(of) {
            let (out, last) = forward_from(p.inputs(), &state, p.sizes, 1e-6);
            let Sizes { positions, qk, hv } = p.sizes;
            let x = p.inputs();
            for head in 0..x.i.len() / positions {
                let x = p.sizes.head(x, head);
                let mut c = transposed(&state.c[head * qk * hv..][..qk * hv], hv);
                let mut n = state.n[head * qk..][..qk].to_vec();
                let mut m = state.m[head];
                for t in 0..positions {
                    let kept = log_sigmoid(x.f[t]) + m;
                    let m_next = kept.max(x.i[t]);
                    let (old, new) = ((kept - m_next).exp(), (x.i[t] - m_next).exp());
                    m = m_next;
                    let scaled: Vec<f64> =
                        x.q[t * qk..][..qk].iter().map(|q| q / (qk as f64).sqrt()).collect();
                    let (q, k) = (&scaled, &x.k[t * qk..][..qk]);
                    for a in 0..qk {
                        let k = k[a];
                        n[a] = old * n[a] + new * k;
                        for b in 0..hv {
                            c[b * qk + a] = old * c[b * qk + a] + new * k * x.v[t * hv + b];
                        }
                    }
                    let dot = |y: &[f64]| y.iter().zip(q).map(|(y, q)| y * q).sum::<f64>();
                    let norm = dot(&n).abs().max((-m).exp());
                    let row = head * positions + t;
                    assert_relative_eq!(out.m[row], m, epsilon = 1e-12);
                    assert_relative_eq!(out.n[row], norm, max_relative = 1e-9);
                    for b in 0..hv {
                        let h = dot(&c[b * qk..][..qk]) / (norm + 1e-6);
                        assert_relative_eq!(
                            out.h[row * hv + b],
                            h,
                            max_relative = 1e-9,
                            epsilon = 1e-12
                        );
                    }
                }
                let equal = |got: &[f64], expected: &[f64]| {
                    for (got, expected) in got.iter().zip(expected) {
                        assert_relative_eq!(got, expected, max_relative = 1e-9, epsilon = 1e-12);
                    }
                };
                equal(&last.c[head * qk * hv..][..qk * hv], &transposed(&c, qk));
                equal(&last.n[head * qk..][..qk], &n);
                equal(&last.m[head..=head], &[m]);
            }
        }
    }

    /// Positions `from` to `to` of every head.
    fn cut(p: &Problem, from: usize, to: usize) -> Problem {
        let Sizes { positions, qk, hv } = p.sizes;
        let rows = |all: &[f64], columns: usize| -> Vec<f64> {
            let of_head = |head: &[f64]| head[from * columns..to * columns].to_vec();
            all.chunks(positions * columns).flat_map(of_head).collect()
        };
        let columns = [qk, qk, hv, 1, 1];
        let x = std::array::from_fn(|n| rows(&p.x[n], columns[n]));
        Problem { sizes: Sizes { positions: to - from, ..p.sizes }, x, dh: Vec::new() }
    }

    #[test]
    fn a_sequence_in_two_parts_is_the_whole() {
        for p in problems() {
            let Sizes { positions, hv, .. } = p.sizes;
            let heads = p.x[3].len() / positions;
            for state in states(heads, p.sizes) {
                let (whole, last) = forward_from(p.inputs(), &state, p.sizes, 1e-6);
                for at in 1..positions {
                    let (one, two) = (cut(&p, 0, at), cut(&p, at, positions));
                    let (first, between) = forward_from(one.inputs(), &state, one.sizes, 1e-6);
                    let (second, end) = forward_from(two.inputs(), &between, two.sizes, 1e-6);
                    let joined = |a: &[f64], b: &[f64], columns: usize| -> Vec<f64> {
                        let heads =
                            a.chunks(at * columns).zip(b.chunks((positions - at) * columns));
                        heads.flat_map(|(a, b)| [a, b].concat()).collect()
                    };
                    for (got, expected) in [
                        (joined(&first.h, &second.h, hv), &whole.h),
                        (joined(&first.m, &second.m, 1), &whole.m),
                        (joined(&first.n, &second.n, 1), &whole.n),
                        (end.c, &last.c),
                        (end.n, &last.n),
                        (end.m, &last.m),
                    ] {
                        assert_eq!(got.len(), expected.len());
                        for (g, e) in got.iter().zip(expected) {
                            assert_relative_eq!(g, e, max_relative = 1e-9, epsilon = 1e-12);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn positions_that_are_shut_out_leave_nothing() {
        let mut p = Problem::new(1, Sizes { positions: 3, qk: 2, hv: 2 }, 1.0);
        p.x[3].fill(f64::NEG_INFINITY);
        let (out, last) = forward_from(p.inputs(), &p.sizes.no_state(1), p.sizes, 1e-6);
        assert_eq!(last, p.sizes.no_state(1));
        assert_eq!((out.h, out.n), (vec![0.0; 6], vec![f64::INFINITY; 3]));
    }

    /// Central differences of Σ h · dh; with n as it was, where it is to be held constant.
    fn differences(p: &Problem, which: usize, through: NormalizerGrad) -> Vec<f64> {
        const STEP: f64 = 1e-5;
        let hv = p.sizes.hv;
        let fixed = forward(p.inputs(), p.sizes, 0.0);
        let loss = |x: &[Vec<f64>; 5]| {
            let [q, k, v, i, f] = x;
            let out = forward(Inputs { q, k, v, i, f }, p.sizes, 0.0);
            let cell = |(at, (h, dh)): (usize, (&f64, &f64))| {
                let row = at / hv;
                // Σ C̃ v is h n e^{m − m₀} with the old m₀.
                let scale = match through {
                    NormalizerGrad::Exact => 1.0,
                    NormalizerGrad::Constant => {
                        out.n[row] * (out.m[row] - fixed.m[row]).exp() / fixed.n[row]
                    }
                };
                h * scale * dh
            };
            out.h.iter().zip(&p.dh).enumerate().map(cell).sum::<f64>()
        };
        (0..p.x[which].len())
            .map(|at| {
                let moved = |by: f64| {
                    let mut x = p.x.clone();
                    x[which][at] += by;
                    loss(&x)
                };
                (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
            })
            .collect()
    }

    #[test]
    fn gradients_are_those_of_differences() {
        for p in problems() {
            for through in [NormalizerGrad::Constant, NormalizerGrad::Exact] {
                let out = backward(p.inputs(), &p.dh, p.sizes, 0.0, through);
                let all = [&out.dq, &out.dk, &out.dv, &out.di, &out.df];
                for (which, got) in all.into_iter().enumerate() {
                    let expected = differences(&p, which, through);
                    let largest = expected.iter().fold(0.0f64, |a, b| a.max(b.abs()));
                    for (g, e) in got.iter().zip(&expected) {
                        assert_relative_eq!(*g, *e, epsilon = 1e-6 * largest.max(1e-2));
                    }
                }
            }
        }
    }

    /// Central differences of Σ h · dh + Σ C_N · dC + Σ n_N · dn, where m, and n if it is to be, are as they were.
    #[test]
    fn gradients_behind_a_state_are_those_of_differences() {
        const STEP: f64 = 1e-5;
        for (p, through) in problems()
            .into_iter()
            .flat_map(|p| [(p.clone(), NormalizerGrad::Constant), (p, NormalizerGrad::Exact)])
        {
            let heads = p.x[3].len() / p.sizes.positions;
            let Sizes { qk, hv, .. } = p.sizes;
            let m = noise(heads, 9);
            let mut all: Vec<Vec<f64>> = p.x.to_vec();
            all.extend([noise(heads * qk * hv, 7), noise(heads * qk, 8)]);
            let last = StateGradient { c: noise(heads * qk * hv, 10), n: noise(heads * qk, 11) };
            let run = |all: &[Vec<f64>]| {
                let [q, k, v, i, f, c, n] = all else { unreachable!() };
                let state = State { c: c.clone(), n: n.clone(), m: m.clone() };
                forward_from(Inputs { q, k, v, i, f }, &state, p.sizes, 0.0)
            };
            let (fixed, fixed_last) = run(&all);
            let loss = |all: &[Vec<f64>]| {
                let (out, state) = run(all);
                let of_h = out.h.iter().zip(&p.dh).enumerate().map(|(at, (h, dh))| {
                    let row = at / hv;
                    match through {
                        NormalizerGrad::Exact => h * dh,
                        NormalizerGrad::Constant => {
                            let by = (out.m[row] - fixed.m[row]).exp();
                            h * dh * by * out.n[row] / fixed.n[row]
                        }
                    }
                });
                let up = |head: usize| (state.m[head] - fixed_last.m[head]).exp();
                let of_c = state.c.iter().zip(&last.c).enumerate();
                let of_n = state.n.iter().zip(&last.n).enumerate();
                of_h.sum::<f64>()
                    + of_c.map(|(at, (c, d))| c * d * up(at / (qk * hv))).sum::<f64>()
                    + of_n.map(|(at, (n, d))| n * d * up(at / qk)).sum::<f64>()
            };
            let [q, k, v, i, f, c, n] = &all[..] else { unreachable!() };
            let state = State { c: c.clone(), n: n.clone(), m: m.clone() };
            let x = Inputs { q, k, v, i, f };
            let (out, first) = backward_from(x, &p.dh, &state, &last, p.sizes, 0.0, through);
            let got = [&out.dq, &out.dk, &out.dv, &out.di, &out.df, &first.c, &first.n];
            for (which, got) in got.into_iter().enumerate() {
                let expected: Vec<f64> = (0..got.len())
                    .map(|at| {
                        let moved = |by: f64| {
                            let mut all = all.clone();
                            all[which][at] += by;
                            loss(&all)
                        };
                        (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
                    })
                    .collect();
                let largest = expected.iter().fold(0.0f64, |a, b| a.max(b.abs()));
                for (g, e) in got.iter().zip(&expected) {
                    assert_relative_eq!(*g, *e, epsilon = 1e-6 * largest.max(1e-2));
                }
            }
        }
    }

    /// `recorded/vlstm.py` says whose outputs these are.
    #[test]
    fn equals_another_implementation() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/recorded/vlstm.safetensors");
        let bytes = std::fs::read(path).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for case in ["small", "ragged", "wide"] {
            let tensor = |name: &str| file.tensor(&format!("{case}.{name}")).unwrap();
            let values = |name: &str| -> Vec<f64> {
                let words = tensor(name).data().as_chunks::<8>().0.to_vec();
                words.into_iter().map(f64::from_le_bytes).collect()
            };
            let [positions, qk] = [2, 3].map(|axis| tensor("q").shape()[axis]);
            let sizes = Sizes { positions, qk, hv: tensor("v").shape()[3] };
            let x = ["q", "k", "v", "i", "f"].map(values);
            let p = Problem { sizes, x, dh: values("dh") };
            let equal = |got: &[f64], name: &str| {
                let expected = values(name);
                assert_eq!(got.len(), expected.len(), "{case}.{name}");
                let largest = expected.iter().fold(0.0f64, |a, b| a.max(b.abs()));
                for (g, e) in got.iter().zip(&expected) {
                    assert_relative_eq!(*g, *e, epsilon = 1e-12 * largest, max_relative = 1e-11);
                }
            };
            let out = forward(p.inputs(), sizes, 1e-6);
            equal(&out.h, "h");
            equal(&out.m, "m");
            equal(&out.n, "n");
            for (through, epsilon, name) in [
                (NormalizerGrad::Constant, 1e-6, "constant"),
                (NormalizerGrad::Exact, 0.0, "exact"),
            ] {
                let g = backward(p.inputs(), &p.dh, sizes, epsilon, through);
                for (got, gradient) in
                    [(&g.dq, "dq"), (&g.dk, "dk"), (&g.dv, "dv"), (&g.di, "di"), (&g.df, "df")]
                {
                    equal(got, &format!("{name}.{gradient}"));
                }
            }
        }
    }

    /// What kernels use in place of the sums over rows and columns of D̃'s gradient.
    #[test]
    fn the_forget_gates_gradient_is_a_suffix_sum_of_dots() {
        for p in problems() {
            for through in [NormalizerGrad::Constant, NormalizerGrad::Exact] {
                let (x, sizes) = (p.inputs(), p.sizes);
                let out = backward(x, &p.dh, sizes, 1e-6, through);
                for head in 0..x.i.len() / sizes.positions {
                    let mut later = 0.0;
                    for t in (0..sizes.positions).rev() {
                        let row = head * sizes.positions + t;
                        let dot = |a: &[f64], b: &[f64]| {
                            let at = row * sizes.qk..(row + 1) * sizes.qk;
                            a[at.clone()].iter().zip(&b[at]).map(|(a, b)| a * b).sum::<f64>()
                        };
                        later += dot(x.q, &out.dq) - dot(x.k, &out.dk);
                        let df = later / (1.0 + x.f[row].exp());
                        assert_relative_eq!(df, out.df[row], epsilon = 1e-9);
                    }
                    assert_relative_eq!(out.df[head * sizes.positions], 0.0, epsilon = 1e-12);
                }
            }
        }
    }

    #[test]
    fn ungated_is_the_causal_product() {
        let p = Problem::new(2, Sizes { positions: 9, qk: 3, hv: 2 }, 1.0);
        let x = p.inputs();
        let h = forward_ungated(x.q, x.k, x.v, p.sizes);
        for row in 0..18 {
            for c in 0..2 {
                let mut sum = 0.0;
                for j in row / 9 * 9..=row {
                    let dot: f64 = (0..3).map(|a| x.q[row * 3 + a] * x.k[j * 3 + a]).sum();
                    sum += dot / 3f64.sqrt() * x.v[j * 2 + c];
                }
                assert_relative_eq!(h[row * 2 + c], sum, epsilon = 1e-12);
            }
        }
    }

    #[test]
    fn extreme_gates_give_numbers() {
        for (i, f) in [(100.0, 100.0), (-100.0, -100.0), (100.0, -100.0), (-100.0, 100.0)] {
            let mut p = Problem::new(1, Sizes { positions: 40, qk: 2, hv: 2 }, 1.0);
            p.x[3].fill(i);
            p.x[4].fill(f);
            let out = forward(p.inputs(), p.sizes, 1e-6);
            assert!(out.h.iter().all(|h| h.is_finite()));
            for through in [NormalizerGrad::Constant, NormalizerGrad::Exact] {
                let g = backward(p.inputs(), &p.dh, p.sizes, 1e-6, through);
                for all in [g.dq, g.dk, g.dv, g.di, g.df] {
                    assert!(all.iter().all(|g| g.is_finite()));
                }
            }
        }
    }

    /// Documents in one sequence, each behind a gate that is shut, are the documents by themselves.
    #[test]
    fn a_shut_gate_starts_anew() {
        let sizes = Sizes { positions: 12, qk: 3, hv: 2 };
        let ends = [0, 5, 6, 12];
        for shut in [SHUT, f64::from(f32::MIN), f64::MIN, f64::NEG_INFINITY] {
            let mut p = Problem::new(1, sizes, 1.0);
            ends[..3].iter().for_each(|&t| p.x[4][t] = shut);
            let all = forward(p.inputs(), sizes, 1e-6);
            let through = NormalizerGrad::Exact;
            let gradients = backward(p.inputs(), &p.dh, sizes, 1e-6, through);
            for part in ends.windows(2) {
                let sizes = Sizes { positions: part[1] - part[0], ..sizes };
                let of = |all: &[f64]| {
                    let columns = all.len() / 12;
                    all[part[0] * columns..part[1] * columns].to_vec()
                };
                let x: Vec<Vec<f64>> = p.x.iter().map(|x| of(x)).collect();
                let inputs = Inputs { q: &x[0], k: &x[1], v: &x[2], i: &x[3], f: &x[4] };
                let own = forward(inputs, sizes, 1e-6);
                for (got, own) in [(&all.h, own.h), (&all.m, own.m), (&all.n, own.n)] {
                    assert_relative_eq!(of(got)[..], own[..], max_relative = 1e-12);
                }
                let own = backward(inputs, &of(&p.dh), sizes, 1e-6, through);
                let all = &gradients;
                let pairs = [(&all.dq, own.dq), (&all.dk, own.dk), (&all.dv, own.dv)];
                for (got, own) in pairs.into_iter().chain([(&all.di, own.di), (&all.df, own.df)]) {
                    assert_relative_eq!(of(got)[..], own[..], epsilon = 1e-12);
                }
                assert_eq!(gradients.df[part[0]], 0.0);
            }
        }
    }

    #[test]
    fn many_rows_are_computed_in_parts() {
        // ROWS and some: the last row sees all before it.
        let positions = ROWS + 3;
        let sizes = Sizes { positions, qk: 1, hv: 1 };
        let ones = vec![1.0; positions];
        let (zeros, never) = (vec![0.0; positions], vec![f64::INFINITY; positions]);
        let x = Inputs { q: &ones, k: &ones, v: &ones, i: &zeros, f: &never };
        let out = forward(x, sizes, 0.0);
        assert_relative_eq!(out.n[positions - 1], positions as f64);
        let h = forward_ungated(&ones, &ones, &ones, sizes);
        assert_relative_eq!(h[positions - 1], positions as f64);
        let dh = vec![1.0; positions];
        let g = backward(x, &dh, sizes, 0.0, NormalizerGrad::Constant);
        // Row i divides by i + 1: Σ_{i ≥ j} 1 / (i + 1).
        let expected: f64 = (0..positions).map(|i| 1.0 / (i + 1) as f64).sum();
        assert_relative_eq!(g.dv[0], expected, max_relative = 1e-12);
    }
}
