//! The mixers in f64, forward and backward.

use lab_reference::attention::{self, attention};
use lab_reference::lstm::{self, Network};
use lab_reference::passes::{HeadNorm, SoftCapGates, merge_heads, rope, split_heads};
use lab_reference::slstm;
use lab_reference::vlstm::{
    Inputs, NormalizerGrad, Sizes, StateGradient, backward_in_pieces, forward_in_pieces,
};

use super::{All, apart, beside, plus};
use crate::model::{EPS, GATE_CAP};
use crate::{Mixer, Model};

/// The parameters of the LSTM.
const LSTM: [&str; 4] = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"];

/// What is mixed: sequences \[B, S\] of a model.
pub(super) struct Sequences<'a> {
    pub(super) model: &'a Model,
    pub(super) batch: usize,
    pub(super) positions: usize,
}

/// What a mixer has made, and what its backward pass reads.
pub(super) enum Mixed {
    Vlstm {
        heads: [Vec<f64>; 3],
        pre: Vec<f64>,
        gates: [Vec<f64>; 2],
        h: Vec<f64>,
        ogate: Vec<f64>,
        out: Vec<f64>,
    },
    Attention {
        heads: [Vec<f64>; 3],
        out: Vec<f64>,
    },
    /// \[S, B\]: of the LSTM x, of the sLSTM W x.
    Recurrent {
        x: Vec<f64>,
        out: Vec<f64>,
    },
}

impl Mixed {
    /// What the product behind the mixer reads.
    pub(super) fn out(&self) -> &[f64] {
        match self {
            Self::Vlstm { out, .. } | Self::Attention { out, .. } | Self::Recurrent { out, .. } => {
                out
            }
        }
    }
}

