//! On the first CUDA device: holds results and gradients against those of the emulator, then times a forward and a backward pass.
//!
//! ```sh
//! cargo run --release --features cuda --example cuda
//! ```
//!
//! Ends with an error where a result differs by more than rounding explains.

use std::time::Instant;

use candle_core::{DType, Device, Result, Tensor, Var, bail};
use candle_nn::rnn::{LSTM, LSTMConfig, LSTMState, RNN};
use candle_nn::{VarBuilder, VarMap};
use vlstm_candle::{Lstm, MlstmOptions, MlstmState, mlstm, mlstm_with_state};

/// Numbers from −1 to 1, the same in each run.
fn numbers(shape: &[usize], seed: u64) -> Result<Tensor> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f32 / (1u32 << 30) as f32 - 1.0
    };
    let values: Vec<f32> = (0..shape.iter().product()).map(|_| next()).collect();
    Tensor::from_vec(values, shape, &Device::Cpu)
}

/// ‖a − b‖ / ‖b‖; of a b that is 0, ‖a‖.
fn error(a: &Tensor, b: &Tensor) -> Result<f64> {
    let on_host = |x: &Tensor| x.to_device(&Device::Cpu)?.to_dtype(DType::F64);
    let (a, b) = (on_host(a)?, on_host(b)?);
    let norm = |x: &Tensor| -> Result<f64> { x.sqr()?.sum_all()?.sqrt()?.to_scalar() };
    let (wrong, all) = (norm(&(&a - &b)?)?, norm(&b)?);
    Ok(if all == 0.0 { wrong } else { wrong / all })
}

/// The variables of a call on a device, from the same values on each.
fn variables(values: &[Tensor], device: &Device) -> Result<Vec<Var>> {
    values.iter().map(|t| Var::from_tensor(&t.to_device(device)?)).collect()
}

/// q, k, v, i and f of \[B, NH, S, DHQK, DHHV\], and c, n and m of a state.
fn of_mlstm([batch, heads, positions, qk, hv]: [usize; 5], dtype: DType) -> Result<Vec<Tensor>> {
    let rows = [batch, heads, positions];
    let with = |columns: &[usize]| [&rows[..], columns].concat();
    Ok(vec![
        numbers(&with(&[qk]), 1)?.to_dtype(dtype)?,
        numbers(&with(&[qk]), 2)?.to_dtype(dtype)?,
        numbers(&with(&[hv]), 3)?.to_dtype(dtype)?,
        numbers(&rows, 4)?,
        (numbers(&rows, 5)? + 3.0)?,
        numbers(&[batch, heads, qk, hv], 6)?,
        numbers(&[batch, heads, qk], 7)?,
        numbers(&[batch, heads], 8)?,
    ])
}

/// Runs `call` on the CPU and on the GPU, compares all results, and the gradients of a weighted sum of them.
fn compare(
    what: &str,
    device: &Device,
    inputs: &[Tensor],
    most: f64,
    call: impl Fn(&[Var]) -> Result<Vec<Tensor>>,
) -> Result<()> {
    let mut found = Vec::new();
    for device in [&Device::Cpu, device] {
        let vars = variables(inputs, device)?;
        let results = call(&vars)?;
        let mut loss = Tensor::zeros((), DType::F32, device)?;
        for (seed, result) in (50..).zip(&results) {
            let weights = numbers(result.dims(), seed)?.to_device(device)?;
            loss = (loss + result.to_dtype(DType::F32)?.mul(&weights)?.sum_all()?)?;
        }
        let gradients = loss.backward()?;
        let of_inputs = vars.iter().filter_map(|var| gradients.get(var).cloned());
        found.push(results.iter().cloned().chain(of_inputs).collect::<Vec<_>>());
    }
    let mut largest: f64 = 0.0;
    for (cpu, gpu) in found[0].iter().zip(&found[1]) {
        let error = error(gpu, cpu)?;
        if error > most || error.is_nan() {
            bail!("{what}: expected a relative difference of at most {most:e}, got {error:e}");
        }
        largest = largest.max(error);
    }
    if found[0].len() != found[1].len() {
        bail!("{what}: expected {} tensors, got {}", found[0].len(), found[1].len());
    }
    println!(
        "{what}: {} results and gradients, the largest difference {largest:.1e}",
        found[0].len()
    );
    Ok(())
}

/// The median of 20 in milliseconds, each with the host waiting for its end, and the mean of 20 without.
fn time(what: &str, device: &Device, mut call: impl FnMut() -> Result<()>) -> Result<()> {
    for _ in 0..5 {
        call()?;
    }
    device.synchronize()?;
    let mut each = Vec::new();
    for _ in 0..20 {
        let start = Instant::now();
        call()?;
        device.synchronize()?;
        each.push(start.elapsed().as_secs_f64() * 1e3);
    }
    let start = Instant::now();
    for _ in 0..20 {
        call()?;
    }
    device.synchronize()?;
    let mean = start.elapsed().as_secs_f64() * 1e3 / 20.0;
    each.sort_by(f64::total_cmp);
    println!("{what}: {:.3} ms one by one, {mean:.3} ms in a row", each[10]);
    Ok(())
}

