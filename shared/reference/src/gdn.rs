//! The gated delta rule, forward and backward: a state whose keys are overwritten, not only added to. Gated DeltaNet
//! (arXiv 2412.06464), DeltaNet (arXiv 2406.06484).
//!
//! ```text
//! C_t = exp(g_t) (I − β_t k_t k_tᵀ) C_{t−1} + β_t k_t v_tᵀ      h_t = s C_tᵀ q_t
//! ```
//!
//! It is computed position by position. With D_t = exp(g_t) C_{t−1}, the state before the position writes, and
//! u_t = β_t (v_t − D_tᵀ k_t), what it writes, C_t = D_t + k_t u_tᵀ.
//!
//! Where nothing is erased ([`Sizes::erases`]), u_t = β_t v_t: linear attention with a scalar decay, as RetNet (arXiv 2307.08621),
//! simple GLA (arXiv 2312.06635) and Mamba-2's SSD (arXiv 2405.21060, with β_t = Δ_t) have it. What is 0 then is left out below.

mod magnitudes;

use rayon::prelude::*;

pub use self::magnitudes::{backward_magnitudes, magnitudes};

/// The sizes of a problem.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sizes {
    /// Heads of v, of all sequences together.
    pub heads: usize,
    /// Heads of v that share one of q and k.
    pub group: usize,
    /// Positions, S.
    pub positions: usize,
    /// Columns of q and k, DHQK.
    pub qk: usize,
    /// Columns of v and h, DHHV.
    pub hv: usize,
    /// s.
    pub scale: f64,
    /// Whether a key's old value is replaced, in part β_t: the delta rule. Else β_t is but the weight of what is written.
    pub erases: bool,
}

/// The tensors, row-major: `q` and `k` \[heads / group, S, DHQK\], `v` \[heads, S, DHHV\], `g` and `beta` \[heads, S\].
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Queries.
    pub q: &'a [f64],
    /// Keys.
    pub k: &'a [f64],
    /// Values.
    pub v: &'a [f64],
    /// The logarithms of what each position keeps of the state.
    pub g: &'a [f64],
    /// How much of a key's old value each position replaces, or how much it writes.
    pub beta: &'a [f64],
    /// The state before the first position, \[heads, DHQK, DHHV\]; none is one of zeros.
    pub c0: Option<&'a [f64]>,
}

/// What the forward pass makes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outputs {
    /// As v.
    pub h: Vec<f64>,
    /// The state behind the last position, \[heads, DHQK, DHHV\].
    pub c: Vec<f64>,
}

/// What the backward pass makes, in the shapes of the inputs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gradients {
    /// By q, summed over the heads of a group.
    pub q: Vec<f64>,
    /// By k, summed over the heads of a group.
    pub k: Vec<f64>,
    /// By v.
    pub v: Vec<f64>,
    /// By g.
    pub g: Vec<f64>,
    /// By beta.
    pub beta: Vec<f64>,
    /// By the state before the first position.
    pub c0: Vec<f64>,
}

/// One head's tensors.
#[derive(Clone, Copy)]
struct Head<'a> {
    q: &'a [f64],
    k: &'a [f64],
    v: &'a [f64],
    g: &'a [f64],
    beta: &'a [f64],
    sizes: Sizes,
}

/// One position of a head.
#[derive(Clone, Copy)]
struct Position<'a> {
    q: &'a [f64],
    k: &'a [f64],
    v: &'a [f64],
    kept: f64,
    beta: f64,
    erases: bool,
}

impl<'a> Head<'a> {
    fn of(inputs: Inputs<'a>, sizes: Sizes, n: usize) -> Self {
        let Sizes { group, positions: s, qk, hv, .. } = sizes;
        let keys = n / group * s * qk..(n / group + 1) * s * qk;
        let (values, rows) = (n * s * hv..(n + 1) * s * hv, n * s..(n + 1) * s);
        Self {
            q: &inputs.q[keys.clone()],
            k: &inputs.k[keys],
            v: &inputs.v[values],
            g: &inputs.g[rows.clone()],
            beta: &inputs.beta[rows],
            sizes,
        }
    }

    fn at(&self, t: usize) -> Position<'a> {
        let Sizes { qk, hv, .. } = self.sizes;
        Position {
            q: &self.q[t * qk..][..qk],
            k: &self.k[t * qk..][..qk],
            v: &self.v[t * hv..][..hv],
            kept: self.g[t].exp(),
            beta: self.beta[t],
            erases: self.sizes.erases,
        }
    }
}

