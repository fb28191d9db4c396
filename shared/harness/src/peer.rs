//! What a user would take in place of a kernel: a library on the same GPU, code on the host.
//!
//! A [`Peer`] computes what the versions of a family compute, from the same inputs. Its result is
//! held against the same reference within the same bounds before it is timed, and its line stands
//! in the same table. It is no version: it has no kernel of the lab, is not part of a suite, and
//! may be missing from a machine, which is said and fails nothing.

use std::time::{Duration, Instant};

use lab_device::{DType, Device, DeviceKind};

use crate::timing::Times;
use crate::{Dims, Error, Options, Prepared, Products, Tensors};

/// Where a peer runs, which decides the clock that times it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// On the GPU of the versions, in the device's own queue: device events time it, as they do
    /// the versions.
    Gpu,
    /// On the host's cores: the host's clock times it, with the inputs in the host's memory.
    Host,
}

/// What a peer says of itself.
#[derive(Clone, Copy, Debug)]
pub struct PeerInfo {
    /// Its name in tables and records: `cublas`.
    pub name: &'static str,
    /// The family that it is shown with.
    pub family: &'static str,
    /// What is called, and how: `cublasGemmStridedBatchedEx, f32 without TF32`.
    pub what: &'static str,
    /// The types it runs in.
    pub dtypes: &'static [DType],
    /// Where it runs.
    pub place: Place,
    /// What it rounds the operands of its products to, where the type has more digits: it is held to the bounds of a
    /// version that does the same.
    pub products: Option<Products>,
}

/// A library, or code on the host, that computes what a family computes.
///
/// The first peer of a family that runs on the GPU is the one that its versions are shown as a
/// share of.
pub trait Peer: Sync {
    /// What it says of itself.
    fn info(&self) -> &PeerInfo;

    /// Whether a problem is worth its time: what would take minutes is left out, and said to be.
    fn is_cheap_enough(&self, _dims: &Dims, _dtype: DType) -> bool {
        true
    }

    /// What it is here, for records: `cuBLAS 13.0.2`; `None` where it has no version of its own or
    /// is not on this machine.
    fn version(&self, _device: &Device) -> Option<String> {
        None
    }

    /// Sets it up, for inputs that the family's versions have accepted.
    ///
    /// # Errors
    /// [`lab_device::Error::NoLibrary`] where the library is not on this machine: its message says
    /// how to get it.
    fn prepare(
        &self,
        device: &Device,
        inputs: &Tensors,
        options: &Options,
    ) -> Result<Box<dyn Prepared>, Error>;
}

impl PeerInfo {
    /// Whether it can be shown beside the versions on this device: a library of GPUs cannot on the
    /// emulator.
    pub fn runs_beside(&self, device: &Device) -> bool {
        self.place == Place::Host || device.kind() == DeviceKind::Cuda
    }
}

/// Warms up, then times on the host's clock: between 3 and `runs` runs, as many as the budget
/// allows.
///
/// # Errors
/// A run's.
pub fn time_on_host(
    prepared: &mut dyn Prepared,
    runs: usize,
    budget: Duration,
) -> Result<Times, Error> {
    let mut one = || -> Result<Duration, Error> {
        let start = Instant::now();
        prepared.launch()?;
        Ok(start.elapsed())
    };
    let first = one()?;
    let runs = crate::timing::runs_within(budget, first, runs);
    let times: Vec<Duration> = (0..runs).map(|_| one()).collect::<Result<_, _>>()?;
    Ok(Times::of(&times))
}
