//! What must hold of every version of a family of the vLSTM, and which checks a family has.

use lab_device::emulator::Operation;
use lab_device::{DType, Device, DeviceKind, Instance, Mode};

use super::asserts::{
    assert_rows_under, assert_same_from, in_type, normalizer_grads, rounding_of, set_gate,
    with_gates,
};
use super::f16_checks::{
    a_large_gradient_of_the_state_is_right_in_f16, gradients_of_gates_where_f16_overflows,
    small_input_gates_between_states_in_f16, small_input_gates_in_f16, takes_f16,
    takes_states_of_f16,
};
use super::overflow::{
    a_dot_that_is_not_needed_may_overflow, pairs_that_do_not_count_may_overflow,
    with_normalizer_grad,
};
use super::state_checks::{
    a_state_is_refused_by_name, a_state_of_nothing_is_none, extreme_states_give_numbers,
    gradients_of_no_state_are_refused, gradients_of_parts_are_those_of_the_whole,
    nan_of_a_state_stays_in_its_head, parts_are_the_whole, states_have_gradients,
    states_that_do_not_fit_are_refused,
};
use crate::qkv::checks::{
    any_schedule_gives_the_same, assert_refused, assert_right, dtype_of, heads_do_not_meet,
    inputs_of, ones, outputs_of, results_do_not_change_from_run_to_run,
    shapes_that_do_not_fit_are_refused,
};
use crate::qkv::sizes;
use lab_harness::suite::{VersionCheck, without_checks};
use lab_harness::tensor::tensors;
use lab_harness::{Options, Problem, Tensor, Tensors, Version, compare, run, version_checks};

/// Of the causal products without gates.
pub static UNGATED: &[VersionCheck] = version_checks![
    large_problems in Large,
    tiles_above_the_diagonal_are_not_touched,
    what_comes_later_does_not_matter,
    heads_do_not_meet,
    nan_stays_where_it_belongs,
    results_do_not_change_from_run_to_run,
    shapes_that_do_not_fit_are_refused,
];

/// Of the forward pass. Some are of versions with square tiles only, some of those that take states.
pub static FORWARD: &[VersionCheck] = version_checks![
    large_problems in Large,
    tiles_above_the_diagonal_are_not_touched if has_square_tiles,
    long_closed_gates_lose_no_digits in Ends,
    shut_gates_start_anew,
    extreme_gates_give_numbers in Ends,
    positions_may_be_shut_out,
    halves_forget_as_floats_do,
    epsilon_is_added_to_the_normaliser,
    what_comes_later_does_not_matter,
    heads_do_not_meet,
    nan_stays_where_it_belongs,
    results_do_not_change_from_run_to_run,
    shapes_that_do_not_fit_are_refused,
    gates_that_do_not_fit_are_refused,
    parts_are_the_whole if takes_states,
    a_state_of_nothing_is_none if takes_states,
    extreme_states_give_numbers if takes_states in Ends,
    nan_of_a_state_stays_in_its_head if takes_states,
    states_that_do_not_fit_are_refused if takes_states,
    a_state_is_refused_by_name if takes_no_states,
];

/// Of the forward and the backward pass.
pub static FORWARD_BACKWARD: &[VersionCheck] = version_checks![
    the_exact_gradient if takes_exact,
    halves_forget_as_floats_do,
    long_after_a_gate_shut in Ends,
    long_closed_gates_lose_no_digits in Ends,
    shut_gates_start_anew,
    extreme_gates_give_gradients in Ends,
    positions_may_be_shut_out,
    epsilon_is_added_to_the_normaliser,
    all_equal_and_one_alone,
    the_gates_gradients_add_up,
    any_schedule_gives_the_same in Ends,
    results_do_not_change_from_run_to_run,
    heads_do_not_meet,
    what_comes_later_does_not_matter,
    pairs_that_do_not_count_may_overflow,
    a_dot_that_is_not_needed_may_overflow,
    small_input_gates_in_f16 if takes_f16,
    small_input_gates_between_states_in_f16 if takes_states_of_f16,
    gradients_of_gates_where_f16_overflows if takes_f16,
    a_large_gradient_of_the_state_is_right_in_f16 if takes_f16,
    large_problems in Large,
    shapes_that_do_not_fit_are_refused,
    gates_that_do_not_fit_are_refused,
    states_have_gradients if takes_states,
    gradients_of_parts_are_those_of_the_whole if takes_states,
    gradients_of_no_state_are_refused if takes_states,
    nan_of_a_state_stays_in_its_head if takes_states,
    states_that_do_not_fit_are_refused if takes_states,
    a_state_is_refused_by_name if takes_no_states,
];

