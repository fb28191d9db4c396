//! What the rounding errors of the vLSTM's outputs are relative to: the sums of the forward and the
//! backward pass without their cancellation, from the same reference.
//!
//! With A_i = Σ_j |C̃_ij| |v_j| and L_i = max(Σ_j |C̃_ij|, exp(−m_i)), which the reference gives of |q|, |k|, |v| and
//! of |C₀|, |n₀|, and N_i = n_i + ε of the inputs as they are:
//!
//! ```text
//! n:  L_i + exp(−m_i) |m|ᵢ
//! h:  (A_i + |h_i| L_i) / N_i              the quotient's: its numerator's and its denominator's
//! m:  what is added up on the way to it, |logsigmoid f| of each step and |i| of the one that it starts from
//! ```
//!
//! The weight of row i in the backward pass is dh_i / N_i, which is off by L_i / N_i relative to itself. So the
//! gradients are those of the reference for |q|, |k|, |v| and |dh_i| (1 + L_i / N_i) / N_i in its place. Through the
//! normaliser goes |r_i| ≤ (|dh_i| · h-magnitude_i + |dh_i · h_i| L_i / N_i) / N_i to each |C̃_ij|, as one column more
//! of dh beside a column of ones of v, under which n₀ stands in C₀ and dn_N in dC_N: dn₀ comes out there.
//! df is Σ_{i ≥ t} Σ_{j < t} dD̃_ij by its definition, and Σ_{τ ≥ t} (q_τ·dq_τ − k_τ·dk_τ) as it is computed, where
//! all dD̃_ij but those cancel. What is rounded alike on both sides cancels too; what is not, a rounding of each of the
//! terms, adds up as what is random does (Higham & Mary 2019, "A new approach to probabilistic rounding error
//! analysis"):
//!
//! ```text
//! df: sigmoid(−f_t) (Σ_{i ≥ t} Σ_{j < t} |dD̃_ij| + √Σ_{τ ≥ t} (|q_τ|·|dq_τ| + |k_τ|·|dk_τ|)²)
//! ```

use lab_reference::vlstm::{
    Inputs, NormalizerGrad, Sizes, State, StateGradient, backward_in_pieces, forward_in_pieces,
    log_sigmoid,
};

use super::{References, first_state, forward_reference, head_sizes, last_gradient, piece_of};
use lab_harness::compare::{unit, unit_roundoff};
use lab_harness::{Reference, Tensor, Tensors};

/// Of all outputs of the forward pass; of the backward pass too, where `through` is given.
pub(super) fn magnitudes(
    inputs: &Tensors,
    epsilon: f64,
    through: Option<NormalizerGrad>,
    reference: &Reference,
) -> References {
    let of = |name: &str| {
        &reference.iter().find(|r| r.0 == name).expect("an output of the forward pass").1
    };
    let sizes = head_sizes(inputs);
    let [q, k, v, dh] = ["q", "k", "v", "dh"].map(|name| match inputs.get(name) {
        Some(tensor) => absolute(&tensor.values()),
        None => Vec::new(),
    });
    let [i, f] = ["i", "f"].map(|name| inputs[name].values());
    let given = first_state(inputs);
    let state = State { c: absolute(&given.c), n: absolute(&given.n), m: given.m };
    let x = Inputs { q: &q, k: &k, v: &v, i: &i, f: &f };
    // Where nothing is added up, a quotient of zeros is 0.
    const LEAST: f64 = f64::MIN_POSITIVE;
    let (sums, last) = forward_in_pieces(x, &state, sizes, LEAST, piece_of(sizes));
    let (m, mn) = exponents(&i, &f, &state.m, sizes.positions);
    let (h, n) = (of("h"), of("n"));
    let of_row = |row: usize| {
        let whole = sums.n[row] + (-sums.m[row]).exp() * m[row];
        (whole, n[row] + epsilon)
    };
    let rows = sums.n.len();
    let of_n: Vec<f64> = (0..rows).map(|row| of_row(row).0).collect();
    let of_h: Vec<f64> = (0..h.len())
        .map(|at| {
            let (whole, divisor) = of_row(at / sizes.hv);
            let numerator = sums.h[at] * (sums.n[at / sizes.hv] + LEAST);
            (numerator + h[at].abs() * whole) / divisor
        })
        .collect();
    let mut all = vec![("n", of_n), ("m", m.clone()), ("mN", mn)];
    if let Some(through) = through {
        let weights = |row: usize| {
            let (whole, divisor) = of_row(row);
            // The reference divides by the sum of the absolute values.
            (whole / divisor, (sums.n[row] + LEAST) / divisor)
        };
        let hv = sizes.hv;
        let last = last_gradient(inputs, &state);
        let wider = Sizes { hv: hv + 1, ..sizes };
        let x = Inputs { v: &beside(&v, hv, &vec![1.0; rows]), ..x };
        let state_of = State { c: beside(&state.c, hv, &state.n), ..state.clone() };
        let last = StateGradient {
            c: beside(&absolute(&last.c), hv, &absolute(&last.n)),
            n: vec![0.0; last.n.len()],
        };
        // With an h that is off by so much of itself, where the gradient through n is made of it.
        let gradients = |of_rounded: f64| {
            let mut upstream = Vec::with_capacity(rows * (hv + 1));
            for row in 0..rows {
                let (own, h, of_h) =
                    (&dh[row * hv..][..hv], &h[row * hv..][..hv], &of_h[row * hv..][..hv]);
                let (relative, factor) = weights(row);
                upstream.extend(own.iter().map(|dh| dh * (1.0 + relative) * factor));
                let dot =
                    |other: &[f64]| own.iter().zip(other).map(|(a, b)| a * b.abs()).sum::<f64>();
                upstream.push(match through {
                    NormalizerGrad::Exact => {
                        (dot(of_h) + dot(h) * (1.0 + relative + of_rounded)) * factor
                    }
                    NormalizerGrad::Constant => 0.0,
                });
            }
            backward_in_pieces(
                x,
                &upstream,
                &state_of,
                &last,
                wider,
                LEAST,
                NormalizerGrad::Constant,
                piece_of(sizes),
            )
        };
        let (mut g, first) = gradients(0.0);
        // The h at hand is a rounded one. To gradients in halves that is a rounding like their own, but not to those in f32.
        let rounding = unit_roundoff(inputs["q"].dtype);
        if through == NormalizerGrad::Exact && rounding > unit::F32 {
            let (of_gates, _) = gradients(rounding / unit::F32);
            (g.di, g.df) = (of_gates.di, of_gates.df);
        }
        let (dc0, dn0) = apart(&first.c, hv);
        let (qk, positions) = (sizes.qk, sizes.positions);
        let mut df = absolute(&g.df);
        for (head, df) in df.chunks_mut(positions).enumerate() {
            let mut later = 0f64;
            for t in (0..positions).rev() {
                let row = head * positions + t;
                let dot = |a: &[f64], b: &[f64]| {
                    let at = row * qk..(row + 1) * qk;
                    a[at.clone()].iter().zip(&b[at]).map(|(a, b)| a * b).sum::<f64>()
                };
                later += (dot(&q, &g.dq) + dot(&k, &g.dk)).powi(2);
                df[t] += log_sigmoid(-f[row]).exp() * later.sqrt();
            }
        }
        let mut dv = apart(&g.dv, hv).0;
        let of_vanished = of_vanished_weights([&q, &k, &v, &dh], sizes);
        for gradient in [&mut g.dq, &mut g.dk, &mut dv, &mut g.di, &mut df] {
            gradient.iter_mut().for_each(|m| *m += of_vanished);
        }
        all.extend([("dq", g.dq), ("dk", g.dk), ("dv", dv)]);
        all.extend([("di", g.di), ("df", df), ("dC0", dc0), ("dn0", dn0)]);
    }
    all.extend([("h", of_h), ("CN", last.c), ("nN", last.n)]);
    all
}

