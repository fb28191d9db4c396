//! What stands between the mixers of a language model, and the gradients of it.
//!
//! Rows are row-major, the last index fastest. A gradient is named after what it is the gradient of, with a `d` before.

use crate::playg::sigmoid;
use crate::training::{Adam, AdamState, clip_factor, global_norm};

/// RMSNorm (Zhang & Sennrich 2019, arXiv 1910.07467), or layer norm without a shift (Ba, Kiros & Hinton 2016, arXiv
/// 1607.06450), over the last index.
#[derive(Clone, Debug)]
pub struct Norm {
    /// A factor for each column.
    pub weight: Vec<f64>,
    /// Added to the mean of squares.
    pub eps: f64,
    /// Whether each row's mean is subtracted first.
    pub centered: bool,
}

impl Norm {
    /// n of a row: without the weight; and 1 / √(mean of squares + ε).
    fn normalized(&self, row: &[f64]) -> (Vec<f64>, f64) {
        let columns = row.len() as f64;
        let mean = if self.centered { row.iter().sum::<f64>() / columns } else { 0.0 };
        let squares = row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / columns;
        let scale = 1.0 / (squares + self.eps).sqrt();
        (row.iter().map(|v| (v - mean) * scale).collect(), scale)
    }

    /// x + added, and its norm.
    ///
    /// # Panics
    /// The lengths differ.
    pub fn forward(&self, x: &[f64], added: &[f64]) -> (Vec<f64>, Vec<f64>) {
        assert_eq!(x.len(), added.len(), "added");
        let sum: Vec<f64> = x.iter().zip(added).map(|(x, a)| x + a).collect();
        let row = |row: &[f64]| -> Vec<f64> {
            self.normalized(row).0.iter().zip(&self.weight).map(|(n, w)| n * w).collect()
        };
        let y = sum.chunks(self.weight.len()).flat_map(row).collect();
        (sum, y)
    }

    /// From `dy` the gradients of the sum and of the weight.
    pub fn backward(&self, sum: &[f64], dy: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let columns = self.weight.len();
        let (mut d, mut dweight) = (Vec::with_capacity(sum.len()), vec![0.0; columns]);
        for (row, dy) in sum.chunks(columns).zip(dy.chunks(columns)) {
            let (n, scale) = self.normalized(row);
            let e: Vec<f64> = dy.iter().zip(&self.weight).map(|(d, w)| d * w).collect();
            dweight.iter_mut().zip(dy).zip(&n).for_each(|((dw, d), n)| *dw += d * n);
            d.extend(norm_gradient(&e, &n, scale, self.centered));
        }
        (d, dweight)
    }
}

/// Of n = (x − mean) · scale, where e is the gradient of n: the gradient of x.
fn norm_gradient(e: &[f64], n: &[f64], scale: f64, centered: bool) -> Vec<f64> {
    let columns = e.len() as f64;
    let dot = e.iter().zip(n).map(|(e, n)| e * n).sum::<f64>() / columns;
    let mean = if centered { e.iter().sum::<f64>() / columns } else { 0.0 };
    e.iter().zip(n).map(|(e, n)| scale * (e - mean - n * dot)).collect()
}

/// Layer norm over each head with an output gate: σ(o) · norm(h) · weight (xLSTM, arXiv 2405.04517). h and o are
/// \[rows, heads, width\].
#[derive(Clone, Copy, Debug)]
pub struct HeadNorm {
    /// NH.
    pub heads: usize,
    /// Columns of a head.
    pub width: usize,
    /// Added to the variance.
    pub eps: f64,
}

impl HeadNorm {
    fn norm(&self) -> Norm {
        Norm { weight: vec![1.0; self.width], eps: self.eps, centered: true }
    }

