//! The launch of all steps of one pair, with the parameters in shared memory.

use lab_device::{DType, Launch};
use lab_harness::Error;
use lab_harness::program::scalar;
use lab_reference::mlp::Sizes;

use crate::kernels::V2_RESIDENT;
use crate::steps::{Posed, int, kernel};

const BLOCKS: usize = 16;
const THREADS: usize = 256;

/// Room for H and E, the least first.
const ROOMS: [[usize; 2]; 2] = [[64, 32], [128, 64]];

/// The most hidden units and columns of an embedding.
pub(crate) const MOST: [usize; 2] = ROOMS[ROOMS.len() - 1];

/// Numbers that a block has in shared memory, as `Places` in the kernel.
fn shared([h, e]: [usize; 2], vocabulary: usize) -> usize {
    let rows = vocabulary.div_ceil(BLOCKS).next_multiple_of(8);
    let parts = (THREADS / 32 * h).max(1024);
    2 * box_of([h, e]) + h * (e + 8) + 3 * h + e + parts + rows * (h + 16 + 2 + e)
}

/// Numbers that blocks send each other in a step.
fn box_of([h, e]: [usize; 2]) -> usize {
    BLOCKS * (h + 2) + h + e
}

/// Adds the launch: of a cluster where the device has one so large, or of blocks that meet in device
/// memory.
pub(crate) fn launches(posed: &mut Posed, may_cluster: bool) -> Result<(), Error> {
    let Posed { steps, sizes, lr, tokens, targets, losses, .. } = *posed;
    let Sizes { vocabulary, embedding, hidden } = sizes;
    let program = &mut posed.program;
    let device = program.device().clone();
    let fits = |room: &&[usize; 2]| hidden <= room[0] && embedding <= room[1];
    let room = ROOMS.iter().find(fits).expect("sizes that were checked");
    let bytes = shared(*room, vocabulary) * DType::F32.size();
    let most = device.facts().max_shared_per_block as usize;
    if bytes > most {
        let what = format!("shared memory of a block, V={vocabulary} E={embedding} H={hidden}");
        return Err(Error::bad(what, format!("at most {most} bytes"), bytes));
    }
    let kernel = kernel(&device, &V2_RESIDENT, "resident", &format!("{}, {}", room[0], room[1]))?;
    let launch = Launch::new(BLOCKS as u32, THREADS as u32).shared(bytes);
    let cluster = launch.cluster(BLOCKS as u32);
    let clustered = may_cluster && kernel.resident_clusters(&cluster)? > 0;
    let (launch, numbers, flags) = match clustered {
        true => (cluster, 1, 1),
        false => (launch.cooperative(), BLOCKS * 2 * box_of(*room), BLOCKS),
    };
    let post = program.scratch(DType::F32, numbers)?;
    let flags = program.zeros(DType::U32, flags)?;
    let [emb, w1, b1, w2, b2] = posed.layout.parts(posed.before);
    let [emb_to, w1_to, b1_to, w2_to, b2_to] = posed.layout.parts(posed.parameters);
    if !clustered {
        program.zero(flags);
    }
    program.launch(
        kernel,
        launch,
        [
            tokens.read(),
            targets.read(),
            emb.read(),
            w1.read(),
            b1.read(),
            w2.read(),
            b2.read(),
            emb_to.write(),
            w1_to.write(),
            b1_to.write(),
            w2_to.write(),
            b2_to.write(),
            losses.write(),
            post.write(),
            flags.write(),
            scalar(lr as f32),
            int(steps),
            int(vocabulary),
            int(embedding),
            int(hidden),
            scalar(i32::from(clustered)),
        ],
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 227 KB of an H200, 99 KB of an RTX 4060.
    #[test]
    fn a_small_model_fits() {
        assert!(shared([128, 64], 1000) * 4 <= 227 * 1024);
        assert!(shared([128, 64], 3200) * 4 <= 227 * 1024);
        assert!(shared([64, 32], 2000) * 4 <= 99 * 1024);
    }
}
