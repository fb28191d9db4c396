//! What must hold of every version.

use lab_device::{DType, Device, DeviceKind};

use super::{CAUSAL, sizes};
use crate::checking::assert_same_in_any_order_and_launch;
use crate::qkv::checks::{dtype_of, outputs_of};
use lab_harness::suite::{VersionCheck, without_checks};
use lab_harness::tensor::tensors;
use lab_harness::{Options, Problem, Tensor, Tensors, Version, compare, run, version_checks};

/// Of both families.
pub(super) static OF_EACH: &[VersionCheck] = version_checks![
    all_pairs_are_right,
    large_scores_are_right in Large,
    large_problems in Large,
    heads_of_a_group_share_keys_and_values,
    what_comes_later_does_not_matter,
    nan_stays_in_its_head,
    any_schedule_gives_the_same in Ends,
    heads_that_do_not_divide_are_refused,
];

fn inputs_of(version: &dyn Version, shape: [usize; 5]) -> Tensors {
    version.inputs(&Problem::new(sizes(shape), dtype_of(version)))
}

fn is_backward(version: &dyn Version) -> bool {
    version.info().takes("do")
}

/// These inputs, of this type, give what the reference says.
fn assert_inputs_right(
    version: &dyn Version,
    device: &Device,
    dtype: DType,
    inputs: &Tensors,
    options: &Options,
) {
    let outputs = run(version, device, inputs, options).unwrap();
    for comparison in compare(version, inputs, &outputs, options, dtype) {
        assert!(comparison.passed(), "{comparison:?}");
    }
}

fn all_pairs_are_right(version: &dyn Version, device: &Device) {
    let options = Options::parse(&[format!("{}=no", CAUSAL.name)], version.info()).unwrap();
    for shape in [[1, 1, 1, 1, 16], [1, 4, 2, 65, 48], [2, 2, 2, 130, 64]] {
        for &dtype in version.info().dtypes {
            let inputs = version.inputs(&Problem::new(sizes(shape), dtype));
            assert_inputs_right(version, device, dtype, &inputs, &options);
        }
    }
}

/// A row then gives nearly all weight to one position, and most of its exponentials underflow.
fn large_scores_are_right(version: &dyn Version, device: &Device) {
    for &dtype in version.info().dtypes {
        let mut inputs = version.inputs(&Problem::new(sizes([1, 2, 1, 140, 64]), dtype));
        let q = &inputs["q"];
        let values: Vec<f64> = q.values().iter().map(|x| 8.0 * x).collect();
        inputs.insert("q".to_owned(), Tensor::rounded(dtype, &q.shape.clone(), &values));
        assert_inputs_right(version, device, dtype, &inputs, &Options::default());
    }
}

/// On the emulator without its checks: they are too large to be checked.
fn large_problems(version: &dyn Version, device: &Device) {
    let shapes = match (device.kind(), is_backward(version)) {
        (DeviceKind::Emulator, false) => [[1, 2, 1, 500, 64], [1, 1, 1, 300, 112]],
        (DeviceKind::Emulator, true) => [[1, 2, 1, 260, 64], [1, 1, 1, 200, 112]],
        (DeviceKind::Cuda, _) => [[2, 8, 2, 2000, 64], [1, 4, 4, 1000, 112]],
    };
    let device = &without_checks(device).unwrap();
    for shape in shapes {
        for &dtype in version.info().dtypes {
            let inputs = version.inputs(&Problem::new(sizes(shape), dtype));
            assert_inputs_right(version, device, dtype, &inputs, &Options::default());
        }
    }
}

/// The same bits as with a copy of its keys and values for each head; the gradients by them are the sums over the copies.
fn heads_of_a_group_share_keys_and_values(version: &dyn Version, device: &Device) {
    let [b, nh, nkv, s, d] = [2, 6, 2, 70, 32];
    let inputs = inputs_of(version, [b, nh, nkv, s, d]);
    let copied = |tensor: &Tensor| {
        let values = tensor.values();
        let heads = values.chunks(s * d).flat_map(|head| std::iter::repeat_n(head, nh / nkv));
        Tensor::rounded(tensor.dtype, &[b, nh, s, d], &heads.flatten().copied().collect::<Vec<_>>())
    };
    let mut all = inputs.clone();
    for name in ["k", "v"] {
        all.insert(name.to_owned(), copied(&inputs[name]));
    }
    let (shared, apart) = (outputs_of(version, device, &inputs), outputs_of(version, device, &all));
    for name in ["o", "lse", "dq"].into_iter().filter(|&name| shared.contains_key(name)) {
        assert!(shared[name] == apart[name], "{name}");
    }
}

