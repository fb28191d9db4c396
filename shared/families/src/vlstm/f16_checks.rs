//! Gradients in f16 of problems whose inner numbers f16 does not hold, though the gradients themselves it does, or f32.
//!
//! f16 has all of its digits from 2^-14 to 65504. With small input gates N = n + ε is large, and 1 / N below that; with a
//! loss that has been scaled, dh makes sums beyond it.

use lab_device::{DType, Device};

use super::state_checks::{set_last_gradient, set_state};
use super::{cu_seqlens, packed_sizes};
use crate::qkv::sizes;
use lab_harness::{Options, Problem, Tensor, Tensors, Version, run};

/// Of the largest element of dq, dk or dv. Who rounds pairs to halves as they are, such as 1e-9 times a product of rows, has
/// steps of 6e-8 in them; who scales them has f16's 5e-4 of whatever is rounded, some of it twice.
const OF_PAIRS: f64 = 5e-3;
const OF_HALVES: f64 = 2.5e-3;
/// Of the largest element of what is in f32: dots average these roundings out.
const OF_FLOATS: f64 = 2e-3;
/// What f16 rounds numbers below 2^-14 by, such as these outputs.
const HALF_A_STEP: f64 = 1.0 / (1u64 << 25) as f64;

/// The largest that f16 holds.
const LARGEST: f64 = 65504.0;

/// Whether it takes f16 at all.
pub(super) fn takes_f16(version: &dyn Version) -> bool {
    version.info().dtypes.contains(&DType::F16)
}

/// Whether it takes f16, and states with their gradients.
pub(super) fn takes_states_of_f16(version: &dyn Version) -> bool {
    takes_f16(version) && version.info().takes("C0")
}

/// 3 i - 20 in place of i, so that N comes to some 1e9; and 4 dh, so that dq, dk and dv come to some 2e-4, of which f16 holds
/// three digits.
fn with_small_input_gates(mut inputs: Tensors) -> Tensors {
    map(&mut inputs, "i", |i| 3.0 * i - 20.0);
    map(&mut inputs, "dh", |dh| 4.0 * dh);
    inputs
}

fn map(inputs: &mut Tensors, name: &str, of: impl Fn(f64) -> f64) {
    let tensor = &inputs[name];
    let values: Vec<f64> = tensor.values().into_iter().map(of).collect();
    let changed = Tensor::rounded(tensor.dtype, &tensor.shape, &values);
    inputs.insert(name.to_owned(), changed);
}

/// Of each gradient that `counts`: what f16 does not hold is infinite, and all else within its bound.
fn assert_gradients(
    version: &dyn Version,
    device: &Device,
    inputs: &Tensors,
    asked: &[&str],
    of_halves: f64,
    counts: impl Fn(&str) -> bool,
) {
    let options = Options::parse(asked, version.info()).unwrap();
    let got = run(version, device, inputs, &options).unwrap();
    for (name, expected) in version.reference(inputs, &options) {
        let Some(tensor) = got.get(name).filter(|_| name.starts_with('d') && counts(name)) else {
            continue;
        };
        let largest = expected.iter().fold(0f64, |a, e| a.max(e.abs()));
        let may_overflow = tensor.dtype == DType::F16;
        let slack =
            if may_overflow { of_halves * largest + HALF_A_STEP } else { OF_FLOATS * largest };
        for (at, (got, e)) in tensor.values().into_iter().zip(&expected).enumerate() {
            let near = (got - e).abs() <= slack;
            let right = match e.abs() {
                size if may_overflow && size > LARGEST + slack => got == e.signum() * f64::INFINITY,
                size if may_overflow && size > LARGEST - slack => near || got.is_infinite(),
                _ => near,
            };
            let full_name = version.info().full_name();
            assert!(
                right,
                "{full_name} {asked:?} {name}, element {at}: {got}, expected {e} of {largest:e}"
            );
        }
    }
}

/// The ways through the normaliser that the version offers.
fn ways(version: &dyn Version) -> Vec<String> {
    let all = super::asserts::normalizer_grads(version);
    all.iter().map(|way| format!("normalizer_grad={way}")).collect()
}

