//! Arguments of a launch, and whether they are what a kernel declares.
//!
//! An argument is found by its parameter's name and held against its type. A number becomes what the
//! parameter is: an integer of any width where it fits, a float of any. Whether a buffer may be
//! written, and what its elements are, is the buffer's own affair.

use std::marker::PhantomData;

use half::{bf16, f16};
use lab_emulator::Parameter;

use crate::tensor_map::Columns;
use crate::{DType, Device, ElementType, Error, Record, record};

/// One argument of a launch.
#[derive(Clone, Copy, Debug)]
pub struct Arg<'a> {
    pub(crate) kind: ArgKind,
    /// Of a buffer, or of a struct in host memory.
    pub(crate) address: u64,
    /// Of a buffer.
    pub(crate) bytes: usize,
    pub(crate) device: usize,
    /// Of a tensor map.
    words: [u64; 16],
    /// Of a tensor map that has columns of rows.
    columns: Option<Columns>,
    _borrow: PhantomData<&'a ()>,
}

/// What an argument is, wherever it lies.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ArgKind {
    /// A number without a fraction, or a truth value.
    Integer(i128),
    /// Any other number.
    Real(f64),
    /// A pointer to elements.
    Buffer {
        /// What they are.
        element: ElementType,
        /// Whether the kernel may write them.
        writable: bool,
    },
    /// A tensor map of elements.
    TensorMap {
        /// Whether the kernel may store by it.
        writable: bool,
    },
    /// A struct by value.
    Record(&'static record::Layout),
}

impl Arg<'_> {
    pub(crate) fn buffer(
        device: &Device,
        address: u64,
        bytes: usize,
        element: ElementType,
        writable: bool,
    ) -> Self {
        let kind = ArgKind::Buffer { element, writable };
        let device = device.identity();
        Self { kind, address, bytes, device, words: [0; 16], columns: None, _borrow: PhantomData }
    }

    /// A tensor in `bytes` of memory, as `words` describe it.
    pub(crate) fn tensor_map(
        device: &Device,
        address: u64,
        bytes: usize,
        words: [u64; 16],
        columns: Option<Columns>,
        writable: bool,
    ) -> Self {
        let (kind, device) = (ArgKind::TensorMap { writable }, device.identity());
        Self { kind, address, bytes, device, words, columns, _borrow: PhantomData }
    }

    /// Whether both are columns of the same rows, which lie apart.
    pub(crate) fn lies_beside(&self, other: &Self) -> bool {
        match (self.columns, other.columns) {
            (Some(own), Some(others)) => own.lie_beside(self.address, others, other.address),
            _ => false,
        }
    }

    /// Whether it is memory that the kernel may write, or may not; `None` of what is no memory.
    pub(crate) fn writes(&self) -> Option<bool> {
        match self.kind {
            ArgKind::Buffer { writable, .. } | ArgKind::TensorMap { writable } => Some(writable),
            ArgKind::Integer(_) | ArgKind::Real(_) | ArgKind::Record(_) => None,
        }
    }

    fn number(kind: ArgKind) -> Self {
        Self {
            kind,
            address: 0,
            bytes: 0,
            device: 0,
            words: [0; 16],
            columns: None,
            _borrow: PhantomData,
        }
    }

    /// What it is.
    pub fn kind(&self) -> ArgKind {
        self.kind
    }
}

impl<'a> Arg<'a> {
    /// A struct that a kernel takes by value: see [`record!`](crate::record!).
    pub fn record<R: Record>(value: &'a R) -> Self {
        let (kind, address) = (ArgKind::Record(&R::LAYOUT), std::ptr::from_ref(value) as u64);
        Self {
            kind,
            address,
            bytes: size_of::<R>(),
            device: 0,
            words: [0; 16],
            columns: None,
            _borrow: PhantomData,
        }
    }
}

macro_rules! numbers {
    ($($t:ty),* => $kind:ident as $as:ty) => { $(
        impl From<$t> for Arg<'_> {
            fn from(value: $t) -> Self {
                Self::number(ArgKind::$kind(<$as>::from(value)))
            }
        }
    )* };
}
numbers!(i32, u32, i64, u64, u8, bool => Integer as i128);
numbers!(f32, f64, f16, bf16 => Real as f64);

impl From<usize> for Arg<'_> {
    fn from(value: usize) -> Self {
        Self::number(ArgKind::Integer(value as i128))
    }
}

