//! What must hold of plans and bindings, on every device.

use std::ffi::c_void;
use std::sync::Arc;

use lab_device::dlpack::{DLDataType, DLDevice, DLTensor};
use lab_device::{
    Arg, DType, Device, DeviceKind, Error as DeviceError, Launch, Mode, RawBuffer, Stream, record,
};

use crate::device_checks::kernels;
use crate::plan::{Plan, Slot};
use crate::suite::Check;
use crate::tensor::tensors;
use crate::{Binding, Error, Prepared, Tensor, arguments};

/// Each panics where it does not hold.
pub static CHECKS: &[Check] = &[
    Check::new("a_plan_runs_in_memory_of_others", a_plan_runs_in_memory_of_others),
    Check::new("memory_that_does_not_fit_is_refused", memory_that_does_not_fit_is_refused),
    Check::new("the_bounds_of_foreign_memory_hold", the_bounds_of_foreign_memory_hold),
    Check::new("an_output_is_another_plans_input", an_output_is_another_plans_input),
    Check::new("slots_are_another_plans_inputs", slots_are_another_plans_inputs),
    Check::new("scratch_comes_from_the_caller", scratch_comes_from_the_caller),
    Check::new("zeros_and_constants_are_written", zeros_and_constants_are_written),
    Check::new("what_was_never_written_is_told", what_was_never_written_is_told),
    Check::new("what_is_updated_goes_in_and_comes_out", what_is_updated_goes_in_and_comes_out),
    Check::new("runs_go_to_the_callers_stream", runs_go_to_the_callers_stream),
    Check::new("a_stream_of_another_device_is_refused", a_stream_of_another_device_is_refused),
    Check::new("what_is_not_there_is_named", what_is_not_there_is_named),
    Check::new("too_much_memory_is_refused_at_once", too_much_memory_is_refused_at_once),
    Check::new("structs_go_by_value", structs_go_by_value),
];

const N: usize = 100;

/// out += x, of N numbers.
fn adding(device: &Device) -> (Plan, [Slot; 2]) {
    let add = device.kernel(&kernels::DEVICE, "add_to<float>").unwrap();
    let mut plan = Plan::new(device);
    let x = plan.input("x", DType::F32, &[N]);
    let out = plan.state("out", DType::F32, &[N]);
    plan.launch(&add, Launch::new(1, 128), arguments![x, out, n: N]).unwrap();
    (plan, [x, out])
}

fn ones() -> Tensor {
    Tensor::new(&[N], &[1f32; N])
}

/// Memory that the lab has not allocated for a plan: of the process, or on the GPU.
struct Theirs {
    device: Device,
    host: Vec<f32>,
    gpu: Option<RawBuffer>,
}

impl Theirs {
    fn new(device: &Device, values: &[f32]) -> Self {
        let gpu = (device.kind() == DeviceKind::Cuda).then(|| {
            let buffer = device.raw_buffer(4 * values.len()).unwrap();
            // SAFETY: it was made just now.
            unsafe { buffer.write(0, bytemuck::cast_slice(values)).unwrap() };
            buffer
        });
        Self { device: device.clone(), host: values.to_vec(), gpu }
    }

    fn tensor(&mut self, shape: &[i64]) -> DLTensor {
        let host = self.host.as_mut_ptr().cast();
        let data = self.gpu.as_ref().map_or(host, |b| b.address() as *mut c_void);
        DLTensor::contiguous(data, &self.device, DType::F32, shape)
    }

    fn values(&self) -> Vec<f32> {
        let mut values = self.host.clone();
        if let Some(gpu) = &self.gpu {
            gpu.read(0, bytemuck::cast_slice_mut(&mut values)).unwrap();
        }
        values
    }
}

