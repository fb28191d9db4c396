//! How narrow the tiles of the last round are: `kernels/narrow_round.cuh`.

use lab_device::Device;
use lab_harness::{Error, Request};

use crate::Matmul;
use crate::model::{Room, is_whole};
use crate::settings::LAST;

/// Rows of tiles in a stripe, and columns of a tile of other rounds, as `build.rs` has them.
const HIGH: usize = 16;
const WIDE: usize = 256;

/// How many tiles of so many columns the last round of 128 x 256 makes; `None` where there is none, or it is of several
/// stripes.
pub(crate) fn narrow_tiles(
    [g, m, n, _]: [usize; 4],
    multiprocessors: usize,
    last: usize,
) -> Option<usize> {
    let [down, across] = [m.div_ceil(128), n.div_ceil(WIDE)];
    let tiles = down * across * g;
    let of_matrix = (tiles - tiles % multiprocessors) % (down * across);
    let stripe = of_matrix / (HIGH * across);
    let rest = of_matrix % (HIGH * across);
    let high = HIGH.min(down - stripe * HIGH);
    if tiles.is_multiple_of(multiprocessors) || tiles % multiprocessors != high * across - rest {
        return None;
    }
    let (less, from) = (rest % high, rest / high * WIDE);
    Some(
        less * n.saturating_sub(from + WIDE).div_ceil(last)
            + (high - less) * (n - from).div_ceil(last),
    )
}

/// Whether these tiles of the last round are no more than one round: then they are cheap enough. Tiles like the others always are.
fn is_one_round(sizes: [usize; 4], multiprocessors: usize, last: usize) -> bool {
    let tiles = || narrow_tiles(sizes, multiprocessors, last);
    last == WIDE || tiles().is_some_and(|tiles| tiles <= multiprocessors)
}

/// Columns of the narrowest of these tiles that are no more than a round; `None` where there are none, or few tiles are cut
/// in another way.
fn narrowest(sizes: [usize; 4], room: &Room, widths: &[usize]) -> Option<usize> {
    let is_one = |&last: &usize| is_one_round(sizes, room.multiprocessors, last);
    widths.iter().copied().filter(is_one).min().filter(|_| is_whole(sizes, room))
}

/// Columns of a tile of the last round; `None` where v17's way is quicker, or asked for.
///
/// # Errors
/// Others are asked for than there are, or they are more than a round.
pub(crate) fn columns(
    version: &Matmul,
    device: &Device,
    request: &Request<'_>,
) -> Result<Option<usize>, Error> {
    let sizes = ["G", "M", "N", "K"].map(|d| request.dim(d));
    let multiprocessors = device.facts().multiprocessors as usize;
    let packs = version.packs(request.dtype, sizes[2], sizes[3]);
    let of_type =
        version.source.instances(version.kernel).filter(|i| i.has("T", request.dtype.cpp()));
    let widths: Vec<_> = of_type.map(|instance| instance.size("LAST")).collect();
    let asked = request.number(LAST.name);
    if asked == -1.0 {
        return Ok(narrowest(sizes, &Room::of(device)?, &widths).filter(|_| packs));
    }
    if asked == 0.0 {
        return Ok(None);
    }
    let fitting: Vec<_> = widths
        .into_iter()
        .filter(|&last| packs && is_one_round(sizes, multiprocessors, last))
        .collect();
    match fitting.iter().find(|&&last| last as f64 == asked) {
        Some(&last) => Ok(Some(last)),
        None => {
            let these = match &fitting[..] {
                [] => "-1 or 0".into(),
                widths => format!("-1, 0, or one of {widths:?}"),
            };
            let expected = format!(
                "{these} for these sizes: N and K are multiples of 8, and tiles narrower than {WIDE} lie in one \
                 stripe, {multiprocessors} at most"
            );
            Err(Error::bad("--set last", expected, asked))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::H200;

    /// 4096 and 7168 would make a round of tiles of 240 columns, and an H200 gained nothing by them.
    #[test]
    fn the_last_round_fits() {
        let of = |m, n, k| narrowest([1, m, n, k], &H200, &[64, 144, 192]);
        assert_eq!(narrow_tiles([1, 4096, 4096, 64], 132, 256), Some(116));
        assert_eq!(narrow_tiles([1, 4096, 4096, 64], 132, 240), Some(132));
        assert_eq!(of(4096, 4096, 4096), None);
        assert_eq!(of(3072, 3072, 3072), Some(64));
        assert_eq!(of(6144, 6144, 6144), Some(192));
        assert_eq!(of(8192, 8192, 8192), Some(144));
        assert_eq!(of(7168, 7168, 7168), None);
        assert_eq!(of(16384, 3072, 768), Some(192));
        // v20 has its own kernel for rounds of equal tiles.
        let behind = |m, n, k| narrowest([1, m, n, k], &H200, &[64, 144, 192, WIDE]);
        assert_eq!(behind(4096, 4096, 4096), Some(WIDE));
        assert_eq!(behind(8192, 8192, 8192), Some(144));
        assert_eq!(behind(1024, 1024, 1024), None);
        // 128 tiles of one round, and others would be more than 132.
        assert_eq!(of(2048, 2048, 2048), None);
        // As v15 cuts it.
        assert_eq!(of(1024, 1024, 1024), None);
    }
}
