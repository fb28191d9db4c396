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

/// ‖out − reference‖ / ‖reference‖, or, where that is more, the error of the worst element over four times the largest one: so a
/// single one that is 0 does not hide among the others. Of a reference that is 0, ‖out‖.
fn error(out: &[f64], reference: &[f64]) -> f64 {
    assert_eq!(out.len(), reference.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let largest = |x: &mut dyn Iterator<Item = f64>| x.map(f64::abs).fold(0.0, f64::max);
    let wrong = || out.iter().zip(reference).map(|(a, b)| a - b);
    let (of_all, most) =
        (norm(&mut reference.iter().copied()), largest(&mut reference.iter().copied()));
    if of_all == 0.0 {
        return norm(&mut wrong());
    }
    // A NaN is in the norm.
    let of_worst = largest(&mut wrong()) / (4.0 * most);
    let of_all = norm(&mut wrong()) / of_all;
    if of_worst > of_all { of_worst } else { of_all }
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
    let options = MlstmOptions::default().with_normalizer_grad(normalizer_grad);
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

/// Tensors that other operations have made, with gaps or not at the beginning of their memory, and outputs of which only one is used.
#[test]
fn in_the_middle_of_a_graph() -> Result<()> {
    let problem = Problem::new([1, 2, 20, 16, 16], DType::F32, false)?;
    let [q, k, v, i, f] = &problem.tensors;
    let options = MlstmOptions::default();
    let h = mlstm(q, k, v, i, f, &options)?;
    let expected = h.sqr()?.sum_all()?.backward()?;

    // One tensor [B, S, NH, 3 D] that is cut up, as projections are.
    let packed = Tensor::cat(&[q.as_tensor(), k.as_tensor(), v.as_tensor()], 3)?;
    let packed = Var::from_tensor(&packed.transpose(1, 2)?.contiguous()?)?;
    let part = |n: usize| packed.narrow(3, 16 * n, 16)?.transpose(1, 2);
    let gates = Var::from_tensor(&Tensor::stack(&[i.as_tensor(), f.as_tensor()], 0)?)?;
    let gate = |n: usize| gates.narrow(0, n, 1)?.squeeze(0);
    let cut = mlstm(&part(0)?, &part(1)?, &part(2)?, &gate(0)?, &gate(1)?, &options)?;
    assert_eq!(values(&cut), values(&h));
    let loss = cut.sqr()?.sum_all()?;
    // Twice: a graph may be walked through again.
    for _ in 0..2 {
        let found = loss.backward()?;
        let of_packed = found.get(&packed).expect("a gradient").transpose(1, 2)?;
        for (n, var) in [q, k, v].into_iter().enumerate() {
            let of_part = of_packed.narrow(3, 16 * n, 16)?;
            assert_eq!(values(&of_part), values(expected.get(var).expect("a gradient")));
        }
        let of_gates = found.get(&gates).expect("a gradient");
        for (n, var) in [i, f].into_iter().enumerate() {
            assert_eq!(values(&of_gates.get(n)?), values(expected.get(var).expect("a gradient")));
        }
    }
    // q and k may be one tensor; of v alone a gradient is wanted.
    let alone = mlstm(&q.detach(), &q.detach(), v, &i.detach(), &f.detach(), &options)?;
    let found = alone.sum_all()?.backward()?;
    assert!(found.get(v).is_some() && found.get(q).is_none());
    // None is: nothing is kept.
    let nothing = mlstm(&q.detach(), &k.detach(), &v.detach(), &i.detach(), &f.detach(), &options)?;
    assert!(!nothing.track_op());
    assert!(error(&values(&nothing), &values(&h)) <= 6e-7);
    Ok(())
}

/// The last state alone, or h alone, of a call that has both.
#[test]
fn outputs_that_nobody_uses() -> Result<()> {
    for dtype in [DType::F32, DType::BF16] {
        let problem = Problem::new([1, 1, 20, 16, 16], dtype, true)?;
        let [q, k, v, i, f] = &problem.tensors;
        let state = problem.state();
        let call = || mlstm_with_state(q, k, v, i, f, state.as_ref(), &MlstmOptions::default());
        let (h, last) = call()?;
        let both = (h.to_dtype(DType::F32)?.sum_all()? + last.c.sum_all()?)?.backward()?;
        let of_h = call()?.0.to_dtype(DType::F32)?.sum_all()?.backward()?;
        let of_c = call()?.1.c.sum_all()?.backward()?;
        let at =
            |store: &candle_core::backprop::GradStore, var: &Var| values(store.get(var).unwrap());
        for var in [k, v] {
            let sum: Vec<f64> =
                at(&of_h, var).iter().zip(at(&of_c, var)).map(|(a, b)| a + b).collect();
            let most = if dtype == DType::F32 { 1e-6 } else { 8e-3 };
            let found = error(&at(&both, var), &sum);
            println!("{dtype:?}: {found:e}");
            assert!(found <= most, "{dtype:?}: {found:e}");
        }
        // C does not depend on q.
        assert!(of_c.get(q).is_none_or(|of_q| values(of_q).iter().all(|&x| x == 0.0)));
    }
    Ok(())
}

/// Two threads walk back through one graph.
#[test]
fn two_walks_at_once() -> Result<()> {
    let problem = Problem::new([1, 1, 20, 16, 16], DType::F32, false)?;
    let [q, k, v, i, f] = &problem.tensors;
    let h = mlstm(q, k, v, i, f, &MlstmOptions::default())?;
    let walk = |weight: f64| {
        let found = (h.sum_all()? * weight)?.backward()?;
        Ok::<_, candle_core::Error>(values(found.get(v).expect("a gradient")))
    };
    let (one, two) = std::thread::scope(|scope| {
        let other = scope.spawn(|| walk(2.0));
        (walk(1.0), other.join().unwrap())
    });
    let doubled: Vec<f64> = one?.iter().map(|x| 2.0 * x).collect();
    assert_eq!(doubled, two?);
    Ok(())
}

#[test]
fn versions_by_name() -> Result<()> {
    let problem = Problem::new([1, 1, 40, 16, 16], DType::F32, false)?;
    let usual = MlstmOptions::default;
    for options in [
        usual().with_forward_version("vlstm_fw_v1:online"),
        usual().with_backward_version("vlstm_fwbw_v1:ahead"),
        usual().with_backward_version("vlstm_fwbw_v0:grid_sync"),
    ] {
        let found = problem.check(&options, false)?;
        assert!(found[0] <= 6e-7 && found[2] <= 1.5e-6, "{options:?}: {found:?}");
    }
    let [q, k, v, i, f] = &problem.tensors;
    let other = usual().with_forward_version("none");
    let said = mlstm(q, k, v, i, f, &other).unwrap_err().to_string();
    assert!(said.starts_with("version: expected auto or one of vlstm_fw_v1:online, "), "{said}");
    Ok(())
}

#[test]
fn what_it_refuses() -> Result<()> {
    let device = &Device::Cpu;
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, device).unwrap();
    let [q, v, gate] =
        [&[1, 2, 8, 16][..], &[1, 2, 8, 32], &[1, 2, 8]].map(|s| zeros(s, DType::F32));
    let options = MlstmOptions::default();
    let said = |[q, k, v, i, f]: [&Tensor; 5]| {
        mlstm(q, k, v, i, f, &options).unwrap_err().to_string().lines().next().unwrap().to_owned()
    };
    let other = |shape: &[usize]| zeros(shape, DType::F32);
    let of_type = |shape: &[usize], dtype| zeros(shape, dtype);
    assert_eq!(
        said([&other(&[2, 8, 16]), &q, &v, &gate, &gate]),
        "q: expected shape [B, NH, S, DHQK], got [2, 8, 16]"
    );
    assert_eq!(
        said([&q, &other(&[1, 2, 9, 16]), &v, &gate, &gate]),
        "k: expected shape [1, 2, 8, 16], got [1, 2, 9, 16]"
    );
    assert_eq!(
        said([&q, &q, &other(&[1, 1, 8, 32]), &gate, &gate]),
        "v: expected shape [1, 2, 8, 32], got [1, 1, 8, 32]"
    );
    assert_eq!(
        said([&q, &q, &v, &other(&[1, 2, 8, 1]), &gate]),
        "i: expected shape [1, 2, 8], got [1, 2, 8, 1]"
    );
    assert_eq!(
        said([&q, &of_type(&[1, 2, 8, 16], DType::F16), &v, &gate, &gate]),
        "k: expected F32, as q, got F16"
    );
    assert_eq!(
        said([&of_type(&[1, 2, 8, 16], DType::F64), &q, &v, &gate, &gate]),
        "q: expected F32, F16 or BF16, got F64"
    );
    assert_eq!(
        said([&q, &q, &v, &gate, &of_type(&[1, 2, 8], DType::U32)]),
        "f: expected F32, F16 or BF16, got U32"
    );
    let narrow = other(&[1, 2, 8, 24]);
    let none = said([&narrow, &narrow, &v, &gate, &gate]);
    assert_eq!(none, "call: expected what a version takes, got what none does");

    let state = MlstmState { c: other(&[1, 2, 16, 16]), n: other(&[1, 2, 16]), m: other(&[1, 2]) };
    let found = mlstm_with_state(&q, &q, &v, &gate, &gate, Some(&state), &options).unwrap_err();
    let found = found.to_string();
    assert!(
        found.starts_with("state.c: expected shape [1, 2, 16, 32], got [1, 2, 16, 16]"),
        "{found}"
    );
    for eps in [-1.0, f64::NAN, f64::INFINITY] {
        let options = MlstmOptions::default().with_eps(eps);
        let found = mlstm(&q, &q, &v, &gate, &gate, &options).unwrap_err().to_string();
        assert!(found.starts_with("eps: expected a finite number that is not negative"), "{found}");
    }
    Ok(())
}