/// N up to 1e11 and more: pairs, and what a row adds to the gradient of the state, are below all that f16 holds.
pub(super) fn small_input_gates_in_f16(version: &dyn Version, device: &Device) {
    small_input_gates(version, device, OF_PAIRS);
}

/// The same of versions that scale their pairs: to f16's own roundings.
pub fn small_input_gates_cost_no_digits(version: &dyn Version, device: &Device) {
    small_input_gates(version, device, OF_HALVES);
}

fn small_input_gates(version: &dyn Version, device: &Device, of_halves: f64) {
    let problem = Problem::new(sizes([1, 2, 130, 32, 32]), DType::F16);
    let inputs = with_small_input_gates(version.inputs(&problem));
    for way in ways(version) {
        assert_gradients(version, device, &inputs, &[&way], of_halves, |_| true);
    }
}

/// The same between states, over several stretches: what comes back of the last state is as small as what positions add to it.
pub(super) fn small_input_gates_between_states_in_f16(version: &dyn Version, device: &Device) {
    let problem = Problem::new(sizes([1, 1, 300, 32, 48]), DType::F16);
    let mut inputs = with_small_input_gates(version.inputs(&problem));
    set_state(&mut inputs, -22.0);
    set_last_gradient(&mut inputs);
    for name in ["dCN", "dnN"] {
        map(&mut inputs, name, |x| 1e-8 * x);
    }
    for way in ways(version) {
        assert_gradients(version, device, &inputs, &[&way, "state_grad=yes"], OF_HALVES, |_| true);
    }
}

/// The same of packed sequences, a small N in one and a large N in the next.
pub(super) fn small_input_gates_of_packed_f16(version: &dyn Version, device: &Device) {
    let lengths = [70, 0, 130, 1, 300];
    let sizes = packed_sizes([lengths.len(), 1, lengths.iter().sum(), 32, 32]);
    let mut inputs = with_small_input_gates(version.inputs(&Problem::new(sizes, DType::F16)));
    inputs.insert("cu_seqlens".into(), cu_seqlens(&lengths));
    for way in ways(version) {
        assert_gradients(version, device, &inputs, &[&way], OF_HALVES, |_| true);
    }
}

/// dh of some 15000: many of dq, dk and dv are infinite in f16. di and df, in f32, are not.
pub(super) fn gradients_of_gates_where_f16_overflows(version: &dyn Version, device: &Device) {
    let inputs = inputs_with_dq_beyond_f16(version);
    for way in ways(version) {
        assert_gradients(version, device, &inputs, &[&way], OF_HALVES, |name| {
            ["di", "df"].contains(&name)
        });
    }
}

/// dh of 30000 and q of 30, all of one sign: dC comes to millions, ever more than Σ s β / N times what f16 holds, and dk, by
/// small v, to thousands. N is 1, for k is 0.
pub(super) fn a_large_gradient_of_the_state_is_right_in_f16(
    version: &dyn Version,
    device: &Device,
) {
    let mut inputs = version.inputs(&Problem::new(sizes([1, 1, 150, 16, 16]), DType::F16));
    for (name, value) in [("q", 30.0), ("dh", 3e4), ("k", 0.0), ("v", 1e-4), ("i", 0.0), ("f", 3.0)]
    {
        map(&mut inputs, name, |_| value);
    }
    for way in ways(version) {
        assert_gradients(version, device, &inputs, &[&way], OF_HALVES, |_| true);
    }
}

/// Of versions that hold the sums in f32: those of dq, dk and dv that f16 holds are right beside others that it does not.
pub fn infinite_in_f16_is_no_neighbour(version: &dyn Version, device: &Device) {
    let inputs = inputs_with_dq_beyond_f16(version);
    for way in ways(version) {
        assert_gradients(version, device, &inputs, &[&way], OF_HALVES, |_| true);
    }
}

fn inputs_with_dq_beyond_f16(version: &dyn Version) -> Tensors {
    let mut inputs = version.inputs(&Problem::new(sizes([1, 1, 130, 32, 32]), DType::F16));
    map(&mut inputs, "dh", |x| 15000.0 * x);
    let all = version.reference(&inputs, &Options::default());
    let dq = &all.iter().find(|output| output.0 == "dq").expect("an output").1;
    assert!(dq.iter().any(|x| x.abs() > 2.0 * LARGEST), "dq is within f16");
    inputs
}