fn a_plan_runs_in_memory_of_others(device: &Device) {
    let (mut x, mut out) = (Theirs::new(device, &[2.0; N]), Theirs::new(device, &[1.0; N]));
    let shape = [N as i64];
    let binder = adding(device).0.bind();
    // SAFETY: x and out live to the end of this function, and nobody uses them during a run.
    let binder = unsafe {
        let binder = binder.foreign("x", &x.tensor(&shape)).unwrap();
        binder.foreign("out", &out.tensor(&shape)).unwrap()
    };
    let mut binding = binder.finish().unwrap();
    for _ in 0..3 {
        binding.run().unwrap();
    }
    device.synchronize().unwrap();
    assert_eq!(out.values(), [7.0; N]);
    // Its owner writes between runs.
    if device.kind() == DeviceKind::Emulator {
        out.host.fill(0.5);
        binding.run().unwrap();
        assert_eq!(out.values(), [2.5; N]);
    }
    drop(binding);
    assert_eq!(x.values(), [2.0; N]);
}

fn refused(result: Result<crate::Binder<'_>, Error>, said: &str) {
    let message = result.err().expect("it is refused").to_string();
    assert!(message.contains(said), "'{said}' in: {message}");
}

fn memory_that_does_not_fit_is_refused(device: &Device) {
    let mut memory = Theirs::new(device, &[0.0; N]);
    let (shape, less, matrix) = ([N as i64], [N as i64 - 1], [10i64, 10]);
    let good = memory.tensor(&shape);
    let strides = [2i64];
    let half = DLDataType::of(DType::F16);
    let elsewhere = DLDevice { device_type: DLDevice::CUDA, device_id: 77 };
    let host = [0f32; N];
    let on_host = DLTensor { data: host.as_ptr() as *mut c_void, ..good };
    for (tensor, said) in [
        (DLTensor { dtype: half, ..good }, "tensor 'x': expected f32 [100], got f16 [100]"),
        (memory.tensor(&less), "tensor 'x': expected f32 [100], got f32 [99]"),
        (DLTensor { ndim: 2, shape: matrix.as_ptr(), ..good }, "got f32 [10, 10]"),
        (DLTensor { strides: strides.as_ptr(), ..good }, "got strides [2] of sizes [100]: not"),
        (DLTensor { byte_offset: 2, ..good }, "misaligned"),
        (DLTensor { byte_offset: 4, ..good }, "expected f32 [100] at a multiple of 16 bytes, got"),
        (DLTensor { data: std::ptr::null_mut(), ..good }, "got a null pointer"),
        (DLTensor { device: elsewhere, ..good }, "got a tensor of cuda:77"),
    ] {
        // SAFETY: sizes and strides are as many as `ndim`; nothing is bound.
        refused(unsafe { adding(device).0.bind().foreign("x", &tensor) }, said);
    }
    if device.kind() == DeviceKind::Cuda {
        let past = DLTensor { byte_offset: 1 << 32, ..good };
        for tensor in [on_host, past] {
            // SAFETY: they have the sizes and strides of `good`; nothing is bound.
            refused(unsafe { adding(device).0.bind().foreign("x", &tensor) }, "foreign memory");
        }
    }
    // SAFETY: `good` has as many sizes and strides as `ndim`; nothing is bound.
    let twice = unsafe { adding(device).0.bind().foreign("x", &good).unwrap().foreign("x", &good) };
    refused(twice, "tensor 'x': expected bound once, got bound twice");
    // SAFETY: `good` has as many sizes and strides as `ndim`; nothing is bound.
    refused(unsafe { adding(device).0.bind().foreign("y", &good) }, "expected one of x, out");
}

/// The emulator's checks; a GPU has none.
fn the_bounds_of_foreign_memory_hold(device: &Device) {
    if !matches!(device.mode(), Some(Mode::Checked | Mode::Counted)) {
        return;
    }
    let add = device.kernel(&kernels::DEVICE, "add_to<float>").unwrap();
    let mut plan = Plan::new(device);
    let x = plan.input("x", DType::F32, &[N + 1]);
    let out = plan.output("out", DType::F32, &[N]);
    // One number more than `out` has.
    plan.launch(&add, Launch::new(1, 128), arguments![x, out, n: N + 1]).unwrap();
    let (mut x, mut out) = (Theirs::new(device, &[0.0; N + 1]), Theirs::new(device, &[0.0; N]));
    // SAFETY: both live to the end of this function; the access past the end is never made.
    let mut binding = unsafe {
        let binder = plan.bind().foreign("x", &x.tensor(&[N as i64 + 1])).unwrap();
        binder.foreign("out", &out.tensor(&[N as i64])).unwrap().finish().unwrap()
    };
    let error = binding.run().unwrap_err();
    let findings = error.findings().unwrap_or_else(|| panic!("{error}"));
    let said = findings.to_string();
    assert!(said.contains("0 bytes past the end of out, which has 400 bytes"), "{said}");
}