impl ArgKind {
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Integer(value) => format!("the integer {value}"),
            Self::Real(value) => format!("the number {value}"),
            Self::Buffer { element, writable: true } => format!("{element}*"),
            Self::Buffer { element, writable: false } => format!("const {element}*"),
            Self::TensorMap { .. } => TENSOR_MAP.to_owned(),
            Self::Record(layout) => layout.name.to_owned(),
        }
    }

    /// Whether a parameter takes it.
    ///
    /// # Errors
    /// What it is instead.
    pub(crate) fn fits(&self, parameter: &Parameter) -> Result<(), String> {
        let fits = match *self {
            Self::Integer(value) => match range(&parameter.type_name) {
                Some((least, most)) if (least..=most).contains(&value) => true,
                Some((least, most)) => {
                    return Err(format!("{value}, which is not in {least} to {most}"));
                }
                None => false,
            },
            Self::Real(_) => matches!(parameter.type_name.as_str(), "f16" | "bf16" | "f32" | "f64"),
            Self::Buffer { element, writable } => points_to(parameter, element, writable),
            Self::TensorMap { .. } => {
                parameter.type_name == TENSOR_MAP && parameter.size == size_of::<[u64; 16]>()
            }
            Self::Record(layout) => return layout.fits(parameter),
        };
        if fits { Ok(()) } else { Err(self.describe()) }
    }
}

/// The type of a parameter that is a tensor map.
const TENSOR_MAP: &str = "TensorMap";

/// What an integer parameter holds; of 64 bits without a sign, what fits the signed ones too.
fn range(type_name: &str) -> Option<(i128, i128)> {
    let signed = |bits: u32| (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1);
    let unsigned = |bits: u32| (0, (1i128 << bits) - 1);
    Some(match type_name {
        "bool" => unsigned(1),
        "i8" => signed(8),
        "i16" => signed(16),
        "i32" => signed(32),
        "i64" => signed(64),
        "u8" => unsigned(8),
        "u16" => unsigned(16),
        "u32" => unsigned(32),
        "u64" => unsigned(64),
        _ => return None,
    })
}

/// Short vectors, and what they are made of.
const VECTORS: [(&str, DType); 13] = [
    ("float2", DType::F32),
    ("float3", DType::F32),
    ("float4", DType::F32),
    ("double2", DType::F64),
    ("int2", DType::I32),
    ("int3", DType::I32),
    ("int4", DType::I32),
    ("uint2", DType::U32),
    ("uint3", DType::U32),
    ("uint4", DType::U32),
    ("uchar4", DType::U8),
    ("__half2", DType::F16),
    ("__nv_bfloat162", DType::BF16),
];

fn points_to(parameter: &Parameter, element: ElementType, writable: bool) -> bool {
    let Some(pointee) = parameter.type_name.strip_suffix('*') else { return false };
    let (pointee, constant) = match pointee.strip_prefix("const ") {
        Some(pointee) => (pointee, true),
        None => (pointee, false),
    };
    let same = match element {
        ElementType::Scalar(dtype) => {
            pointee == dtype.name() || VECTORS.contains(&(pointee, dtype))
        }
        ElementType::Record { name, bytes } => pointee == name && bytes == parameter.pointee_size,
    };
    same && (writable || constant)
}

/// The value as the parameter's type, which it fits, in the first bytes.
pub(crate) fn encode(argument: &Arg<'_>, parameter: &Parameter, to: &mut [u8]) {
    let size = parameter.size;
    match argument.kind {
        ArgKind::Integer(value) => to[..size].copy_from_slice(&value.to_le_bytes()[..size]),
        ArgKind::Real(value) => match parameter.type_name.as_str() {
            "f16" => to[..size].copy_from_slice(&f16::from_f64(value).to_le_bytes()),
            "bf16" => to[..size].copy_from_slice(&bf16::from_f64(value).to_le_bytes()),
            "f32" => to[..size].copy_from_slice(&(value as f32).to_le_bytes()),
            _ => to[..size].copy_from_slice(&value.to_le_bytes()),
        },
        ArgKind::Buffer { .. } => to[..size].copy_from_slice(&argument.address.to_le_bytes()),
        ArgKind::TensorMap { .. } => {
            to[..size].copy_from_slice(bytemuck::cast_slice(&argument.words));
        }
        ArgKind::Record(_) => {
            // SAFETY: the argument borrows a struct of this size, which `fits` has held against the
            // parameter's.
            let from = unsafe { std::slice::from_raw_parts(argument.address as *const u8, size) };
            to[..size].copy_from_slice(from);
        }
    }
}

