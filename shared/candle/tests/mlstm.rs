//! The mLSTM against the lab's reference in F64, its gradients, and what it refuses.

use candle_core::{DType, Device, Result, Tensor, Var};
use lab_reference::vlstm::{
    Inputs, NormalizerGrad as Reference, Sizes, State, StateGradient, backward_from, forward_from,
};
use vlstm_candle::{MlstmOptions, MlstmState, NormalizerGrad, mlstm, mlstm_with_state};

/// Numbers from −1 to 1 whose sum over many is about 0, the same in each run.
fn numbers(len: usize, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1u32 << 30) - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// A variable of these values in this type.
fn variable(values: &[f64], shape: &[usize], dtype: DType) -> Result<Var> {
    Var::from_tensor(&Tensor::from_slice(values, shape, &Device::Cpu)?.to_dtype(dtype)?)
}

/// Its values, which are those given but for the type's rounding.
fn values(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).and_then(|t| t.flatten_all()).and_then(|t| t.to_vec1()).unwrap()
}

/// ‖out − reference‖ / ‖reference‖; of a reference that is 0, ‖out‖.
fn error(out: &[f64], reference: &[f64]) -> f64 {
    assert_eq!(out.len(), reference.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let of_all = norm(&mut reference.iter().copied());
    let wrong = norm(&mut out.iter().zip(reference).map(|(a, b)| a - b));
    if of_all == 0.0 { wrong } else { wrong / of_all }
}

/// The tensors of a call, as variables.
struct Problem {
    /// B, NH, S, DHQK, DHHV
    sizes: [usize; 5],
    tensors: [Var; 5],
    state: Option<[Var; 3]>,
    /// The gradient of h.
    dh: Tensor,
}

impl Problem {
    fn new(sizes: [usize; 5], dtype: DType, has_state: bool) -> Result<Self> {
        let [batch, heads, positions, qk, hv] = sizes;
        let rows = batch * heads * positions;
        let of_rows = [batch, heads, positions];
        let shape = |columns: usize| [&of_rows[..], &[columns]].concat();
        let q = variable(&numbers(rows * qk, 1), &shape(qk), dtype)?;
        let k = variable(&numbers(rows * qk, 2), &shape(qk), dtype)?;
        let v = variable(&numbers(rows * hv, 3), &shape(hv), dtype)?;
        let i = variable(&numbers(rows, 4), &of_rows, DType::F32)?;
        // Open for the most part, as those of a trained network.
        let f: Vec<f64> = numbers(rows, 5).into_iter().map(|x| 3.0 + x).collect();
        let f = variable(&f, &of_rows, DType::F32)?;
        let groups = batch * heads;
        let state = has_state
            .then(|| {
                let c =
                    variable(&numbers(groups * qk * hv, 6), &[batch, heads, qk, hv], DType::F32)?;
                let n = variable(&numbers(groups * qk, 7), &[batch, heads, qk], DType::F32)?;
                Ok::<_, candle_core::Error>([
                    c,
                    n,
                    variable(&numbers(groups, 8), &[batch, heads], DType::F32)?,
                ])
            })
            .transpose()?;
        let dh = variable(&numbers(rows * hv, 9), &shape(hv), dtype)?.detach();
        Ok(Self { sizes, tensors: [q, k, v, i, f], state, dh })
    }

    fn state(&self) -> Option<MlstmState> {
        let [c, n, m] = self.state.as_ref()?;
        Some(MlstmState {
            c: c.as_tensor().clone(),
            n: n.as_tensor().clone(),
            m: m.as_tensor().clone(),
        })
    }

    /// Holds h, the last state and all gradients of Σ h · dh + Σ c + Σ n against the reference: the largest error of each kind.
    fn check(&self, options: &MlstmOptions, is_last_wanted: bool) -> Result<[f64; 3]> {
        let [q, k, v, i, f] = &self.tensors;
        let state = self.state();
        let (h, last) = if is_last_wanted || state.is_some() {
            let (h, last) = mlstm_with_state(q, k, v, i, f, state.as_ref(), options)?;
            (h, Some(last))
        } else {
            (mlstm(q, k, v, i, f, options)?, None)
        };
        let mut loss = h.mul(&self.dh)?.to_dtype(DType::F32)?.sum_all()?;
        if let Some(last) = &last {
            loss = ((loss + last.c.sum_all()?)? + last.n.sum_all()?)?;
        }
        let gradients = loss.backward()?;

        let [batch, heads, positions, qk, hv] = self.sizes;
        let groups = batch * heads;
        let own: Vec<Vec<f64>> = self.tensors.iter().map(|t| values(t)).collect();
        let x = Inputs { q: &own[0], k: &own[1], v: &own[2], i: &own[3], f: &own[4] };
        let sizes = Sizes { positions, qk, hv };
        let before = match &self.state {
            Some([c, n, m]) => State { c: values(c), n: values(n), m: values(m) },
            None => sizes.no_state(groups),
        };
        let (expected, behind) = forward_from(x, &before, sizes, options.eps);
        let weight = if last.is_some() { 1.0 } else { 0.0 };
        let of_last =
            StateGradient { c: vec![weight; groups * qk * hv], n: vec![weight; groups * qk] };
        let through = match options.normalizer_grad {
            NormalizerGrad::Constant => Reference::Constant,
            NormalizerGrad::Exact => Reference::Exact,
        };
        let (of_inputs, of_state) =
            backward_from(x, &values(&self.dh), &before, &of_last, sizes, options.eps, through);

        assert_eq!(h.dtype(), q.dtype());
        let of_h = error(&values(&h), &expected.h);
        let mut of_states: f64 = 0.0;
        if let Some(last) = &last {
            assert_eq!(last.m.dims(), [batch, heads]);
            // Both at the exponent of the reference.
            let m = values(&last.m);
            let at = |x: &[f64], columns: usize| -> Vec<f64> {
                let scale = |n: usize| (m[n / columns] - behind.m[n / columns]).exp();
                x.iter().enumerate().map(|(n, x)| x * scale(n)).collect()
            };
            of_states = error(&at(&values(&last.c), qk * hv), &behind.c)
                .max(error(&at(&values(&last.n), qk), &behind.n));
        }
        let mut of_gradients: f64 = 0.0;
        let all = [&of_inputs.dq, &of_inputs.dk, &of_inputs.dv, &of_inputs.di, &of_inputs.df];
        for (var, reference) in self.tensors.iter().zip(all) {
            let gradient = gradients.get(var).expect("a gradient");
            assert_eq!((gradient.dtype(), gradient.dims()), (var.dtype(), var.dims()));
            of_gradients = of_gradients.max(error(&values(gradient), reference));
        }
        if let Some([c, n, m]) = &self.state {
            for (var, reference) in [(c, &of_state.c), (n, &of_state.n)] {
                of_gradients =
                    of_gradients.max(error(&values(gradients.get(var).expect("one")), reference));
            }
            assert!(gradients.get(m).is_none());
        }
        Ok([of_h, of_states, of_gradients])
    }
}

/// Checks a call, and that its errors are at most these: of h, of the last state, of the gradients.
fn holds(sizes: [usize; 5], dtype: DType, state: [bool; 2], exact: bool, most: [f64; 3]) {
    let normalizer_grad = if exact { NormalizerGrad::Exact } else { NormalizerGrad::Constant };
    let options = MlstmOptions { normalizer_grad, ..MlstmOptions::default() };
    let [has_state, is_last_wanted] = state;
    let problem = Problem::new(sizes, dtype, has_state).unwrap();
    let found = problem.check(&options, is_last_wanted).unwrap();
    println!("{sizes:?} {dtype:?} {state:?} {exact}: {found:?}");
    for (found, most) in found.into_iter().zip(most) {
        assert!(found <= most, "{sizes:?} {dtype:?}: {found:e}, at most {most:e}");
    }
}

#[test]
fn f32_is_the_reference() {
    for (sizes, exact) in
        [([1, 1, 1, 16, 16], false), ([2, 2, 40, 32, 16], true), ([1, 2, 70, 16, 48], false)]
    {
        holds(sizes, DType::F32, [false, false], exact, [6e-7, 0.0, 1.5e-6]);
    }
}

#[test]
fn f32_with_states_is_the_reference() {
    holds([1, 2, 20, 16, 32], DType::F32, [false, true], false, [4e-7, 2.5e-7, 1.2e-6]);
    holds([2, 1, 20, 16, 32], DType::F32, [true, true], true, [4e-7, 2.5e-7, 1.2e-6]);
}

#[test]
fn halves_are_the_reference() {
    holds([1, 2, 70, 32, 48], DType::BF16, [false, false], false, [6e-3, 0.0, 6e-3]);
    holds([1, 1, 70, 16, 16], DType::F16, [false, false], true, [8e-4, 0.0, 8e-4]);
}

#[test]
fn halves_with_states_are_the_reference() {
    holds([1, 2, 70, 16, 32], DType::BF16, [true, true], false, [9e-3, 8e-3, 1.2e-2]);
    holds([1, 1, 40, 16, 16], DType::F16, [false, true], false, [1e-3, 1e-3, 1e-3]);
}
