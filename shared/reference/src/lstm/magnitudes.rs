//! What the rounding errors of the plain LSTM are relative to: how they go from step to step, forward and back.
//!
//! Each step rounds, and its errors go on to first order, by the slopes of what comes behind. An error e_c of a unit's c goes to
//! the c of the next step by the factor f, as the errors of its gates do by their factors: absolute values add up. What comes of
//! other units goes through W_hh, whose signs know nothing of the errors' signs: there squares add up, as they do of what is
//! random (Higham & Mary 2019, "A new approach to probabilistic rounding error analysis"). Absolute values would not do: |W_hh|
//! makes more of errors at each step where W_hh itself makes less.
//!
//! ```text
//! a:  own = |W_ih||x| + |b| + |W_hh||h|        others² = W_hh² (e_h² + h²) + (W_ih x + b)²      those of what is handed on rounded
//! y:  e_i = i (1 − i) e_a + its function's      e_g = (1 − g²) e_a + its function's
//! c:  e_c ← f e_c + |c| e_f + |g| e_i + i e_g + |f c| + |i g| + |f c + i g|
//! h:  e_h = |tanh c| e_o + o ((1 − tanh² c) e_c + its function's) + |o tanh c|
//! ```
//!
//! The way back is of products, each off by its factors' errors: dc by those of dh, o, tanh c; da by those of dc and of the gates.
//! dh of the step before is W_hhᵀ da, as a is of h; and so are the gradients by x and by the parameters, whose x and h are as
//! random to da as W_hh is.

use super::direction::Direction;
use super::stack::or_zeros;
use super::{Cell, Gradients, Inputs, Network, Outputs, Tensors, Upstream};
use crate::matmul::matmul;
use crate::off::Off;
use crate::playg::{sigmoid, transpose};

/// What is rounded, in the unit that the magnitudes shall be of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roundings {
    /// Sums and products.
    pub sums: f64,
    /// What goes to other units: h, da, and W_ih x + b.
    pub handed: f64,
    /// A sigmoid: a part of itself, and one beside it.
    pub sigmoid: [f64; 2],
    /// A tanh, likewise.
    pub tangent: [f64; 2],
}

const GATES: usize = 4;
const G: usize = 2;
const O: usize = 3;

/// A unit's step, and by how much each is off.
#[derive(Clone, Copy, Default)]
struct Unit {
    /// i, f, g, o.
    gates: [Off; GATES],
    c: Off,
    tanh_c: Off,
    h: Off,
}

fn squares(values: &[f64]) -> Vec<f64> {
    values.iter().map(|v| v * v).collect()
}

fn absolute(values: &[f64]) -> Vec<f64> {
    values.iter().map(|v| v.abs()).collect()
}

/// `sums` times the one, and the root of the other.
fn together(sums: f64, own: &[f64], of_squares: &[f64]) -> Vec<f64> {
    own.iter().zip(of_squares).map(|(own, squares)| sums * own + squares.sqrt()).collect()
}

/// Sums of the columns of rows.
fn sum_rows(rows: &[f64], columns: usize) -> Vec<f64> {
    let mut all = vec![0.0; columns];
    rows.chunks(columns).for_each(|row| all.iter_mut().zip(row).for_each(|(s, v)| *s += v));
    all
}

impl Roundings {
    /// A gate's function, or that of c, off by what a device makes of it.
    fn function(self, is_tangent: bool, a: f64) -> Off {
        let (of, [part, beside]) =
            if is_tangent { (a.tanh(), self.tangent) } else { (sigmoid(a), self.sigmoid) };
        Off { of, by: part * of.abs() + beside }
    }

    /// The slope of its function at a value of it.
    fn slope(self, is_tangent: bool, value: Off) -> Off {
        if is_tangent {
            let of = 1.0 - value.of * value.of;
            return Off { of, by: 2.0 * value.of.abs() * value.by + self.sums };
        }
        let of = value.of * (1.0 - value.of);
        Off { of, by: (1.0 - 2.0 * value.of).abs() * value.by + 2.0 * self.sums * of }
    }

