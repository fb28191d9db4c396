//! A row's step of the GRU.

use super::step::{Before, StepBack};
use crate::playg::sigmoid;

struct Gates {
    r: Vec<f64>,
    z: Vec<f64>,
    n: Vec<f64>,
}

/// W_hn h + b_hn, the part of n that r is before.
fn of_n<'a>(before: &Before<'a>) -> &'a [f64] {
    &before.a_h[2 * before.h.len()..]
}

impl Gates {
    fn of(before: &Before<'_>) -> Self {
        let hidden = before.h.len();
        let sum: Vec<f64> = before.a_x.iter().zip(before.a_h).map(|(x, h)| x + h).collect();
        let open = |a: &[f64]| a.iter().copied().map(sigmoid).collect::<Vec<_>>();
        let (r, z) = (open(&sum[..hidden]), open(&sum[hidden..2 * hidden]));
        let parts = before.a_x[2 * hidden..].iter().zip(&r).zip(of_n(before));
        let n = parts.map(|((x, r), h)| (x + r * h).tanh()).collect();
        Self { r, z, n }
    }
}

/// h after the step.
pub(super) fn step(before: &Before<'_>) -> Vec<f64> {
    let Gates { z, n, .. } = Gates::of(before);
    let all = z.iter().zip(&n).zip(before.h);
    all.map(|((z, n), h)| (1.0 - z) * n + z * h).collect()
}

/// From the gradient by h after the step, those by what was before.
pub(super) fn step_back(before: &Before<'_>, dh: &[f64]) -> StepBack {
    let Gates { r, z, n } = Gates::of(before);
    let hidden = dh.len();
    let (mut da_x, mut da_h) = (vec![0.0; 3 * hidden], vec![0.0; 3 * hidden]);
    for j in 0..hidden {
        let da_n = dh[j] * (1.0 - z[j]) * (1.0 - n[j] * n[j]);
        let da_r = da_n * of_n(before)[j] * r[j] * (1.0 - r[j]);
        let da_z = dh[j] * (before.h[j] - n[j]) * z[j] * (1.0 - z[j]);
        for (gate, of_x, of_h) in [(0, da_r, da_r), (1, da_z, da_z), (2, da_n, da_n * r[j])] {
            da_x[gate * hidden + j] = of_x;
            da_h[gate * hidden + j] = of_h;
        }
    }
    let dh = dh.iter().zip(&z).map(|(dh, z)| dh * z).collect();
    StepBack { da_x, da_h, dh, dc: Vec::new() }
}
