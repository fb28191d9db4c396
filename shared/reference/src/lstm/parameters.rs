//! Names, shapes and first values of the parameters.

use std::collections::BTreeMap;

use super::{Cell, Network, Tensors};
use crate::training::xavier_uniform_bound;

/// One parameter of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// As in PyTorch's state dict: `weight_ih_l0`, `weight_ih_l0_reverse`.
    pub name: String,
    /// Size of each index.
    pub shape: Vec<usize>,
}

/// The parameters of one direction of a layer by their names without layer and direction:
/// `weight_ih`.
pub(super) type Weights<'a> = BTreeMap<&'static str, &'a [f64]>;

/// The gradients by [`Weights`].
pub(super) type WeightGradients = BTreeMap<&'static str, Vec<f64>>;

/// The name of a parameter of one direction of a layer.
pub(super) fn full_name(name: &str, layer: usize, reverse: bool) -> String {
    format!("{name}_l{layer}{}", if reverse { "_reverse" } else { "" })
}

impl Network {
    /// All parameters, in the order of PyTorch's state dict; behind the weights and biases of each
    /// direction of a layer its peepholes and its layer norm. Of an sLSTM `weight_ih` \[4H, I\], `r` \[4, NH, DH, DH\] and
    /// `b` \[4, NH, DH\].
    ///
    /// ```
    /// use lab_reference::lstm::Network;
    /// let all = Network { peephole: true, ..Network::lstm(3, 5) }.parameters();
    /// let all: Vec<_> = all.iter().map(|p| (p.name.as_str(), p.shape.as_slice())).collect();
    /// assert_eq!(all[0], ("weight_ih_l0", &[20, 3][..]));
    /// assert_eq!(all[4], ("peephole_i_l0", &[5][..]));
    /// ```
    ///
    /// # Panics
    /// Peepholes or layer norm in another cell than the LSTM; an sLSTM of two directions, or whose heads do not divide H.
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut all = Vec::new();
        for layer in 0..self.layers {
            for direction in 0..self.directions() {
                for (name, shape) in self.of_direction(layer) {
                    all.push(Parameter { name: full_name(name, layer, direction == 1), shape });
                }
            }
        }
        all
    }

    /// Columns of what a layer reads.
    pub(super) fn inputs_of(&self, layer: usize) -> usize {
        if layer == 0 { self.inputs } else { self.hidden * self.directions() }
    }

    /// The parameters of each direction of a layer.
    fn of_direction(&self, layer: usize) -> Vec<(&'static str, Vec<usize>)> {
        let plain = !self.peephole && self.layer_norm.is_none();
        assert!(self.cell == Cell::Lstm || plain, "peepholes and layer norm are the LSTM's");
        let (hidden, rows) = (self.hidden, self.cell.gates() * self.hidden);
        let mut all = vec![("weight_ih", vec![rows, self.inputs_of(layer)])];
        if let Cell::Slstm { heads } = self.cell {
            assert!(!self.bidirectional, "one direction of the sLSTM");
            assert!(heads > 0 && hidden.is_multiple_of(heads), "heads that divide H");
            let units = hidden / heads;
            all.push(("r", vec![4, heads, units, units]));
            if self.bias {
                all.push(("b", vec![4, heads, units]));
            }
            return all;
        }
        all.push(("weight_hh", vec![rows, hidden]));
        if self.bias {
            all.extend([("bias_ih", vec![rows]), ("bias_hh", vec![rows])]);
        }
        if self.peephole {
            all.extend(["peephole_i", "peephole_f", "peephole_o"].map(|name| (name, vec![hidden])));
        }
        if self.layer_norm.is_some() {
            all.extend(["ln_weight", "ln_bias"].map(|name| (name, vec![rows])));
            all.extend(["ln_c_weight", "ln_c_bias"].map(|name| (name, vec![hidden])));
        }
        all
    }

    /// The parameters of one direction of a layer, each of the right length.
    pub(super) fn weights<'a>(
        &self,
        parameters: &'a Tensors,
        layer: usize,
        reverse: bool,
    ) -> Weights<'a> {
        let find = |(name, shape): (&'static str, Vec<usize>)| {
            let full = full_name(name, layer, reverse);
            let values = parameters.get(&full).unwrap_or_else(|| panic!("{full} is missing"));
            assert_eq!(values.len(), shape.iter().product::<usize>(), "{full} {shape:?}");
            (name, values.as_slice())
        };
        self.of_direction(layer).into_iter().map(find).collect()
    }

    /// Parameters to start training from. `uniform` gives numbers from −1 to 1; it is asked for
    /// each element of each weight matrix, in the order of [`Network::parameters`].
    ///
    /// Each gate's matrix is Xavier-uniform ([`xavier_uniform_bound`]): `weight_ih` from the
    /// layer's columns, `weight_hh` from H, to H; `r` of each head from its DH units to these. Biases
    /// and peepholes are zero and the weights of layer norm one, but for a forget gate that starts
    /// open: its bias is 1 (Gers et al. 2000; Jozefowicz et al. 2015), in `bias_ih` alone, since
    /// PyTorch's two biases add up. With layer norm it is that of `ln_bias`, for the norm would take a
    /// bias away that all units share; of the sLSTM it is that of `b`.
    pub fn initial(&self, mut uniform: impl FnMut() -> f64) -> Tensors {
        let hidden = self.hidden;
        let forget = match (self.cell, self.layer_norm) {
            (Cell::Gru, _) => None,
            (Cell::Lstm, None) => Some("bias_ih"),
            (Cell::Lstm, Some(_)) => Some("ln_bias"),
            (Cell::Slstm { .. }, _) => Some("b_"),
        };
        let values = |Parameter { name, shape }: Parameter| {
            let len = shape.iter().product();
            let mut from_columns = |columns: usize, to: usize| {
                let bound = xavier_uniform_bound(columns, to, 1.0);
                (0..len).map(|_| bound * uniform()).collect()
            };
            let mut values = match shape[..] {
                [_, columns] => from_columns(columns, hidden),
                [_, _, units, columns] => from_columns(columns, units),
                _ if name.starts_with("ln_weight") || name.starts_with("ln_c_weight") => {
                    vec![1.0; len]
                }
                _ => vec![0.0; len],
            };
            if forget.is_some_and(|bias| name.starts_with(bias)) {
                values[hidden..2 * hidden].fill(1.0);
            }
            (name, values)
        };
        self.parameters().into_iter().map(values).collect()
    }
}
