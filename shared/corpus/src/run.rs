//! Running a case.

use half::{bf16, f16};
use lab_device::{Buffer, DType, Device, Element, Error, TensorMap};

use crate::{Arg, Case};

/// Runs a case once, on fresh buffers, and waits for it.
///
/// # Errors
/// What the device says: of the launch, and of the kernel itself.
///
/// # Returns
/// The writable buffers as they are in the end, in the order of the arguments.
pub fn run(case: &Case, device: &Device) -> Result<Vec<Vec<f64>>, Error> {
    let kernel = device.kernel(case.source, case.name)?;
    let mut arguments: Vec<Made> =
        case.arguments.iter().map(|a| make(device, a)).collect::<Result<_, _>>()?;
    let names = kernel.parameters().iter().map(|p| p.name.as_str());
    let passed = names.zip(&mut arguments).map(|(name, made)| Ok((name, made.arg()?)));
    let passed = passed.collect::<Result<Vec<_>, Error>>()?;
    // SAFETY: kernels of the corpus are wrong on purpose. What leaves its buffers runs under the emulator's checks, which stop it.
    unsafe { kernel.launch(case.launch, &passed)? };
    drop(passed);
    device.synchronize()?;
    arguments.iter().filter_map(Made::values).collect()
}

/// An argument on a device.
enum Made {
    In(Box<dyn Memory>),
    Out(Box<dyn Memory>),
    Loaded(Box<dyn Memory>, TensorMap),
    Stored(Box<dyn Memory>, TensorMap),
    Scalar(lab_device::Arg<'static>),
}

impl Made {
    fn arg(&mut self) -> Result<lab_device::Arg<'_>, Error> {
        match self {
            Self::In(memory) => Ok(memory.arg()),
            Self::Out(memory) => Ok(memory.arg_mut()),
            Self::Loaded(memory, map) => memory.tensor_map(map),
            Self::Stored(memory, map) => memory.tensor_map_mut(map),
            Self::Scalar(value) => Ok(*value),
        }
    }

    fn values(&self) -> Option<Result<Vec<f64>, Error>> {
        match self {
            Self::Out(memory) | Self::Stored(memory, _) => Some(memory.values()),
            Self::In(_) | Self::Loaded(..) | Self::Scalar(_) => None,
        }
    }
}

fn make(device: &Device, argument: &Arg) -> Result<Made, Error> {
    Ok(match argument {
        Arg::In(dtype, values) => Made::In(memory(device, *dtype, values.len(), Some(values))?),
        Arg::InOut(dtype, values) => Made::Out(memory(device, *dtype, values.len(), Some(values))?),
        Arg::Out(dtype, len) => Made::Out(memory(device, *dtype, *len, None)?),
        Arg::Loaded(values, map) => {
            Made::Loaded(memory(device, map.dtype, values.len(), Some(values))?, *map)
        }
        Arg::Stored(len, map) => Made::Stored(memory(device, map.dtype, *len, None)?, *map),
        Arg::I32(value) => Made::Scalar((*value).into()),
        Arg::U32(value) => Made::Scalar((*value).into()),
        Arg::I64(value) => Made::Scalar((*value).into()),
    })
}

fn memory(
    device: &Device,
    dtype: DType,
    len: usize,
    values: Option<&Vec<f64>>,
) -> Result<Box<dyn Memory>, Error> {
    fn of<T: Value>(
        device: &Device,
        len: usize,
        values: Option<&Vec<f64>>,
    ) -> Result<Box<dyn Memory>, Error> {
        Ok(Box::new(match values {
            None => device.unwritten_buffer::<T>(len)?,
            Some(all) => device.upload(&all.iter().map(|&v| T::exactly(v)).collect::<Vec<T>>())?,
        }))
    }
    match dtype {
        DType::F16 => of::<f16>(device, len, values),
        DType::BF16 => of::<bf16>(device, len, values),
        DType::F32 => of::<f32>(device, len, values),
        DType::F64 => of::<f64>(device, len, values),
        DType::I8 => of::<i8>(device, len, values),
        DType::U8 => of::<u8>(device, len, values),
        DType::I32 => of::<i32>(device, len, values),
        DType::U32 => of::<u32>(device, len, values),
        DType::I64 => of::<i64>(device, len, values),
        DType::U64 => of::<u64>(device, len, values),
    }
}

/// A buffer of whatever type.
trait Memory {
    fn arg(&self) -> lab_device::Arg<'_>;
    fn arg_mut(&mut self) -> lab_device::Arg<'_>;
    fn tensor_map(&self, map: &TensorMap) -> Result<lab_device::Arg<'_>, Error>;
    fn tensor_map_mut(&mut self, map: &TensorMap) -> Result<lab_device::Arg<'_>, Error>;
    fn values(&self) -> Result<Vec<f64>, Error>;
}

impl<T: Value> Memory for Buffer<T> {
    fn arg(&self) -> lab_device::Arg<'_> {
        self.arg()
    }

    fn arg_mut(&mut self) -> lab_device::Arg<'_> {
        self.arg_mut()
    }

    fn tensor_map(&self, map: &TensorMap) -> Result<lab_device::Arg<'_>, Error> {
        self.tensor_map(map)
    }

    fn tensor_map_mut(&mut self, map: &TensorMap) -> Result<lab_device::Arg<'_>, Error> {
        self.tensor_map_mut(map)
    }

    fn values(&self) -> Result<Vec<f64>, Error> {
        Ok(self.download()?.into_iter().map(T::value).collect())
    }
}

trait Value: Element {
    fn from_f64(value: f64) -> Self;
    fn value(self) -> f64;

    /// # Panics
    /// Where the type cannot hold the value: the table is wrong.
    fn exactly(value: f64) -> Self {
        let own = Self::from_f64(value);
        assert!(own.value() == value, "{value} is no {}", Self::DTYPE);
        own
    }
}

macro_rules! values {
    ($($t:ty: $from:expr, $to:expr);* $(;)?) => { $(
        impl Value for $t {
            fn from_f64(value: f64) -> Self { ($from)(value) }
            fn value(self) -> f64 { ($to)(self) }
        }
    )* };
}
values! {
    f16: f16::from_f64, f16::to_f64;
    bf16: bf16::from_f64, bf16::to_f64;
    f32: |v| v as f32, f64::from;
    f64: |v| v, |v| v;
    i8: |v| v as i8, f64::from;
    u8: |v| v as u8, f64::from;
    i32: |v| v as i32, f64::from;
    u32: |v| v as u32, f64::from;
    i64: |v| v as i64, |v| v as f64;
    u64: |v| v as u64, |v| v as f64;
}