    /// The result; `weight` is \[heads, width\].
    pub fn forward(&self, h: &[f64], ogate: &[f64], weight: &[f64]) -> Vec<f64> {
        let n = self.norm().forward(h, &vec![0.0; h.len()]).1;
        let all = n.iter().zip(ogate).zip(weight.iter().cycle());
        all.map(|((n, o), w)| sigmoid(*o) * n * w).collect()
    }

    /// From `dout` the gradients of h, of the gate and of the weight.
    pub fn backward(
        &self,
        h: &[f64],
        ogate: &[f64],
        weight: &[f64],
        dout: &[f64],
    ) -> (Vec<f64>, Vec<f64>, Vec<f64>) {
        let mut dweight = vec![0.0; weight.len()];
        let (mut dh, mut dogate) = (Vec::new(), Vec::new());
        for (vector, h) in h.chunks(self.width).enumerate() {
            let (n, scale) = self.norm().normalized(h);
            let first = vector % self.heads * self.width;
            let mut e = vec![0.0; self.width];
            for c in 0..self.width {
                let (at, w) = (vector * self.width + c, weight[first + c]);
                let g = sigmoid(ogate[at]);
                dogate.push(dout[at] * n[c] * w * g * (1.0 - g));
                dweight[first + c] += dout[at] * g * n[c];
                e[c] = dout[at] * g * w;
            }
            dh.extend(norm_gradient(&e, &n, scale, true));
        }
        (dh, dogate, dweight)
    }
}

/// \[B, S, NH, D\] → \[B, NH, S, D\], of sizes in the first order.
pub fn split_heads(x: &[f64], [b, s, nh, d]: [usize; 4]) -> Vec<f64> {
    let from = |e: usize| {
        let (c, at) = (e % d, e / d);
        let (position, at) = (at % s, at / s);
        ((at / nh * s + position) * nh + at % nh) * d + c
    };
    (0..b * s * nh * d).map(|e| x[from(e)]).collect()
}

/// \[B, NH, S, D\] → \[B, S, NH, D\], of sizes in the second order.
pub fn merge_heads(x: &[f64], [b, s, nh, d]: [usize; 4]) -> Vec<f64> {
    split_heads(x, [b, nh, s, d])
}

/// silu(gate) · up, of rows of `width` columns of gate, then as many of up (Shazeer 2020, arXiv 2002.05202).
pub fn swiglu(gate_up: &[f64], width: usize) -> Vec<f64> {
    let row = |row: &[f64]| -> Vec<f64> {
        let (gate, up) = row.split_at(width);
        gate.iter().zip(up).map(|(a, b)| a * sigmoid(*a) * b).collect()
    };
    gate_up.chunks(2 * width).flat_map(row).collect()
}

/// From `du` the gradient of gate and up.
pub fn swiglu_back(gate_up: &[f64], du: &[f64], width: usize) -> Vec<f64> {
    let mut d = Vec::with_capacity(gate_up.len());
    for (row, du) in gate_up.chunks(2 * width).zip(du.chunks(width)) {
        let (gate, up) = row.split_at(width);
        let of_gate = |((a, b), du): ((&f64, &f64), &f64)| {
            let s = sigmoid(*a);
            du * b * s * (1.0 + a * (1.0 - s))
        };
        d.extend(gate.iter().zip(up).zip(du).map(of_gate));
        d.extend(gate.iter().zip(du).map(|(a, du)| du * a * sigmoid(*a)));
    }
    d
}

/// Gates with a soft cap, cap · tanh(a / cap), from rows of `heads` columns of i and as many of f; \[B, NH, S\] each.
#[derive(Clone, Copy, Debug)]
pub struct SoftCapGates {
    /// S: rows of a batch entry.
    pub positions: usize,
    /// NH.
    pub heads: usize,
    /// The largest that a gate can be.
    pub cap: f64,
}

impl SoftCapGates {
    /// Where the gate of a row and a column of its half lies.
    fn place(&self, row: usize, head: usize) -> usize {
        (row / self.positions * self.heads + head) * self.positions + row % self.positions
    }

