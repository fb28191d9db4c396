//! Tensors that somebody else owns, as DLPack describes them: the `DLTensor` that PyTorch, JAX, CuPy and
//! others hand out. Source: `dlpack.h`, version 1.0 (<https://dmlc.github.io/dlpack>).
//!
//! The descriptor says where a tensor is, on which device, of what type and shape. It says nothing of
//! streams: whoever binds the tensor gives the stream too.

use std::ffi::c_void;

use crate::{DType, Device, DeviceKind};

/// The kind and number of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLDevice {
    /// [`DLDevice::CPU`], [`DLDevice::CUDA`], …
    pub device_type: i32,
    /// Its number; 0 of the host.
    pub device_id: i32,
}

impl DLDevice {
    /// Host memory: what the emulator's kernels use.
    pub const CPU: i32 = 1;
    /// Memory of an NVIDIA GPU.
    pub const CUDA: i32 = 2;
}

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DLDataType {
    /// 0 signed, 1 unsigned, 2 float, 4 bfloat.
    pub code: u8,
    /// Of an element.
    pub bits: u8,
    /// 1; more where elements are short vectors.
    pub lanes: u16,
}

/// A tensor.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct DLTensor {
    /// Its memory.
    pub data: *mut c_void,
    /// Where that is.
    pub device: DLDevice,
    /// How many sizes there are.
    pub ndim: i32,
    /// Of an element.
    pub dtype: DLDataType,
    /// `ndim` sizes.
    pub shape: *const i64,
    /// `ndim` distances in elements; null where the tensor is row-major and without gaps.
    pub strides: *const i64,
    /// From `data` to the first element.
    pub byte_offset: u64,
}

const TYPES: [(DType, DLDataType); 10] = {
    const fn of(code: u8, bits: u8) -> DLDataType {
        DLDataType { code, bits, lanes: 1 }
    }
    [
        (DType::F16, of(2, 16)),
        (DType::BF16, of(4, 16)),
        (DType::F32, of(2, 32)),
        (DType::F64, of(2, 64)),
        (DType::I8, of(0, 8)),
        (DType::U8, of(1, 8)),
        (DType::I32, of(0, 32)),
        (DType::U32, of(1, 32)),
        (DType::I64, of(0, 64)),
        (DType::U64, of(1, 64)),
    ]
};

impl DLDataType {
    /// That of a type of the lab.
    pub fn of(dtype: DType) -> Self {
        let found = TYPES.iter().find(|t| t.0 == dtype);
        found.expect("every type is listed").1
    }
}

impl DLDevice {
    /// Where tensors for a device are: on the GPU, or, of the emulator, in host memory.
    pub fn of(device: &Device) -> Self {
        match (device.kind(), device.ordinal()) {
            (DeviceKind::Cuda, n) => Self { device_type: Self::CUDA, device_id: n as i32 },
            (DeviceKind::Emulator, _) => Self { device_type: Self::CPU, device_id: 0 },
        }
    }
}

/// A tensor as the lab's kernels take it: row-major, without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// Of the first element.
    pub address: u64,
    /// Where it is.
    pub device: DLDevice,
    /// Of an element.
    pub dtype: DType,
    /// Size of each index.
    pub shape: Vec<usize>,
}

impl DLTensor {
    /// Describes a row-major tensor. The sizes are borrowed, as in C: they must outlive it.
    pub fn contiguous(data: *mut c_void, device: &Device, dtype: DType, shape: &[i64]) -> Self {
        Self {
            data,
            device: DLDevice::of(device),
            ndim: shape.len() as i32,
            dtype: DLDataType::of(dtype),
            shape: shape.as_ptr(),
            strides: std::ptr::null(),
            byte_offset: 0,
        }
    }

