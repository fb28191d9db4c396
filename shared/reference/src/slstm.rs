//! The sLSTM, the cell of xLSTM with a scalar memory: exponential gates, a normaliser, and heads that
//! do not meet. Beck et al. 2024 (arXiv 2405.04517, section 2.2).
//!
//! ```text
//! ĩ, f̃, z̃, õ = wx_t + R h_{t−1} + b                       R of a unit's own head only
//! m_t = max(ĩ, log σ(f̃) + m_{t−1})                        where n_{t−1} = 0 there is no state: m_t = ĩ
//! i = exp(ĩ − m_t)   f = exp(log σ(f̃) + m_{t−1} − m_t)    z = tanh(z̃)   o = σ(õ)
//! c_t = f c_{t−1} + i z      n_t = f n_{t−1} + i          h_t = o c_t / n_t
//! ```
//!
//! c and n carry the same factor exp(−m), so that h does not depend on m. A state stands for the same at
//! any m: gradients by c and n are those at the m that came, and of m there is none.

mod magnitudes;

use rayon::prelude::*;

pub use magnitudes::Roundings;

/// The sizes of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// T.
    pub steps: usize,
    /// Rows of a step, B.
    pub batch: usize,
    /// NH.
    pub heads: usize,
    /// Units of a head, DH.
    pub units: usize,
}

/// States, `[B, NH, DH]` each.
#[derive(Clone, Copy, Debug)]
pub struct State<'a> {
    /// The output of the step before.
    pub h: &'a [f64],
    /// The memory.
    pub c: &'a [f64],
    /// The normaliser.
    pub n: &'a [f64],
    /// The exponent by which c and n are too small.
    pub m: &'a [f64],
}

/// What goes in.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// `[T, B, 4, NH, DH]`, gates in the order i, f, z, o.
    pub wx: &'a [f64],
    /// `[4, NH, DH, DH]`: row j of a gate and head is multiplied with h.
    pub r: &'a [f64],
    /// `[4, NH, DH]`.
    pub b: &'a [f64],
    /// Before the first step; none is one of zeros.
    pub state: Option<State<'a>>,
}

/// What comes out.
#[derive(Clone, Debug, PartialEq)]
pub struct Outputs {
    /// h of all steps, `[T, B, NH, DH]`.
    pub y: Vec<f64>,
    /// The state behind the last step: h, c, n and m, `[B, NH, DH]` each.
    pub state: [Vec<f64>; 4],
}

/// The gradient by what came out.
#[derive(Clone, Copy, Debug)]
pub struct Upstream<'a> {
    /// By y.
    pub dy: &'a [f64],
    /// By h, c and n behind the last step; none is zeros.
    pub state: Option<[&'a [f64]; 3]>,
}

/// The gradient by what goes in.
#[derive(Clone, Debug, PartialEq)]
pub struct Gradients {
    /// As [`Inputs::wx`].
    pub dwx: Vec<f64>,
    /// As [`Inputs::r`].
    pub dr: Vec<f64>,
    /// As [`Inputs::b`].
    pub db: Vec<f64>,
    /// By h, c and n before the first step.
    pub state: [Vec<f64>; 3],
}

const GATES: usize = 4;

/// A unit behind a step.
#[derive(Clone, Copy, Debug, Default)]
struct Unit {
    h: f64,
    c: f64,
    n: f64,
    m: f64,
}

/// A unit's gates of a step: i, f, z, o, and the slope of log σ(f̃), which is 1 − σ(f̃).
#[derive(Clone, Copy, Debug)]
struct Gates {
    i: f64,
    f: f64,
    z: f64,
    o: f64,
    slope: f64,
}

fn sigmoid(v: f64) -> f64 {
    1.0 / (1.0 + (-v).exp())
}

fn log_sigmoid(v: f64) -> f64 {
    v.min(0.0) - (-v.abs()).exp().ln_1p()
}

fn step([i, f, z, o]: [f64; GATES], before: Unit) -> (Gates, Unit) {
    let m_before = if before.n == 0.0 { f64::NEG_INFINITY } else { before.m };
    let kept = log_sigmoid(f) + m_before;
    let m = i.max(kept);
    let (slope, z, o) = (sigmoid(-f), z.tanh(), sigmoid(o));
    let (i, f) = ((i - m).exp(), (kept - m).exp());
    let (c, n) = (f * before.c + i * z, f * before.n + i);
    (Gates { i, f, z, o, slope }, Unit { h: o * c / n, c, n, m })
}