    /// From the sums a, what is off of them by themselves and by other units, and c before.
    fn step(self, a: [f64; GATES], own: [f64; GATES], others: [f64; GATES], c_before: Off) -> Unit {
        let mut gates = [0, 1, 2, 3].map(|gate| self.function(gate == G, a[gate]));
        // What others bring is random from gate to gate, as their rows of W_hh are.
        let mut brought = [0.0; GATES];
        for (gate, value) in gates.iter_mut().enumerate() {
            let slope = self.slope(gate == G, *value).of;
            value.by += slope * own[gate];
            brought[gate] = slope * others[gate];
        }
        let [i, f, g, _] = gates;
        let mut c = f.times(c_before, self.sums).plus(i.times(g, self.sums), self.sums);
        let to_c = [g.of * brought[0], c_before.of * brought[1], i.of * brought[2]];
        c.by += to_c.iter().map(|v| v * v).sum::<f64>().sqrt();
        gates.iter_mut().zip(brought).for_each(|(gate, by)| gate.by += by);
        let mut tanh_c = self.function(true, c.of);
        tanh_c.by += self.slope(true, tanh_c).of * c.by;
        Unit { gates, c, tanh_c, h: gates[O].times(tanh_c, self.sums) }
    }

    /// From the gradients by h and c behind a step, those by its sums, and that by c before.
    fn step_back(self, unit: &Unit, c_before: Off, dh: Off, dc: Off) -> ([Off; GATES], Off) {
        let sums = self.sums;
        let [i, f, g, o] = unit.gates;
        let slopes = [0, 1, 2, 3].map(|gate| self.slope(gate == G, unit.gates[gate]));
        let of_c = self.slope(true, unit.tanh_c);
        let dc = dh.times(o, sums).times(of_c, sums).plus(dc, sums);
        let by_gate = [dc.times(g, sums), dc.times(c_before, sums), dc.times(i, sums), {
            dh.times(unit.tanh_c, sums)
        }];
        let da = [0, 1, 2, 3].map(|gate| by_gate[gate].times(slopes[gate], sums));
        (da, dc.times(f, sums))
    }
}

/// The sums of a step that go into the gates, `[B, 4H]` each.
struct Sums<'a> {
    /// What x adds, with both biases: it is handed on as it is.
    of_x: Vec<f64>,
    /// What h adds.
    of_h: Vec<f64>,
    /// Both without their cancellation.
    own: Vec<f64>,
    /// Squares of what is off of them by other units.
    others: Vec<f64>,
    roundings: &'a Roundings,
}

impl Sums<'_> {
    /// Of the units of a row, the gates of one lie `hidden` apart, from `at` on.
    fn unit(&self, at: usize, hidden: usize, c_before: Off) -> Unit {
        let places = [0, 1, 2, 3].map(|gate| at + gate * hidden);
        let own = places.map(|n| self.roundings.sums * self.own[n]);
        let handed = |n: usize| (self.roundings.handed * self.of_x[n]).powi(2);
        let others = places.map(|n| (self.others[n] + handed(n)).sqrt());
        let a = places.map(|n| self.of_x[n] + self.of_h[n]);
        self.roundings.step(a, own, others, c_before)
    }
}

/// The forward pass, with all that the way back needs.
struct Walk<'a> {
    roundings: Roundings,
    direction: Direction<'a>,
    batch: usize,
    x: &'a [f64],
    /// `[T, B, H]`
    units: Vec<Unit>,
    /// h before each step, and the squares of its errors.
    before: (Vec<f64>, Vec<f64>),
}