fn an_output_is_another_plans_input(device: &Device) {
    let (x, out) = (ones(), Tensor::new(&[N], &[3f32; N]));
    let first = adding(device).0.bind().upload("x", &x).unwrap().upload("out", &out).unwrap();
    let mut first = first.finish().unwrap();
    let (plan, [_, out]) = adding(device);
    let second = plan.bind().share("x", &first, "out").unwrap().upload("out", &x).unwrap();
    let mut second = second.finish().unwrap();
    for _ in 0..2 {
        first.run().unwrap();
        second.run().unwrap();
    }
    // 4 and 5 after the first runs.
    assert_eq!(second.read(out).unwrap().values(), [10.0; N]);
    // What two share is freed with the last.
    drop(first);
    second.run().unwrap();
    assert_eq!(second.read(out).unwrap().values(), [15.0; N]);
    let half = Tensor::rounded(DType::F16, &[N], &[0.0; N]);
    refused(adding(device).0.bind().upload("x", &half), "expected f32 [100], got f16 [100]");
    refused(adding(device).0.bind().share("x", &second, "z"), "got no slot 'z'");
}

/// Without names: scratch, and a part of an output.
fn slots_are_another_plans_inputs(device: &Device) {
    let fill = device.kernel(&kernels::DEVICE, "fill<float>").unwrap();
    let mut plan = Plan::new(device);
    let (scratch, wide) = (plan.scratch(DType::F32, N), plan.output("wide", DType::F32, &[2, N]));
    let halves = [0, N].map(|start| wide.part(start, N));
    for (x, value) in [(scratch, 1.0), (halves[0], 2.0), (halves[1], 3.0)] {
        plan.launch(&fill, Launch::new(1, 128), arguments![x, value, n: N]).unwrap();
    }
    let shared = plan.clone().bind().finish().unwrap();
    plan.keep(scratch);
    let mut first = plan.bind().finish().unwrap();
    for (theirs, expected) in [(scratch, 6.0), (halves[1], 8.0)] {
        let (plan, [x, out]) = adding(device);
        let fives = Tensor::new(&[N], &[5f32; N]);
        let binder = plan.bind().share_slot(x, &first, theirs).unwrap();
        let mut second = binder.upload("out", &fives).unwrap().finish().unwrap();
        first.run().unwrap();
        second.run().unwrap();
        assert_eq!(second.read(out).unwrap().values(), [expected; N]);
    }
    let sharing = |part: Option<usize>, binding: &Binding, theirs: Slot| {
        let (plan, [x, _]) = adding(device);
        plan.bind().share_slot(part.map_or(x, |len| x.part(0, len)), binding, theirs)
    };
    refused(sharing(None, &first, wide), "expected f32 [100], got 200 elements of f32");
    refused(sharing(Some(7), &first, scratch), "expected a whole slot, got 7 elements of it");
    refused(sharing(None, &shared, scratch), "expected memory that is kept (Plan::keep)");
    let (other, [theirs, _]) = adding(device);
    refused(sharing(None, &first, theirs), "slot: expected one of this plan, got one of another");
    let elsewhere = other.bind().share_slot(scratch, &first, scratch);
    refused(elsewhere, "slot: expected one of this plan, got one of another");
}

