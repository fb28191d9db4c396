//! Element types of buffers and tensors.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)] // the names say it
pub enum DType {
    F16,
    BF16,
    F32,
    F64,
    I8,
    U8,
    I32,
    U32,
    I64,
    U64,
}

impl DType {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
        Self::I8,
        Self::U8,
        Self::I32,
        Self::U32,
        Self::I64,
        Self::U64,
    ];

    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            Self::I8 | Self::U8 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::F32 | Self::I32 | Self::U32 => 4,
            Self::F64 | Self::I64 | Self::U64 => 8,
        }
    }

    /// The short name: `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::I8 => "i8",
            Self::U8 => "u8",
            Self::I32 => "i32",
            Self::U32 => "u32",
            Self::I64 => "i64",
            Self::U64 => "u64",
        }
    }

    /// The C++ type in a kernel.
    pub const fn cpp(self) -> &'static str {
        match self {
            Self::F16 => "__half",
            Self::BF16 => "__nv_bfloat16",
            Self::F32 => "float",
            Self::F64 => "double",
            Self::I8 => "signed char",
            Self::U8 => "unsigned char",
            Self::I32 => "int",
            Self::U32 => "unsigned",
            Self::I64 => "long long",
            Self::U64 => "unsigned long long",
        }
    }

    /// Half the distance from 1 to the next value: the largest relative error of one rounding.
    /// 0 for integers.
    pub const fn unit_roundoff(self) -> f64 {
        match self {
            Self::F16 => 1.0 / 2048.0,
            Self::BF16 => 1.0 / 256.0,
            Self::F32 => 1.0 / 16_777_216.0,
            Self::F64 => 1.0 / 9_007_199_254_740_992.0,
            _ => 0.0,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DType {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|d| d.name() == text).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|d| d.name()).collect();
            let text = lab_emulator::shown(text, 60);
            format!("expected one of {}, got '{text}'", names.join(", "))
        })
    }
}

/// The type of a buffer's elements, as a kernel's pointer may declare it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// Numbers. A pointer to short vectors of them (`float4*`) takes them too.
    Scalar(DType),
    /// Structs that only kernels look into, by the struct's name.
    Record {
        /// As C++ has it, without namespaces.
        name: &'static str,
        /// Of one, in bytes.
        bytes: usize,
    },
}

impl ElementType {
    /// Bytes of an element.
    pub const fn size(self) -> usize {
        match self {
            Self::Scalar(dtype) => dtype.size(),
            Self::Record { bytes, .. } => bytes,
        }
    }

    /// Of numbers, their type.
    pub const fn dtype(self) -> Option<DType> {
        match self {
            Self::Scalar(dtype) => Some(dtype),
            Self::Record { .. } => None,
        }
    }

    /// `f32`, or a struct's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar(dtype) => dtype.name(),
            Self::Record { name, .. } => name,
        }
    }
}

impl From<DType> for ElementType {
    fn from(dtype: DType) -> Self {
        Self::Scalar(dtype)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A Rust type that a buffer can hold.
pub trait Element: bytemuck::Pod + Send + Sync {
    /// Its name among the element types.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($t:ty => $d:ident),*) => { $(impl Element for $t { const DTYPE: DType = DType::$d; })* };
}
elements!(f16 => F16, bf16 => BF16, f32 => F32, f64 => F64, i8 => I8, u8 => U8, i32 => I32, u32 => U32,
          i64 => I64, u64 => U64);
