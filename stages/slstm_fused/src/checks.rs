//! What must hold beside the error bounds.

use lab_device::{DType, Device, DeviceKind};
use lab_families::slstm::{INPUTS, OUTPUTS, sizes};
use lab_harness::suite::schedules;
use lab_harness::suite::{VersionCheck, check, without_checks};
use lab_harness::{
    Comparison, Options, Problem, Tensor, Tensors, Version, compare, run, version_checks,
};

pub(crate) static OF_EACH: &[VersionCheck] = version_checks![
    a_state_that_is_left_out_is_one_of_zeros,
    a_sequence_in_parts_is_the_same,
    heads_and_rows_do_not_meet,
    nan_stays_in_its_head_and_row,
    extreme_gates_are_right in Ends,
    large_problems in Large,
    results_do_not_change_from_run_to_run,
    any_schedule_gives_the_same in Ends,
    what_does_not_fit_is_refused,
];

fn dtype_of(version: &dyn Version) -> DType {
    version.info().dtypes[0]
}

/// Random inputs of these B, T, NH and DH.
fn inputs_of(version: &dyn Version, shape: [usize; 4]) -> Tensors {
    version.inputs(&Problem::new(sizes(shape), dtype_of(version)))
}

fn outputs_of(version: &dyn Version, device: &Device, inputs: &Tensors) -> Tensors {
    run(version, device, inputs, &Options::default()).unwrap()
}

/// The same with values that `change` makes of an input's.
fn changed(tensor: &Tensor, change: impl FnOnce(&mut Vec<f64>)) -> Tensor {
    let mut values = tensor.values();
    change(&mut values);
    Tensor::rounded(tensor.dtype, &tensor.shape, &values)
}

fn a_state_that_is_left_out_is_one_of_zeros(version: &dyn Version, device: &Device) {
    let inputs = inputs_of(version, [3, 5, 2, 20]);
    for group in ["state", "last state's gradient"] {
        let (mut without, mut zeros) = (inputs.clone(), inputs.clone());
        for input in version.info().inputs.iter().filter(|i| i.group == Some(group)) {
            without.remove(input.name);
            let zero = |values: &mut Vec<f64>| values.fill(0.0);
            // Without a normaliser there is no state, whatever its exponent.
            if input.name != "m0" {
                zeros.insert(input.name.into(), changed(&inputs[input.name], zero));
            }
        }
        let [without, zeros] = [&without, &zeros].map(|all| outputs_of(version, device, all));
        assert_eq!(without, zeros, "{group}");
    }
}

/// Step by step, each from the hn, cn, nn and mn of the one before.
fn a_sequence_in_parts_is_the_same(version: &dyn Version, device: &Device) {
    let [b, t, nh, dh] = [3, 6, 2, 20];
    let inputs = inputs_of(version, [b, t, nh, dh]);
    let whole = outputs_of(version, device, &inputs);
    let columns = |name: &str| inputs[name].len() / t;
    let part_of = |name: &str, step: usize| {
        let all = &inputs[name];
        let own = &all.values()[step * columns(name)..][..columns(name)];
        let shape: Vec<usize> = [1].into_iter().chain(all.shape[1..].iter().copied()).collect();
        Tensor::rounded(all.dtype, &shape, own)
    };
    let (mut own, mut y) = (inputs.clone(), Vec::new());
    for step in 0..t {
        for name in ["wx", "dy"].into_iter().filter(|name| inputs.contains_key(*name)) {
            own.insert(name.into(), part_of(name, step));
        }
        let out = outputs_of(version, device, &own);
        y.extend(out["y"].values());
        for (before, behind) in ["h0", "c0", "n0", "m0"].into_iter().zip(&OUTPUTS[1..]) {
            own.insert(before.into(), out[*behind].clone());
        }
    }
    assert_eq!(y, whole["y"].values());
    for (before, behind) in ["h0", "c0", "n0", "m0"].into_iter().zip(&OUTPUTS[1..]) {
        assert_eq!(own[before], whole[*behind], "{behind}");
    }
}