fn scratch_comes_from_the_caller(device: &Device) {
    let fill = device.kernel(&kernels::DEVICE, "fill<float>").unwrap();
    let add = device.kernel(&kernels::DEVICE, "add_to<float>").unwrap();
    let planned = || {
        let mut plan = Plan::new(device);
        let out = plan.output("out", DType::F32, &[N]);
        let [one, other] = [(); 2].map(|()| plan.scratch(DType::F32, N));
        for (scratch, value) in [(one, 2.0), (other, 5.0)] {
            let arguments = arguments![x: scratch, value, n: N];
            plan.launch(&fill, Launch::new(1, 128), arguments).unwrap();
        }
        plan.zero(out);
        for scratch in [one, other] {
            plan.launch(&add, Launch::new(1, 128), arguments![x: scratch, out, n: N]).unwrap();
        }
        (plan, out)
    };
    let (plan, out) = planned();
    let needed = plan.scratch_bytes();
    assert_eq!(needed, 2 * 512, "two pieces of 400 bytes at multiples of 256");
    let mut workspace = Theirs::new(device, &[0.0; 512]);
    let address = workspace.tensor(&[512]).data as u64;
    let aligned = address.next_multiple_of(256);
    let room = (512 * 4 - (aligned - address)) as usize;
    // SAFETY: the workspace lives to the end of this function.
    let mut binding = unsafe { plan.bind().scratch(aligned, room).unwrap().finish().unwrap() };
    binding.run().unwrap();
    assert_eq!(binding.read(out).unwrap().values(), [7.0; N]);
    // SAFETY: nothing is bound.
    refused(unsafe { planned().0.bind().scratch(aligned, needed - 1) }, "scratch: expected 1024");
    // SAFETY: nothing is bound, for the address is refused.
    refused(unsafe { planned().0.bind().scratch(aligned + 4, needed) }, "at a multiple of 256");
}

/// In memory of their own, and in the caller's, which holds something else.
fn zeros_and_constants_are_written(device: &Device) {
    let add = device.kernel(&kernels::DEVICE, "add_to<float>").unwrap();
    let planned = || {
        let mut plan = Plan::new(device);
        let out = plan.zeros(DType::F32, N);
        let x = plan.constant(&ones());
        plan.launch(&add, Launch::new(1, 128), arguments![x, out, n: N]).unwrap();
        (plan, out)
    };
    let mut workspace = Theirs::new(device, &[9.0; 512]);
    let aligned = (workspace.tensor(&[512]).data as u64).next_multiple_of(256);
    let (own, lent) = (planned(), planned());
    // SAFETY: the workspace lives to the end of this function.
    let binder = unsafe { lent.0.bind().scratch(aligned, 1024).unwrap() };
    for (binder, out, sums) in [(own.0.bind(), own.1, [1.0, 2.0]), (binder, lent.1, [1.0, 1.0])] {
        let mut binding = binder.finish().unwrap();
        for sum in sums {
            // What is lent its owner may use between two runs: each begins with zeros there.
            binding.run().unwrap();
            assert_eq!(binding.read(out).unwrap().values(), [sum; N]);
        }
    }
}

/// Where the emulator looks: a launch that writes less than the output has, then the rest, then poison again.
fn what_was_never_written_is_told(device: &Device) {
    let fill = device.kernel(&kernels::DEVICE, "fill<float>").unwrap();
    let looks = matches!(device.mode(), Some(Mode::Checked | Mode::Counted));
    for (written, rest) in
        [(N, None), (60, Some("160 of 400 bytes were never written, the first of them byte 240"))]
    {
        let mut plan = Plan::new(device);
        let out = plan.output("out", DType::F32, &[N]);
        plan.launch(&fill, Launch::new(1, 128), arguments![x: out, value: 2f32, n: written])
            .unwrap();
        let mut binding = plan.bind().finish().unwrap();
        binding.launch().unwrap();
        let told = binding.all_written().map_err(|e| e.to_string());
        let expected = rest.filter(|_| looks).map(|rest| format!("output 'out': {rest}"));
        assert_eq!(told.err(), expected);
        binding.poison_outputs().unwrap();
        assert_eq!(binding.all_written().is_err(), looks);
    }
}