    /// What it describes, looked at.
    ///
    /// # Errors
    /// A type that no kernel here takes, a size below zero, more bytes than there are addresses, gaps between elements or
    /// another order, a misaligned or null address: what there is instead of such a tensor, in words.
    ///
    /// # Safety
    /// `shape` leads to `ndim` numbers, and `strides` does or is null.
    pub unsafe fn view(&self) -> Result<View, String> {
        let Self { data, device, ndim, dtype, shape, strides, byte_offset } = *self;
        let known = TYPES.iter().find(|t| t.1 == dtype).map(|t| t.0);
        let dtype = known.ok_or_else(|| format!("elements of {dtype:?}"))?;
        let rank = usize::try_from(ndim).map_err(|_| format!("{ndim} dimensions"))?;
        if rank > 0 && shape.is_null() {
            return Err("no sizes".into());
        }
        let numbers = |first: *const i64| match rank {
            0 => &[][..],
            // SAFETY: the caller's promise.
            _ => unsafe { std::slice::from_raw_parts(first, rank) },
        };
        let sizes = numbers(shape);
        let shape: Vec<usize> = sizes
            .iter()
            .map(|&size| usize::try_from(size).map_err(|_| format!("sizes {sizes:?}")))
            .collect::<Result<_, _>>()?;
        if !strides.is_null() {
            let strides = numbers(strides);
            let mut expected = 1i64;
            for (&size, &stride) in sizes.iter().zip(strides).rev() {
                // Of one element the distance to the next is nobody's concern.
                if size > 1 && stride != expected {
                    return Err(format!("strides {strides:?} of sizes {sizes:?}: not contiguous"));
                }
                expected = expected.saturating_mul(size.max(1));
            }
        }
        let bytes = if shape.contains(&0) {
            Some(0)
        } else {
            shape.iter().try_fold(dtype.size(), |all, &size| all.checked_mul(size))
        };
        let bytes = bytes.ok_or_else(|| format!("sizes {sizes:?}: more than memory has"))?;
        let address = (data as u64).checked_add(byte_offset);
        let address = address.ok_or_else(|| format!("{byte_offset} bytes behind {data:p}"))?;
        if !address.is_multiple_of(dtype.size() as u64) {
            return Err(format!("{dtype} at {address:#x}: misaligned"));
        }
        if data.is_null() && bytes > 0 {
            return Err("a null pointer".into());
        }
        Ok(View { address, device, dtype, shape })
    }
}

impl View {
    /// That it is where a device's tensors are.
    ///
    /// # Errors
    /// Where it is, in words.
    pub fn check_device(&self, device: &Device) -> Result<(), String> {
        let (own, DLDevice { device_type, device_id }) = (DLDevice::of(device), self.device);
        match device_type {
            _ if self.device == own => Ok(()),
            DLDevice::CPU => Err("a tensor in host memory".into()),
            DLDevice::CUDA => Err(format!("a tensor of cuda:{device_id}")),
            other => Err(format!("a tensor of DLPack's device type {other}, number {device_id}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[i64], strides: Option<&[i64]>) -> DLTensor {
        let device = Device::emulator().unwrap();
        let tensor = DLTensor::contiguous(64 as *mut c_void, &device, DType::F32, shape);
        DLTensor { strides: strides.map_or(std::ptr::null(), <[i64]>::as_ptr), ..tensor }
    }

    #[test]
    fn only_what_is_row_major_without_gaps_is_taken() {
        let view = |shape: &[i64], strides: Option<&[i64]>| {
            // SAFETY: as many strides as sizes.
            unsafe { tensor(shape, strides).view() }.map(|v| v.shape)
        };
        assert_eq!(view(&[2, 3], None), Ok(vec![2, 3]));
        assert_eq!(view(&[2, 3], Some(&[3, 1])), Ok(vec![2, 3]));
        assert_eq!(view(&[2, 1, 3], Some(&[3, 77, 1])), Ok(vec![2, 1, 3]));
        assert_eq!(view(&[], None), Ok(vec![]));
        let said = "strides [1, 2] of sizes [2, 3]: not contiguous";
        assert_eq!(view(&[2, 3], Some(&[1, 2])), Err(said.into()));
        assert_eq!(view(&[2, -3], None), Err("sizes [2, -3]".into()));
    }

    #[test]
    fn sizes_and_offsets_that_overflow_are_refused() {
        // SAFETY: there are as many sizes as dimensions.
        let view = |t: DLTensor| unsafe { t.view() }.map(|v| v.shape);
        let most = i64::MAX;
        let said = format!("sizes [{most}, {most}]: more than memory has");
        assert_eq!(view(tensor(&[most, most], None)), Err(said));
        assert_eq!(view(tensor(&[most, 0, most], None)), Ok(vec![most as usize, 0, most as usize]));
        let behind = DLTensor { byte_offset: u64::MAX, ..tensor(&[4], None) };
        assert_eq!(view(behind), Err(format!("{} bytes behind 0x40", u64::MAX)));
    }

    #[test]
    fn what_no_kernel_takes_is_named() {
        // SAFETY: there is one size.
        let view = |t: DLTensor| unsafe { t.view() }.unwrap_err();
        let good = tensor(&[4], None);
        let dtype = DLDataType { code: 5, bits: 64, lanes: 1 };
        assert!(view(DLTensor { dtype, ..good }).starts_with("elements of DLDataType { code: 5"));
        assert_eq!(view(DLTensor { byte_offset: 2, ..good }), "f32 at 0x42: misaligned");
        assert_eq!(view(DLTensor { data: std::ptr::null_mut(), ..good }), "a null pointer");
        // SAFETY: there is one size in this one too.
        let view = unsafe { good.view() }.unwrap();
        let device = Device::emulator().unwrap();
        assert_eq!(view.check_device(&device), Ok(()));
        let elsewhere = DLDevice { device_type: DLDevice::CUDA, device_id: 1 };
        let view = View { device: elsewhere, ..view };
        assert_eq!(view.check_device(&device), Err("a tensor of cuda:1".into()));
    }
}
