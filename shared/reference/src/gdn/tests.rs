use super::*;
use crate::testing::noise;
use approx::assert_relative_eq;

const SIZES: Sizes =
    Sizes { heads: 4, group: 2, positions: 11, qk: 3, hv: 2, scale: 0.57, erases: true };
const LINEAR: Sizes = Sizes { erases: false, ..SIZES };

/// q, k, v, g, beta, C0, dh and dCN; keys of length one, one like the other where they are `alike`.
fn drawn(sizes: Sizes, alike: f64) -> [Vec<f64>; 8] {
    let Sizes { heads, group, positions: s, qk, hv, .. } = sizes;
    let own = heads / group * s * qk;
    let common = noise(qk, 1);
    let mut k = noise(own, 2);
    for row in k.chunks_mut(qk) {
        row.iter_mut()
            .zip(&common)
            .for_each(|(k, common)| *k = alike * common + (1.0 - alike) * *k);
        let length = norm(row);
        row.iter_mut().for_each(|k| *k /= length);
    }
    let g = noise(heads * s, 3).iter().map(|x| 0.2 * (x - 1.0)).collect();
    let beta = noise(heads * s, 4).iter().map(|x| 0.5 + 0.45 * x).collect();
    let state = |seed| noise(heads * qk * hv, seed);
    let values = |seed| noise(heads * s * hv, seed);
    [noise(own, 5), k, values(6), g, beta, state(7), values(8), state(9)]
}

fn inputs([q, k, v, g, beta, c0, ..]: &[Vec<f64>; 8]) -> Inputs<'_> {
    Inputs { q, k, v, g, beta, c0: Some(c0) }
}

/// The chunkwise equations, with (I + A)⁻¹ by forward substitution: other sums, of the same.
#[test]
fn the_recurrence_is_the_chunkwise_form() {
    let sizes = Sizes { positions: 37, heads: 1, group: 1, qk: 5, hv: 3, scale: 0.4, erases: true };
    let Sizes { positions: s, qk, hv, scale, .. } = sizes;
    for alike in [0.0, 0.9] {
        let all = drawn(sizes, alike);
        let [q, k, v, g, beta, c0, ..] = &all;
        let row = |x: &'_ [f64], t: usize, n: usize| x[t * n..][..n].to_vec();
        let mut c = c0.clone();
        let mut h = Vec::new();
        for from in (0..s).step_by(16) {
            let to = s.min(from + 16);
            let gamma: Vec<f64> = (from..to).map(|t| g[from..=t].iter().sum()).collect();
            let of = |i: usize, j: usize| f64::exp(gamma[i] - gamma[j]);
            let mut written: Vec<Vec<f64>> = Vec::new();
            for i in 0..to - from {
                let key = row(k, from + i, qk);
                let read = times(&key, &c, hv);
                let mut own: Vec<f64> = (0..hv)
                    .map(|c| beta[from + i] * (v[(from + i) * hv + c] - gamma[i].exp() * read[c]))
                    .collect();
                for (j, earlier) in written.iter().enumerate() {
                    let a = beta[from + i] * dot(&key, &row(k, from + j, qk)) * of(i, j);
                    own.iter_mut().zip(earlier).for_each(|(own, x)| *own -= a * x);
                }
                written.push(own);
                let query = row(q, from + i, qk);
                let mut out = times(&query, &c, hv);
                out.iter_mut().for_each(|x| *x *= gamma[i].exp());
                for (j, w) in written.iter().enumerate() {
                    let p = dot(&query, &row(k, from + j, qk)) * of(i, j);
                    out.iter_mut().zip(w).for_each(|(out, w)| *out += p * w);
                }
                h.extend(out.iter().map(|x| scale * x));
            }
            let last = to - from - 1;
            c.iter_mut().for_each(|c| *c *= gamma[last].exp());
            for (j, w) in written.iter().enumerate() {
                let key: Vec<f64> = row(k, from + j, qk).iter().map(|k| k * of(last, j)).collect();
                add_product(&mut c, &key, w);
            }
        }
        let out = forward(inputs(&all), sizes);
        for (got, want) in [(out.h, h), (out.c, c)] {
            got.iter().zip(&want).for_each(|(a, b)| assert_relative_eq!(a, b, epsilon = 1e-14));
        }
    }
}

#[test]
fn the_gradients_are_those_of_differences() {
    for (sizes, alike) in [(SIZES, 0.0), (SIZES, 0.9), (LINEAR, 0.0)] {
        let mut all = drawn(SIZES, alike);
        let [dh, dc] = [all[6].clone(), all[7].clone()];
        let Gradients { q, k, v, g, beta, c0 } = backward(inputs(&all), &dh, Some(&dc), sizes);
        for (tensor, gradient) in [q, k, v, g, beta, c0].into_iter().enumerate() {
            assert_eq!(gradient.len(), all[tensor].len());
            for n in 0..gradient.len() {
                let step = 1e-5;
                let mut loss = |by: f64| {
                    let kept = all[tensor][n];
                    all[tensor][n] += by;
                    let out = forward(inputs(&all), sizes);
                    all[tensor][n] = kept;
                    dot(&out.h, &dh) + dot(&out.c, &dc)
                };
                let slope = (loss(step) - loss(-step)) / (2.0 * step);
                assert_relative_eq!(gradient[n], slope, epsilon = 1e-8, max_relative = 1e-6);
            }
        }
    }
}

