//! The launches of the sLSTM: the product with x before the first step, and the steps as `slstm_fused` has them.

use std::collections::BTreeMap;

use lab_device::DType;
use lab_harness::plan::{Argument, Arguments, Plan, Slot};
use lab_harness::{Error, named};
use slstm_fused::Recurrence;

use super::tensor::check_halves;
use super::{Direction, HeadSums, Sizes, States, Upstream, Weights};
use crate::kernels::PROMISE;

/// Of all states, or gradients by them, those of layer `state`, under their names.
fn of_layer(
    slots: &BTreeMap<String, Slot>,
    sizes: Sizes,
    state: usize,
) -> impl Iterator<Item = (&str, Argument)> {
    let len = sizes.batch * sizes.hidden;
    slots.iter().map(move |(name, slot)| (name.as_str(), slot.part(state * len, len).into()))
}

/// The steps of layer `state`, from wx to y.
pub(super) fn recurrence(
    plan: &mut Plan,
    sizes: Sizes,
    heads: usize,
    states: &States,
    weights: &Weights,
    [wx, y]: [Slot; 2],
    state: usize,
) -> Recurrence {
    let Sizes { dtype, steps, batch, hidden, keep, .. } = sizes;
    let version = sizes.way.slstm_version().expect("a way that was checked");
    let b = weights.get("b").copied().unwrap_or_else(|| plan.zeros(dtype, sizes.weights()));
    let own = named![wx, y, b, r: weights["r"]];
    let tensors = of_layer(&states.slots, sizes, state).chain(own);
    Recurrence::new(
        plan,
        version.way(),
        dtype,
        [batch, steps, heads, hidden / heads],
        keep,
        Arguments::new(PROMISE, tensors),
    )
}

impl Direction {
    fn recurrence(&self) -> &Recurrence {
        self.recurrence.as_ref().expect("of an sLSTM")
    }

    /// wx, y and the states behind the last step.
    pub(super) fn add_slstm(&self, plan: &mut Plan) -> Result<(), Error> {
        let Sizes { dtype, way, .. } = self.sizes;
        if way.on_tensor_cores() {
            check_halves(dtype)?;
        } else if dtype == DType::F64 {
            return Err(Error::bad("dtype", "f32, f16 or bf16 in an sLSTM", dtype));
        }
        self.add_product_with_x(plan)?;
        self.recurrence().add_forward(plan)
    }

    /// da in the place of wx, the gradients by the first states, and those by the parameters.
    pub(super) fn add_slstm_back(
        &self,
        plan: &mut Plan,
        upstream: &Upstream,
        gradients: &Weights,
        head: &HeadSums,
    ) -> Result<(), Error> {
        let sizes = self.sizes;
        let db = gradients.get("b").copied();
        let db = db.unwrap_or_else(|| plan.scratch(sizes.dtype, sizes.weights()));
        let own = named![dy: upstream.dy, dwx: self.gates, dr: gradients["r"], db];
        let tensors = of_layer(&upstream.states, sizes, self.state).chain(own);
        self.recurrence().add_backward(plan, Arguments::new(PROMISE, tensors))?;
        self.add_gradient_by_weight_ih(plan, gradients, head)
    }
}
