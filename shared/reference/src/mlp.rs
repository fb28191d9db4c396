//! A language model of one word: token → embedding → hidden layer with ReLU → logits over the
//! vocabulary → cross-entropy with the next token (a bigram model by a multilayer perceptron;
//! Bengio et al. 2003, "A Neural Probabilistic Language Model", with a context of one).
//!
//! ```text
//! x = emb[token]          h = max(0, w1 x + b1)         z = w2 h + b2
//! loss = −log softmax(z)[target], the mean over a batch
//! dz = (softmax(z) − one-hot(target)) / B      da = [h > 0] w2ᵀ dz      dx = w1ᵀ da
//! ```

mod magnitudes;

use crate::matmul::matmul;
use crate::playg::softmax;
use crate::training::{Sgd, cross_entropy};

pub use magnitudes::Terms;

/// The sizes of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Tokens of the vocabulary, V.
    pub vocabulary: usize,
    /// Columns of an embedding, E.
    pub embedding: usize,
    /// Hidden units, H.
    pub hidden: usize,
}

/// The parameters, or their gradients.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameters {
    /// `[V, E]`
    pub emb: Vec<f64>,
    /// `[H, E]`
    pub w1: Vec<f64>,
    /// `[H]`
    pub b1: Vec<f64>,
    /// `[V, H]`
    pub w2: Vec<f64>,
    /// `[V]`
    pub b2: Vec<f64>,
}

impl Parameters {
    /// Their names, in the order of the fields.
    pub const NAMES: [&'static str; 5] = ["emb", "w1", "b1", "w2", "b2"];

    /// All, in the order of [`NAMES`](Self::NAMES).
    pub fn all(&self) -> [&Vec<f64>; 5] {
        [&self.emb, &self.w1, &self.b1, &self.w2, &self.b2]
    }

    /// The same, to be changed.
    pub fn all_mut(&mut self) -> [&mut Vec<f64>; 5] {
        [&mut self.emb, &mut self.w1, &mut self.b1, &mut self.w2, &mut self.b2]
    }

    /// One step down the gradient.
    ///
    /// # Panics
    /// The gradient is that of another model.
    pub fn descend(&mut self, gradient: &Self, lr: f64) {
        let sgd = Sgd { lr, momentum: 0.0, weight_decay: 0.0 };
        for (p, g) in self.all_mut().into_iter().zip(gradient.all()) {
            sgd.step(p, g, &mut vec![0.0; g.len()]);
        }
    }
}

fn transposed(a: &[f64], columns: usize) -> Vec<f64> {
    (0..columns).flat_map(|c| a.iter().skip(c).step_by(columns).copied()).collect()
}

impl Sizes {
    /// The shape of each parameter, in the order of [`Parameters::NAMES`].
    pub fn shapes(&self) -> [Vec<usize>; 5] {
        let Self { vocabulary: v, embedding: e, hidden: h } = *self;
        [vec![v, e], vec![h, e], vec![h], vec![v, h], vec![v]]
    }

    /// x of each token, `[B, E]`.
    fn rows(&self, p: &Parameters, tokens: &[usize]) -> Vec<f64> {
        let row = |&t: &usize| &p.emb[t * self.embedding..][..self.embedding];
        tokens.iter().flat_map(row).copied().collect()
    }

    /// a wᵀ + b of each row of a.
    fn layer(a: &[f64], w: &[f64], b: &[f64], columns: usize) -> Vec<f64> {
        let rows = a.len() / columns;
        let mut out = matmul(a, &transposed(w, columns), rows, b.len(), columns);
        for row in out.chunks_mut(b.len()) {
            row.iter_mut().zip(b).for_each(|(o, b)| *o += b);
        }
        out
    }

    /// h of each x, `[B, H]`.
    fn hidden_of(&self, p: &Parameters, x: &[f64]) -> Vec<f64> {
        let mut h = Self::layer(x, &p.w1, &p.b1, self.embedding);
        // Not `max`, which would make 0 of NaN.
        h.iter_mut().for_each(|h| *h = if *h < 0.0 { 0.0 } else { *h });
        h
    }

    /// The mean loss of these pairs, and its gradient.
    ///
    /// ```
    /// use lab_reference::mlp::{Parameters, Sizes};
    /// let sizes = Sizes { vocabulary: 2, embedding: 1, hidden: 1 };
    /// // Every logit is zero: both tokens are as likely.
    /// let zeros = sizes.shapes().map(|s| vec![0.0; s.iter().product()]);
    /// let [emb, w1, b1, w2, b2] = zeros;
    /// let p = Parameters { emb, w1, b1, w2, b2 };
    /// let (loss, gradient) = sizes.loss_and_gradient(&p, &[0], &[1]);
    /// assert_eq!((loss, gradient.b2), (2f64.ln(), vec![0.5, -0.5]));
    /// ```
    ///
    /// # Panics
    /// There are not as many targets as tokens, or none; an id is not of the vocabulary.
    pub fn loss_and_gradient(
        &self,
        p: &Parameters,
        tokens: &[usize],
        targets: &[usize],
    ) -> (f64, Parameters) {
        assert_eq!(tokens.len(), targets.len(), "a target of each token");
        let Self { vocabulary, embedding, hidden } = *self;
        let batch = tokens.len();
        let x = self.rows(p, tokens);
        let h = self.hidden_of(p, &x);
        let z = Self::layer(&h, &p.w2, &p.b2, hidden);
        let (loss, dz) = cross_entropy(&z, targets);

        let mut da = matmul(&dz, &p.w2, batch, hidden, vocabulary);
        da.iter_mut().zip(&h).for_each(|(da, h)| *da = if *h > 0.0 { *da } else { 0.0 });
        let dx = matmul(&da, &p.w1, batch, embedding, hidden);
        let gradient = self.gradient_of_factors(tokens, &dz, &da, &dx, &x, &h);
        (loss, gradient)
    }

