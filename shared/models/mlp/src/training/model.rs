//! What is trained.

use lab_device::DType;
use lab_harness::{Error, Tensor, Tensors};
use lab_reference::mlp::{Parameters, Sizes};
use lab_reference::training::xavier_uniform_bound;
use lab_training::{count, parameters_fit};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// The sizes of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    /// Tokens of the vocabulary, V: 1 to 2²⁰.
    pub vocabulary: usize,
    /// Columns of an embedding, E: 1 to 4096.
    pub embedding: usize,
    /// Hidden units, H: 1 to 4096.
    pub hidden: usize,
}

impl Model {
    /// As the reference has them.
    pub fn sizes(&self) -> Sizes {
        let Self { vocabulary, embedding, hidden } = *self;
        Sizes { vocabulary, embedding, hidden }
    }

    /// Parameters to start from, in f32: weights uniform as Xavier says
    /// ([`xavier_uniform_bound`]), embeddings as the weights of a layer with one input, biases zero. The
    /// same for the same seed.
    pub fn initial(&self, seed: u64) -> Tensors {
        let Self { vocabulary, embedding, hidden } = *self;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let bounds = [
            xavier_uniform_bound(1, embedding, 1.0),
            xavier_uniform_bound(embedding, hidden, 1.0),
            0.0,
            xavier_uniform_bound(hidden, vocabulary, 1.0),
            0.0,
        ];
        let named = Parameters::NAMES.into_iter().zip(self.sizes().shapes()).zip(bounds);
        let of = |((name, shape), bound): ((&str, Vec<usize>), f64)| {
            let len = shape.iter().product();
            let values: Vec<f64> = if bound > 0.0 {
                (0..len).map(|_| random.random_range(-bound..=bound)).collect()
            } else {
                vec![0.0; len]
            };
            (name.to_owned(), Tensor::rounded(DType::F32, &shape, &values))
        };
        named.map(of).collect()
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        const MOST: usize = 1 << 12;
        count("vocabulary", self.vocabulary, 1 << 20)?;
        count("embedding", self.embedding, MOST)?;
        count("hidden", self.hidden, MOST)?;
        parameters_fit(self.sizes().shapes())
    }

    /// Refuses parameters that are missing, too many, of another shape or another type.
    pub(crate) fn check_parameters(&self, all: &Tensors) -> Result<(), Error> {
        let refuse = |name: &str, expected: String, got: String| {
            Err(Error::Tensor { name: name.to_owned(), expected, got })
        };
        for (name, shape) in Parameters::NAMES.into_iter().zip(self.sizes().shapes()) {
            let expected = format!("f32 {shape:?}");
            match all.get(name) {
                None => return refuse(name, expected, "none".into()),
                Some(t) if t.shape != shape || t.dtype != DType::F32 => {
                    return refuse(name, expected, t.describe());
                }
                _ => {}
            }
        }
        match all.keys().find(|name| !Parameters::NAMES.contains(&name.as_str())) {
            Some(name) => refuse(name, "parameters of the model only".into(), "another".into()),
            None => Ok(()),
        }
    }
}
