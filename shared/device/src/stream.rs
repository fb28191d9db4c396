//! Streams and graphs: work that overlaps, and work that is launched as one.

use std::fmt;
use std::sync::Arc;

use crate::device::Inner;
use crate::{Device, Error};

/// A queue of launches that may overlap with other queues.
///
/// A device has one queue of its own, in which copies, fills and [`crate::Kernel::launch`] go. What
/// is launched on a stream comes after everything that was queued there before; the device's own
/// queue waits for the stream where it is told to ([`Stream::join`]), and reading or freeing a
/// buffer waits for all streams. On the emulator everything runs at once, in the order of the
/// calls.
#[derive(Debug)]
pub struct Stream {
    pub(crate) device: Device,
    pub(crate) raw: Option<crate::cuda::RawStream>,
    /// Its number on the emulator.
    pub(crate) queue: u64,
}

impl Stream {
    pub(crate) fn new(device: &Device) -> Result<Self, Error> {
        let raw = match &*device.inner {
            Inner::Cuda(cuda) => Some(cuda.new_stream()?),
            Inner::Emulator(_) => None,
        };
        Ok(Self { device: device.clone(), raw, queue: crate::emulated::new_queue() })
    }

    /// One whose launches go before those of other streams where both wait for a multiprocessor: collectives, for which other devices
    /// wait.
    ///
    /// # Errors
    /// The driver's.
    pub fn urgent(device: &Device) -> Result<Self, Error> {
        let raw = match &*device.inner {
            Inner::Cuda(cuda) => Some(cuda.new_urgent_stream()?),
            Inner::Emulator(_) => None,
        };
        Ok(Self { device: device.clone(), raw, queue: crate::emulated::new_queue() })
    }

    /// A stream of somebody else's: `handle` is a `CUstream` (a `cudaStream_t`) of this device, of
    /// which 0 is the default one. What is launched here is ordered against that stream's own work
    /// and nothing else. On the emulator, where everything runs at once, the handle is not looked at.
    ///
    /// # Safety
    /// The stream is one of this device's primary context and outlives this and all that runs on it.
    pub unsafe fn foreign(device: &Device, handle: *mut std::ffi::c_void) -> Self {
        let raw = match &*device.inner {
            Inner::Cuda(cuda) => Some(cuda.foreign_stream(handle)),
            Inner::Emulator(_) => None,
        };
        Self { device: device.clone(), raw, queue: crate::emulated::new_queue() }
    }

    /// Its `CUstream`, for libraries that launch into it; null on the emulator.
    pub fn handle(&self) -> *mut std::ffi::c_void {
        self.raw.as_ref().map_or(std::ptr::null_mut(), crate::cuda::RawStream::handle)
    }

    /// That it is a stream of this device.
    ///
    /// # Errors
    /// It is of another.
    pub fn check_device(&self, device: &Device) -> Result<(), Error> {
        if self.device.identity() == device.identity() {
            return Ok(());
        }
        let (expected, got) = (device.name(), self.device.name());
        Err(Error::OtherDevice { what: "stream", expected, got })
    }

    /// Lets what is launched here from now on wait for all that the device's own queue holds by now;
    /// the host goes on.
    pub fn follow(&self) -> Result<(), Error> {
        match (&*self.device.inner, &self.raw) {
            (Inner::Cuda(cuda), Some(raw)) => cuda.follow(raw),
            _ => Ok(()),
        }
    }

    /// Lets what is launched here from now on wait for what another stream, or the device's own queue, holds by now; the host goes on.
    pub fn wait_for(&self, other: Option<&Self>) -> Result<(), Error> {
        self.order(other, true)
    }

    /// Lets another stream, or the device's own queue, wait for all that was launched here; the host goes on.
    pub fn hold(&self, other: Option<&Self>) -> Result<(), Error> {
        self.order(other, false)
    }

    fn order(&self, other: Option<&Self>, is_first: bool) -> Result<(), Error> {
        if let Some(other) = other {
            other.check_device(&self.device)?;
        }
        let (Inner::Cuda(cuda), Some(own)) = (&*self.device.inner, &self.raw) else {
            return Ok(());
        };
        let other = other.and_then(|other| other.raw.as_ref());
        if is_first {
            cuda.order_streams(other, Some(own))
        } else {
            cuda.order_streams(Some(own), other)
        }
    }

    /// Waits, on the host, for all that was launched here.
    pub fn synchronize(&self) -> Result<(), Error> {
        match (&*self.device.inner, &self.raw) {
            (Inner::Cuda(cuda), Some(raw)) => cuda.synchronize_stream(raw),
            _ => {
                lab_emulator::grids_ended();
                Ok(())
            }
        }
    }

