//! The element types that kernels compute on.

#[doc(hidden)]
pub use half::{bf16, f16};
use lab_device::{Arg, Element};

/// A storage type, with the type that kernels compute in (`math_t` in `lab/scalar.cuh`).
pub trait Float: Element {
    /// f32, or f64 for f64.
    type Math: Element + Into<Arg<'static>>;
    /// Rounds to the type that kernels compute in.
    fn math(value: f64) -> Self::Math;
}

macro_rules! floats {
    ($($t:ty => $m:ty),*) => { $(
        impl Float for $t {
            type Math = $m;
            fn math(value: f64) -> $m {
                value as $m
            }
        }
    )* };
}
floats!(f16 => f32, bf16 => f32, f32 => f32, f64 => f64);

/// Runs `$body` with `$T` standing for the Rust type of `$dtype`, which must be a float type (a
/// version's own list of types has been checked by then).
///
/// ```
/// use lab_harness::with_float;
/// let size = with_float!(lab_device::DType::BF16, T => size_of::<T>());
/// assert_eq!(size, 2);
/// ```
#[macro_export]
macro_rules! with_float {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            $crate::float::DType::F16 => {
                type $T = $crate::float::f16;
                $body
            }
            $crate::float::DType::BF16 => {
                type $T = $crate::float::bf16;
                $body
            }
            $crate::float::DType::F32 => {
                type $T = f32;
                $body
            }
            $crate::float::DType::F64 => {
                type $T = f64;
                $body
            }
            other => unreachable!("{other} is no float type, and the inputs were checked"),
        }
    };
}

#[doc(hidden)]
pub use lab_device::DType;
