//! What several devices sum of a step.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Error, Plan};
use passes::Narrow;

/// Adds the launch that rounds f32 gradients into a slot of bf16, as long, and gives that back: half of the bytes for their sum over
/// several devices.
///
/// # Errors
/// As those of a launch.
pub(crate) fn add_rounding(plan: &mut Plan, x: Slot, rounded: Slot) -> Result<Slot, Error> {
    Narrow { dtype: DType::BF16, elements: x.len(), x, y: rounded }.add(plan)?;
    Ok(rounded)
}
