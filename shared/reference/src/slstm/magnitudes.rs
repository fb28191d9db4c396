//! What the rounding errors of the sLSTM are relative to: how they go from step to step, forward and back.
//!
//! As of the LSTM ([`crate::lstm::Network::magnitudes`]): a unit's own errors add up as absolute values, what comes of other
//! units through R as squares. Kernels may scale c and n by any m, and so this is of what does not depend on it: the mean u = c / n,
//! the share p = i / n that a step takes into it, and L = log n + m. With r = e_ĩ + e_L + e_log σ(f̃) of a step's two exponents,
//!
//! ```text
//! L:  e_L ← (1 − p) (e_L + e_log σ(f̃)) + p e_ĩ            p:  e_p = p (1 − p) r
//! u:  e_u ← (1 − p) e_u + p e_z + |z − u_before| e_p       h:  e_h = o e_u + |u| e_o
//! m:  that of the larger exponent          n:  n (e_L + e_m)          c:  n e_u + |u| n (e_L + e_m)
//! ```
//!
//! On the way back U = n dc and N = n dn have no factor of m either:
//!
//! ```text
//! U ← (1 − p) U + dh o        N ← (1 − p) N − dh o u
//! dĩ = (U z + N) p      df̃ = (U u_before + N) (1 − p) (1 − σ(f̃))      dz̃ = U p (1 − z²)      dõ = dh u o (1 − o)
//! ```
//!
//! An error of a later dh o goes into U z + N by the factor z − u, of that later step. Such errors are random from step to step:
//! their squares add up, as a square of z whose three coefficients go from step to step.

use super::{GATES, Gradients, Inputs, Outputs, Sizes, Unit, Upstream, log_sigmoid, sigmoid};
use crate::off::Off;

/// What is rounded, in the unit that the magnitudes shall be of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roundings {
    /// Sums and products. An exponential may be off by 4 of it, log σ by 8 of itself; beside 1, σ by 5 and tanh by 9.
    pub sums: f64,
    /// What goes to other units: h and the gradient by what goes into gates.
    pub handed: f64,
}

const EXP: f64 = 4.0;
const LOG_SIGMOID: f64 = 8.0;
const SIGMOID: f64 = 5.0;
const TANH: f64 = 9.0;

fn root(squares: &[f64]) -> f64 {
    squares.iter().map(|v| v * v).sum::<f64>().sqrt()
}

/// What goes into a gate: off by itself, and by other units.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    of: f64,
    own: f64,
    others: f64,
}

/// What a unit hands on.
#[derive(Clone, Copy, Debug, Default)]
struct Memory {
    n: f64,
    m: Off,
    u: Off,
    /// By how much log n + m is off.
    log_n: f64,
    h: Off,
}

/// What the way back needs of a step.
#[derive(Clone, Copy, Debug, Default)]
struct Step {
    p: Off,
    keeps: Off,
    /// f / n.
    first: Off,
    shut: Off,
    z: Off,
    o: Off,
    u_before: Off,
    u: Off,
}