impl Sequences<'_> {
    /// Sizes of tensors \[B, S, heads, columns\].
    fn sizes(&self, heads: usize, columns: usize) -> [usize; 4] {
        [self.batch, self.positions, heads, columns]
    }

    /// \[S, B, columns\] of rows \[B, S, columns\].
    fn to_steps(&self, rows: &[f64], columns: usize) -> Vec<f64> {
        split_heads(rows, [1, self.batch, self.positions, columns])
    }

    fn to_rows(&self, steps: &[f64], columns: usize) -> Vec<f64> {
        merge_heads(steps, [1, self.batch, self.positions, columns])
    }

    fn slstm(&self) -> slstm::Sizes {
        let Model { heads, values, .. } = *self.model;
        slstm::Sizes { steps: self.positions, batch: self.batch, heads, units: values }
    }

    /// The LSTM, and its parameters by PyTorch's names.
    fn lstm(&self, all: &All, layer: &str) -> (Network, lstm::Tensors) {
        let Model { width, heads, values, .. } = *self.model;
        let named =
            LSTM.map(|name| (format!("{name}_l0"), all.of(&format!("{layer}.{name}")).to_vec()));
        (Network::lstm(width, heads * values), named.into())
    }

    fn recurrent(&self, all: &All, mixer: Mixer, layer: &str, y: &[f64]) -> Mixed {
        let Model { width, heads, values, .. } = *self.model;
        let hidden = heads * values;
        let (x, h) = if mixer == Mixer::Lstm {
            let x = self.to_steps(y, width);
            let (network, parameters) = self.lstm(all, layer);
            let h = network.forward(&parameters, lstm::Inputs::new(self.batch, &x)).y;
            (x, h)
        } else {
            let wx = all.linear(&format!("{layer}.w"), y, width);
            let wx = self.to_steps(&wx, 4 * hidden);
            let [r, b] = ["r", "b"].map(|name| all.of(&format!("{layer}.{name}")));
            let h = self.slstm().forward(slstm::Inputs { wx: &wx, r, b, state: None }).y;
            (wx, h)
        };
        Mixed::Recurrent { x, out: self.to_rows(&h, hidden) }
    }

    fn recurrent_back(
        &self,
        all: &mut All,
        mixer: Mixer,
        layer: &str,
        [y, x, dout]: [&[f64]; 3],
    ) -> Vec<f64> {
        let Model { width, heads, values, .. } = *self.model;
        let hidden = heads * values;
        let dy = self.to_steps(dout, hidden);
        if mixer == Mixer::Lstm {
            let (network, parameters) = self.lstm(all, layer);
            let upstream = lstm::Upstream { dy: Some(&dy), ..Default::default() };
            let by = network.backward(&parameters, lstm::Inputs::new(self.batch, x), upstream);
            for name in LSTM {
                all.add(&format!("{layer}.{name}"), &by.parameters[&format!("d{name}_l0")]);
            }
            return self.to_rows(&by.dx, width);
        }
        let [r, b] = ["r", "b"].map(|name| all.of(&format!("{layer}.{name}")).to_vec());
        let of = slstm::Inputs { wx: x, r: &r, b: &b, state: None };
        let by = self.slstm().backward(of, slstm::Upstream { dy: &dy, state: None });
        all.add(&format!("{layer}.r"), &by.dr);
        all.add(&format!("{layer}.b"), &by.db);
        let dwx = self.to_rows(&by.dwx, 4 * hidden);
        all.linear_back(&format!("{layer}.w"), y, &dwx, width)
    }

    /// Of q, k and v: names, heads, columns of a head, and whether positions turn them.
    fn parts(&self, mixer: Mixer) -> [(&'static str, usize, usize, bool); 3] {
        let Model { heads, keys, values, .. } = *self.model;
        let shared = self.model.key_heads();
        match mixer {
            Mixer::Vlstm => {
                [("q", heads, keys, false), ("k", heads, keys, false), ("v", heads, values, false)]
            }
            _ => [
                ("q", heads, values, true),
                ("k", shared, values, true),
                ("v", shared, values, false),
            ],
        }
    }

    fn qkv(&self, all: &All, mixer: Mixer, layer: &str, y: &[f64]) -> [Vec<f64>; 3] {
        self.parts(mixer).map(|(name, heads, columns, turns)| {
            let mut rows = all.linear(&format!("{layer}.{name}.weight"), y, self.model.width);
            if turns {
                rows = rope(&rows, [self.positions, heads, columns], self.model.theta, false);
            }
            split_heads(&rows, self.sizes(heads, columns))
        })
    }

    /// The gradient by y, of those of q, k and v as heads.
    fn qkv_back(
        &self,
        all: &mut All,
        mixer: Mixer,
        layer: &str,
        y: &[f64],
        by: [&[f64]; 3],
    ) -> Vec<f64> {
        let mut dy = vec![0.0; y.len()];
        for ((name, heads, columns, turns), d) in self.parts(mixer).into_iter().zip(by) {
            let mut rows = merge_heads(d, self.sizes(heads, columns));
            if turns {
                rows = rope(&rows, [self.positions, heads, columns], self.model.theta, true);
            }
            let name = format!("{layer}.{name}.weight");
            dy = plus(&dy, &all.linear_back(&name, y, &rows, self.model.width));
        }
        dy
    }

    fn gates(&self) -> SoftCapGates {
        let (positions, heads) = (self.positions, self.model.heads);
        SoftCapGates { positions, heads, cap: GATE_CAP.into() }
    }

    fn head_norm(&self) -> HeadNorm {
        HeadNorm { heads: self.model.heads, width: self.model.values, eps: EPS }
    }

    fn vlstm(&self) -> Sizes {
        let Model { keys, values, .. } = *self.model;
        Sizes { positions: self.positions, qk: keys, hv: values }
    }

    fn attention(&self) -> attention::Sizes {
        let Model { heads, values, .. } = *self.model;
        let (group, positions) = (heads / self.model.key_heads(), self.positions);
        let heads = self.batch * heads;
        attention::Sizes { heads, group, positions, columns: values, causal: true }
    }

    pub(super) fn mix(&self, all: &All, mixer: Mixer, layer: &str, y: &[f64]) -> Mixed {
        let Model { width, heads, values, .. } = *self.model;
        if matches!(mixer, Mixer::Lstm | Mixer::Slstm) {
            return self.recurrent(all, mixer, layer, y);
        }
        let qkv = self.qkv(all, mixer, layer, y);
        let [q, k, v] = &qkv;
        if mixer == Mixer::Attention {
            let o = attention(attention::Inputs { q, k, v, grad: None }, self.attention()).o;
            let out = merge_heads(&o, self.sizes(heads, values));
            return Mixed::Attention { heads: qkv, out };
        }
        let name = |name: &str| format!("{layer}.{name}");
        let pre = beside(
            &all.linear(&name("igate_preact.weight"), y, width),
            &all.linear(&name("fgate_preact.weight"), y, width),
            self.batch * self.positions,
        );
        let bias =
            [all.of(&name("igate_preact.bias")), all.of(&name("fgate_preact.bias"))].concat();
        let [i, f] = self.gates().forward(&pre, &bias);
        let of = Inputs { q, k, v, i: &i, f: &f };
        let sizes = self.vlstm();
        let none = sizes.no_state(self.batch * heads);
        let h = forward_in_pieces(of, &none, sizes, EPS, self.positions).0.h;
        let h = merge_heads(&h, self.sizes(heads, values));
        let ogate = all.linear(&name("ogate_preact.weight"), y, width);
        let out = self.head_norm().forward(&h, &ogate, all.of(&name("multihead_norm.weight")));
        Mixed::Vlstm { heads: qkv, pre, gates: [i, f], h, ogate, out }
    }

    /// The gradient by y; those of the parameters are added.
    pub(super) fn mix_back(
        &self,
        all: &mut All,
        (mixer, mixed): (Mixer, &Mixed),
        layer: &str,
        y: &[f64],
        dout: &[f64],
    ) -> Vec<f64> {
        let Model { width, heads, values, .. } = *self.model;
        let (rows, of_values) = (self.batch * self.positions, self.sizes(heads, values));
        let (qkv, pre, gates, h, ogate) = match mixed {
            Mixed::Attention { heads: [q, k, v], .. } => {
                let grad = split_heads(dout, of_values);
                let of = attention::Inputs { q, k, v, grad: Some(&grad) };
                let by = attention(of, self.attention());
                let by: [&[f64]; 3] = [&by.dq, &by.dk, &by.dv];
                return self.qkv_back(all, Mixer::Attention, layer, y, by);
            }
            Mixed::Recurrent { x, .. } => {
                return self.recurrent_back(all, mixer, layer, [y, x, dout]);
            }
            Mixed::Vlstm { heads, pre, gates, h, ogate, .. } => (heads, pre, gates, h, ogate),
        };
        let name = |name: &str| format!("{layer}.{name}");
        let weight = all.of(&name("multihead_norm.weight")).to_vec();
        let (dh, dogate, dweight) = self.head_norm().backward(h, ogate, &weight, dout);
        all.add(&name("multihead_norm.weight"), &dweight);
        let dh = split_heads(&dh, of_values);
        let ([q, k, v], [i, f]) = (qkv, gates);
        let of = Inputs { q, k, v, i, f };
        let sizes = self.vlstm();
        let none = sizes.no_state(self.batch * heads);
        let last = StateGradient { c: vec![0.0; none.c.len()], n: vec![0.0; none.n.len()] };
        // A norm over the head follows: the gradient through the normaliser vanishes but for ε.
        let through = NormalizerGrad::Constant;
        let (by, _) =
            backward_in_pieces(of, &dh, &none, &last, sizes, EPS, through, self.positions);
        let bias =
            [all.of(&name("igate_preact.bias")), all.of(&name("fgate_preact.bias"))].concat();
        let (dpre, dbias) = self.gates().backward(pre, &bias, [&by.di, &by.df]);
        all.add(&name("igate_preact.bias"), &dbias[..heads]);
        all.add(&name("fgate_preact.bias"), &dbias[heads..]);
        let [di, df] = apart(&dpre, rows, heads);
        let mut dy = self.qkv_back(all, Mixer::Vlstm, layer, y, [&by.dq, &by.dk, &by.dv]);
        for (of, d) in [("ogate_preact", dogate), ("igate_preact", di), ("fgate_preact", df)] {
            dy = plus(&dy, &all.linear_back(&name(&format!("{of}.weight")), y, &d, width));
        }
        dy
    }
}
