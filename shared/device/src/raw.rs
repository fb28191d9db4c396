//! Memory on a device, without a type: owned, or somebody else's.

use std::ops::Range;

use crate::argument::Arg;
use crate::communicator::Window;
use crate::device::Inner;
use crate::{Device, ElementType, Error, Mode, Stream, TensorMap};

/// Bytes on a device. Freed when dropped, unless they are somebody else's.
#[derive(Debug)]
pub struct RawBuffer {
    device: Device,
    address: u64,
    bytes: usize,
    owner: Owner,
    /// Of memory of a communicator's: dropped behind the buffer.
    _window: Option<Window>,
}

/// What bytes are set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fill {
    /// Zero in every type.
    Zero = 0,
    /// NaN in each float format, −1 in the signed integers; to the emulator's checks, unwritten. What
    /// a kernel fails to write shows.
    Poison = 0xFF,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Device,
    /// On the emulator its checks know of the memory until this is dropped.
    Foreign,
}

impl RawBuffer {
    pub(crate) fn unwritten(device: &Device, bytes: usize) -> Result<Self, Error> {
        let address = device.allocate(bytes)?;
        Ok(Self { device: device.clone(), address, bytes, owner: Owner::Device, _window: None })
    }

    /// Memory that somebody else owns: on a GPU, of that GPU; on the emulator, of this process. It
    /// counts as written.
    ///
    /// # Errors
    /// [`Error::Foreign`]: no memory of this device, or fewer bytes there; or, on the emulator, bytes
    /// that it has been told of already.
    ///
    /// # Safety
    /// The bytes are there, and nobody frees them or, while work of this device uses them, writes
    /// them until this is dropped.
    pub unsafe fn foreign(device: &Device, address: u64, bytes: usize) -> Result<Self, Error> {
        let refuse = |got: String| {
            let expected = format!("{bytes} bytes of {} at {address:#x}", device.name());
            Error::Foreign { expected, got }
        };
        if address == 0 && bytes > 0 {
            return Err(refuse("a null pointer".into()));
        }
        match &*device.inner {
            Inner::Cuda(_) if bytes == 0 => {}
            Inner::Cuda(cuda) => {
                let (start, length) = cuda.allocation_of(address).map_err(refuse)?;
                let room = start + length as u64 - address;
                if room < bytes as u64 {
                    return Err(refuse(format!("{room} to the end of its allocation")));
                }
            }
            // SAFETY: the caller's promise.
            Inner::Emulator(_) => unsafe {
                lab_emulator::adopt(address as *mut u8, bytes)
                    .map_err(|e| refuse(e.to_string()))?;
            },
        }
        Ok(Self { device: device.clone(), address, bytes, owner: Owner::Foreign, _window: None })
    }

    /// Memory on a GPU that others reach, which is given back when the buffer is dropped.
    pub(crate) fn of_window(device: &Device, address: u64, bytes: usize, window: Window) -> Self {
        let (device, owner) = (device.clone(), Owner::Foreign);
        Self { device, address, bytes, owner, _window: Some(window) }
    }

    /// The device that it is on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Where it is.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Its length.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Of these bytes those that nobody has written, neither the host nor a kernel: where the first is, from the
    /// part's start on, and how many. `None` where there are none, or nobody looks: on a GPU, and on the
    /// emulator without checks.
    pub fn never_written(&self, part: Range<usize>) -> Option<(usize, usize)> {
        let looks = matches!(self.device.mode(), Some(Mode::Checked | Mode::Counted));
        let address = (self.address + part.start as u64) as *const u8;
        looks.then(|| lab_emulator::never_written(address, part.len())).flatten()
    }

    /// Sets bytes, in the order of a stream or of the device's own queue.
    ///
    /// # Errors
    /// [`Error::TooSmall`], or the driver's.
    ///
    /// # Safety
    /// No work under way elsewhere uses them.
    pub unsafe fn fill(
        &self,
        part: Range<usize>,
        with: Fill,
        stream: Option<&Stream>,
    ) -> Result<(), Error> {
        self.holds(part.start, part.len())?;
        let (address, byte) = (self.address + part.start as u64, with as u8);
        self.device.fill(address, byte, part.len(), with == Fill::Poison, stream)
    }

    /// Copies from host memory to the byte `start` and those behind it.
    ///
    /// # Errors
    /// As [`RawBuffer::fill`].
    ///
    /// # Safety
    /// As [`RawBuffer::fill`].
    pub unsafe fn write(&self, start: usize, from: &[u8]) -> Result<(), Error> {
        self.holds(start, from.len())?;
        self.device.copy_in(self.address + start as u64, from)
    }