impl Position<'_> {
    /// C_{t−1} → D_t. What is not kept is gone, even ∞.
    fn decay(&self, c: &mut [f64]) {
        c.iter_mut().for_each(|c| *c = if self.kept == 0.0 { 0.0 } else { self.kept * *c });
    }

    /// u_t of D_t.
    fn written(&self, d: &[f64]) -> Vec<f64> {
        self.v.iter().zip(self.read(d)).map(|(v, read)| self.beta * (v - read)).collect()
    }

    /// D_tᵀ k_t, the value that is replaced.
    fn read(&self, d: &[f64]) -> Vec<f64> {
        if self.erases { times(self.k, d, self.v.len()) } else { vec![0.0; self.v.len()] }
    }
}

/// Σ_r x_r C_r.
fn times(x: &[f64], c: &[f64], hv: usize) -> Vec<f64> {
    let mut sum = vec![0.0; hv];
    for (x, row) in x.iter().zip(c.chunks(hv)) {
        sum.iter_mut().zip(row).for_each(|(sum, c)| *sum += x * c);
    }
    sum
}

/// C += x yᵀ.
fn add_product(c: &mut [f64], x: &[f64], y: &[f64]) {
    for (x, row) in x.iter().zip(c.chunks_mut(y.len())) {
        row.iter_mut().zip(y).for_each(|(c, y)| *c += x * y);
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn norm(a: &[f64]) -> f64 {
    dot(a, a).sqrt()
}

/// Goes along a head: `see` is given each position, D_t, u_t and, once that is written, C_t.
fn walk(head: &Head<'_>, c: &mut [f64], from: usize, to: usize, mut see: impl FnMut(Seen<'_>)) {
    for t in from..to {
        let position = head.at(t);
        position.decay(c);
        let u = position.written(c);
        see(Seen { position, state: c, u: &u, written: false });
        add_product(c, position.k, &u);
        see(Seen { position, state: c, u: &u, written: true });
    }
}

/// A position on the way: the state is D_t until it is written, then C_t.
struct Seen<'a> {
    position: Position<'a>,
    state: &'a [f64],
    u: &'a [f64],
    written: bool,
}

fn check_lengths(inputs: Inputs<'_>, sizes: Sizes) {
    let Sizes { heads, group, positions: s, qk, hv, .. } = sizes;
    assert!(heads.is_multiple_of(group), "whole groups");
    assert_eq!([inputs.q.len(), inputs.k.len()], [heads / group * s * qk; 2], "q and k");
    assert_eq!(inputs.v.len(), heads * s * hv, "v");
    assert_eq!([inputs.g.len(), inputs.beta.len()], [heads * s; 2], "g and beta");
    assert!(inputs.c0.is_none_or(|c| c.len() == heads * qk * hv), "C0");
}

/// The state before a head's first position.
fn first_state(inputs: Inputs<'_>, sizes: Sizes, n: usize) -> Vec<f64> {
    let cells = sizes.qk * sizes.hv;
    inputs.c0.map_or_else(|| vec![0.0; cells], |c| c[n * cells..][..cells].to_vec())
}

/// The forward pass.
///
/// ```
/// use lab_reference::gdn::{Inputs, Sizes, forward};
/// // The second position replaces half of what the first has written under the same key.
/// let inputs = Inputs {
///     q: &[1.0, 1.0],
///     k: &[1.0, 1.0],
///     v: &[4.0, 8.0],
///     g: &[0.0, 0.0],
///     beta: &[1.0, 0.5],
///     c0: None,
/// };
/// let sizes = Sizes { heads: 1, group: 1, positions: 2, qk: 1, hv: 1, scale: 1.0, erases: true };
/// assert_eq!(forward(inputs, sizes).h, [4.0, 6.0]);
/// assert_eq!(forward(inputs, Sizes { erases: false, ..sizes }).h, [4.0, 8.0]);
/// ```
///
/// # Panics
/// The lengths are not those of the sizes.
pub fn forward(inputs: Inputs<'_>, sizes: Sizes) -> Outputs {
    check_lengths(inputs, sizes);
    let of_head = |n: usize| {
        let (mut c, mut h) = (first_state(inputs, sizes, n), Vec::new());
        walk(&Head::of(inputs, sizes, n), &mut c, 0, sizes.positions, |seen| {
            if seen.written {
                let row = times(seen.position.q, seen.state, sizes.hv);
                h.extend(row.iter().map(|h| sizes.scale * h));
            }
        });
        (h, c)
    };
    let all: Vec<_> = (0..sizes.heads).into_par_iter().map(of_head).collect();
    Outputs { h: all.iter().flat_map(|a| a.0.clone()).collect(), c: joined(&all, |a| &a.1) }
}

fn joined<T>(all: &[T], part: impl Fn(&T) -> &Vec<f64>) -> Vec<f64> {
    all.iter().flat_map(|one| part(one).iter().copied()).collect()
}

