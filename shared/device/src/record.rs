//! Structs that host and kernel share: one definition on each side, held against each other field by
//! field.
//!
//! ```
//! lab_device::record! {
//!     /// What a kernel takes as `const __grid_constant__ Decay decay`.
//!     pub struct Decay {
//!         rate: f32,
//!         steps: [i32; 3],
//!     }
//! }
//! let decay = Decay { rate: 0.5, steps: [1, 2, 3] };
//! let argument = lab_device::Arg::record(&decay);
//! ```
//!
//! The kernel's file says `struct Decay { float rate; int steps[3]; };` and, behind it,
//! `LAB_FIELDS(Decay, rate, steps)` (`lab/fields.cuh`).

use lab_emulator::Parameter;

use crate::{DType, Element};

/// A struct that a kernel may take by value. [`record!`](crate::record!) implements it.
///
/// # Safety
/// The layout is that of the type, which is `repr(C)` and has no padding that is read.
pub unsafe trait Record: Copy + 'static {
    /// Its name and its fields.
    const LAYOUT: Layout;
}

/// How a struct lies in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Layout {
    /// Its name, in Rust and in C++.
    pub name: &'static str,
    /// Bytes.
    pub size: usize,
    /// In any order.
    pub fields: &'static [Field],
}

/// One field.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// The type of its elements.
    pub dtype: DType,
    /// Bytes before it.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
}

/// What a field may be.
pub trait FieldType {
    /// The type of its elements.
    const DTYPE: DType;
}

impl<T: Element> FieldType for T {
    const DTYPE: DType = T::DTYPE;
}

impl<T: Element, const N: usize> FieldType for [T; N] {
    const DTYPE: DType = T::DTYPE;
}

impl Layout {
    /// Whether a parameter is this struct.
    ///
    /// # Errors
    /// What differs first.
    pub(crate) fn fits(&self, parameter: &Parameter) -> Result<(), String> {
        let Self { name, size, fields } = self;
        if parameter.type_name != *name {
            return Err((*name).to_owned());
        }
        if parameter.fields.is_empty() {
            return Err(format!(
                "{name}, whose fields the kernel's file does not name (LAB_FIELDS)"
            ));
        }
        if parameter.size != *size {
            return Err(format!("{name} of {size} bytes, not {}", parameter.size));
        }
        for theirs in &parameter.fields {
            let field = format!("{name}::{}", theirs.name);
            let Some(own) = fields.iter().find(|f| f.name == theirs.name) else {
                return Err(format!("{name} without a field '{}'", theirs.name));
            };
            if own.dtype.name() != theirs.type_name {
                return Err(format!("{field} of {}, not {}", own.dtype, theirs.type_name));
            }
            if (own.offset, own.size) != (theirs.offset, theirs.size) {
                let there = (theirs.offset, theirs.size);
                return Err(format!(
                    "{field} of {} bytes at {}, not of {} at {}",
                    own.size, own.offset, there.1, there.0
                ));
            }
        }
        match fields.iter().find(|f| parameter.fields.iter().all(|t| t.name != f.name)) {
            Some(own) => Err(format!("{name} with a field '{}' more", own.name)),
            None => Ok(()),
        }
    }
}

/// Defines a struct that kernels take by value: see [`record`](mod@crate::record).
#[macro_export]
macro_rules! record {
    ($(#[$attribute:meta])* $visible:vis struct $name:ident {
        $($(#[$of_field:meta])* $field:ident: $type:ty),+ $(,)?
    }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug)]
        #[repr(C)]
        $visible struct $name {
            $($(#[$of_field])* $visible $field: $type),+
        }

        // SAFETY: the fields are listed by the compiler's own offsets.
        unsafe impl $crate::Record for $name {
            const LAYOUT: $crate::record::Layout = $crate::record::Layout {
                name: stringify!($name),
                size: size_of::<$name>(),
                fields: &[$($crate::record::Field {
                    name: stringify!($field),
                    dtype: <$type as $crate::record::FieldType>::DTYPE,
                    offset: ::core::mem::offset_of!($name, $field),
                    size: size_of::<$type>(),
                }),+],
            };
        }
    };
}
