//! Whether some heads of a problem are judged as they are within the whole, of each family whose heads are independent.

use std::collections::BTreeSet;

use lab_device::{Device, Mode};
use lab_harness::{
    Comparison, Element, Heads, Options, Posed, Problem, Tensor, Tensors, Version, run,
};

/// A version of each such family, with a problem of several sequences and heads.
fn versions() -> Vec<(&'static dyn Version, Problem)> {
    let mut seen = BTreeSet::new();
    let mut all = Vec::new();
    for version in lab_registry::versions() {
        let info = version.info();
        let mut dims = info.small();
        for (name, size) in [("B", 2), ("NH", 4), ("NKV", 2)] {
            if dims.find(name).is_some() {
                dims.set(name, size);
            }
        }
        let Ok(dims) = info.complete(&dims) else { continue };
        let is_right = version.expected(&Options::default()).mistake().is_none();
        if is_right && info.family.independent_heads(&dims) > 2 && seen.insert(info.family.name()) {
            all.push((version, Problem::new(dims, info.dtypes[0])));
        }
    }
    all
}

/// The outputs with another value in one place.
fn with(outputs: &Tensors, name: &str, at: usize, value: f64) -> Tensors {
    let mut all = outputs.clone();
    let tensor = all.get_mut(name).unwrap();
    let size = tensor.dtype.size();
    let bytes = Tensor::rounded(tensor.dtype, &[1], &[value]).bytes;
    tensor.bytes[at * size..][..size].copy_from_slice(&bytes);
    all
}

/// The worst element of one output, if it is wrong.
fn wrong(all: Vec<Comparison>, name: &str) -> Option<Element> {
    all.into_iter().find(|c| c.name == name && !c.passed())?.worst
}

#[test]
fn some_heads_are_judged_as_within_the_whole() {
    let device = Device::emulator_in(Mode::Plain).unwrap();
    let versions = versions();
    let families: Vec<&str> = versions.iter().map(|(v, _)| v.info().family.name()).collect();
    for family in
        ["attention", "attention_fwbw", "qkv", "vlstm_fw", "vlstm_fwbw", "vlstm_fwbw_packed"]
    {
        assert!(families.contains(&family), "{family} is not among {families:?}");
    }
    for (version, problem) in versions {
        let (of, dtype) = (version.info().full_name(), problem.dtype);
        let all = version.info().family.independent_heads(&problem.dims);
        let whole = Posed::new(version, problem.clone());
        let heads = Heads::new(&[1, all - 1], all);
        let some = Posed::with(version, problem, Some(heads));
        let outputs = run(version, &device, &whole.inputs, &Options::default()).unwrap();
        for posed in [&whole, &some] {
            let wrong: Vec<_> = posed.compare(version, &outputs, dtype);
            assert!(wrong.iter().all(Comparison::passed), "{of}: {wrong:?}");
        }
        for (name, tensor) in &outputs {
            let (reference, piece) = (whole.reference(name).unwrap(), tensor.len() / all);
            let of_head = |head: usize| &reference[head * piece..][..piece];
            let own = [of_head(1), of_head(all - 1)].concat();
            assert_eq!(some.reference(name).unwrap(), own, "{of} {name}");
            // The largest element of a head that is judged, put to 0.
            let largest = (all - 1) * piece
                + (0..piece)
                    .max_by(|a, b| {
                        let size = |n: &usize| of_head(all - 1)[*n].abs();
                        size(a).total_cmp(&size(b))
                    })
                    .unwrap();
            let zeroed = with(&outputs, name, largest, 0.0);
            let [by_all, by_some] =
                [&whole, &some].map(|posed| wrong(posed.compare(version, &zeroed, dtype), name));
            assert!(by_some.is_some() && by_some == by_all, "{of} {name}: {by_some:?}, {by_all:?}");
            // What nobody has written, in a head that is not.
            let poisoned = with(&outputs, name, piece - 1, f64::NAN);
            let found = wrong(some.compare(version, &poisoned, dtype), name);
            assert!(found.is_some_and(|e| e.got.is_nan()), "{of} {name}");
        }
    }
}
