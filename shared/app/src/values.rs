//! Values in memory: drawn, counted up, read from a file; and as f64.

use std::path::Path;

use half::{bf16, f16};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::{Dtype, SafeTensors};

use crate::given::{BadArgument, Component, Fill, TensorName};

/// What `random` draws from without a range: whole numbers are indices more often than not.
fn range(part: Component, low: f64, high: f64) -> (f64, f64) {
    match () {
        () if !low.is_nan() => (low, high),
        () if part.is_float() => (-1.0, 1.0),
        () if part == Component::Bool => (0.0, 2.0),
        () => (0.0, 100.0),
    }
}

/// So many values, one after the other, as bytes.
pub(crate) fn filled(fill: &Fill, part: Component, count: usize, seed: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * part.bytes());
    match *fill {
        Fill::Random { low, high } => {
            let (low, high) = range(part, low, high);
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            for _ in 0..count {
                let value = low + (high - low) * random.random::<f64>();
                push(&mut bytes, part, if part.is_float() { value } else { value.floor() });
            }
        }
        Fill::Arange => (0..count).for_each(|i| push(&mut bytes, part, i as f64)),
        Fill::Constant(value) => (0..count).for_each(|_| push(&mut bytes, part, value)),
        // Read as a whole, and made by the file's own types.
        Fill::File(_) | Fill::Each(_) => {}
    }
    bytes
}

fn push(bytes: &mut Vec<u8>, part: Component, value: f64) {
    match part {
        Component::F64 => bytes.extend(value.to_le_bytes()),
        Component::F32 => bytes.extend((value as f32).to_le_bytes()),
        Component::F16 => bytes.extend(f16::from_f64(value).to_le_bytes()),
        Component::BF16 => bytes.extend(bf16::from_f64(value).to_le_bytes()),
        Component::I64 => bytes.extend((value as i64).to_le_bytes()),
        Component::I32 => bytes.extend((value as i32).to_le_bytes()),
        Component::I16 => bytes.extend((value as i16).to_le_bytes()),
        Component::I8 => bytes.extend((value as i8).to_le_bytes()),
        Component::U64 => bytes.extend((value as u64).to_le_bytes()),
        Component::U32 => bytes.extend((value as u32).to_le_bytes()),
        Component::U16 => bytes.extend((value as u16).to_le_bytes()),
        Component::U8 => bytes.push(value as u8),
        Component::Bool => bytes.push(u8::from(value != 0.0)),
    }
}

/// The values of such bytes.
pub fn decode(part: Component, bytes: &[u8]) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|b| value(*b)).collect()
    }
    match part {
        Component::F64 => each(bytes, f64::from_le_bytes),
        Component::F32 => each(bytes, |b| f64::from(f32::from_le_bytes(b))),
        Component::F16 => each(bytes, |b| f16::from_le_bytes(b).to_f64()),
        Component::BF16 => each(bytes, |b| bf16::from_le_bytes(b).to_f64()),
        Component::I64 => each(bytes, |b| i64::from_le_bytes(b) as f64),
        Component::I32 => each(bytes, |b| f64::from(i32::from_le_bytes(b))),
        Component::I16 => each(bytes, |b| f64::from(i16::from_le_bytes(b))),
        Component::I8 => each(bytes, |b: [u8; 1]| f64::from(b[0] as i8)),
        Component::U64 => each(bytes, |b| u64::from_le_bytes(b) as f64),
        Component::U32 => each(bytes, |b| f64::from(u32::from_le_bytes(b))),
        Component::U16 => each(bytes, |b| f64::from(u16::from_le_bytes(b))),
        Component::U8 | Component::Bool => each(bytes, |b: [u8; 1]| f64::from(b[0])),
    }
}

const TYPES: [(Component, Dtype); 13] = [
    (Component::F64, Dtype::F64),
    (Component::F32, Dtype::F32),
    (Component::F16, Dtype::F16),
    (Component::BF16, Dtype::BF16),
    (Component::I64, Dtype::I64),
    (Component::I32, Dtype::I32),
    (Component::I16, Dtype::I16),
    (Component::I8, Dtype::I8),
    (Component::U64, Dtype::U64),
    (Component::U32, Dtype::U32),
    (Component::U16, Dtype::U16),
    (Component::U8, Dtype::U8),
    (Component::Bool, Dtype::BOOL),
];

/// A tensor of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    /// Its type.
    pub part: Component,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its values, in the order of memory.
    pub bytes: Vec<u8>,
}

/// Reads a tensor; `argument` is what messages call it.
///
/// # Errors
/// No such file or tensor, or one of a type that there is not.
pub fn read_tensor(argument: &str, name: &TensorName) -> Result<Tensor, BadArgument> {
    let wrong = |expected: &str, got: String| BadArgument::new(argument, expected, got);
    let file = || name.file.display();
    let bytes = lab_emulator::read_file(&name.file)
        .map_err(|e| wrong("a file of safetensors", format!("{}: {e}", file())))?;
    let all = SafeTensors::deserialize(&bytes)
        .map_err(|e| wrong("a file of safetensors", format!("{}: {e}", file())))?;
    if let Some(twice) = lab_emulator::repeated_name(&bytes) {
        return Err(wrong("each tensor's name once", format!("'{twice}' twice in {}", file())));
    }
    let tensor = all.tensor(&name.tensor).map_err(|_| {
        let mut names = all.names();
        names.sort_unstable();
        wrong(
            &format!("a tensor of {}: {}", file(), names.join(", ")),
            format!("'{}'", name.tensor),
        )
    })?;
    let part = TYPES.iter().find(|(_, t)| *t == tensor.dtype()).map(|(part, _)| *part);
    let part = part.ok_or_else(|| {
        wrong("f64, f32, f16, bf16 or whole numbers", format!("{:?} in {name}", tensor.dtype()))
    })?;
    Ok(Tensor { part, shape: tensor.shape().to_vec(), bytes: tensor.data().to_vec() })
}

/// Writes tensors into one file, all of it or nothing.
///
/// # Errors
/// The file cannot be written.
pub fn write_tensors(path: &Path, tensors: &[(&str, &Tensor)]) -> Result<(), String> {
    let views = tensors.iter().map(|(name, t)| {
        let dtype = TYPES.iter().find(|(part, _)| *part == t.part).map_or(Dtype::U8, |(_, d)| *d);
        let view = safetensors::tensor::TensorView::new(dtype, t.shape.clone(), &t.bytes);
        view.map(|view| ((*name).to_owned(), view)).map_err(|e| e.to_string())
    });
    let views: Vec<_> = views.collect::<Result<_, _>>()?;
    let bytes = safetensors::serialize(views, None).map_err(|e| e.to_string())?;
    lab_emulator::write_atomically(path, &bytes).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_come_back() {
        for (part, _) in TYPES {
            let bytes = filled(&Fill::Arange, part, 2, 0);
            assert_eq!(decode(part, &bytes), [0.0, 1.0], "{}", part.name());
            let random = Fill::Random { low: f64::NAN, high: f64::NAN };
            let values = decode(part, &filled(&random, part, 100, 7));
            let (low, high) = range(part, f64::NAN, f64::NAN);
            assert!(values.iter().all(|v| (low..=high).contains(v)), "{}", part.name());
            assert!(values.iter().any(|v| *v != values[0]), "{}", part.name());
        }
    }
}
