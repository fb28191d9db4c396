//! Packed sequences: each as it is alone, with its gradients, and what is refused.

use candle_core::{DType, Device, Result, Tensor, Var};
use vlstm_candle::{
    MlstmOptions, MlstmState, RecurrenceOptions, gated_delta_rule, linear_attention, mlstm,
    mlstm_with_state,
};

mod common;
use common::{error, numbers, values, variable};

/// Where the sequences begin: one of several chunks, one of nothing, one of a position, one that ends a chunk.
const PLACES: [usize; 5] = [0, 70, 70, 71, 100];
const SEQUENCES: usize = PLACES.len() - 1;
const HEADS: usize = 2;
const KEYS: usize = 32;
const VALUES: usize = 16;

/// What is called: tensors and states in, h and states out.
type Call<'a> =
    dyn Fn(&[Tensor], &[Tensor], Option<&[usize]>) -> Result<(Tensor, Vec<Tensor>)> + 'a;

/// q, k, v and two gates, f or g from 0 down; heads of v share keys.
fn drawn(dtype: DType, shared: usize) -> Result<Vec<Var>> {
    let s = PLACES[SEQUENCES];
    let gate = |seed, scale: f64, mean: f64| -> Result<Var> {
        let gate: Vec<f64> = numbers(HEADS * s, seed).iter().map(|x| mean + scale * x).collect();
        variable(&gate, &[1, HEADS, s], DType::F32)
    };
    let keys: Vec<f64> =
        numbers(shared * s * KEYS, 2).iter().map(|x| x * (3.0 / KEYS as f64).sqrt()).collect();
    Ok(vec![
        variable(&numbers(shared * s * KEYS, 1), &[1, shared, s, KEYS], dtype)?,
        variable(&keys, &[1, shared, s, KEYS], dtype)?,
        variable(&numbers(HEADS * s * VALUES, 3), &[1, HEADS, s, VALUES], dtype)?,
        gate(4, 0.05, -0.05)?,
        gate(5, 0.4, 0.5)?,
    ])
}

fn states_of(shapes: &[&[usize]]) -> Result<Vec<Var>> {
    let of = |(n, shape): (usize, &&[usize])| {
        let shape = [&[SEQUENCES, HEADS], *shape].concat();
        variable(&numbers(shape.iter().product(), 10 + n as u64), &shape, DType::F32)
    };
    shapes.iter().enumerate().map(of).collect()
}

/// h, states and gradients of a packed call are those of the calls of its parts. `exact`: the same bits; gradients of gates come from
/// sums that other chunks cut.
fn holds(call: &Call<'_>, tensors: &[Var], states: &[Var], bound: f64) -> Result<()> {
    let all: Vec<Tensor> = tensors.iter().map(|t| t.as_tensor().clone()).collect();
    let of_states: Vec<Tensor> = states.iter().map(|t| t.as_tensor().clone()).collect();
    let loss = |h: &Tensor, last: &[Tensor], first: usize| -> Result<Tensor> {
        let len = h.dim(2)?;
        let weights = numbers(PLACES[SEQUENCES], 20);
        let weights = Tensor::from_slice(&weights[first..first + len], (1, 1, len, 1), h.device())?;
        let h = h.to_dtype(DType::F32)?.broadcast_mul(&weights.to_dtype(DType::F32)?)?;
        // The exponent m has no gradient.
        last.iter().take(2).try_fold(h.sum_all()?, |sum, t| sum + t.sum_all()?)
    };
    let (h, last) = call(&all, &of_states, Some(&PLACES))?;
    assert_eq!(last[0].dims()[0], SEQUENCES);
    let packed = loss(&h, &last, 0)?.backward()?;
    let mut alone = None;
    let mut rows = Vec::new();
    for (n, ends) in PLACES.windows(2).enumerate() {
        let own: Vec<Tensor> =
            of_states.iter().map(|t| t.narrow(0, n, 1)).collect::<Result<_>>()?;
        let (len, first) = (ends[1] - ends[0], ends[0]);
        if len == 0 {
            for (last, own) in last.iter().zip(&own) {
                assert_eq!(values(&last.narrow(0, n, 1)?), values(own), "a sequence of nothing");
            }
            let sum = own.iter().take(2).map(Tensor::sum_all).collect::<Result<Vec<_>>>()?;
            let sum = sum.into_iter().reduce(|a, b| (a + b).unwrap()).expect("a state");
            alone = Some(match alone {
                Some(before) => (before + sum)?,
                None => sum,
            });
            continue;
        }
        let part: Vec<Tensor> =
            all.iter().map(|t| t.narrow(2, first, len)).collect::<Result<_>>()?;
        let (own_h, own_last) = call(&part, &own, None)?;
        for (last, own) in last.iter().zip(&own_last) {
            assert_eq!(values(&last.narrow(0, n, 1)?), values(own), "the state of {n}");
        }
        let own_loss = loss(&own_h, &own_last, first)?;
        alone = Some(match alone {
            Some(before) => (before + own_loss)?,
            None => own_loss,
        });
        rows.push(own_h);
    }
    assert_eq!(values(&h), values(&Tensor::cat(&rows, 2)?));
    let alone = alone.expect("sequences").backward()?;
    for (n, var) in tensors.iter().chain(states.iter().take(2)).enumerate() {
        let [got, expected] = [&packed, &alone].map(|store| values(store.get(var).unwrap()));
        let found = error(&got, &expected);
        assert!(found <= bound, "gradient {n}: {found:e}");
    }
    Ok(())
}

