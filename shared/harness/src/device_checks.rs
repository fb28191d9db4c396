//! Checks of the device layer itself, on whatever device: buffers, refusals, memory, streams,
//! graphs, globals, grids. `cargo test` and `lab selftest` both run them.

use half::f16;
use lab_device::{Device, DeviceKind, Error, Launch};

use crate::suite::Check;

/// The kernels that are launched.
#[allow(missing_docs)]
pub mod kernels {
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// Each panics where the device does not do what it should.
pub static CHECKS: &[Check] = &[
    Check::new(
        "buffers_start_poisoned_and_copies_are_whole",
        buffers_start_poisoned_and_copies_are_whole,
    ),
    Check::new("wrong_copies_are_refused", wrong_copies_are_refused),
    Check::new(
        "wrong_launches_are_refused_before_they_run",
        wrong_launches_are_refused_before_they_run,
    ),
    Check::new(
        "memory_is_counted_and_its_end_is_an_error",
        memory_is_counted_and_its_end_is_an_error,
    ),
    Check::new(
        "streams_come_after_what_was_queued_and_a_join_orders_the_rest",
        streams_come_after_what_was_queued_and_a_join_orders_the_rest,
    ),
    Check::new(
        "a_graph_makes_its_launches_again_each_time",
        a_graph_makes_its_launches_again_each_time,
    ),
    Check::new(
        "globals_are_set_and_dynamic_shared_memory_holds",
        globals_are_set_and_dynamic_shared_memory_holds,
    ),
    Check::new("blocks_of_a_grid_wait_for_each_other", blocks_of_a_grid_wait_for_each_other),
];

fn buffers_start_poisoned_and_copies_are_whole(device: &Device) {
    let mut buffer = device.buffer::<f32>(1000).unwrap();
    assert!(buffer.download().unwrap().iter().all(|v| v.is_nan()), "{}", device.name());
    assert!(device.buffer::<f16>(3).unwrap().download().unwrap().iter().all(|v| v.is_nan()));
    assert_eq!(device.buffer::<i32>(3).unwrap().download().unwrap(), [-1; 3]);
    let values: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    buffer.write(&values).unwrap();
    let mut other = device.buffer(1000).unwrap();
    other.copy_from(&buffer).unwrap();
    buffer.zero().unwrap();
    assert_eq!(other.download().unwrap(), values);
    assert_eq!(buffer.download().unwrap(), vec![0.0; 1000]);
    assert!(device.upload::<f32>(&[]).unwrap().download().unwrap().is_empty());
}

fn wrong_copies_are_refused(device: &Device) {
    let mut buffer = device.buffer::<i32>(4).unwrap();
    let message = buffer.write(&[1, 2, 3]).unwrap_err().to_string();
    assert_eq!(message, "buffer: expected 4 elements, got 3");
    assert!(buffer.read(&mut [0; 5]).is_err());
    assert!(buffer.copy_from(&device.buffer(5).unwrap()).is_err());
    let elsewhere = Device::emulator().unwrap().buffer::<i32>(4).unwrap();
    let message = buffer.copy_from(&elsewhere).unwrap_err().to_string();
    assert!(message.starts_with("buffer: expected one of "), "{message}");
}

fn wrong_launches_are_refused_before_they_run(device: &Device) {
    let fill = device.kernel(&kernels::DEVICE, "fill<float>").unwrap();
    let mut x = device.upload(&[0f32; 32]).unwrap();
    let mut half = device.upload(&[f16::ZERO; 32]).unwrap();
    let once = Launch::new(1, 32);
    let refused = |result: Result<(), Error>, said: &str| {
        let message = result.unwrap_err().to_string();
        assert!(message.contains(said), "'{said}' in: {message}");
    };
    let (value, n) = (("value", 1f32.into()), ("n", 1i32.into()));
    refused(
        fill.bind(once, &[("x", x.arg_mut()), value]).map(drop),
        "fill<float>: argument 'n': expected i32, got none",
    );
    refused(
        fill.bind(once, &[("y", x.arg()), value, n]).map(drop),
        "argument 'y': expected one of x, value, n",
    );
    refused(
        fill.bind(once, &[("x", x.arg_mut()), value, n, n]).map(drop),
        "argument 'n': expected once, got twice",
    );
    refused(
        fill.bind(once, &[("x", half.arg_mut()), value, n]).map(drop),
        "argument 'x': expected f32*, got f16*",
    );
    refused(
        fill.bind(once, &[("x", x.arg()), value, n]).map(drop),
        "argument 'x': expected f32*, got const f32*",
    );
    refused(
        fill.bind(once, &[("x", x.arg_mut()), ("value", 1i32.into()), n]).map(drop),
        "expected f32, got the integer 1",
    );
    refused(
        fill.bind(once, &[("x", x.arg_mut()), value, ("n", 1f32.into())]).map(drop),
        "expected i32, got the number 1",
    );
    refused(
        fill.bind(once, &[("x", x.arg_mut()), value, ("n", (1u64 << 31).into())]).map(drop),
        "got 2147483648, which is not",
    );
    refused(
        fill.bind(once, &[("x", 1u64.into()), value, n]).map(drop),
        "argument 'x': expected f32*, got the integer 1",
    );
    let add = device.kernel(&kernels::DEVICE, "add_to<float>").unwrap();
    let both = [("x", x.arg()), ("out", x.arg()), ("n", 1.into())];
    refused(add.bind(once, &both).map(drop), "argument 'out': expected f32*, got const f32*");
    let mut elsewhere = Device::emulator().unwrap().buffer::<f32>(32).unwrap();
    refused(
        fill.bind(once, &[("x", elsewhere.arg_mut()), value, n]).map(drop),
        "f32* of another device",
    );
    for (launch, said) in [
        (Launch::new(0, 32), "grid.x: expected 1 to"),
        (Launch::new(1, 0), "block.x: expected 1 to"),
        (Launch::new(1, 1025), "block.x: expected 1 to 1024, got 1025"),
        (Launch::new_3d([1, 65536, 1], [32, 1, 1]), "grid.y: expected 1 to 65535, got 65536"),
        (Launch::new_3d([1, 1, 70000], [32, 1, 1]), "grid.z: expected 1 to 65535, got 70000"),
        (Launch::new_3d([1, 1, 1], [32, 32, 2]), "threads per block: expected 1 to 1024, got 2048"),
        (Launch::new_3d([1, 1, 1], [1, 1, 65]), "block.z: expected 1 to 64, got 65"),
        (Launch::new(1, 32).shared(1 << 20), "dynamic shared memory in bytes: expected 0 to"),
        (Launch::new(1 << 20, 1024).cooperative(), "blocks of a cooperative launch: expected 1 to"),
    ] {
        refused(fill.bind(launch, &[("x", x.arg_mut()), value, ("n", 32.into())]).map(drop), said);
    }
    assert_eq!(x.download().unwrap(), [0.0; 32], "nothing ran");
    refused(device.kernel(&kernels::DEVICE, "fill<double>").map(|_| ()), "got 'fill<double>'");
    refused(
        // SAFETY: there is no such variable.
        unsafe { fill.set_global("nothing", &[1i32]) },
        "global variable: 'nothing' is not listed",
    );
    refused(
        // SAFETY: it is of another size, and stays as it is.
        unsafe { fill.set_global("offset", &[1i32; 2]) },
        "global variable 'offset': expected 4 bytes, got 8",
    );
    let stream = Device::emulator().unwrap().stream().unwrap();
    refused(
        // SAFETY: one element of 32.
        unsafe { fill.launch_on(&stream, once, &[("x", x.arg_mut()), value, n]) },
        "stream: expected one of",
    );
}

fn memory_is_counted_and_its_end_is_an_error(device: &Device) {
    // One of its own: on an emulator the other checks allocate at the same time.
    let device = &match device.mode() {
        Some(mode) => Device::emulator_in(mode).unwrap(),
        None => device.clone(),
    };
    let before = device.memory().unwrap();
    let a = device.buffer::<f32>(1 << 20).unwrap();
    let b = device.buffer::<u8>(1000).unwrap();
    let during = device.memory().unwrap();
    assert_eq!(during.live - before.live, (4 << 20) + 1000);
    assert_eq!(during.allocations - before.allocations, 2);
    drop((a, b));
    let after = device.memory().unwrap();
    assert_eq!(after.live, before.live);
    assert!(after.peak >= during.live && after.total >= after.free);
    let asked = after.total as usize * 2;
    match device.buffer::<u8>(asked) {
        Err(Error::OutOfMemory { asked: a, free, total }) => {
            assert_eq!(a, asked as u64);
            assert!(free <= total && total == after.total);
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(device.buffer::<f64>(usize::MAX), Err(Error::OutOfMemory { .. })));
    device.buffer::<f32>(16).unwrap().download().unwrap();
}

fn streams_come_after_what_was_queued_and_a_join_orders_the_rest(device: &Device) {
    // On a GPU enough to be under way still when the next launch could begin; the emulator has no need of it.
    let n = if device.kind() == DeviceKind::Cuda { 1 << 20 } else { 1 << 13 };
    let fill = device.kernel(&kernels::DEVICE, "fill<float>").unwrap();
    let add = device.kernel(&kernels::DEVICE, "add_to<float>").unwrap();
    let launch = Launch::new(n as u32 / 256, 256);
    let size = ("n", n.into());
    let (mut x, mut out) = (device.buffer::<f32>(n).unwrap(), device.buffer::<f32>(n).unwrap());
    let (one, two) = (device.stream().unwrap(), device.stream().unwrap());
    for round in 0..20 {
        let value = round as f32;
        // SAFETY: both have n elements. The stream begins behind this launch, and is joined before x is used again.
        unsafe { fill.launch(launch, &[("x", out.arg_mut()), ("value", value.into()), size]) }
            .unwrap();
        // SAFETY: x has n elements. Nothing uses it before this launch, nor after it until the stream is joined.
        unsafe {
            fill.launch_on(&one, launch, &[("x", x.arg_mut()), ("value", 1f32.into()), size])
        }
        .unwrap();
        one.join().unwrap();
        // SAFETY: both have n elements; the stream two begins behind this, and `download` waits for it.
        unsafe { add.launch(launch, &[("x", x.arg()), ("out", out.arg_mut()), size]) }.unwrap();
        // SAFETY: nothing uses either until `download`, which waits for all streams.
        unsafe { add.launch_on(&two, launch, &[("x", x.arg()), ("out", out.arg_mut()), size]) }
            .unwrap();
        // Reading waits for all streams.
        assert_eq!(out.download().unwrap()[n - 1], value + 2.0, "{}", device.name());
    }
    two.synchronize().unwrap();
}

fn a_graph_makes_its_launches_again_each_time(device: &Device) {
    let add = device.kernel(&kernels::DEVICE, "add_to<float>").unwrap();
    let x = device.upload(&[1f32; 64]).unwrap();
    let mut out = device.upload(&[0f32; 64]).unwrap();
    let mut graph = device
        .graph(|| {
            for _ in 0..3 {
                let arguments = [("x", x.arg()), ("out", out.arg_mut()), ("n", 64.into())];
                // SAFETY: both have 64 elements, and live as long as the graph.
                unsafe { add.launch(Launch::new(1, 64), &arguments) }?;
            }
            Ok(())
        })
        .unwrap();
    for _ in 0..4 {
        graph.launch().unwrap();
    }
    drop(graph);
    assert_eq!(out.download().unwrap(), [12f32; 64], "recording ran nothing");
    // A failure inside leaves the device usable.
    // SAFETY: it is refused.
    let failed = device.graph(|| unsafe { add.launch(Launch::new(0, 1), &[]) });
    if device.kind() == DeviceKind::Cuda {
        assert!(failed.is_err());
    }
    assert_eq!(device.upload(&[5i32]).unwrap().download().unwrap(), [5]);
}

fn globals_are_set_and_dynamic_shared_memory_holds(device: &Device) {
    let weigh = device.kernel(&kernels::DEVICE, "weigh").unwrap();
    let mut out = device.buffer::<f32>(8).unwrap();
    // SAFETY: whoever else launches a kernel of this file has none that reads these two variables: `weigh` alone does.
    unsafe { weigh.set_global("weights", &[1f32, 2.0, 3.0, 4.0]) }.unwrap();
    // SAFETY: no kernel reads it now.
    unsafe { weigh.set_global("offset", &[10i32]) }.unwrap();
    // SAFETY: eight threads, and as many elements.
    unsafe { weigh.launch(Launch::new(1, 8), &[("out", out.arg_mut())]) }.unwrap();
    assert_eq!(out.download().unwrap(), [11.0, 12.0, 13.0, 14.0, 11.0, 12.0, 13.0, 14.0]);
    // SAFETY: the download has waited for the launch.
    unsafe { weigh.set_global("offset", &[-1i32]) }.unwrap();
    // SAFETY: eight threads, and as many elements.
    unsafe { weigh.launch(Launch::new(1, 8), &[("out", out.arg_mut())]) }.unwrap();
    assert_eq!(out.download().unwrap()[..2], [0.0, 1.0]);

    let reverse = device.kernel(&kernels::DEVICE, "reverse").unwrap();
    for n in [1usize, 33, 1024] {
        let values: Vec<i32> = (0..n as i32).collect();
        let mut x = device.upload(&values).unwrap();
        let launch = Launch::new(1, n as u32).shared(4 * n);
        // SAFETY: x has n elements.
        unsafe { reverse.launch(launch, &[("x", x.arg_mut()), ("n", n.into())]) }.unwrap();
        assert!(x.download().unwrap().into_iter().rev().eq(values));
    }
}

fn blocks_of_a_grid_wait_for_each_other(device: &Device) {
    let kernel = device.kernel(&kernels::DEVICE, "grid_syncs").unwrap();
    let blocks = device.facts().multiprocessors.min(20);
    let mut x = device.upload(&vec![0i32; blocks as usize]).unwrap();
    let mut y = device.buffer::<i32>(blocks as usize).unwrap();
    let launch = Launch::new(blocks, 64).cooperative();
    // SAFETY: the kernel's blocks have an element each.
    unsafe {
        kernel.launch(launch, &[("x", x.arg_mut()), ("y", y.arg_mut()), ("rounds", 6.into())])
    }
    .unwrap();
    assert_eq!(x.download().unwrap(), vec![6; blocks as usize]);
}
