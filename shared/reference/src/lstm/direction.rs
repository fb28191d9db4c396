//! One direction of one layer, through time.

use super::parameters::{WeightGradients, Weights};
use super::step::Before;
use super::{Cell, Network, gru_cell, lstm_cell};
use crate::matmul::matmul;
use crate::playg::transpose;

/// One direction of one layer.
pub(super) struct Direction<'a> {
    pub(super) network: &'a Network,
    pub(super) weights: Weights<'a>,
    /// Columns of x.
    pub(super) columns: usize,
    /// Steps of each row, `[B]`.
    pub(super) lengths: &'a [usize],
    /// From the last step to the first.
    pub(super) reverse: bool,
}

/// What the backward pass needs of every step: what its rows started from, `[T, B, …]` each. Of an sLSTM wx alone, in
/// `a_x`, and the h before the first step.
pub(super) struct Kept {
    pub(super) a_x: Vec<f64>,
    pub(super) a_h: Vec<f64>,
    pub(super) h: Vec<f64>,
    pub(super) c: Vec<f64>,
}

/// What comes out of a direction: `[T, B, H]`, zero past a row's length, and the last states.
pub(super) struct Forward {
    pub(super) y: Vec<f64>,
    pub(super) hn: Vec<f64>,
    pub(super) cn: Vec<f64>,
    pub(super) kept: Kept,
}

/// The gradients by what goes into a direction.
pub(super) struct Backward {
    pub(super) dx: Vec<f64>,
    pub(super) dh0: Vec<f64>,
    pub(super) dc0: Vec<f64>,
    pub(super) weights: WeightGradients,
}

fn row(all: &[f64], row: usize, columns: usize) -> &[f64] {
    &all[row * columns..(row + 1) * columns]
}

fn row_mut(all: &mut [f64], row: usize, columns: usize) -> &mut [f64] {
    &mut all[row * columns..(row + 1) * columns]
}