    /// Copies to host memory from the byte `start` on, once all work before it is done.
    ///
    /// # Errors
    /// As [`RawBuffer::fill`].
    pub fn read(&self, start: usize, to: &mut [u8]) -> Result<(), Error> {
        self.holds(start, to.len())?;
        self.device.copy_out(self.address + start as u64, to)
    }

    /// Copies bytes of another buffer of the device to the byte `start` and those behind it, in the
    /// order of a stream or of the device's own queue. The two do not overlap.
    ///
    /// # Errors
    /// As [`RawBuffer::fill`]; also a buffer of another device.
    ///
    /// # Safety
    /// As [`RawBuffer::fill`].
    pub unsafe fn copy(
        &self,
        start: usize,
        from: &Self,
        part: Range<usize>,
        stream: Option<&Stream>,
    ) -> Result<(), Error> {
        self.holds(start, part.len())?;
        from.holds(part.start, part.len())?;
        from.on(&self.device)?;
        let (from, to) = (from.address + part.start as u64, self.address + start as u64);
        self.device.copy(from, to, part.len(), stream)
    }

    fn holds(&self, start: usize, bytes: usize) -> Result<(), Error> {
        if start.checked_add(bytes).is_some_and(|end| end <= self.bytes) {
            Ok(())
        } else {
            Err(Error::TooSmall { expected: start.saturating_add(bytes), got: self.bytes })
        }
    }

    /// That it is on this device.
    ///
    /// # Errors
    /// It is on another.
    pub(crate) fn on(&self, device: &Device) -> Result<(), Error> {
        if self.device.identity() == device.identity() {
            return Ok(());
        }
        let (expected, got) = (device.name(), self.device.name());
        Err(Error::OtherDevice { what: "buffer", expected, got })
    }

    /// Elements of it as an argument. It says nothing about who else uses them: [`Kernel::bind`]
    /// looks at one launch, whoever makes several sees to their order.
    ///
    /// # Errors
    /// It ends before them.
    ///
    /// [`Kernel::bind`]: crate::Kernel::bind
    pub fn arg(
        &self,
        element: ElementType,
        part: Range<usize>,
        writable: bool,
    ) -> Result<Arg<'_>, Error> {
        self.arg_from(0, element, part, writable)
    }

    /// The same, of elements that are counted from the byte `start` on.
    ///
    /// # Errors
    /// As [`RawBuffer::arg`].
    pub fn arg_from(
        &self,
        start: usize,
        element: ElementType,
        part: Range<usize>,
        writable: bool,
    ) -> Result<Arg<'_>, Error> {
        let (size, bytes) = (element.size(), self.bytes.saturating_sub(start));
        if part.start > part.end || part.end.saturating_mul(size) > bytes {
            return Err(Error::TooSmall { expected: part.end, got: bytes / size });
        }
        let address = self.address + (start + part.start * size) as u64;
        Ok(Arg::buffer(&self.device, address, part.len() * size, element, writable))
    }
}

impl RawBuffer {
    /// A tensor in elements of it, as an argument that is a tensor map. Of other uses of them it says
    /// as little as [`RawBuffer::arg`].
    ///
    /// # Errors
    /// As [`RawBuffer::arg`]; [`Error::TensorMap`]: there is no such map, or the tensor ends behind them.
    pub fn tensor_map(
        &self,
        part: Range<usize>,
        map: &TensorMap,
        writable: bool,
    ) -> Result<Arg<'_>, Error> {
        self.tensor_map_from(0, part, map, writable)
    }

    /// The same, of elements that are counted from the byte `start` on.
    ///
    /// # Errors
    /// As [`RawBuffer::tensor_map`].
    pub fn tensor_map_from(
        &self,
        start: usize,
        part: Range<usize>,
        map: &TensorMap,
        writable: bool,
    ) -> Result<Arg<'_>, Error> {
        let Arg { address, bytes, .. } = self.arg_from(start, map.dtype.into(), part, writable)?;
        map.check_at(address, bytes as u64, writable)?;
        let words = self.device.encode_tensor_map(address, map)?;
        let columns = map.columns();
        Ok(Arg::tensor_map(&self.device, address, bytes, words, columns, writable))
    }
}

impl Drop for RawBuffer {
    fn drop(&mut self) {
        match (self.owner, &*self.device.inner) {
            (Owner::Device, _) => self.device.free(self.address, self.bytes),
            (Owner::Foreign, Inner::Emulator(_)) => {
                lab_emulator::disown(self.address as *const u8);
            }
            // Work that uses it may be under way: its owner waits before freeing it, as for its own.
            (Owner::Foreign, Inner::Cuda(_)) => {}
        }
    }
}