impl Sizes {
    /// Units of a row, NH · DH.
    fn hidden(&self) -> usize {
        self.heads * self.units
    }

    /// Of each row and head, in order.
    fn for_each_head<R: Send>(&self, work: impl Fn(usize, usize) -> R + Sync) -> Vec<R> {
        let all = 0..self.batch * self.heads;
        all.into_par_iter().map(|at| work(at / self.heads, at % self.heads)).collect()
    }

    /// Where the gates of unit j are in wx of a step and row, and in b.
    fn gate(&self, gate: usize, head: usize, j: usize) -> usize {
        (gate * self.heads + head) * self.units + j
    }

    /// A head of a row through all steps: its gates of each step, and its units before and behind each.
    fn walk(&self, inputs: Inputs<'_>, row: usize, head: usize) -> (Vec<Gates>, Vec<Unit>) {
        let Self { steps, batch, units, .. } = *self;
        let first = (row * self.heads + head) * units;
        let unit = |at| match inputs.state {
            Some(State { h, c, n, m }) => Unit { h: h[at], c: c[at], n: n[at], m: m[at] },
            None => Unit::default(),
        };
        let mut states: Vec<Unit> = (first..first + units).map(unit).collect();
        let mut gates = Vec::new();
        for t in 0..steps {
            let before = t * units;
            for j in 0..units {
                let a = [0, 1, 2, 3].map(|gate| {
                    let at = self.gate(gate, head, j);
                    let r = &inputs.r[at * units..][..units];
                    let of_h = r.iter().zip(&states[before..]).map(|(r, of)| r * of.h);
                    let of_x = inputs.wx[(t * batch + row) * GATES * self.hidden() + at];
                    of_x + of_h.sum::<f64>() + inputs.b[at]
                });
                let (of_step, behind) = step(a, states[before + j]);
                gates.push(of_step);
                states.push(behind);
            }
        }
        (gates, states)
    }

    /// All steps.
    ///
    /// # Panics
    /// A tensor is shorter than these sizes.
    pub fn forward(&self, inputs: Inputs<'_>) -> Outputs {
        let Self { steps, batch, units, .. } = *self;
        let mut y = vec![0.0; steps * batch * self.hidden()];
        let mut state = [(); 4].map(|()| Vec::new());
        let heads = self.for_each_head(|row, head| self.walk(inputs, row, head).1);
        for (at, states) in heads.iter().enumerate() {
            for (t, of_step) in states[units..].chunks(units).enumerate() {
                let to = &mut y[(t * batch * self.heads + at) * units..][..units];
                to.iter_mut().zip(of_step).for_each(|(y, of)| *y = of.h);
            }
            for of in &states[steps * units..] {
                let all = state.iter_mut().zip([of.h, of.c, of.n, of.m]);
                all.for_each(|(all, of)| all.push(of));
            }
        }
        Outputs { y, state }
    }

    /// All steps forward, then back.
    ///
    /// # Panics
    /// A tensor is shorter than these sizes.
    pub fn backward(&self, inputs: Inputs<'_>, upstream: Upstream<'_>) -> Gradients {
        let Self { steps, batch, units, .. } = *self;
        let mut all = Gradients {
            dwx: vec![0.0; inputs.wx.len()],
            dr: vec![0.0; inputs.r.len()],
            db: vec![0.0; inputs.b.len()],
            state: [(); 3].map(|()| Vec::new()),
        };
        let heads = self.for_each_head(|row, head| self.walk_back(inputs, upstream, row, head));
        for (at, (da, states, first)) in heads.into_iter().enumerate() {
            let (row, head) = (at / self.heads, at % self.heads);
            for (n, da) in da.iter().enumerate() {
                let (t, j) = (n / units, n % units);
                for (gate, da) in da.iter().enumerate() {
                    let of = self.gate(gate, head, j);
                    all.dwx[(t * batch + row) * GATES * self.hidden() + of] = *da;
                    all.db[of] += da;
                    let before = &states[t * units..][..units];
                    let dr = all.dr[of * units..][..units].iter_mut();
                    dr.zip(before).for_each(|(dr, before)| *dr += da * before.h);
                }
            }
            all.state.iter_mut().zip(first).for_each(|(all, first)| all.extend(first));
        }
        debug_assert_eq!(steps * batch * GATES * self.hidden(), all.dwx.len());
        all
    }

