//! The little linear algebra that forecasts and summaries need, in f64.
//!
//! Matrices are a few hundred numbers wide: what is written here is short, and exact enough to see ranks by.
//! The methods stand in Golub and Van Loan, *Matrix Computations*: QR by reflections (5.2), singular values by Jacobi's rotations of
//! columns (8.6), eigenvalues of a symmetric matrix by way of a tridiagonal one (8.3).

/// Rounds of rotations, and of steps for one eigenvalue: some ten are needed.
const ROUNDS: usize = 100;

/// A matrix, row by row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Matrix {
    columns: usize,
    values: Vec<f64>,
}

impl Matrix {
    /// Of rows of so many columns.
    ///
    /// # Panics
    /// The values make no whole rows.
    pub(super) fn new(columns: usize, values: Vec<f64>) -> Self {
        assert!(columns > 0 && values.len().is_multiple_of(columns), "whole rows");
        Self { columns, values }
    }

    pub(super) fn rows(&self) -> usize {
        self.values.len() / self.columns
    }

    pub(super) fn row(&self, row: usize) -> &[f64] {
        &self.values[row * self.columns..][..self.columns]
    }

    fn row_mut(&mut self, row: usize) -> &mut [f64] {
        &mut self.values[row * self.columns..][..self.columns]
    }

    pub(super) fn push_row(&mut self, row: impl Iterator<Item = f64>) {
        self.values.extend(row);
        debug_assert!(self.values.len().is_multiple_of(self.columns), "whole rows");
    }

    pub(super) fn transposed(&self) -> Self {
        let at = |column: usize| (0..self.rows()).map(move |row| self.row(row)[column]);
        Self { columns: self.rows(), values: (0..self.columns).flat_map(at).collect() }
    }

    /// The product with its own transpose: each row by each.
    pub(super) fn by_own_transpose(&self) -> Self {
        let rows = self.rows();
        let of = |i: usize| (0..rows).map(move |j| dot(self.row(i), self.row(j)));
        Self { columns: rows, values: (0..rows).flat_map(of).collect() }
    }

    /// R of QR: as many columns, no more rows than columns, zeros below the diagonal. RᵀR is the product of the transpose with the
    /// matrix.
    pub(super) fn triangle(mut self) -> Self {
        let (rows, columns) = (self.rows(), self.columns);
        for pivot in 0..rows.min(columns) {
            let below: Vec<f64> = (pivot..rows).map(|row| self.row(row)[pivot]).collect();
            let norm = norm(&below);
            if norm == 0.0 {
                continue;
            }
            // The reflection along v takes the column to its first place; the sign keeps v from cancelling.
            let mut v: Vec<f64> = below.iter().map(|value| value / norm).collect();
            v[0] += 1f64.copysign(v[0]);
            let half = dot(&v, &v) / 2.0;
            let mut along = vec![0.0; columns - pivot];
            for (v, row) in v.iter().zip(pivot..rows) {
                add_scaled(&mut along, &self.row(row)[pivot..], v / half);
            }
            for (v, row) in v.iter().zip(pivot..rows) {
                add_scaled(&mut self.row_mut(row)[pivot..], &along, -v);
            }
        }
        self.values.truncate(rows.min(columns) * columns);
        for row in 0..self.rows() {
            self.row_mut(row)[..row].fill(0.0);
        }
        self
    }

    /// The x for which |self · x − right| is smallest; of several, the smallest. Directions whose singular value is below this share of the
    /// largest say nothing. `None` where the rotations do not end.
    ///
    /// # Panics
    /// There are not as many numbers as rows.
    pub(super) fn least_squares(&self, right: &[f64], rank: f64) -> Option<Vec<f64>> {
        assert_eq!(right.len(), self.rows(), "a number for each row");
        let (columns, rows) = (self.columns, self.rows());
        // As many times smaller, so that no square overflows.
        let scale = self.values.iter().fold(f64::MIN_POSITIVE, |most, v| most.max(v.abs()));
        // A column of the matrix and behind it the same column of V, rotated alike: in the end the first parts are orthogonal, of
        // the lengths of the singular values.
        let row_of = |n: usize| {
            let unit = (0..columns).map(move |m| f64::from(u8::from(m == n)));
            (0..rows).map(move |row| self.row(row)[n] / scale).chain(unit)
        };
        let values = (0..columns).flat_map(row_of).collect();
        let mut rotated = Self { columns: rows + columns, values };
        let ends = (0..ROUNDS).any(|_| !rotated.rotate_rows(rows));
        if !ends {
            return None;
        }
        let lengths: Vec<f64> = (0..columns).map(|n| norm(&rotated.row(n)[..rows])).collect();
        let least = rank * lengths.iter().copied().fold(0.0, f64::max);
        let mut x = vec![0.0; columns];
        for (n, &length) in lengths.iter().enumerate().filter(|(_, length)| **length > least) {
            let (column, v) = rotated.row(n).split_at(rows);
            let along: f64 = column.iter().zip(right).map(|(c, r)| c / length * (r / scale)).sum();
            add_scaled(&mut x, v, along / length);
        }
        Some(x)
    }

