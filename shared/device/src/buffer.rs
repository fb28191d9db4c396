//! Typed memory on a device.

use std::marker::PhantomData;

use crate::argument::Arg;
use crate::{Device, Element, Error, Fill, RawBuffer, TensorMap};

/// `len` elements on a device. Freed when dropped.
#[derive(Debug)]
pub struct Buffer<T> {
    raw: RawBuffer,
    _elements: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    pub(crate) fn new(device: &Device, len: usize) -> Result<Self, Error> {
        let mut buffer = Self::unwritten(device, len)?;
        buffer.poison()?;
        Ok(buffer)
    }

    pub(crate) fn unwritten(device: &Device, len: usize) -> Result<Self, Error> {
        let raw = RawBuffer::unwritten(device, len.saturating_mul(size_of::<T>()))?;
        Ok(Self { raw, _elements: PhantomData })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.raw.bytes() / size_of::<T>()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.raw.bytes()
    }

    /// Sets every byte to [`Fill::Poison`].
    pub fn poison(&mut self) -> Result<(), Error> {
        // SAFETY: all of the buffer, borrowed alone; launches that use it come in the same queue, or their stream is joined first.
        unsafe { self.raw.fill(0..self.bytes(), Fill::Poison, None) }
    }

    /// Sets every byte to zero.
    pub fn zero(&mut self) -> Result<(), Error> {
        // SAFETY: all of the buffer, borrowed alone; launches that use it come in the same queue, or their stream is joined first.
        unsafe { self.raw.fill(0..self.bytes(), Fill::Zero, None) }
    }

    /// Copies from host memory, of the same length.
    pub fn write(&mut self, from: &[T]) -> Result<(), Error> {
        self.as_long(from.len())?;
        // SAFETY: as many bytes as the buffer has, borrowed alone; launches that use it come in the same queue, or their stream is joined
        // first.
        unsafe { self.raw.write(0, bytemuck::cast_slice(from)) }
    }

    /// Copies from another buffer of the same device and length.
    pub fn copy_from(&mut self, from: &Self) -> Result<(), Error> {
        self.as_long(from.len())?;
        // SAFETY: two buffers of as many bytes, the written one borrowed alone; launches that use them come in the same queue, or their
        // stream is joined first.
        unsafe { self.raw.copy(0, &from.raw, 0..from.bytes(), None) }
    }

    /// Copies to host memory, of the same length, once all work before it is done.
    pub fn read(&self, to: &mut [T]) -> Result<(), Error> {
        self.as_long(to.len())?;
        self.raw.read(0, bytemuck::cast_slice_mut(to))
    }

    /// A copy in host memory.
    pub fn download(&self) -> Result<Vec<T>, Error> {
        let mut all = vec![T::zeroed(); self.len()];
        self.read(&mut all)?;
        Ok(all)
    }

    /// Where it is, for a library that is handed addresses; refused where it has fewer than `len`
    /// elements or is of another device.
    pub(crate) fn address_on(&self, device: &Device, len: usize) -> Result<u64, Error> {
        if self.len() < len {
            return Err(Error::TooSmall { expected: len, got: self.len() });
        }
        self.raw.on(device)?;
        Ok(self.raw.address())
    }

    fn as_long(&self, len: usize) -> Result<(), Error> {
        if self.len() == len {
            Ok(())
        } else {
            Err(Error::Length { expected: self.len(), got: len })
        }
    }

    /// As an argument that the kernel only reads.
    pub fn arg(&self) -> Arg<'_> {
        Arg::buffer(self.raw.device(), self.raw.address(), self.raw.bytes(), T::DTYPE.into(), false)
    }

    /// As an argument that is a tensor map, by which the kernel only loads.
    ///
    /// # Errors
    /// [`Error::TensorMap`].
    pub fn tensor_map(&self, map: &TensorMap) -> Result<Arg<'_>, Error> {
        self.raw.tensor_map(0..self.bytes() / map.dtype.size(), map, false)
    }

    /// As an argument that is a tensor map, by which the kernel may store.
    ///
    /// # Errors
    /// [`Error::TensorMap`].
    pub fn tensor_map_mut(&mut self, map: &TensorMap) -> Result<Arg<'_>, Error> {
        self.raw.tensor_map(0..self.bytes() / map.dtype.size(), map, true)
    }

    /// As an argument that the kernel may write.
    pub fn arg_mut(&mut self) -> Arg<'_> {
        Arg::buffer(self.raw.device(), self.raw.address(), self.raw.bytes(), T::DTYPE.into(), true)
    }
}
