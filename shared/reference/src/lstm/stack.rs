//! The layers and directions of a network.

use super::direction::{Direction, Kept};
use super::parameters::full_name;
use super::{Cell, Gradients, Inputs, Network, Outputs, Tensors, Upstream};

/// A layer as the backward pass needs it: its input, and each direction's steps.
struct Layer {
    x: Vec<f64>,
    kept: Vec<Kept>,
}

/// Inputs as they are used: checked, and those left out filled in.
pub(super) struct Data {
    pub(super) steps: usize,
    batch: usize,
    pub(super) lengths: Vec<usize>,
    pub(super) h0: Vec<f64>,
    pub(super) c0: Vec<f64>,
}

/// The values, or as many zeros.
pub(super) fn or_zeros(values: Option<&[f64]>, len: usize, name: &str) -> Vec<f64> {
    let values = values.map_or_else(|| vec![0.0; len], <[f64]>::to_vec);
    assert_eq!(values.len(), len, "{name}");
    values
}

impl Data {
    /// Whether an element of `[T, B, columns]` belongs to a step that its row has.
    fn has(&self, element: usize, columns: usize) -> bool {
        let row = element / columns;
        row / self.batch < self.lengths[row % self.batch]
    }
}

impl Network {
    /// Elements of all h, and of all c.
    fn states(&self, batch: usize) -> (usize, usize) {
        let of_h = self.layers * self.directions() * batch * self.hidden;
        (of_h, if self.cell == Cell::Lstm { of_h } else { 0 })
    }

    pub(super) fn data(&self, x: Inputs<'_>) -> Data {
        let batch = x.batch;
        let steps = x.x.len() / (batch * self.inputs);
        assert!(steps > 0 && x.x.len() == steps * batch * self.inputs, "x");
        let lengths = x.lengths.map_or_else(|| vec![steps; batch], <[usize]>::to_vec);
        assert_eq!(lengths.len(), batch, "lengths");
        assert!(lengths.iter().all(|&length| length <= steps), "lengths up to {steps}");
        let is_whole = lengths.iter().all(|&length| length == steps);
        assert!(is_whole || !self.cell.is_slstm(), "all steps in each row of an sLSTM");
        let (of_h, of_c) = self.states(batch);
        let (h0, c0) = (or_zeros(x.h0, of_h, "h0"), or_zeros(x.c0, of_c, "c0"));
        if let Some(dropout) = x.dropout {
            let of_layer = steps * batch * self.hidden * self.directions();
            assert_eq!(dropout.len(), (self.layers - 1) * of_layer, "dropout");
        }
        Data { steps, batch, lengths, h0, c0 }
    }

