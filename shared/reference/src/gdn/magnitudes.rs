//! What rounding errors are relative to: the sums of both passes without their cancellation, by norms of columns of the state.

use rayon::prelude::*;

use super::{
    Gradients, Head, Inputs, Outputs, Position, Sizes, add_product, check_lengths, first_state,
    joined, joined_heads, norm, times, walk,
};

impl Position<'_> {
    /// |β_t k_t|, as far as it erases.
    fn erased(&self) -> f64 {
        if self.erases { self.beta.abs() * norm(self.k) } else { 0.0 }
    }

    /// ρ_t.
    fn most(&self) -> f64 {
        (1.0 - self.erased() * norm(self.k)).abs().max(1.0)
    }

    /// The error of each column's norm, e_{t−1} → e_t, where x are the norms of D_t. Of what is not kept nothing is left, even of ∞.
    fn pass_error(&self, e: &mut [f64], x: &[f64]) {
        let (k, beta) = (norm(self.k), self.beta.abs());
        let (most, erased) = (self.kept * self.most(), self.erased());
        for ((e, x), v) in e.iter_mut().zip(x).zip(self.v) {
            let earlier = if most == 0.0 { 0.0 } else { most * *e };
            *e = earlier + beta * k * v.abs() + erased * k * x;
        }
    }

    /// As `pass_error`, of roundings of both signs: squares are added up.
    fn pass_random(&self, e: &mut [f64], x: &[f64]) {
        let (k, beta) = (norm(self.k), self.beta.abs());
        let (most, erased) = (self.kept * self.most(), self.erased());
        for ((e, x), v) in e.iter_mut().zip(x).zip(self.v) {
            let earlier = if most == 0.0 { 0.0 } else { most * *e };
            *e = norm(&[earlier, beta * k * v, erased * k * x]);
        }
    }
}

/// What the rounding errors of the forward pass are relative to.
///
/// A column of C is x_t = exp(g_t) (I − β_t k_t k_tᵀ) x_{t−1} + β_t k_t v_t, and so is its error, of what each position
/// rounds. With ρ_t = max(1, |1 − β_t |k_t|²|), the most that a position makes of an earlier error's norm,
///
/// ```text
/// e_t = exp(g_t) ρ_t e_{t−1} + β_t |k_t| (|v_t| + exp(g_t) |k_t| |x_{t−1}|)      e_0 = |x_0|
/// h:  s |q_t| (e_t + |x_t|)                                                      C:  e_S + |C|
/// ```
///
/// Absolute values of single elements would not do: |I − β k kᵀ| grows without bound where the matrix itself shrinks.
///
/// # Panics
/// As [`super::forward`].
pub fn magnitudes(inputs: Inputs<'_>, sizes: Sizes) -> Outputs {
    check_lengths(inputs, sizes);
    let hv = sizes.hv;
    let of_head = |n: usize| {
        let (mut c, mut h) = (first_state(inputs, sizes, n), Vec::new());
        let mut e = column_norms(&c, hv);
        walk(&Head::of(inputs, sizes, n), &mut c, 0, sizes.positions, |seen| {
            let x = column_norms(seen.state, hv);
            if seen.written {
                let q = sizes.scale.abs() * norm(seen.position.q);
                h.extend(e.iter().zip(x).map(|(e, x)| q * (e + x)));
            } else {
                seen.position.pass_error(&mut e, &x);
            }
        });
        let c: Vec<f64> = c.iter().enumerate().map(|(at, c)| e[at % hv] + c.abs()).collect();
        (h, c)
    };
    let all: Vec<_> = (0..sizes.heads).into_par_iter().map(of_head).collect();
    Outputs { h: joined(&all, |a| &a.0), c: joined(&all, |a| &a.1) }
}

/// What the rounding errors of the backward pass are relative to.
///
/// The gradient of a column of C obeys the same recurrence backwards, y ← exp(g_t) (I − β_t k_t k_tᵀ) (y + s q_t dh_t), and so does
/// its error. With x_t, e_t of [`magnitudes`] for D_t, and as norms of columns, y_t and its error f_t behind position t:
///
/// ```text
/// u_t:  w_t = β_t (|v_t| + |k_t| (x_t + e_t))                 du_t:  m_t = |k_t| (y_t + f_t)
/// dβ:   Σ_c m_t (|v_t| + |k_t| (x_t + e_t))
/// dq:   s Σ_c (x_t + e_t + |k_t| w_t) |dh_t|                  dk:    Σ_c (y_t + f_t) w_t + (x_t + e_t) β_t m_t
/// f ← exp(g_t) (ρ_t f + β_t |k_t|² y_t)                       dC₀:   f + |dC₀|
/// ```
///
/// Of dg and dv that would be hundreds of times what is seen, and the more so the more keys, columns and positions there are: no share
/// of it would suit few and many. What all terms round at random adds up by squares (Higham & Mary 2019, "A new approach to
/// probabilistic rounding error analysis"), and of a column's error, a vector of K keys, another vector meets 1/√K. So these have
/// X_t, Y_t, W_t: √(x_t² + e_t²), √(y_t² + f_t²) and √((β_t v_t)² + (β_t |k_t| X_t)²), of e and f whose terms are added up by squares;
///
/// ```text
/// dv:   2 |dv_t| + β_t |k_t| Y_t
/// dg_t: √(Σ_c X_t² Y_t² + Σ_{t ≤ τ < t + 64} r_τ) / √K
/// r_t:  |q_t|² Σ_c (X_t² + |k_t|² W_t²) (s dh_t)² + 2 |k_t|² Σ_c (Y_t W_t)² + (X_t β_t |k_t| Y_t)²
/// ```
///
/// where the sum over τ is of who adds up q·dq − k·dk from one state to the next, over at most 64 positions; and what dv is made of is
/// rounded twice, as a pair and as a sum of pairs, wherever all of it is one product.
///
/// # Panics
/// As [`super::backward`].
pub fn backward_magnitudes(
    inputs: Inputs<'_>,
    dh: &[f64],
    dc_n: Option<&[f64]>,
    sizes: Sizes,
) -> Gradients {
    let Sizes { heads, group, positions: s, qk, hv, .. } = sizes;
    let of_head = |n: usize| {
        let dc = dc_n.map_or_else(|| vec![0.0; qk * hv], |c| c[n * qk * hv..][..qk * hv].to_vec());
        let first = first_state(inputs, sizes, n);
        magnitudes_of_head(&Head::of(inputs, sizes, n), first, &dh[n * s * hv..][..s * hv], dc)
    };
    joined_heads((0..heads).into_par_iter().map(of_head).collect(), group, s * qk)
}

