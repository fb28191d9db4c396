//! What a product rounds its operands to.

use lab_device::{Arithmetic, DType};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a line rounds the operands of its products to, where its type has more digits.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Products {
    /// f32 with the mantissa of an f16, on the tensor cores.
    Tf32,
    /// f16 or bf16, on the tensor cores.
    Halves,
}

impl Products {
    /// Of these units on inputs of this type.
    pub fn of(arithmetic: Option<Arithmetic>, dtype: DType) -> Option<Self> {
        match (arithmetic?, dtype) {
            (Arithmetic::Tf32, _) => Some(Self::Tf32),
            (Arithmetic::Halves, DType::F32 | DType::F64) => Some(Self::Halves),
            _ => None,
        }
    }

    /// What multiplies them.
    pub fn units(self) -> Arithmetic {
        match self {
            Self::Tf32 => Arithmetic::Tf32,
            Self::Halves => Arithmetic::Halves,
        }
    }

    /// In the peaks that a record has of its machine.
    pub fn peak_of(self) -> &'static str {
        match self {
            Self::Tf32 => "tf32",
            Self::Halves => "bf16",
        }
    }
}
