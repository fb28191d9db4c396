//! A row's step of the LSTM.

use super::norm::{Affine, Norm};
use super::parameters::{WeightGradients, Weights};
use super::step::{Before, StepBack};
use crate::playg::sigmoid;

const I: usize = 0;
const F: usize = 1;
const G: usize = 2;
const O: usize = 3;

/// The step of a row: the options, and what of it both passes use.
pub(super) struct Step<'a> {
    weights: &'a Weights<'a>,
    before: &'a Before<'a>,
    /// The i, f, g and o of the row.
    gates: [Vec<f64>; 4],
    /// Those of the gates' norms, where there are.
    norms: [Option<Norm>; 4],
    c: Vec<f64>,
    norm_of_c: Option<Norm>,
    /// tanh of c, or of what its norm made of it.
    tanh_c: Vec<f64>,
}

fn product(a: &[f64], b: &[f64]) -> Vec<f64> {
    a.iter().zip(b).map(|(a, b)| a * b).collect()
}

fn add(sum: &mut [f64], part: &[f64]) {
    sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
}

impl<'a> Step<'a> {
    /// `layer_norm` is the norms' ε.
    pub(super) fn of(
        weights: &'a Weights<'a>,
        before: &'a Before<'a>,
        layer_norm: Option<f64>,
    ) -> Self {
        let empty = || [const { Vec::new() }; 4];
        let (norms, c, tanh_c) = ([const { None }; 4], Vec::new(), Vec::new());
        let mut step = Self { weights, before, gates: empty(), norms, c, norm_of_c: None, tanh_c };
        for gate in [I, F, G] {
            step.gate(gate, layer_norm);
        }
        let [i, f, g, _] = &step.gates;
        step.c = product(f, before.c);
        add(&mut step.c, &product(i, g));
        step.gate(O, layer_norm); // behind c, which its peephole sees
        step.norm_of_c = layer_norm.map(|epsilon| Norm::of(&step.c, epsilon));
        let normed = step.norm_of_c.as_ref().map(|norm| norm.output(step.affine_of_c()));
        step.tanh_c = normed.as_ref().unwrap_or(&step.c).iter().map(|u| u.tanh()).collect();
        step
    }

    /// Where a gate's columns are.
    fn at(&self, gate: usize) -> std::ops::Range<usize> {
        let hidden = self.before.h.len();
        gate * hidden..(gate + 1) * hidden
    }

    fn gate(&mut self, gate: usize, layer_norm: Option<f64>) {
        let at = self.at(gate);
        let mut a = self.before.a_x[at.clone()].to_vec();
        add(&mut a, &self.before.a_h[at]);
        if let Some((name, c)) = self.peephole(gate) {
            add(&mut a, &product(self.weights[name], c));
        }
        if let Some(epsilon) = layer_norm {
            let norm = Norm::of(&a, epsilon);
            a = norm.output(self.affine(gate));
            self.norms[gate] = Some(norm);
        }
        let activation = if gate == G { f64::tanh } else { sigmoid };
        self.gates[gate] = a.into_iter().map(activation).collect();
    }

    /// The name of a gate's peephole, and the c that it sees.
    fn peephole(&self, gate: usize) -> Option<(&'static str, &[f64])> {
        let (name, c) = match gate {
            I => ("peephole_i", self.before.c),
            F => ("peephole_f", self.before.c),
            O => ("peephole_o", self.c.as_slice()),
            _ => return None,
        };
        self.weights.contains_key(name).then_some((name, c))
    }

    fn affine(&self, gate: usize) -> Affine<'a> {
        let at = self.at(gate);
        let [weight, bias] = ["ln_weight", "ln_bias"].map(|name| &self.weights[name][at.clone()]);
        Affine { weight, bias }
    }

    fn affine_of_c(&self) -> Affine<'a> {
        Affine { weight: self.weights["ln_c_weight"], bias: self.weights["ln_c_bias"] }
    }

    /// h and c after the step.
    pub(super) fn after(self) -> (Vec<f64>, Vec<f64>) {
        (product(&self.gates[O], &self.tanh_c), self.c)
    }

    /// From the gradient by a gate, that by its a; those of peepholes and norms go to `sums`, and
    /// that by the c its peephole sees to `dc`.
    fn gate_back(
        &self,
        gate: usize,
        d: &[f64],
        dc: &mut [f64],
        sums: &mut WeightGradients,
    ) -> Vec<f64> {
        let slope = |y: f64| if gate == G { 1.0 - y * y } else { y * (1.0 - y) };
        let mut da: Vec<f64> =
            d.iter().zip(&self.gates[gate]).map(|(d, &y)| d * slope(y)).collect();
        if let Some(norm) = &self.norms[gate] {
            let (by_a, by_weight) = norm.backward(self.affine(gate), &da);
            let mut sum = |name, part: &[f64]| {
                add(&mut sums.get_mut(name).expect("has layer norm")[self.at(gate)], part);
            };
            sum("ln_weight", &by_weight);
            sum("ln_bias", &da);
            da = by_a;
        }
        if let Some((name, c)) = self.peephole(gate) {
            add(sums.get_mut(name).expect("has peepholes"), &product(&da, c));
            add(dc, &product(&da, self.weights[name]));
        }
        da
    }

    /// From the gradients by h and c after the step, those by what was before; those by peepholes
    /// and norms are added to `sums`.
    pub(super) fn back(&self, dh: &[f64], dc: &[f64], sums: &mut WeightGradients) -> StepBack {
        let [i, f, g, o] = &self.gates;
        let mut by_c = dc.to_vec();
        let along = product(dh, o);
        let mut through: Vec<f64> =
            along.iter().zip(&self.tanh_c).map(|(d, y)| d * (1.0 - y * y)).collect();
        if let Some(norm) = &self.norm_of_c {
            let (by_normed, by_weight) = norm.backward(self.affine_of_c(), &through);
            add(sums.get_mut("ln_c_weight").expect("has layer norm"), &by_weight);
            add(sums.get_mut("ln_c_bias").expect("has layer norm"), &through);
            through = by_normed;
        }
        add(&mut by_c, &through);
        let da_o = self.gate_back(O, &product(dh, &self.tanh_c), &mut by_c, sums);
        // by_c is whole now; the others see c before the step.
        let mut dc = product(&by_c, f);
        let da_i = self.gate_back(I, &product(&by_c, g), &mut dc, sums);
        let da_f = self.gate_back(F, &product(&by_c, self.before.c), &mut dc, sums);
        let da_g = self.gate_back(G, &product(&by_c, i), &mut dc, sums);
        let da = [da_i, da_f, da_g, da_o].concat();
        StepBack { da_x: da.clone(), da_h: da, dh: vec![0.0; dh.len()], dc }
    }
}
