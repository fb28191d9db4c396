//! The type of elements in a configuration's file: its name, as `bf16`.

use lab_device::DType;
use serde::{Deserialize, Deserializer, Serializer};

/// Writes the name.
///
/// # Errors
/// Those of the format.
#[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
pub fn serialize<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(dtype.name())
}

/// Reads the name.
///
/// # Errors
/// No type has it; those of the format.
pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
    String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
}
