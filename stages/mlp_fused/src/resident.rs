//! The launch of all steps of one pair, with the parameters in shared memory.

use lab_device::{DType, Instance};
use lab_harness::plan::Scope;
use lab_harness::{Error, arguments};
use lab_reference::mlp::Sizes;

use crate::kernels::V2_RESIDENT;
use crate::steps::StepsPlan;

const BLOCKS: usize = 16;
const THREADS: usize = 256;

/// The most hidden units and columns of an embedding that a kernel has room for.
pub(crate) const MOST: [usize; 2] = [128, 64];

/// Numbers that a block has in shared memory, as `Places` in the kernel: how many, the vocabulary says.
fn shared_numbers([h, e]: [usize; 2], vocabulary: usize) -> usize {
    let rows = vocabulary.div_ceil(BLOCKS).next_multiple_of(8);
    let parts = (THREADS / 32 * h).max(1024);
    2 * box_numbers([h, e]) + h * (e + 8) + 3 * h + e + parts + rows * (h + 16 + 2 + e)
}

/// Numbers that blocks send each other in a step.
fn box_numbers([h, e]: [usize; 2]) -> usize {
    BLOCKS * (h + 2) + h + e
}

/// Adds the launch: of a cluster where the device has one so large, or of blocks that meet in device
/// memory.
pub(crate) fn add_steps(run: &mut StepsPlan, may_cluster: bool) -> Result<(), Error> {
    let StepsPlan { steps, sizes, lr, tokens, targets, losses, .. } = *run;
    let Sizes { vocabulary, embedding, hidden } = sizes;
    let device = run.plan.device().clone();
    let fits = |i: &Instance| hidden <= i.size("HT") && embedding <= i.size("ET");
    let instance = V2_RESIDENT.instances("resident").find(fits).expect("sizes that were checked");
    let room = [instance.size("HT"), instance.size("ET")];
    let bytes = shared_numbers(room, vocabulary) * DType::F32.size();
    let most = device.facts().max_shared_per_block as usize;
    if bytes > most {
        let what = format!("shared memory of a block, V={vocabulary} E={embedding} H={hidden}");
        return Err(Error::bad(what, format!("at most {most} bytes"), bytes));
    }
    let kernel = device.load(instance)?;
    let launch = kernel.grid([BLOCKS as u32, 1, 1])?.shared(bytes);
    let cluster = launch.cluster(BLOCKS as u32);
    let clustered = may_cluster && kernel.resident_clusters(&cluster)? > 0;
    let (launch, numbers, flags) = if clustered {
        (cluster, 1, 1)
    } else {
        (launch.cooperative(), BLOCKS * 2 * box_numbers(room), BLOCKS)
    };
    // The kernel is promised that what it reads is not what it writes.
    let [[emb, w1, b1, w2, b2], [emb_to, w1_to, b1_to, w2_to, b2_to]] = run.before_and_after();
    let plan = &mut run.plan;
    let post = plan.scratch(DType::F32, numbers);
    let flags = plan.zeros(DType::U32, flags);
    if !clustered {
        plan.zero(flags);
    }
    let scope = Scope::new()
        .with(arguments![tokens, targets, losses, post, flags, lr, steps, clustered])
        .with(arguments![emb, w1, b1, w2, b2, emb_to, w1_to, b1_to, w2_to, b2_to])
        .with(arguments![V: vocabulary, E: embedding, H: hidden]);
    plan.launch_in(&scope, &kernel, launch, arguments![])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 227 KB of an H200, 99 KB of an RTX 4060.
    #[test]
    fn a_small_model_fits() {
        assert!(shared_numbers([128, 64], 1000) * 4 <= 227 * 1024);
        assert!(shared_numbers([128, 64], 3200) * 4 <= 227 * 1024);
        assert!(shared_numbers([64, 32], 2000) * 4 <= 99 * 1024);
    }
}