impl Roundings {
    fn step(self, [i, f, z, o]: [Sum; GATES], before: Memory) -> (Step, Memory) {
        let sums = self.sums;
        let is_new = before.n == 0.0;
        let log_f = log_sigmoid(f.of);
        let shut = sigmoid(-f.of);
        let old = if is_new { f64::NEG_INFINITY } else { log_f + before.m.of };
        let m = i.of.max(old);
        let scale = |exponent: f64| if exponent == m { 1.0 } else { (exponent - m).exp() };
        let (new_n, old_n) = (scale(i.of), scale(old) * before.n);
        let n = new_n + old_n;
        let (p, keeps) = (new_n / n, old_n / n);
        // Both exponents: by themselves, and by other units.
        let of_difference =
            |v: f64| if v == m || v.is_infinite() { 0.0 } else { sums * ((v - m).abs() + EXP) };
        let own_i = i.own + of_difference(i.of);
        let own_old = if is_new {
            0.0
        } else {
            let of_log = shut * f.own + sums * (LOG_SIGMOID * log_f.abs() + old.abs());
            before.log_n + of_log + of_difference(old)
        };
        let others_old = if is_new { 0.0 } else { shut * f.others };
        let log_n =
            keeps * own_old + p * own_i + root(&[keeps * others_old, p * i.others]) + 2.0 * sums;
        let of_i = i.own + i.others;
        let of_old = if is_new {
            0.0
        } else {
            before.m.by + shut * (f.own + f.others) + sums * (LOG_SIGMOID * log_f.abs() + old.abs())
        };
        let is_near = !is_new && (i.of - old).abs() <= of_i + of_old;
        let by_m = match (is_near, i.of >= old) {
            (true, _) => of_i.max(of_old),
            (false, true) => of_i,
            (false, false) => of_old,
        };
        let others = root(&[i.others, others_old]);
        let by_p = p * keeps * (own_i + own_old + others);
        let off = |of: f64, slope: f64, a: Sum, own: f64| Off {
            of,
            by: slope * (a.own + a.others) + sums * own,
        };
        let tanh = z.of.tanh();
        let slope = 1.0 - tanh * tanh;
        let z_off = off(tanh, slope, z, TANH);
        let open = sigmoid(o.of);
        let o_off = off(open, open * (1.0 - open), o, SIGMOID);
        let shut = off(shut, shut * (1.0 - shut), f, SIGMOID);
        let u_before = before.u;
        let u = keeps * u_before.of + p * tanh;
        let apart = (tanh - u_before.of).abs();
        let terms = keeps * u_before.of.abs() + p * tanh.abs();
        let by_u = keeps * u_before.by
            + p * (slope * z.own + sums * TANH)
            + apart * p * keeps * (own_i + own_old)
            + root(&[p * slope * z.others, apart * p * keeps * others])
            + sums * (2.0 * terms + 3.0 * u.abs());
        let u = Off { of: u, by: by_u };
        let h = o_off.times(u, sums);
        let first = scale(old) / n;
        let step = Step {
            p: Off { of: p, by: by_p + 2.0 * sums * p },
            // Kernels have it as 1 − p.
            keeps: Off { of: keeps, by: by_p + sums },
            first: Off { of: first, by: first * (p * (own_i + own_old + others) + 4.0 * sums) },
            shut,
            z: z_off,
            o: o_off,
            u_before,
            u,
        };
        (step, Memory { n, m: Off { of: m, by: by_m }, u, log_n, h })
    }
}

/// U and N on the way back: off by themselves, and by the errors of each later dh o.
#[derive(Clone, Copy, Debug, Default)]
struct Back {
    c: Off,
    n: Off,
    /// Sums of squares of those errors: by 1, u and u² of their step.
    later: [f64; 3],
}

impl Back {
    /// U z + N.
    fn at(&self, z: Off, sums: f64) -> Off {
        let [one, u, u_squared] = self.later;
        let later = (z.of * z.of * one - 2.0 * z.of * u + u_squared).max(0.0).sqrt();
        let of = self.c.of * z.of + self.n.of;
        let by = self.c.by * z.of.abs() + self.c.of.abs() * z.by + self.n.by + later;
        Off { of, by: by + sums * ((self.c.of * z.of).abs() + of.abs()) }
    }

    fn of_c(&self) -> Off {
        Off { by: self.c.by + self.later[0].sqrt(), ..self.c }
    }

    fn of_n(&self) -> Off {
        Off { by: self.n.by + self.later[2].sqrt(), ..self.n }
    }

    /// The gradients by what goes into the gates of a step.
    fn step(&mut self, step: &Step, dh: Off, sums: f64) -> [Off; GATES] {
        let Step { p, keeps, shut, z, o, u, .. } = *step;
        let along = dh.times(o, sums);
        self.c.of += along.of;
        self.n.of -= along.of * u.of;
        self.c.by += sums * self.c.of.abs();
        self.n.by += along.of.abs() * u.by + sums * ((along.of * u.of).abs() + self.n.of.abs());
        let square = along.by * along.by;
        let new = [square, square * u.of, square * u.of * u.of];
        self.later.iter_mut().zip(new).for_each(|(all, new)| *all += new);
        let slope = |v: Off| Off { of: 1.0 - v.of * v.of, by: 2.0 * v.of.abs() * v.by + sums };
        let of_o = Off {
            of: o.of * (1.0 - o.of),
            by: (1.0 - 2.0 * o.of).abs() * o.by + 2.0 * sums * o.of * (1.0 - o.of),
        };
        [
            self.at(z, sums).times(p, sums),
            self.at(step.u_before, sums).times(keeps, sums).times(shut, sums),
            self.of_c().times(p, sums).times(slope(z), sums),
            dh.times(u, sums).times(of_o, sums),
        ]
    }