    /// i and f.
    pub fn forward(&self, pre: &[f64], bias: &[f64]) -> [Vec<f64>; 2] {
        let mut gates = [vec![0.0; pre.len() / 2], vec![0.0; pre.len() / 2]];
        for (at, a) in pre.iter().enumerate() {
            let (row, c) = (at / (2 * self.heads), at % (2 * self.heads));
            let gate = self.cap * ((a + bias[c]) / self.cap).tanh();
            gates[c / self.heads][self.place(row, c % self.heads)] = gate;
        }
        gates
    }

    /// From `[di, df]` the gradients of the rows and of the bias.
    pub fn backward(&self, pre: &[f64], bias: &[f64], d: [&[f64]; 2]) -> (Vec<f64>, Vec<f64>) {
        let mut dbias = vec![0.0; bias.len()];
        let of = |(at, a): (usize, &f64)| {
            let (row, c) = (at / (2 * self.heads), at % (2 * self.heads));
            let t = ((a + bias[c]) / self.cap).tanh();
            let d = d[c / self.heads][self.place(row, c % self.heads)] * (1.0 - t * t);
            dbias[c] += d;
            d
        };
        let dpre = pre.iter().enumerate().map(of).collect();
        (dpre, dbias)
    }
}

/// Whether an id is a row of a table.
fn row_of(id: i64, rows: usize) -> Option<usize> {
    usize::try_from(id).ok().filter(|id| *id < rows)
}

/// The weight's row of each token; zeros of a token that it has none of.
pub fn embedding(tokens: &[i64], weight: &[f64], width: usize) -> Vec<f64> {
    let vocabulary = weight.len() / width;
    let row = |token: &i64| match row_of(*token, vocabulary) {
        Some(token) => weight[token * width..][..width].to_vec(),
        None => vec![0.0; width],
    };
    tokens.iter().flat_map(row).collect()
}

/// From `dy` the gradient of the weight.
pub fn embedding_back(tokens: &[i64], dy: &[f64], vocabulary: usize, width: usize) -> Vec<f64> {
    let mut dweight = vec![0.0; vocabulary * width];
    for (token, dy) in tokens.iter().zip(dy.chunks(width)) {
        let Some(token) = row_of(*token, vocabulary) else { continue };
        dweight[token * width..][..width].iter_mut().zip(dy).for_each(|(dw, d)| *dw += d);
    }
    dweight
}

/// Cross-entropy of logits with a soft cap, and a term that keeps the softmax's denominator near one (z-loss; PaLM, arXiv
/// 2204.02311, section 5).
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy {
    /// z = cap · tanh(logit / cap).
    pub cap: Option<f64>,
    /// ζ of ζ lse².
    pub z_loss: f64,
}

impl CrossEntropy {
    /// The loss of each row, their mean over the targets that are classes, and its gradient by the logits. Rows whose target
    /// is no class have neither.
    pub fn loss_and_gradient(
        &self,
        logits: &[f64],
        targets: &[i64],
        classes: usize,
    ) -> (Vec<f64>, f64, Vec<f64>) {
        let counted = targets.iter().filter(|t| row_of(**t, classes).is_some()).count() as f64;
        let (mut losses, mut d) = (Vec::new(), Vec::with_capacity(logits.len()));
        for (row, target) in logits.chunks(classes).zip(targets) {
            let Some(target) = row_of(*target, classes) else {
                losses.push(0.0);
                d.extend(vec![0.0; classes]);
                continue;
            };
            let capped = |x: &f64| self.cap.map_or(*x, |cap| cap * (x / cap).tanh());
            let z: Vec<f64> = row.iter().map(capped).collect();
            let largest = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let lse = z.iter().map(|z| (z - largest).exp()).sum::<f64>().ln() + largest;
            losses.push(lse - z[target] + self.z_loss * lse * lse);
            d.extend(z.iter().enumerate().map(|(c, z)| {
                let of_z = (z - lse).exp() * (1.0 + 2.0 * self.z_loss * lse)
                    - if c == target { 1.0 } else { 0.0 };
                of_z * self.cap.map_or(1.0, |cap| 1.0 - (z / cap).powi(2)) / counted
            }));
        }
        let loss = losses.iter().sum::<f64>() / counted;
        (losses, loss, d)
    }
}

