//! What a direction has in memory for its products on tensor cores.

use lab_device::DType;
use lab_harness::Plan;
use lab_harness::plan::Slot;

use super::{LayerSlots, Sizes, States};
use crate::Way;

/// What a direction on tensor cores has of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorSlots {
    /// What x adds to the gates of all steps, \[T, B, H, 4\], in the type; on the way back da, \[T B, 4H\], where
    /// products by wgmma read it.
    pub(super) ax: Slot,
    /// da of each row's first step, \[B, 4H\], in the type; and of all its steps together, in f32.
    pub(super) first_da: Slot,
    pub(super) bias_sums: Slot,
    /// The layer's y, and the h0 of this direction, \[B, H\].
    pub(super) y: Slot,
    pub(super) h0: Slot,
    pub(super) wide: WideSlots,
}

impl TensorSlots {
    /// Bytes of a direction of a run with the way back.
    pub(crate) fn bytes(dtype: DType, rows: usize, batch: usize, hidden: usize) -> usize {
        4 * hidden * (dtype.size() * (rows + batch) + 4 * batch)
    }

    pub(super) fn new(
        plan: &mut Plan,
        sizes: Sizes,
        states: &States,
        slots: LayerSlots,
        state: usize,
    ) -> Self {
        let of_states = sizes.batch * sizes.hidden;
        let of_batch = if sizes.keep { sizes.batch * sizes.weights() } else { 1 };
        let ax = plan.scratch(sizes.dtype, sizes.rows() * sizes.weights());
        plan.mark_renewed(ax);
        Self {
            ax,
            first_da: plan.scratch(sizes.dtype, of_batch),
            bias_sums: plan.scratch(DType::F32, of_batch),
            y: slots.y,
            wide: WideSlots::new(plan, sizes, slots.columns),
            h0: states.slot("h0").part(state * of_states, of_states),
        }
    }
}

/// What the products read in place of x and `weight_ih`, and write in place of the gradients by them, where these have
/// other columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct WideSlots {
    /// x, \[T, B, columns\], without what stands behind the rows' ends.
    pub(super) x: Option<Slot>,
    /// `weight_ih`, \[4H, columns\], and the gradient by it.
    pub(super) weights: Option<[Slot; 2]>,
}

impl WideSlots {
    pub(super) fn new(plan: &mut Plan, sizes: Sizes, columns: usize) -> Self {
        if !has_products(sizes.way, sizes.hidden) {
            return Self { x: None, weights: None };
        }
        let wide = wide_columns(columns);
        let is_wide = wide != columns;
        let mut scratch = |rows: usize| plan.scratch(sizes.dtype, rows * wide);
        let x = (is_wide || sizes.ragged && sizes.keep).then(|| scratch(sizes.rows()));
        let kept = if sizes.keep { sizes.weights() } else { 1 };
        let weights = is_wide.then(|| [scratch(sizes.weights()), scratch(kept)]);
        Self { x, weights }
    }
}

/// Columns of x as TMA takes them: rows are multiples of 16 bytes.
pub(super) fn wide_columns(columns: usize) -> usize {
    columns.next_multiple_of(8)
}

/// Whether all products over all steps are by wgmma.
pub(super) fn has_products(way: Way, hidden: usize) -> bool {
    way.has_products() && hidden.is_multiple_of(8)
}
