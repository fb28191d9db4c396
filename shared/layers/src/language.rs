//! The loss of a language model.

use lab_harness::Error;
use lab_harness::plan::Slot;
use passes::CrossEntropy;

use crate::Tape;
use crate::layers::Linear;

/// What the loss of a language model is made of beside what its head reads.
#[derive(Clone, Copy, Debug)]
pub struct HeadLoss {
    /// i32 \[rows\]; those below 0 are ignored.
    pub targets: Slot,
    /// V; rows of the logits may be longer.
    pub vocabulary: usize,
    /// The logits are cap · tanh(x / cap).
    pub cap: Option<f32>,
    /// ζ, the factor of the squared logarithm of the softmax's denominator; 0 for none.
    pub z_loss: f32,
    /// The targets that the mean is over, i32 \[1\]: [`CrossEntropy::add_count`].
    pub count: Slot,
    /// Where the loss of each row goes, f32 \[rows\].
    pub row_losses: Slot,
    /// What its gradient is multiplied with, a number on the device, f64 \[1\].
    pub loss_scale: Option<Slot>,
    /// Whether the weight is the embedding's as well, which adds to its gradient.
    pub is_tied: bool,
    /// Rows whose logits are in memory at a time; as many as [`HeadLoss::MOST_BYTES`] hold where it is not said.
    pub rows_at_once: Option<usize>,
}

impl HeadLoss {
    /// Of the logits that are in memory at a time.
    pub const MOST_BYTES: usize = 7 << 28;

    /// Rows of a piece: of as few pieces as can be, nearly alike, in whole tiles.
    fn rows_of_piece(&self, rows: usize, bytes_of_row: usize) -> usize {
        const TILE: usize = 128;
        let chosen = || {
            let pieces = (rows * bytes_of_row).div_ceil(Self::MOST_BYTES);
            rows.div_ceil(pieces.max(1)).next_multiple_of(TILE)
        };
        self.rows_at_once.unwrap_or_else(chosen).clamp(1, rows)
    }
}

impl Tape<'_> {
    /// Cross-entropy of the logits y Wᵀ, \[rows, width\] → the loss of each row. The logits are made for a piece of the rows at a time
    /// and are in memory no longer than that: in training their gradient takes their place, and both of its products follow at once. The
    /// gradient of W is a sum over the pieces in their order.
    ///
    /// # Errors
    /// As [`Tape::embedding`].
    pub fn linear_cross_entropy(
        &mut self,
        weight: &str,
        y: Slot,
        loss: HeadLoss,
    ) -> Result<(), Error> {
        self.make_ready(y)?;
        let [_, k] = self.sizes_of(weight)?;
        let (dtype, rows, w) = (self.dtype, loss.targets.len(), self.same_type(&[weight])?);
        let n = w.len() / k;
        let of_piece = loss.rows_of_piece(rows, n * dtype.size());
        let (dweight, squares) = (self.gradient(&[weight])?, self.squares.clone());
        let plan = &mut *self.plan;
        let all_logits = plan.scratch(dtype, of_piece * n);
        let dy = dweight.map(|_| plan.scratch(dtype, rows * k));
        for start in (0..rows).step_by(of_piece) {
            let rows = of_piece.min(rows - start);
            let (x, logits) = (y.part(start * k, rows * k), all_logits.part(0, rows * n));
            let head = Linear { dtype, rows, n, k, x, weight: w };
            head.add_forward_into(plan, logits, None)?;
            let HeadLoss { vocabulary, cap, z_loss, count, loss_scale, .. } = loss;
            let entropy = CrossEntropy {
                dtype,
                rows,
                vocabulary,
                stride: n,
                cap,
                z_loss,
                logits,
                targets: loss.targets.part(start, rows),
                row_losses: Some(loss.row_losses.part(start, rows)),
                loss: None,
            };
            let (Some(dy), Some(dweight)) = (dy, dweight) else {
                entropy.add_piece(plan)?;
                continue;
            };
            entropy.add_piece_with_gradient(plan, 1.0, loss_scale, count)?;
            head.add_by_input_into(plan, [logits, dy.part(start * k, rows * k)], None)?;
            let accumulates = self.accumulates || start > 0;
            let is_last = start + rows == loss.targets.len() && !loss.is_tied;
            let squares = squares.as_deref().filter(|_| is_last);
            head.add_by_weight(plan, logits, [x, dweight], accumulates, squares)?;
        }
        if let Some(dy) = dy {
            self.push(move |back| back.put(y, dy));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab_device::{DType, Device};
    use lab_harness::Plan;

    #[test]
    fn pieces_are_few_and_alike() {
        let device = Device::emulator().unwrap();
        let slot = Plan::new(&device).scratch(DType::I32, 1);
        let loss = HeadLoss {
            targets: slot,
            vocabulary: 50304,
            cap: None,
            z_loss: 0.0,
            count: slot,
            row_losses: slot,
            loss_scale: None,
            is_tied: false,
            rows_at_once: None,
        };
        // 3.3 GB of logits; 100 MB; few rows.
        let pieces = [(32768, 2 * 50304), (1024, 2 * 50304), (24, 512)];
        assert_eq!(pieces.map(|(rows, bytes)| loss.rows_of_piece(rows, bytes)), [16384, 1024, 24]);
        let loss = HeadLoss { rows_at_once: Some(10), ..loss };
        assert_eq!([24, 7].map(|rows| loss.rows_of_piece(rows, 512)), [10, 7]);
    }
}