/// Rotary positions (Su et al. 2021, arXiv 2104.09864) of rows of \[NH, D\], S of them a batch entry; halves are rotated as in
/// Llama. `is_back` turns the other way: the gradient.
pub fn rope(
    x: &[f64],
    [positions, heads, width]: [usize; 3],
    theta: f64,
    is_back: bool,
) -> Vec<f64> {
    let half = width / 2;
    let mut out = x.to_vec();
    for (vector, cells) in out.chunks_mut(width).enumerate() {
        let position = (vector / heads % positions) as f64;
        for c in 0..half {
            let angle = position * theta.powf(-2.0 * c as f64 / width as f64);
            let (sin, cos) = if is_back { -angle } else { angle }.sin_cos();
            let (first, second) = (cells[c], cells[c + half]);
            cells[c] = first * cos - second * sin;
            cells[c + half] = second * cos + first * sin;
        }
    }
    out
}

/// One position more of each sequence: q and k turned by it, as [`rope`] does, k and v put behind those of the positions before.
/// `new` are q \[B, NH, D\], k and v \[B, NKV, D\], the caches \[B, NKV, T, D\]; `lengths` are with the new position. The turned q, and both
/// caches.
pub fn append_to_cache(
    new: &[Vec<f64>; 3],
    caches: [Vec<f64>; 2],
    lengths: &[usize],
    [heads, shared_heads, room, width]: [usize; 4],
    theta: f64,
) -> [Vec<f64>; 3] {
    let [q, k, v] = new;
    let [mut keys, mut values] = caches;
    // The row of a sequence at its position: rows of zeros come before it.
    let turned = |x: &[f64], heads: usize, b: usize, position: usize| {
        let row = heads * width;
        let mut all = vec![0.0; position * row];
        all.extend(&x[b * row..][..row]);
        rope(&all, [position + 1, heads, width], theta, false)[position * row..].to_vec()
    };
    let mut q_turned = Vec::with_capacity(q.len());
    for (b, length) in lengths.iter().enumerate() {
        let position = length - 1;
        q_turned.extend(turned(q, heads, b, position));
        let k = turned(k, shared_heads, b, position);
        for h in 0..shared_heads {
            let (from, to) = (h * width, ((b * shared_heads + h) * room + position) * width);
            keys[to..to + width].copy_from_slice(&k[from..from + width]);
            let v = &v[b * shared_heads * width + from..][..width];
            values[to..to + width].copy_from_slice(v);
        }
    }
    [q_turned, keys, values]
}

/// Philox 4x32-10 (Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3"): four words.
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let ([mut c0, mut c1, mut c2, mut c3], [mut k0, mut k1]) = (counter, key);
    for _ in 0..10 {
        let p0 = 0xD251_1F53 * u64::from(c0);
        let p1 = 0xCD9E_8D57 * u64::from(c2);
        (c0, c1, c2, c3) =
            ((p1 >> 32) as u32 ^ c1 ^ k0, p1 as u32, (p0 >> 32) as u32 ^ c3 ^ k1, p0 as u32);
        (k0, k1) = (k0.wrapping_add(0x9E37_79B9), k1.wrapping_add(0xBB67_AE85));
    }
    [c0, c1, c2, c3]
}

