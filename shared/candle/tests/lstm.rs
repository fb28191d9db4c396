//! The layer of an LSTM against `candle_nn`'s, whose gradients are those of candle's own graph.

use candle_core::backprop::GradStore;
use candle_core::{DType, Device, Module, Result, Tensor, Var};
use candle_nn::rnn::{Direction, LSTM, LSTMConfig, LSTMState, RNN};
use candle_nn::{VarBuilder, VarMap};
use vlstm_candle::Lstm;

/// ‖a − b‖ / ‖b‖ in F64, or, where that is more, the error of the worst element over four times the largest one: so a single
/// one that is 0 does not hide among the others.
fn error(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.dims(), b.dims());
    let norm = |x: &Tensor| -> Result<f64> { x.sqr()?.sum_all()?.sqrt()?.to_scalar() };
    let largest = |x: &Tensor| -> Result<f64> { x.abs()?.flatten_all()?.max(0)?.to_scalar() };
    let both = [a, b].map(|x| x.to_dtype(DType::F64).unwrap());
    let wrong = (&both[0] - &both[1]).unwrap();
    let of_all = norm(&wrong).unwrap() / norm(&both[1]).unwrap();
    let of_worst = largest(&wrong).unwrap() / (4.0 * largest(&both[1]).unwrap());
    // `f64::max` would hide a NaN, which is in the norm.
    if of_worst > of_all { of_worst } else { of_all }
}

/// Numbers from −1 to 1, the same in each run.
fn numbers(shape: &[usize], seed: u64, dtype: DType) -> Result<Tensor> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1u32 << 30) - 1.0
    };
    let values: Vec<f64> = (0..shape.iter().product()).map(|_| next()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)?.to_dtype(dtype)
}

/// Gives each variable numbers of its own, below 0.5.
fn set_all(variables: &VarMap) -> Result<()> {
    let variables = variables.data().lock().unwrap();
    let mut names: Vec<&String> = variables.keys().collect();
    names.sort();
    for (seed, name) in (100..).zip(names) {
        let var = &variables[name];
        var.set(&(numbers(var.dims(), seed, var.dtype())? * 0.5)?)?;
    }
    Ok(())
}

/// All steps of `candle_nn`'s layer: the outputs \[B, T, H\], and the last state.
fn unrolled(lstm: &LSTM, x: &Tensor, state: &LSTMState) -> Result<(Tensor, LSTMState)> {
    let states = lstm.seq_init(x, state)?;
    Ok((lstm.states_to_tensor(&states)?, states[states.len() - 1].clone()))
}

/// A sum in which every output and every number of the last state has its own weight.
fn loss((y, last): (Tensor, LSTMState), weights: &[Tensor; 3]) -> Result<Tensor> {
    let [of_y, of_h, of_c] = weights;
    let of_state = (last.h.mul(of_h)?.sum_all()? + last.c.mul(of_c)?.sum_all()?)?;
    y.mul(of_y)?.sum_all()? + of_state
}

/// Both layers, with the same parameters and data: the largest error of the results and of the gradients.
fn compare(sizes: [usize; 4], config: LSTMConfig, dtype: DType) -> Result<[f64; 2]> {
    let [batch, steps, inputs, hidden] = sizes;
    let device = &Device::Cpu;
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, dtype, device);
    let own = Lstm::new(inputs, hidden, config, vb)?;
    set_all(&variables)?;
    // candle's own, in F64: the reference.
    let exact = VarMap::new();
    for (name, var) in variables.data().lock().unwrap().iter() {
        let var = Var::from_tensor(&var.to_dtype(DType::F64)?)?;
        exact.data().lock().unwrap().insert(name.clone(), var);
    }
    let theirs =
        LSTM::new(inputs, hidden, config, VarBuilder::from_varmap(&exact, DType::F64, device))?;

    let data = [
        numbers(&[batch, steps, inputs], 1, dtype)?,
        numbers(&[batch, hidden], 2, dtype)?,
        numbers(&[batch, hidden], 3, dtype)?,
    ];
    let weights = [
        numbers(&[batch, steps, hidden], 4, dtype)?,
        numbers(&[batch, hidden], 5, dtype)?,
        numbers(&[batch, hidden], 6, dtype)?,
    ];
    let as_vars = |dtype: DType| -> Result<Vec<Var>> {
        data.iter().map(|t| Var::from_tensor(&t.to_dtype(dtype)?)).collect()
    };
    let (mine, reference) = (as_vars(dtype)?, as_vars(DType::F64)?);
    let state =
        |vars: &[Var]| LSTMState::new(vars[1].as_tensor().clone(), vars[2].as_tensor().clone());

    let out = own.sequence(&mine[0], Some(&state(&mine)))?;
    let expected = unrolled(&theirs, &reference[0], &state(&reference))?;
    let of_results = error(&out.0, &expected.0)
        .max(error(&out.1.h, &expected.1.h))
        .max(error(&out.1.c, &expected.1.c));
    let in_f64 = weights.each_ref().map(|t| t.to_dtype(DType::F64).unwrap());
    let gradients: GradStore = loss(out, &weights)?.backward()?;
    let exact_gradients = loss(expected, &in_f64)?.backward()?;

    let mut of_gradients: f64 = 0.0;
    let mut hold = |var: &Var, other: &Var| {
        let [a, b] =
            [gradients.get(var), exact_gradients.get(other)].map(|g| g.expect("a gradient"));
        assert_eq!(a.dtype(), dtype);
        of_gradients = of_gradients.max(error(a, b));
    };
    mine.iter().zip(&reference).for_each(|(var, other)| hold(var, other));
    let (variables, exact) = (variables.data().lock().unwrap(), exact.data().lock().unwrap());
    assert_eq!(
        variables.len(),
        2 + usize::from(config.b_ih_init.is_some()) + usize::from(config.b_hh_init.is_some())
    );
    variables.iter().for_each(|(name, var)| hold(var, &exact[name]));
    Ok([of_results, of_gradients])
}

