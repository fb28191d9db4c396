//! What must hold of plans that are made of others, and of scratch that shares memory, on every device.

use lab_device::{DType, Device, DeviceKind, Launch};

use crate::device_checks::kernels;
use crate::plan::{Plan, Slot};
use crate::prepared::launch_measured;
use crate::suite::Check;
use crate::{Error, Tensor, arguments};

/// Each panics where it does not hold.
pub static CHECKS: &[Check] = &[
    Check::new("a_plan_is_put_into_another", a_plan_is_put_into_another),
    Check::new("both_parts_of_a_plan_are_put_into_another", both_parts_are_put_into_another),
    Check::new("what_does_not_fit_in_is_refused", what_does_not_fit_in_is_refused),
    Check::new("layers_have_names", layers_have_names),
    Check::new("scratch_that_has_ended_is_used_again", scratch_that_has_ended_is_used_again),
    Check::new("a_slot_belongs_to_one_plan", a_slot_belongs_to_one_plan),
];

const N: usize = 100;

fn add(plan: &mut Plan, x: Slot, out: Slot) {
    let kernel = plan.device().kernel(&kernels::DEVICE, "add_to<float>").unwrap();
    plan.launch(&kernel, Launch::new(1, 128), arguments![x, out, n: N]).unwrap();
}

fn fill(plan: &mut Plan, x: Slot, value: f32) {
    let kernel = plan.device().kernel(&kernels::DEVICE, "fill<float>").unwrap();
    plan.launch(&kernel, Launch::new(1, 128), arguments![x, value, n: N]).unwrap();
}

/// y = 2 x + 5, by way of scratch; and z = 3 x + 5, of what the first launches have left.
fn doubling_plan(device: &Device) -> Plan {
    let mut plan = Plan::new(device);
    let x = plan.input("x", DType::F32, &[N]);
    let w = plan.input("w", DType::F32, &[N]);
    let sum = plan.scratch(DType::F32, N);
    let [y, z] = ["y", "z"].map(|name| plan.output(name, DType::F32, &[N]));
    fill(&mut plan, sum, 5.0);
    add(&mut plan, x, sum);
    add(&mut plan, x, sum);
    plan.copy(sum, y);
    plan.copy(sum, z);
    add(&mut plan, w, z);
    plan
}

fn ones() -> Tensor {
    Tensor::new(&[N], &[1f32; N])
}

fn said<T>(outcome: Result<T, Error>) -> String {
    outcome.err().expect("refused").to_string()
}

fn a_plan_is_put_into_another(device: &Device) {
    let part = doubling_plan(device);
    let mut plan = Plan::new(device);
    // Parts of wider slots take the place of whole ones where nothing fills or copies them.
    let inputs = plan.input("inputs", DType::F32, &[2, N]);
    let out = plan.output("out", DType::F32, &[N]);
    let [x, w] = [0, N].map(|start| inputs.part(start, N));
    let first = plan.include(&part, &[("x", x), ("w", w)]).unwrap();
    let given = [("x", first.slot("y")), ("w", first.slot("z")), ("z", out)];
    let second = plan.include(&part, &given).unwrap();
    assert_eq!((second.slot("z"), second.find("sum")), (out, None));
    let mut values = [1f32; 2 * N];
    values[N..].fill(10.0);
    let mut run =
        plan.bind().upload("inputs", &Tensor::new(&[2, N], &values)).unwrap().finish().unwrap();
    for _ in 0..2 {
        run.run().unwrap();
        // 2 (2 + 5) + 5, and z of the first, 7 + 10.
        assert_eq!(run.read(out).unwrap().values(), [36.0; N]);
    }
}

