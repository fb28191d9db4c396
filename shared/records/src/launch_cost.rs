//! What a launch costs.

use std::time::Duration;

use lab_device::{Device, Error, Launch};
use lab_harness::device_checks;
use lab_harness::timing::Times;

use crate::record::{Measurement, Of};

/// The family of what is of no stage.
pub const FAMILY: &str = "launch";

/// A thousand kernels that do next to nothing, one after the other on a
/// stream, and as one graph. And what the barrier of a grid costs that keeps one launch going: a thousand
/// of those, with a block a multiprocessor.
///
/// # Errors
/// A launch's.
pub fn measure(device: &Device) -> Result<Vec<Measurement>, Error> {
    const TIMES: usize = 1000;
    let each = |version: &str, shape: String, times: &[Duration]| {
        let Times { median_us, p10_us, p90_us, runs } = Times::of(times);
        let one = |us: f64| us / TIMES as f64;
        let (median_us, p10_us, p90_us) = (one(median_us), one(p10_us), one(p90_us));
        let times = Times { median_us, p10_us, p90_us, runs };
        Measurement::timed(FAMILY, version.into(), Of::Version, &shape, "f32", times)
    };
    let kernel = device.kernel(&device_checks::kernels::DEVICE, "fill<float>")?;
    let mut x = device.buffer::<f32>(32)?;
    let arguments = [("x", x.arg_mut()), ("value", 0f32.into()), ("n", 32.into())];
    let one = kernel.bind(Launch::new(1, 32), &arguments)?;
    // SAFETY: x lives to the end of this function, which waits for the launches.
    let mut launches = || (0..TIMES).try_for_each(|_| unsafe { one.run(None) });
    launches()?;
    let shape = || format!("launches={TIMES}");
    let stream = each("stream", shape(), &device.time(20, &mut launches)?);
    let mut graph = device.graph(&mut launches)?;
    graph.launch()?;
    let graph = each("graph", shape(), &device.time(20, || graph.launch())?);

    let kernel = device.kernel(&device_checks::kernels::DEVICE, "grid_syncs")?;
    let blocks = device.facts().multiprocessors;
    let mut x = device.upload(&vec![0i32; blocks as usize])?;
    let mut y = device.buffer::<i32>(blocks as usize)?;
    let launch = Launch::new(blocks, 256).cooperative();
    let arguments = [("x", x.arg_mut()), ("y", y.arg_mut()), ("rounds", TIMES.into())];
    let one = kernel.bind(launch, &arguments)?;
    // SAFETY: both buffers live to the end of this function, and nothing else uses them.
    let mut syncs = || unsafe { one.run(None) };
    syncs()?;
    let syncs =
        each("grid_sync", format!("blocks={blocks},syncs={TIMES}"), &device.time(20, &mut syncs)?);
    Ok(vec![stream, graph, syncs])
}
