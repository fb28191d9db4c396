//! Tensors in host memory, and their files (safetensors).

use std::collections::BTreeMap;
use std::path::Path;

use half::{bf16, f16};
use lab_device::{Buffer, DType, Device, Element};
use rayon::prelude::*;
use safetensors::tensor::{Dtype as FileType, SafeTensors, TensorView};

use crate::Error;

/// A dense array: row-major, contiguous, last index fastest.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Type of an element.
    pub dtype: DType,
    /// Size of each index.
    pub shape: Vec<usize>,
    /// The elements' bytes.
    pub bytes: Vec<u8>,
}

/// Tensors by name.
pub type Tensors = BTreeMap<String, Tensor>;

/// The tensors under these names.
pub fn tensors<const N: usize>(all: [(&str, Tensor); N]) -> Tensors {
    all.into_iter().map(|(n, t)| (n.to_owned(), t)).collect()
}

impl Tensor {
    /// From elements of the right type; their number is the product of `shape`.
    pub fn new<T: Element>(shape: &[usize], elements: &[T]) -> Self {
        debug_assert_eq!(shape.iter().product::<usize>(), elements.len());
        let bytes = bytemuck::cast_slice(elements).to_vec();
        Self { dtype: T::DTYPE, shape: shape.to_vec(), bytes }
    }

