//! Matrix products.

use rayon::prelude::*;

/// The product of each pair of row-major matrices: `a` holds matrices of `m` × `k`, `b` as many of
/// `k` × `n`, the result as many of `m` × `n`.
///
/// The one reference that is not the plainest code: at 4096³ that would take minutes. It is the
/// crate `matrixmultiply` on all cores, and the tests hold it against the plainest code.
///
/// ```
/// let c = lab_reference::matmul::matmul(&[1.0, 2.0, 3.0, 4.0], &[5.0, 6.0], 2, 1, 2);
/// assert_eq!(c, [17.0, 39.0]);
/// ```
///
/// # Panics
/// The lengths are not those of equally many matrices.
pub fn matmul(a: &[f64], b: &[f64], m: usize, n: usize, k: usize) -> Vec<f64> {
    let mut c = vec![0.0; a.len() / k * n];
    assert!(a.len().is_multiple_of(m * k) && a.len() / m * n == b.len(), "as many of each");
    // Rows of C are apart from each other: each core takes some at a time.
    const ROWS: usize = 256;
    for ((a, b), c) in a.chunks(m * k).zip(b.chunks(k * n)).zip(c.chunks_mut(m * n)) {
        a.par_chunks(ROWS * k).zip(c.par_chunks_mut(ROWS * n)).for_each(|(a, c)| {
            let rows = c.len() / n;
            assert!(a.len() == rows * k && b.len() == k * n && c.len() == rows * n);
            let stride = |columns: usize| (columns as isize, 1);
            let ((ra, ca), (rb, cb), (rc, cc)) = (stride(k), stride(n), stride(n));
            // SAFETY: the lengths were just held against the sizes and strides; c is borrowed
            // alone.
            unsafe {
                matrixmultiply::dgemm(
                    rows,
                    k,
                    n,
                    1.0,
                    a.as_ptr(),
                    ra,
                    ca,
                    b.as_ptr(),
                    rb,
                    cb,
                    0.0,
                    c.as_mut_ptr(),
                    rc,
                    cc,
                );
            }
        });
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;
    use approx::assert_relative_eq;

    #[test]
    fn equals_the_plainest_code() {
        for (g, m, n, k) in [(1, 1, 1, 1), (1, 3, 5, 7), (3, 33, 31, 65), (2, 600, 9, 17)] {
            let some = |len: usize, step: usize| -> Vec<f64> {
                (0..len).map(|i| (i * step % 23) as f64 - 11.0).collect()
            };
            let (a, b) = (some(g * m * k, 7), some(g * k * n, 5));
            let c = matmul(&a, &b, m, n, k);
            assert_eq!(c.len(), g * m * n);
            for (at, c) in c.iter().enumerate() {
                let (z, i, j) = (at / (m * n), at / n % m, at % n);
                let terms = (0..k).map(|x| a[(z * m + i) * k + x] * b[(z * k + x) * n + j]);
                assert_relative_eq!(*c, terms.sum::<f64>());
            }
        }
    }

    #[test]
    #[should_panic(expected = "as many of each")]
    fn refuses_lengths_that_do_not_fit() {
        matmul(&[1.0; 6], &[1.0; 8], 2, 2, 3);
    }
}