    /// A head of a row: the gradient by its gates before their slopes' functions, of each step; its units; and
    /// the gradient by h, c and n before the first step.
    #[allow(clippy::type_complexity)]
    fn walk_back(
        &self,
        inputs: Inputs<'_>,
        upstream: Upstream<'_>,
        row: usize,
        head: usize,
    ) -> (Vec<[f64; GATES]>, Vec<Unit>, [Vec<f64>; 3]) {
        let Self { steps, batch, heads, units } = *self;
        let (gates, states) = self.walk(inputs, row, head);
        let first = (row * heads + head) * units;
        let [mut dh, mut dc, mut dn] = match upstream.state {
            Some(all) => all.map(|of| of[first..first + units].to_vec()),
            None => [(); 3].map(|()| vec![0.0; units]),
        };
        let mut da = vec![[0.0; GATES]; steps * units];
        for t in (0..steps).rev() {
            for j in 0..units {
                let Gates { i, f, z, o, slope } = gates[t * units + j];
                let (before, of) = (states[t * units + j], states[(t + 1) * units + j]);
                let dh = dh[j] + upstream.dy[(t * batch * heads + row * heads + head) * units + j];
                dc[j] += dh * o / of.n;
                dn[j] -= dh * of.h / of.n;
                da[t * units + j] = [
                    (dc[j] * z + dn[j]) * i,
                    (dc[j] * before.c + dn[j] * before.n) * f * slope,
                    dc[j] * i * (1.0 - z * z),
                    dh * of.c / of.n * o * (1.0 - o),
                ];
                dc[j] *= f;
                dn[j] *= f;
            }
            dh.fill(0.0);
            for (j, da) in da[t * units..][..units].iter().enumerate() {
                for (gate, da) in da.iter().enumerate() {
                    let r = &inputs.r[self.gate(gate, head, j) * units..][..units];
                    dh.iter_mut().zip(r).for_each(|(dh, r)| *dh += da * r);
                }
            }
        }
        (da, states, [dh, dc, dn])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Recorded, noise};

    /// A problem's tensors; some rows have no state.
    struct Case {
        sizes: Sizes,
        inputs: [Vec<f64>; 7],
        upstream: [Vec<f64>; 4],
    }

    impl Case {
        fn new([steps, batch, heads, units]: [usize; 4], spread: f64) -> Self {
            let sizes = Sizes { steps, batch, heads, units };
            let (hidden, of_states) = (heads * units, batch * heads * units);
            let some = |seed, len, scale: f64| -> Vec<f64> {
                noise(len, seed).into_iter().map(|v| v * scale).collect()
            };
            let n: Vec<f64> = noise(of_states, 5).iter().map(|v| 1.0 + v.abs()).collect();
            let inputs = [
                some(1, steps * batch * 4 * hidden, spread),
                some(2, 4 * hidden * units, 1.0),
                some(3, 4 * hidden, 1.0),
                some(4, of_states, 0.5),
                some(6, of_states, 1.0),
                n,
                some(7, of_states, 2.0),
            ];
            let upstream = [steps * of_states, of_states, of_states, of_states]
                .map(|len| some(len as u64 + 8, len, 1.0));
            Self { sizes, inputs, upstream }
        }

        fn inputs(&self) -> Inputs<'_> {
            let [wx, r, b, h, c, n, m] = &self.inputs;
            Inputs { wx, r, b, state: Some(State { h, c, n, m }) }
        }

        fn backward(&self) -> Gradients {
            let [dy, dh, dc, dn] = &self.upstream;
            self.sizes.backward(self.inputs(), Upstream { dy, state: Some([dh, dc, dn]) })
        }

