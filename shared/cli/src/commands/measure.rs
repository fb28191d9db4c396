//! What `bench`, `compare` and `tune` share: a result is checked, then timed.

use std::time::{Duration, Instant};

use lab_device::{DType, Device};
use lab_harness::peer::time_on_host;
use lab_harness::timing::{self, Times};
use lab_harness::{
    Comparison, Error, Options, Peer, Place, Posed, Prepared, Tensor, Tensors, Version, compare,
    tensor,
};
use lab_records::record::Of;

use crate::failure::Failure;

/// How long the runs of one line may take together, but for the least number of runs.
pub(crate) const BUDGET: Duration = Duration::from_millis(500);

/// A result, and its times where it is right.
pub(crate) struct Measured {
    /// Of the output that is furthest off, measured by its bound; a NaN is furthest.
    pub(crate) comparison: Comparison,
    /// The largest of all outputs.
    pub(crate) relative_error: f64,
    /// The largest of all outputs.
    pub(crate) element_share: f64,
    pub(crate) times: Option<Times>,
    /// As a replayed graph, in µs, of a version that is told so.
    pub(crate) replay_us: Option<f64>,
    /// Registers a thread and local memory a thread in bytes, of several kernels the most; on a
    /// GPU.
    pub(crate) usage: Option<(u32, u32)>,
    /// Device memory beyond the inputs, in bytes, where somebody counts it.
    pub(crate) peak_bytes: Option<u64>,
}

impl Measured {
    /// Of what came out, not timed.
    ///
    /// # Panics
    /// There is no output.
    pub(crate) fn of(outputs: Vec<Comparison>) -> Self {
        let largest = |of: fn(&Comparison) -> f64| outputs.iter().map(of).fold(0.0, f64::max);
        let (relative_error, element_share) =
            (largest(|c| c.relative_error), largest(|c| c.element_share));
        let worst = outputs.into_iter().max_by(|a, b| a.share().total_cmp(&b.share()));
        let comparison = worst.expect("a version has outputs");
        Self {
            comparison,
            relative_error,
            element_share,
            times: None,
            replay_us: None,
            usage: None,
            peak_bytes: None,
        }
    }

    pub(crate) fn passed(&self) -> bool {
        self.comparison.passed()
    }
}

/// How a result that is right is timed.
#[derive(Clone, Copy)]
pub(crate) struct Runs {
    /// Launches at most; none where it is zero.
    pub(crate) count: usize,
    /// Whether a replayed graph is timed, too, of a version that is told so.
    pub(crate) replayed: bool,
}

/// Compares the outputs of a prepared run that has been launched; where they are right, times more launches.
pub(crate) fn finish(
    version: &dyn Version,
    device: &Device,
    posed: &Posed,
    prepared: &mut dyn Prepared,
    runs: Runs,
) -> Result<Measured, Failure> {
    let outputs = prepared.outputs()?;
    let measured = Measured::of(posed.compare(version, &outputs, posed.problem.dtype));
    drop(outputs);
    let measured = Measured { usage: usage(prepared)?, ..measured };
    timed(version, device, measured, prepared, runs)
}

/// The same with times of a run that has been launched, unless the result is wrong.
pub(crate) fn timed(
    version: &dyn Version,
    device: &Device,
    of: Measured,
    prepared: &mut dyn Prepared,
    runs: Runs,
) -> Result<Measured, Failure> {
    let times = if of.passed() && runs.count > 0 {
        Some(timing::time_within(device, prepared, runs.count, BUDGET)?)
    } else {
        None
    };
    let replay_us = match times {
        Some(_) if runs.replayed && version.replayed() => Some(timing::replayed(device, prepared)?),
        _ => None,
    };
    Ok(Measured { times, replay_us, ..of })
}

/// Registers a thread and local memory a thread in bytes of the kernels that it launches, the most
/// of each; `None` off a GPU.
pub(crate) fn usage(prepared: &dyn Prepared) -> Result<Option<(u32, u32)>, lab_device::Error> {
    let mut most: Option<(u32, u32)> = None;
    for kernel in prepared.kernels() {
        if let Some(used) = kernel.usage()? {
            let (registers, local) = most.unwrap_or_default();
            most = Some((registers.max(used.registers), local.max(used.local)));
        }
    }
    Ok(most)
}

/// What became of a peer.
pub(crate) enum Beside {
    /// It ran, and may run again.
    Ran(Box<Measured>, Box<dyn Prepared>),
    /// It did not, and this is why; nothing fails for it.
    Not(String),
}

/// A peer on the problem of its family's versions, of which `version` is one.
pub(crate) fn peer(
    peer: &dyn Peer,
    version: &dyn Version,
    device: &Device,
    posed: &Posed,
    runs: usize,
) -> Result<Beside, Failure> {
    let info = peer.info();
    let problem = &posed.problem;
    if !peer.is_cheap_enough(&problem.dims, problem.dtype) {
        let what = format!("{} is too large for it to be waited for", problem.dims);
        return Ok(Beside::Not(what));
    }
    let mut prepared = match peer.prepare(device, &posed.inputs, &problem.options) {
        Ok(prepared) => prepared,
        Err(Error::Device(error)) if error.is_unavailable() => {
            return Ok(Beside::Not(error.to_string()));
        }
        Err(error) => return Err(error.into()),
    };
    prepared.launch()?;
    let outputs = prepared.outputs()?;
    let measured = Measured::of(posed.compare(version, &outputs, problem.dtype));
    drop(outputs);
    if !measured.passed() {
        return Ok(Beside::Not(format!("its {}: not timed", measured.comparison.complaint())));
    }
    let times = match info.place {
        Place::Gpu => timing::time_within(device, prepared.as_mut(), runs, BUDGET)?,
        Place::Host => time_on_host(prepared.as_mut(), runs.min(20), BUDGET)?,
    };
    Ok(Beside::Ran(Box::new(Measured { times: Some(times), ..measured }), prepared))
}

/// What a line of a peer is of.
pub(crate) fn of(peer: &dyn Peer) -> Of {
    match peer.info().place {
        Place::Gpu => Of::Library,
        Place::Host => Of::Host,
    }
}

/// Why a version cannot run on a device: a GPU that lacks its instructions.
pub(crate) fn too_old(version: &dyn Version, device: &Device) -> Option<String> {
    let arch = &device.facts().arch;
    let source = version.sources().into_iter().find(|s| !s.runs_on(arch))?;
    Some(format!(
        "{} is left out: {} needs {}, this GPU is {arch}",
        version.info().full_name(),
        source.file,
        source.least_arch
    ))
}

/// The version's counterpart on the host's cores, timed by the host's clock, and its result.
pub(crate) fn time_counterpart(
    version: &dyn Version,
    inputs: &Tensors,
) -> Option<(timing::Times, Comparison)> {
    let mut host = version.cpu(inputs)?;
    host.run();
    let times: Vec<Duration> = (0..10)
        .map(|_| {
            let start = Instant::now();
            host.run();
            start.elapsed()
        })
        .collect();
    let name = version.info().outputs.first()?.name;
    let outputs = tensor::tensors([(name, Tensor::new(&[host.out.len()], &host.out))]);
    let compared = compare(version, inputs, &outputs, &Options::default(), DType::F32);
    Some((timing::Times::of(&times), compared.into_iter().next()?))
}