/// The index of an axis of an input, or of an output, which has an input's axes or a state's.
fn axis_of(name: &str, axis: &str) -> Option<usize> {
    let of = match name {
        "y" => "dy",
        "dwx" | "dr" | "db" => &name[1..],
        "wx" | "r" | "b" | "dy" => name,
        _ => "h0",
    };
    let input = INPUTS.iter().find(|i| i.name == of).expect("a tensor of the family");
    input.axes.iter().position(|a| *a == axis)
}

/// What a tensor has at one place of one of its axes; all of it, where it has no such axis.
fn at(name: &str, tensor: &Tensor, axis: &str, place: usize) -> Tensor {
    let Some(axis) = axis_of(name, axis) else { return tensor.clone() };
    let (size, inner) = (tensor.shape[axis], tensor.shape[axis + 1..].iter().product::<usize>());
    let values = tensor.values();
    let own: Vec<f64> = values.chunks(inner).skip(place).step_by(size).flatten().copied().collect();
    let mut shape = tensor.shape.clone();
    shape[axis] = 1;
    Tensor::rounded(tensor.dtype, &shape, &own)
}

/// Each alone gives the same as among others, bit for bit.
fn heads_and_rows_do_not_meet(version: &dyn Version, device: &Device) {
    // More rows than a cluster has; heads that fill no tile.
    for (axis, shape) in [("NH", [2, 4, 3, 24]), ("B", [10, 4, 1, 20])] {
        let inputs = inputs_of(version, shape);
        let together = outputs_of(version, device, &inputs);
        for place in 0..if axis == "NH" { shape[2] } else { shape[0] } {
            let own = inputs.iter().map(|(n, t)| (n.clone(), at(n, t, axis, place))).collect();
            for (name, alone) in outputs_of(version, device, &own) {
                // The gradients by parameters are sums over all rows.
                if axis_of(&name, axis).is_some() {
                    let among = at(&name, &together[&name], axis, place);
                    assert_eq!(alone, among, "{name} at {axis} {place}");
                }
            }
        }
    }
}

/// And begins at its step.
fn nan_stays_in_its_head_and_row(version: &dyn Version, device: &Device) {
    let shape @ [b, t, nh, dh] = [3, 4, 2, 20];
    let inputs = inputs_of(version, shape);
    let clean = outputs_of(version, device, &inputs);
    let (row, step, head) = (1, 2, 1);
    for gate in 0..4 {
        let mut own = inputs.clone();
        let place = (((step * b + row) * 4 + gate) * nh + head) * dh + 3;
        own.insert("wx".into(), changed(&inputs["wx"], |values| values[place] = f64::NAN));
        let hit = outputs_of(version, device, &own);
        for (name, after) in &hit {
            for n in 0..nh {
                let of = |all: &Tensor| at(name, all, "NH", n);
                let (before, after) = (of(&clean[name]), of(after));
                if n != head {
                    assert_eq!(before, after, "{name} of another head, gate {gate}");
                }
                if axis_of(name, "B").is_none() {
                    continue;
                }
                for r in (0..b).filter(|r| *r != row) {
                    let of = |all: &Tensor| at(name, all, "B", r);
                    assert_eq!(of(&before), of(&after), "{name} of row {r}, gate {gate}");
                }
            }
        }
        let y = at("y", &at("y", &hit["y"], "NH", head), "B", row);
        for s in 0..t {
            let nan = y.values()[s * dh..][..dh].iter().filter(|v| v.is_nan()).count();
            let expected = match s.cmp(&step) {
                std::cmp::Ordering::Less => nan == 0,
                std::cmp::Ordering::Equal => nan == 1,
                std::cmp::Ordering::Greater => nan == dh,
            };
            assert!(expected, "{nan} NaN at step {s}, gate {gate}");
        }
    }
}

fn assert_right(version: &dyn Version, device: &Device, inputs: &Tensors, dtype: DType) {
    let options = Options::default();
    let outputs = run(version, device, inputs, &options).unwrap();
    let all = compare(version, inputs, &outputs, &options, dtype);
    let wrong: Vec<&Comparison> = all.iter().filter(|c| !c.passed()).collect();
    assert!(wrong.is_empty(), "{dtype}: {wrong:?}");
}

