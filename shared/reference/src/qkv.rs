//! Attention's two products, without what stands between them: O = (Q Kᵀ / √DHQK) V.

use crate::matmul::matmul;

/// The sizes of [`qkv`].
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Positions, S: rows of Q, K, V and O.
    pub positions: usize,
    /// DHQK: columns of Q and K.
    pub qk: usize,
    /// DHHV: columns of V and O.
    pub hv: usize,
}

/// `q`, `k` hold matrices of `positions` × `qk`, `v` as many of `positions` × `hv`, and so does the
/// result; all row-major. No softmax, no mask.
///
/// ```
/// use lab_reference::qkv::{Sizes, qkv};
/// // Two positions: scores (2·1, 2·3) / √1, and (4·1, 4·3).
/// let o = qkv(&[2.0, 4.0], &[1.0, 3.0], &[10.0, 1.0], Sizes { positions: 2, qk: 1, hv: 1 });
/// assert_eq!(o, [26.0, 52.0]);
/// ```
///
/// # Panics
/// The lengths are not those of equally many matrices.
pub fn qkv(q: &[f64], k: &[f64], v: &[f64], sizes: Sizes) -> Vec<f64> {
    // Some rows of scores at a time: all of them would be S² numbers.
    const ROWS: usize = 1024;
    let Sizes { positions, qk, hv } = sizes;
    assert!(q.len() == k.len() && q.len().is_multiple_of(positions * qk), "as many of each");
    assert!(q.len() / qk == v.len() / hv && v.len().is_multiple_of(hv), "as many of each");
    let scale = 1.0 / (qk as f64).sqrt();
    let mut o = Vec::with_capacity(v.len());
    let heads = q.chunks(positions * qk).zip(k.chunks(positions * qk));
    for ((q, k), v) in heads.zip(v.chunks(positions * hv)) {
        let transposed: Vec<f64> =
            (0..qk).flat_map(|c| k.iter().skip(c).step_by(qk).copied()).collect();
        for q in q.chunks(ROWS * qk) {
            let rows = q.len() / qk;
            let mut scores = matmul(q, &transposed, rows, positions, qk);
            scores.iter_mut().for_each(|s| *s *= scale);
            o.extend(matmul(&scores, v, rows, hv, positions));
        }
    }
    o
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;

    #[test]
    fn equals_the_plainest_code() {
        for (heads, positions, qk, hv) in
            [(1, 1, 1, 1), (1, 3, 5, 2), (3, 33, 4, 7), (2, 1030, 2, 3)]
        {
            let some = |len: usize, step: usize| -> Vec<f64> {
                (0..len).map(|i| (i * step % 23) as f64 - 11.0).collect()
            };
            let rows = heads * positions;
            let (q, k, v) = (some(rows * qk, 7), some(rows * qk, 5), some(rows * hv, 3));
            let o = qkv(&q, &k, &v, Sizes { positions, qk, hv });
            assert_eq!(o.len(), rows * hv);
            for (at, o) in o.iter().enumerate() {
                let (row, c) = (at / hv, at % hv);
                let first = row / positions * positions;
                let mut sum = 0.0;
                for j in first..first + positions {
                    let mut dot = 0.0;
                    for x in 0..qk {
                        dot += q[row * qk + x] * k[j * qk + x];
                    }
                    sum += dot / (qk as f64).sqrt() * v[j * hv + c];
                }
                assert_relative_eq!(*o, sum, epsilon = 1e-9, max_relative = 1e-12);
            }
        }
    }

    #[test]
    #[should_panic(expected = "as many of each")]
    fn refuses_lengths_that_do_not_fit() {
        qkv(&[1.0; 6], &[1.0; 6], &[1.0; 4], Sizes { positions: 3, qk: 2, hv: 1 });
    }
}