fn holds(sizes: [usize; 4], config: LSTMConfig, dtype: DType, most: [f64; 2]) {
    let found = compare(sizes, config, dtype).unwrap();
    println!("{sizes:?} {dtype:?}: {found:?}");
    for (found, most) in found.into_iter().zip(most) {
        assert!(found <= most, "{sizes:?} {dtype:?}: {found:e}, at most {most:e}");
    }
}

#[test]
fn it_is_candles_own_and_so_are_its_gradients() {
    holds([3, 7, 5, 8], LSTMConfig::default(), DType::F32, [1e-6, 1e-6]);
    holds([1, 1, 3, 16], LSTMConfig::default(), DType::F32, [1e-6, 1e-6]);
    holds([2, 5, 8, 72], LSTMConfig::default(), DType::F32, [1e-6, 1e-6]);
    holds([2, 4, 5, 8], LSTMConfig::default(), DType::F64, [1e-14, 1e-14]);
    holds([2, 4, 8, 16], LSTMConfig::default(), DType::BF16, [1e-2, 1e-2]);
    holds([2, 4, 8, 16], LSTMConfig::default(), DType::F16, [1e-3, 1e-3]);
}

#[test]
fn without_biases_with_one_and_with_other_names() {
    let (none, both) = (LSTMConfig::default_no_bias(), LSTMConfig::default());
    holds([2, 3, 4, 8], none, DType::F32, [1e-6, 1e-6]);
    holds([2, 3, 4, 8], LSTMConfig { b_ih_init: None, ..both }, DType::F32, [1e-6, 1e-6]);
    let other = LSTMConfig { layer_idx: 2, direction: Direction::Backward, ..both };
    holds([2, 3, 4, 8], other, DType::F32, [1e-6, 1e-6]);
}

/// The same by steps, by `seq`, and from a sequence with gaps.
#[test]
fn a_step_is_a_sequence_of_one() -> Result<()> {
    let device = &Device::Cpu;
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, device);
    let lstm = Lstm::new(4, 8, LSTMConfig::default(), vb)?;
    set_all(&variables)?;
    let x = numbers(&[2, 4, 6], 1, DType::F32)?.transpose(1, 2)?;
    let (y, last) = lstm.sequence(&x, None)?;
    let states = lstm.seq(&x)?;
    let by_steps = lstm.states_to_tensor(&states)?;
    assert!(error(&by_steps, &y) <= 1e-6);
    assert!(error(&states[5].c, &last.c) <= 1e-6);
    assert!(error(&lstm.forward(&x)?, &y) == 0.0);
    // Detached parameters: nothing is kept for a backward pass.
    let tensors = variables.data().lock().unwrap();
    let tensors =
        tensors.iter().map(|(name, var)| (name.clone(), var.as_detached_tensor())).collect();
    let vb = VarBuilder::from_tensors(tensors, DType::F32, device);
    let detached = Lstm::new(4, 8, LSTMConfig::default(), vb)?.forward(&x)?;
    assert!(!detached.track_op() && y.track_op());
    assert!(error(&detached, &y) <= 1e-6);
    Ok(())
}

#[test]
fn what_it_refuses() {
    let device = &Device::Cpu;
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::F32, device);
    let lstm = Lstm::new(4, 8, LSTMConfig::default(), vb).unwrap();
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, device).unwrap();
    let said =
        |x: &Tensor, state: Option<&LSTMState>| lstm.sequence(x, state).unwrap_err().to_string();
    let state = |shape: &[usize], dtype| LSTMState::new(zeros(shape, dtype), zeros(shape, dtype));
    let x = zeros(&[2, 3, 4], DType::F32);
    for (said, expected) in [
        (said(&zeros(&[2, 4], DType::F32), None), "input: expected shape [B, T, I], got [2, 4]"),
        (said(&zeros(&[2, 3, 5], DType::F32), None), "input: expected 4 columns, got 5"),
        (
            said(&zeros(&[2, 3, 4], DType::F16), None),
            "input: expected F32, as the parameters, got F16",
        ),
        (said(&x, Some(&state(&[1, 8], DType::F32))), "state.h: expected shape [2, 8], got [1, 8]"),
        (
            said(&x, Some(&state(&[2, 8], DType::F64))),
            "state.h: expected F32, as the parameters, got F64",
        ),
        (
            lstm.step(&x, &state(&[2, 8], DType::F32)).unwrap_err().to_string(),
            "input: expected shape [B, I], got [2, 3, 4]",
        ),
        (
            Lstm::new(4, 8, LSTMConfig::default(), VarBuilder::zeros(DType::U32, device))
                .unwrap_err()
                .to_string(),
            "the parameters: expected F32, F64, F16 or BF16, got U32",
        ),
    ] {
        assert_eq!(said.lines().next().unwrap(), expected);
    }
    // No step at all: what the kernels say.
    let none = said(&zeros(&[2, 0, 4], DType::F32), None);
    let expected = "tensor 'x': expected at least one step and one row, T B up to 1073741824, got f32 [0, 2, 4]";
    assert_eq!(none.lines().next().unwrap(), expected);
}