/// One memory under two names: what a run leaves is what the next begins with, and nothing poisons it.
fn what_is_updated_goes_in_and_comes_out(device: &Device) {
    let add = device.kernel(&kernels::DEVICE, "add_to<float>").unwrap();
    let planned = || {
        let mut plan = Plan::new(device);
        let x = plan.input("x", DType::F32, &[N]);
        let sum = plan.updated("before", "behind", DType::F32, &[N]);
        plan.launch(&add, Launch::new(1, 128), arguments![x, out: sum, n: N]).unwrap();
        assert_eq!((plan.slot("before"), plan.slot("behind")), (Some(sum), Some(sum)));
        (plan, sum)
    };
    let inputs = tensors([("x", ones()), ("before", Tensor::new(&[N], &[5f32; N]))]);
    let mut binding = planned().0.bind().upload_inputs(&inputs).unwrap().finish().unwrap();
    for after in [6.0, 7.0] {
        binding.launch().unwrap();
        binding.poison_outputs().unwrap();
        let outputs = binding.outputs().unwrap();
        assert_eq!(outputs.keys().collect::<Vec<_>>(), ["behind"]);
        assert_eq!(outputs["behind"].values(), [after; N]);
    }
    // Another plan goes on with it, under either name.
    for theirs in ["before", "behind"] {
        let (plan, sum) = planned();
        let binder = plan.bind().upload("x", &inputs["x"]).unwrap();
        let mut next = binder.share("before", &binding, theirs).unwrap().finish().unwrap();
        let before = binding.outputs().unwrap()["behind"].values()[0];
        next.run().unwrap();
        assert_eq!(next.read(sum).unwrap().values(), [before + 1.0; N]);
    }
    let without = tensors([("x", ones())]);
    let message = planned().0.bind().upload_inputs(&without).err().unwrap().to_string();
    assert_eq!(message, "tensor 'before': expected f32 [100], got none");
    let binder = planned().0.bind().upload("x", &inputs["x"]).unwrap();
    let message = binder.finish().err().unwrap().to_string();
    assert_eq!(message, "tensor 'before': expected f32 [100], got none");
}

fn runs_go_to_the_callers_stream(device: &Device) {
    let (x, out) = (ones(), Tensor::new(&[N], &[0f32; N]));
    // A stream that another library would own: here the lab's own, by its handle.
    let theirs = Arc::new(device.stream().unwrap());
    // SAFETY: `theirs` outlives what runs on it.
    let stream = unsafe { Stream::foreign(device, theirs.handle()) };
    let (plan, [_, slot]) = adding(device);
    let binder = plan.bind().upload("x", &x).unwrap().upload("out", &out).unwrap();
    let mut binding = binder.on(stream).finish().unwrap();
    binding.run().unwrap();
    {
        let mut graph = binding.graph().unwrap();
        for _ in 0..4 {
            graph.launch().unwrap();
        }
    }
    theirs.synchronize().unwrap();
    assert_eq!(binding.read(slot).unwrap().values(), [5.0; N]);
}

/// It would run in this device's own queue, or in none.
fn a_stream_of_another_device_is_refused(device: &Device) {
    let (x, out) = (ones(), Tensor::new(&[N], &[0f32; N]));
    let stream = Device::emulator().unwrap().stream().unwrap();
    let (plan, _) = adding(device);
    let binder = plan.bind().upload("x", &x).unwrap().upload("out", &out).unwrap();
    let error = binder.on(stream).finish().err().unwrap().to_string();
    assert!(error.contains("stream: expected one of"), "{error}");
}

fn what_is_not_there_is_named(device: &Device) {
    let out = ones();
    let binder = adding(device).0.bind().upload("out", &out).unwrap();
    let message = binder.finish().err().expect("x is not bound").to_string();
    assert_eq!(message, "tensor 'x': expected f32 [100], got none");
    // A kernel may not write an input, nor get twice what it writes.
    let add = device.kernel(&kernels::DEVICE, "add_to<float>").unwrap();
    let mut plan = Plan::new(device);
    let x = plan.input("x", DType::F32, &[N]);
    let out = plan.output("out", DType::F32, &[N]);
    for (arguments, said) in [
        (arguments![x, out: x, n: N], "argument 'out': expected f32*, got const f32*"),
        (arguments![x: out, out, n: N], "arguments 'x' and 'out': expected memory that lies apart"),
        (arguments![x: x.part(0, 5), out: out.part(90, 10), m: 5], "expected one of x, out, n"),
    ] {
        let message = plan.launch(&add, Launch::new(1, 128), arguments).unwrap_err().to_string();
        assert!(message.contains(said), "'{said}' in: {message}");
    }
    assert!(plan.is_empty(), "what is refused is not planned");
}

