//! Softmax attention, forward and backward, with heads of K and V that several heads of Q share.
//!
//! ```text
//! S_ij = q_i · k_j / √D      lse_i = log Σ_j exp S_ij      P_ij = exp(S_ij − lse_i)      o_i = Σ_j P_ij v_j
//! dS_ij = P_ij (do_i · v_j − do_i · o_i)
//! dq_i = Σ_j dS_ij k_j / √D      dk_j = Σ_i dS_ij q_i / √D      dv_j = Σ_i P_ij do_i
//! ```
//!
//! Pairs are those with j ≤ i where it is causal, otherwise all. Head h of Q takes head h / group of K and V; dk and dv
//! are sums over the heads of a group. Source: FlashAttention (arXiv 2205.14135), section 2.2 and appendix B.

use rayon::prelude::*;

use crate::matmul::matmul;

/// Rows of scores at a time: all of them would be S² numbers.
const ROWS: usize = 1024;

/// The sizes of [`attention`].
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Heads of Q, of all sequences together.
    pub heads: usize,
    /// Heads of Q that share one of K and V.
    pub group: usize,
    /// Positions, S.
    pub positions: usize,
    /// Columns of a head, D.
    pub columns: usize,
    /// Whether a position sees no later one.
    pub causal: bool,
}

/// The tensors, row-major: `q` and `grad` \[heads, S, D\], `k` and `v` \[heads / group, S, D\].
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Queries.
    pub q: &'a [f64],
    /// Keys.
    pub k: &'a [f64],
    /// Values.
    pub v: &'a [f64],
    /// The gradient by o; without it there is no backward pass.
    pub grad: Option<&'a [f64]>,
}

/// Numbers for each output of both passes, in the shapes of the inputs; the gradients are empty without a backward pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outputs {
    /// As q.
    pub o: Vec<f64>,
    /// \[heads, S\].
    pub lse: Vec<f64>,
    /// As q.
    pub dq: Vec<f64>,
    /// As k.
    pub dk: Vec<f64>,
    /// As v.
    pub dv: Vec<f64>,
}

/// Some rows of a head: what is made of pairs of them with all positions.
struct Rows<'a> {
    /// As \[rows, D\].
    q: &'a [f64],
    grad: Option<&'a [f64]>,
    /// As \[S, D\], and their transposes.
    k: &'a [f64],
    v: &'a [f64],
    k_transposed: &'a [f64],
    v_transposed: &'a [f64],
    /// P, \[rows, S\].
    weights: Vec<f64>,
    lse: Vec<f64>,
}