/// Whether it has gates, and whether it has a backward pass.
fn takes(version: &dyn Version, input: &str) -> bool {
    version.info().takes(input)
}

fn takes_states(version: &dyn Version) -> bool {
    takes(version, "C0")
}

fn takes_no_states(version: &dyn Version) -> bool {
    !takes_states(version)
}

fn takes_exact(version: &dyn Version) -> bool {
    normalizer_grads(version).contains(&"exact")
}

/// Whether it goes from tile of K to tile of K, up to the diagonal, and the tiles are square.
fn has_square_tiles(version: &dyn Version) -> bool {
    instances(version).any(|i| i.argument("TQ").is_some())
}

fn instances(version: &dyn Version) -> impl Iterator<Item = Instance> {
    version.sources().into_iter().flat_map(|source| source.all_instances())
}

/// S = 4096, in f32, and 2000, with a backward pass 2048 and 700, in every type; on a GPU 8192 and 4096.
pub fn large_problems(version: &dyn Version, device: &Device) {
    let emulated = device.kind() == DeviceKind::Emulator;
    let shapes = match (emulated, takes(version, "dh")) {
        (true, false) => [[1, 1, 2000, 64, 64], [1, 1, 600, 128, 112], [1, 1, 400, 240, 256]],
        (false, false) => [[1, 2, 8192, 64, 64], [1, 8, 2000, 128, 112], [2, 4, 1000, 240, 256]],
        (true, true) => [[1, 1, 700, 64, 64], [1, 1, 300, 128, 112], [1, 1, 200, 240, 256]],
        (false, true) => [[1, 2, 4096, 64, 64], [1, 4, 1000, 128, 112], [2, 2, 700, 240, 256]],
    };
    let shapes: Vec<_> = shapes.into_iter().filter(|shape| has_room(version, *shape)).collect();
    assert_right(version, device, version.info().dtypes, &shapes);
    if emulated {
        let positions = if takes(version, "dh") { 2048 } else { 4096 };
        assert_right(version, device, &version.info().dtypes[..1], &[[1, 1, positions, 16, 16]]);
    }
}

/// Whether the version takes heads as wide.
fn has_room(version: &dyn Version, [.., dhqk, dhhv]: [usize; 5]) -> bool {
    let dims = version.info().dims;
    dhqk <= dims[3].max && dhhv <= dims[4].max
}

/// TQ of the version's kernel for f32 and heads of so many columns.
fn rows_of_a_tile(version: &dyn Version, dh: usize) -> usize {
    let mut all = instances(version);
    let fits =
        |i: &Instance| i.has("T", "float") && i.argument("TQ").is_some() && dh <= i.size("DH");
    all.find(fits).expect("a kernel with tiles of Q").size("TQ")
}