    /// Lets the device's own queue wait for all that was launched here; the host goes on.
    pub fn join(&self) -> Result<(), Error> {
        match (&*self.device.inner, &self.raw) {
            (Inner::Cuda(cuda), Some(raw)) => cuda.join(raw),
            _ => Ok(()),
        }
    }
}

/// A place in a stream, for whoever waits for what is before it and not for what comes behind. On the emulator, where everything runs at
/// once, there is nothing to wait for.
#[derive(Debug)]
pub struct Mark {
    device: Device,
    raw: Option<crate::cuda::RawMark>,
}

impl Mark {
    /// Of a device's streams.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &Device) -> Result<Self, Error> {
        let raw = match &*device.inner {
            Inner::Cuda(cuda) => Some(cuda.new_mark()?),
            Inner::Emulator(_) => None,
        };
        Ok(Self { device: device.clone(), raw })
    }

    /// Puts it behind all that a stream, or the device's own queue, holds by now.
    ///
    /// # Errors
    /// The stream is another device's; the driver's.
    pub fn set(&self, on: Option<&Stream>) -> Result<(), Error> {
        self.with(on, crate::cuda::Cuda::mark)
    }

    /// Lets a stream, or the device's own queue, wait for all that is before it; the host goes on.
    ///
    /// # Errors
    /// As [`Mark::set`].
    pub fn hold(&self, on: Option<&Stream>) -> Result<(), Error> {
        self.with(on, crate::cuda::Cuda::wait_for_mark)
    }

    /// Whether all is done that was before it when it was set.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn has_passed(&self) -> Result<bool, Error> {
        match (&*self.device.inner, &self.raw) {
            (Inner::Cuda(cuda), Some(raw)) => cuda.has_passed(raw),
            _ => Ok(true),
        }
    }

    fn with(
        &self,
        on: Option<&Stream>,
        call: impl FnOnce(
            &crate::cuda::Cuda,
            &crate::cuda::RawMark,
            Option<&crate::cuda::RawStream>,
        ) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if let Some(on) = on {
            on.check_device(&self.device)?;
        }
        match (&*self.device.inner, &self.raw) {
            (Inner::Cuda(cuda), Some(raw)) => call(cuda, raw, on.and_then(|on| on.raw.as_ref())),
            _ => Ok(()),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if let (Inner::Cuda(cuda), Some(raw)) = (&*self.device.inner, &self.raw) {
            cuda.drop_stream(raw);
        }
    }
}

/// Launches recorded once, to be launched again as one: a CUDA graph. On the emulator, the
/// launches themselves, made again each time.
pub struct Graph<'a> {
    device: Device,
    stream: Option<Arc<Stream>>,
    raw: Option<crate::cuda::RawGraph>,
    work: Box<dyn FnMut() -> Result<(), Error> + 'a>,
}

impl fmt::Debug for Graph<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Graph").field("device", &self.device).finish_non_exhaustive()
    }
}

impl<'a> Graph<'a> {
    pub(crate) fn new(
        device: &Device,
        stream: Option<Arc<Stream>>,
        work: impl FnMut() -> Result<(), Error> + 'a,
    ) -> Result<Self, Error> {
        let mut work: Box<dyn FnMut() -> Result<(), Error> + 'a> = Box::new(work);
        let raw = match &*device.inner {
            Inner::Cuda(cuda) => {
                Some(cuda.capture(stream.as_ref().and_then(|s| s.raw.as_ref()), &mut work)?)
            }
            Inner::Emulator(_) => None,
        };
        Ok(Self { device: device.clone(), stream, raw, work })
    }

    /// Launches all of it in the queue that it was recorded in.
    pub fn launch(&mut self) -> Result<(), Error> {
        match (&*self.device.inner, &self.raw) {
            (Inner::Cuda(cuda), Some(raw)) => {
                cuda.launch_graph(raw, self.stream.as_ref().and_then(|s| s.raw.as_ref()))
            }
            _ => {
                // It begins when all before it has ended, and it has ended when what follows begins.
                lab_emulator::grids_ended();
                let outcome = (self.work)();
                lab_emulator::grids_ended();
                outcome
            }
        }
    }
}

impl Drop for Graph<'_> {
    fn drop(&mut self) {
        if let (Inner::Cuda(cuda), Some(raw)) = (&*self.device.inner, &self.raw) {
            cuda.drop_graph(raw);
        }
    }
}
