//! One position of softmax attention behind those that a cache holds, as decoding wants it.
//!
//! ```text
//! S_j = q · k_j / √D      o = Σ_j exp(S_j) v_j / Σ_j exp(S_j)      j from 0 to the sequence's length − 1
//! ```
//!
//! Head h of q takes head h / group of the keys and values. Source: as [`crate::attention`].

/// The sizes of [`attention_step`].
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Heads of q, of one sequence.
    pub heads: usize,
    /// Heads of k and v, a divisor of those.
    pub shared_heads: usize,
    /// Positions that the caches have room for.
    pub room: usize,
    /// Columns of a head, D.
    pub columns: usize,
}

/// A head of a query: its weights, what their rounding is relative to, and its values.
struct Head<'a> {
    weights: Vec<f64>,
    /// A_j = Σ |q||k_j| / √D.
    sizes: Vec<f64>,
    /// \[length, D\].
    values: &'a [f64],
}

fn each_head(
    [q, k, v]: [&[f64]; 3],
    lengths: &[usize],
    Sizes { heads, shared_heads, room, columns: d }: Sizes,
    mut of: impl FnMut(&Head<'_>, &mut Vec<f64>),
) -> Vec<f64> {
    assert_eq!(q.len(), lengths.len() * heads * d, "q");
    assert_eq!([k.len(), v.len()], [lengths.len() * shared_heads * room * d; 2], "k and v");
    let scale = 1.0 / (d as f64).sqrt();
    let mut all = Vec::with_capacity(q.len());
    for (head, q) in q.chunks(d).enumerate() {
        let length = lengths[head / heads];
        assert!((1..=room).contains(&length), "a length within the room");
        let start = head / (heads / shared_heads) * room * d;
        let [keys, values] = [k, v].map(|cache| &cache[start..start + length * d]);
        let products = |k: &[f64]| q.iter().zip(k).map(|(q, k)| q * k).collect::<Vec<f64>>();
        let products: Vec<Vec<f64>> = keys.chunks(d).map(products).collect();
        let score = |all: &Vec<f64>| scale * all.iter().sum::<f64>();
        let size = |all: &Vec<f64>| scale * all.iter().map(|x| x.abs()).sum::<f64>();
        let scores: Vec<f64> = products.iter().map(score).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|score| (score - top).exp()).sum();
        let weights = scores.iter().map(|score| (score - top).exp() / sum).collect();
        of(&Head { weights, sizes: products.iter().map(size).collect(), values }, &mut all);
    }
    all
}

/// Σ_j w_j v_j, at the end of what is there.
fn add_sums(weights: &[f64], values: impl Iterator<Item = f64>, d: usize, all: &mut Vec<f64>) {
    let mut sums = vec![0.0; d];
    for (n, value) in values.enumerate() {
        sums[n % d] += weights[n / d] * value;
    }
    all.extend(sums);
}

/// o as q, \[B, heads, D\], of caches \[B, shared_heads, room, D\] of which sequence b has its first `lengths[b]` positions.
///
/// # Panics
/// The lengths of the tensors are not those of the sizes; a sequence has no position, or more than there is room for.
pub fn attention_step(qkv: [&[f64]; 3], lengths: &[usize], sizes: Sizes) -> Vec<f64> {
    each_head(qkv, lengths, sizes, |head, all| {
        add_sums(&head.weights, head.values.iter().copied(), sizes.columns, all);
    })
}

/// What the rounding errors of o are relative to, as in [`crate::attention::magnitudes`].
///
/// # Panics
/// As [`attention_step`].
pub fn magnitudes(qkv: [&[f64]; 3], lengths: &[usize], sizes: Sizes) -> Vec<f64> {
    each_head(qkv, lengths, sizes, |Head { weights, sizes: own, values }, all| {
        let of_sum: f64 = weights.iter().zip(own).map(|(w, a)| w * a).sum();
        let weights: Vec<f64> =
            weights.iter().zip(own).map(|(w, a)| w * (1.0 + a + of_sum)).collect();
        add_sums(&weights, values.iter().map(|v| v.abs()), sizes.columns, all);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{self, Inputs, attention};
    use approx::assert_relative_eq;

    /// Each position's step is its row of the whole.
    #[test]
    fn steps_are_the_rows_of_causal_attention() {
        let (batch, heads, shared_heads, s, d) = (2, 4, 2, 5, 3);
        let some = |len: usize, step: usize| -> Vec<f64> {
            (0..len).map(|i| ((i * step % 23) as f64 - 11.0) / 7.0).collect()
        };
        let q = some(batch * heads * s * d, 7);
        let (k, v) = (some(batch * shared_heads * s * d, 5), some(batch * shared_heads * s * d, 3));
        let sizes = attention::Sizes {
            heads: batch * heads,
            group: heads / shared_heads,
            positions: s,
            columns: d,
            causal: true,
        };
        let whole = attention(Inputs { q: &q, k: &k, v: &v, grad: None }, sizes).o;
        let whole_sizes =
            attention::magnitudes(Inputs { q: &q, k: &k, v: &v, grad: None }, sizes, 0.0).o;
        let sizes = Sizes { heads, shared_heads, room: s, columns: d };
        for position in 0..s {
            let rows = |all: &[f64]| -> Vec<f64> {
                all.chunks(s * d).flat_map(|head| head[position * d..][..d].to_vec()).collect()
            };
            // The second sequence is one position behind the first.
            let lengths = [position + 1, position.max(1)];
            let o = attention_step([&rows(&q), &k, &v], &lengths, sizes);
            let own = magnitudes([&rows(&q), &k, &v], &lengths, sizes);
            for (own, whole) in [(o, rows(&whole)), (own, rows(&whole_sizes))] {
                for (own, whole) in own.iter().zip(whole).take(heads * d) {
                    assert_relative_eq!(*own, whole, epsilon = 1e-14);
                }
            }
        }
    }
}
