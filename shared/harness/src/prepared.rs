//! A version that is ready to run, and its counterpart on the host.

use lab_device::{Device, Kernel, Launch};

use crate::{Error, Tensors};

/// A version set up on a device: inputs uploaded, outputs allocated and poisoned.
pub trait Prepared {
    /// Runs the kernels once. On a GPU this may return before they have ended.
    fn launch(&mut self) -> Result<(), lab_device::Error>;
    /// The outputs, once all launches have ended.
    fn outputs(&self) -> Result<Tensors, Error>;
    /// Whether the launches have written all of the outputs, as far as the device looks: the emulator with its
    /// checks does.
    ///
    /// # Errors
    /// [`Error::NeverWritten`].
    fn all_written(&self) -> Result<(), Error> {
        Ok(())
    }
    /// The kernels that it launches, each with the size of its launch; none of what is no kernel of the lab.
    fn launches(&self) -> Vec<(Kernel, Launch)> {
        Vec::new()
    }
    /// The same kernels, without the sizes.
    fn kernels(&self) -> Vec<Kernel> {
        self.launches().into_iter().map(|(kernel, _)| kernel).collect()
    }
    /// Bytes of device memory that its inputs take; `None` of what does not count them.
    fn input_bytes(&self) -> Option<u64> {
        None
    }
    /// Makes every output NaN again, so that a later launch that writes nothing shows. What is updated in place
    /// stays: the next launch reads it.
    fn poison_outputs(&mut self) -> Result<(), Error>;
}

/// Sets a run up and launches it once. Also the most device memory that it took beyond its inputs, in bytes: outputs and scratch, as
/// the device counted them; `None` of what does not count its inputs. Nothing else may allocate on the device meanwhile.
///
/// # Errors
/// Those of `prepare` and of the launch.
pub fn launch_measured(
    device: &Device,
    prepare: impl FnOnce() -> Result<Box<dyn Prepared>, Error>,
) -> Result<(Box<dyn Prepared>, Option<u64>), Error> {
    let before = device.restart_peak();
    let mut prepared = prepare()?;
    prepared.launch()?;
    let taken = device.memory()?.peak - before;
    let peak = prepared.input_bytes().map(|inputs| taken.saturating_sub(inputs));
    Ok((prepared, peak))
}

/// Fills an output.
pub type HostWork = Box<dyn FnMut(&mut [f32])>;

/// The counterpart of a version on the host's cores.
pub struct Host {
    /// Computes the output `out`.
    pub work: HostWork,
    /// Where to.
    pub out: Vec<f32>,
}

impl Host {
    /// Runs it once.
    pub fn run(&mut self) {
        (self.work)(&mut self.out);
    }
}