fn lstm(inputs: usize, hidden: usize, parameters: &[Tensor], dtype: DType) -> Result<Lstm> {
    let names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"];
    let named = names.into_iter().zip(parameters).map(|(name, t)| (name.to_owned(), t.clone()));
    let vb = VarBuilder::from_tensors(named.collect(), dtype, parameters[0].device());
    Lstm::new(inputs, hidden, LSTMConfig::default(), vb)
}

fn main() -> Result<()> {
    let device = &Device::new_cuda(0)?;
    let options = MlstmOptions::default();
    let gates_and_all = |v: &[Var]| mlstm(&v[0], &v[1], &v[2], &v[3], &v[4], &options);

    for (dtype, most) in [(DType::F32, 5e-6), (DType::F16, 2e-3), (DType::BF16, 1e-2)] {
        let inputs = of_mlstm([1, 2, 150, 32, 48], dtype)?;
        let what = format!("mLSTM, {dtype:?}");
        compare(&what, device, &inputs[..5], most, |v| Ok(vec![gates_and_all(v)?]))?;
        let what = format!("mLSTM with states, {dtype:?}");
        compare(&what, device, &inputs, most, |v| {
            let tensor = |n: usize| v[n].as_tensor().clone();
            let state = MlstmState { c: tensor(5), n: tensor(6), m: tensor(7) };
            let (h, last) =
                mlstm_with_state(&v[0], &v[1], &v[2], &v[3], &v[4], Some(&state), &options)?;
            Ok(vec![h, last.c, last.n])
        })?;
        // Heads behind positions, as projections leave them.
        let what = format!("mLSTM with gaps, {dtype:?}");
        compare(&what, device, &inputs[..5], most, |v| {
            let gaps = |t: &Tensor| t.transpose(1, 2)?.contiguous()?.transpose(1, 2);
            Ok(vec![mlstm(&gaps(&v[0])?, &gaps(&v[1])?, &gaps(&v[2])?, &v[3], &v[4], &options)?])
        })?;
        for [batch, steps, inputs, hidden] in [[3, 9, 24, 40], [8, 6, 32, 96]] {
            let shapes: [&[usize]; 7] = [
                &[4 * hidden, inputs],
                &[4 * hidden, hidden],
                &[4 * hidden],
                &[4 * hidden],
                &[batch, steps, inputs],
                &[batch, hidden],
                &[batch, hidden],
            ];
            let values = (10..)
                .zip(shapes)
                .map(|(seed, shape)| (numbers(shape, seed)? * 0.5)?.to_dtype(dtype));
            let what = format!("LSTM, {hidden} units, {dtype:?}");
            compare(&what, device, &values.collect::<Result<Vec<_>>>()?, most, |v| {
                let parameters: Vec<Tensor> =
                    v[..4].iter().map(|v| v.as_tensor().clone()).collect();
                let state = LSTMState::new(v[5].as_tensor().clone(), v[6].as_tensor().clone());
                let layer = lstm(inputs, hidden, &parameters, dtype)?;
                let (y, last) = layer.sequence(&v[4], Some(&state))?;
                Ok(vec![y, last.h, last.c])
            })?;
        }
    }

    println!("\nforward and backward, in BF16:");
    for sizes in [[8, 4, 2048, 128, 256], [1, 8, 8192, 128, 128], [1, 4, 512, 64, 64]] {
        let vars = variables(&of_mlstm(sizes, DType::BF16)?[..5], device)?;
        time(&format!("mLSTM B NH S DHQK DHHV {sizes:?}"), device, || {
            gates_and_all(&vars)?.backward()?;
            Ok(())
        })?;
    }
    let [batch, steps, inputs, hidden] = [32, 128, 512, 512];
    let x = Var::from_tensor(
        &numbers(&[batch, steps, inputs], 1)?.to_device(device)?.to_dtype(DType::BF16)?,
    )?;
    let variables = VarMap::new();
    let vb = VarBuilder::from_varmap(&variables, DType::BF16, device);
    let own = Lstm::new(inputs, hidden, LSTMConfig::default(), vb.clone())?;
    let theirs = LSTM::new(inputs, hidden, LSTMConfig::default(), vb)?;
    let sizes = [batch, steps, inputs, hidden];
    time(&format!("LSTM B T I H {sizes:?}"), device, || {
        own.sequence(&x, None)?.0.backward()?;
        Ok(())
    })?;
    time(&format!("candle_nn::LSTM B T I H {sizes:?}"), device, || {
        theirs.states_to_tensor(&theirs.seq(&x)?)?.backward()?;
        Ok(())
    })
}
