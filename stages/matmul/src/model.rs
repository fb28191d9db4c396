//! How a product is cut into tiles: what is quickest on a device, by cycles of an H200.

use lab_device::{Device, DeviceKind, Launch};
use lab_harness::Error;

use crate::{Matmul, SPLIT, TURNED};

/// Tiles that all multiprocessors share, each as many parts of k as keep them at work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shared {
    /// Of 128 x 256, of halves; or as [`SPLIT`].
    Halves,
    /// Of 256 x 128, of f32 as TF32; or as [`TURNED`].
    Turned,
}

impl Shared {
    /// The version that has the products for which this is not the way.
    pub(crate) fn otherwise(self) -> &'static Matmul {
        match self {
            Self::Halves => &SPLIT,
            Self::Turned => &TURNED,
        }
    }

    /// How many tiles, and the parts of each, none without a step of k.
    pub(crate) fn parts(self, [g, m, n, k]: [usize; 4], room: &Room) -> (usize, usize) {
        let [rows, columns] = match self {
            Self::Halves => [128, 256],
            Self::Turned => [256, 128],
        };
        let tiles = m.div_ceil(rows) * n.div_ceil(columns) * g;
        (tiles, (room.multiprocessors / tiles).min(k.div_ceil(Way::STEP)))
    }

    /// The parts, where fits of measured times, as those of [`Way`], say that they are the quickest.
    pub(crate) fn quickest_parts(self, sizes: [usize; 4], room: &Room) -> Option<usize> {
        let [g, m, n, k] = sizes;
        let (tiles, parts) = self.parts(sizes, room);
        let steps = k.div_ceil(Way::STEP);
        let (step, otherwise) = match self {
            Self::Halves => (1072, Way::of(sizes, room).cycles([g, m, n], steps, room)),
            Self::Turned => {
                let rounds = tiles.div_ceil(room.multiprocessors);
                (2170, 6000 + rounds * (steps * 2140 + 3700))
            }
        };
        (parts > 1 && 22_500 + steps.div_ceil(parts) * step < otherwise).then_some(parts)
    }
}

/// What a device runs at once.
pub(crate) struct Room {
    pub(crate) multiprocessors: usize,
    /// Clusters of so many blocks, a block a multiprocessor; of none, none.
    clusters: [usize; Way::MOST + 1],
}

impl Room {
    /// A cluster lies in one group of multiprocessors, and groups are not equally large: a device is asked.
    ///
    /// # Errors
    /// As those of loading a kernel.
    pub(crate) fn of(device: &Device) -> Result<Self, Error> {
        let multiprocessors = device.facts().multiprocessors as usize;
        let mut clusters = std::array::from_fn(|blocks| multiprocessors / blocks.max(1));
        if device.kind() != DeviceKind::Emulator {
            let largest = SPLIT.source.instances(SPLIT.kernel).max_by_key(|i| i.size("BM"));
            let kernel = device.load(largest.expect("its tiles"))?;
            for (blocks, at_once) in clusters.iter_mut().enumerate().skip(2) {
                let blocks = blocks as u32;
                let launch = Launch::of([blocks, 1, 1], kernel.block()?).cluster(blocks);
                *at_once = kernel.resident_clusters(&launch)? as usize;
            }
        }
        Ok(Self { multiprocessors, clusters })
    }
}

/// Whether v17 takes v13's kernel: tiles of 128 x 256, by blocks that stay.
pub(crate) fn is_whole(sizes: [usize; 4], room: &Room) -> bool {
    Shared::Halves.quickest_parts(sizes, room).is_none() && Way::of(sizes, room) == Way::Whole
}

/// How a product is cut into tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// Tiles of 128 x 256, by blocks that stay.
    Whole,
    /// Tiles of `side` x `side`, for each so many blocks.
    Parts { side: usize, parts: usize },
}

impl Way {
    /// Blocks of a cluster, at most: as many as every device with clusters has room for.
    const MOST: usize = 8;