/// For each parameter, which of these named arguments is its own.
///
/// # Errors
/// A parameter without an argument, an argument of no parameter, one given twice, one that does not
/// fit.
pub(crate) fn order(
    kernel: &str,
    parameters: &[Parameter],
    named: &[(&str, ArgKind)],
) -> Result<Vec<usize>, Error> {
    let names = || parameters.iter().map(|p| p.name.as_str()).collect::<Vec<_>>().join(", ");
    for (n, (name, _)) in named.iter().enumerate() {
        if !parameters.iter().any(|p| p.name == *name) {
            let (kernel, expected) = (kernel.to_owned(), names());
            return Err(Error::NoParameter { kernel, name: (*name).to_owned(), expected });
        }
        if named[..n].iter().any(|other| other.0 == *name) {
            let (kernel, name) = (kernel.to_owned(), (*name).to_owned());
            return Err(Error::RepeatedArgument { kernel, name });
        }
    }
    let place = |parameter: &Parameter| {
        let expected = || parameter.type_name.clone();
        let (kernel, name) = (|| kernel.to_owned(), || parameter.name.clone());
        let Some(at) = named.iter().position(|(n, _)| *n == parameter.name) else {
            return Err(Error::NoArgument { kernel: kernel(), name: name(), expected: expected() });
        };
        let wrong =
            |got| Error::Argument { kernel: kernel(), name: name(), expected: expected(), got };
        named[at].1.fits(parameter).map_err(wrong)?;
        Ok(at)
    };
    parameters.iter().map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameter(name: &str, type_name: &str, pointee_size: usize) -> Parameter {
        Parameter {
            name: name.into(),
            type_name: type_name.into(),
            size: 8,
            pointee_size,
            fields: Vec::new(),
        }
    }

    #[test]
    fn integers_fit_by_their_value() {
        let fits = |value: i128, type_name| {
            ArgKind::Integer(value).fits(&parameter("n", type_name, 0)).is_ok()
        };
        assert!(fits(i128::from(i32::MAX), "i32") && !fits(1 << 31, "i32") && fits(-1, "i32"));
        assert!(fits(u64::MAX.into(), "u64") && !fits(-1, "u64") && !fits(2, "bool"));
        assert!(!fits(1, "f32") && !fits(1, "f32*"));
        let said = ArgKind::Integer(1 << 31).fits(&parameter("n", "i32", 0)).unwrap_err();
        assert_eq!(said, "2147483648, which is not in -2147483648 to 2147483647");
    }

    #[test]
    fn a_struct_takes_its_own_buffer_and_vectors_take_their_scalars() {
        let buffer = |element, writable| ArgKind::Buffer { element, writable };
        let query = ElementType::Record { name: "Query", bytes: 16 };
        let queries = parameter("queries", "const Query*", 16);
        assert!(buffer(query, false).fits(&queries).is_ok());
        let other = ElementType::Record { name: "Softmax", bytes: 16 };
        assert_eq!(buffer(other, true).fits(&queries).unwrap_err(), "Softmax*");
        assert!(buffer(DType::F32.into(), true).fits(&queries).is_err());
        let other = ElementType::Record { name: "Query", bytes: 12 };
        assert!(buffer(other, true).fits(&queries).is_err());
        let vectors = parameter("x", "float4*", 16);
        assert!(buffer(DType::F32.into(), true).fits(&vectors).is_ok());
        assert!(buffer(DType::F32.into(), false).fits(&vectors).is_err());
        assert!(buffer(DType::I32.into(), true).fits(&vectors).is_err());
    }

    #[test]
    fn arguments_are_found_by_name_and_each_has_one() {
        let parameters = [parameter("x", "f32*", 4), parameter("n", "i32", 0)];
        let x = ArgKind::Buffer { element: DType::F32.into(), writable: true };
        let n = ArgKind::Integer(3);
        let order = |named: &[(&str, ArgKind)]| {
            order("fill", &parameters, named).map_err(|e| e.to_string())
        };
        assert_eq!(order(&[("n", n), ("x", x)]), Ok(vec![1, 0]));
        assert_eq!(order(&[("x", x)]), Err("fill: argument 'n': expected i32, got none".into()));
        let said = "fill: argument 'm': expected one of x, n".to_owned();
        assert_eq!(order(&[("x", x), ("n", n), ("m", n)]), Err(said));
        let said = "fill: argument 'n': expected once, got twice".to_owned();
        assert_eq!(order(&[("x", x), ("n", n), ("n", n)]), Err(said));
        let said = "fill: argument 'x': expected f32*, got the integer 3".to_owned();
        assert_eq!(order(&[("x", n), ("n", n)]), Err(said));
    }
}
