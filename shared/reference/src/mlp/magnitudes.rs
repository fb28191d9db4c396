//! What the rounding errors of a gradient are relative to.

use super::{Parameters, Sizes, transposed};
use crate::matmul::matmul;
use crate::training::cross_entropy;

/// Of each parameter's gradient the terms without their cancellation: what rounding errors are relative to.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Of what sums are rounded to.
    pub sums: Parameters,
    /// Of what h, w2 and dz are rounded to before they are multiplied. Of w2 and b2 sums, for all pairs have the same row of w2.
    /// Of emb, w1 and b1 squares, for it is random from target to target; n pairs of one target count n times, as (Σ a)² ≤ n Σ a².
    pub factors: Parameters,
}

fn absolute(values: &[f64]) -> Vec<f64> {
    values.iter().map(|v| v.abs()).collect()
}

fn squares(values: &[f64]) -> Vec<f64> {
    values.iter().map(|v| v * v).collect()
}

impl Sizes {
    /// The terms of the gradient of these pairs' mean loss.
    ///
    /// A logit z_v is off by its own ζ_v, and so is the probability p_v by p_v ζ_v, and dz by |dz| + p ζ / B. h, which is near 0 where
    /// the terms of its sum cancel, is off by what these are, h⁺. What is behind dz has |w2|ᵀ in place of w2ᵀ; and behind w1, whose
    /// signs know nothing of those errors, squares.
    ///
    /// ```text
    /// ζ: |w2| h⁺ + |b2| + 4 of sums, an exponential's on a GPU; √Σ (w2 h)² of factors        h⁺: |w1| |x| + |b1| where h > 0
    /// da: [h > 0] |w2|ᵀ |dz|      dx² = (w1²)ᵀ da²      dw2: |dz| h⁺, or |dz| h of factors      db2: |dz|      dw1: |da| |x|      db1: |da|
    /// ```
    ///
    /// # Panics
    /// As [`Sizes::loss_and_gradient`].
    pub fn gradient_terms(&self, p: &Parameters, tokens: &[usize], targets: &[usize]) -> Terms {
        let x = self.rows(p, tokens);
        let h = self.hidden_of(p, &x);
        let (_, dz) = cross_entropy(&Self::layer(&h, &p.w2, &p.b2, self.hidden), targets);
        let is_open = |h: &f64, v: f64| if *h > 0.0 { v } else { 0.0 };
        let (x, w2) = (absolute(&x), absolute(&p.w2));
        let whole = Self::layer(&x, &absolute(&p.w1), &absolute(&p.b1), self.embedding);
        let whole: Vec<f64> = h.iter().zip(whole).map(|(h, v)| is_open(h, v)).collect();
        const EXP: f64 = 4.0;
        let beside: Vec<f64> = p.b2.iter().map(|b| b.abs() + EXP).collect();
        let of_sums = Self::layer(&whole, &w2, &beside, self.hidden);
        let zeros = vec![0.0; p.b2.len()];
        let of_factors = Self::layer(&squares(&h), &squares(&p.w2), &zeros, self.hidden);
        let roots = |all: &[f64]| all.iter().map(|v| v.sqrt()).collect::<Vec<_>>();
        // dz, da and the squares of dx.
        let behind = |off: &[f64]| {
            let dz = self.off(&dz, targets, off);
            let da = matmul(&dz, &w2, tokens.len(), self.hidden, self.vocabulary);
            let da: Vec<f64> = h.iter().zip(da).map(|(h, da)| is_open(h, da)).collect();
            let of_w1 = squares(&p.w1);
            let dx = matmul(&squares(&da), &of_w1, tokens.len(), self.embedding, self.hidden);
            (dz, da, dx)
        };
        let (dz, da, dx) = behind(&of_sums);
        let sums = self.gradient_of_factors(tokens, &dz, &da, &roots(&dx), &x, &whole);
        let (dz, da, dx) = behind(&roots(&of_factors));
        let counted = |rows: &[f64], columns: usize| -> Vec<f64> {
            let alike = |target: &usize| targets.iter().filter(|t| *t == target).count() as f64;
            let rows = rows.chunks(columns).zip(targets);
            rows.flat_map(|(row, target)| {
                let times = alike(target);
                row.iter().map(move |v| times * v)
            })
            .collect()
        };
        let (da, dx) = (counted(&squares(&da), self.hidden), counted(&dx, self.embedding));
        let factors = self.gradient_of_factors(tokens, &dz, &da, &dx, &squares(&x), &h);
        Terms { sums, factors }
    }