    /// How likely each token is behind these, `[V]`: from the mean of their embeddings.
    ///
    /// # Panics
    /// There are none, or one is not of the vocabulary.
    pub fn probabilities(&self, p: &Parameters, context: &[usize]) -> Vec<f64> {
        assert!(!context.is_empty(), "a context");
        let rows = self.rows(p, context);
        let mean =
            |e| rows.iter().skip(e).step_by(self.embedding).sum::<f64>() / context.len() as f64;
        let x: Vec<f64> = (0..self.embedding).map(mean).collect();
        let z = Self::layer(&self.hidden_of(p, &x), &p.w2, &p.b2, self.hidden);
        softmax(&z, self.vocabulary)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Recorded, noise};

    fn model() -> (Sizes, Parameters) {
        let sizes = Sizes { vocabulary: 7, embedding: 3, hidden: 5 };
        let mut seed = 0;
        let [emb, w1, b1, w2, b2] = sizes.shapes().map(|shape| {
            seed += 1;
            noise(shape.iter().product(), seed)
        });
        (sizes, Parameters { emb, w1, b1, w2, b2 })
    }

    /// Tokens that come twice, and one that is its own target.
    const PAIRS: [[usize; 6]; 2] = [[0, 3, 3, 6, 0, 3], [1, 3, 5, 0, 2, 6]];

    #[test]
    fn gradients_are_those_of_differences() {
        const STEP: f64 = 1e-5;
        let (sizes, p) = model();
        let [tokens, targets] = &PAIRS;
        let (_, gradient) = sizes.loss_and_gradient(&p, tokens, targets);
        let mut units = [false; 2];
        for (at, name) in Parameters::NAMES.into_iter().enumerate() {
            let got = gradient.all()[at];
            let pairs: Vec<(f64, f64)> = (0..got.len())
                .map(|element| {
                    let moved = |by: f64| {
                        let mut p = p.clone();
                        p.all_mut()[at][element] += by;
                        sizes.loss_and_gradient(&p, tokens, targets).0
                    };
                    (got[element], (moved(STEP) - moved(-STEP)) / (2.0 * STEP))
                })
                .collect();
            let largest = pairs.iter().fold(0.0f64, |a, (_, e)| a.max(e.abs()));
            assert!(largest > 1e-2, "{name}: none to speak of: {largest}");
            for (got, expected) in pairs {
                let error = (got - expected).abs() / largest;
                assert!(error <= 1e-9, "{name}: {got}, not {expected}: {error:.1e}");
            }
        }
        // Of the units some are shut.
        for h in sizes.hidden_of(&p, &sizes.rows(&p, tokens)) {
            units[usize::from(h > 0.0)] = true;
        }
        assert_eq!(units, [true; 2]);
    }

    #[test]
    fn a_context_of_one_token_is_that_of_the_loss() {
        let (sizes, p) = model();
        for (token, target) in [(0, 1), (3, 3), (6, 0)] {
            let (loss, _) = sizes.loss_and_gradient(&p, &[token], &[target]);
            let of_context = sizes.probabilities(&p, &[token, token]);
            assert!((of_context.iter().sum::<f64>() - 1.0).abs() < 1e-14);
            assert!((loss + of_context[target].ln()).abs() < 1e-14);
        }
    }

    /// 200 steps of `recorded/mlp.py`.
    #[test]
    fn follows_pytorch() {
        let file = Recorded::open("mlp.safetensors");
        let [v, e] = file.shape("first.emb")[..] else { panic!("two indices") };
        let sizes = Sizes { vocabulary: v, embedding: e, hidden: file.shape("first.b1")[0] };
        let of = |at: &str| Parameters::NAMES.map(|name| file.values(&format!("{at}.{name}")));
        let [emb, w1, b1, w2, b2] = of("first");
        let mut p = Parameters { emb, w1, b1, w2, b2 };
        let [steps, batch] = file.shape("tokens")[..] else { panic!("two indices") };
        assert_eq!(steps, 200);
        let ids = |name| file.values(name).into_iter().map(|t| t as usize).collect::<Vec<_>>();
        let [tokens, targets] = ["tokens", "targets"].map(ids);
        let lr = file.values("lr")[0];
        let mut losses = Vec::new();
        for (step, tokens) in tokens.chunks(batch).enumerate() {
            let targets = &targets[step * batch..][..batch];
            let (loss, gradient) = sizes.loss_and_gradient(&p, tokens, targets);
            if step == 0 {
                for (name, got) in Parameters::NAMES.into_iter().zip(gradient.all()) {
                    file.assert_equal(got, &format!("gradient.{name}"));
                }
            }
            losses.push(loss);
            p.descend(&gradient, lr);
        }
        file.assert_equal(&losses, "losses");
        for (name, got) in Parameters::NAMES.into_iter().zip(p.all()) {
            file.assert_equal(got, &format!("last.{name}"));
        }
        assert!(losses[199] < 0.5 * losses[0], "it learns: {} {}", losses[0], losses[199]);
    }
}
