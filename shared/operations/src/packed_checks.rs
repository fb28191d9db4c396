//! What must hold of packed sequences.

use lab_device::{DType, Device};
use lab_families::gdn;
use lab_families::vlstm::{cu_seqlens, packed_sizes};
use lab_harness::{Options, Plan, Problem, Tensor, Version};

use crate::check_data::{inputs, of, relative};
use crate::choose::needed_arch;
use crate::{GatedDelta, GatedDeltaSizes, GatedDeltaUpstream, NormalizerGrad, Sizes, Vlstm};

static BOTH: &dyn Version = &vlstm_fwbw_v4::PACKED;

/// Of unlike lengths, one of none.
const LENGTHS: [usize; 4] = [33, 0, 1, 70];

const SIZES: Sizes = Sizes { batch: 1, heads: 2, positions: 104, keys: 16, values: 32 };

/// Two layers, the second of which reads the first one's h; each sequence begins with a state of its own, and its last state is
/// wanted. Against the reference of each sequence alone.
pub(crate) fn packed_sequences_are_right(device: &Device) {
    let (dtype, bound) = (DType::BF16, 2e-2);
    if needed_arch(BOTH, &vlstm_fwbw_v4::STAGE, device).is_some() {
        return;
    }
    let Sizes { heads, positions, keys, values, .. } = SIZES;
    let n = LENGTHS.len();
    let sizes = packed_sizes([n, heads, positions, keys, values]);
    let mut all = BOTH.inputs(&Problem::new(sizes, dtype));
    all.insert("cu_seqlens".into(), cu_seqlens(&LENGTHS));
    let state = |shape: &[usize], of: &dyn Fn(usize) -> f64| {
        let values: Vec<f64> = (0..shape.iter().product()).map(of).collect();
        Tensor::rounded(DType::F32, shape, &values)
    };
    let matrix = state(&[n, heads, keys, values], &|at| (at as f64).sin());
    all.insert("C0".into(), matrix);
    all.insert("n0".into(), state(&[n, heads, keys], &|at| 2.0 + (at as f64).cos()));
    all.insert("m0".into(), state(&[n, heads], &|at| 0.1 * at as f64));

    let mut plan = Plan::new(device);
    let [q, k, v, i, f, dh] = inputs(&mut plan, &all, ["q", "k", "v", "i", "f", "dh"]);
    let [ends] = inputs(&mut plan, &all, ["cu_seqlens"]);
    let layer = |v| Vlstm {
        cu_seqlens: Some(ends),
        normalizer_grad: NormalizerGrad::Exact,
        ..Vlstm::new(dtype, SIZES, [q, k, v], [i, f])
    };
    let first = Vlstm {
        state: Some(inputs(&mut plan, &all, ["C0", "n0", "m0"])),
        last_state: true,
        ..layer(v)
    };
    let (of_first, saved_first) = first.add_forward_saving(&mut plan).unwrap();
    let alone = first.add_forward(&mut plan).unwrap();
    let second = layer(of_first.h);
    let (of_second, saved_second) = second.add_forward_saving(&mut plan).unwrap();
    let by_second = second.add_backward(&mut plan, &saved_second, dh).unwrap();
    let by_first = first.add_backward(&mut plan, &saved_first, by_second.v).unwrap();
    let [c, m] = [0, 2].map(|n| of_first.state.unwrap()[n]);

    let reference = |all: &_, options: &[&str]| {
        let options = Options::parse(options, BOTH.info()).unwrap();
        BOTH.reference(all, &options)
    };
    let exact = "normalizer_grad=exact";
    let mut of_inputs = all.clone();
    let expected = reference(&of_inputs, &["last_state=yes", exact]);
    let [h, last_c, last_m] = ["h", "CN", "mN"].map(|name| of(&expected, name));
    let rounded = |values: &[f64]| Tensor::rounded(dtype, &all["v"].shape, values);
    of_inputs.insert("v".into(), rounded(&h));
    ["C0", "n0", "m0"].iter().for_each(|name| drop(of_inputs.remove(*name)));
    let second = reference(&of_inputs, &[exact]);
    let mut of_inputs = all.clone();
    of_inputs.insert("dh".into(), rounded(&of(&second, "dv")));
    let first = reference(&of_inputs, &["last_state=yes", exact]);
    let found = [
        ("h of the first", of_first.h, h.clone()),
        ("h alone", alone.h, h),
        ("CN", c, last_c),
        ("h of the second", of_second.h, of(&second, "h")),
        ("dq of the second", by_second.q, of(&second, "dq")),
        ("dq", by_first.q, of(&first, "dq")),
        ("dk", by_first.k, of(&first, "dk")),
        ("dv", by_first.v, of(&first, "dv")),
        ("di", by_first.i, of(&first, "di")),
        ("df", by_first.f, of(&first, "df")),
    ];
    found.iter().for_each(|(_, slot, _)| plan.keep(*slot));
    plan.keep(m);
    let mut run = plan.bind().upload_inputs(&all).unwrap().finish().unwrap();
    run.run().unwrap();
    for (name, slot, expected) in found {
        let error = relative(&run.read(slot).unwrap(), &expected);
        assert!(error <= bound, "{name}: {error}");
    }
    for (found, expected) in run.read(m).unwrap().values().into_iter().zip(last_m) {
        assert!((found - expected).abs() <= 1e-5 * expected.abs().max(1.0), "mN: {found}");
    }
}

