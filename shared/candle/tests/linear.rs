//! Linear attention against the lab's reference in F64, its gradients, steps of both cells, and what they refuse.

use candle_core::{DType, Device, Result, Tensor, Var};
use lab_reference::gdn::{Inputs, Sizes, backward, forward};
use vlstm_candle::{
    RecurrenceOptions, gated_delta_rule, gated_delta_step, linear_attention, linear_attention_step,
    mlstm_sig, mlstm_sig_step,
};

mod common;
use common::{error, numbers, values, variable};

/// The tensors of a call, as variables.
struct Problem {
    /// B, NH, NKV, S, DHQK, DHHV
    sizes: [usize; 6],
    /// q, k, v, g, w.
    tensors: [Var; 5],
    state: Var,
    /// The gradient of h.
    dh: Tensor,
}

impl Problem {
    fn new(sizes: [usize; 6], dtype: DType) -> Result<Self> {
        let [b, nh, nkv, s, qk, hv] = sizes;
        let [of_q, of_v, of_gates] = [vec![b, nkv, s, qk], vec![b, nh, s, hv], vec![b, nh, s]];
        let [shared, rows] = [b * nkv * s, b * nh * s];
        let g: Vec<f64> = numbers(rows, 4).into_iter().map(|x| -0.05 * (1.0 + x)).collect();
        let w: Vec<f64> = numbers(rows, 5).into_iter().map(|x| 0.5 + 0.45 * x).collect();
        let tensors = [
            variable(&numbers(shared * qk, 1), &of_q, dtype)?,
            variable(&numbers(shared * qk, 2), &of_q, dtype)?,
            variable(&numbers(rows * hv, 3), &of_v, dtype)?,
            variable(&g, &of_gates, DType::F32)?,
            variable(&w, &of_gates, DType::F32)?,
        ];
        let state = variable(&numbers(b * nh * qk * hv, 6), &[b, nh, qk, hv], DType::F32)?;
        let dh = variable(&numbers(rows * hv, 9), &of_v, dtype)?.detach();
        Ok(Self { sizes, tensors, state, dh })
    }