    /// The same before a step that keeps so much.
    fn keep(&mut self, keeps: Off, sums: f64) {
        self.c = self.c.times(keeps, sums);
        self.n = self.n.times(keeps, sums);
        self.later.iter_mut().for_each(|all| *all *= keeps.of * keeps.of);
    }
}

/// A head of a row, forward.
struct Walked {
    /// `[T, DH]`
    steps: Vec<Step>,
    /// Before the first step and behind each, `[T + 1, DH]`.
    memories: Vec<Memory>,
}

impl Sizes {
    fn walk_off(
        &self,
        roundings: Roundings,
        inputs: Inputs<'_>,
        row: usize,
        head: usize,
    ) -> Walked {
        let Self { steps, batch, units, .. } = *self;
        let (_, states) = self.walk(inputs, row, head);
        let before = |unit: &Unit| Memory {
            n: unit.n,
            m: Off::exact(unit.m),
            u: Off::exact(if unit.n == 0.0 { 0.0 } else { unit.c / unit.n }),
            log_n: 0.0,
            h: Off::exact(unit.h),
        };
        let mut memories: Vec<Memory> = states[..units].iter().map(before).collect();
        let mut all = Vec::with_capacity(steps * units);
        for t in 0..steps {
            let handed = |memory: &Memory| {
                let rounded = if t == 0 { 0.0 } else { roundings.handed * memory.h.of };
                (memory.h.of, memory.h.by.powi(2) + rounded * rounded)
            };
            let h: Vec<(f64, f64)> = memories[t * units..].iter().map(handed).collect();
            for j in 0..units {
                let sums = [0, 1, 2, 3].map(|gate| {
                    let at = self.gate(gate, head, j);
                    let x = inputs.wx[(t * batch + row) * GATES * self.hidden() + at];
                    let b = inputs.b[at];
                    let (mut of, mut own, mut others) = (x + b, x.abs() + b.abs(), 0.0);
                    for (r, (h, off)) in inputs.r[at * units..][..units].iter().zip(&h) {
                        of += r * h;
                        own += (r * h).abs();
                        others += r * r * off;
                    }
                    Sum { of, own: roundings.sums * own, others: others.sqrt() }
                });
                let (step, memory) = roundings.step(sums, memories[t * units + j]);
                all.push(step);
                memories.push(memory);
            }
        }
        Walked { steps: all, memories }
    }

    /// What the rounding errors of the outputs are relative to.
    ///
    /// # Panics
    /// As [`Sizes::forward`].
    pub fn magnitudes(&self, inputs: Inputs<'_>, roundings: Roundings) -> Outputs {
        let Self { steps, batch, units, .. } = *self;
        let mut y = vec![0.0; steps * batch * self.hidden()];
        let mut state = [(); 4].map(|()| Vec::new());
        let heads =
            self.for_each_head(|row, head| self.walk_off(roundings, inputs, row, head).memories);
        for (at, memories) in heads.iter().enumerate() {
            for (t, of_step) in memories[units..].chunks(units).enumerate() {
                let to = &mut y[(t * batch * self.heads + at) * units..][..units];
                to.iter_mut().zip(of_step).for_each(|(y, of)| *y = of.h.by);
            }
            for of in &memories[steps * units..] {
                let of_n = of.n * (of.log_n + of.m.by);
                let of_c = of.n * of.u.by + of.u.of.abs() * of_n;
                let all = state.iter_mut().zip([of.h.by, of_c, of_n, of.m.by]);
                all.for_each(|(all, of)| all.push(of));
            }
        }
        Outputs { y, state }
    }

