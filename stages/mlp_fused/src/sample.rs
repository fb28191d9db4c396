//! The launches of steps of one pair.

use lab_device::Launch;
use lab_harness::Error;
use lab_harness::program::math_scalar;
use lab_reference::mlp::Sizes;

use crate::kernels::V0_SAMPLE;
use crate::steps::{Posed, blocks, int, kernel};

/// Of a block, and warps.
const THREADS: u32 = 512;
const WARPS: usize = THREADS as usize / 32;

/// Adds three launches a step.
pub(crate) fn launches(posed: &mut Posed) -> Result<(), Error> {
    let Posed { dtype, steps, sizes, lr, ref layout, .. } = *posed;
    let Sizes { vocabulary, embedding, hidden } = sizes;
    let program = &mut posed.program;
    let own = |program: &_, name| kernel(program, &V0_SAMPLE, name, dtype.cpp());
    let device = program.device().clone();
    let [forward, backward, update] =
        [own(&device, "forward")?, own(&device, "backward")?, own(&device, "update")?];
    program.copy(posed.before, posed.parameters);
    let [emb, w1, b1, w2, b2] = layout.parts(posed.parameters);
    let mut scratch = |len| program.scratch(dtype, len);
    let [x, h, dz] = [scratch(embedding)?, scratch(hidden)?, scratch(vocabulary)?];
    let [da, dx] = [scratch(hidden)?, scratch(embedding)?];
    let [v, e, h_size] = [vocabulary, embedding, hidden].map(int);
    let shared = |numbers: usize| numbers * dtype.size();
    let all = vocabulary * (hidden + 1) + hidden * (embedding + 1) + embedding;
    for step in 0..steps {
        let [token, target] = [posed.tokens, posed.targets].map(|ids| ids.part(step, 1).read());
        let loss = posed.losses.part(step, 1).write();
        program.launch(
            forward.clone(),
            Launch::new(1, THREADS).shared(shared(embedding + hidden)),
            [
                token,
                target,
                emb.read(),
                w1.read(),
                b1.read(),
                w2.read(),
                b2.read(),
                x.write(),
                h.write(),
                dz.write(),
                loss,
                v,
                e,
                h_size,
            ],
        );
        program.launch(
            backward.clone(),
            Launch::new(1, THREADS).shared(shared((1 + WARPS) * hidden)),
            [w1.read(), w2.read(), h.read(), dz.read(), da.write(), dx.write(), v, e, h_size],
        );
        program.launch(
            update.clone(),
            Launch::new(blocks(all, THREADS as usize), THREADS),
            [
                token,
                x.read(),
                h.read(),
                dz.read(),
                da.read(),
                dx.read(),
                emb.write(),
                w1.write(),
                b1.write(),
                w2.write(),
                b2.write(),
                math_scalar(dtype, lr),
                v,
                e,
                h_size,
            ],
        );
    }
    Ok(())
}