#[test]
fn each_sequence_is_as_it_is_alone() -> Result<()> {
    let of = |places: Option<&[usize]>| match places {
        Some(places) => RecurrenceOptions::default().with_cu_seqlens(places),
        None => RecurrenceOptions::default(),
    };
    let delta = |t: &[Tensor], states: &[Tensor], places: Option<&[usize]>| {
        let options = of(places);
        // The emulator would take others for one sequence.
        let options = match places {
            None if t[0].dtype() == DType::BF16 => options
                .with_forward_version("gdn_fw:v4_fused")
                .with_backward_version("gdn_fwbw:v1_tensor"),
            _ => options,
        };
        let (h, last) =
            gated_delta_rule([&t[0], &t[1], &t[2]], [&t[3], &t[4]], Some(&states[0]), &options)?;
        Ok((h, vec![last]))
    };
    let linear = |t: &[Tensor], states: &[Tensor], places: Option<&[usize]>| {
        let [g, w] = [Some(&t[3]), Some(&t[4])];
        let (h, last) =
            linear_attention([&t[0], &t[1], &t[2]], g, w, Some(&states[0]), &of(places))?;
        Ok((h, vec![last]))
    };
    let vlstm = |t: &[Tensor], states: &[Tensor], places: Option<&[usize]>| {
        // Likewise.
        let options = match places {
            Some(places) => MlstmOptions::default().with_cu_seqlens(places),
            None => MlstmOptions::default().with_backward_version("vlstm_fwbw_v4:v1_together"),
        };
        let [c, n, m] = [0, 1, 2].map(|n: usize| states[n].clone());
        let state = MlstmState { c, n, m };
        let (h, MlstmState { c, n, m }) =
            mlstm_with_state(&t[0], &t[1], &t[2], &t[4], &t[3], Some(&state), &options)?;
        Ok((h, vec![c, n, m]))
    };
    let c: &[&[usize]] = &[&[KEYS, VALUES]];
    holds(&delta, &drawn(DType::F32, 1)?, &states_of(c)?, 1e-6)?;
    holds(&delta, &drawn(DType::BF16, 1)?, &states_of(c)?, 1e-5)?;
    holds(&linear, &drawn(DType::F32, 1)?, &states_of(c)?, 1e-6)?;
    holds(&linear, &drawn(DType::BF16, 1)?, &states_of(c)?, 1e-5)?;
    let all: &[&[usize]] = &[&[KEYS, VALUES], &[KEYS], &[]];
    holds(&vlstm, &drawn(DType::BF16, HEADS)?, &states_of(all)?, 1e-5)
}

#[test]
fn what_is_refused() -> Result<()> {
    let zeros = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
    let q = zeros(&[1, 2, 20, 16], DType::BF16);
    let gate = zeros(&[1, 2, 20], DType::F32);
    let state = zeros(&[1, 2, 16, 16], DType::F32);
    let first = |error: candle_core::Error| error.to_string().lines().next().unwrap().to_owned();
    let said = |q: &Tensor, gate: &Tensor, state: Option<&Tensor>, places: &[usize]| {
        let options = RecurrenceOptions::default().with_cu_seqlens(places);
        first(gated_delta_rule([q, q, q], [gate, gate], state, &options).unwrap_err())
    };
    assert_eq!(said(&q, &gate, None, &[0]), "cu_seqlens: expected N + 1 numbers, got 1");
    for places in [&[0, 15, 12, 20][..], &[0, 19], &[1, 20]] {
        assert_eq!(
            said(&q, &gate, None, places),
            format!(
                "cu_seqlens: expected numbers that rise from 0 to 20, or stay the same, got {places:?}"
            )
        );
    }
    assert_eq!(
        said(&q, &gate, Some(&state), &[0, 5, 20]),
        "state: expected shape [2, 2, 16, 16], got [1, 2, 16, 16]"
    );
    let two = zeros(&[2, 2, 20, 16], DType::BF16);
    let of_two = zeros(&[2, 2, 20], DType::F32);
    assert_eq!(
        said(&two, &of_two, None, &[0, 20]),
        "q: expected shape [1, NKV, S, DHQK] with cu_seqlens, got [2, 2, 20, 16]"
    );
    let exact = q.to_dtype(DType::F32)?;
    let options = MlstmOptions::default().with_cu_seqlens([0, 20]);
    assert_eq!(
        first(mlstm(&exact, &exact, &exact, &gate, &gate, &options).unwrap_err()),
        "q: expected F16 or BF16 with cu_seqlens, got F32"
    );
    Ok(())
}