impl<'a> Walk<'a> {
    fn new(
        roundings: Roundings,
        direction: Direction<'a>,
        x: &'a [f64],
        h0: &[f64],
        c0: &[f64],
    ) -> Self {
        let (hidden, columns) = (direction.network.hidden, direction.columns);
        let (batch, gates) = (direction.lengths.len(), GATES * hidden);
        let (rows, of_step) = (x.len() / columns, batch * gates);
        let kept = direction.forward(x, h0, c0).kept;
        let bias = |name| direction.weights.get(name).map_or(vec![0.0; gates], |b| b.to_vec());
        let [bias_ih, bias_hh] = ["bias_ih", "bias_hh"].map(bias);
        let weight_ih = transpose(&absolute(direction.weights["weight_ih"]), columns);
        let weight_hh = transpose(&absolute(direction.weights["weight_hh"]), hidden);
        let weight_hh_squares = squares(&weight_hh);
        let own_x = matmul(&absolute(x), &weight_ih, rows, gates, columns);
        let mut units: Vec<Unit> = Vec::with_capacity(rows * hidden);
        let mut before = vec![0.0; batch * hidden];
        for t in 0..rows / batch {
            let states = t * batch * hidden..(t + 1) * batch * hidden;
            let of_both = t * of_step..(t + 1) * of_step;
            let of = |a: &[f64], sign: f64| {
                let all = a[of_both.clone()].iter().zip(bias_hh.iter().cycle());
                all.map(|(a, bias)| a + sign * bias).collect::<Vec<_>>()
            };
            let own_h =
                matmul(&absolute(&kept.h[states.clone()]), &weight_hh, batch, gates, hidden);
            let of_biases = bias_ih.iter().zip(&bias_hh).map(|(a, b)| a.abs() + b.abs());
            let own = own_x[of_both.clone()].iter().zip(own_h).zip(of_biases.cycle());
            let sums = Sums {
                of_x: of(&kept.a_x, 1.0),
                of_h: of(&kept.a_h, -1.0),
                own: own.map(|((x, h), biases)| x + h + biases).collect(),
                others: matmul(&before[states], &weight_hh_squares, batch, gates, hidden),
                roundings: &roundings,
            };
            for (at, c0) in c0.iter().enumerate() {
                let earlier = units.len().checked_sub(batch * hidden).map(|n| units[n].c);
                let c_before = earlier.unwrap_or(Off::exact(*c0));
                units.push(sums.unit(at / hidden * gates + at % hidden, hidden, c_before));
            }
            let handed = |unit: &Unit| unit.h.by.powi(2) + (roundings.handed * unit.h.of).powi(2);
            before.extend(units[t * batch * hidden..].iter().map(handed));
        }
        before.truncate(rows * hidden);
        Self { roundings, direction, batch, x, units, before: (kept.h, before) }
    }

    fn outputs(&self) -> Outputs {
        let last = &self.units[self.units.len() - self.batch * self.direction.network.hidden..];
        Outputs {
            y: self.units.iter().map(|unit| unit.h.by).collect(),
            hn: last.iter().map(|unit| unit.h.by).collect(),
            cn: last.iter().map(|unit| unit.c.by).collect(),
        }
    }

