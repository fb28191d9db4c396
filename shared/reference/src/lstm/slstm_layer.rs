//! A layer of the sLSTM: its product with x, and the steps as [`crate::slstm`] has them.

use super::direction::{Backward, Direction, Forward, Kept};
use crate::matmul::matmul;
use crate::playg::transpose;
use crate::slstm::{Inputs, Sizes, State, Upstream};

/// Numbers that a layer takes beside what it reads.
struct Given {
    sizes: Sizes,
    b: Vec<f64>,
    /// c, n and m before the first step: there are none.
    zeros: Vec<f64>,
}

impl Direction<'_> {
    fn given(&self, heads: usize, rows: usize) -> Given {
        let (hidden, batch) = (self.network.hidden, self.lengths.len());
        let sizes = Sizes { steps: rows / batch, batch, heads, units: hidden / heads };
        let b = self.weights.get("b").map_or_else(|| vec![0.0; 4 * hidden], |b| b.to_vec());
        Given { sizes, b, zeros: vec![0.0; batch * hidden] }
    }

    fn inputs<'i>(&'i self, given: &'i Given, wx: &'i [f64], h: &'i [f64]) -> Inputs<'i> {
        let Given { b, zeros, .. } = given;
        let state = Some(State { h, c: zeros, n: zeros, m: zeros });
        Inputs { wx, r: self.weights["r"], b, state }
    }

    pub(super) fn slstm_forward(&self, heads: usize, x: &[f64], h0: &[f64]) -> Forward {
        let wx = self.affine(x, &transpose(self.weights["weight_ih"], self.columns), "none");
        let given = self.given(heads, x.len() / self.columns);
        let out = given.sizes.forward(self.inputs(&given, &wx, h0));
        let [hn, ..] = out.state;
        let kept = Kept { a_x: wx, a_h: Vec::new(), h: h0.to_vec(), c: Vec::new() };
        Forward { y: out.y, hn, cn: Vec::new(), kept }
    }

    pub(super) fn slstm_backward(
        &self,
        heads: usize,
        x: &[f64],
        kept: &Kept,
        dy: &[f64],
        dhn: &[f64],
    ) -> Backward {
        let (rows, gates) = (x.len() / self.columns, 4 * self.network.hidden);
        let given = self.given(heads, rows);
        let state = Some([dhn, &given.zeros, &given.zeros]);
        let inputs = self.inputs(&given, &kept.a_x, &kept.h);
        let back = given.sizes.backward(inputs, Upstream { dy, state });
        let by_w = matmul(&transpose(&back.dwx, gates), x, gates, self.columns, rows);
        let mut weights = [("weight_ih", by_w), ("r", back.dr), ("b", back.db)].to_vec();
        weights.retain(|(name, _)| self.weights.contains_key(name));
        let dx = matmul(&back.dwx, self.weights["weight_ih"], rows, self.columns, gates);
        let [dh0, ..] = back.state;
        Backward { dx, dh0, dc0: Vec::new(), weights: weights.into_iter().collect() }
    }
}
