//! Typed memory on a device.

use std::marker::PhantomData;
use std::ops::Range;

use crate::launch::Arg;
use crate::{Device, Element, Error};

/// `len` elements on a device. Freed when dropped.
#[derive(Debug)]
pub struct Buffer<T> {
    device: Device,
    address: u64,
    len: usize,
    _elements: PhantomData<T>,
}

impl<T: Element> Buffer<T> {
    pub(crate) fn new(device: &Device, len: usize) -> Result<Self, Error> {
        let mut buffer = Self::unwritten(device, len)?;
        buffer.poison()?;
        Ok(buffer)
    }

    pub(crate) fn unwritten(device: &Device, len: usize) -> Result<Self, Error> {
        let bytes = len.saturating_mul(size_of::<T>());
        let address = device.allocate(bytes)?;
        Ok(Self { device: device.clone(), address, len, _elements: PhantomData })
    }

    /// Elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes.
    pub fn bytes(&self) -> usize {
        self.len * size_of::<T>()
    }

    /// Sets every byte to `0xFF`: NaN in each float format, −1 in the signed integers. What a
    /// kernel fails to write shows.
    pub fn poison(&mut self) -> Result<(), Error> {
        self.device.fill(self.address, 0xFF, self.bytes(), true)
    }

    /// Sets every byte to zero.
    pub fn zero(&mut self) -> Result<(), Error> {
        self.device.fill(self.address, 0, self.bytes(), false)
    }

    /// Copies from host memory, of the same length.
    pub fn write(&mut self, from: &[T]) -> Result<(), Error> {
        if from.len() != self.len {
            return Err(Error::Length { expected: self.len, got: from.len() });
        }
        self.device.copy_in(self.address, bytemuck::cast_slice(from))
    }

    /// Copies from another buffer of the same device and length.
    pub fn copy_from(&mut self, from: &Self) -> Result<(), Error> {
        if from.len != self.len {
            return Err(Error::Length { expected: self.len, got: from.len });
        }
        if from.device.identity() != self.device.identity() {
            return Err(Error::OtherDevice {
                what: "buffer",
                expected: self.device.name(),
                got: from.device.name(),
            });
        }
        self.device.copy(from.address, self.address, self.bytes())
    }

    /// Copies to host memory, of the same length, once all work before it is done.
    pub fn read(&self, to: &mut [T]) -> Result<(), Error> {
        if to.len() != self.len {
            return Err(Error::Length { expected: self.len, got: to.len() });
        }
        self.device.copy_out(self.address, bytemuck::cast_slice_mut(to))
    }

    /// A copy in host memory.
    pub fn download(&self) -> Result<Vec<T>, Error> {
        let mut all = vec![T::zeroed(); self.len];
        self.read(&mut all)?;
        Ok(all)
    }

    /// As an argument of which the kernel reads the first `len` elements; refused where there are
    /// fewer.
    pub fn arg_of(&self, len: usize) -> Result<Arg<'_>, Error> {
        self.at_least(len)?;
        Ok(self.arg())
    }

    /// As an argument of which the kernel writes the first `len` elements; refused where there are
    /// fewer.
    pub fn arg_mut_of(&mut self, len: usize) -> Result<Arg<'_>, Error> {
        self.at_least(len)?;
        Ok(self.arg_mut())
    }

    /// Where it is, for a library that is handed addresses; refused where it has fewer than `len`
    /// elements or is of another device.
    pub(crate) fn address_on(&self, device: &Device, len: usize) -> Result<u64, Error> {
        self.at_least(len)?;
        if self.device.identity() != device.identity() {
            return Err(Error::OtherDevice {
                what: "buffer",
                expected: device.name(),
                got: self.device.name(),
            });
        }
        Ok(self.address)
    }

    fn at_least(&self, len: usize) -> Result<(), Error> {
        if self.len < len {
            return Err(Error::TooSmall { expected: len, got: self.len });
        }
        Ok(())
    }

    /// Several parts of it as arguments of one launch, each with whether the kernel may write it.
    ///
    /// # Errors
    /// A part ends past the buffer, or one that is written overlaps another.
    pub fn arg_parts(&mut self, parts: &[(Range<usize>, bool)]) -> Result<Vec<Arg<'_>>, Error> {
        for (n, (part, written)) in parts.iter().enumerate() {
            self.at_least(part.end.max(part.start))?;
            let meets = |other: &&(Range<usize>, bool)| {
                (*written || other.1) && part.start < other.0.end && other.0.start < part.end
            };
            if let Some((other, _)) = parts[..n].iter().find(meets) {
                return Err(Error::Overlap { first: other.clone(), second: part.clone() });
            }
        }
        let arg = |(part, written): &(Range<usize>, bool)| {
            let address = self.address + (part.start * size_of::<T>()) as u64;
            Arg::buffer(&self.device, address, T::DTYPE, *written)
        };
        Ok(parts.iter().map(arg).collect())
    }

    /// As an argument that the kernel only reads.
    pub fn arg(&self) -> Arg<'_> {
        Arg::buffer(&self.device, self.address, T::DTYPE, false)
    }

    /// As an argument that the kernel may write.
    pub fn arg_mut(&mut self) -> Arg<'_> {
        Arg::buffer(&self.device, self.address, T::DTYPE, true)
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.device.free(self.address, self.len * size_of::<T>());
    }
}