    /// From f64 values, each rounded to `dtype`.
    pub fn rounded(dtype: DType, shape: &[usize], values: &[f64]) -> Self {
        fn all<T: Element>(shape: &[usize], values: &[f64], f: fn(f64) -> T) -> Tensor {
            Tensor::new(shape, &values.par_iter().map(|&v| f(v)).collect::<Vec<T>>())
        }
        match dtype {
            DType::F16 => all(shape, values, f16::from_f64),
            DType::BF16 => all(shape, values, bf16::from_f64),
            DType::F32 => all(shape, values, |v| v as f32),
            DType::F64 => all(shape, values, |v| v),
            DType::U8 => all(shape, values, |v| v as u8),
            DType::I32 => all(shape, values, |v| v as i32),
            DType::U32 => all(shape, values, |v| v as u32),
            DType::I64 => all(shape, values, |v| v as i64),
            DType::U64 => all(shape, values, |v| v as u64),
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as f64, exactly (integers up to 2^53).
    pub fn values(&self) -> Vec<f64> {
        fn all<T: Element>(bytes: &[u8], f: fn(T) -> f64) -> Vec<f64> {
            // Not cast_slice: the bytes need not be aligned.
            bytes
                .par_chunks_exact(size_of::<T>())
                .map(|c| f(bytemuck::pod_read_unaligned(c)))
                .collect()
        }
        let b = &self.bytes;
        match self.dtype {
            DType::F16 => all::<f16>(b, f16::to_f64),
            DType::BF16 => all::<bf16>(b, bf16::to_f64),
            DType::F32 => all::<f32>(b, f64::from),
            DType::F64 => all::<f64>(b, |v| v),
            DType::U8 => all::<u8>(b, f64::from),
            DType::I32 => all::<i32>(b, f64::from),
            DType::U32 => all::<u32>(b, f64::from),
            DType::I64 => all::<i64>(b, |v| v as f64),
            DType::U64 => all::<u64>(b, |v| v as f64),
        }
    }

    /// A copy on a device. `T` must be the tensor's type: stages choose it by that type.
    pub fn upload<T: Element>(&self, device: &Device) -> Result<Buffer<T>, Error> {
        assert_eq!(T::DTYPE, self.dtype, "a stage uploads a tensor as what it is");
        let elements: Vec<T> = bytemuck::pod_collect_to_vec(&self.bytes);
        Ok(device.upload(&elements)?)
    }

    /// A buffer's elements, under a shape.
    pub fn download<T: Element>(shape: &[usize], buffer: &Buffer<T>) -> Result<Self, Error> {
        Ok(Self::new(shape, &buffer.download()?))
    }

    /// `f32 [3, 4]`.
    pub fn describe(&self) -> String {
        format!("{} {:?}", self.dtype, self.shape)
    }
}

fn dtype_of(file: FileType) -> Option<DType> {
    Some(match file {
        FileType::F16 => DType::F16,
        FileType::BF16 => DType::BF16,
        FileType::F32 => DType::F32,
        FileType::F64 => DType::F64,
        FileType::U8 => DType::U8,
        FileType::I32 => DType::I32,
        FileType::U32 => DType::U32,
        FileType::I64 => DType::I64,
        FileType::U64 => DType::U64,
        _ => return None,
    })
}

fn file_type_of(dtype: DType) -> FileType {
    match dtype {
        DType::F16 => FileType::F16,
        DType::BF16 => FileType::BF16,
        DType::F32 => FileType::F32,
        DType::F64 => FileType::F64,
        DType::U8 => FileType::U8,
        DType::I32 => FileType::I32,
        DType::U32 => FileType::U32,
        DType::I64 => FileType::I64,
        DType::U64 => FileType::U64,
    }
}

/// Reads a safetensors file. Tensors of a type that no kernel here takes are left out.
///
/// # Errors
/// [`Error::File`]: it cannot be read, or is no safetensors file, or a damaged one.
pub fn read(path: &Path) -> Result<Tensors, Error> {
    Ok(read_with_notes(path)?.0)
}

/// The same, with the texts of its metadata.
///
/// # Errors
/// As [`read`].
pub fn read_with_notes(path: &Path) -> Result<(Tensors, BTreeMap<String, String>), Error> {
    let failed = |message: String| Error::File { path: path.display().to_string(), message };
    let bytes = lab_device::emulator::read_file(path).map_err(|e| failed(e.to_string()))?;
    let none = |e| failed(format!("expected a safetensors file: {e}"));
    let file = SafeTensors::deserialize(&bytes).map_err(none)?;
    let (_, header) = SafeTensors::read_metadata(&bytes).map_err(none)?;
    let notes = header.metadata().clone().unwrap_or_default().into_iter().collect();
    let mut all = Tensors::new();
    for (name, view) in file.iter() {
        if let Some(dtype) = dtype_of(view.dtype()) {
            let tensor =
                Tensor { dtype, shape: view.shape().to_vec(), bytes: view.data().to_vec() };
            all.insert(name.to_owned(), tensor);
        }
    }
    Ok((all, notes))
}

/// Writes a safetensors file, whole or not at all.
///
/// # Errors
/// [`Error::File`]: it cannot be written. What stood there before still does.
pub fn write(path: &Path, tensors: &Tensors) -> Result<(), Error> {
    write_with_notes(path, tensors, &BTreeMap::new())
}

/// The same, with texts as the file's metadata.
///
/// # Errors
/// As [`write()`].
pub fn write_with_notes(
    path: &Path,
    tensors: &Tensors,
    notes: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let failed = |message: String| Error::File { path: path.display().to_string(), message };
    let views: Vec<(&String, TensorView<'_>)> = tensors
        .iter()
        .map(|(name, t)| {
            TensorView::new(file_type_of(t.dtype), t.shape.clone(), &t.bytes)
                .map(|view| (name, view))
                .map_err(|e| failed(e.to_string()))
        })
        .collect::<Result<_, _>>()?;
    let notes = (!notes.is_empty()).then(|| notes.clone().into_iter().collect());
    let bytes = safetensors::serialize(views, notes).map_err(|e| failed(e.to_string()))?;
    lab_device::emulator::write_atomically(path, &bytes).map_err(|e| failed(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gives_back_what_was_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.safetensors");
        let all: Tensors = DType::ALL
            .iter()
            .map(|&d| (format!("t_{d}"), Tensor::rounded(d, &[2, 3], &[0., 1., 2., 3., 4., 5.])))
            .collect();
        write(&path, &all).unwrap();
        assert_eq!(read_with_notes(&path).unwrap(), (all.clone(), BTreeMap::new()));
        let notes = BTreeMap::from([("seed".to_owned(), "3".to_owned())]);
        write_with_notes(&path, &all, &notes).unwrap();
        assert_eq!(read_with_notes(&path).unwrap(), (all.clone(), notes));
        assert_eq!(read(&path).unwrap(), all);
        for t in all.values() {
            assert_eq!(t.values(), [0., 1., 2., 3., 4., 5.]);
        }
    }

    #[test]
    fn damaged_files_are_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.safetensors");
        write(&path, &tensors([("x", Tensor::new(&[64], &[1f32; 64]))])).unwrap();
        let whole = std::fs::read(&path).unwrap();
        for cut in [0, 4, 8, 20, whole.len() - 1] {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let message = read(&path).unwrap_err().to_string();
            assert!(message.contains("t.safetensors: expected a safetensors file"), "{message}");
        }
        std::fs::write(&path, vec![0xFFu8; 400]).unwrap();
        assert!(read(&path).is_err());
        assert!(read(&directory.path().join("missing")).is_err());
        let nowhere = directory.path().join("no/such/folder/t.safetensors");
        assert!(write(&nowhere, &Tensors::new()).is_err());
    }
}
