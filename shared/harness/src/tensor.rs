//! Tensors in host memory, and their files (safetensors).

use std::collections::BTreeMap;
use std::io::{BufWriter, Write as _};
use std::ops::Range;
use std::path::Path;

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use lab_device::{Buffer, DType, Device, Element};
use rayon::prelude::*;
use safetensors::tensor::{Dtype as FileType, Metadata, SafeTensors, TensorInfo};

use crate::Error;

/// Elements that one task converts. The code that spreads the chunks over all processors is the same for every type: where it
/// handed out single elements, it was compiled anew for each of them.
const CHUNK: usize = 1 << 14;

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
    // `collect` would sort first, by code that is compiled anew for each N.
    let mut named = Tensors::new();
    for (name, tensor) in all {
        named.insert(name.to_owned(), tensor);
    }
    named
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
        fn all<T: Element>(values: &[f64], bytes: &mut [u8], f: fn(f64) -> T) {
            for (&value, to) in values.iter().zip(bytes.chunks_exact_mut(size_of::<T>())) {
                to.copy_from_slice(bytemuck::bytes_of(&f(value)));
            }
        }
        fn halves<T: Element>(values: &[f64], bytes: &mut [u8])
        where
            [T]: HalfFloatSliceExt,
        {
            let mut halves = vec![T::zeroed(); values.len()];
            halves.convert_from_f64_slice(values);
            bytes.copy_from_slice(bytemuck::cast_slice(&halves));
        }
        debug_assert_eq!(shape.iter().product::<usize>(), values.len());
        let round: fn(&[f64], &mut [u8]) = match dtype {
            DType::F16 => halves::<f16>,
            DType::BF16 => halves::<bf16>,
            DType::F32 => |v, b| all(v, b, |v| v as f32),
            DType::F64 => |v, b| all(v, b, |v| v),
            DType::I8 => |v, b| all(v, b, |v| v as i8),
            DType::U8 => |v, b| all(v, b, |v| v as u8),
            DType::I32 => |v, b| all(v, b, |v| v as i32),
            DType::U32 => |v, b| all(v, b, |v| v as u32),
            DType::I64 => |v, b| all(v, b, |v| v as i64),
            DType::U64 => |v, b| all(v, b, |v| v as u64),
        };
        let mut bytes = vec![0; values.len() * dtype.size()];
        bytes
            .par_chunks_mut(CHUNK * dtype.size())
            .zip(values.par_chunks(CHUNK))
            .for_each(|(bytes, values)| round(values, bytes));
        Self { dtype, shape: shape.to_vec(), bytes }
    }

    /// The same elements, each rounded to `dtype`.
    pub fn converted(&self, dtype: DType) -> Self {
        let mut bytes = vec![0; self.len() * dtype.size()];
        self.convert_into(dtype, &mut bytes);
        Self { dtype, shape: self.shape.clone(), bytes }
    }

    /// The same, into these bytes: those of as many elements of `dtype`.
    ///
    /// # Panics
    /// They are more or fewer.
    pub fn convert_into(&self, dtype: DType, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), self.len() * dtype.size(), "bytes of {} elements", self.len());
        // From f32 there is a short way: what is rounded once from it is rounded as from f64, which holds all of it. Copies see to the
        // alignment.
        fn halves<T: Element>(from: &[u8], to: &mut [u8])
        where
            [T]: HalfFloatSliceExt,
        {
            let from: Vec<f32> = bytemuck::pod_collect_to_vec(from);
            let mut halves = vec![T::zeroed(); from.len()];
            halves.convert_from_f32_slice(&from);
            to.copy_from_slice(bytemuck::cast_slice(&halves));
        }
        let round: fn(&[u8], &mut [u8]) = match (self.dtype, dtype) {
            (own, other) if own == other => |from, to| to.copy_from_slice(from),
            (DType::F32, DType::F16) => halves::<f16>,
            (DType::F32, DType::BF16) => halves::<bf16>,
            _ => {
                let rounded = Self::rounded(dtype, &self.shape, &self.values());
                return bytes.copy_from_slice(&rounded.bytes);
            }
        };
        bytes
            .par_chunks_mut(CHUNK * dtype.size())
            .zip(self.bytes.par_chunks(CHUNK * self.dtype.size()))
            .for_each(|(to, from)| round(from, to));
    }

    /// The absolute value of each element.
    pub fn absolute(&self) -> Self {
        let values: Vec<f64> = self.values().into_iter().map(f64::abs).collect();
        Self::rounded(self.dtype, &self.shape, &values)
    }

    /// Of a sequence \[B, NH, S, …\] these of its S positions: \[B, NH, as many, …\].
    ///
    /// # Panics
    /// It has no third index, or not so many positions.
    pub fn positions(&self, range: Range<usize>) -> Self {
        let positions = self.shape[2];
        assert!(range.end <= positions, "positions {range:?} of {positions}");
        let row = self.dtype.size() * self.shape[3..].iter().product::<usize>();
        let of_head = |head: &[u8]| head[range.start * row..range.end * row].to_vec();
        let bytes = self.bytes.chunks((positions * row).max(1)).flat_map(of_head).collect();
        let mut shape = self.shape.clone();
        shape[2] = range.len();
        Self { dtype: self.dtype, shape, bytes }
    }

    /// One position of a sequence \[B, NH, S, …\], without its index: \[B, NH, …\].
    ///
    /// # Panics
    /// As [`positions`](Self::positions).
    pub fn position(&self, at: usize) -> Self {
        let mut one = self.positions(at..at + 1);
        one.shape.remove(2);
        one
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
        // The bytes need not be aligned: copies are. Halves have a way of their own, that of their crate, which is optimised in every profile.
        fn all<T: Element>(bytes: &[u8], values: &mut [f64], f: fn(T) -> f64) {
            let elements: Vec<T> = bytemuck::pod_collect_to_vec(bytes);
            elements.into_iter().zip(values).for_each(|(from, value)| *value = f(from));
        }
        fn halves<T: Element>(bytes: &[u8], values: &mut [f64])
        where
            [T]: HalfFloatSliceExt,
        {
            let elements: Vec<T> = bytemuck::pod_collect_to_vec(bytes);
            elements.convert_to_f64_slice(values);
        }
        let widen: fn(&[u8], &mut [f64]) = match self.dtype {
            DType::F16 => halves::<f16>,
            DType::BF16 => halves::<bf16>,
            DType::F32 => |b, v| all::<f32>(b, v, f64::from),
            DType::F64 => |b, v| all::<f64>(b, v, |v| v),
            DType::I8 => |b, v| all::<i8>(b, v, f64::from),
            DType::U8 => |b, v| all::<u8>(b, v, f64::from),
            DType::I32 => |b, v| all::<i32>(b, v, f64::from),
            DType::U32 => |b, v| all::<u32>(b, v, f64::from),
            DType::I64 => |b, v| all::<i64>(b, v, |v| v as f64),
            DType::U64 => |b, v| all::<u64>(b, v, |v| v as f64),
        };
        let mut values = vec![0.0; self.bytes.len() / self.dtype.size()];
        values
            .par_chunks_mut(CHUNK)
            .zip(self.bytes.par_chunks(CHUNK * self.dtype.size()))
            .for_each(|(values, bytes)| widen(bytes, values));
        values
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
        FileType::I8 => DType::I8,
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
        DType::I8 => FileType::I8,
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
    if let Some(name) = lab_device::emulator::repeated_name(&bytes) {
        return Err(failed(format!("expected each tensor's name once, got '{name}' twice")));
    }
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
    let parts = tensors.iter().map(|(name, tensor)| (name.clone(), Part::Given(tensor))).collect();
    write_parts(path, parts, notes)
}

