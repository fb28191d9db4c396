//! The linear algebra behind forecasts and summaries.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::algebra::Matrix;

fn values_of(matrix: &Matrix) -> Vec<f64> {
    (0..matrix.rows()).flat_map(|row| matrix.row(row).to_vec()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn random(rows: usize, columns: usize, seed: u64) -> Matrix {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    Matrix::new(columns, (0..rows * columns).map(|_| rng.random_range(-1.0..1.0)).collect())
}

#[track_caller]
fn near(got: &[f64], expected: &[f64], bound: f64) {
    assert_eq!(got.len(), expected.len());
    let is_near = got.iter().zip(expected).all(|(g, e)| (g - e).abs() <= bound);
    assert!(is_near, "{got:?}, not {expected:?}");
}

#[test]
fn a_triangle_has_the_products_of_all_columns() {
    for (rows, columns) in [(1, 4), (3, 3), (40, 7), (7, 9)] {
        let matrix = random(rows, columns, 1);
        let triangle = matrix.clone().triangle();
        assert_eq!((triangle.rows(), triangle.row(0).len()), (rows.min(columns), columns));
        let below = |row: usize| triangle.row(row)[..row].iter().all(|v| *v == 0.0);
        assert!((0..triangle.rows()).all(below));
        let [got, expected] =
            [triangle, matrix].map(|m| values_of(&m.transposed().by_own_transpose()));
        near(&got, &expected, 1e-13);
    }
}

/// The last column is the sum of the others.
#[test]
fn of_several_solutions_it_is_the_smallest() {
    let mut matrix = Matrix::new(4, Vec::new());
    let wide = random(9, 3, 2);
    for row in 0..9 {
        let row = wide.row(row);
        matrix.push_row(row.iter().copied().chain([row.iter().sum()]));
    }
    // Along (1, 1, 1, −1) nothing changes: the smallest has no part of it.
    let smallest = [2.0, -1.0, 0.5, 1.5];
    let right: Vec<f64> = (0..9).map(|row| dot(matrix.row(row), &smallest)).collect();
    near(&matrix.least_squares(&right, 1e-10).unwrap(), &smallest, 1e-12);
    let zeros = Matrix::new(2, vec![0.0; 6]).least_squares(&[1.0; 3], 1e-10);
    assert_eq!(zeros, Some(vec![0.0; 2]));
}

#[test]
fn what_is_left_of_least_squares_is_orthogonal_to_the_columns() {
    let (matrix, right) = (random(20, 6, 3), values_of(&random(20, 1, 4)));
    let x = matrix.least_squares(&right, 1e-10).unwrap();
    let left: Vec<f64> = (0..20).map(|row| right[row] - dot(matrix.row(row), &x)).collect();
    let columns = matrix.transposed();
    let along: Vec<f64> = (0..6).map(|column| dot(columns.row(column), &left)).collect();
    near(&along, &[0.0; 6], 1e-13);
}

#[test]
fn eigenvalues_are_those_that_the_matrix_was_made_of() {
    near(&Matrix::new(2, vec![2.0, 1.0, 1.0, 2.0]).eigenvalues(), &[3.0, 1.0], 1e-15);
    near(&Matrix::new(1, vec![-4.0]).eigenvalues(), &[-4.0], 0.0);
    near(&Matrix::new(3, vec![0.0; 9]).eigenvalues(), &[0.0; 3], 0.0);
    // Of second differences: 2 − 2 cos(k π / (n + 1)).
    let n = 30;
    let mut differences = vec![0.0; n * n];
    for row in 0..n {
        for (column, value) in [(row.wrapping_sub(1), -1.0), (row, 2.0), (row + 1, -1.0)] {
            if column < n {
                differences[row * n + column] = value;
            }
        }
    }
    let angle = |k: usize| k as f64 * std::f64::consts::PI / (n + 1) as f64;
    let expected: Vec<f64> = (1..=n).rev().map(|k| 2.0 - 2.0 * angle(k).cos()).collect();
    near(&Matrix::new(n, differences).eigenvalues(), &expected, 1e-14);
    // Reflected: (1 − 2 u uᵀ) diag (1 − 2 u uᵀ), with two alike and two zeros.
    let made_of = [9.0, 4.0, 4.0, 1e-3, 0.0, 0.0];
    let u = values_of(&random(1, 6, 5));
    let length = dot(&u, &u);
    let reflection = |i: usize, j: usize| f64::from(u8::from(i == j)) - 2.0 * u[i] * u[j] / length;
    let entry = |i, j| (0..6).map(|k| reflection(i, k) * made_of[k] * reflection(k, j)).sum();
    let all = (0..36).map(|at| entry(at / 6, at % 6)).collect();
    near(&Matrix::new(6, all).eigenvalues(), &made_of, 1e-14);
}
