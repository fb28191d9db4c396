//! What the roundings of each element are relative to, of each output that is computed and not only moved: the terms that
//! it is a sum of, without their signs. [`Output::elements`](lab_harness::Output::elements) has the factors, beside each output.
//!
//! All is computed in f32, and the logistic function by powers of two: rounding its argument changes a power by as much as
//! the argument is large. Only the residual stream is stored in between, in the run's type: what is made of it is off
//! by that rounding too.

use lab_device::DType;
use lab_harness::compare::{Magnitudes, each, unit, unit_roundoff};
use lab_harness::family::Reference;
use lab_reference::playg::sigmoid;

use crate::pass::Operands;

/// So many roundings of f32, in runs of every type.
pub(crate) const fn in_f32(times: f64) -> [(DType, f64); 3] {
    let bound = times * unit::F32;
    [(DType::F32, bound), (DType::F16, bound), (DType::BF16, bound)]
}

/// So many roundings of f32, or so many of the run's type, in which the residual stream is stored.
pub(crate) const fn of_stream(times: f64, of_halves: f64) -> [(DType, f64); 3] {
    [
        (DType::F32, times * unit::F32),
        (DType::F16, of_halves * unit::F16),
        (DType::BF16, of_halves * unit::BF16),
    ]
}

/// Of outputs that are moved and not computed, which are right to the last bit.
pub(crate) fn none(_: &Operands<'_>, _: &Reference) -> Magnitudes {
    Magnitudes::new()
}

/// Each output's own size: it is one product, or one rounding.
pub(crate) fn own_size(_: &Operands<'_>, reference: &Reference) -> Magnitudes {
    let absolute = |values: &[f64]| values.iter().map(|v| v.abs()).collect();
    each(reference.iter().map(|(name, values)| (*name, absolute(values))).collect())
}

fn mean(values: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = values.len() as f64;
    values.sum::<f64>() / count
}

fn add_to(sums: &mut [f64], terms: impl Iterator<Item = f64>) {
    sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
}

/// n = (x − mean) / √(mean of squares + ε) of a row.
struct Normalized {
    n: Vec<f64>,
    /// Of each n the sizes of x and of the mean's terms, which may cancel, and its own, by which the root is off.
    terms: Vec<f64>,
    scale: f64,
    is_centered: bool,
}

impl Normalized {
    fn of(row: &[f64], eps: f64, is_centered: bool) -> Self {
        let by_mean = if is_centered { 1.0 } else { 0.0 };
        let middle = by_mean * mean(row.iter().copied());
        let sizes = by_mean * mean(row.iter().map(|v| v.abs()));
        let scale = 1.0 / (mean(row.iter().map(|v| (v - middle).powi(2))) + eps).sqrt();
        let n: Vec<f64> = row.iter().map(|v| (v - middle) * scale).collect();
        let terms = row.iter().zip(&n).map(|(v, n)| scale * (v.abs() + sizes) + n.abs()).collect();
        Self { n, terms, scale, is_centered }
    }

    /// Of the gradient by x, where e is that by n: scale (e − mean e − n mean(e n)). What is off by the roundings of n and of
    /// the root counts once, all else `others` times. `e_terms` is what e's own roundings are relative to.
    fn gradient(&self, e: &[f64], e_terms: &[f64], others: f64) -> Vec<f64> {
        let Self { n, terms, scale, is_centered } = self;
        let by_mean = if *is_centered { 1.0 } else { 0.0 };
        let dot = mean(e.iter().zip(n).map(|(e, n)| e * n));
        let middle = by_mean * mean(e.iter().copied());
        let sizes = by_mean * mean(e_terms.iter().copied());
        let of_n = mean(e.iter().zip(terms).map(|(e, terms)| e.abs() * terms));
        let of_e = others * mean(e_terms.iter().zip(n).map(|(e, n)| e * n.abs()));
        let cell = |c: usize| {
            let of_root = (e[c] - middle - n[c] * dot).abs();
            let of_dot = n[c].abs() * (of_n + of_e) + terms[c] * dot.abs();
            scale * (of_root + of_dot + others * (e_terms[c] + sizes))
        };
        (0..n.len()).map(cell).collect()
    }
}