/// Of a version whose kernel has square tiles, TQ by TKV, requests for device memory: of n tiles of Q each once,
/// and of the n (n + 1) / 2 pairs of a tile of Q and one of K and V up to the diagonal both, with
/// the gates of the latter where there are any. The emulator counts, whatever the device.
pub fn tiles_above_the_diagonal_are_not_touched(version: &dyn Version, _: &Device) {
    let device = Device::emulator_in(Mode::Counted).unwrap();
    for (n, dh) in [(1, 64), (2, 64), (5, 64), (3, 128), (4, 256)] {
        for &dtype in version.info().dtypes {
            let rows = rows_of_a_tile(version, dh);
            let inputs = version.inputs(&Problem::new(sizes([1, 2, n * rows, dh, dh]), dtype));
            device.take_profile();
            outputs_of(version, &device, &inputs);
            let profile = device.take_profile();
            // 32 lanes with 16 bytes each; of i and f with 4.
            let of_a_tile = rows * dh * dtype.size() / (32 * 16);
            let of_its_gates = if takes(version, "i") { 2 * rows / 32 } else { 0 };
            let pairs = n * (n + 1) / 2;
            let loads = 2 * (of_a_tile * (n + 2 * pairs) + of_its_gates * pairs);
            let got = profile.total(Operation::GlobalLoad).requests;
            assert_eq!(got, loads as u64, "loads, {n} tiles of {rows} x {dh} {dtype}");
        }
    }
}

/// Nothing of a row comes from later positions, and nothing of a gradient goes to them: the same
/// bits.
pub fn what_comes_later_does_not_matter(version: &dyn Version, device: &Device) {
    let [s, dh] = [150, 16];
    let inputs = inputs_of(version, [1, 1, s, dh, dh]);
    let before = outputs_of(version, device, &inputs);
    // The rows of some inputs from `rows.start` to `rows.end` are others.
    let changed = |which: &dyn Fn(&str) -> bool, rows: std::ops::Range<usize>| {
        let mut changed = inputs.clone();
        for (name, tensor) in changed.iter_mut().filter(|t| which(t.0)) {
            let (columns, mut values) = (inputs[name].len() / s, tensor.values());
            let of_rows = &mut values[rows.start * columns..rows.end * columns];
            of_rows.iter_mut().for_each(|v| *v = 10.0 - 3.0 * *v);
            *tensor = Tensor::rounded(tensor.dtype, &tensor.shape, &values);
        }
        outputs_of(version, device, &changed)
    };
    for t in [1, 63, 64, 149] {
        let after = changed(&|name| name != "dh", t..s);
        for name in ["h", "m", "n"].into_iter().filter(|&n| before.contains_key(n)) {
            let columns = before[name].len() / s;
            let (before, after) = (before[name].values(), after[name].values());
            assert_eq!(after[..t * columns], before[..t * columns], "{name} before {t}");
            let row = t * columns..(t + 1) * columns;
            assert_ne!(after[row.clone()], before[row], "{name} of {t}");
        }
        if !takes(version, "dh") {
            continue;
        }
        let after = changed(&|name| name == "dh", 0..t);
        for name in ["dq", "dk", "dv", "di", "df"] {
            let columns = before[name].len() / s;
            assert_same_from(version, name, t * columns, &before, &after);
        }
    }
}

/// In h of a version with tiles of TQ rows, or chunks of L, 64 where L is no parameter. A NaN in q: in its row. In k, i and f: in its
/// row and those behind it. In v: in its column, from its row on; the rows before it in the same tile get
/// 0 · NaN, those before it in a chunk may, those of earlier ones nothing. And in its head.
pub fn nan_stays_where_it_belongs(version: &dyn Version, device: &Device) {
    let shapes = [(150, 16), (70, 256)];
    for (s, dh) in shapes.into_iter().filter(|&(s, dh)| has_room(version, [1, 2, s, dh, dh])) {
        let tiles = has_square_tiles(version);
        let longest =
            || instances(version).filter_map(|i| i.argument("L").map(|_| i.size("L"))).max();
        let rows = if tiles { rows_of_a_tile(version, dh) } else { longest().unwrap_or(64) };
        let clean = inputs_of(version, [1, 2, s, dh, dh]);
        // A row of the first head and one of the second.
        for rows_with in [[0, s - 1], [65, 33]] {
            for name in clean.keys() {
                let mut inputs = clean.clone();
                let columns = clean[name].len() / (2 * s);
                let mut with = clean[name].values();
                for (head, row) in rows_with.into_iter().enumerate() {
                    with[(head * s + row) * columns + 7 % columns] = f64::NAN;
                }
                let with = Tensor::rounded(clean[name].dtype, &clean[name].shape, &with);
                inputs.insert(name.clone(), with);
                let h = outputs_of(version, device, &inputs)["h"].values();
                for (at, h) in h.into_iter().enumerate() {
                    let (head, i, c) = (at / (s * dh), at / dh % s, at % dh);
                    let row = rows_with[head];
                    if !tiles && name == "v" && c == 7 && (row / rows * rows..row).contains(&i) {
                        continue;
                    }
                    let expected = match name.as_str() {
                        "q" => i == row,
                        "v" => i >= row / rows * rows && c == 7,
                        _ => i >= row,
                    };
                    let (wrong, may) = if expected {
                        ("a number", "must be NaN")
                    } else {
                        ("NaN", "depends on nothing that is")
                    };
                    assert!(
                        h.is_nan() == expected,
                        "S={s} DH={dh}: {name}, row {row} of head {head}, holds a NaN: h of row {i}, column {c}, is {wrong}, and {may}"
                    );
                }
            }
        }
    }
}

