//! What must hold beside the error bounds.

use lab_device::{DType, Device, DeviceKind, Kernel};
use lab_families::mlp;
use lab_harness::suite::{Check, VersionCheck, check, orders, without_checks};
use lab_harness::{
    Error, Options, Prepared, Problem, Request, Tensor, Tensors, Version, run, tensor::tensors,
    version_checks,
};
use lab_reference::mlp::Parameters;

use crate::resident;
use crate::steps::StepsPlan;

pub(crate) static OF_EACH: &[VersionCheck] = version_checks![
    any_schedule_gives_the_same in Ends,
    shapes_make_the_plan,
    parameters_are_trained_where_they_lie,
    every_gradient_is_there,
    ids_out_of_range_are_refused,
    logits_far_apart,
    a_token_of_many_pairs,
    wider_than_a_block,
    large_problems in Large,
];

pub(crate) static CHECKS: &[Check] = &[
    Check::new("residents_without_a_cluster", residents_without_a_cluster),
    Check::new("a_loss_that_is_no_number_moves_nothing", a_loss_that_is_no_number_moves_nothing),
];

fn inputs(version: &dyn Version, shape: [usize; 5]) -> Tensors {
    let dtype = version.info().dtypes[0];
    version.inputs(&Problem::new(mlp::sizes(fitted(version, shape)), dtype))
}

/// N, B, V, E, H, with no more than this version takes.
fn fitted(version: &dyn Version, shape: [usize; 5]) -> [usize; 5] {
    let mut dims = version.info().dims.iter();
    shape.map(|size| size.min(dims.next().expect("a dimension of each").max))
}

/// Bit for bit, and at a second launch, too.
fn any_schedule_gives_the_same(version: &dyn Version, device: &Device) {
    let all = inputs(version, [3, 70, 150, 12, 36]);
    let first = run(version, device, &all, &Options::default()).unwrap();
    for device in orders(device) {
        let mut prepared = version.prepare(&device, &all, &Options::default()).unwrap();
        for _ in 0..2 {
            prepared.launch().unwrap();
            assert_eq!(prepared.outputs().unwrap(), first, "on {}", device.name());
            prepared.poison_outputs().unwrap();
        }
    }
}

/// Each in its own memory, as in one buffer; and again from where the first run ended.
fn parameters_are_trained_where_they_lie(version: &dyn Version, device: &Device) {
    let all = inputs(version, [3, 70, 150, 12, 36]);
    let own = crate::VERSIONS.into_iter().find(|v| v.info().name == version.info().name).unwrap();
    let options = Options::parse(&["lr=0.3"], version.info()).unwrap();
    let request = Request::of(version.info(), &all, &options).unwrap();
    let plan = own.plan_in_place(device, &request).unwrap();
    let ids = |name: &str| Tensor::rounded(DType::I32, &all[name].shape, &all[name].values());
    let pairs: Vec<i32> = (0..all["tokens"].len() as i32).collect();
    let mut given = all.clone();
    given.extend(tensors([
        ("tokens", ids("tokens")),
        ("targets", ids("targets")),
        ("order", Tensor::new(&[pairs.len()], &pairs)),
        ("rates", Tensor::new(&[3], &[0.3; 3])),
    ]));
    let mut binding = plan.bind().upload_inputs(&given).unwrap().finish().unwrap();
    let mut before = all;
    for _ in 0..2 {
        let expected = run(version, device, &before, &options).unwrap();
        binding.run().unwrap();
        let got = binding.outputs().unwrap();
        assert_eq!(got["loss"], expected["loss"]);
        for name in Parameters::NAMES {
            assert!(got[name] != before[name], "{name} has not moved");
            assert_eq!(got[name], expected[name], "{name}");
            before.insert(name.to_owned(), got[name].clone());
        }
    }
}