/// The norms of the columns of C.
fn column_norms(c: &[f64], hv: usize) -> Vec<f64> {
    let mut sum = vec![0.0; hv];
    c.chunks(hv).for_each(|row| sum.iter_mut().zip(row).for_each(|(s, c)| *s += c * c));
    sum.into_iter().map(f64::sqrt).collect()
}

fn magnitudes_of_head(head: &Head<'_>, mut c: Vec<f64>, dh: &[f64], mut dc: Vec<f64>) -> Gradients {
    let Sizes { positions: s, qk, hv, scale, .. } = head.sizes;
    // x_t + e_t, and w_t; and X_t, W_t.
    let (mut state, mut written) = (Vec::new(), Vec::new());
    let (mut random_state, mut random_written) = (Vec::new(), Vec::new());
    let mut e = column_norms(&c, hv);
    let mut random = e.clone();
    walk(head, &mut c, 0, s, |seen| {
        if seen.written {
            return;
        }
        let (erased, beta) = (seen.position.erased(), seen.position.beta.abs());
        let x = column_norms(seen.state, hv);
        seen.position.pass_error(&mut e, &x);
        seen.position.pass_random(&mut random, &x);
        for ((x, e), v) in x.iter().zip(&random).zip(seen.position.v) {
            let x = x.hypot(*e);
            random_state.push(x);
            random_written.push((beta * v).hypot(erased * x));
        }
        for ((x, e), v) in x.into_iter().zip(&e).zip(seen.position.v) {
            state.push(x + e);
            written.push(beta * v.abs() + erased * (x + e));
        }
    });
    let mut all = Gradients {
        q: vec![0.0; s * qk],
        k: vec![0.0; s * qk],
        v: vec![0.0; s * hv],
        g: vec![0.0; s],
        beta: vec![0.0; s],
        c0: Vec::new(),
    };
    let mut f = column_norms(&dc, hv);
    let mut random = f.clone();
    let mut terms = vec![0.0; s];
    let keys = (qk as f64).sqrt();
    for t in (0..s).rev() {
        let position = head.at(t);
        let (q, k, beta) = (norm(position.q), norm(position.k), position.beta.abs());
        let row = t * hv..(t + 1) * hv;
        let (dh, x, w) = (&dh[row.clone()], &state[row.clone()], &written[row.clone()]);
        let scaled: Vec<f64> = dh.iter().map(|x| scale * x).collect();
        add_product(&mut dc, position.q, &scaled);
        f.iter_mut().zip(&scaled).for_each(|(f, dh)| *f += q * dh.abs());
        random.iter_mut().zip(&scaled).for_each(|(f, dh)| *f = f.hypot(q * dh));
        let y = column_norms(&dc, hv);
        let (mut of_q, mut of_k) = (0.0, 0.0);
        for c in 0..hv {
            let m = k * (y[c] + f[c]);
            let read = if position.erases { k * x[c] } else { 0.0 };
            all.beta[t] += m * (position.v[c].abs() + read);
            of_q += (x[c] + k * w[c]) * scaled[c].abs();
            let erased = if position.erases { x[c] * beta * m } else { 0.0 };
            of_k += (y[c] + f[c]) * w[c] + erased;
        }
        all.q[t * qk..][..qk].fill(of_q);
        all.k[t * qk..][..qk].fill(of_k);
        let minus: Vec<f64> =
            times(position.k, &dc, hv).iter().map(|du| -position.beta * du).collect();
        for c in 0..hv {
            let (x, w, y) =
                (random_state[t * hv + c], random_written[t * hv + c], y[c].hypot(random[c]));
            all.v[t * hv + c] = 2.0 * minus[c].abs() + beta * k * y;
            all.g[t] += (x * y).powi(2);
            let erased = if position.erases { x * beta * k * y } else { 0.0 };
            terms[t] += (q * scaled[c]).powi(2) * (x * x + (k * w).powi(2))
                + 2.0 * k * k * ((y * w).powi(2) + erased * erased);
        }
        if position.erases {
            add_product(&mut dc, position.k, &minus);
        }
        position.decay(&mut dc);
        let (most, erased) = (position.most(), position.erased() * k);
        for (random, y) in random.iter_mut().zip(&y) {
            *random = position.kept * (most * *random).hypot(erased * y);
        }
        f.iter_mut().zip(y).for_each(|(f, y)| *f = position.kept * (most * *f + erased * y));
    }
    for (t, g) in all.g.iter_mut().enumerate() {
        *g = (*g + terms[t..s.min(t + 64)].iter().sum::<f64>()).sqrt() / keys;
    }
    all.c0 = dc.iter().enumerate().map(|(at, dc)| f[at % hv] + dc.abs()).collect();
    all
}
