//! `lab devices`.

use lab_device::{Device, DeviceKind, Facts, Selector};
use serde_json::json;

use crate::Common;
use crate::failure::Failure;
use crate::table::{bytes, table};

pub(crate) fn run(common: &Common) -> Result<(), Failure> {
    common.selector()?;
    let mut all = vec![Device::emulator()?];
    let missing = match Device::cuda_count() {
        Ok(count) => {
            for n in 0..count {
                all.push(Device::open(Selector::Cuda(n))?);
            }
            (count == 0).then(|| "the driver reports no GPU".to_owned())
        }
        Err(error) => Some(error.to_string()),
    };
    if common.json {
        let facts: Vec<_> = all.iter().map(Device::facts).collect();
        say!("{}", json!({ "devices": facts, "no_gpu_because": missing }));
        return Ok(());
    }
    for device in &all {
        say!("{}", device.name());
        let mut rows = table(&["fact", ">value"]);
        for (name, value) in lines(device.facts()) {
            rows.add_row([name.to_owned(), value]);
        }
        say!("{rows}");
    }
    if let Some(reason) = missing {
        say!("No GPU: {reason}");
    }
    Ok(())
}

fn lines(f: &Facts) -> Vec<(&'static str, String)> {
    let three = |v: [u32; 3]| format!("{} × {} × {}", v[0], v[1], v[2]);
    let yes = |v: bool| if v { "yes" } else { "no" }.to_owned();
    let mut all = vec![
        ("multiprocessors", f.multiprocessors.to_string()),
        ("threads per warp", f.warp.to_string()),
        ("threads per block, at most", f.max_threads_per_block.to_string()),
        ("threads per multiprocessor", f.max_threads_per_multiprocessor.to_string()),
        ("block size, at most", three(f.max_block)),
        ("grid size, at most", three(f.max_grid)),
        ("shared memory per block, at most", bytes(f.max_shared_per_block as f64)),
        ("shared memory per multiprocessor", bytes(f.shared_per_multiprocessor as f64)),
        ("cooperative launch", yes(f.cooperative_launch)),
        ("blocks of a cluster, at most", f.max_cluster.to_string()),
        ("memory", bytes(f.memory as f64)),
    ];
    if f.kind == DeviceKind::Cuda {
        let (major, minor) = f.compute_capability;
        // Two transfers a clock.
        let bandwidth =
            2.0 * f64::from(f.memory_clock_khz) * 1e3 * f64::from(f.memory_bus_bits) / 8.0;
        all.splice(
            0..0,
            [
                ("compute capability", format!("{major}.{minor} ({})", f.arch)),
                ("driver", f.driver.clone()),
                ("clock", format!("{} MHz", f.clock_khz / 1000)),
                ("memory clock", format!("{} MHz", f.memory_clock_khz / 1000)),
                ("memory bus", format!("{} bits", f.memory_bus_bits)),
                ("memory bandwidth by these", format!("{}/s", bytes(bandwidth))),
                ("L2 cache", bytes(f.l2 as f64)),
                ("registers per block", f.registers_per_block.to_string()),
                ("registers per multiprocessor", f.registers_per_multiprocessor.to_string()),
                ("ECC", yes(f.ecc)),
            ],
        );
    }
    let lanes = f.f32_lanes().map(|lanes| ("lanes in f32 per multiprocessor", lanes.to_string()));
    all.extend(lanes.into_iter().chain(f.further.iter().cloned()));
    all
}
