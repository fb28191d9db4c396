//! What a version asks of the memory system: a model, no measurement.

use std::io::Write as _;

use lab_device::emulator::{Counts, Operation, Profile};
use lab_device::{Device, Mode};
use lab_harness::{Error, Options, Problem, Version};

const HEAD: &str = "\
A model, no measurement, and no kernel's speed. At the size that is timed on a GPU: the least bytes that
must move, and the arithmetic. Counted by the emulator at a small size: 32-byte sectors of device memory,
and wavefronts of shared memory, each as a multiple of the fewest for as many different bytes (1.00 is
best); and the most wavefronts that one request took, its bank conflict.
";

/// A line for each version and type. Arguments that are no options narrow it, as they narrow
/// criterion: to the versions and families whose names contain one of them.
pub(crate) fn print() -> Result<(), Error> {
    let wanted: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let device = Device::emulator_in(Mode::Counted)?;
    println!("{}: nothing is timed.\n\n{HEAD}", device.name());
    for stage in lab_registry::STAGES {
        let versions = stage.versions.iter().copied().filter(|version| {
            let info = version.info();
            let names = [info.full_name(), info.family.name().to_owned()];
            wanted.is_empty() || wanted.iter().any(|w| names.iter().any(|n| n.contains(w.as_str())))
        });
        let mut family = "";
        for version in versions {
            if family != version.info().family.name() {
                family = version.info().family.name();
                println!(
                    "{:<28} {:<5} {:>10} {:>10} {:>10} | {:>8} {:>8} {:>8}  at",
                    family,
                    "type",
                    "least MB",
                    "MFLOP",
                    "FLOP/byte",
                    "sectors",
                    "shared",
                    "conflict"
                );
            }
            print_costs(version, &device)?;
        }
    }
    Ok(())
}

fn print_costs(version: &dyn Version, device: &Device) -> Result<(), Error> {
    let info = version.info();
    let wrong = version.expected(&Options::default()).mistake().is_some();
    for &dtype in info.dtypes {
        let cost = version.cost(&info.timed(dtype), dtype);
        let counted = if wrong {
            "  wrong on purpose: not counted".to_owned()
        } else {
            counted(version, device, &Problem::new(info.small(), dtype))?
        };
        println!(
            "{:<28} {:<5} {:>10.1} {:>10.1} {:>10.2} | {counted}",
            info.full_name(),
            dtype,
            cost.bytes * 1e-6,
            cost.flops * 1e-6,
            cost.flops / cost.bytes,
        );
        std::io::stdout().flush().ok();
    }
    Ok(())
}

/// The counters of one run.
fn counted(version: &dyn Version, device: &Device, problem: &Problem) -> Result<String, Error> {
    let inputs = version.inputs(problem);
    let mut prepared = version.prepare(device, &inputs, &problem.options)?;
    device.take_profile(); // what setting up has launched
    prepared.launch()?;
    let profile = device.take_profile();
    let (global, shared) = (sum(&profile, Operation::global), sum(&profile, Operation::shared));
    let ratio = |c: &Counts| match c.ideal {
        0 => "-".to_owned(),
        ideal => format!("{:.2}", c.cost as f64 / ideal as f64),
    };
    let degree = if shared.ideal == 0 { "-".to_owned() } else { shared.degree.to_string() };
    Ok(format!("{:>8} {:>8} {degree:>8}  {}", ratio(&global), ratio(&shared), problem.dims))
}

fn sum(profile: &Profile, which: fn(Operation) -> bool) -> Counts {
    let mut sum = Counts::default();
    profile.lines.iter().filter(|l| which(l.operation)).for_each(|l| sum.add(&l.counts));
    sum
}
