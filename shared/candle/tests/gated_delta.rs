//! The gated delta rule against the lab's reference in F64, its gradients, and what it refuses.

use candle_core::{DType, Device, Result, Tensor, Var};
use lab_reference::gdn::{Inputs, Sizes, backward, forward};
use vlstm_candle::{RecurrenceOptions, gated_delta_rule};

mod common;
use common::{error, numbers, values, variable};

/// The tensors of a call, as variables.
struct Problem {
    /// B, NH, NKV, S, DHQK, DHHV
    sizes: [usize; 6],
    /// q, k, v, g, beta.
    tensors: [Var; 5],
    state: Option<Var>,
    /// The gradient of h.
    dh: Tensor,
}

impl Problem {
    fn new(sizes: [usize; 6], dtype: DType, has_state: bool) -> Result<Self> {
        let [b, nh, nkv, s, qk, hv] = sizes;
        let [of_q, of_v, of_gates] = [vec![b, nkv, s, qk], vec![b, nh, s, hv], vec![b, nh, s]];
        let [shared, rows] = [b * nkv * s, b * nh * s];
        let mut keys = numbers(shared * qk, 2);
        for key in keys.chunks_mut(qk) {
            let length = key.iter().map(|x| x * x).sum::<f64>().sqrt();
            key.iter_mut().for_each(|x| *x /= length);
        }
        let g: Vec<f64> = numbers(rows, 4).into_iter().map(|x| -0.05 * (1.0 + x)).collect();
        let beta: Vec<f64> = numbers(rows, 5).into_iter().map(|x| 0.5 + 0.45 * x).collect();
        let tensors = [
            variable(&numbers(shared * qk, 1), &of_q, dtype)?,
            variable(&keys, &of_q, dtype)?,
            variable(&numbers(rows * hv, 3), &of_v, dtype)?,
            variable(&g, &of_gates, DType::F32)?,
            variable(&beta, &of_gates, DType::F32)?,
        ];
        let of_state = || variable(&numbers(b * nh * qk * hv, 6), &[b, nh, qk, hv], DType::F32);
        let state = has_state.then(of_state).transpose()?;
        let dh = variable(&numbers(rows * hv, 9), &of_v, dtype)?.detach();
        Ok(Self { sizes, tensors, state, dh })
    }

    fn call(&self, options: &RecurrenceOptions) -> Result<(Tensor, Tensor)> {
        let [q, k, v, g, beta] = self.tensors.each_ref().map(|var| var.as_tensor());
        gated_delta_rule([q, k, v], [g, beta], self.state.as_deref(), options)
    }

    /// Holds h, the last state and all gradients of Σ h · dh + Σ last state against the reference: the largest error of each kind.
    fn check(&self, options: &RecurrenceOptions) -> Result<[f64; 3]> {
        let (h, last) = self.call(options)?;
        let loss = (h.mul(&self.dh)?.to_dtype(DType::F32)?.sum_all()? + last.sum_all()?)?;
        let gradients = loss.backward()?;

        let [b, nh, nkv, positions, qk, hv] = self.sizes;
        let own: Vec<Vec<f64>> = self.tensors.iter().map(|t| values(t)).collect();
        let c0 = self.state.as_ref().map(|state| values(state));
        let scale = options.scale.unwrap_or((qk as f64).powf(-0.5));
        let sizes =
            Sizes { heads: b * nh, group: nh / nkv, positions, qk, hv, scale, erases: true };
        let [q, k, v, g, beta] = [0, 1, 2, 3, 4].map(|n: usize| own[n].as_slice());
        let x = Inputs { q, k, v, g, beta, c0: c0.as_deref() };
        let expected = forward(x, sizes);
        let of_last = vec![1.0; b * nh * qk * hv];
        let by = backward(x, &values(&self.dh), Some(&of_last), sizes);

        assert_eq!((h.dtype(), last.dtype()), (self.tensors[0].dtype(), DType::F32));
        let all = [&by.q, &by.k, &by.v, &by.g, &by.beta];
        let mut of_gradients: f64 = 0.0;
        let of_state = self.state.iter().zip([&by.c0]);
        for (var, reference) in self.tensors.iter().zip(all).chain(of_state) {
            let gradient = gradients.get(var).expect("a gradient");
            assert_eq!((gradient.dtype(), gradient.dims()), (var.dtype(), var.dims()));
            of_gradients = of_gradients.max(error(&values(gradient), reference));
        }
        Ok([error(&values(&h), &expected.h), error(&values(&last), &expected.c), of_gradients])
    }
}