impl Direction<'_> {
    /// H, the width of c, G·H.
    fn widths(&self) -> (usize, usize, usize) {
        let hidden = self.network.hidden;
        let of_c = if self.network.cell == Cell::Lstm { hidden } else { 0 };
        (hidden, of_c, self.network.cell.gates() * hidden)
    }

    /// The steps in the order in which this direction takes them.
    fn steps(&self, count: usize) -> Vec<usize> {
        if self.reverse { (0..count).rev().collect() } else { (0..count).collect() }
    }

    /// The rows that have a step t.
    fn rows_at(&self, t: usize) -> impl Iterator<Item = usize> {
        (0..self.lengths.len()).filter(move |&b| t < self.lengths[b])
    }

    /// Rows of x times a matrix of weights, given transposed, and the bias where there is one.
    pub(super) fn affine(&self, x: &[f64], transposed: &[f64], bias: &str) -> Vec<f64> {
        let (_, _, gates) = self.widths();
        let columns = transposed.len() / gates;
        let mut a = matmul(x, transposed, x.len() / columns, gates, columns);
        if let Some(bias) = self.weights.get(bias) {
            for a in a.chunks_mut(gates) {
                a.iter_mut().zip(*bias).for_each(|(a, bias)| *a += bias);
            }
        }
        a
    }

    /// x is `[T, B, columns]`, h0 and c0 `[B, H]`.
    pub(super) fn forward(&self, x: &[f64], h0: &[f64], c0: &[f64]) -> Forward {
        if let Cell::Slstm { heads } = self.network.cell {
            return self.slstm_forward(heads, x, h0);
        }
        let (hidden, of_c, gates) = self.widths();
        let batch = self.lengths.len();
        let rows = x.len() / self.columns;
        let zeros = |columns: usize| vec![0.0; rows * columns];
        let of_x = transpose(self.weights["weight_ih"], self.columns);
        let of_h = transpose(self.weights["weight_hh"], hidden);
        let a_x = self.affine(x, &of_x, "bias_ih");
        let mut kept = Kept { a_x, a_h: zeros(gates), h: zeros(hidden), c: zeros(of_c) };
        let (mut y, mut h, mut c) = (zeros(hidden), h0.to_vec(), c0.to_vec());
        for t in self.steps(rows / batch) {
            let a_h = self.affine(&h, &of_h, "bias_hh");
            row_mut(&mut kept.a_h, t, batch * gates).copy_from_slice(&a_h);
            row_mut(&mut kept.h, t, batch * hidden).copy_from_slice(&h);
            row_mut(&mut kept.c, t, batch * of_c).copy_from_slice(&c);
            for b in self.rows_at(t) {
                let before = self.before(&kept, t * batch + b);
                let (h_after, c_after) = match self.network.cell {
                    Cell::Lstm => self.lstm_step(&before).after(),
                    Cell::Gru => (gru_cell::step(&before), Vec::new()),
                    Cell::Slstm { .. } => unreachable!("has returned"),
                };
                row_mut(&mut y, t * batch + b, hidden).copy_from_slice(&h_after);
                row_mut(&mut h, b, hidden).copy_from_slice(&h_after);
                row_mut(&mut c, b, of_c).copy_from_slice(&c_after);
            }
        }
        Forward { y, hn: h, cn: c, kept }
    }

    fn before<'k>(&self, kept: &'k Kept, at: usize) -> Before<'k> {
        let (hidden, of_c, gates) = self.widths();
        Before {
            a_x: row(&kept.a_x, at, gates),
            a_h: row(&kept.a_h, at, gates),
            h: row(&kept.h, at, hidden),
            c: row(&kept.c, at, of_c),
        }
    }

    fn lstm_step<'s>(&'s self, before: &'s Before<'s>) -> lstm_cell::Step<'s> {
        lstm_cell::Step::of(&self.weights, before, self.network.layer_norm)
    }

    /// x as in the forward pass, dy `[T, B, H]`, dhn and dcn `[B, H]`.
    pub(super) fn backward(
        &self,
        x: &[f64],
        kept: &Kept,
        dy: &[f64],
        dhn: &[f64],
        dcn: &[f64],
    ) -> Backward {
        if let Cell::Slstm { heads } = self.network.cell {
            return self.slstm_backward(heads, x, kept, dy, dhn);
        }
        let (hidden, of_c, gates) = self.widths();
        let batch = self.lengths.len();
        let rows = x.len() / self.columns;
        let zeros = |values: &&[f64]| vec![0.0; values.len()];
        let mut weights: WeightGradients =
            self.weights.iter().map(|(name, values)| (*name, zeros(values))).collect();
        // What has no step stays zero.
        let (mut da_x, mut da_h) = (vec![0.0; rows * gates], vec![0.0; rows * gates]);
        let (mut dh, mut dc) = (dhn.to_vec(), dcn.to_vec());
        for t in self.steps(rows / batch).into_iter().rev() {
            for b in self.rows_at(t) {
                let at = t * batch + b;
                let before = self.before(kept, at);
                let sum = row(&dh, b, hidden).iter().zip(row(dy, at, hidden));
                let dh_after: Vec<f64> = sum.map(|(dh, dy)| dh + dy).collect();
                let back = match self.network.cell {
                    Cell::Lstm => {
                        self.lstm_step(&before).back(&dh_after, row(&dc, b, of_c), &mut weights)
                    }
                    Cell::Gru => gru_cell::step_back(&before, &dh_after),
                    Cell::Slstm { .. } => unreachable!("has returned"),
                };
                row_mut(&mut da_x, at, gates).copy_from_slice(&back.da_x);
                row_mut(&mut da_h, at, gates).copy_from_slice(&back.da_h);
                row_mut(&mut dh, b, hidden).copy_from_slice(&back.dh);
                row_mut(&mut dc, b, of_c).copy_from_slice(&back.dc);
            }
            let of_step = row(&da_h, t, batch * gates);
            let through = matmul(of_step, self.weights["weight_hh"], batch, hidden, gates);
            dh.iter_mut().zip(through).for_each(|(dh, through)| *dh += through);
        }
        for (weight, bias, da, input, columns) in [
            ("weight_ih", "bias_ih", &da_x, x, self.columns),
            ("weight_hh", "bias_hh", &da_h, &kept.h, hidden),
        ] {
            weights.insert(weight, matmul(&transpose(da, gates), input, gates, columns, rows));
            if let Some(sum) = weights.get_mut(bias) {
                for da in da.chunks(gates) {
                    sum.iter_mut().zip(da).for_each(|(sum, da)| *sum += da);
                }
            }
        }
        let dx = matmul(&da_x, self.weights["weight_ih"], rows, self.columns, gates);
        Backward { dx, dh0: dh, dc0: dc, weights }
    }
}
