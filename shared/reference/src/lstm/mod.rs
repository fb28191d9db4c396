//! The LSTM, the GRU and the sLSTM: several layers, one direction or two, forward, and backward through time.
//!
//! Layouts, names and the order of the gates are those of `torch.nn.LSTM` and `torch.nn.GRU`, so
//! that a state dict of theirs is a set of parameters here. x \[T, B, I\], h0 and c0
//! \[L·dirs, B, H\] → y \[T, B, H·dirs\], hn and cn \[L·dirs, B, H\]; row-major. Layer k of
//! direction d has the states k·dirs + d, and the columns d·H to (d + 1)·H of its layer's output.
//!
//! The LSTM, with gates in the order i, f, g, o:
//!
//! ```text
//! a_t = W_ih x_t + b_ih + W_hh h_{t−1} + b_hh
//! i, f, o = σ(a)       g = tanh(a)
//! c_t = f ⊙ c_{t−1} + i ⊙ g
//! h_t = o ⊙ tanh(c_t)
//! ```
//!
//! - Peepholes p add p_i ⊙ c_{t−1}, p_f ⊙ c_{t−1} and p_o ⊙ c_t to the a of their gates.
//! - Layer norm normalises the a of each gate, with its peephole in it, over the H of that gate,
//!   and c_t before its tanh. What is carried to the next step, and seen by p_o, is c_t itself.
//!
//! The GRU, with gates in the order r, z, n:
//!
//! ```text
//! r, z = σ(W_ih x_t + b_ih + W_hh h_{t−1} + b_hh)
//! n    = tanh(W_in x_t + b_in + r ⊙ (W_hn h_{t−1} + b_hn))
//! h_t  = (1 − z) ⊙ n + z ⊙ h_{t−1}
//! ```
//!
//! The sLSTM is that of [`crate::slstm`], with `weight_ih` x as its wx and the parameters `r` and `b` of that module. It has
//! one direction, and all rows have all steps.
//!
//! Hochreiter & Schmidhuber 1997, "Long Short-Term Memory"; Gers, Schmidhuber & Cummins 2000,
//! "Learning to Forget" (the forget gate); Greff et al. 2017, arXiv 1503.04069, section II (with
//! peepholes, and the gradients); Ba, Kiros & Hinton 2016, arXiv 1607.06450 (layer norm; there of
//! the two products apart, here of their sum); Cho et al. 2014, arXiv 1406.1078 (the GRU; r stands
//! after the product with W_hn here, as in PyTorch and cuDNN).

mod direction;
mod gru_cell;
mod lstm_cell;
mod magnitudes;
mod norm;
mod parameters;
mod slstm_layer;
mod stack;
mod step;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub use magnitudes::Roundings;
pub use parameters::Parameter;

/// Values by name, each row-major.
pub type Tensors = BTreeMap<String, Vec<f64>>;

/// What happens in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    /// Four gates, in the order i, f, g, o, and the states h and c.
    Lstm,
    /// Three gates, in the order r, z, n, and the state h.
    Gru,
    /// Four gates, in the order i, f, z, o, and the states h, c, n and m; a unit sees the h of its own head alone.
    Slstm {
        /// Of so many units each: they divide H.
        heads: usize,
    },
}

impl Cell {
    /// Gates, G: a matrix of weights has G·H rows.
    pub fn gates(self) -> usize {
        match self {
            Self::Lstm | Self::Slstm { .. } => 4,
            Self::Gru => 3,
        }
    }

    /// Whether it is an sLSTM, of any heads.
    pub fn is_slstm(self) -> bool {
        matches!(self, Self::Slstm { .. })
    }

    /// What a step hands to the next one: `h0` and so on before the first step, `hn` behind the last.
    pub fn states(self) -> &'static [&'static str] {
        match self {
            Self::Lstm => &["h", "c"],
            Self::Gru => &["h"],
            Self::Slstm { .. } => &["h", "c", "n", "m"],
        }
    }
}

