//! What else must hold of the walks.

use lab_device::{DType, Device};
use lab_families::gdn::packed_checks::packed_sequences_are_each_alone;
use lab_families::qkv::sizes;
use lab_families::vlstm;
use lab_families::vlstm::f16_checks::{
    infinite_in_f16_is_no_neighbour, small_input_gates_cost_no_digits,
};
use lab_harness::suite::{Check, VersionCheck};
use lab_harness::tensor::tensors;
use lab_harness::{
    Options, Plan, Prepared, Problem, Tensor, Tensors, Version, arguments, compare, run,
    version_checks,
};

use crate::{DECAY, PACKED_DECAY, PACKED_SIGMOID, SEGMENTS, SIGMOID, kernels};

// Segments of the version alone that has them: no other's kernels are to blame where they differ.
pub(crate) static VERSION_CHECKS: &[VersionCheck] = version_checks![
    segments_do_not_matter if has_segments in ManySizes,
    input_gates_of_a_million if takes_batches,
    a_heavy_state_is_remembered if takes_states,
    states_go_over_stretches if is_wide in ManySizes,
    a_state_beyond_f16_is_right if takes_states,
    infinite_in_f16_is_no_neighbour if takes_batches,
    small_input_gates_cost_no_digits if takes_batches,
];

/// Of the vLSTM, whose family these checks are of.
fn takes_batches(version: &dyn Version) -> bool {
    vlstm::packed_sequences(&version.info().small()).is_none() && version.info().takes("m0")
}

fn takes_states(version: &dyn Version) -> bool {
    takes_batches(version) && version.info().settings.iter().any(|s| s.name == "state_grad")
}

fn is_wide(version: &dyn Version) -> bool {
    version.info().name == crate::WIDE.info().name
}

fn has_segments(version: &dyn Version) -> bool {
    version.info().settings.iter().any(|setting| setting.name == SEGMENTS.name)
}

pub(crate) static CHECKS: &[Check] = &[
    Check::new(
        "what_two_borders_disagree_in_is_shared_out",
        what_two_borders_disagree_in_is_shared_out,
    ),
    Check::new("packed_sequences_are_each_alone", |device| {
        packed_sequences_are_each_alone(&PACKED_DECAY, &DECAY, device);
        packed_sequences_are_each_alone(&PACKED_SIGMOID, &SIGMOID, device);
    }),
];

/// The launch for df alone: two stretches, no dots between, and ⟨C, dC⟩ = 1 at the border. So G goes up from 0 to 1 in the
/// first stretch, and down again in the second, in equal steps. No whole problem of a test is long enough for roundings to
/// show what this corrects.
fn what_two_borders_disagree_in_is_shared_out(device: &Device) {
    const STRETCH: usize = 256;
    let s = 2 * STRETCH - 56; // the last one is shorter
    let kernel = device.kernel(&kernels::FORGET, "vlstm_anchored_forget<128>").unwrap();
    let mut plan = Plan::new(device);
    let [f, q_dq, k_dk] = ["f", "q_dq", "k_dk"].map(|name| plan.input(name, DType::F32, &[1, s]));
    let products = plan.input("products", DType::F32, &[3, 4]);
    let [di, df] = ["di", "df"].map(|name| plan.output(name, DType::F32, &[1, s]));
    let none = plan.scratch(DType::F32, 1);
    let cu_seqlens = plan.scratch(DType::I32, 1);
    let arguments = arguments![
        f, q_dq, k_dk, products, saved_n: none, saved_dn: none, n0: none, dn0: none, nN: none,
        dnN: none, di, df, cu_seqlens, packed: false, through_n: false, given: false,
        given_last: false, heads: 1, sequences: 1, stretches: 2, anchors: 1, parts_of_dot: 4,
        slices: 1, keys: 16, dhqk: 16, S: s, i: none, weighed: true
    ];
    plan.launch(&kernel, kernel.grid([1, 1, 1]).unwrap(), arguments).unwrap();
    let zeros = || Tensor::new(&[1, s], &vec![0f32; s]);
    let mut of_borders = [0f32; 12];
    of_borders[4..8].fill(0.25);
    let inputs = tensors([
        ("f", zeros()),
        ("q_dq", zeros()),
        ("k_dk", zeros()),
        ("products", Tensor::new(&[3, 4], &of_borders)),
    ]);
    let mut bound = plan.bind().upload_inputs(&inputs).unwrap().finish().unwrap();
    bound.launch().unwrap();
    let df = bound.outputs().unwrap()["df"].values();
    for (t, df) in df.iter().enumerate() {
        let g = match t.checked_sub(STRETCH) {
            None => t as f64 / STRETCH as f64,
            Some(behind) => 1.0 - behind as f64 / (s - STRETCH) as f64,
        };
        assert!((df - g / 2.0).abs() < 1e-6, "{t}: {df}, expected {}", g / 2.0); // sigmoid(-0) = 1 / 2
    }
}

