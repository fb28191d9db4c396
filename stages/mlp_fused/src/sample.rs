//! The launches of steps of one pair.

use lab_harness::plan::Scope;
use lab_harness::{Error, arguments};
use lab_reference::mlp::Sizes;

use crate::kernels::V0_SAMPLE;
use crate::steps::{StepsPlan, load_kernel};

/// Adds three launches a step.
pub(crate) fn add_steps(run: &mut StepsPlan) -> Result<(), Error> {
    let StepsPlan { dtype, steps, sizes, lr, .. } = *run;
    let Sizes { vocabulary, embedding, hidden } = sizes;
    let [emb, w1, b1, w2, b2] = run.trained();
    let plan = &mut run.plan;
    let load = |device, name| load_kernel(device, &V0_SAMPLE, name, dtype.cpp());
    let [forward, backward, update] = [
        load(plan.device(), "forward")?,
        load(plan.device(), "backward")?,
        load(plan.device(), "update")?,
    ];
    let [x, h, dz, da, dx] =
        [embedding, hidden, vocabulary, hidden, embedding].map(|len| plan.scratch(dtype, len));
    let scope = Scope::new()
        .with(arguments![emb, w1, b1, w2, b2, x, h, dz, da, dx])
        .with(arguments![lr, V: vocabulary, E: embedding, H: hidden]);
    let shared = |numbers: usize| numbers * dtype.size();
    let warps = backward.block()?.threads as usize / 32;
    let of_forward = forward.grid([1; 3])?.shared(shared(embedding + hidden));
    let of_backward = backward.grid([1; 3])?.shared(shared((1 + warps) * hidden));
    let all = vocabulary * (hidden + 1) + hidden * (embedding + 1) + embedding;
    let of_update = update.grid_over(all)?;
    for step in 0..steps {
        let [tokens, targets, loss] =
            [run.tokens, run.targets, run.losses].map(|slot| slot.part(step, 1));
        plan.launch_in(&scope, &forward, of_forward, arguments![tokens, targets, loss])?;
        plan.launch_in(&scope, &backward, of_backward, arguments![])?;
        plan.launch_in(&scope, &update, of_update, arguments![tokens])?;
    }
    Ok(())
}