    fn back(&self, c0: &[f64], dy: &[f64], dhn: &[f64], dcn: &[f64]) -> Gradients {
        let Self { roundings, ref direction, batch, x, ref units, .. } = *self;
        let (hidden, sums) = (direction.network.hidden, roundings.sums);
        let gates = GATES * hidden;
        let rows = units.len() / hidden;
        let [of_x, of_h] = ["weight_ih", "weight_hh"].map(|name| direction.weights[name]);
        let (of_h_absolute, of_h_squares) = (absolute(of_h), squares(of_h));
        // Of all steps: da, and the squares of its errors. It is rounded as it goes to the product, and parts of that may be, too.
        let (mut da, mut off) = (vec![0.0; rows * gates], vec![0.0; rows * gates]);
        let mut dh: Vec<Off> = dhn.iter().copied().map(Off::exact).collect();
        let mut dc: Vec<Off> = dcn.iter().copied().map(Off::exact).collect();
        for t in (0..rows / batch).rev() {
            let step = t * batch * gates..(t + 1) * batch * gates;
            for at in 0..batch * hidden {
                let place = t * batch * hidden + at;
                let dh = dh[at].plus(Off::exact(dy[place]), sums);
                let earlier = place.checked_sub(batch * hidden).map(|n| units[n].c);
                let c_before = earlier.unwrap_or(Off::exact(c0[at]));
                let (of_step, before) = roundings.step_back(&units[place], c_before, dh, dc[at]);
                dc[at] = before;
                for (gate, of) in of_step.into_iter().enumerate() {
                    let to = step.start + at / hidden * gates + gate * hidden + at % hidden;
                    (da[to], off[to]) =
                        (of.of, of.by.powi(2) + 2.0 * (roundings.handed * of.of).powi(2));
                }
            }
            let of_step = &da[step.clone()];
            let through = matmul(of_step, of_h, batch, hidden, gates);
            let own = matmul(&absolute(of_step), &of_h_absolute, batch, hidden, gates);
            let spread = matmul(&off[step], &of_h_squares, batch, hidden, gates);
            let off = together(sums, &own, &spread);
            dh = through.into_iter().zip(off).map(|(of, by)| Off { of, by }).collect();
        }
        let across =
            |a: &[f64], b: &[f64], columns| matmul(&transpose(a, gates), b, gates, columns, rows);
        let absolute_da = absolute(&da);
        let (h, of_before) = (&self.before.0, &self.before.1);
        let mut spread = across(&off, &squares(h), hidden);
        let of_states = across(&squares(&da), of_before, hidden);
        spread.iter_mut().zip(of_states).for_each(|(spread, of)| *spread += of);
        let weights = [
            ("dweight_ih_l0", across(&absolute_da, &absolute(x), direction.columns), {
                across(&off, &squares(x), direction.columns)
            }),
            ("dweight_hh_l0", across(&absolute_da, &absolute(h), hidden), spread),
        ];
        let mut parameters: Tensors = weights
            .into_iter()
            .map(|(name, own, spread)| (name.to_owned(), together(sums, &own, &spread)))
            .collect();
        let bias = together(sums, &sum_rows(&absolute_da, gates), &sum_rows(&off, gates));
        for name in ["dbias_ih_l0", "dbias_hh_l0"] {
            parameters.insert(name.to_owned(), bias.clone());
        }
        let own = matmul(&absolute_da, &absolute(of_x), rows, direction.columns, gates);
        let spread = matmul(&off, &squares(of_x), rows, direction.columns, gates);
        let by = |all: Vec<Off>| all.into_iter().map(|off| off.by).collect();
        Gradients { dx: together(sums, &own, &spread), dh0: by(dh), dc0: by(dc), parameters }
    }
}

