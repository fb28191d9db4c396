//! Layer norm of a row, and its gradient.

/// A row less its mean, over its deviation.
pub(super) struct Norm {
    /// (a − mean) / √(variance + ε)
    row: Vec<f64>,
    /// 1 / √(variance + ε)
    scale: f64,
}

/// What a row's normalised elements are multiplied by, and what is added to them.
#[derive(Clone, Copy)]
pub(super) struct Affine<'a> {
    pub(super) weight: &'a [f64],
    pub(super) bias: &'a [f64],
}

impl Norm {
    pub(super) fn of(a: &[f64], epsilon: f64) -> Self {
        let mean = a.iter().sum::<f64>() / a.len() as f64;
        let variance = a.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / a.len() as f64;
        let scale = 1.0 / (variance + epsilon).sqrt();
        Self { row: a.iter().map(|a| (a - mean) * scale).collect(), scale }
    }

    pub(super) fn output(&self, affine: Affine<'_>) -> Vec<f64> {
        let all = self.row.iter().zip(affine.weight).zip(affine.bias);
        all.map(|((n, weight), bias)| n * weight + bias).collect()
    }

    /// The gradients by a and by the weight, from that by the output, which is that by the bias.
    ///
    /// With g = weight ⊙ d: da = (g − mean(g) − n mean(g ⊙ n)) / √(variance + ε).
    pub(super) fn backward(&self, affine: Affine<'_>, d: &[f64]) -> (Vec<f64>, Vec<f64>) {
        let g: Vec<f64> = d.iter().zip(affine.weight).map(|(d, weight)| d * weight).collect();
        let mean = g.iter().sum::<f64>() / g.len() as f64;
        let along = g.iter().zip(&self.row).map(|(g, n)| g * n).sum::<f64>() / g.len() as f64;
        let da = g.iter().zip(&self.row).map(|(g, n)| (g - mean - n * along) * self.scale);
        (da.collect(), d.iter().zip(&self.row).map(|(d, n)| d * n).collect())
    }
}
