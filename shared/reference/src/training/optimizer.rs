//! Optimisers, each as one step of one tensor.

/// Stochastic gradient descent with momentum (`torch.optim.SGD`, without dampening):
///
/// ```text
/// g ← g + weight_decay · p
/// v ← momentum · v + g
/// p ← p − lr · v
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Learning rate.
    pub lr: f64,
    /// Share of the last step's velocity that is kept; 0 for plain descent.
    pub momentum: f64,
    /// Factor of the parameter in its gradient.
    pub weight_decay: f64,
}

impl Sgd {
    /// One step of the parameter `p` with the gradient `g`; the velocity `v` starts from zero.
    ///
    /// # Panics
    /// The lengths differ.
    pub fn step(&self, p: &mut [f64], g: &[f64], v: &mut [f64]) {
        assert_eq!((g.len(), v.len()), (p.len(), p.len()), "g v");
        for ((p, g), v) in p.iter_mut().zip(g).zip(v) {
            *v = self.momentum * *v + g + self.weight_decay * *p;
            *p -= self.lr * *v;
        }
    }
}

/// Adam (Kingma & Ba 2015, arXiv 1412.6980, algorithm 1; `torch.optim.Adam`) and AdamW (Loshchilov
/// & Hutter 2019, arXiv 1711.05101, algorithm 2; `torch.optim.AdamW`). At step t, from 1 on:
///
/// ```text
/// g ← g + weight_decay · p                    Adam
/// p ← p − lr · weight_decay · p               AdamW
/// m ← β₁ m + (1 − β₁) g
/// v ← β₂ v + (1 − β₂) g²
/// p ← p − lr · m / (1 − β₁ᵗ) / (√(v / (1 − β₂ᵗ)) + ε)
/// ```
///
/// As in PyTorch, AdamW's decay is scaled by the learning rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Adam {
    /// Learning rate.
    pub lr: f64,
    /// How much of m and of v is kept.
    pub betas: [f64; 2],
    /// ε, added outside the root.
    pub eps: f64,
    /// In the gradient, or, where it is `decoupled`, of the parameter.
    pub weight_decay: f64,
    /// AdamW.
    pub decoupled: bool,
}

/// What Adam keeps of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct AdamState {
    /// Steps taken.
    pub steps: i32,
    /// The running mean of the gradient.
    pub m: Vec<f64>,
    /// The running mean of its square.
    pub v: Vec<f64>,
}

impl AdamState {
    /// Before the first step of a tensor of `len` elements.
    pub fn new(len: usize) -> Self {
        Self { steps: 0, m: vec![0.0; len], v: vec![0.0; len] }
    }
}

impl Adam {
    /// One step of the parameter `p` with the gradient `g`.
    ///
    /// ```
    /// use lab_reference::training::{Adam, AdamState};
    /// let adam =
    ///     Adam { lr: 0.1, betas: [0.9, 0.999], eps: 0.0, weight_decay: 0.0, decoupled: false };
    /// let (mut p, mut state) = ([1.0, 1.0], AdamState::new(2));
    /// adam.step(&mut p, &[1e-3, -7.0], &mut state);
    /// // The first step is the learning rate, whatever the gradient.
    /// assert!((p[0] - 0.9).abs() < 1e-12 && (p[1] - 1.1).abs() < 1e-12);
    /// ```
    ///
    /// # Panics
    /// The lengths differ.
    pub fn step(&self, p: &mut [f64], g: &[f64], state: &mut AdamState) {
        let lengths = (g.len(), state.m.len(), state.v.len());
        assert_eq!(lengths, (p.len(), p.len(), p.len()), "g m v");
        state.steps += 1;
        let [of_m, of_v] = self.betas.map(|beta| 1.0 - beta.powi(state.steps));
        let moments = state.m.iter_mut().zip(&mut state.v);
        for ((p, g), (m, v)) in p.iter_mut().zip(g).zip(moments) {
            let decay = self.weight_decay * *p;
            let g = if self.decoupled { *g } else { g + decay };
            if self.decoupled {
                *p -= self.lr * decay;
            }
            *m = self.betas[0] * *m + (1.0 - self.betas[0]) * g;
            *v = self.betas[1] * *v + (1.0 - self.betas[1]) * g * g;
            *p -= self.lr * (*m / of_m) / ((*v / of_v).sqrt() + self.eps);
        }
    }
}

/// The norm of all gradients as if they were one: √(Σ g²).
pub fn global_norm<'a>(gradients: impl IntoIterator<Item = &'a [f64]>) -> f64 {
    gradients.into_iter().flatten().map(|g| g * g).sum::<f64>().sqrt()
}

/// What gradients of this [`global_norm`] are multiplied by so that it is at most `max_norm`:
/// min(1, max_norm / (norm + 1e-6)) (`torch.nn.utils.clip_grad_norm_`; Pascanu et al. 2013, arXiv
/// 1211.5063, algorithm 1).
///
/// ```
/// use lab_reference::training::{clip_factor, global_norm};
/// let norm = global_norm([&[3.0][..], &[0.0, 4.0]]);
/// assert_eq!((norm, clip_factor(norm, 10.0)), (5.0, 1.0));
/// assert!((clip_factor(norm, 0.5) - 0.1).abs() < 1e-6);
/// ```
pub fn clip_factor(norm: f64, max_norm: f64) -> f64 {
    // Not `min`, which would make 1 of NaN.
    let factor = max_norm / (norm + 1e-6);
    if factor > 1.0 { 1.0 } else { factor }
}