impl Network {
    /// What the rounding errors of a plain LSTM's outputs are relative to: one layer, one direction, with biases, all steps in each
    /// row. And those of its gradients, where there are some from above.
    ///
    /// # Panics
    /// It is no plain LSTM; else as [`Network::backward`].
    pub fn magnitudes(
        &self,
        parameters: &Tensors,
        inputs: Inputs<'_>,
        upstream: Option<Upstream<'_>>,
        roundings: Roundings,
    ) -> (Outputs, Option<Gradients>) {
        let plain = Self { bias: self.bias, ..Self::lstm(self.inputs, self.hidden) };
        assert!(*self == plain && self.cell == Cell::Lstm, "a plain LSTM");
        let data = self.data(inputs);
        assert!(data.lengths.iter().all(|&length| length == data.steps), "all steps in each row");
        let direction = self.direction(parameters, &data, 0, 0);
        let walk = Walk::new(roundings, direction, inputs.x, &data.h0, &data.c0);
        let gradients = upstream.map(|upstream| {
            let states = data.h0.len();
            let dy = or_zeros(upstream.dy, data.steps * states, "dy");
            let [dhn, dcn] = [(upstream.dhn, "dhn"), (upstream.dcn, "dcn")]
                .map(|(of, n)| or_zeros(of, states, n));
            walk.back(&data.c0, &dy, &dhn, &dcn)
        });
        (walk.outputs(), gradients)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Roundings =
        Roundings { sums: 0.0, handed: 0.0, sigmoid: [0.0; 2], tangent: [0.0; 2] };

    /// Of two steps of one unit; where weight_hh is 0, nothing of the first one's h comes to the second.
    fn of_one_unit(weight_hh: f64, roundings: Roundings) -> (Outputs, Gradients) {
        let network = Network::lstm(1, 1);
        let parameters = [
            ("weight_ih_l0", vec![0.3, -0.2, 0.9, 0.5]),
            ("weight_hh_l0", vec![weight_hh; 4]),
            ("bias_ih_l0", vec![0.1, 1.0, 0.2, -0.3]),
            ("bias_hh_l0", vec![0.0; 4]),
        ];
        let parameters = parameters.map(|(name, values)| (name.to_owned(), values)).into();
        let x = [1.0, -0.7];
        let upstream = Upstream { dy: Some(&[1.0, 0.5]), ..Upstream::default() };
        let (out, back) =
            network.magnitudes(&parameters, Inputs::new(1, &x), Some(upstream), roundings);
        (out, back.unwrap())
    }

    #[test]
    fn errors_of_a_unit_go_on_by_its_slopes() {
        let (out, _) = of_one_unit(0.0, Roundings { tangent: [0.0, 1.0], ..NONE });
        let gates = |x: f64| {
            let a = [0.3 * x + 0.1, -0.2 * x + 1.0, 0.9 * x + 0.2, 0.5 * x - 0.3];
            [sigmoid(a[0]), sigmoid(a[1]), a[2].tanh(), sigmoid(a[3])]
        };
        let ([i1, _, g1, o1], [i2, f2, g2, o2]) = (gates(1.0), gates(-0.7));
        let (c1, by1) = (i1 * g1, i1);
        let (c2, by2) = (f2 * c1 + i2 * g2, f2 * by1 + i2);
        let of_h = |o: f64, c: f64, by: f64| o * ((1.0 - c.tanh().powi(2)) * by + 1.0);
        for (got, expected) in [
            (out.cn[0], by2),
            (out.y[0], of_h(o1, c1, by1)),
            (out.y[1], of_h(o2, c2, by2)),
            (out.hn[0], of_h(o2, c2, by2)),
        ] {
            assert!((got - expected).abs() <= 1e-15, "{got} {expected}");
        }
    }

    /// W_ih x + b is rounded as it is handed on, and so is h, where there is a weight_hh that takes it.
    #[test]
    fn a_rounding_of_h_goes_on_by_weight_hh() {
        let handed = Roundings { handed: 1.0, ..NONE };
        let ((alone, _), (together, back)) = (of_one_unit(0.0, handed), of_one_unit(0.8, handed));
        assert_eq!(alone.y[0], together.y[0]);
        assert!(alone.y[0] > 0.0 && together.y[1] > alone.y[1], "{alone:?} {together:?}");
        assert!(back.parameters["dweight_hh_l0"].iter().all(|by| *by > 0.0), "{back:?}");
        let (out, back) = of_one_unit(0.8, NONE);
        assert!(out.y.iter().chain(&out.cn).chain(&back.dx).all(|by| *by == 0.0), "{out:?}");
    }

    #[test]
    fn they_are_in_the_unit_that_roundings_are_in() {
        let once = Roundings { sums: 1.0, handed: 2.0, sigmoid: [3.0, 4.0], tangent: [5.0, 6.0] };
        let half = Roundings { sums: 0.5, handed: 1.0, sigmoid: [1.5, 2.0], tangent: [2.5, 3.0] };
        let ((once, of_once), (half, of_half)) = (of_one_unit(0.8, once), of_one_unit(0.8, half));
        for (once, half) in [(once.y, half.y), (once.cn, half.cn), (of_once.dx, of_half.dx)] {
            for (once, half) in once.into_iter().zip(half) {
                assert!((once - 2.0 * half).abs() <= 1e-14 * once, "{once} {half}");
            }
        }
    }
}
