//! What several devices sum of a step.

use lab_harness::plan::Slot;
use lab_harness::{Error, Plan, arguments};

use crate::kernels;

/// Adds the launch that rounds f32 gradients into a slot of bf16, as long, and gives that back.
///
/// # Errors
/// As those of a launch.
pub(crate) fn add_rounding(plan: &mut Plan, x: Slot, rounded: Slot) -> Result<Slot, Error> {
    let n = x.len();
    // 16 bytes of halves at a time, where all begin at that.
    let is_whole = [x.start(), rounded.start(), n].iter().all(|at| at.is_multiple_of(8));
    let each = if is_whole { 8 } else { 1 };
    let kernel = plan.device().kernel(&kernels::SUMS, &format!("round_gradients<{each}>"))?;
    plan.launch(&kernel, kernel.grid_over(n / each)?, arguments![x, rounded, n])?;
    Ok(rounded)
}