    /// The largest errors of h, the last state and all gradients of Σ h · dh + Σ last state.
    fn check(&self, options: &RecurrenceOptions) -> Result<[f64; 3]> {
        let [q, k, v, g, w] = self.tensors.each_ref().map(|var| var.as_tensor());
        let (h, last) = linear_attention([q, k, v], Some(g), Some(w), Some(&self.state), options)?;
        let loss = (h.mul(&self.dh)?.to_dtype(DType::F32)?.sum_all()? + last.sum_all()?)?;
        let gradients = loss.backward()?;
        let [b, nh, nkv, positions, qk, hv] = self.sizes;
        let own: Vec<Vec<f64>> = self.tensors.iter().map(|t| values(t)).collect();
        let c0 = values(&self.state);
        let scale = options.scale.unwrap_or((qk as f64).powf(-0.5));
        let sizes =
            Sizes { heads: b * nh, group: nh / nkv, positions, qk, hv, scale, erases: false };
        let [q, k, v, g, beta] = [0, 1, 2, 3, 4].map(|n: usize| own[n].as_slice());
        let x = Inputs { q, k, v, g, beta, c0: Some(&c0) };
        let expected = forward(x, sizes);
        let by = backward(x, &values(&self.dh), Some(&vec![1.0; c0.len()]), sizes);
        assert_eq!((h.dtype(), last.dtype()), (self.tensors[0].dtype(), DType::F32));
        let all = [&by.q, &by.k, &by.v, &by.g, &by.beta, &by.c0];
        let mut of_gradients: f64 = 0.0;
        for (var, reference) in self.tensors.iter().chain([&self.state]).zip(all) {
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
    for (sizes, dtype, options, most) in [
        ([2, 4, 2, 70, 16, 32], DType::F32, usual(), [2e-6, 2e-6, 8e-6]),
        ([1, 1, 1, 9, 24, 8], DType::F32, usual().with_scale(-0.7), [2e-6, 2e-6, 8e-6]),
        ([1, 2, 1, 70, 32, 16], DType::BF16, usual(), [8e-3, 8e-3, 1.2e-2]),
        ([1, 1, 1, 40, 16, 16], DType::F16, usual().with_scale(-0.7), [1e-3, 1e-3, 1.5e-3]),
    ] {
        let found = Problem::new(sizes, dtype)?.check(&options)?;
        for (found, most) in found.into_iter().zip(most) {
            assert!(found <= most, "{sizes:?} {dtype:?}: {found:e}, at most {most:e}");
        }
    }
    Ok(())
}

/// Without gates all is kept, without weights they are 1, without a state it is 0: the same bits.
#[test]
fn what_is_left_out() -> Result<()> {
    for dtype in [DType::F32, DType::BF16] {
        let problem = Problem::new([1, 2, 1, 20, 16, 16], dtype)?;
        let [q, k, v, g, w] = problem.tensors.each_ref().map(|var| var.detach());
        let options = RecurrenceOptions::default();
        let [zeros, ones, nothing] = [g.zeros_like()?, w.ones_like()?, problem.state.zeros_like()?];
        let given =
            linear_attention([&q, &k, &v], Some(&zeros), Some(&ones), Some(&nothing), &options)?;
        let left_out = linear_attention([&q, &k, &v], None, None, None, &options)?;
        assert_eq!(values(&given.0), values(&left_out.0));
        assert_eq!(values(&given.1), values(&left_out.1));
        assert!(!left_out.0.track_op());
    }
    Ok(())
}

/// A prompt and steps are the sequence, of both cells; a state that is given stays as it is, and one of BF16 comes out as that.
#[test]
fn steps_go_on_behind_a_prompt() -> Result<()> {
    let options = RecurrenceOptions::default();
    for (dtype, of_state, most) in [
        (DType::F32, DType::F32, 2e-6),
        (DType::F16, DType::F32, 1.5e-3),
        (DType::BF16, DType::BF16, 1.6e-2),
    ] {
        let problem = Problem::new([2, 4, 2, 24, 32, 48], dtype)?;
        let [q, k, v, g, w] = problem.tensors.each_ref().map(|var| var.detach());
        // Keys of length one, which the delta rule has.
        let length = k.to_dtype(DType::F32)?.sqr()?.sum_keepdim(3)?.sqrt()?;
        let k = k.to_dtype(DType::F32)?.broadcast_div(&length)?.to_dtype(dtype)?;
        let state = problem.state.detach();
        let whole = |from: usize, len: usize, state: &Tensor, erases: bool| {
            let [q, k, v, g, w] = [&q, &k, &v, &g, &w].map(|t| t.narrow(2, from, len).unwrap());
            match erases {
                true => gated_delta_rule([&q, &k, &v], [&g, &w], Some(state), &options),
                false => linear_attention([&q, &k, &v], Some(&g), Some(&w), Some(state), &options),
            }
        };
        for erases in [false, true] {
            let (expected, last) = whole(0, 24, &state, erases)?;
            let (_, kept) = whole(0, 20, &state, erases)?;
            let mut kept = kept.to_dtype(of_state)?;
            for t in 20..24 {
                let [q, k, v, g, w] =
                    [&q, &k, &v, &g, &w].map(|x| x.narrow(2, t, 1).unwrap().squeeze(2).unwrap());
                let before = values(&kept);
                let (h, behind) = match erases {
                    true => gated_delta_step([&q, &k, &v], [&g, &w], Some(&kept), &options)?,
                    false => linear_attention_step(
                        [&q, &k, &v],
                        Some(&g),
                        Some(&w),
                        Some(&kept),
                        &options,
                    )?,
                };
                assert_eq!((h.dtype(), behind.dtype()), (dtype, of_state));
                assert_eq!(values(&kept), before);
                let row = expected.narrow(2, t, 1)?.squeeze(2)?;
                let found = error(&values(&h), &values(&row));
                assert!(found <= most, "{dtype:?} {erases} {t}: {found:e}");
                kept = behind;
            }
            let found = error(&values(&kept), &values(&last));
            assert!(found <= most, "{dtype:?} {erases}: the state: {found:e}");
        }
        // From no state, without gates.
        let [q, k, v] = [&q, &k, &v].map(|t| t.narrow(2, 0, 1).unwrap().squeeze(2).unwrap());
        let (h, state) = linear_attention_step([&q, &k, &v], None, None, None, &options)?;
        assert_eq!((h.dims(), state.dims()), (v.dims(), &[2, 4, 32, 48][..]));
        assert_eq!(state.dtype(), DType::F32);
    }
    Ok(())
}

#[test]
fn what_it_refuses() -> Result<()> {
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
    let [q, v, gate, state] =
        [&[1, 2, 8, 16][..], &[1, 4, 8, 32], &[1, 4, 8], &[1, 4, 16, 16]].map(zeros);
    let usual = RecurrenceOptions::default();
    let first = |error: candle_core::Error| error.to_string().lines().next().unwrap().to_owned();
    let said =
        |g: &Tensor, w: Option<&Tensor>, state: Option<&Tensor>, options: &RecurrenceOptions| {
            first(linear_attention([&q, &q, &v], Some(g), w, state, options).unwrap_err())
        };
    assert_eq!(
        said(&zeros(&[1, 2, 8]), None, None, &usual),
        "g: expected shape [1, 4, 8], got [1, 2, 8]"
    );
    assert_eq!(
        said(&gate, Some(&zeros(&[1, 4, 7])), None, &usual),
        "w: expected shape [1, 4, 8], got [1, 4, 7]"
    );
    assert_eq!(
        said(&gate, None, Some(&state), &usual),
        "state: expected shape [1, 4, 16, 32], got [1, 4, 16, 16]"
    );
    assert_eq!(
        said(&gate, None, None, &usual.clone().with_scale(f64::NAN)),
        "scale: expected a finite number other than 0, got NaN"
    );
    let [q, v, gate] = [&[1, 2, 16][..], &[1, 4, 32], &[1, 4]].map(zeros);
    let said = |q: &Tensor, g: &Tensor, state: Option<&Tensor>, options: &RecurrenceOptions| {
        first(linear_attention_step([q, q, &v], Some(g), None, state, options).unwrap_err())
    };
    assert_eq!(
        said(&zeros(&[1, 2, 1, 16]), &gate, None, &usual),
        "q: expected shape [B, NKV, DHQK], got [1, 2, 1, 16]"
    );
    let narrow = state.to_dtype(DType::BF16)?;
    assert_eq!(said(&q, &gate, Some(&narrow), &usual), "state: expected F32, got BF16");
    let places = usual.clone().with_cu_seqlens([0, 1]);
    assert!(said(&q, &gate, None, &places).starts_with("cu_seqlens: expected none, as a step"));
    let tracked = Var::from_tensor(&gate)?;
    assert_eq!(
        said(&q, &tracked, None, &usual),
        "g: expected a tensor that needs no gradient, as a step has none: call linear_attention, got one that does"
    );
    Ok(())
}

/// Sigmoid gates are decays and weights, in every type: h, the last state, all gradients, and a step behind a prompt.
#[test]
fn sigmoid_gates_are_a_decay_and_a_weight() -> Result<()> {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    for (dtype, scale, most) in [
        (DType::F32, None, 8e-6),
        (DType::F32, Some(-0.7), 8e-6),
        (DType::BF16, None, 1.2e-2),
        (DType::F16, Some(-0.7), 1.5e-3),
    ] {
        let [b, nh, nkv, s, qk, hv] = [1, 2, 1, 24, 32, 16];
        let usual = RecurrenceOptions::default();
        let options = scale.map_or(usual.clone(), |scale| usual.with_scale(scale));
        let Problem { tensors: [q, k, v, ..], state, dh, .. } =
            Problem::new([b, nh, nkv, s, qk, hv], dtype)?;
        // Gates of exactly 0, where a sum of |f| would have another slope, and shut ones.
        let mut of_f: Vec<f64> = numbers(nh * s, 4).into_iter().map(|x| 3.0 + x).collect();
        (of_f[2], of_f[30], of_f[40]) = (0.0, 0.0, -3e38);
        let f = variable(&of_f, &[b, nh, s], DType::F32)?;
        let i = variable(&numbers(nh * s, 5), &[b, nh, s], DType::F32)?;
        let (h, last) = mlstm_sig([&q, &k, &v], [&i, &f], Some(&state), &options)?;
        let loss = (h.mul(&dh)?.to_dtype(DType::F32)?.sum_all()? + last.sum_all()?)?;
        let gradients = loss.backward()?;

        let [own_q, own_k, own_v, own_i, own_f, c0] =
            [&q, &k, &v, &i, &f, &state].map(|t| values(t));
        let w: Vec<f64> = own_i.iter().map(|&x| sigmoid(x)).collect();
        // The kernels' least decay.
        let g: Vec<f64> =
            own_f.iter().map(|&x| -(-x).max(0.0) - (-x.abs()).exp().ln_1p()).collect();
        let g: Vec<f64> = g.into_iter().map(|g| g.max(-1e5)).collect();
        let of_one = (qk as f64).powf(-0.5);
        let scale = scale.unwrap_or(of_one);
        let sizes =
            Sizes { heads: nh, group: nh / nkv, positions: s, qk, hv, scale, erases: false };
        let x = Inputs { q: &own_q, k: &own_k, v: &own_v, g: &g, beta: &w, c0: Some(&c0) };
        let expected = forward(x, sizes);
        let by = backward(x, &values(&dh), Some(&vec![1.0; c0.len()]), sizes);
        let of_i: Vec<f64> = by.beta.iter().zip(&w).map(|(d, w)| d * w * (1.0 - w)).collect();
        let of_f: Vec<f64> = by.g.iter().zip(&own_f).map(|(d, f)| d * sigmoid(-f)).collect();
        let all = [
            ("h", values(&h), &expected.h),
            ("the last state", values(&last), &expected.c),
            ("dq", values(gradients.get(&q).unwrap()), &by.q),
            ("dk", values(gradients.get(&k).unwrap()), &by.k),
            ("dv", values(gradients.get(&v).unwrap()), &by.v),
            ("di", values(gradients.get(&i).unwrap()), &of_i),
            ("df", values(gradients.get(&f).unwrap()), &of_f),
            ("the state's", values(gradients.get(&state).unwrap()), &by.c0),
        ];
        for (name, found, expected) in &all {
            let found = error(found, expected);
            assert!(found <= most, "{dtype:?} {scale}: {name}: {found:e}, at most {most:e}");
        }

        let [q, k, v, i, f] = [&q, &k, &v, &i, &f].map(|t| t.detach());
        let part =
            |from: usize, len: usize| [&q, &k, &v, &i, &f].map(|t| t.narrow(2, from, len).unwrap());
        let [a, b, c, d, e] = part(0, s - 1);
        let (_, before) = mlstm_sig([&a, &b, &c], [&d, &e], Some(&state.detach()), &options)?;
        let [a, b, c, d, e] = part(s - 1, 1).map(|t| t.squeeze(2).unwrap());
        let (h, behind) = mlstm_sig_step([&a, &b, &c], [&d, &e], Some(&before), &options)?;
        let row: Vec<f64> =
            expected.h.chunks(s * hv).flat_map(|head| head[(s - 1) * hv..].to_vec()).collect();
        let found = [error(&values(&h), &row), error(&values(&behind), &expected.c)];
        assert!(found.into_iter().all(|found| found <= most), "{dtype:?}: a step: {found:?}");
        // From no state.
        let (h, state) = mlstm_sig_step([&a, &b, &c], [&d, &e], None, &options)?;
        assert_eq!((h.dims(), state.dims()), (c.dims(), &[1, nh, qk, hv][..]));
    }
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap();
    let [q, gate, short] = [&[1, 2, 16][..], &[1, 2], &[1, 1]].map(zeros);
    let said = mlstm_sig_step([&q, &q, &q], [&gate, &short], None, &RecurrenceOptions::default());
    let said = said.unwrap_err().to_string();
    assert!(said.starts_with("f: expected shape [1, 2], got [1, 1]"), "{said}");
    Ok(())
}