    /// Steps of k that a tile has, 64 elements each.
    pub(crate) const STEP: usize = 64;

    /// The one that a model of the time calls the fastest, of products G, M, N, K.
    pub(crate) fn of([g, m, n, k]: [usize; 4], room: &Room) -> Self {
        let steps = k.div_ceil(Self::STEP);
        let parts =
            (1..=Self::MOST.min(steps.max(1))).map(|parts| Self::Parts { side: 128, parts });
        let all = [Self::Whole, Self::Parts { side: 64, parts: 1 }].into_iter().chain(parts);
        all.min_by_key(|way| way.cycles([g, m, n], steps, room)).expect("there are several")
    }

    /// What it takes, in cycles of an H200, as far as fits of measured times tell: rounds of tiles on all
    /// multiprocessors, each so many steps and what it takes to begin and to end one.
    fn cycles(self, [g, m, n]: [usize; 3], steps: usize, room: &Room) -> usize {
        let rounds = |rows: usize, columns: usize, parts: usize| {
            (m.div_ceil(rows) * n.div_ceil(columns) * g).div_ceil(room.clusters[parts].max(1))
        };
        match self {
            Self::Whole => 6000 + rounds(128, 256, 1) * (steps * 1040 + 3700),
            Self::Parts { side: 64, .. } => 7000 + rounds(64, 64, 1) * steps * 300,
            Self::Parts { parts, .. } => {
                let rounds = rounds(128, 128, parts);
                let cycles = 5000 + rounds * (steps.div_ceil(parts) * 680 + 2500);
                // Clusters that wait for others to end cost more than they save.
                match parts {
                    1 => cycles,
                    _ if rounds == 1 => cycles + 6000,
                    _ => usize::MAX,
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// As an H200 says (`cuOccupancyMaxActiveClusters`, 288 threads and 192 kB a block).
    pub(crate) const H200: Room =
        Room { multiprocessors: 132, clusters: [0, 132, 66, 39, 30, 22, 17, 15, 15] };

    /// What was the fastest on an H200.
    #[test]
    fn the_fastest_way_is_found() {
        let of = |m, n, k| Way::of([1, m, n, k], &H200);
        for size in [2048, 3072, 4096, 8192] {
            assert_eq!(of(size, size, size), Way::Whole);
        }
        for size in [128, 256, 512, 1024] {
            assert_eq!(of(size, size, size), Way::Parts { side: 64, parts: 1 });
        }
        // Not measured: too many for tiles of 64 x 64, too few for large ones.
        assert_eq!(of(1280, 1280, 1280), Way::Parts { side: 128, parts: 1 });
        assert_eq!(of(768, 768, 16384), Way::Parts { side: 128, parts: 3 });
        // 17.6 µs; 15 clusters of 8 run at once, not 16, so that it is 24.7 with 8.
        assert_eq!(of(512, 512, 8192), Way::Parts { side: 128, parts: 6 });
        assert_eq!(of(16384, 3072, 768), Way::Whole);
    }

    /// As measured on an H200: 38 µs and not 43, 55 and not 63; but 24 and not 20, 24 and not 18.
    #[test]
    fn the_grid_shares_tiles_where_that_is_quicker() {
        let of = |m, n, k| Shared::Halves.quickest_parts([1, m, n, k], &H200);
        assert_eq!(of(768, 768, 16384), Some(7));
        assert_eq!(of(1024, 1024, 16384), Some(4));
        assert_eq!(of(1024, 1024, 4096), None);
        assert_eq!(of(512, 2048, 4096), None);
        assert_eq!(of(4096, 4096, 4096), None);
    }

    /// A part has at least a step.
    #[test]
    fn no_part_is_empty() {
        for k in [1, 64, 65, 200, 1000] {
            for side in [1, 200, 5000] {
                if let Way::Parts { parts, .. } = Way::of([1, side, side, k], &H200) {
                    assert!(parts <= k.div_ceil(64), "{side} {k}");
                }
            }
        }
    }
}