/// A forward and a backward pass with other launches between them; what the first leaves is scratch of the whole.
fn both_parts_are_put_into_another(device: &Device) {
    // y = x + 5, dx = dy + x + 5.
    let mut part = Plan::new(device);
    let [x, dy] = ["x", "dy"].map(|name| part.input(name, DType::F32, &[N]));
    let saved = part.scratch(DType::F32, N);
    let [y, dx] = ["y", "dx"].map(|name| part.output(name, DType::F32, &[N]));
    fill(&mut part, saved, 5.0);
    add(&mut part, x, saved);
    part.copy(saved, y);
    part.copy(dy, dx);
    add(&mut part, saved, dx);
    let [forward, backward] = part.split_before(&["dy"]).unwrap();

    let mut plan = Plan::new(device);
    let x = plan.input("x", DType::F32, &[N]);
    let out = plan.output("out", DType::F32, &[N]);
    let forwards = [0, 1].map(|_| plan.include(&forward, &[("x", x)]).unwrap());
    let mut upstream = forwards[0].slot("y");
    for included in forwards.iter().rev() {
        let mut given = included.left();
        given.push(("dy", upstream));
        let included = plan.include(&backward, &given).unwrap();
        upstream = included.slot("dx");
    }
    plan.copy(upstream, out);
    let mut run = plan.bind().upload("x", &ones()).unwrap().finish().unwrap();
    for _ in 0..2 {
        run.run().unwrap();
        assert_eq!(run.read(out).unwrap().values(), [18.0; N]);
    }
}

fn what_does_not_fit_in_is_refused(device: &Device) {
    let part = doubling_plan(device);
    let mut plan = Plan::new(device);
    let [x, w] = ["x", "w"].map(|name| plan.input(name, DType::F32, &[N]));
    let halves = plan.scratch(DType::F16, N);
    let wide = plan.scratch(DType::F32, 2 * N);
    let y = plan.scratch(DType::F32, N);
    for (given, expected) in [
        (vec![("x", x)], "tensor 'w': expected f32 [100], got none"),
        (vec![("x", x), ("v", w)], "slot: expected one of x, w, y, z, got 'v'"),
        (vec![("x", x), ("w", halves)], "tensor 'w': expected f32 [100], got 100 elements of f16"),
        (vec![("x", x), ("w", wide)], "tensor 'w': expected f32 [100], got 200 elements of f32"),
        (
            vec![("x", x), ("w", w), ("y", x)],
            "tensor 'y': expected a slot to write to, got the input 'x'",
        ),
        (
            vec![("x", y), ("w", w), ("y", y)],
            "tensor 'y': expected memory that lies apart, got that of 'x', one of which is written",
        ),
        (
            vec![("x", x), ("w", w), ("y", wide.part(0, N))],
            "slot: expected a whole one, for it is filled or copied, got a part",
        ),
    ] {
        assert_eq!(said(plan.clone().include(&part, &given)), expected);
    }
    // Two that are only read may be one.
    plan.include(&part, &[("x", x), ("w", x)]).unwrap();
}

fn layers_have_names(device: &Device) {
    let mut plan = Plan::new(device);
    let x = plan.input("x", DType::F32, &[N]);
    let part = doubling_plan(device);
    for layer in ["blocks.0", "blocks.1"] {
        plan.within(layer, |plan| {
            plan.within("mixer", |plan| plan.include(&part, &[("x", x), ("w", x)])).map(|_| ())
        })
        .unwrap();
    }
    let outer = plan.scratch(DType::F32, N);
    let named: Vec<_> = plan.slots().iter().filter(|s| s.name.ends_with(".y")).collect();
    assert_eq!(named.len(), 2);
    assert_eq!((&*named[1].name, &*named[1].layer), ("blocks.1.mixer.y", "blocks.1.mixer"));
    assert_eq!(&*plan.layers()[plan.len() - 1], "blocks.1.mixer");
    assert_eq!(&*plan.slots().last().unwrap().layer, "");
    let refused = plan.within("blocks.2", |plan| {
        plan.within("mixer", |plan| plan.include(&part, &[("x", x), ("w", outer.part(0, 5))]))
    });
    let expected =
        "blocks.2.mixer: tensor 'blocks.2.mixer.w': expected f32 [100], got 5 elements of f32";
    assert_eq!(said(refused), expected);
}