/// A tensor of a file under way.
pub enum Part<'a> {
    /// One that is there.
    Given(&'a Tensor),
    /// So many bytes, which are made when their place in the file has come: behind all tensors of wider types.
    Made(usize, Box<dyn FnOnce() -> Vec<u8> + 'a>),
}

impl Part<'_> {
    fn info(&self, start: usize) -> TensorInfo {
        let (dtype, shape, bytes) = match self {
            Self::Given(t) => (file_type_of(t.dtype), t.shape.clone(), t.bytes.len()),
            Self::Made(bytes, _) => (FileType::U8, vec![*bytes], *bytes),
        };
        TensorInfo { dtype, shape, data_offsets: (start, start + bytes) }
    }
}

/// The same of tensors whose bytes go to the file from where they are: the file is never in memory as a whole.
///
/// # Errors
/// As [`write()`].
///
/// # Panics
/// A part that is made has another length than it was said to have.
pub fn write_parts(
    path: &Path,
    mut parts: Vec<(String, Part<'_>)>,
    notes: &BTreeMap<String, String>,
) -> Result<(), Error> {
    let failed = |message: String| Error::File { path: path.display().to_string(), message };
    // The format's order: wide types first, so that each tensor is aligned.
    let dtype = |part: &Part<'_>| part.info(0).dtype;
    parts.sort_by(|(a, own), (b, other)| dtype(other).cmp(&dtype(own)).then(a.cmp(b)));
    let mut end = 0;
    let infos = parts.iter().map(|(name, part)| {
        let info = part.info(end);
        end = info.data_offsets.1;
        (name.clone(), info)
    });
    let infos = infos.collect();
    let notes = (!notes.is_empty()).then(|| notes.clone().into_iter().collect());
    let metadata = Metadata::new(notes, infos).map_err(|e| failed(e.to_string()))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|e| failed(e.to_string()))?;
    header.resize(header.len().next_multiple_of(size_of::<u64>()), b' ');
    let written = lab_device::emulator::write_atomically_by(path, |file| {
        let mut file = BufWriter::new(file);
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        for (_, part) in parts {
            match part {
                Part::Given(tensor) => file.write_all(&tensor.bytes)?,
                Part::Made(len, make) => {
                    let bytes = make();
                    assert_eq!(bytes.len(), len, "bytes of a part that is made");
                    file.write_all(&bytes)?;
                }
            }
        }
        file.flush()
    });
    written.map_err(|e| failed(e.to_string()))
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
    fn positions_of_a_sequence_are_those_of_each_head() {
        let values: Vec<f64> = (0..24).map(f64::from).collect();
        let tensor = Tensor::rounded(DType::F16, &[1, 2, 4, 3], &values);
        let middle = tensor.positions(1..3);
        assert_eq!(middle.shape, [1, 2, 2, 3]);
        assert_eq!(middle.values(), [&values[3..9], &values[15..21]].concat());
        assert_eq!(tensor.positions(2..2).shape, [1, 2, 0, 3]);
        let last = tensor.position(3);
        assert_eq!(last.shape, [1, 2, 3]);
        assert_eq!(last.values(), [&values[9..12], &values[21..]].concat());
        // Without columns.
        let gates = Tensor::rounded(DType::F32, &[2, 1, 3], &[0., 1., 2., 3., 4., 5.]);
        assert_eq!(gates.positions(1..3).values(), [1., 2., 4., 5.]);
        assert_eq!(gates.position(0), Tensor::rounded(DType::F32, &[2, 1], &[0., 3.]));
    }

    #[test]
    #[should_panic(expected = "positions 2..5 of 4")]
    fn positions_that_are_not_there_are_refused() {
        Tensor::rounded(DType::F32, &[1, 1, 4], &[0.0; 4]).positions(2..5);
    }

    /// By the short way and by f64: also ties, what is too small or too large, and what is no number.
    #[test]
    fn elements_are_converted_as_if_by_f64() {
        let patterns = (0..1u32 << 16).map(|n| f32::from_bits(n << 16 | (n * 40503) & 0xC001));
        let values: Vec<f32> =
            patterns.filter(|v| !v.is_nan()).chain([1.0 + 2f32.powi(-9)]).collect();
        let tensor = Tensor::new(&[values.len()], &values);
        for dtype in [DType::F16, DType::BF16, DType::F64, DType::F32] {
            let expected = Tensor::rounded(dtype, &tensor.shape, &tensor.values());
            assert!(tensor.converted(dtype) == expected, "{dtype}");
        }
        let nan = Tensor::new(&[1], &[f32::NAN]).converted(DType::BF16);
        assert!(nan.values()[0].is_nan());
    }

    /// As the format's own package writes it, and the part that is made comes last.
    #[test]
    fn parts_are_written_as_whole_files_are() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.safetensors");
        let sum = Tensor::new(&[3], &[7u8, 8, 9]);
        let mut all: Tensors = [DType::F32, DType::F64, DType::I64, DType::BF16]
            .map(|d| (format!("t_{d}"), Tensor::rounded(d, &[2], &[1., 2.])))
            .into();
        let mut parts: Vec<_> = all.iter().map(|(n, t)| (n.clone(), Part::Given(t))).collect();
        parts.push(("a sum".into(), Part::Made(3, Box::new(|| sum.bytes.clone()))));
        let notes = BTreeMap::from([("seed".to_owned(), "3".to_owned())]);
        write_parts(&path, parts, &notes).unwrap();
        all.insert("a sum".into(), sum.clone());
        let views = all.iter().map(|(name, t)| {
            let dtype = file_type_of(t.dtype);
            let view = safetensors::tensor::TensorView::new(dtype, t.shape.clone(), &t.bytes);
            (name, view.unwrap())
        });
        let notes = Some(notes.into_iter().collect());
        let expected = safetensors::serialize(views, notes).unwrap();
        assert!(std::fs::read(&path).unwrap() == expected, "other bytes");
        assert!(expected.ends_with(&sum.bytes));
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