/// Gates, their gradient's origin and ε, as q, k and v in [`shapes_that_do_not_fit_are_refused`].
pub fn gates_that_do_not_fit_are_refused(version: &dyn Version, device: &Device) {
    let gate = [1, 2, 9];
    let halves = Tensor::rounded(DType::F16, &gate, &[0.0; 18]);
    let most = version.info().dims[4].max;
    let step =
        format!("expected dimension DHHV: expected a multiple of 16 from 16 to {most}, got 24");
    let mut wrong = vec![
        ("v", ones(&[1, 2, 9, 24]), step.as_str()),
        ("i", ones(&[1, 2, 8]), "expected S=9 as 'q', got f32 [1, 2, 8]"),
        ("f", ones(&[1, 3, 9]), "expected NH=2 as 'q', got f32 [1, 3, 9]"),
        ("f", ones(&[1, 2, 9, 16]), "expected shape [\"B\", \"NH\", \"S\"], got f32 [1, 2, 9, 16]"),
        ("f", halves, "expected f32 in runs of every type, got f16"),
    ];
    if takes(version, "dh") {
        wrong.push(("dh", ones(&[1, 2, 9, 32]), "expected DHHV=16 as 'v', got f32 [1, 2, 9, 32]"));
        wrong.push(("dh", ones(&[1, 3, 9, 16]), "expected NH=2 as 'q', got f32 [1, 3, 9, 16]"));
    }
    assert_refused(version, device, &wrong);
    let options = Options::parse(&["eps=-1"], version.info()).unwrap();
    let inputs = inputs_of(version, [1, 2, 9, 32, 16]);
    let error = run(version, device, &inputs, &options).unwrap_err().to_string();
    assert_eq!(error, "--set eps: expected a number that is not negative, got -1");
}

/// Every row of h, m and n against f64: the largest error of an element over the largest element.
/// What f32 cannot hold is 0 or infinite. The bound is that in f32, in which m and n are computed in
/// runs of every type.
#[track_caller]
fn assert_rows(version: &dyn Version, device: &Device, inputs: &Tensors, bound: f64, what: &str) {
    assert_rows_under(version, device, inputs, &Options::default(), bound, what);
}

/// The sums of thousands of gates of -100 lie between the positions and the sequence's start, and
/// none of it between one open position and another. With sums from the start, in f32, h would be
/// off by half; with sums of a tile in one f32 by 1e-4, in the rows of the tile that is half open.
pub fn long_closed_gates_lose_no_digits(version: &dyn Version, device: &Device) {
    let f = |t: usize| if t % 100 < 70 { -100.0 } else { 5.0 };
    let inputs = with_gates(version, 400, |t| (t as f64).cos(), f);
    assert_rows(version, device, &inputs, 1.6e-6, "by turns");
    let device = &without_checks(device).unwrap();
    for s in [2048, 2000] {
        let f = |t: usize| if t < s / 2 { -100.0 } else { 5.0 };
        let inputs = with_gates(version, s, |t| (t as f64).sin(), f);
        assert_rows(version, device, &inputs, 4e-6, &format!("S={s}"));
    }
}