/// The plan has the launches of a run, and refuses what a run refuses.
fn shapes_make_the_plan(version: &dyn Version, device: &Device) {
    let all = inputs(version, [3, 70, 150, 12, 36]);
    let plan = |options: &Options| {
        let request = Request::of(version.info(), &all, options).unwrap();
        version.plan(device, &request)
    };
    let names = |kernels: Vec<Kernel>| -> Vec<String> {
        kernels.iter().map(|kernel| kernel.name().to_owned()).collect()
    };
    let options = Options::default();
    let planned = plan(&options).unwrap();
    let prepared = version.prepare(device, &all, &options).unwrap();
    assert!(!planned.is_empty());
    assert_eq!(names(planned.kernels()), names(prepared.kernels()));
    let loss = planned.slot("loss").unwrap();
    assert_eq!(loss.len(), all["tokens"].shape[0]);
    let still = Options::parse(&["lr=0"], version.info()).unwrap();
    let error = plan(&still).unwrap_err().to_string();
    assert_eq!(error, "--set lr: expected a number above 0, got 0");
}

/// A run that moves no parameter, or one of them not, is out of its bounds.
fn every_gradient_is_there(version: &dyn Version, device: &Device) {
    let problem = Problem::new(version.info().small(), version.info().dtypes[0]);
    let all = version.inputs(&problem);
    let out = run(version, device, &all, &problem.options).unwrap();
    for name in ["emb", "w1", "b1", "w2", "b2"] {
        let mut still = out.clone();
        still.insert(name.into(), all[name].clone());
        let still = mlp::with_changes(still, &all);
        let compared = lab_harness::compare(version, &all, &still, &problem.options, problem.dtype);
        let change = compared.iter().find(|c| c.name == format!("{name}_change")).unwrap();
        assert!(!change.passed() && (change.relative_error - 1.0).abs() < 1e-6, "{change:?}");
    }
}

fn ids_out_of_range_are_refused(version: &dyn Version, device: &Device) {
    let all = inputs(version, [2, 3, 10, 2, 3]);
    let batch = all["tokens"].shape[1];
    for (name, id) in [("tokens", 10), ("tokens", -1), ("targets", 1 << 40), ("targets", -7)] {
        let mut wrong = all.clone();
        let mut values: Vec<i64> = all[name].values().into_iter().map(|v| v as i64).collect();
        values[batch] = id;
        wrong.insert(name.into(), Tensor::new(&[2, batch], &values));
        let error = run(version, device, &wrong, &Options::default()).unwrap_err();
        let said = "expected ids from 0 to 9, the rows of 'emb', got";
        assert!(matches!(error, Error::Tensor { .. }));
        let expected = format!("tensor '{name}': {said} {id} of step 1, pair 0");
        assert_eq!(error.to_string(), expected);
    }
    for lr in ["0", "-1"] {
        let options = Options::parse(&[format!("lr={lr}")], version.info()).unwrap();
        let error = run(version, device, &all, &options).unwrap_err().to_string();
        assert_eq!(error, format!("--set lr: expected a number above 0, got {lr}"));
    }
}

/// A softmax whose exponentials would be infinite, and a target whose probability is zero. The largest logit
/// is one that a thread of a block has in its second turn.
fn logits_far_apart(version: &dyn Version, device: &Device) {
    let mut all = inputs(version, [1, 2, 600, 3, 5]);
    let targets = vec![65i64; all["targets"].len()];
    all.insert("targets".into(), Tensor::new(&all["targets"].shape, &targets));
    let far = |v: usize| match v {
        65 => -2000.0,
        590 => 1900.0,
        _ => 500.0 + v as f64,
    };
    let far: Vec<f64> = (0..600).map(far).collect();
    let dtype = version.info().dtypes[0];
    all.insert("b2".into(), Tensor::rounded(dtype, &[600], &far));
    let out = run(version, device, &all, &Options::default()).unwrap();
    let compared = lab_harness::compare(version, &all, &out, &Options::default(), dtype);
    for c in compared.iter().filter(|c| ["loss", "b2", "w2_change"].contains(&c.name)) {
        assert!(c.passed() || c.name == "w2_change" && c.relative_error < 1e-2, "{c}");
    }
}