    /// What the rounding errors of the gradients are relative to.
    ///
    /// # Panics
    /// As [`Sizes::backward`].
    pub fn backward_magnitudes(
        &self,
        inputs: Inputs<'_>,
        upstream: Upstream<'_>,
        roundings: Roundings,
    ) -> Gradients {
        let Self { batch, units, .. } = *self;
        let zeros = |like: &[f64]| vec![0.0; like.len()];
        let mut dwx = zeros(inputs.wx);
        // Sums of absolute values, and of squares.
        let (mut dr, mut db) =
            ([(); 2].map(|()| zeros(inputs.r)), [(); 2].map(|()| zeros(inputs.b)));
        let mut state = [(); 3].map(|()| Vec::new());
        let heads = self
            .for_each_head(|row, head| self.walk_back_off(roundings, inputs, upstream, row, head));
        for (at, (da, memories, first)) in heads.into_iter().enumerate() {
            let (row, head) = (at / self.heads, at % self.heads);
            for (n, da) in da.iter().enumerate() {
                let (t, j) = (n / units, n % units);
                for (gate, da) in da.iter().enumerate() {
                    let of = self.gate(gate, head, j);
                    dwx[(t * batch + row) * GATES * self.hidden() + of] = da.by;
                    let off = da.by.powi(2) + (roundings.handed * da.of).powi(2);
                    db[0][of] += da.of.abs();
                    db[1][of] += off;
                    for (k, before) in memories[t * units..][..units].iter().enumerate() {
                        let handed = if t == 0 { 0.0 } else { roundings.handed * before.h.of };
                        let off_h = before.h.by.powi(2) + handed * handed;
                        dr[0][of * units + k] += (da.of * before.h.of).abs();
                        dr[1][of * units + k] += off * before.h.of.powi(2) + da.of.powi(2) * off_h;
                    }
                }
            }
            state.iter_mut().zip(first).for_each(|(all, first)| all.extend(first));
        }
        let together = |[own, squares]: [Vec<f64>; 2]| -> Vec<f64> {
            own.iter().zip(squares).map(|(own, s)| roundings.sums * own + s.sqrt()).collect()
        };
        Gradients { dwx, dr: together(dr), db: together(db), state }
    }

    /// A head of a row: the gradients by what goes into its gates, its memories, and by how much those by h, c and n before the
    /// first step are off.
    #[allow(clippy::type_complexity)]
    fn walk_back_off(
        &self,
        roundings: Roundings,
        inputs: Inputs<'_>,
        upstream: Upstream<'_>,
        row: usize,
        head: usize,
    ) -> (Vec<[Off; GATES]>, Vec<Memory>, [Vec<f64>; 3]) {
        let Self { steps, batch, heads, units } = *self;
        let sums = roundings.sums;
        let Walked { steps: of_steps, memories } = self.walk_off(roundings, inputs, row, head);
        let first = (row * heads + head) * units;
        let [dhn, dcn, dnn] = match upstream.state {
            Some(all) => all.map(|of| of[first..first + units].to_vec()),
            None => [(); 3].map(|()| vec![0.0; units]),
        };
        let mut dh: Vec<Off> = dhn.into_iter().map(Off::exact).collect();
        let times_n = |of: f64, last: &Memory| {
            let n = Off { of: last.n, by: last.n * (last.log_n + last.m.by) };
            Off::exact(of).times(n, sums)
        };
        let last = dcn.iter().zip(dnn).zip(&memories[steps * units..]);
        let mut back: Vec<Back> = last
            .map(|((&c, n), last)| Back {
                c: times_n(c, last),
                n: times_n(n, last),
                later: [0.0; 3],
            })
            .collect();
        let mut da = vec![[Off::default(); GATES]; steps * units];
        for t in (0..steps).rev() {
            for j in 0..units {
                let dy = upstream.dy[(t * batch * heads + row * heads + head) * units + j];
                let whole = dh[j].of + dy;
                let dh = Off { of: whole, by: dh[j].by + sums * whole.abs() };
                let step = &of_steps[t * units + j];
                da[t * units + j] = back[j].step(step, dh, sums);
                // Those by c and n before the first step have their n in them.
                back[j].keep(if t == 0 { step.first } else { step.keeps }, sums);
            }
            dh = self.through(roundings, inputs, head, &da[t * units..][..units]);
        }
        let state = [
            dh.iter().map(|of| of.by).collect(),
            back.iter().map(|of| of.of_c().by).collect(),
            back.iter().map(|of| of.of_n().by).collect(),
        ];
        (da, memories, state)
    }