/// What weights below the least f32 that is no subnormal come to, in units of roundoff: on a GPU they are 0. More than the sum of such
/// weights over all pairs of positions, times all that may stand beside one.
fn of_vanished_weights(tensors: [&[f64]; 4], sizes: Sizes) -> f64 {
    let largest = |all: &[f64]| all.iter().fold(1.0, |most: f64, x| most.max(*x));
    let beside = tensors.map(largest).iter().product::<f64>();
    let terms = sizes.positions.pow(2) * sizes.qk * (sizes.hv + 1);
    f64::from(f32::MIN_POSITIVE) / unit::F32 * beside * terms as f64
}

/// What is added up on the way to each m, and to the last one of each head.
fn exponents(i: &[f64], f: &[f64], m0: &[f64], positions: usize) -> (Vec<f64>, Vec<f64>) {
    let (mut all, mut last) = (Vec::with_capacity(i.len()), Vec::new());
    for ((i, f), &m0) in i.chunks(positions).zip(f.chunks(positions)).zip(m0) {
        let (mut m, mut sum) = (m0, m0.abs());
        for (&i, &f) in i.iter().zip(f) {
            let kept = m + log_sigmoid(f);
            // Both are near one another, or the larger one is told from the smaller one.
            (m, sum) = if kept >= i { (kept, sum - log_sigmoid(f)) } else { (i, i.abs()) };
            all.push(sum);
        }
        last.push(sum);
    }
    (all, last)
}

fn absolute(values: &[f64]) -> Vec<f64> {
    values.iter().map(|v| v.abs()).collect()
}

/// Rows with one column more.
fn beside(rows: &[f64], columns: usize, column: &[f64]) -> Vec<f64> {
    rows.chunks(columns)
        .zip(column)
        .flat_map(|(row, last)| row.iter().chain([last]))
        .copied()
        .collect()
}

/// Rows without their last column, and that.
fn apart(rows: &[f64], columns: usize) -> (Vec<f64>, Vec<f64>) {
    let whole = rows.chunks(columns + 1);
    let column = whole.clone().map(|row| row[columns]).collect();
    (whole.flat_map(|row| &row[..columns]).copied().collect(), column)
}

/// Of the recurrent step, which is a sequence of one position.
pub(super) fn of_step(inputs: &Tensors, epsilon: f64) -> References {
    let [q, v] = ["q", "v"].map(|name| &inputs[name].shape);
    let [b, nh, dhqk, dhhv] = [q[0], q[1], q[2], v[2]];
    let mut all = Tensors::new();
    for (name, shape) in [
        ("q", &[b, nh, 1, dhqk][..]),
        ("k", &[b, nh, 1, dhqk]),
        ("v", &[b, nh, 1, dhhv]),
        ("i", &[b, nh, 1]),
        ("f", &[b, nh, 1]),
    ] {
        all.insert(name.into(), Tensor { shape: shape.to_vec(), ..inputs[name].clone() });
    }
    for name in ["C0", "n0", "m0"] {
        all.insert(name.into(), inputs[name].clone());
    }
    magnitudes(&all, epsilon, None, &forward_reference(&all, epsilon))
}