/// The gated delta rule, each sequence behind a state of its own, with the gradient of its last one; also that without gradients.
pub(crate) fn packed_gated_delta_is_right(device: &Device) {
    static OF_DELTA: &dyn Version = &gdn_fwbw::PACKED;
    let forward = needed_arch(&gdn_fw::PACKED, &gdn_fw::STAGE, device);
    if forward.or(needed_arch(OF_DELTA, &gdn_fwbw::STAGE, device)).is_some() {
        return;
    }
    let (dtype, bound) = (DType::BF16, 2e-2);
    let sizes = GatedDeltaSizes {
        batch: 1,
        heads: 2,
        shared_heads: 1,
        positions: LENGTHS.iter().sum(),
        keys: 16,
        values: 32,
    };
    let (n, t) = (LENGTHS.len(), sizes.positions);
    let dims = gdn::packed_sizes([n, sizes.heads, sizes.shared_heads, t, sizes.keys, sizes.values]);
    let mut all = OF_DELTA.inputs(&Problem::new(dims, dtype));
    all.insert("cu_seqlens".into(), cu_seqlens(&LENGTHS));
    let shape = [n, sizes.heads, sizes.keys, sizes.values];
    for (name, step) in [("C0", 1.7), ("dCN", 1.3)] {
        let values = (0..shape.iter().product()).map(|at: usize| (step * at as f64).sin());
        let values: Vec<f64> = values.collect();
        all.insert(name.into(), Tensor::rounded(DType::F32, &shape, &values));
    }
    let mut plan = Plan::new(device);
    let [q, k, v, g, beta, dh] = inputs(&mut plan, &all, ["q", "k", "v", "g", "beta", "dh"]);
    let [ends, first, of_last] = inputs(&mut plan, &all, ["cu_seqlens", "C0", "dCN"]);
    let delta = GatedDelta {
        cu_seqlens: Some(ends),
        state: Some(first),
        last_state: true,
        state_gradients: true,
        ..GatedDelta::new(dtype, sizes, [q, k, v], [g, beta])
    };
    let alone = delta.add_forward(&mut plan).unwrap();
    let (both, saved) = delta.add_forward_saving(&mut plan).unwrap();
    let from = GatedDeltaUpstream { dh, state: Some(of_last) };
    let by = delta.add_backward(&mut plan, &saved, from).unwrap();
    let found = [
        ("h", alone.h),
        ("CN", alone.state.expect("it is wanted")),
        ("h", both.h),
        ("CN", both.state.expect("it is wanted")),
        ("dq", by.q),
        ("dk", by.k),
        ("dv", by.v),
        ("dg", by.g),
        ("dbeta", by.beta),
        ("dC0", by.state.expect("it is wanted")),
    ];
    found.iter().for_each(|(_, slot)| plan.keep(*slot));
    let mut run = plan.bind().upload_inputs(&all).unwrap().finish().unwrap();
    run.run().unwrap();
    let options = Options::parse(&["last_state=yes", "state_grad=yes"], OF_DELTA.info()).unwrap();
    let expected = OF_DELTA.reference(&all, &options);
    for (name, slot) in found {
        let error = relative(&run.read(slot).unwrap(), &of(&expected, name));
        assert!(error <= bound, "{name}: {error}");
    }
}