    /// The gradient by h of the step before.
    fn through(
        &self,
        roundings: Roundings,
        inputs: Inputs<'_>,
        head: usize,
        da: &[[Off; GATES]],
    ) -> Vec<Off> {
        let mut all = vec![(0.0, 0.0, 0.0); self.units];
        for (j, da) in da.iter().enumerate() {
            for (gate, da) in da.iter().enumerate() {
                let off = da.by.powi(2) + (roundings.handed * da.of).powi(2);
                let r = &inputs.r[self.gate(gate, head, j) * self.units..][..self.units];
                for ((of, own, others), r) in all.iter_mut().zip(r) {
                    *of += da.of * r;
                    *own += (da.of * r).abs();
                    *others += off * r * r;
                }
            }
        }
        let off = |(of, own, others): (f64, f64, f64)| Off {
            of,
            by: roundings.sums * own + others.sqrt(),
        };
        all.into_iter().map(off).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;
    use crate::testing::noise;

    const SIZES: Sizes = Sizes { steps: 5, batch: 2, heads: 2, units: 3 };

    /// All magnitudes, in order, of a state with c and n smaller by exp(−by) and m larger by as much.
    fn scaled(by: f64, roundings: Roundings) -> Vec<Vec<f64>> {
        let of_states = 12;
        let wx = noise(5 * 2 * 4 * 6, 1);
        let (r, b) = (noise(4 * 6 * 3, 2), noise(4 * 6, 3));
        let smaller = |v: &f64| v * (-by).exp();
        let (h, c) =
            (noise(of_states, 4), noise(of_states, 5).iter().map(smaller).collect::<Vec<_>>());
        let n: Vec<f64> = noise(of_states, 6).iter().map(|v| smaller(&(1.0 + v.abs()))).collect();
        let m: Vec<f64> = noise(of_states, 7).iter().map(|v| v + by).collect();
        let state = Some(State { h: &h, c: &c, n: &n, m: &m });
        let inputs = Inputs { wx: &wx, r: &r, b: &b, state };
        let dy = noise(5 * of_states, 8);
        let out = SIZES.magnitudes(inputs, roundings);
        let back = SIZES.backward_magnitudes(inputs, Upstream { dy: &dy, state: None }, roundings);
        vec![out.y, back.dwx, back.dr, back.db]
    }

    /// What is rounded as it goes to other units leaves the same, whatever c and n are scaled by.
    #[test]
    fn they_do_not_depend_on_the_exponent_of_the_state() {
        let roundings = Roundings { sums: 0.0, handed: 1.0 };
        for (one, other) in scaled(0.0, roundings).into_iter().zip(scaled(20.0, roundings)) {
            assert!(one.iter().any(|by| *by > 0.0));
            for (one, other) in one.into_iter().zip(other) {
                assert!((one - other).abs() <= 1e-10 * (one + 1e-6), "{one} {other}");
            }
        }
    }

    #[test]
    fn they_are_in_the_unit_that_roundings_are_in() {
        let of = |unit: f64| scaled(0.0, Roundings { sums: unit, handed: 2.0 * unit });
        for (once, half) in of(1e-6).into_iter().zip(of(0.5e-6)) {
            for (once, half) in once.into_iter().zip(half) {
                assert!((once - 2.0 * half).abs() <= 1e-9 * once, "{once} {half}");
            }
        }
        let none = scaled(0.0, Roundings { sums: 0.0, handed: 0.0 });
        assert!(none.iter().flatten().all(|by| *by == 0.0));
    }
}