/// A sequence in two parts, the state handed on, is the whole.
#[test]
fn a_state_goes_on() {
    let sizes = Sizes { heads: 1, group: 1, ..SIZES };
    let all = drawn(sizes, 0.5);
    let whole = forward(inputs(&all), sizes);
    let [q, k, v, g, beta, c0, ..] = &all;
    let cut = 4;
    let part = |from: usize, to: usize, c0: &[f64]| {
        let x = Inputs {
            q: &q[from * 3..to * 3],
            k: &k[from * 3..to * 3],
            v: &v[from * 2..to * 2],
            g: &g[from..to],
            beta: &beta[from..to],
            c0: Some(c0),
        };
        forward(x, Sizes { positions: to - from, ..sizes })
    };
    let first = part(0, cut, c0);
    let second = part(cut, 11, &first.c);
    assert_eq!([first.h, second.h].concat(), whole.h);
    assert_eq!(second.c, whole.c);
}

/// Where nothing is erased, the parallel form: h_i = s Σ_{j ≤ i} exp(Σ_{j < τ ≤ i} g_τ) w_j (q_i · k_j) v_j, and what is left of a
/// state.
#[test]
fn without_erasing_it_is_the_parallel_form() {
    let all = drawn(LINEAR, 0.0);
    let Sizes { heads, group, positions: s, qk, hv, scale, .. } = LINEAR;
    let [q, k, v, g, w, c0, ..] = &all;
    let out = forward(inputs(&all), LINEAR);
    for head in 0..heads {
        let row =
            |x: &'_ [f64], head: usize, t: usize, n: usize| x[(head * s + t) * n..][..n].to_vec();
        let kept = |from: usize, to: usize| g[head * s..][from..to].iter().sum::<f64>().exp();
        for i in 0..s {
            let query = row(q, head / group, i, qk);
            let mut h = times(&query, &c0[head * qk * hv..][..qk * hv], hv);
            h.iter_mut().for_each(|h| *h *= kept(0, i + 1));
            for j in 0..=i {
                let score = dot(&query, &row(k, head / group, j, qk)) * kept(j + 1, i + 1);
                let value = row(v, head, j, hv);
                h.iter_mut().zip(&value).for_each(|(h, v)| *h += score * w[head * s + j] * v);
            }
            for (got, want) in out.h[(head * s + i) * hv..][..hv].iter().zip(h) {
                assert_relative_eq!(*got, scale * want, epsilon = 1e-14);
            }
        }
    }
}

#[test]
fn magnitudes_are_no_smaller_than_what_they_are_of() {
    for (sizes, alike) in [(SIZES, 0.0), (SIZES, 0.9), (LINEAR, 0.0)] {
        let all = drawn(SIZES, alike);
        let (of, bound) = (forward(inputs(&all), sizes), magnitudes(inputs(&all), sizes));
        for (of, bound) in [(of.h, bound.h), (of.c, bound.c)] {
            assert_eq!(of.len(), bound.len());
            assert!(of.iter().zip(&bound).all(|(of, bound)| of.abs() <= bound * (1.0 + 1e-12)));
        }
        let x = inputs(&all);
        let of = backward(x, &all[6], Some(&all[7]), sizes);
        let bound = backward_magnitudes(x, &all[6], Some(&all[7]), sizes);
        for (of, bound) in [
            (of.q, bound.q),
            (of.k, bound.k),
            (of.v, bound.v),
            (of.g, bound.g),
            (of.beta, bound.beta),
            (of.c0, bound.c0),
        ] {
            assert_eq!(of.len(), bound.len());
            assert!(of.iter().zip(&bound).all(|(of, bound)| of.abs() <= bound * (1.0 + 1e-12)));
        }
    }
}

/// Of ∞, too, nothing is left.
#[test]
fn a_shut_gate_leaves_nothing_of_a_state() {
    let sizes = Sizes { heads: 1, group: 1, ..SIZES };
    let mut all = drawn(sizes, 0.0);
    all[3][0] = f64::NEG_INFINITY;
    let expected = (forward(inputs(&all), sizes), magnitudes(inputs(&all), sizes));
    all[5].fill(f64::INFINITY);
    assert_eq!((forward(inputs(&all), sizes), magnitudes(inputs(&all), sizes)), expected);
}

#[test]
#[should_panic(expected = "whole groups")]
fn groups_are_whole() {
    let sizes = Sizes { heads: 3, group: 2, positions: 1, qk: 1, hv: 1, scale: 1.0, erases: true };
    let inputs =
        Inputs { q: &[0.0], k: &[0.0], v: &[0.0; 3], g: &[0.0; 3], beta: &[0.0; 3], c0: None };
    forward(inputs, sizes);
}
