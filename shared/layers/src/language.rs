//! The loss of a language model.

use lab_harness::Error;
use lab_harness::plan::Slot;
use passes::{CrossEntropy, CrossEntropyOut};

use crate::Tape;

/// What the loss of a language model is made of beside its logits.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyLoss {
    /// i32 \[rows\]; those below 0 are ignored.
    pub targets: Slot,
    /// V; rows of the logits may be longer.
    pub vocabulary: usize,
    /// The logits are cap · tanh(x / cap).
    pub cap: Option<f32>,
    /// Where the loss of each row goes, f32 \[rows\], if it is wanted.
    pub row_losses: Option<Slot>,
    /// Where their mean goes, f64 \[1\], if it is wanted.
    pub loss: Option<Slot>,
    /// What its gradient is multiplied with, a number on the device, f64 \[1\].
    pub loss_scale: Option<Slot>,
}

impl Tape<'_> {
    /// Cross-entropy of logits before the cap, \[rows, stride\], with the targets. In training it leaves their gradient in their
    /// place: nobody else may read them.
    ///
    /// # Errors
    /// What the operation says.
    pub fn cross_entropy(
        &mut self,
        logits: Slot,
        loss: CrossEntropyLoss,
    ) -> Result<CrossEntropyOut, Error> {
        let CrossEntropyLoss { targets, vocabulary, cap, row_losses, loss, loss_scale } = loss;
        let rows = targets.len();
        let (dtype, stride) = (self.dtype, logits.len() / rows);
        let entropy = CrossEntropy {
            dtype,
            rows,
            vocabulary,
            stride,
            cap,
            z_loss: 0.0,
            logits,
            targets,
            row_losses,
            loss,
        };
        if !self.is_training() {
            return entropy.add_forward(self.plan);
        }
        let out = entropy.add_with_gradient(self.plan, 1.0, loss_scale)?;
        self.push(move |back| back.put(logits, logits));
        Ok(out)
    }
}