/// However many segments, with the state handed on between them and what goes through the normaliser: the same to the roundings
/// of halves. Of each shape of a walk, and of so many chunks that a place
/// is claimed for the third time.
fn segments_do_not_matter(version: &dyn Version, device: &Device) {
    let agree = |shape: [usize; 5], dtype, segments: usize| {
        let mut inputs = version.inputs(&Problem::new(sizes(shape), dtype));
        let mut asked = vec![format!("segments={segments}")];
        if segments > 1 {
            vlstm::set_state(&mut inputs, -2.5);
            vlstm::set_last_gradient(&mut inputs);
            asked.extend(["normalizer_grad=exact", "state_grad=yes"].map(str::to_owned));
        }
        let options = Options::parse(&asked, version.info()).unwrap();
        let out = run(version, device, &inputs, &options).unwrap();
        for c in compare(version, &inputs, &out, &options, dtype) {
            assert!(c.passed(), "{segments} {dtype} {}", c.complaint());
        }
    };
    agree([1, 1, 300, 32, 48], DType::F16, 1);
    for (dtype, segments) in [(DType::BF16, 2), (DType::F16, 4)] {
        agree([1, 2, 800, 32, 48], dtype, segments);
    }
    agree([1, 1, 700, 80, 128], DType::BF16, 3);
    agree([1, 1, 560, 128, 208], DType::F16, 2);
    let inputs = version.inputs(&Problem::new(sizes([1, 1, 300, 16, 16]), DType::BF16));
    let options = Options::parse(&["segments=3"], version.info()).unwrap();
    let error = run(version, device, &inputs, &options).unwrap_err().to_string();
    let expected = "at most 2: a segment has 4 chunks of 64, at least";
    assert_eq!(error, format!("--set segments: expected {expected}, got 3"));
}

/// Input gates of a million: m is as large, and a float next to it 0.06 away. Only where m goes out is it rounded: behind any
/// other chunk the state would be off by 3 %. No row cancels, for nothing holds n up here.
fn input_gates_of_a_million(version: &dyn Version, device: &Device) {
    let (s, dtype) = (330, version.info().dtypes[0]);
    let mut inputs = version.inputs(&Problem::new(sizes([1, 1, s, 16, 16]), dtype));
    for name in ["q", "k"] {
        let tensor = inputs.get_mut(name).expect("an input");
        let values: Vec<f64> = tensor.values().iter().map(|x| x.abs()).collect();
        *tensor = Tensor::rounded(dtype, &tensor.shape, &values);
    }
    let i: Vec<f64> = (0..s).map(|t| 1e6 + (t * 5 % 8) as f64 / 8.0).collect();
    for (name, values) in [("i", i), ("f", vec![5.0; s])] {
        inputs.insert(name.to_owned(), Tensor::rounded(DType::F32, &[1, 1, s], &values));
    }
    assert_right(version, device, &inputs, &[], dtype);
}

/// A state of m0 = 3, which no input gate of the first chunks comes up to: m is m0 and the sum of what they forget.
fn a_heavy_state_is_remembered(version: &dyn Version, device: &Device) {
    let (s, dtype) = (200, version.info().dtypes[0]);
    let mut inputs = version.inputs(&Problem::new(sizes([1, 1, s, 16, 16]), dtype));
    vlstm::set_state(&mut inputs, 3.0);
    for (name, value) in [("i", -4.0), ("f", 5.0)] {
        let tensor = Tensor::rounded(DType::F32, &[1, 1, s], &vec![value; s]);
        inputs.insert(name.to_owned(), tensor);
    }
    assert_right(version, device, &inputs, &[], dtype);
}

/// The exact gradient, with a state and the gradient of the last one given, over whole stretches and a bit: what borders keep
/// of n and of its gradient, and the states at both ends in their places among those between.
fn states_go_over_stretches(version: &dyn Version, device: &Device) {
    for (dtype, s, gradient) in
        [(DType::BF16, 530, true), (DType::F16, 256, true), (DType::F16, 270, false)]
    {
        let mut inputs = version.inputs(&Problem::new(sizes([1, 2, s, 80, 144]), dtype));
        vlstm::set_state(&mut inputs, -2.5);
        if gradient {
            vlstm::set_last_gradient(&mut inputs);
        }
        assert_right(version, device, &inputs, &["normalizer_grad=exact", "state_grad=yes"], dtype);
    }
}

/// Keys and values of one sign that nothing forgets: an element of C comes to more than 65504, the largest of f16, in some
/// columns of V, and to little in others.
fn a_state_beyond_f16_is_right(version: &dyn Version, device: &Device) {
    let (s, columns) = (600, 128);
    let mut inputs = version.inputs(&Problem::new(sizes([1, 1, s, 16, columns]), DType::F16));
    let mut set = |name: &str, of: &dyn Fn(usize, f64) -> f64| {
        let tensor = inputs.get_mut(name).expect("an input");
        let values: Vec<f64> =
            tensor.values().iter().enumerate().map(|(at, x)| of(at, *x)).collect();
        *tensor = Tensor::rounded(tensor.dtype, &tensor.shape, &values);
    };
    set("k", &|_, x| 16.0 + x.abs());
    set("v", &|at, x| (16.0 + x.abs()) * if at % columns < columns / 2 { 1.0 } else { 1.0 / 64.0 });
    set("q", &|_, x| x.abs() / 64.0);
    set("i", &|_, _| 0.0);
    set("f", &|_, _| 12.0);
    assert_right(version, device, &inputs, &[], DType::F16);
}

fn assert_right(
    version: &dyn Version,
    device: &Device,
    inputs: &Tensors,
    set: &[&str],
    dtype: DType,
) {
    let options = Options::parse(set, version.info()).unwrap();
    let out = run(version, device, inputs, &options).unwrap();
    for c in compare(version, inputs, &out, &options, dtype) {
        assert!(c.passed(), "{dtype} {}", c.complaint());
    }
}
