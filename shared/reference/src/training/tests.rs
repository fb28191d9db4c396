use super::*;
use crate::testing::{Recorded, noise};

/// What the optimisers of `recorded/lstm.py` descend on, and its parameter after each step.
fn descend(file: &Recorded, mut step: impl FnMut(&mut [f64], &[f64])) -> Vec<f64> {
    let [a, b, mut p] = ["a", "b", "p0"].map(|name| file.values(&format!("optimizer.{name}")));
    let mut all = Vec::new();
    for _ in 0..30 {
        let g: Vec<f64> = a.iter().zip(&b).zip(&p).map(|((a, b), p)| a * (p - b)).collect();
        step(&mut p, &g);
        all.extend(&p);
    }
    all
}

#[test]
fn optimizers_equal_pytorch() {
    let file = Recorded::open("lstm.safetensors");
    let plain = Sgd { lr: 0.1, momentum: 0.0, weight_decay: 0.0 };
    let momentum = Sgd { lr: 0.1, momentum: 0.9, weight_decay: 0.03 };
    for (name, sgd) in [("sgd", plain), ("momentum", momentum)] {
        let mut v = vec![0.0; 5];
        let got = descend(&file, |p, g| sgd.step(p, g, &mut v));
        file.assert_equal(&got, &format!("optimizer.{name}"));
    }
    let usual =
        Adam { lr: 0.1, betas: [0.9, 0.999], eps: 1e-8, weight_decay: 0.0, decoupled: false };
    for (name, adam) in [
        ("adam", Adam { betas: [0.8, 0.95], eps: 1e-3, ..usual }),
        ("adam_decay", Adam { weight_decay: 0.03, ..usual }),
        ("adamw", Adam { weight_decay: 0.3, decoupled: true, ..usual }),
    ] {
        let mut state = AdamState::new(5);
        let got = descend(&file, |p, g| adam.step(p, g, &mut state));
        file.assert_equal(&got, &format!("optimizer.{name}"));
    }
}

#[test]
fn losses_equal_pytorch() {
    let file = Recorded::open("lstm.safetensors");
    let [logits, targets, y, target] =
        ["logits", "targets", "y", "target"].map(|name| file.values(&format!("loss.{name}")));
    let targets: Vec<usize> = targets.into_iter().map(|t| t as usize).collect();
    let (loss, d) = cross_entropy(&logits, &targets);
    file.assert_equal(&[loss], "loss.cross_entropy");
    file.assert_equal(&d, "loss.cross_entropy.d");
    let (loss, d) = mean_squared_error(&y, &target);
    file.assert_equal(&[loss], "loss.mse");
    file.assert_equal(&d, "loss.mse.d");
}

/// A loss and its gradient.
type Loss<'a> = &'a dyn Fn(&[f64]) -> (f64, Vec<f64>);

#[test]
fn losses_have_the_gradients_of_differences() {
    const STEP: f64 = 1e-5;
    let (x, target) = (noise(12, 1), noise(12, 2));
    let losses: [Loss<'_>; 2] =
        [&|x| cross_entropy(x, &[2, 0, 1, 2]), &|x| mean_squared_error(x, &target)];
    for loss in losses {
        for (at, d) in loss(&x).1.into_iter().enumerate() {
            let moved = |by: f64| {
                let mut x = x.clone();
                x[at] += by;
                loss(&x).0
            };
            let expected = (moved(STEP) - moved(-STEP)) / (2.0 * STEP);
            assert!((d - expected).abs() <= 1e-9, "{d}, not {expected}");
        }
    }
}

/// The softmax of the target is zero in f64, its logarithm is not.
#[test]
fn cross_entropy_of_logits_far_apart() {
    assert_eq!(cross_entropy(&[2000.0, -1000.0], &[1]), (3000.0, vec![1.0, -1.0]));
}

#[test]
fn clipping_equals_pytorch() {
    let file = Recorded::open("lstm.safetensors");
    for (case, max_norm) in [("small", 0.5), ("large", 100.0)] {
        let g = [0, 1].map(|k| file.values(&format!("clip.{case}.g{k}")));
        let norm = global_norm(g.iter().map(Vec::as_slice));
        file.assert_equal(&[norm], &format!("clip.{case}.norm"));
        let factor = clip_factor(norm, max_norm);
        for (k, g) in g.into_iter().enumerate() {
            let clipped: Vec<f64> = g.into_iter().map(|g| g * factor).collect();
            file.assert_equal(&clipped, &format!("clip.{case}.clipped{k}"));
        }
    }
    assert!(clip_factor(f64::NAN, 1.0).is_nan());
}

#[test]
fn schedules_equal_pytorch() {
    let file = Recorded::open("lstm.safetensors");
    let schedules: [(&str, &dyn Fn(usize) -> f64); 3] = [
        ("step", &|step| step_decay(0.4, step, 7, 0.3)),
        ("cosine", &|step| cosine(0.4, 0.01, step, 24)),
        ("warm_up", &|step| linear_warm_up(0.4, 0.1, step, 10)),
    ];
    for (name, schedule) in schedules {
        let all: Vec<f64> = (0..25).map(schedule).collect();
        file.assert_equal(&all, &format!("schedule.{name}"));
    }
}