    /// Rotates each pair of rows so that their first `len` numbers are orthogonal; whether any were not. Rows that are rounding beside the
    /// longest are orthogonal to nothing, and stay.
    fn rotate_rows(&mut self, len: usize) -> bool {
        let mut rotates = false;
        let squares = (0..self.rows()).map(|row| dot(&self.row(row)[..len], &self.row(row)[..len]));
        let least = squares.fold(0.0, f64::max) * f64::EPSILON * f64::EPSILON;
        let orthogonal = f64::EPSILON * len as f64;
        for p in 0..self.rows() {
            for q in p + 1..self.rows() {
                let (above, below) = self.values.split_at_mut(q * self.columns);
                let (p, q) = (&mut above[p * self.columns..][..self.columns], below);
                let q = &mut q[..self.columns];
                let [a, b, c] = [(&*p, &*p), (&*q, &*q), (&*p, &*q)]
                    .map(|(one, other)| dot(&one[..len], &other[..len]));
                if a.min(b) <= least || c.abs() <= orthogonal * (a.sqrt() * b.sqrt()) {
                    continue;
                }
                rotates = true;
                let zeta = (b - a) / (2.0 * c);
                let t = 1f64.copysign(zeta) / (zeta.abs() + zeta.hypot(1.0));
                let cos = 1.0 / t.hypot(1.0);
                let sin = cos * t;
                for (p, q) in p.iter_mut().zip(q) {
                    (*p, *q) = (cos * *p - sin * *q, sin * *p + cos * *q);
                }
            }
        }
        rotates
    }

    /// The eigenvalues of a symmetric matrix, the largest first.
    ///
    /// # Panics
    /// It is not square, or holds what is not finite.
    pub(super) fn eigenvalues(self) -> Vec<f64> {
        assert_eq!(self.rows(), self.columns, "a square");
        assert!(self.values.iter().all(|v| v.is_finite()), "finite values");
        let (mut diagonal, mut beside) = self.tridiagonal();
        diagonalize(&mut diagonal, &mut beside);
        diagonal.sort_by(|a, b| b.total_cmp(a));
        diagonal
    }

    /// The diagonal, and what stands beside it, of a tridiagonal matrix with the same eigenvalues.
    fn tridiagonal(mut self) -> (Vec<f64>, Vec<f64>) {
        let size = self.columns;
        let mut beside = Vec::with_capacity(size.saturating_sub(1));
        for n in 0..size.saturating_sub(1) {
            let own = &self.row(n)[n + 1..];
            let norm = norm(own);
            beside.push(-norm.copysign(own[0]));
            if norm == 0.0 {
                continue;
            }
            let mut v: Vec<f64> = own.iter().map(|value| value / norm).collect();
            v[0] += 1f64.copysign(v[0]);
            let half = dot(&v, &v) / 2.0;
            // A − v wᵀ − w vᵀ, with w = p − (pᵀv / |v|²) v and p = 2 A v / |v|².
            let mut w: Vec<f64> =
                (n + 1..size).map(|row| dot(&self.row(row)[n + 1..], &v) / half).collect();
            let share = dot(&w, &v) / half / 2.0;
            add_scaled(&mut w, &v, -share);
            for (k, row) in (n + 1..size).enumerate() {
                let row = &mut self.row_mut(row)[n + 1..];
                add_scaled(row, &w, -v[k]);
                add_scaled(row, &v, -w[k]);
            }
        }
        ((0..size).map(|n| self.row(n)[n]).collect(), beside)
    }
}

/// The eigenvalues of a tridiagonal matrix, in the place of its diagonal, by steps of QL with Wilkinson's shift.
fn diagonalize(diagonal: &mut [f64], beside: &mut Vec<f64>) {
    beside.push(0.0);
    for first in 0..diagonal.len() {
        for round in 0.. {
            let is_small = |&n: &usize| {
                let around = diagonal[n].abs() + diagonal[n + 1].abs();
                beside[n].abs() <= f64::EPSILON * around
            };
            let last = (first..diagonal.len() - 1).find(is_small).unwrap_or(diagonal.len() - 1);
            // What is left after so many is rounding.
            if last == first || round == ROUNDS {
                break;
            }
            step(&mut diagonal[first..=last], &mut beside[first..=last]);
        }
    }
}

/// A step on a part in which nothing beside the diagonal is zero.
fn step(d: &mut [f64], e: &mut [f64]) {
    let last = d.len() - 1;
    let g = (d[1] - d[0]) / (2.0 * e[0]);
    let mut g = d[last] - d[0] + e[0] / (g + g.hypot(1.0).copysign(g));
    let (mut sin, mut cos, mut moved) = (1.0, 1.0, 0.0);
    for n in (0..last).rev() {
        let (f, b) = (sin * e[n], cos * e[n]);
        let r = f.hypot(g);
        e[n + 1] = r;
        if r == 0.0 {
            d[n + 1] -= moved;
            e[last] = 0.0;
            return;
        }
        (sin, cos) = (f / r, g / r);
        let shifted = d[n + 1] - moved;
        let r = (d[n] - shifted) * sin + 2.0 * cos * b;
        moved = sin * r;
        d[n + 1] = shifted + moved;
        g = cos * r - b;
    }
    d[0] -= moved;
    e[0] = g;
    e[last] = 0.0;
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Without squares that overflow.
fn norm(v: &[f64]) -> f64 {
    let largest = v.iter().fold(0.0, |most: f64, v| most.max(v.abs()));
    if largest == 0.0 || !largest.is_finite() {
        return largest;
    }
    largest * v.iter().map(|v| (v / largest).powi(2)).sum::<f64>().sqrt()
}

fn add_scaled(to: &mut [f64], from: &[f64], factor: f64) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to += factor * from);
}