    /// |dz| + p ζ / B.
    fn off(&self, dz: &[f64], targets: &[usize], by: &[f64]) -> Vec<f64> {
        let share = 1.0 / targets.len() as f64;
        let rows = dz.chunks(self.vocabulary).zip(by.chunks(self.vocabulary)).zip(targets);
        let of_row = |((dz, by), target): ((&'_ [f64], &'_ [f64]), &usize)| -> Vec<f64> {
            let target = *target;
            let all = dz.iter().zip(by).enumerate();
            let of = |(v, (dz, by)): (usize, (&f64, &f64))| {
                let p = dz + if v == target { share } else { 0.0 };
                dz.abs() + p * by
            };
            all.map(of).collect()
        };
        rows.flat_map(of_row).collect()
    }

    /// The gradient of each parameter, from those by z, a and x of each pair, and from what they are multiplied by.
    pub(super) fn gradient_of_factors(
        &self,
        tokens: &[usize],
        dz: &[f64],
        da: &[f64],
        dx: &[f64],
        x: &[f64],
        h: &[f64],
    ) -> Parameters {
        let Self { vocabulary, embedding, hidden } = *self;
        let batch = tokens.len();
        let sums = |rows: &[f64], columns| {
            let mut sums = vec![0.0; columns];
            for row in rows.chunks(columns) {
                sums.iter_mut().zip(row).for_each(|(s, v)| *s += v);
            }
            sums
        };
        let mut emb = vec![0.0; vocabulary * embedding];
        for (&token, dx) in tokens.iter().zip(dx.chunks(embedding)) {
            let row = &mut emb[token * embedding..][..embedding];
            row.iter_mut().zip(dx).for_each(|(g, d)| *g += d);
        }
        Parameters {
            emb,
            w1: matmul(&transposed(da, hidden), x, hidden, embedding, batch),
            b1: sums(da, hidden),
            w2: matmul(&transposed(dz, vocabulary), h, vocabulary, hidden, batch),
            b2: sums(dz, vocabulary),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::noise;

    /// A sum without its cancellation is no less than with it, and a target's square no less than one pair's.
    #[test]
    fn no_gradient_is_more_than_its_terms() {
        let sizes = Sizes { vocabulary: 7, embedding: 3, hidden: 5 };
        let mut seed = 0;
        let [emb, w1, b1, w2, b2] = sizes.shapes().map(|shape| {
            seed += 1;
            noise(shape.iter().product(), seed)
        });
        let p = Parameters { emb, w1, b1, w2, b2 };
        let (tokens, targets) = ([0, 3, 3, 6, 0, 3], [1, 3, 1, 0, 2, 1]);
        let (_, gradient) = sizes.loss_and_gradient(&p, &tokens, &targets);
        let Terms { sums, factors } = sizes.gradient_terms(&p, &tokens, &targets);
        for (at, name) in Parameters::NAMES.into_iter().enumerate() {
            let [own, sums, factors] = [&gradient, &sums, &factors].map(|of| of.all()[at]);
            for ((own, sum), factors) in own.iter().zip(sums).zip(factors) {
                // behind w1 squares add up, in place of absolute values
                let is_less = name != "emb" && own.abs() > *sum;
                assert!(!is_less && *factors >= 0.0, "{name}: {own} {sum} {factors}");
                // a token that is in no pair moves nothing
                assert!(
                    (*own == 0.0) == (*sum == 0.0) && (*sum == 0.0) == (*factors == 0.0),
                    "{name}"
                );
            }
        }
    }
}
