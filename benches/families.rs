//! `cargo bench`: every family, its versions side by side.
//!
//! On a GPU, criterion plans and reports, and device events measure. Without one nothing is timed,
//! for what the emulator takes says nothing about a kernel: a table of what each version asks of the
//! memory system is printed instead, and labelled as that.

mod model;

use std::time::Duration;

use criterion::{Bencher, Criterion, Throughput};
use lab_device::{Device, DeviceKind, Selector};
use lab_harness::{Options, Peer, Place, Prepared, Problem, Version, compare};

fn main() {
    let device = Selector::from_env().and_then(Device::open).unwrap_or_else(|error| {
        eprintln!("{error}");
        std::process::exit(4);
    });
    if device.kind() == DeviceKind::Emulator {
        if let Err(error) = model::print() {
            eprintln!("{error}");
            std::process::exit(1);
        }
        return;
    }
    println!("{}", device.name());
    let mut criterion = Criterion::default()
        .warm_up_time(Duration::from_millis(200))
        .measurement_time(Duration::from_secs(1))
        .sample_size(20)
        .configure_from_args();
    for version in lab_registry::versions() {
        bench(&mut criterion, &device, version);
    }
    for stage in lab_registry::STAGES {
        for peer in stage.peers.iter().filter(|p| p.info().place == Place::Gpu) {
            let family = peer.info().family;
            let version = stage.versions.iter().find(|v| v.info().family.name() == family);
            let version = version.expect("a peer is of a family of its stage");
            bench_library(&mut criterion, &device, *version, *peer);
        }
    }
    criterion.final_summary();
}

fn bench(criterion: &mut Criterion, device: &Device, version: &dyn Version) {
    let info = version.info();
    if let Some(mistake) = version.expected(&Options::default()).mistake() {
        println!("{} is wrong on purpose and is not timed: {}", info.full_name(), mistake.because);
        return;
    }
    let mut group = criterion.benchmark_group(info.family.name());
    for &dtype in info.dtypes {
        let problem = Problem::new(info.timed(dtype), dtype);
        let bytes = version.cost(&problem.dims, dtype).bytes;
        group.throughput(Throughput::Bytes(bytes as u64));
        // Set up once criterion's filter has let it through, and checked before it is timed.
        let mut prepared = None;
        group.bench_function(format!("{}/{dtype}", info.full_name()), |bencher| {
            let prepared = prepared.get_or_insert_with(|| {
                let case = lab_harness::suite::check(version, device, &problem);
                assert!(case.passed(), "{}", case.describe());
                let inputs = version.inputs(&problem);
                version.prepare(device, &inputs, &problem.options).expect("it just ran")
            });
            time(bencher, device, prepared.as_mut());
        });
    }
    group.finish();
}

/// What a user would call, on the problem of the family's versions, of which `version` is one.
fn bench_library(
    criterion: &mut Criterion,
    device: &Device,
    version: &dyn Version,
    peer: &dyn Peer,
) {
    let (info, own) = (version.info(), peer.info());
    let mut group = criterion.benchmark_group(own.family);
    for &dtype in own.dtypes {
        let problem = Problem::new(info.timed(dtype), dtype);
        let inputs = version.inputs(&problem);
        let mut prepared = match peer.prepare(device, &inputs, &problem.options) {
            Ok(prepared) => prepared,
            Err(error) => {
                println!("{}: {error}", own.name);
                break;
            }
        };
        let bytes = version.cost(&problem.dims, dtype).bytes;
        group.throughput(Throughput::Bytes(bytes as u64));
        let mut checked = false;
        group.bench_function(format!("{}/{dtype}", own.name), |bencher| {
            if !checked {
                prepared.launch().expect("it was set up");
                let outputs = prepared.outputs().expect("it just ran");
                for c in compare(version, &inputs, &outputs, &problem.options, dtype) {
                    assert!(c.passed(), "{}: {c:?}", own.name);
                }
                checked = true;
            }
            time(bencher, device, prepared.as_mut());
        });
    }
    group.finish();
}

fn time(bencher: &mut Bencher<'_>, device: &Device, prepared: &mut dyn Prepared) {
    bencher.iter_custom(|times| {
        let spans = device.time(times as usize, || prepared.launch()).expect("it just ran");
        spans.iter().sum()
    });
}