    pub(super) fn direction<'a>(
        &'a self,
        parameters: &'a Tensors,
        data: &'a Data,
        layer: usize,
        direction: usize,
    ) -> Direction<'a> {
        let reverse = direction == 1;
        Direction {
            network: self,
            weights: self.weights(parameters, layer, reverse),
            columns: self.inputs_of(layer),
            lengths: &data.lengths,
            reverse,
        }
    }

    /// The mask on a layer's output.
    fn mask<'a>(&self, x: Inputs<'a>, layer: usize, len: usize) -> Option<&'a [f64]> {
        x.dropout.filter(|_| layer + 1 < self.layers).map(|all| &all[layer * len..][..len])
    }

    /// y, hn and cn.
    ///
    /// # Panics
    /// A parameter of [`Network::parameters`] is missing (others are let be), a length does not
    /// fit, or another cell has what is the LSTM's.
    pub fn forward(&self, parameters: &Tensors, x: Inputs<'_>) -> Outputs {
        self.forward_kept(parameters, x, &self.data(x)).0
    }

    fn forward_kept(
        &self,
        parameters: &Tensors,
        x: Inputs<'_>,
        data: &Data,
    ) -> (Outputs, Vec<Layer>) {
        let Data { steps, batch, .. } = *data;
        let (hidden, directions) = (self.hidden, self.directions());
        let mut out = Outputs::default();
        let mut layers = Vec::new();
        // Zero past a row's length: there it may be NaN.
        let live = |(at, &x): (usize, &f64)| if data.has(at, self.inputs) { x } else { 0.0 };
        let mut input: Vec<f64> = x.x.iter().enumerate().map(live).collect();
        for layer in 0..self.layers {
            let mut y = vec![0.0; steps * batch * directions * hidden];
            let mut kept = Vec::new();
            for direction in 0..directions {
                let state = layer * directions + direction;
                let [h0, c0] = [&data.h0, &data.c0].map(|all| {
                    let len = all.len() / (self.layers * directions);
                    &all[state * len..][..len]
                });
                let of = self.direction(parameters, data, layer, direction).forward(&input, h0, c0);
                for (to, from) in y.chunks_mut(directions * hidden).zip(of.y.chunks(hidden)) {
                    to[direction * hidden..][..hidden].copy_from_slice(from);
                }
                out.hn.extend(of.hn);
                out.cn.extend(of.cn);
                kept.push(of.kept);
            }
            if let Some(mask) = self.mask(x, layer, y.len()) {
                masked(&mut y, mask, |at| data.has(at, directions * hidden));
            }
            layers.push(Layer { x: std::mem::replace(&mut input, y), kept });
        }
        out.y = input;
        (out, layers)
    }

    /// The gradients of Σ y·`dy` + Σ hn·`dhn` + Σ cn·`dcn` by x, h0, c0 and each parameter.
    ///
    /// # Panics
    /// As [`Network::forward`].
    pub fn backward(&self, parameters: &Tensors, x: Inputs<'_>, d: Upstream<'_>) -> Gradients {
        let data = &self.data(x);
        let (out, layers) = self.forward_kept(parameters, x, data);
        let (hidden, directions) = (self.hidden, self.directions());
        let (of_h, of_c) = self.states(data.batch);
        let mut dy = or_zeros(d.dy, out.y.len(), "dy");
        let (dhn, dcn) = (or_zeros(d.dhn, of_h, "dhn"), or_zeros(d.dcn, of_c, "dcn"));
        let mut gradients =
            Gradients { dh0: vec![0.0; of_h], dc0: vec![0.0; of_c], ..Gradients::default() };
        for (layer, kept) in layers.iter().enumerate().rev() {
            if let Some(mask) = self.mask(x, layer, dy.len()) {
                masked(&mut dy, mask, |at| data.has(at, directions * hidden));
            }
            let mut dx = vec![0.0; kept.x.len()];
            for direction in 0..directions {
                let columns = |row: &[f64]| row[direction * hidden..][..hidden].to_vec();
                let dy: Vec<f64> = dy.chunks(directions * hidden).flat_map(columns).collect();
                let at = |all: &[f64]| {
                    let len = all.len() / (self.layers * directions);
                    let first = (layer * directions + direction) * len;
                    first..first + len
                };
                let (at_h, at_c) = (at(&dhn), at(&dcn));
                let of = self.direction(parameters, data, layer, direction);
                let [dhn, dcn] = [&dhn[at_h.clone()], &dcn[at_c.clone()]];
                let back = of.backward(&kept.x, &kept.kept[direction], &dy, dhn, dcn);
                dx.iter_mut().zip(back.dx).for_each(|(sum, dx)| *sum += dx);
                gradients.dh0[at_h].copy_from_slice(&back.dh0);
                gradients.dc0[at_c].copy_from_slice(&back.dc0);
                let named = |(name, values): (&str, Vec<f64>)| {
                    (format!("d{}", full_name(name, layer, direction == 1)), values)
                };
                gradients.parameters.extend(back.weights.into_iter().map(named));
            }
            dy = dx;
        }
        gradients.dx = dy;
        gradients
    }
}

/// `values` times `mask` where `has` says so; elsewhere they are zero, and the mask may be NaN.
fn masked(values: &mut [f64], mask: &[f64], has: impl Fn(usize) -> bool) {
    for (at, (value, mask)) in values.iter_mut().zip(mask).enumerate() {
        *value = if has(at) { *value * mask } else { 0.0 };
    }
}