/// Outputs, or magnitudes of them, of each piece of rows that `of_rows` is given; it adds to dk and dv of the head of K and V.
fn walk(
    inputs: Inputs<'_>,
    sizes: Sizes,
    of_rows: impl Fn(&Rows<'_>, &mut Outputs) + Sync,
) -> Outputs {
    let Sizes { heads, group, positions: s, columns: d, causal } = sizes;
    let head = s * d;
    assert!(heads.is_multiple_of(group), "whole groups");
    assert_eq!(inputs.q.len(), heads * head, "q");
    assert_eq!([inputs.k.len(), inputs.v.len()], [heads / group * head; 2], "k and v");
    assert!(inputs.grad.is_none_or(|grad| grad.len() == heads * head), "do");
    let scale = 1.0 / (d as f64).sqrt();
    let of_group = |shared: usize| {
        let of_columns = if inputs.grad.is_some() { head } else { 0 };
        let mut own =
            Outputs { dk: vec![0.0; of_columns], dv: vec![0.0; of_columns], ..Outputs::default() };
        let [k, v] = [inputs.k, inputs.v].map(|all| &all[shared * head..(shared + 1) * head]);
        let (k_transposed, v_transposed) = (&transposed(k, d)[..], &transposed(v, d)[..]);
        let firsts = || (0..s).step_by(ROWS);
        for (n, first) in (shared * group..(shared + 1) * group)
            .flat_map(|n| firsts().map(move |first| (n, first)))
        {
            let rows = ROWS.min(s - first);
            let at = n * head + first * d..n * head + (first + rows) * d;
            let q = &inputs.q[at.clone()];
            let mut weights = matmul(q, k_transposed, rows, s, d);
            let mut lse = Vec::with_capacity(rows);
            for (r, row) in weights.chunks_mut(s).enumerate() {
                let (pairs, none) = row.split_at_mut(if causal { first + r + 1 } else { s });
                pairs.iter_mut().for_each(|score| *score *= scale);
                let top = pairs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = pairs.iter().map(|score| (score - top).exp()).sum();
                lse.push(top + sum.ln());
                pairs.iter_mut().for_each(|score| *score = (*score - lse[r]).exp());
                none.fill(0.0);
            }
            let grad = inputs.grad.map(|grad| &grad[at]);
            of_rows(&Rows { q, grad, k, v, k_transposed, v_transposed, weights, lse }, &mut own);
        }
        own
    };
    let all: Vec<Outputs> = (0..heads / group).into_par_iter().map(of_group).collect();
    let joined = |part: fn(&Outputs) -> &[f64]| all.iter().flat_map(part).copied().collect();
    Outputs {
        o: joined(|own| &own.o),
        lse: joined(|own| &own.lse),
        dq: joined(|own| &own.dq),
        dk: joined(|own| &own.dk),
        dv: joined(|own| &own.dv),
    }
}

/// Both passes.
///
/// ```
/// use lab_reference::attention::{Inputs, Sizes, attention};
/// // The second position sees both, with scores 0 and 0: the mean of their values.
/// let inputs = Inputs { q: &[0.0, 0.0], k: &[1.0, 5.0], v: &[3.0, 4.0], grad: None };
/// let sizes = Sizes { heads: 1, group: 1, positions: 2, columns: 1, causal: true };
/// let outputs = attention(inputs, sizes);
/// assert_eq!(outputs.o, [3.0, 3.5]);
/// assert_eq!(outputs.lse, [0.0, 2f64.ln()]);
/// ```
///
/// # Panics
/// The lengths are not those of the sizes.
pub fn attention(inputs: Inputs<'_>, sizes: Sizes) -> Outputs {
    let (s, d) = (sizes.positions, sizes.columns);
    let scale = 1.0 / (d as f64).sqrt();
    walk(inputs, sizes, |rows, all| {
        let count = rows.lse.len();
        let o = matmul(&rows.weights, rows.v, count, d, s);
        all.lse.extend(&rows.lse);
        if let Some(grad) = rows.grad {
            let mut slopes = matmul(grad, rows.v_transposed, count, s, d);
            for (r, row) in slopes.chunks_mut(s).enumerate() {
                let delta = dot(&grad[r * d..][..d], &o[r * d..][..d]);
                let weights = &rows.weights[r * s..][..s];
                row.iter_mut()
                    .zip(weights)
                    .for_each(|(slope, weight)| *slope = weight * (*slope - delta));
            }
            all.dq.extend(matmul(&slopes, rows.k, count, d, s).iter().map(|sum| scale * sum));
            add(&mut all.dk, &matmul(&transposed(&slopes, s), rows.q, s, d, count), scale);
            add(&mut all.dv, &matmul(&transposed(&rows.weights, s), grad, s, d, count), 1.0);
        }
        all.o.extend(o);
    })
}

/// What the rounding errors of each output are relative to, where scores and products are sums whose terms are each off by
/// a share of their size.
///
/// A score is off in proportion to A_ij = Σ |q||k| / √D, so that P_ij is to P_ij (1 + A_ij + e_i), with e_i = Σ_j P_ij A_ij
/// by lse; do_i · v_j is off in proportion to its sum of absolute values, and do_i · o_i, too. Weights and slopes below
/// `normal`, the smallest normal number of the type that they are rounded to, are off by a share of that.
///
/// # Panics
/// As [`attention`].
pub fn magnitudes(inputs: Inputs<'_>, sizes: Sizes, normal: f64) -> Outputs {
    let (s, d) = (sizes.positions, sizes.columns);
    let scale = 1.0 / (d as f64).sqrt();
    // Of no pair nothing is rounded.
    let floor = |weight: f64| if weight > 0.0 { normal } else { 0.0 };
    let absolute = |of: &[f64]| of.iter().map(|x| x.abs()).collect::<Vec<_>>();
    walk(inputs, sizes, |rows, all| {
        let count = rows.lse.len();
        let (q, k, v) = (absolute(rows.q), absolute(rows.k), absolute(rows.v));
        let mut weights = matmul(&q, &absolute(rows.k_transposed), count, s, d);
        for (r, row) in weights.chunks_mut(s).enumerate() {
            let p = &rows.weights[r * s..][..s];
            let of_row = scale * dot(row, p);
            row.iter_mut()
                .zip(p)
                .for_each(|(sum, p)| *sum = (p * (1.0 + scale * *sum + of_row)).max(floor(*p)));
            all.lse.push(1.0 + of_row);
        }
        if let Some(grad) = rows.grad {
            let grad = absolute(grad);
            let o = absolute(&matmul(&rows.weights, rows.v, count, d, s));
            let mut slopes = matmul(&grad, &absolute(rows.v_transposed), count, s, d);
            for (r, row) in slopes.chunks_mut(s).enumerate() {
                let delta = dot(&grad[r * d..][..d], &o[r * d..][..d]);
                let weights = &weights[r * s..][..s];
                row.iter_mut().zip(weights).for_each(|(slope, weight)| {
                    *slope = (weight * (*slope + delta)).max(floor(*weight))
                });
            }
            all.dq.extend(matmul(&slopes, &k, count, d, s).iter().map(|sum| scale * sum));
            add(&mut all.dk, &matmul(&transposed(&slopes, s), &q, s, d, count), scale);
            add(&mut all.dv, &matmul(&transposed(&weights, s), &grad, s, d, count), 1.0);
        }
        all.o.extend(matmul(&weights, &v, count, d, s));
    })
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(to: &mut [f64], sum: &[f64], factor: f64) {
    to.iter_mut().zip(sum).for_each(|(to, sum)| *to += factor * sum);
}

/// Of a matrix with so many columns, by squares: a column of them stays in the cache while its rows are written.
fn transposed(matrix: &[f64], columns: usize) -> Vec<f64> {
    const SIDE: usize = 32;
    let rows = matrix.len() / columns;
    let mut all = vec![0.0; matrix.len()];
    for (r0, c0) in
        (0..rows).step_by(SIDE).flat_map(|r0| (0..columns).step_by(SIDE).map(move |c0| (r0, c0)))
    {
        for c in c0..columns.min(c0 + SIDE) {
            for r in r0..rows.min(r0 + SIDE) {
                all[c * rows + r] = matrix[r * columns + c];
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;

    fn some(len: usize, step: usize) -> Vec<f64> {
        (0..len).map(|i| ((i * step % 23) as f64 - 11.0) / 11.0).collect()
    }

    const SIZES: [Sizes; 4] = [
        Sizes { heads: 1, group: 1, positions: 1, columns: 1, causal: true },
        Sizes { heads: 4, group: 2, positions: 5, columns: 3, causal: true },
        Sizes { heads: 3, group: 3, positions: 7, columns: 2, causal: false },
        Sizes { heads: 1, group: 1, positions: 1030, columns: 2, causal: true },
    ];

    #[test]
    fn the_forward_pass_equals_the_plainest_code() {
        for sizes in SIZES {
            let Sizes { heads, group, positions: s, columns: d, causal } = sizes;
            let (q, k, v) = (
                some(heads * s * d, 7),
                some(heads / group * s * d, 5),
                some(heads / group * s * d, 3),
            );
            let outputs = attention(Inputs { q: &q, k: &k, v: &v, grad: None }, sizes);
            for n in 0..heads {
                for i in 0..s {
                    let last = if causal { i + 1 } else { s };
                    let shared = n / group * s * d;
                    let weights: Vec<f64> = (0..last)
                        .map(|j| {
                            let dot: f64 = (0..d)
                                .map(|c| q[(n * s + i) * d + c] * k[shared + j * d + c])
                                .sum();
                            (dot / (d as f64).sqrt()).exp()
                        })
                        .collect();
                    let sum: f64 = weights.iter().sum();
                    assert_relative_eq!(
                        outputs.lse[n * s + i],
                        sum.ln(),
                        epsilon = 1e-12,
                        max_relative = 1e-12
                    );
                    for c in 0..d {
                        let o: f64 =
                            (0..last).map(|j| weights[j] * v[shared + j * d + c]).sum::<f64>()
                                / sum;
                        assert_relative_eq!(
                            outputs.o[(n * s + i) * d + c],
                            o,
                            epsilon = 1e-12,
                            max_relative = 1e-12
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn the_gradients_are_those_of_differences() {
        for sizes in &SIZES[..3] {
            let Sizes { heads, group, positions: s, columns: d, .. } = *sizes;
            let (own, shared) = (heads * s * d, heads / group * s * d);
            let mut tensors = [some(own, 7), some(shared, 5), some(shared, 3)];
            let grad = some(own, 11);
            let inputs =
                |[q, k, v]: &[Vec<f64>; 3], grad| attention(Inputs { q, k, v, grad }, *sizes);
            let Outputs { dq, dk, dv, .. } = inputs(&tensors, Some(&grad));
            for (t, gradient) in [dq, dk, dv].iter().enumerate() {
                for n in 0..gradient.len() {
                    let step = 1e-5;
                    let mut loss = |by: f64| {
                        let kept = tensors[t][n];
                        tensors[t][n] += by;
                        let loss = dot(&inputs(&tensors, None).o, &grad);
                        tensors[t][n] = kept;
                        loss
                    };
                    let slope = (loss(step) - loss(-step)) / (2.0 * step);
                    assert_relative_eq!(gradient[n], slope, epsilon = 1e-8, max_relative = 1e-6);
                }
            }
        }
    }

    #[test]
    fn magnitudes_are_no_smaller_than_what_they_are_of() {
        for sizes in SIZES {
            let Sizes { heads, group, positions: s, columns: d, .. } = sizes;
            let (own, shared) = (heads * s * d, heads / group * s * d);
            let (q, k, v, grad) = (some(own, 7), some(shared, 5), some(shared, 3), some(own, 11));
            let inputs = Inputs { q: &q, k: &k, v: &v, grad: Some(&grad) };
            let (of, bound) = (attention(inputs, sizes), magnitudes(inputs, sizes, 0.0));
            for (of, bound) in
                [(of.o, bound.o), (of.dq, bound.dq), (of.dk, bound.dk), (of.dv, bound.dv)]
            {
                assert_eq!(of.len(), bound.len());
                assert!(of.iter().zip(&bound).all(|(of, bound)| of.abs() <= bound * (1.0 + 1e-12)));
            }
        }
    }

    #[test]
    #[should_panic(expected = "whole groups")]
    fn groups_are_whole() {
        let sizes = Sizes { heads: 3, group: 2, positions: 1, columns: 1, causal: true };
        attention(Inputs { q: &[0.0; 3], k: &[0.0], v: &[0.0], grad: None }, sizes);
    }
}