/// A network: its sizes and options, without its parameters and with no regard to the data's T and
/// B.
///
/// ```
/// use lab_reference::lstm::{Inputs, Network};
/// // One unit that keeps everything: c = c + x, for i and f are open, and g is about x where x is
/// // small.
/// let network = Network { bias: false, ..Network::lstm(1, 1) };
/// let parameters = [("weight_ih_l0", vec![1e9, 1e9, 1.0, 1e9]), ("weight_hh_l0", vec![0.0; 4])];
/// let parameters = parameters.map(|(name, values)| (name.to_owned(), values)).into();
/// let out = network.forward(&parameters, Inputs::new(1, &[1e-4, 2e-4]));
/// assert!((out.cn[0] - 3e-4).abs() < 1e-11);
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// What happens in a step.
    pub cell: Cell,
    /// Columns of x, I.
    pub inputs: usize,
    /// Units of a layer in one direction, H.
    pub hidden: usize,
    /// Layers, L, each on the outputs of the one before.
    pub layers: usize,
    /// Whether each layer also reads its input from the last step to the first: `dirs` is 2. Not of the sLSTM.
    pub bidirectional: bool,
    /// Whether there are `bias_ih` and `bias_hh`; of the sLSTM, `b`.
    pub bias: bool,
    /// Whether the gates i, f and o see c. Of the LSTM only.
    pub peephole: bool,
    /// Layer norm of the gates and of c, with this ε. Of the LSTM only.
    pub layer_norm: Option<f64>,
}

/// What a network reads beside its parameters.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// Rows of a step, B.
    pub batch: usize,
    /// `[T, B, I]`
    pub x: &'a [f64],
    /// h before the first step, `[L·dirs, B, H]`; zero where there is none.
    pub h0: Option<&'a [f64]>,
    /// c before the first step, `[L·dirs, B, H]`; zero where there is none. Of the LSTM only.
    pub c0: Option<&'a [f64]>,
    /// Steps of each row, `[B]`, from 0 to T (PyTorch's packed sequences: from 1); all T where
    /// there are none.
    ///
    /// Nothing is read of a row past its length, be it NaN; its y is zero there. hn and cn are
    /// those after its last step, and the reverse direction starts there; without any step they
    /// are h0 and c0. All T in an sLSTM.
    pub lengths: Option<&'a [usize]>,
    /// What the output of each layer but the last is multiplied by, `[L − 1, T, B, H·dirs]`: 0 or
    /// 1 / (1 − p) for dropout with probability p.
    pub dropout: Option<&'a [f64]>,
}

impl<'a> Inputs<'a> {
    /// x \[T, B, I\] alone, with `batch` rows a step.
    pub fn new(batch: usize, x: &'a [f64]) -> Self {
        Self { batch, x, h0: None, c0: None, lengths: None, dropout: None }
    }
}

/// What comes out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outputs {
    /// h of the last layer at every step, `[T, B, H·dirs]`.
    pub y: Vec<f64>,
    /// h after the last step, `[L·dirs, B, H]`.
    pub hn: Vec<f64>,
    /// c after the last step, `[L·dirs, B, H]`; of the LSTM only.
    pub cn: Vec<f64>,
}

/// The gradients of a loss by what comes out; zero where there are none.
#[derive(Clone, Copy, Debug, Default)]
pub struct Upstream<'a> {
    /// `[T, B, H·dirs]`; what stands past a row's length does not matter.
    pub dy: Option<&'a [f64]>,
    /// `[L·dirs, B, H]`
    pub dhn: Option<&'a [f64]>,
    /// `[L·dirs, B, H]`; of the LSTM only.
    pub dcn: Option<&'a [f64]>,
}

/// The gradients of a loss by what goes in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gradients {
    /// `[T, B, I]`, zero past a row's length.
    pub dx: Vec<f64>,
    /// `[L·dirs, B, H]`
    pub dh0: Vec<f64>,
    /// `[L·dirs, B, H]`; of the LSTM only.
    pub dc0: Vec<f64>,
    /// By each parameter, in its shape, under its name with `d` before: `dweight_ih_l0`.
    pub parameters: Tensors,
}

impl Network {
    /// An LSTM of one layer and one direction, with biases, without peepholes and layer norm.
    pub fn lstm(inputs: usize, hidden: usize) -> Self {
        Self {
            cell: Cell::Lstm,
            inputs,
            hidden,
            layers: 1,
            bidirectional: false,
            bias: true,
            peephole: false,
            layer_norm: None,
        }
    }

    /// A GRU of one layer and one direction, with biases.
    pub fn gru(inputs: usize, hidden: usize) -> Self {
        Self { cell: Cell::Gru, ..Self::lstm(inputs, hidden) }
    }

    /// An sLSTM of one layer, with biases.
    pub fn slstm(inputs: usize, hidden: usize, heads: usize) -> Self {
        Self { cell: Cell::Slstm { heads }, ..Self::lstm(inputs, hidden) }
    }

    /// 1, or 2 where it is bidirectional.
    pub fn directions(&self) -> usize {
        1 + usize::from(self.bidirectional)
    }
}
