//! A network and what is read from it.

use lab_device::DType;
use lab_harness::{Error, Tensor, Tensors};
use lab_reference::lstm::{Cell, Network, Parameter};
use lab_reference::training::xavier_uniform_bound;
use lab_training::parameters_fit;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use lstm_fused::Lstm;

use super::Config;

/// Of which steps the outputs are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Head {
    /// Of the last: a forecast.
    Last,
    /// Of every one: a model of text.
    EveryStep,
}

/// A network and a linear layer on its outputs: z = `head_weight` y + `head_bias`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Model {
    /// Below the linear layer.
    #[serde(with = "NetworkFields")]
    pub network: Network,
    /// Numbers in z, O.
    pub outputs: usize,
    /// Where z is read.
    pub head: Head,
}

/// The most outputs.
const MOST_OUTPUTS: usize = 1 << 20;

impl Model {
    /// As many outputs as inputs, after the last step.
    pub fn forecast(network: Network) -> Self {
        Self { network, outputs: network.inputs, head: Head::Last }
    }

    /// As many outputs as inputs, at every step.
    pub fn characters(network: Network) -> Self {
        Self { network, outputs: network.inputs, head: Head::EveryStep }
    }

    /// The parameters of the network under the names of [`Network::parameters`], then `head_weight` \[O, H·dirs\] and
    /// `head_bias` \[O\].
    pub fn parameters(&self) -> Vec<Parameter> {
        let mut all = self.network.parameters();
        let of = |name: &str, shape| Parameter { name: name.to_owned(), shape };
        all.push(of("head_weight", vec![self.outputs, self.features()]));
        all.push(of("head_bias", vec![self.outputs]));
        all
    }

    /// Parameters to start from: those of [`Network::initial`], uniform as Xavier says and the forget
    /// gate open; the head likewise, without bias. Rounded to `dtype`, the same for the same seed.
    pub fn initial(&self, dtype: DType, seed: u64) -> Tensors {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let mut values = self.network.initial(|| random.random_range(-1.0..=1.0));
        let bound = xavier_uniform_bound(self.features(), self.outputs, 1.0);
        let head = (0..self.outputs * self.features()).map(|_| random.random_range(-bound..=bound));
        values.insert("head_weight".into(), head.collect());
        values.insert("head_bias".into(), vec![0.0; self.outputs]);
        let tensor = |p: Parameter| {
            let rounded = Tensor::rounded(dtype, &p.shape, &values[&p.name]);
            (p.name, rounded)
        };
        self.parameters().into_iter().map(tensor).collect()
    }

    /// Columns of y, K.
    pub(crate) fn features(&self) -> usize {
        self.network.hidden * self.network.directions()
    }

    /// The first step that is read, of so many.
    pub(crate) fn from(&self, steps: usize) -> usize {
        match self.head {
            Head::Last => steps - 1,
            Head::EveryStep => 0,
        }
    }

    /// Refuses sizes that no network has here, and a configuration by which it cannot be trained.
    ///
    /// # Errors
    /// [`Error::Bad`] with the first of them.
    pub fn check_with(&self, config: &Config) -> Result<(), Error> {
        self.check()?;
        config.check(&self.network)
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        Lstm::new(self.network)?;
        if !(1..=MOST_OUTPUTS).contains(&self.outputs) {
            return Err(Error::bad("outputs", format!("1 to {MOST_OUTPUTS}"), self.outputs));
        }
        parameters_fit(self.parameters().into_iter().map(|p| p.shape))
    }

    /// Refuses parameters that are missing, too many, of another shape or another type.
    pub(crate) fn check_parameters(&self, all: &Tensors, dtype: DType) -> Result<(), Error> {
        let refuse = |name: &str, expected: String, got: String| {
            Err(Error::Tensor { name: name.to_owned(), expected, got })
        };
        let own = self.parameters();
        for p in &own {
            let expected = format!("{dtype} {:?}", p.shape);
            match all.get(&p.name) {
                None => return refuse(&p.name, expected, "none".into()),
                Some(t) if t.shape != p.shape || t.dtype != dtype => {
                    return refuse(&p.name, expected, t.describe());
                }
                _ => {}
            }
        }
        match all.keys().find(|name| own.iter().all(|p| p.name != **name)) {
            Some(name) => refuse(name, "parameters of the model only".into(), "another".into()),
            None => Ok(()),
        }
    }
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Cell", rename_all = "snake_case")]
enum CellNames {
    Lstm,
    Gru,
    Slstm { heads: usize },
}

#[derive(Serialize, Deserialize)]
#[serde(remote = "Network")]
struct NetworkFields {
    #[serde(with = "CellNames")]
    cell: Cell,
    inputs: usize,
    hidden: usize,
    layers: usize,
    bidirectional: bool,
    bias: bool,
    peephole: bool,
    layer_norm: Option<f64>,
}
