//! What must hold of launches that may begin before the one before them has ended, on every device.

use lab_device::{DType, Device, DeviceKind, Error as DeviceError, Launch};

use crate::device_checks::kernels;
use crate::plan::{Plan, Slot};
use crate::suite::Check;
use crate::{Binding, Error, Tensor, arguments};

/// Each panics where it does not hold.
pub static CHECKS: &[Check] = &[
    Check::new("a_chain_that_overlaps_computes_the_same", a_chain_that_overlaps),
    Check::new("a_cooperative_launch_overlaps_nothing", a_cooperative_launch),
];

/// Launches of a run.
const LAUNCHES: usize = 24;
/// Threads of a block.
const THREADS: usize = 256;

/// Whether a launch is to overlap the one before it.
pub fn launch(blocks: usize, overlaps: bool) -> Launch {
    let launch = Launch::new(blocks as u32, THREADS as u32);
    if overlaps { launch.overlap_previous() } else { launch }
}

/// `LAUNCHES` times `to = 2 from + weights`, to and fro between two slots, in which `n` numbers lie.
fn chain(device: &Device, n: usize, overlaps: bool) -> Result<(Plan, Slot), Error> {
    let kernel = device.kernel(&kernels::OVERLAP, "double_and_add")?;
    let mut plan = Plan::new(device);
    let weights = plan.input("weights", DType::F32, &[n]);
    let mut from = plan.state("x", DType::F32, &[n]);
    let result = from;
    let mut to = plan.scratch(DType::F32, n);
    for step in 0..LAUNCHES {
        // The first of a run overlaps the last of the run before.
        let launch = launch(n.div_ceil(THREADS), overlaps && step % 8 != 5);
        plan.launch(&kernel, launch, arguments![weights, x: from, out: to, n: n])?;
        (from, to) = (to, from);
    }
    Ok((plan, result))
}

/// Runs it twice, then three times as a graph.
fn results(mut binding: Binding, slot: Slot) -> Result<Vec<f64>, Error> {
    binding.run()?;
    binding.run()?;
    let mut graph = binding.graph()?;
    for _ in 0..3 {
        graph.launch()?;
    }
    drop(graph);
    Ok(binding.read(slot)?.values())
}

fn a_chain_that_overlaps(device: &Device) {
    let n = if device.kind() == DeviceKind::Cuda { (1 << 20) + 5 } else { 1000 };
    let weights: Vec<f32> = (0..n).map(|i| (i % 7) as f32 - 3.0).collect();
    let first: Vec<f32> = (0..n).map(|i| (i % 5) as f32).collect();
    // Twice a number is exact, so that there is one rounding, however it is computed.
    let mut expected: Vec<f32> = first.clone();
    for _ in 0..5 * LAUNCHES {
        expected.iter_mut().zip(&weights).for_each(|(x, w)| *x = 2.0 * *x + w);
    }
    let expected: Vec<f64> = expected.into_iter().map(f64::from).collect();
    let (weights, first) = (Tensor::new(&[n], &weights), Tensor::new(&[n], &first));
    for overlaps in [false, true] {
        for streamed in [false, true] {
            let (plan, slot) = chain(device, n, overlaps).unwrap();
            let binder = plan.bind().upload("weights", &weights).unwrap();
            let binder = binder.upload("x", &first).unwrap();
            let binder = if streamed { binder.on(device.stream().unwrap()) } else { binder };
            let got = results(binder.finish().unwrap(), slot).unwrap();
            let same = got.iter().zip(&expected).all(|(g, e)| g == e);
            assert!(same && got.len() == n, "{overlaps} {streamed} on {}", device.name());
        }
    }
}

fn a_cooperative_launch(device: &Device) {
    let kernel = device.kernel(&kernels::OVERLAP, "double_and_add").unwrap();
    let (x, mut out) = (device.upload(&[1f32; 32]).unwrap(), device.upload(&[0f32; 32]).unwrap());
    let arguments =
        [("weights", x.arg()), ("x", x.arg()), ("out", out.arg_mut()), ("n", 32.into())];
    let both = launch(1, true).cooperative();
    let error = kernel.bind(both, &arguments).unwrap_err();
    assert!(matches!(error, DeviceError::OverlapCooperative { .. }), "{error}");
    // SAFETY: each has 32 elements.
    unsafe { kernel.launch(launch(1, true), &arguments) }.unwrap();
    assert_eq!(out.download().unwrap(), [3.0; 32]);
}