/// Blocks that meet in device memory give what a cluster gives, bit for bit; and a model without room is
/// refused with its figures.
fn residents_without_a_cluster(device: &Device) {
    let version = &crate::RESIDENT;
    for shape in [[7, 1, 130, 20, 70], [5, 1, 9, 3, 4]] {
        let all = inputs(version, shape);
        let expected = run(version, device, &all, &Options::default()).unwrap();
        let options = Options::default();
        let request = Request::of(version.info(), &all, &options).unwrap();
        let mut steps = StepsPlan::new(device, &request, 0.1, 1);
        resident::add_steps(&mut steps, false).unwrap();
        let mut prepared = steps.bind(&all, false).unwrap();
        for _ in 0..2 {
            prepared.launch().unwrap();
            assert_eq!(prepared.outputs().unwrap(), expected);
            prepared.poison_outputs().unwrap();
        }
    }
    let wide = inputs(version, [1, 1, 9000, 64, 128]);
    let error = run(version, device, &wide, &Options::default()).unwrap_err().to_string();
    let said = "shared memory of a block, V=9000 E=64 H=128: expected at most ";
    assert!(error.starts_with(said) && error.ends_with(" bytes, got 538048"), "{error}");
}

/// An infinite logit makes a loss that is none: all parameters stay as they are, bit for bit.
fn a_loss_that_is_no_number_moves_nothing(device: &Device) {
    for version in [&crate::BATCH, &crate::RECOMPUTED, &crate::TENSOR, &crate::WGMMA] {
        let mut all = inputs(version, [2, 70, 150, 8, 11]);
        let mut bias = all["b2"].values();
        bias[100] = f64::INFINITY;
        all.insert("b2".into(), Tensor::rounded(all["b2"].dtype, &[bias.len()], &bias));
        let out = run(version, device, &all, &Options::default()).unwrap();
        assert!(!out["loss"].values()[0].is_finite(), "{}", version.info().name);
        for name in ["emb", "w1", "b1", "w2", "b2"] {
            assert_eq!(out[name], all[name], "{}: {name}", version.info().name);
        }
    }
}

/// More pairs than a warp lists at a time, and tokens that all of them share.
fn a_token_of_many_pairs(version: &dyn Version, device: &Device) {
    passes(version, device, [1, 300, 5, 4, 3]);
}

/// More of each size than a block has threads; and sizes at which what lies behind a parameter is not its
/// own: the end of all parameters, the next block's rows. A step alone is long, as what one of thousands of
/// rows moves by would be lost in its rounding.
fn wider_than_a_block(version: &dyn Version, device: &Device) {
    for (shape, lr) in
        [([1, 1, 4192, 20, 30], 2.0), ([1, 1, 40, 520, 530], 2.0), ([9, 1, 128, 20, 30], 0.1)]
    {
        let options = Options::parse(&[format!("lr={lr}")], version.info()).unwrap();
        let all = inputs(version, shape);
        let out = run(version, device, &all, &options).unwrap();
        let dtype = version.info().dtypes[0];
        for c in lab_harness::compare(version, &all, &out, &options, dtype) {
            assert!(c.passed(), "{shape:?}: {c}");
        }
    }
}

fn passes(version: &dyn Version, device: &Device, shape: [usize; 5]) {
    let dims = mlp::sizes(fitted(version, shape));
    let case = check(version, device, &Problem::new(dims, version.info().dtypes[0]));
    assert!(case.passed(), "{}", case.describe());
}

/// Too large to be checked: on the emulator in its plain mode.
fn large_problems(version: &dyn Version, device: &Device) {
    let device = &without_checks(device).unwrap();
    let pairs = version.info().dims[1].max > 1;
    let shapes = match (device.kind(), pairs) {
        (DeviceKind::Emulator, true) => [[2, 300, 1500, 64, 128], [40, 1, 700, 30, 50]],
        (DeviceKind::Emulator, false) => [[2, 1, 1500, 64, 128], [40, 1, 700, 30, 50]],
        (DeviceKind::Cuda, true) => [[2, 1024, 10000, 256, 512], [16, 256, 5000, 128, 256]],
        (DeviceKind::Cuda, false) => [[20, 1, 3200, 64, 128], [200, 1, 1000, 64, 128]],
    };
    for shape in shapes {
        passes(version, device, shape);
    }
}