/// The backward pass, from the gradients by h, and by the state behind the last position where that is given.
///
/// With dC the gradient by C_t, of what follows and of h_t:
///
/// ```text
/// dq_t = s C_t dh_t      du_t = dCᵀ k_t      dv_t = β_t du_t      dβ_t = du_t · (v_t − D_tᵀ k_t)
/// dk_t = dC u_t − D_t dv_t      dD_t = dC − k_t dv_tᵀ      dg_t = ⟨D_t, dD_t⟩      dC ← exp(g_t) dD_t
/// ```
///
/// # Panics
/// The lengths are not those of the sizes.
pub fn backward(inputs: Inputs<'_>, dh: &[f64], dc_n: Option<&[f64]>, sizes: Sizes) -> Gradients {
    check_lengths(inputs, sizes);
    let Sizes { heads, group, positions: s, qk, hv, .. } = sizes;
    assert_eq!(dh.len(), heads * s * hv, "dh");
    assert!(dc_n.is_none_or(|c| c.len() == heads * qk * hv), "dCN");
    let of_head = |n: usize| {
        let dc = dc_n.map_or_else(|| vec![0.0; qk * hv], |c| c[n * qk * hv..][..qk * hv].to_vec());
        let first = first_state(inputs, sizes, n);
        backward_of_head(&Head::of(inputs, sizes, n), first, &dh[n * s * hv..][..s * hv], dc)
    };
    joined_heads((0..heads).into_par_iter().map(of_head).collect(), group, s * qk)
}

/// Those of all heads in one; by q and k, of `keys` elements a head, summed over the heads of a group.
fn joined_heads(all: Vec<Gradients>, group: usize, keys: usize) -> Gradients {
    let of_groups = |part: fn(&Gradients) -> &Vec<f64>| -> Vec<f64> {
        let sum = |group: &[Gradients]| {
            let mut sum = vec![0.0; keys];
            group.iter().for_each(|g| sum.iter_mut().zip(part(g)).for_each(|(s, x)| *s += x));
            sum
        };
        all.chunks(group).flat_map(sum).collect()
    };
    Gradients {
        q: of_groups(|g| &g.q),
        k: of_groups(|g| &g.k),
        v: joined(&all, |g| &g.v),
        g: joined(&all, |g| &g.g),
        beta: joined(&all, |g| &g.beta),
        c0: joined(&all, |g| &g.c0),
    }
}

/// Of one head. States are kept at every √S-th position, and those between are made again.
fn backward_of_head(head: &Head<'_>, mut c: Vec<f64>, dh: &[f64], mut dc: Vec<f64>) -> Gradients {
    let Sizes { positions: s, qk, hv, scale, .. } = head.sizes;
    let piece = (s as f64).sqrt().ceil() as usize;
    let mut kept = Vec::new();
    for from in (0..s).step_by(piece) {
        kept.push(c.clone());
        walk(head, &mut c, from, s.min(from + piece), |_| {});
    }
    let mut all = Gradients {
        q: vec![0.0; s * qk],
        k: vec![0.0; s * qk],
        v: vec![0.0; s * hv],
        g: vec![0.0; s],
        beta: vec![0.0; s],
        c0: Vec::new(),
    };
    for (at, mut c) in kept.into_iter().enumerate().rev() {
        let from = at * piece;
        let mut before: Vec<(Vec<f64>, Vec<f64>)> = Vec::new();
        walk(head, &mut c, from, s.min(from + piece), |seen| {
            if !seen.written {
                before.push((seen.state.to_vec(), seen.u.to_vec()));
            }
        });
        for (t, (d, u)) in before.into_iter().enumerate().rev().map(|(n, x)| (from + n, x)) {
            let position = head.at(t);
            let Position { q, k, v, kept, beta, erases } = position;
            let dh = &dh[t * hv..][..hv];
            let scaled: Vec<f64> = dh.iter().map(|x| scale * x).collect();
            add_product(&mut dc, q, &scaled);
            let du = times(k, &dc, hv);
            let dv: Vec<f64> = du.iter().map(|x| beta * x).collect();
            let read = position.read(&d);
            all.beta[t] = (0..hv).map(|c| du[c] * (v[c] - read[c])).sum();
            let of_u = dot(&u, &scaled);
            for r in 0..qk {
                let (d, dc) = (&d[r * hv..][..hv], &dc[r * hv..][..hv]);
                all.q[t * qk + r] = dot(d, &scaled) + k[r] * of_u;
                all.k[t * qk + r] = dot(dc, &u) - if erases { dot(d, &dv) } else { 0.0 };
            }
            if erases {
                let minus: Vec<f64> = dv.iter().map(|x| -x).collect();
                add_product(&mut dc, k, &minus);
            }
            all.g[t] = dot(&d, &dc);
            dc.iter_mut().for_each(|dc| *dc *= kept);
            all.v[t * hv..][..hv].copy_from_slice(&dv);
        }
    }
    all.c0 = dc;
    all
}

#[cfg(test)]
mod tests;