/// x / (1 − rate), or 0 where the element's word is below rate · 2³²: four elements have a counter, whose high half is the
/// step of training and, from bit 48 on, the stream.
pub fn dropout(x: &[f64], rate: f64, [seed, step]: [u64; 2], stream: u64) -> Vec<f64> {
    let halves = |v: u64| [v as u32, (v >> 32) as u32];
    let ([k0, k1], [c2, c3]) = (halves(seed), halves(stream << 48 | step));
    let threshold = (rate * 2f64.powi(32)) as u32;
    let element = |(n, x): (usize, &f64)| {
        let [c0, c1] = halves(n as u64 / 4);
        let word = philox([c0, c1, c2, c3], [k0, k1])[n % 4];
        if word >= threshold { x / (1.0 - rate) } else { 0.0 }
    };
    x.iter().enumerate().map(element).collect()
}

/// The first step of AdamW from these moments, with gradients clipped to `max_norm`; so many of the first parameters decay.
/// `[p, g, m, v]` → `[p, m, v]`.
pub fn adamw_step(
    adam: &Adam,
    max_norm: Option<f64>,
    decayed: usize,
    [p, g, m, v]: [&[f64]; 4],
) -> [Vec<f64>; 3] {
    let factor = max_norm.map_or(1.0, |max_norm| clip_factor(global_norm([g]), max_norm));
    let g: Vec<f64> = g.iter().map(|g| g * factor).collect();
    let mut p = p.to_vec();
    let mut state = AdamState { steps: 0, m: m.to_vec(), v: v.to_vec() };
    let decayed = decayed.min(p.len());
    let mut part = |range: std::ops::Range<usize>, weight_decay| {
        let adam = Adam { weight_decay, ..*adam };
        let of = |all: &[f64]| all[range.clone()].to_vec();
        let mut own = AdamState { steps: 0, m: of(&state.m), v: of(&state.v) };
        adam.step(&mut p[range.clone()], &g[range.clone()], &mut own);
        state.m[range.clone()].copy_from_slice(&own.m);
        state.v[range.clone()].copy_from_slice(&own.v);
    };
    part(0..decayed, adam.weight_decay);
    part(decayed..g.len(), 0.0);
    [p, state.m, state.v]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    /// That `d` is the gradient of `loss` by x, to 1e-7 of the largest, by central differences.
    fn assert_gradient(name: &str, x: &[f64], d: &[f64], loss: impl Fn(&[f64]) -> f64) {
        assert_eq!(x.len(), d.len(), "{name}");
        let step = 1e-5;
        let at = |e: usize, by: f64| {
            let mut moved = x.to_vec();
            moved[e] += by;
            loss(&moved)
        };
        let largest = d.iter().fold(0.0f64, |a, b| a.max(b.abs()));
        assert!(largest > 1e-3, "{name}: a gradient of nothing");
        for (e, d) in d.iter().enumerate() {
            let numeric = (at(e, step) - at(e, -step)) / (2.0 * step);
            assert!(
                (numeric - d).abs() <= 1e-7 * largest.max(1.0),
                "{name} {e}: {d}, not {numeric}"
            );
        }
    }

    #[test]
    fn gradients_of_norms() {
        for centered in [false, true] {
            let norm = Norm { weight: noise(7, 1), eps: 1e-3, centered };
            let (sum, dy) = (noise(21, 2), noise(21, 3));
            let (d, dweight) = norm.backward(&sum, &dy);
            let zeros = [0.0; 21];
            let loss = |sum: &[f64]| dot(&norm.forward(sum, &zeros).1, &dy);
            assert_gradient("x", &sum, &d, loss);
            assert_gradient("weight", &norm.weight, &dweight, |weight| {
                dot(&Norm { weight: weight.to_vec(), ..norm.clone() }.forward(&sum, &zeros).1, &dy)
            });
        }
    }

    #[test]
    fn a_norm_is_that_of_the_sum() {
        let norm = Norm { weight: vec![2.0; 4], eps: 0.0, centered: false };
        let (sum, y) = norm.forward(&[1.0, -2.0, 3.0, 4.0], &[0.0, 4.0, -1.0, -6.0]);
        assert_eq!(sum, [1.0, 2.0, 2.0, -2.0]);
        let squares: f64 = y.iter().map(|y| y * y).sum();
        assert!((squares - 16.0).abs() < 1e-14, "{squares}");
        let layer = Norm { centered: true, ..norm }.forward(&sum, &[0.0; 4]).1;
        assert!(layer.iter().sum::<f64>().abs() < 1e-14);
    }

    #[test]
    fn gradients_of_the_gated_head_norm() {
        let norm = HeadNorm { heads: 2, width: 5, eps: 1e-3 };
        let [h, ogate, dout] = [4, 5, 6].map(|seed| noise(30, seed));
        let weight = noise(10, 7);
        let (dh, dogate, dweight) = norm.backward(&h, &ogate, &weight, &dout);
        assert_gradient("h", &h, &dh, |h| dot(&norm.forward(h, &ogate, &weight), &dout));
        assert_gradient("ogate", &ogate, &dogate, |o| dot(&norm.forward(&h, o, &weight), &dout));
        assert_gradient("weight", &weight, &dweight, |w| dot(&norm.forward(&h, &ogate, w), &dout));
    }

    #[test]
    fn heads_are_split_and_merged() {
        // b, s, h, c as digits.
        let sizes = [2, 3, 2, 2];
        let x: Vec<f64> = (0..24)
            .map(|e| f64::from(e / 12 * 1000 + e / 4 % 3 * 100 + e / 2 % 2 * 10 + e % 2))
            .collect();
        let split = split_heads(&x, sizes);
        assert_eq!(split[..8], [0.0, 1.0, 100.0, 101.0, 200.0, 201.0, 10.0, 11.0]);
        assert_eq!(merge_heads(&split, sizes), x);
    }

    #[test]
    fn gradients_of_swiglu() {
        let (gate_up, du) = (noise(24, 8), noise(12, 9));
        let d = swiglu_back(&gate_up, &du, 4);
        assert_gradient("gate and up", &gate_up, &d, |x| dot(&swiglu(x, 4), &du));
        assert_eq!(swiglu(&[0.0, 5.0], 1), [0.0]);
    }

    #[test]
    fn gradients_of_gates() {
        let gates = SoftCapGates { positions: 3, heads: 2, cap: 1.5 };
        let (pre, bias) = (noise(24, 10), noise(4, 11));
        let (di, df) = (noise(12, 12), noise(12, 13));
        let (dpre, dbias) = gates.backward(&pre, &bias, [&di, &df]);
        let loss = |pre: &[f64], bias: &[f64]| {
            let [i, f] = gates.forward(pre, bias);
            dot(&i, &di) + dot(&f, &df)
        };
        assert_gradient("pre", &pre, &dpre, |pre| loss(pre, &bias));
        assert_gradient("bias", &bias, &dbias, |bias| loss(&pre, bias));
        // Row 4 is batch entry 1, position 1; its f of head 1 is the last column.
        let f = gates.forward(&pre, &bias)[1][(2 + 1) * 3 + 1];
        assert_eq!(f, 1.5 * ((pre[4 * 4 + 3] + bias[3]) / 1.5).tanh());
    }

    #[test]
    fn gradients_of_an_embedding() {
        let (weight, dy) = (noise(12, 14), noise(15, 15));
        let tokens = [2, 0, 2, -1, 4];
        let dweight = embedding_back(&tokens, &dy, 4, 3);
        assert_gradient("weight", &weight, &dweight, |w| dot(&embedding(&tokens, w, 3), &dy));
        assert_eq!(embedding(&tokens, &weight, 3)[9..], [0.0; 6]);
    }

    #[test]
    fn gradients_of_cross_entropy() {
        let (logits, targets) = (noise(28, 16), [6, -1, 0, 7]);
        for (cap, z_loss) in [(None, 0.0), (Some(1.5), 0.0), (Some(0.7), 0.3), (None, 0.2)] {
            let loss = CrossEntropy { cap, z_loss };
            let (rows, mean, d) = loss.loss_and_gradient(&logits, &targets, 7);
            assert_eq!((rows[1], rows[3]), (0.0, 0.0));
            assert!((mean - (rows[0] + rows[2]) / 2.0).abs() < 1e-15);
            assert!(d[7..14].iter().chain(&d[21..]).all(|d| *d == 0.0));
            assert_gradient("logits", &logits, &d, |x| loss.loss_and_gradient(x, &targets, 7).1);
        }
        let plain = CrossEntropy { cap: None, z_loss: 0.0 };
        let (_, mean, d) = plain.loss_and_gradient(&logits, &[6, 5, 0, 1], 7);
        let (expected, of_it) = crate::training::cross_entropy(&logits, &[6, 5, 0, 1]);
        assert!((mean - expected).abs() < 1e-14);
        assert!(d.iter().zip(&of_it).all(|(d, e)| (d - e).abs() < 1e-15));
    }

    #[test]
    fn positions_turn_pairs_and_the_gradient_turns_them_back() {
        let sizes = [3, 2, 4];
        let (x, dout) = (noise(48, 17), noise(48, 18));
        let out = rope(&x, sizes, 100.0, false);
        assert_eq!(out[..8], x[..8], "position 0 turns by nothing");
        // Position 2 of head 1, batch entry 1: its second pair turns by 2 / 10.
        let at = ((3 + 2) * 2 + 1) * 4 + 1;
        let (sin, cos) = 0.2f64.sin_cos();
        assert!((out[at] - (x[at] * cos - x[at + 2] * sin)).abs() < 1e-15);
        let dx = rope(&dout, sizes, 100.0, true);
        assert_gradient("x", &x, &dx, |x| dot(&rope(x, sizes, 100.0, false), &dout));
    }

    #[test]
    fn words_are_those_that_their_authors_give() {
        let zero = philox([0; 4], [0; 2]);
        assert_eq!(zero, [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        let ones = philox([u32::MAX; 4], [u32::MAX; 2]);
        assert_eq!(ones, [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn dropout_keeps_its_share_and_chooses_anew_each_step() {
        let kept = |seed, step, stream| -> Vec<bool> {
            dropout(&[1.0; 4000], 0.3, [seed, step], stream).into_iter().map(|v| v != 0.0).collect()
        };
        let share = |a: &[bool], b: &[bool]| a.iter().zip(b).filter(|(a, b)| **a && **b).count();
        let first = kept(5, 0, 0);
        // Four standard deviations of as many throws.
        assert!(share(&first, &first).abs_diff(2800) <= 116);
        for (seed, step, stream) in
            [(6, 0, 0), (5, 1, 0), (5, 0, 1), (5, 1 << 33, 0), (5 | 1 << 40, 0, 0)]
        {
            let both = share(&first, &kept(seed, step, stream));
            assert!(both.abs_diff(1960) <= 127, "{seed} {step} {stream}: {both}");
        }
        assert_eq!(dropout(&[3.0], 0.0, [1, 2], 3), [3.0]);
    }

    #[test]
    fn a_step_of_adamw_decays_only_the_first() {
        let adam =
            Adam { lr: 0.1, betas: [0.9, 0.99], eps: 1e-8, weight_decay: 0.5, decoupled: true };
        let (p, zeros) = ([1.0, 1.0], [0.0, 0.0]);
        let [p, m, v] = adamw_step(&adam, None, 1, [&p, &zeros, &zeros, &zeros]);
        assert_eq!((p, m, v), (vec![0.95, 1.0], vec![0.0; 2], vec![0.0; 2]));
        // Clipped to a norm of 1: 0.6, 0.8.
        let [_, m, _] = adamw_step(&adam, Some(1.0), 0, [&zeros, &[3.0, 4.0], &zeros, &zeros]);
        assert!((m[0] - 0.06).abs() < 1e-7 && (m[1] - 0.08).abs() < 1e-7, "{m:?}");
    }
}
