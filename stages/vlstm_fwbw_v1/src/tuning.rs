//! The tile parameters that `lab tune` tries.

use lab_harness::qkv::of;
use lab_harness::tiling::candidates;
use lab_harness::{Dims, Error, Tiling};

use crate::tiles::{CLASSES, Class, Tiles};

/// The class's columns, and of each kernel the parameters of [`Tiles`], in the order of the launches.
const NAMES: [&str; 19] = [
    "DH",
    "FW_TQ",
    "FW_TKV",
    "FW_CX",
    "FW_WI",
    "FW_WJ",
    "FW_BLOCKS",
    "DQ_TQ",
    "DQ_TKV",
    "DQ_CX",
    "DQ_WI",
    "DQ_WJ",
    "DQ_BLOCKS",
    "DKV_TKV",
    "DKV_TQ",
    "DKV_CX",
    "DKV_WI",
    "DKV_WJ",
    "DKV_BLOCKS",
];

/// The class in use for heads of so many columns: the smallest that has room for both; none above
/// 256, which the sizes exclude.
pub(crate) fn in_use(dhqk: usize, dhhv: usize) -> Class {
    let fits = CLASSES.into_iter().find(|c| dhqk.max(dhhv) <= c.dh);
    fits.expect("DHQK and DHHV of a checked problem")
}

fn values(class: &Class) -> [usize; 19] {
    let mut all = [class.dh; 19];
    for (n, t) in class.tiles.iter().enumerate() {
        all[1 + 6 * n..][..6]
            .copy_from_slice(&[t.own, t.past, t.piece, t.rows, t.columns, t.blocks]);
    }
    all
}

/// A class as a tiling.
pub(crate) fn tiling_of(class: &Class) -> Tiling {
    Tiling::new(&NAMES, values(class))
}

/// What a kernel of a class may have.
fn fair(tiles: Tiles, dh: usize) -> bool {
    let Tiles { own, past, piece, rows, columns, blocks } = tiles;
    let threads = tiles.threads();
    // Sums and scores of a thread, and what it multiplies at a time; more do not fit registers,
    // fewer reuse too little.
    let (sums, scores) = (own * dh / threads, own * past / threads);
    let fours = 4 * (own / rows + past / columns);
    let registers = sums + scores.max(dh / columns) + fours + 40;
    // What a multiprocessor of 228 KB has room for, and its 64 K registers.
    let resident = (228 * 1024 / (tiles.shared(dh) + 1024)).min((1 << 16) / (threads * registers));
    own.is_multiple_of(rows)
        && registers <= 255
        && sums + scores >= 48
        && (64..=256).contains(&threads)
        && threads.is_multiple_of(32)
        && tiles.shared(dh) <= 99 * 1024
        && (blocks == resident || blocks + 1 == resident)
        && (past * piece / dh).is_multiple_of(4)
        // Packs of eight halves, equally many a thread.
        && (past * piece).is_multiple_of(threads * 8)
        && (own * dh).is_multiple_of(threads * 8)
}

/// Of each kernel other tiles, while the other two keep theirs.
pub(crate) fn tilings(dims: &Dims) -> Vec<Tiling> {
    let [.., dhqk, dhhv] = of(dims);
    let class = in_use(dhqk, dhhv);
    let mut all = vec![tiling_of(&class)];
    for kernel in 0..class.tiles.len() {
        let kept = values(&class).map(|v| [v]);
        let mut tried: [&[usize]; 19] = kept.each_ref().map(|v| v.as_slice());
        tried[1 + 6 * kernel..][..6].copy_from_slice(&[
            &[32, 64, 128],
            &[32, 64, 128],
            &[32, 64],
            &[8, 16],
            &[8, 16],
            &[1, 2, 3, 4],
        ]);
        let others =
            candidates(&NAMES, values(&class), tried, |t| fair(parse(t).tiles[kernel], class.dh));
        all.extend(others.into_iter().skip(1));
    }
    all
}

fn parse(tiling: &Tiling) -> Class {
    let mut all = NAMES.map(|name| tiling.get(name)).into_iter();
    let mut next = || all.next().expect("as many as there are names");
    let dh = next();
    Class { dh, tiles: [(); 3].map(|()| Tiles::new([(); 6].map(|()| next()))) }
}

/// # Errors
/// It is none of those that are listed for its class, or the class is too narrow.
pub(crate) fn choose(tiling: &Tiling, dhqk: usize, dhhv: usize) -> Result<Class, Error> {
    let listed = |c: &Class| {
        let dims = lab_harness::qkv::sizes([1, 1, 1, c.dh, c.dh]);
        dhqk.max(dhhv) <= c.dh && tilings(&dims).contains(tiling)
    };
    if CLASSES.iter().any(listed) {
        return Ok(parse(tiling));
    }
    let what = format!("tiling of vlstm_fwbw_v1:ahead for {dhqk} and {dhhv} columns");
    Err(Error::bad(what, "one of those that it lists", tiling))
}

#[cfg(test)]
mod tests {
    use lab_harness::qkv::sizes;

    use super::*;
    use crate::tiles::OTHERS;

    #[test]
    fn the_first_tiling_is_the_one_in_use_and_none_comes_twice() {
        for class in CLASSES {
            let all = tilings(&sizes([1, 1, 1, 16, class.dh]));
            assert_eq!(parse(&all[0]).tiles, class.tiles);
            assert!((20..200).contains(&all.len()), "{}: {}", class.dh, all.len());
            assert!(all.iter().enumerate().all(|(n, t)| !all[..n].contains(t)));
            assert_eq!(choose(&all[3], 16, class.dh).unwrap().tiles, parse(&all[3]).tiles);
        }
    }

    /// What is no tiling of the version, and a class that is too narrow.
    #[test]
    fn other_tilings_are_refused() {
        let mut class = OTHERS[0];
        let refused = choose(&tiling_of(&class), 64, 64).unwrap_err().to_string();
        assert!(refused.starts_with("tiling of vlstm_fwbw_v1:ahead for 64 and 64"), "{refused}");
        class.tiles[1..].copy_from_slice(&CLASSES[0].tiles[1..]);
        assert!(choose(&tiling_of(&class), 64, 64).is_ok());
        assert!(choose(&tiling_of(&class), 64, 80).is_err());
    }
}
