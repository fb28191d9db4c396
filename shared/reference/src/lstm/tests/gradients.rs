//! The gradients against central differences.

use super::*;

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// What the gradients are of.
fn loss(case: &Case) -> f64 {
    let out = case.forward();
    dot(&out.y, &case.dy) + dot(&out.hn, &case.dhn) + dot(&out.cn, &case.dcn)
}

fn difference(case: &Case, name: &str, at: usize) -> f64 {
    const STEP: f64 = 1e-5;
    let moved = |by: f64| {
        let mut case = case.clone();
        case.tensor(name)[at] += by;
        loss(&case)
    };
    (moved(STEP) - moved(-STEP)) / (2.0 * STEP)
}

#[test]
fn gradients_are_those_of_differences() {
    for case in cases() {
        let gradients = case.backward();
        let mut names = 0;
        for (name, got) in gradients.by_name() {
            names += 1;
            assert_eq!(got.len(), case.clone().tensor(name).len(), "{}: {name}", case.name);
            // At most 40 of each tensor, all over it.
            let samples = (0..got.len()).step_by(got.len().div_ceil(40));
            let pairs: Vec<_> = samples.map(|at| (got[at], difference(&case, name, at))).collect();
            let largest = pairs.iter().fold(0.0f64, |a, (_, e)| a.max(e.abs()));
            assert!(largest > 1e-3, "{}: d{name} is none to speak of: {largest}", case.name);
            for (got, expected) in pairs {
                let error = (got - expected).abs() / largest;
                // Three times the largest error seen, which is the differences'.
                assert!(error <= 1e-8, "{}: d{name} {got}, not {expected}", case.name);
            }
        }
        let states = if case.network.cell == Cell::Lstm { 2 } else { 1 };
        assert_eq!(names, 1 + states + case.network.parameters().len(), "{}", case.name);
    }
}

/// Each of dy, dhn and dcn alone, the others left out: the three add up.
#[test]
fn gradients_add_up() {
    for case in cases().into_iter().filter(|case| case.network.cell == Cell::Lstm) {
        let none = Upstream::default();
        let parts = [
            Upstream { dy: Some(&case.dy), ..none },
            Upstream { dhn: Some(&case.dhn), ..none },
            Upstream { dcn: Some(&case.dcn), ..none },
        ]
        .map(|d| case.network.backward(&case.parameters, case.inputs(), d));
        let parts = parts.each_ref().map(|part| part.by_name());
        for (at, (name, whole)) in case.backward().by_name().into_iter().enumerate() {
            for (element, whole) in whole.iter().enumerate() {
                let sum: f64 = parts.iter().map(|part| part[at].1[element]).sum();
                assert!((sum - whole).abs() <= 1e-12, "{}: d{name} {sum} {whole}", case.name);
            }
        }
    }
}
