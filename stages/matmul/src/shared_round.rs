//! When blocks without a tile of the last round help the others: `kernels/shared_round.cuh`.

use lab_device::Device;
use lab_harness::{Error, Request, Setting};

use crate::Matmul;
use crate::boxes::{Room, Way, is_whole};

/// The option that says how much.
pub(crate) const HELPED: Setting = Setting::number(
    "helped",
    "steps of k that others take of each tile of the last round; 0: none, as v17; -1: by the size",
    "-1",
);

/// What a step of k takes, in cycles; what its sums cost whoever gives them, and whoever takes them. Guesses.
const STEP: usize = 1040;
const GIVE: usize = 1500;
const TAKE: usize = 1500;

/// How many tiles of the last round a block has at most that has none of its own; `None` where no block is without, or some
/// would have nobody to help.
fn most_tiles_of_a_helper([g, m, n, _]: [usize; 4], multiprocessors: usize) -> Option<usize> {
    let last = m.div_ceil(128) * n.div_ceil(256) * g % multiprocessors;
    let helping = multiprocessors - last;
    (last >= helping).then(|| last.div_ceil(helping))
}

/// Steps of each tile of the last round with which all blocks end at the same time; `None` where that is later than with
/// all steps by the tile's own block, or few tiles are cut in another way.
fn quickest_steps(sizes: [usize; 4], room: &Room) -> Option<usize> {
    let most = most_tiles_of_a_helper(sizes, room.multiprocessors)?;
    // most (helped STEP + GIVE) = (steps - helped) STEP
    let all = sizes[3].div_ceil(Way::STEP) * STEP;
    let helped = all.saturating_sub(most * GIVE) / ((most + 1) * STEP);
    (helped * STEP > TAKE && is_whole(sizes, room)).then_some(helped)
}

/// Of each tile of the last round, those that others take; `None` where v17's way is quicker, or asked for.
///
/// # Errors
/// So many are asked for where there are fewer, or nobody has time.
pub(crate) fn helped_steps(
    version: &Matmul,
    device: &Device,
    request: &Request<'_>,
) -> Result<Option<usize>, Error> {
    let sizes = ["G", "M", "N", "K"].map(|d| request.dim(d));
    let multiprocessors = device.facts().multiprocessors as usize;
    let packs = version.packs(request.dtype, sizes[2], sizes[3]);
    let asked = request.number(HELPED.name);
    if asked == -1.0 {
        return Ok(quickest_steps(sizes, &Room::of(device)?).filter(|_| packs));
    }
    if asked == 0.0 {
        return Ok(None);
    }
    let tiles = most_tiles_of_a_helper(sizes, multiprocessors).filter(|_| packs);
    let steps = sizes[3].div_ceil(Way::STEP) - 1;
    let expected = match tiles {
        None => {
            "-1 or 0, for no block has time, not all would be helped, or N or K is no multiple of 8"
                .into()
        }
        Some(_) if asked.fract() != 0.0 || !(1.0..=steps as f64).contains(&asked) => {
            format!("-1, or 0 to {steps}, for the tile's own block takes a step at least")
        }
        Some(_) => return Ok(Some(asked as usize)),
    };
    Err(Error::bad("--set helped", expected, asked))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::boxes::tests::H200;

    /// 116 tiles for 132 blocks: 16 of these help with 7 or 8 tiles each. Others need none, or too many.
    #[test]
    fn tiles_are_helped_where_there_is_time() {
        let of = |m, n, k| quickest_steps([1, m, n, k], &H200);
        assert_eq!(of(4096, 4096, 4096), Some(5));
        assert_eq!(of(6144, 6144, 6144), Some(22));
        assert_eq!(of(8192, 8192, 8192), Some(41));
        assert_eq!(of(16384, 3072, 768), Some(3));
        // 24 tiles, and 108 blocks without.
        assert_eq!(of(3072, 3072, 3072), None);
        // 4 blocks for 128 tiles; short sums.
        assert_eq!(of(2048, 2048, 2048), None);
        assert_eq!(of(16384, 3072, 256), None);
        // As v17 or v15 cuts them.
        assert_eq!(of(1024, 4608, 16384), None);
        assert_eq!(of(1024, 1024, 1024), None);
    }
}