fn too_much_memory_is_refused_at_once(device: &Device) {
    let before = device.memory().unwrap();
    let mut plan = Plan::new(device);
    // Each fits, all do not.
    let piece = (before.available() / 3) as usize;
    (0..4).for_each(|_| _ = plan.scratch(DType::U8, piece));
    match plan.bind().finish() {
        Err(Error::Device(DeviceError::OutOfMemory { asked, .. })) => {
            assert_eq!(asked, 4 * piece as u64);
        }
        other => panic!("{:?}", other.err().map(|e| e.to_string())),
    }
}

record! {
    struct Affine {
        factor: f32,
        offset: f32,
        from: [i32; 2],
    }
}
record! {
    struct Table {
        values: [f32; 1000],
    }
}

fn structs_go_by_value(device: &Device) {
    let apply = device.kernel(&kernels::DEVICE, "apply").unwrap();
    let x = device.upload(&[2f32; N]).unwrap();
    let mut out = device.upload(&[0f32; N]).unwrap();
    let affine = Affine { factor: 3.0, offset: 0.5, from: [10, 20] };
    let launch = Launch::new(1, 128);
    let rest = [("x", x.arg()), ("n", N.into())];
    let arguments = [&rest[..], &[("affine", Arg::record(&affine)), ("out", out.arg_mut())]];
    // SAFETY: both have N elements.
    unsafe { apply.launch(launch, &arguments.concat()) }.unwrap();
    let values = out.download().unwrap();
    assert!(values[10..80].iter().all(|&v| v == 6.5), "{values:?}");
    assert!(values[..10].iter().chain(&values[80..]).all(|&v| v == 0.0), "{values:?}");

    let mut table = Table { values: [0.0; 1000] };
    table.values.iter_mut().enumerate().for_each(|(n, v)| *v = n as f32);
    let mut out = device.upload(&[0f32; 1000]).unwrap();
    let look_up = device.kernel(&kernels::DEVICE, "look_up").unwrap();
    let arguments = [("table", Arg::record(&table)), ("out", out.arg_mut())];
    // SAFETY: a thread for each of the 1000.
    unsafe { look_up.launch(Launch::new(1, 1000), &arguments) }.unwrap();
    assert_eq!(out.download().unwrap(), table.values);
    wrong_structs_are_refused(&apply, &x);
}

fn wrong_structs_are_refused(apply: &lab_device::Kernel, x: &lab_device::Buffer<f32>) {
    fn said<R: lab_device::Record>(
        apply: &lab_device::Kernel,
        x: &lab_device::Buffer<f32>,
        value: &R,
    ) -> String {
        let arguments = [("affine", Arg::record(value)), ("x", x.arg()), ("n", 1.into())];
        apply.bind(Launch::new(1, 1), &arguments).unwrap_err().to_string()
    }
    mod renamed {
        lab_device::record! { pub struct Affine { factor: f32, shift: f32, from: [i32; 2] } }
    }
    mod retyped {
        lab_device::record! { pub struct Affine { factor: f32, offset: i32, from: [i32; 2] } }
    }
    mod reordered {
        lab_device::record! { pub struct Affine { offset: f32, factor: f32, from: [i32; 2] } }
    }
    let other = renamed::Affine { factor: 0.0, shift: 0.0, from: [0; 2] };
    assert!(said(apply, x, &other).ends_with("got Affine without a field 'offset'"));
    let other = retyped::Affine { factor: 0.0, offset: 0, from: [0; 2] };
    assert!(said(apply, x, &other).ends_with("got Affine::offset of i32, not f32"));
    let other = reordered::Affine { offset: 0.0, factor: 0.0, from: [0; 2] };
    assert!(said(apply, x, &other).ends_with("got Affine::factor of 4 bytes at 4, not of 4 at 0"));
    let table = Table { values: [0.0; 1000] };
    assert!(said(apply, x, &table).ends_with("argument 'affine': expected Affine, got Table"));
}