/// A chain of eight sums, each of which needs only the last: two pieces of memory, in the device's and in the caller's.
fn scratch_that_has_ended_is_used_again(device: &Device) {
    let planned = |device: &Device, keeps: bool| {
        let mut plan = Plan::new(device);
        let out = plan.output("out", DType::F32, &[N]);
        let mut last = plan.scratch(DType::F32, N);
        fill(&mut plan, last, 1.0);
        let first = last;
        for _ in 0..8 {
            let next = plan.scratch(DType::F32, N);
            fill(&mut plan, next, 1.0);
            add(&mut plan, last, next);
            last = next;
        }
        if keeps {
            plan.keep(first);
        }
        plan.copy(last, out);
        (plan, first, out)
    };
    assert_eq!(planned(device, false).0.scratch_bytes(), 2 * 512, "400 bytes at a multiple of 256");
    assert_eq!(planned(device, true).0.scratch_bytes(), 3 * 512, "one of which is kept");
    assert_eq!(planned(device, false).0.peak_bytes(), 2 * 512 + 400);
    for keeps in [false, true] {
        let (plan, first, out) = planned(device, keeps);
        let mut run = plan.bind().finish().unwrap();
        for _ in 0..2 {
            run.run().unwrap();
            assert_eq!(run.read(out).unwrap().values(), [9.0; N]);
        }
        if keeps {
            assert_eq!(run.read(first).unwrap().values(), [1.0; N])
        } else {
            let expected = "expected memory that is kept (Plan::keep), got shared scratch";
            assert!(said(run.read(first)).contains(expected));
        }
    }
    takes_what_is_planned(device, |device| planned(device, false).0);
    if device.kind() == DeviceKind::Cuda {
        let (plan, _, out) = planned(device, false);
        let lent = device.raw_buffer(1024).unwrap();
        let address = lent.address();
        // SAFETY: `lent` outlives what runs in it.
        let mut run = unsafe { plan.bind().scratch(address, 1024).unwrap().finish().unwrap() };
        run.run().unwrap();
        assert_eq!(run.read(out).unwrap().values(), [9.0; N]);
    }
}

/// The device counts what the plan says: on the emulator memory of its own for each slot.
fn takes_what_is_planned(device: &Device, chain: impl Fn(&Device) -> Plan) {
    // One of its own: on an emulator the other checks allocate at the same time.
    let device = &match device.mode() {
        Some(mode) => Device::emulator_in(mode).unwrap(),
        None => device.clone(),
    };
    let x = Tensor::new(&[1000], &[1.0f32; 1000]);
    for _ in 0..2 {
        let mut plan = chain(device);
        plan.input("x", DType::F32, &[1000]);
        let planned = match device.kind() {
            DeviceKind::Cuda => plan.peak_bytes(),
            DeviceKind::Emulator => plan.bytes(),
        };
        let prepare = || Ok(Box::new(plan.bind().upload("x", &x)?.finish()?) as Box<_>);
        let (run, peak) = launch_measured(device, prepare).unwrap();
        assert_eq!(run.input_bytes(), Some(4000));
        assert_eq!(peak, Some(planned as u64 - 4000));
    }
}

fn a_slot_belongs_to_one_plan(device: &Device) {
    let (mut plan, mut other) = (Plan::new(device), Plan::new(device));
    let [x, theirs] = [&mut plan, &mut other].map(|p| p.scratch(DType::F32, N));
    let kernel = device.kernel(&kernels::DEVICE, "add_to<float>").unwrap();
    let arguments = arguments![x, out: theirs, n: N];
    let expected = "slot: expected one of this plan, got one of another";
    assert_eq!(said(plan.launch(&kernel, Launch::new(1, 128), arguments)), expected);
    let y = other.output("y", DType::F32, &[N]);
    assert_eq!(said(plan.bind().finish().unwrap().read(y)), expected);
}