fn what_comes_later_does_not_matter(version: &dyn Version, device: &Device) {
    let [s, d] = [150, 16];
    let inputs = inputs_of(version, [1, 1, 1, s, d]);
    let before = outputs_of(version, device, &inputs);
    // The rows of some inputs from `rows.start` to `rows.end` are others.
    let changed = |which: &dyn Fn(&str) -> bool, rows: std::ops::Range<usize>| {
        let mut changed = inputs.clone();
        for (_, tensor) in changed.iter_mut().filter(|t| which(t.0)) {
            let mut values = tensor.values();
            values[rows.start * d..rows.end * d].iter_mut().for_each(|v| *v = 3.0 - 2.0 * *v);
            *tensor = Tensor::rounded(tensor.dtype, &tensor.shape, &values);
        }
        outputs_of(version, device, &changed)
    };
    for t in [1, 63, 64, 149] {
        let after = changed(&|name| name != "do", t..s);
        for name in ["o", "lse"] {
            let columns = before[name].len() / s;
            let (before, after) = (before[name].values(), after[name].values());
            assert_eq!(after[..t * columns], before[..t * columns], "{name} before {t}");
            let row = t * columns..(t + 1) * columns;
            assert_ne!(after[row.clone()], before[row], "{name} of {t}");
        }
        if is_backward(version) {
            // What earlier rows hand back reaches no later position.
            let after = changed(&|name| name == "do", 0..t);
            for name in ["dq", "dk", "dv"] {
                let (before, after) = (before[name].values(), after[name].values());
                assert_eq!(after[t * d..], before[t * d..], "{name} from {t}");
                // A row that sees itself alone has a weight of 1, whatever its score: its slopes are 0, or what rounding leaves.
                if name == "dv" || t > 1 {
                    assert_ne!(after[..t * d], before[..t * d], "{name} before {t}");
                }
            }
        }
    }
}

/// A NaN of one head of q, or of a group's keys or values, reaches no other group; and it reaches every row that sees it.
fn nan_stays_in_its_head(version: &dyn Version, device: &Device) {
    let [b, nh, nkv, s, d] = [1, 4, 2, 70, 16];
    let inputs = inputs_of(version, [b, nh, nkv, s, d]);
    let before = outputs_of(version, device, &inputs);
    let (head, at) = (s * d, 40 * d + 3);
    for name in inputs.keys() {
        let shares = if ["k", "v"].contains(&name.as_str()) { nh / nkv } else { 1 };
        let mut changed = inputs.clone();
        let mut values = inputs[name].values();
        values[head + at] = f64::NAN; // of the second head
        changed.insert(
            name.clone(),
            Tensor::rounded(inputs[name].dtype, &inputs[name].shape, &values),
        );
        let after = outputs_of(version, device, &changed);
        let touched = shares..2 * shares;
        for (output, own) in [("o", head), ("lse", s), ("dq", head)] {
            let (Some(before), Some(after)) = (before.get(output), after.get(output)) else {
                continue;
            };
            let (before, after) = (before.values(), after.values());
            for n in (0..nh).filter(|n| !touched.contains(n)) {
                let of_head = n * own..(n + 1) * own;
                assert_eq!(after[of_head.clone()], before[of_head], "{output} of head {n}");
            }
            let seen = touched.start * own + 69 * (own / s);
            let reaches = match (name.as_str(), output) {
                ("q", _) => (touched.start * own + 40 * (own / s)).into(),
                ("k", _) | ("v", "o" | "dq") => Some(seen),
                ("do", "dq") => Some(touched.start * own + 40 * (own / s)),
                _ => None,
            };
            if let Some(place) = reaches {
                let row = &after[place..place + own / s];
                assert!(row.iter().any(|x| x.is_nan()), "{output}, of a NaN in {name}: {row:?}");
            }
        }
    }
}

/// Bit for bit, in whatever order blocks and threads run, and from launch to launch.
fn any_schedule_gives_the_same(version: &dyn Version, device: &Device) {
    let inputs = inputs_of(version, [1, 4, 2, 130, 32]);
    assert_same_in_any_order_and_launch(version, device, &inputs, &Options::default());
}

fn heads_that_do_not_divide_are_refused(version: &dyn Version, device: &Device) {
    let ones = |shape: &[usize]| {
        Tensor::rounded(dtype_of(version), shape, &vec![1.0; shape.iter().product()])
    };
    let mut inputs = tensors([
        ("q", ones(&[1, 3, 9, 16])),
        ("k", ones(&[1, 2, 9, 16])),
        ("v", ones(&[1, 2, 9, 16])),
    ]);
    if is_backward(version) {
        inputs.insert("do".to_owned(), ones(&[1, 3, 9, 16]));
    }
    let refused = run(version, device, &inputs, &Options::default()).unwrap_err().to_string();
    assert_eq!(refused, "NKV: expected a divisor of NH, 3, got 2");
    inputs.insert("v".to_owned(), ones(&[1, 1, 9, 16]));
    let refused = run(version, device, &inputs, &Options::default()).unwrap_err().to_string();
    assert_eq!(refused.split(", got").next(), Some("tensor 'v': expected NKV=2 as 'k'"));
}