/// In units of the stream's roundoff: the norm reads it as it is stored.
pub(crate) fn rms_norm(of: &Operands<'_>, reference: &Reference) -> Magnitudes {
    let [x, added, weight] = ["x", "added", "weight"].map(|name| of.values(name));
    let is_centered = of.text("norm") == "layer";
    let stream: Vec<f64> = x.iter().zip(&added).map(|(x, a)| x + a).collect();
    // Of the stream itself no more than the rounding of a sum in f32, before it is stored.
    let others = unit::F32 / unit_roundoff(of.tensor("x").dtype);
    let is_back = reference.iter().any(|r| r.0 == "dx");
    let [dy, residual] =
        ["dy", "residual"].map(|name| if is_back { of.values(name) } else { Vec::new() });
    let (mut y, mut dx, mut dweight) = (Vec::new(), Vec::new(), vec![0.0; weight.len()]);
    for (r, row) in stream.chunks(weight.len()).enumerate() {
        let norm = Normalized::of(row, of.number("eps"), is_centered);
        y.extend(norm.terms.iter().zip(&weight).map(|(terms, w)| terms * w.abs()));
        if !is_back {
            continue;
        }
        let cells = r * weight.len()..(r + 1) * weight.len();
        let (dy, residual) = (&dy[cells.clone()], &residual[cells]);
        let e: Vec<f64> = dy.iter().zip(&weight).map(|(d, w)| d * w).collect();
        let sizes: Vec<f64> = e.iter().map(|e| e.abs()).collect();
        let gradient = norm.gradient(&e, &sizes, others);
        dx.extend(gradient.iter().zip(residual).map(|(d, above)| d + others * above.abs()));
        add_to(&mut dweight, dy.iter().zip(&norm.terms).map(|(d, terms)| d.abs() * terms));
    }
    let sum = stream.iter().map(|s| others * s.abs()).collect();
    let mut all = vec![("sum", sum), ("y", y)];
    if is_back {
        all.extend([("dx", dx), ("dweight", dweight)]);
    }
    each(all)
}

/// σ(x), and what its rounding is relative to.
fn logistic(x: f64) -> (f64, f64) {
    let s = sigmoid(x);
    (s, s * (1.0 + x.abs() * (1.0 - s)))
}

/// h as \[B, S, NH, D\], the gradient by it as it is stored, \[B, NH, S, D\].
pub(crate) fn head_norm(of: &Operands<'_>, reference: &Reference) -> Magnitudes {
    let sizes = ["B", "S", "NH", "DHHV"].map(|name| of.dim(name));
    let [_, _, heads, width] = sizes;
    let h = lab_reference::passes::merge_heads(&of.values("h"), sizes);
    let (ogate, weight) = (of.values("ogate"), of.values("weight"));
    let dout = reference.iter().any(|r| r.0 == "dh").then(|| of.values("dout"));
    let (mut out, mut dh, mut dogate) = (Vec::new(), Vec::new(), Vec::new());
    let mut dweight = vec![0.0; weight.len()];
    for (vector, row) in h.chunks(width).enumerate() {
        let norm = Normalized::of(row, of.number("eps"), true);
        let cells = vector * width..(vector + 1) * width;
        let own = vector % heads * width..(vector % heads + 1) * width;
        let weight = &weight[own.clone()];
        let gates: Vec<(f64, f64)> = ogate[cells.clone()].iter().map(|o| logistic(*o)).collect();
        let terms = |c: usize| norm.terms[c] * gates[c].1;
        out.extend((0..width).map(|c| terms(c) * weight[c].abs()));
        let Some(dout) = dout.as_ref().map(|all| &all[cells]) else { continue };
        // 1 − σ is off by the rounding of numbers near 1.
        dogate.extend((0..width).map(|c| (dout[c] * weight[c]).abs() * terms(c)));
        add_to(&mut dweight[own], (0..width).map(|c| dout[c].abs() * terms(c)));
        let e: Vec<f64> = (0..width).map(|c| dout[c] * weight[c] * gates[c].0).collect();
        let of_e: Vec<f64> = (0..width).map(|c| (dout[c] * weight[c]).abs() * gates[c].1).collect();
        dh.extend(norm.gradient(&e, &of_e, 1.0));
    }
    let mut all = vec![("out", out)];
    if dout.is_some() {
        let dh = lab_reference::passes::split_heads(&dh, sizes);
        all.extend([("dh", dh), ("dogate", dogate), ("dweight", dweight)]);
    }
    each(all)
}