        /// What the upstream gradients are the gradient of: their product with the outputs, c and n at the
        /// exponents `m` that the unchanged inputs give.
        fn loss(&self, m: &[f64]) -> f64 {
            let out = self.sizes.forward(self.inputs());
            let [h, c, n, own] = &out.state;
            let at = |of: &[f64]| -> Vec<f64> {
                of.iter().zip(own).zip(m).map(|((of, own), m)| of * (own - m).exp()).collect()
            };
            let outputs = [out.y.clone(), h.clone(), at(c), at(n)];
            let products = outputs.iter().flatten().zip(self.upstream.iter().flatten());
            products.map(|(out, d)| out * d).sum()
        }
    }

    #[test]
    fn gradients_are_those_of_differences() {
        for (sizes, spread) in [([1, 1, 1, 1], 1.0), ([4, 2, 2, 3], 1.0), ([5, 1, 2, 2], 4.0)] {
            let mut case = Case::new(sizes, spread);
            let of_states = case.inputs[5].len();
            if of_states > 2 {
                // No state: neither c nor n.
                case.inputs[4][1] = 0.0;
                case.inputs[5][1] = 0.0;
            }
            let Gradients { dwx, dr, db, state: [dh0, dc0, dn0] } = case.backward();
            let m = case.sizes.forward(case.inputs()).state[3].clone();
            for (which, gradient) in [dwx, dr, db, dh0, dc0, dn0].iter().enumerate() {
                for (at, gradient) in gradient.iter().enumerate() {
                    if which > 3 && case.inputs[5][at] == 0.0 {
                        assert_eq!(*gradient, 0.0);
                        continue;
                    }
                    let value = case.inputs[which][at];
                    let mut loss = |step: f64| {
                        case.inputs[which][at] = value + step;
                        case.loss(&m)
                    };
                    let difference = (loss(1e-5) - loss(-1e-5)) / 2e-5;
                    case.inputs[which][at] = value;
                    let error = (gradient - difference).abs();
                    assert!(error <= 1e-7 * (1.0 + gradient.abs()), "{which} {at}: {error}");
                }
            }
        }
    }

    /// `recorded/slstm.py` says whose outputs these are.
    #[test]
    fn equals_the_published_cell() {
        let recorded = Recorded::open("slstm.safetensors");
        for case in ["none", "state", "wide"] {
            let get = |name: &str| recorded.values(&format!("{case}.{name}"));
            let shape = recorded.shape(&format!("{case}.wx"));
            let sizes =
                Sizes { steps: shape[0], batch: shape[1], heads: shape[3], units: shape[4] };
            let [wx, r, b, h, c, n, m] = ["wx", "r", "b", "h0", "c0", "n0", "m0"].map(get);
            let state = Some(State { h: &h, c: &c, n: &n, m: &m });
            let inputs = Inputs { wx: &wx, r: &r, b: &b, state };
            let out = sizes.forward(inputs);
            let [hn, cn, nn, mn] = &out.state;
            for (name, got) in [("y", &out.y), ("hn", hn), ("cn", cn), ("nn", nn), ("mn", mn)] {
                recorded.assert_equal(got, &format!("{case}.{name}"));
            }
            let [dy, dhn] = ["dy", "dhn"].map(get);
            let zeros = vec![0.0; dhn.len()];
            let upstream = Upstream { dy: &dy, state: Some([&dhn, &zeros, &zeros]) };
            let back = sizes.backward(inputs, upstream);
            let gradients = [("dwx", &back.dwx), ("dr", &back.dr), ("db", &back.db)];
            for (name, got) in gradients.into_iter().chain([("dh0", &back.state[0])]) {
                recorded.assert_equal(got, &format!("{case}.{name}"));
            }
            if case == "none" {
                assert_eq!(sizes.forward(Inputs { state: None, ..inputs }), out);
            }
        }
    }

    #[test]
    fn a_sequence_may_be_cut_where_a_state_is_handed_on() {
        let case = Case::new([7, 2, 2, 3], 3.0);
        let whole = case.sizes.forward(case.inputs());
        let cut = 3 * case.inputs[0].len() / 7;
        let (early, late) = case.inputs[0].split_at(cut);
        let first = Sizes { steps: 3, ..case.sizes };
        let first = first.forward(Inputs { wx: early, ..case.inputs() });
        let [h, c, n, m] = &first.state;
        let state = Some(State { h, c, n, m });
        let rest = Sizes { steps: 4, ..case.sizes };
        let rest = rest.forward(Inputs { wx: late, state, ..case.inputs() });
        assert_eq!([first.y, rest.y].concat(), whole.y);
        assert_eq!(rest.state, whole.state);
    }
}