#[test]
fn every_type_is_the_reference() -> Result<()> {
    let usual = RecurrenceOptions::default;
    for (sizes, dtype, has_state, options, most) in [
        ([2, 4, 2, 40, 16, 32], DType::F32, true, usual(), [2e-6, 2e-6, 8e-6]),
        ([1, 1, 1, 70, 32, 16], DType::F32, false, usual().with_scale(0.7), [2e-6, 2e-6, 8e-6]),
        ([1, 2, 1, 70, 32, 16], DType::BF16, true, usual(), [8e-3, 8e-3, 8e-3]),
        ([1, 1, 1, 40, 16, 16], DType::F16, false, usual(), [1.5e-3, 1.5e-3, 1.5e-3]),
    ] {
        let found = Problem::new(sizes, dtype, has_state)?.check(&options)?;
        for (found, most) in found.into_iter().zip(most) {
            assert!(found <= most, "{sizes:?} {dtype:?}: {found:e}, at most {most:e}");
        }
    }
    Ok(())
}

#[test]
fn versions_by_name() -> Result<()> {
    let problem = Problem::new([1, 2, 1, 40, 16, 16], DType::F32, true)?;
    for name in ["gdn_fw:v0_steps", "gdn_fw:v1_chunks"] {
        let options = RecurrenceOptions::default().with_forward_version(name);
        let found = problem.check(&options.with_backward_version("gdn_fwbw:v0_chunks"))?;
        assert!(found[0] <= 2e-6 && found[2] <= 8e-6, "{name}: {found:?}");
    }
    let other = RecurrenceOptions::default().with_forward_version("none");
    let said = problem.call(&other).unwrap_err().to_string();
    assert!(said.starts_with("version: expected auto or one of gdn_fw:"), "{said}");
    Ok(())
}

/// Of h alone, and of the last state alone, there are gradients; without variables nothing is kept; a sequence in two parts is the
/// whole.
#[test]
fn results_that_nobody_uses_and_parts() -> Result<()> {
    let problem = Problem::new([1, 2, 1, 40, 16, 16], DType::F32, false)?;
    let options = RecurrenceOptions::default();
    let (h, last) = problem.call(&options)?;
    let whole = (h.sum_all()? + last.sum_all()?)?.backward()?;
    let (of_h, of_last) = (h.sum_all()?.backward()?, last.sum_all()?.backward()?);
    let at = |store: &candle_core::backprop::GradStore, var: &Var| values(store.get(var).unwrap());
    for var in &problem.tensors[1..] {
        let sum: Vec<f64> =
            at(&of_h, var).iter().zip(at(&of_last, var)).map(|(a, b)| a + b).collect();
        assert!(error(&at(&whole, var), &sum) <= 2e-6);
    }
    let [q, k, v, g, beta] = problem.tensors.each_ref().map(|var| var.detach());
    let part = |from, len, state: Option<&Tensor>| {
        let [q, k, v, g, beta] = [&q, &k, &v, &g, &beta].map(|t| t.narrow(2, from, len).unwrap());
        gated_delta_rule([&q, &k, &v], [&g, &beta], state, &options)
    };
    let (first, state) = part(0, 25, None)?;
    let (second, behind) = part(25, 15, Some(&state))?;
    assert!(!second.track_op());
    assert!(error(&values(&Tensor::cat(&[first, second], 2)?), &values(&h)) <= 2e-6);
    assert!(error(&values(&behind), &values(&last)) <= 2e-6);
    Ok(())
}

#[test]
fn what_it_refuses() {
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
    let [q, v, gate, state] = [&[1, 2, 8, 16][..], &[1, 4, 8, 32], &[1, 4, 8], &[1, 4, 16, 16]]
        .map(|s| zeros(s, DType::F32));
    let usual = RecurrenceOptions::default();
    let said = |[q, k, v, g]: [&Tensor; 4], state, options: &RecurrenceOptions| {
        let error = gated_delta_rule([q, k, v], [g, &gate], state, options).unwrap_err();
        error.to_string().lines().next().unwrap().to_owned()
    };
    assert_eq!(
        said([&q, &zeros(&[1, 2, 8, 16], DType::F16), &v, &gate], None, &usual),
        "k: expected F32, as q, got F16"
    );
    assert_eq!(
        said([&q, &q, &zeros(&[1, 3, 8, 32], DType::F32), &gate], None, &usual),
        "v: expected a multiple of NKV = 2 heads, got 3"
    );
    assert_eq!(
        said([&q, &q, &v, &zeros(&[1, 2, 8], DType::F32)], None, &usual),
        "g: expected shape [1, 4, 8], got [1, 2, 8]"
    );
    assert_eq!(
        said([&q, &q, &v, &gate], Some(&state), &usual),
        "state: expected shape [1, 4, 16, 32], got [1, 4, 16, 16]"
    );
    assert_eq!(
        said([&q, &q, &v, &gate], None, &usual.clone().with_scale(0.0)),
        "scale: expected a finite number other than 0, got 0"
    );
    let narrow = zeros(&[1, 2, 8, 24], DType::F32);
    assert_eq!(
        said([&narrow, &narrow, &v, &gate], None, &usual),
        "call: expected what a version takes, got what none does"
    );
}