/// Products, whose only sum is σ + a σ (1 − σ), with 1 − σ as large as 1.
pub(crate) fn swiglu(of: &Operands<'_>, reference: &Reference) -> Magnitudes {
    let (gate_up, width) = (of.values("gate_up"), of.dim("C"));
    let du = reference.iter().any(|r| r.0 == "dgate_up").then(|| of.values("du"));
    let (mut u, mut d) = (Vec::new(), Vec::new());
    for (r, row) in gate_up.chunks(2 * width).enumerate() {
        let (gate, up) = row.split_at(width);
        let silu = |a: &f64| a.abs() * logistic(*a).1;
        u.extend(gate.iter().zip(up).map(|(a, b)| silu(a) * b.abs()));
        let Some(du) = du.as_ref().map(|all| &all[r * width..][..width]) else { continue };
        let of_gate =
            |((a, b), du): ((&f64, &f64), &f64)| (du * b).abs() * logistic(*a).1 * (1.0 + a.abs());
        d.extend(gate.iter().zip(up).zip(du).map(of_gate));
        d.extend(gate.iter().zip(du).map(|(a, du)| du.abs() * silu(a)));
    }
    let mut all = vec![("u", u)];
    all.extend(du.map(|_| ("dgate_up", d)));
    each(all)
}

/// The slope of cap · tanh(a / cap) is 1 at most, so a gate is off by the terms of a. Back, 1 − tanh² is off by the
/// rounding of numbers near 1.
pub(crate) fn soft_cap_gates(of: &Operands<'_>, reference: &Reference) -> Magnitudes {
    let (positions, heads) = (of.dim("S"), of.dim("NH"));
    let (pre, bias) = (of.values("pre"), of.values("bias"));
    let d = reference.iter().any(|r| r.0 == "dpre");
    let d = d.then(|| ["di", "df"].map(|name| of.values(name)));
    let mut gates = [vec![0.0; pre.len() / 2], vec![0.0; pre.len() / 2]];
    let (mut dpre, mut dbias) = (vec![0.0; pre.len()], vec![0.0; bias.len()]);
    for (at, a) in pre.iter().enumerate() {
        let (row, c) = (at / bias.len(), at % bias.len());
        let place = (row / positions * heads + c % heads) * positions + row % positions;
        gates[c / heads][place] = a.abs() + bias[c].abs();
        if let Some(d) = &d {
            dpre[at] = d[c / heads][place].abs();
            dbias[c] += dpre[at];
        }
    }
    let [i, f] = gates;
    let mut all = vec![("i", i), ("f", f)];
    if d.is_some() {
        all.extend([("dpre", dpre), ("dbias", dbias)]);
    }
    each(all)
}

/// Of each pair of columns that is turned its length, which |x cos| + |y sin| is at most.
fn pair_lengths(turned: &[f64], width: usize) -> Vec<f64> {
    let half = width / 2;
    let of_vector = |cells: &[f64]| -> Vec<f64> {
        (0..width).map(|c| cells[c % half].hypot(cells[c % half + half])).collect()
    };
    turned.chunks(width).flat_map(of_vector).collect()
}

pub(crate) fn rope(of: &Operands<'_>, reference: &Reference) -> Magnitudes {
    let width = of.dim("D");
    each(reference.iter().map(|(name, all)| (*name, pair_lengths(all, width))).collect())
}

/// As [`rope`]; what was in the cache stays as it is.
pub(crate) fn append(of: &Operands<'_>, reference: &Reference) -> Magnitudes {
    let [heads, room, width] = ["NKV", "T", "D"].map(|name| of.dim(name));
    let lengths = of.ids("lengths");
    let values = |name: &str| &reference.iter().find(|r| r.0 == name).expect("an output").1;
    let is_new = |at: usize| {
        let row = at / width;
        (row % room) as i64 + 1 == lengths[row / room / heads]
    };
    let keys = pair_lengths(values("keys_after"), width).into_iter().enumerate();
    let keys = keys.map(|(at, length)| if is_new(at) { length } else { 0.0 }).collect();
    each(vec![("q_turned", pair_lengths(values("q_turned"), width)), ("keys_after", keys)])
}

/// Σ|dy| of the rows of a token.
pub(crate) fn embedding_back(of: &Operands<'_>, _: &Reference) -> Magnitudes {
    let dy: Vec<f64> = of.values("dy").into_iter().map(f64::abs).collect();
    let (tokens, width) = (of.ids("tokens"), of.dim("E"));
    let sums = lab_reference::passes::embedding_back(&tokens, &dy, of.dim("V"), width);
    each(vec![("dweight", sums)])
}