/// Gates that are shut, wide open, and far from each other: exp(ĩ) alone would overflow.
fn extreme_gates_are_right(version: &dyn Version, device: &Device) {
    for &dtype in version.info().dtypes {
        let shape @ [_, _, nh, dh] = [3, 12, 2, 20];
        let problem = Problem::new(sizes(shape), dtype);
        let mut inputs = version.inputs(&problem);
        let hidden = nh * dh;
        let stretch = |values: &mut Vec<f64>| {
            for (n, value) in values.iter_mut().enumerate() {
                let gate = n / hidden % 4;
                *value *= if gate < 2 { 80.0 } else { 4.0 };
            }
        };
        inputs.insert("wx".into(), changed(&inputs["wx"], stretch));
        assert_right(version, device, &inputs, dtype);
    }
}

/// Many steps; on a GPU also the sizes that are timed.
fn large_problems(version: &dyn Version, device: &Device) {
    let shapes: &[[usize; 4]] = match device.kind() {
        DeviceKind::Emulator => &[[2, 300, 1, 40]],
        DeviceKind::Cuda => &[[16, 1024, 4, 192], [16, 1024, 12, 64], [20, 300, 2, 250]],
    };
    let device = &without_checks(device).unwrap();
    for &shape in shapes {
        for &dtype in version.info().dtypes {
            let case = check(version, device, &Problem::new(sizes(shape), dtype));
            assert!(case.passed(), "{}", case.describe());
        }
    }
}

/// Bit for bit; and a second launch takes nothing from the one before.
fn results_do_not_change_from_run_to_run(version: &dyn Version, device: &Device) {
    let inputs = inputs_of(version, [9, 5, 2, 72]);
    let before = outputs_of(version, device, &inputs);
    let mut prepared = version.prepare(device, &inputs, &Options::default()).unwrap();
    for launch in ["first", "second"] {
        prepared.launch().unwrap();
        assert!(prepared.outputs().unwrap() == before, "{launch} launch on {}", device.name());
        prepared.poison_outputs().unwrap();
    }
}

/// Bit for bit, in whatever order blocks and threads run, whenever copies land.
fn any_schedule_gives_the_same(version: &dyn Version, device: &Device) {
    // Of one block, and of clusters of two.
    for shape in [[2, 5, 2, 20], [2, 5, 1, 72]] {
        let inputs = inputs_of(version, shape);
        let before = outputs_of(version, device, &inputs);
        for device in schedules(device) {
            assert!(outputs_of(version, &device, &inputs) == before, "on {}", device.name());
        }
    }
}

/// The error names the tensor, what was expected and what came.
fn what_does_not_fit_is_refused(version: &dyn Version, device: &Device) {
    let dtype = dtype_of(version);
    let fitting = inputs_of(version, [2, 3, 2, 20]);
    let of =
        |dtype, shape: &[usize]| Tensor::rounded(dtype, shape, &vec![0.0; shape.iter().product()]);
    let most = version.info().dims.iter().find(|d| d.name == "DH").expect("units").max;
    let wide = format!("expected dimension DH: expected 1 to {most}, got {}", most + 1);
    for (name, tensor, said) in [
        (
            "wx",
            of(dtype, &[3, 2, 3, 2, 20]),
            "expected shape [\"T\", \"B\", \"4\", \"NH\", \"DH\"]",
        ),
        ("wx", of(dtype, &[1, 1, 4, 1, most + 1]), &*wide),
        ("r", of(dtype, &[4, 2, 20, 21]), "expected DH=20 as 'wx'"),
        ("b", of(dtype, &[4, 3, 20]), "expected NH=2 as 'wx'"),
        ("h0", of(dtype, &[3, 2, 20]), "expected B=2 as 'wx'"),
        ("c0", of(DType::BF16, &[2, 2, 20]), "expected f32 in runs of every type"),
    ] {
        let mut inputs = fitting.clone();
        inputs.insert(name.into(), tensor);
        let error = run(version, device, &inputs, &Options::default()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("tensor '{name}': {said}")), "{error}");
    }
    let mut inputs = fitting;
    inputs.remove("n0");
    let error = run(version, device, &inputs, &Options::default()).unwrap_err().to_string();
    assert!(error.contains("all of the state or nothing of it"), "{error}");
}
