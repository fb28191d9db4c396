//! The device layer on the emulator and on a GPU where there is one.
#![allow(missing_docs)]

use lab_device::emulator::Kind;
use lab_device::{DType, Device, Error, Launch, Mode, Selector};
use lab_harness::suite::assert_checks;
use lab_harness::{
    Binding, Plan, Prepared as _, Tensor, agreement, arguments, binding_checks, composition_checks,
    device_checks, map_checks, overlap_checks,
};

mod kernels {
    // SAFETY: the slots below have the elements that their kernels are told of.
    pub(crate) const PROMISE: lab_device::LaunchPromise =
        unsafe { lab_device::LaunchPromise::new() };
}

#[test]
fn the_device_layer() {
    assert_checks(device_checks::CHECKS);
}

#[test]
fn tensor_maps() {
    assert_checks(map_checks::CHECKS);
}

#[test]
fn plans_and_bindings() {
    assert_checks(binding_checks::CHECKS);
}

#[test]
fn plans_of_plans() {
    assert_checks(composition_checks::CHECKS);
}

#[test]
fn launches_that_overlap() {
    assert_checks(overlap_checks::CHECKS);
}

/// Two launches, of which one writes x, and the other may begin before that has ended and does not wait. A
/// run makes them in the one order or the other, with or without a fill of other memory between.
fn without_a_wait(overlaps: bool, reader_first: bool, fills: bool) -> Binding {
    let device = Device::emulator_in(Mode::Checked).unwrap();
    let kernel = |name| device.kernel(&device_checks::kernels::OVERLAP, name).unwrap();
    let mut plan = Plan::new(&device);
    let [weights, x] = [(); 2].map(|()| plan.zeros(DType::F32, 64));
    let [out, other] = [(); 2].map(|()| plan.scratch(DType::F32, 64));
    let writes = arguments![weights, x: weights, out: x, n: 64];
    let reads = arguments![weights, x, out, n: 64];
    let mut launches =
        [("double_and_add", false, writes), ("double_and_add_at_once", overlaps, reads)];
    if reader_first {
        launches.reverse();
    }
    for (name, overlaps, arguments) in launches {
        plan.launch(&kernel(name), overlap_checks::launch(1, overlaps), arguments).unwrap();
        if fills {
            plan.zero(other);
        }
    }
    plan.bind().finish().unwrap()
}

fn found(outcome: Result<(), Error>) -> bool {
    let Err(error) = outcome else { return false };
    let findings = error.findings().unwrap_or_else(|| panic!("{error}"));
    assert!(findings.all.iter().all(|f| f.kind == Kind::GridInFlight), "{findings}");
    true
}

#[test]
fn what_a_launch_does_too_early_is_found() {
    assert!(found(without_a_wait(true, false, false).run()));
    assert!(!found(without_a_wait(false, false, false).run()));
    assert!(!found(without_a_wait(true, false, true).run()), "nothing overlaps a fill");
    // The first launch of a run overlaps the last of the run before; that of a graph does not.
    let mut binding = without_a_wait(true, true, false);
    assert!(!found(binding.run()) && found(binding.run()));
    let mut binding = without_a_wait(true, true, false);
    let mut graph = binding.graph().unwrap();
    assert!(!found(graph.launch()) && !found(graph.launch()));
}

/// A kernel is `Send` and `Sync`: that is why [`lab_device::Kernel::set_global`] is unsafe, and a launch by several threads is not.
#[test]
fn several_threads_launch_one_kernel() {
    const N: usize = 64;
    let device = Device::emulator_in(Mode::Checked).unwrap();
    let fill = &device.kernel(&device_checks::kernels::DEVICE, "fill<float>").unwrap();
    let filled = |value: f32| {
        let mut plan = Plan::new(&device);
        let x = plan.output("x", DType::F32, &[N]);
        let all = arguments![x, value, n: N];
        plan.launch(fill, Launch::new(1, N as u32), all).unwrap();
        let mut binding = plan.bind().finish().unwrap();
        (0..20).for_each(|_| binding.run().unwrap());
        binding.read(x).unwrap().values()
    };
    let filled = &filled;
    std::thread::scope(|scope| {
        let all = [1f32, 2.0, 3.0].map(|value| (value, scope.spawn(move || filled(value))));
        for (value, thread) in all {
            assert_eq!(thread.join().unwrap(), vec![f64::from(value); N]);
        }
    });
}

/// A launch reads scratch that was filled when it was bound, and that no launch writes. Unless the plan keeps it, the scratch's
/// life ends with the only step that reads it.
fn reads_what_has_ended(keeps: bool) -> Binding {
    const N: usize = 64;
    let device = Device::emulator_in(Mode::Checked).unwrap();
    let kernel = |name| device.kernel(&device_checks::kernels::DEVICE, name).unwrap();
    let launch = Launch::new(1, N as u32);
    // What is a state of a plan alone is scratch of the plan that it is put into.
    let mut part = Plan::new(&device);
    let carried = part.state("carried", DType::F32, &[N]);
    let sum = part.output("sum", DType::F32, &[N]);
    let all = arguments![x: sum, value: 1f32, n: N];
    part.launch(&kernel("fill<float>"), launch, all).unwrap();
    let all = arguments![x: carried, out: sum, n: N];
    part.launch(&kernel("add_to<float>"), launch, all).unwrap();
    let mut plan = Plan::new(&device);
    let out = plan.output("out", DType::F32, &[N]);
    let included = plan.include(&part, &[("sum", out)]).unwrap();
    if keeps {
        plan.keep(included.slot("carried"));
    }
    let twos = Tensor::new(&[N], &[2f32; N]);
    plan.bind().upload("carried", &twos).unwrap().finish().unwrap()
}

/// The second run reads memory whose life has ended in the first, and that on a GPU another slot may have by then.
#[test]
fn a_read_of_scratch_that_has_ended_is_found() {
    let mut ended = reads_what_has_ended(false);
    ended.run().unwrap();
    let error = ended.run().unwrap_err();
    let findings = error.findings().unwrap_or_else(|| panic!("{error}"));
    assert!(findings.all.iter().all(|f| f.kind == Kind::Uninitialised), "{findings}");
    let mut kept = reads_what_has_ended(true);
    for _ in 0..2 {
        kept.run().unwrap();
        assert_eq!(kept.outputs().unwrap()["out"].values(), [3.0; 64]);
    }
}

#[test]
fn the_emulator_and_the_gpu_agree() {
    assert_checks(agreement::CHECKS);
}

#[test]
fn a_device_that_is_not_there() {
    for text in ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "Emulator"] {
        assert!(text.parse::<Selector>().is_err(), "{text}");
    }
    let error = Device::open(Selector::Cuda(99)).unwrap_err();
    assert!(error.is_unavailable(), "{error}");
    assert!(error.to_string().starts_with("no CUDA device: "), "{error}");
}

/// From sm_80 on: the warp reductions of integers came with it.
#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn the_kernels_of_the_checks_compile_for_gpus() {
    let Ok(nvrtc) = lab_device::nvrtc::Nvrtc::get() else {
        assert!(std::env::var_os("LAB_REQUIRE_NVRTC").is_none(), "NVRTC was required");
        return println!("no NVRTC here");
    };
    for source in device_checks::kernels::KERNELS {
        for arch in ["sm_80", "sm_90a"].into_iter().filter(|arch| source.runs_on(arch)) {
            nvrtc.compile(source, source.instantiations, arch).unwrap_or_else(|e| panic!("{e}"));
        }
    }
}