/// Gates that stand for the beginning of another sequence, as −∞ and the least number do: nothing of what was before is left,
/// and between them no digit is lost. They lie alone, at the ends of tiles, next to each other, everywhere. None has a gradient.
pub fn shut_gates_start_anew(version: &dyn Version, device: &Device) {
    type Places = (&'static str, fn(usize) -> bool);
    let least = f64::from(f32::MIN);
    for shut in [-1e5, -1e9, least, f64::NEG_INFINITY] {
        let places: [Places; 5] = [
            ("alone", |t| t == 20),
            ("at ends", |t| [0, 31, 32, 63, 64, 127, 128, 149].contains(&t)),
            ("next to each other", |t| (50..80).contains(&t)),
            ("by turns", |t| t % 7 == 3),
            ("everywhere", |_| true),
        ];
        for (place, is_shut) in places {
            let what = format!("gates of {shut} {place}");
            let f = |t: usize| if is_shut(t) { shut } else { 3.0 - (t % 5) as f64 };
            // No m is small beside the gates that it is made of.
            let inputs = with_gates(version, 150, |t| 4.0 + (t as f64).sin(), f);
            let dtype = dtype_of(version);
            if dtype == DType::F32 {
                assert_rows(version, device, &inputs, 4e-6, &what);
            }
            // A row of halves is as good as its weights, which are rounded; its m is f32.
            let options = Options::default();
            let out = run(version, device, &inputs, &options).unwrap();
            let reference = version.reference(&inputs, &options);
            let (_, m) = reference.iter().find(|(name, _)| *name == "m").expect("of the family");
            for (got, m) in out["m"].values().into_iter().zip(m) {
                assert!((got - m).abs() <= 4e-6 * m.abs(), "{what}: m {got}, expected {m}");
            }
            if takes(version, "dh") {
                if shut == f64::NEG_INFINITY {
                    assert_sane(version, device, &inputs, &what);
                }
                let df = out["df"].values();
                assert!((0..150).all(|t| !is_shut(t) || df[t] == 0.0), "{what}: df {df:?}");
            } else {
                // As a whole: the bounds of elements are for gates as they are drawn, whose exponents are small.
                for c in compare(version, &inputs, &out, &options, dtype) {
                    let within = c.relative_error <= c.bound;
                    assert!(within, "{what}: {} {:.2e}", c.name, c.relative_error);
                }
            }
        }
    }
}

/// i and f of ±100: all equal, of a lone position, by turns, and of one position in all. n is
/// infinite in f32 where i is -100, and h, which is below 1e-40 then, 0.
pub fn extreme_gates_give_numbers(version: &dyn Version, device: &Device) {
    let of = |kind: usize, t: usize, s: usize, x: f64| match kind {
        0 => x,
        1 if t == s / 2 => x,
        1 => -x,
        _ => x * [1.0, -1.0, -1.0, 1.0, -1.0][t * (kind + t / 7) % 5],
    };
    for s in [1, 2, 150] {
        for (i, f) in [(100.0, 100.0), (100.0, -100.0), (-100.0, 100.0), (-100.0, -100.0)] {
            for kinds in 0..16 {
                let (of_i, of_f) = (|t| of(kinds / 4, t, s, i), |t| of(kinds % 4, t, s, f));
                let inputs = with_gates(version, s, of_i, of_f);
                let what = format!("S={s} i={i} f={f} kinds={kinds}");
                assert_rows(version, device, &inputs, 1.6e-6, &what);
            }
        }
    }
}

/// i = -∞ at a position: as if it were not there, as padding wants it.
pub fn positions_may_be_shut_out(version: &dyn Version, device: &Device) {
    let shut = |t: usize| t % 3 == 1 || (64..128).contains(&t);
    let i = |t: usize| if shut(t) { f64::NEG_INFINITY } else { 0.5 };
    assert_rows(version, device, &with_gates(version, 150, i, |_| 3.0), 4e-6, "shut out");
}

/// Gates that let half through: a tile further on m is higher by 44, and its exponential is more than
/// a half holds. What is left at the end is a rounding of h.
pub fn halves_forget_as_floats_do(version: &dyn Version, device: &Device) {
    let bounds = [(DType::F32, 1.6e-6), (DType::F16, 5e-4), (DType::BF16, 4e-3)];
    for (dtype, bound) in bounds.into_iter().filter(|b| version.info().dtypes.contains(&b.0)) {
        let mut inputs = with_gates(version, 150, |t| (t as f64).sin(), |_| 0.0);
        for (_, tensor) in inputs.iter_mut().filter(|t| t.1.shape.len() == 4) {
            *tensor = Tensor::rounded(dtype, &tensor.shape, &tensor.values());
        }
        assert_rows(version, device, &inputs, bound, dtype.name());
    }
}

/// h (n + ε) is the same for every ε, in each row to a rounding of its largest element.
pub fn epsilon_is_added_to_the_normaliser(version: &dyn Version, device: &Device) {
    let inputs = with_gates(version, 70, |_| 0.0, |_| 3.0);
    let of = |eps: &str| {
        let options = Options::parse(&[eps], version.info()).unwrap();
        run(version, device, &inputs, &options).unwrap()
    };
    let (without, with) = (of("eps=0"), of("eps=2"));
    assert_eq!(with["n"], without["n"]);
    let rounding = rounding_of(version, "h", inputs["q"].dtype, &Options::default());
    let bound = (2.0 * rounding).max(1e-6); // both are rounded
    let (n, h, h0) = (with["n"].values(), with["h"].values(), without["h"].values());
    for (row, (h, h0)) in h.chunks(16).zip(h0.chunks(16)).enumerate() {
        let largest = h0.iter().fold(0f64, |a, h| a.max(h.abs()));
        for (h, h0) in h.iter().zip(h0) {
            let apart = (h * (n[row] + 2.0) - h0 * n[row]).abs();
            assert!(apart <= bound * largest * n[row], "row {row}");
        }
    }
}

/// What errors of the gradients are relative to: the largest element of each output, with n held
/// constant or not, and for df that of di, for df adds up what nearly cancels and is as large as di.
struct Scales(Vec<(&'static str, f64)>);

impl Scales {
    fn of(version: &dyn Version, inputs: &Tensors) -> Self {
        let largest = |all: &[f64]| all.iter().fold(0f64, |a, b| a.max(b.abs()));
        let all = normalizer_grads(version)
            .iter()
            .map(|n| version.reference(inputs, &with_normalizer_grad(version, n)));
        let scales = all.map(|outputs| outputs.iter().map(|o| (o.0, largest(&o.1))).collect());
        let larger = |a: Vec<(&'static str, f64)>, b: Vec<(&'static str, f64)>| {
            a.iter().zip(b).map(|(a, b)| (a.0, a.1.max(b.1))).collect()
        };
        Self(scales.reduce(larger).expect("one at least"))
    }

    fn get(&self, name: &str) -> f64 {
        let name = if name == "df" { "di" } else { name };
        self.0.iter().find(|s| s.0 == name).expect("every output").1
    }
}

/// The largest error of an element of each output, relative to its scale. What a float cannot hold
/// is right if it is infinite; below 1e-30 all is zero, for exp(−m) may be more than a float holds.
fn worst_of(
    version: &dyn Version,
    device: &Device,
    inputs: &Tensors,
    normalizer_grad: &str,
) -> Vec<(&'static str, f64)> {
    let options = with_normalizer_grad(version, normalizer_grad);
    let out = run(version, device, inputs, &options).unwrap();
    let scales = Scales::of(version, inputs);
    let of = |(name, expected): (&'static str, Vec<f64>)| {
        let scale = scales.get(name).max(1e-30);
        let error = |(got, expected): (f64, &f64)| {
            let overflows = expected.abs() > f64::from(f32::MAX);
            let is_right = overflows && got == expected.signum() * f64::INFINITY;
            if is_right { 0.0 } else { (got - expected).abs() / scale }
        };
        let worse = |a: f64, b: f64| if a.is_nan() || a > b { a } else { b };
        let got = out[name].values();
        (name, got.into_iter().zip(&expected).map(error).fold(0.0, |a, b| worse(b, a)))
    };
    version.reference(inputs, &options).into_iter().map(of).collect()
}

/// Of a gradient through n: how many times as far off as elsewhere. It is made of h; the bounds here are for an h that only its
/// last rounding puts off. Where weights are rounded as well, h has a wider bound, and they are as much wider.
fn error_of_h(version: &dyn Version, dtype: DType) -> f64 {
    let rounded_once = if dtype == DType::F16 { 5e-4 } else { 5e-3 };
    (rounding_of(version, "h", dtype, &Options::default()) / rounded_once).max(1.0)
}

/// The gradient through n as well. It takes from the other what is along h, all of it where a row
/// sees one key: what is left there is ε of it. So errors are relative to the gradient with n held
/// constant; of df to di, as everywhere here.
pub fn the_exact_gradient(version: &dyn Version, device: &Device) {
    let shapes = [[1, 1, 1, 16, 16], [2, 1, 67, 64, 32], [1, 2, 150, 16, 128], [1, 1, 65, 256, 48]];
    for (seed, shape) in shapes.into_iter().enumerate().filter(|s| has_room(version, s.1)) {
        for &dtype in version.info().dtypes {
            let problem = Problem { seed: seed as u64, ..Problem::new(sizes(shape), dtype) };
            let worst = worst_of(version, device, &version.inputs(&problem), "exact");
            let more = error_of_h(version, dtype);
            let bound = |name: &str| -> f64 {
                match (name, dtype) {
                    // The h of r_i is a rounded one.
                    ("df", DType::F16) => 1.8e-4,
                    ("df", DType::BF16) => 1.3e-3,
                    (_, DType::F16) => 1.3e-3,
                    (_, DType::BF16) => 2e-2,
                    _ => 1e-5,
                }
            };
            for (name, error) in worst.iter().filter(|w| w.0.starts_with('d')) {
                let rounding = rounding_of(version, name, dtype, &Options::default());
                let bound = (more * bound(name)).max(rounding);
                assert!(*error <= bound, "{shape:?} {dtype} {name}: {error:.2e}");
            }
        }
    }
}

/// f = −100 over the first part, +5 over the second: F is −100000 where what counts are differences
/// of 0.007. From sums in one float h would be wrong by half.
pub fn long_after_a_gate_shut(version: &dyn Version, device: &Device) {
    let device = &without_checks(device).unwrap();
    let s = 2048;
    for shut in [s / 2, 1001] {
        let mut inputs = inputs_of(version, [1, 1, s, 16, 16]);
        set_gate(&mut inputs, "f", |t| if t < shut { -100.0 } else { 5.0 });
        let dtype = inputs["q"].dtype;
        for (name, error) in worst_of(version, device, &inputs, "constant") {
            let bound = rounding_of(version, name, dtype, &Options::default()).max(1e-4);
            assert!(error <= bound, "{name}, shut to {shut}: {error:.2e}");
        }
    }
}

/// Every output a number, and right: but for what rows magnify whose l_i nearly cancels, as nothing
/// else holds n_i up where i is large.
fn assert_sane(version: &dyn Version, device: &Device, inputs: &Tensors, what: &str) {
    let dtype = inputs["q"].dtype;
    let bound = match dtype {
        DType::F32 => 1e-3,
        DType::F16 => 4e-3,
        _ => 1.5e-2,
    };
    for through in normalizer_grads(version) {
        let bound = if *through == "exact" { bound * error_of_h(version, dtype) } else { bound };
        for (name, error) in worst_of(version, device, inputs, through) {
            assert!(error <= bound, "{what}, {through}, {name}: {error:.2e}");
        }
    }
}

/// i and f of ±100 in every type, and positions shut out.
pub fn extreme_gates_give_gradients(version: &dyn Version, device: &Device) {
    // As padding is: among them all of a tile.
    let mut inputs = inputs_of(version, [1, 1, 200, 16, 16]);
    set_gate(&mut inputs, "i", |t| if (1..150).contains(&t) { f64::NEG_INFINITY } else { 0.0 });
    assert_sane(version, device, &inputs, "padding");
    let cases = [(DType::F32, 70), (DType::F32, 1), (DType::F16, 9), (DType::BF16, 33)];
    for (dtype, s) in cases.into_iter().filter(|c| version.info().dtypes.contains(&c.0)) {
        for i in [-100.0, 0.0, 100.0] {
            for f in [-100.0, 0.0, 100.0] {
                let mut inputs = version.inputs(&Problem::new(sizes([1, 1, s, 16, 16]), dtype));
                set_gate(&mut inputs, "i", |_| i);
                set_gate(&mut inputs, "f", |_| f);
                assert_sane(version, device, &inputs, &format!("{dtype} S={s} i={i} f={f}"));
                set_gate(&mut inputs, "i", |t| if t % 3 == 0 { i } else { -i });
                set_gate(&mut inputs, "f", |t| if t % 5 == 0 { -f } else { f });
                assert_sane(version, device, &inputs, &format!("{dtype} S={s} i=±{i} f=±{f}"));
            }
        }
    }
}

/// All ones, with gates that are the same everywhere; and one position in all that is written.
pub fn all_equal_and_one_alone(version: &dyn Version, device: &Device) {
    let [s, dh] = [70, 16];
    for (gate, memory) in [(0f32, None), (3.0, None), (100.0, Some(0)), (100.0, Some(66))] {
        let all = || ones(&[1, 1, s, dh]);
        let one_hot = |n: usize| f32::from(u8::from(n.is_multiple_of(dh + 1)));
        let hot = Tensor::new(&[1, 1, s, dh], &(0..s * dh).map(one_hot).collect::<Vec<_>>());
        let row = Tensor::new(&[1, 1, s], &vec![gate; s]);
        let k = if memory.is_some() { hot } else { all() };
        let mut inputs = tensors([
            ("q", all()),
            ("k", k),
            ("v", all()),
            ("dh", all()),
            ("i", row.clone()),
            ("f", row),
        ]);
        if let Some(only) = memory {
            set_gate(&mut inputs, "i", |t| if t == only { 100.0 } else { -100.0 });
        }
        let inputs = in_type(inputs, dtype_of(version));
        assert_sane(version, device, &inputs, &format!("gates {gate}, memory {memory:?}"));
    }
}

/// df_0 is zero because Σ q·dq = Σ k·dk = Σ di, which nothing enforces. And it is written as zero.
pub fn the_gates_gradients_add_up(version: &dyn Version, device: &Device) {
    for normalizer_grad in normalizer_grads(version) {
        let inputs = inputs_of(version, [1, 1, 150, 32, 64]);
        let out =
            run(version, device, &inputs, &with_normalizer_grad(version, normalizer_grad)).unwrap();
        let (q, dq, di) = (inputs["q"].values(), out["dq"].values(), out["di"].values());
        let rows: f64 = q.iter().zip(&dq).map(|(q, dq)| q * dq).sum();
        let columns: f64 = di.iter().sum();
        let size: f64 = di.iter().map(|v| v.abs()).sum();
        let options = Options::default();
        let bound = rounding_of(version, "dq", inputs["q"].dtype, &options).max(4e-7);
        let close = (rows - columns).abs() <= bound * size;
        assert!(close, "{normalizer_grad}: {rows} {columns}, of {size}");
        assert_eq!(out["df"].values()[0], 0.0);
    }
}
