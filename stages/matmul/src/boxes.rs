//! Plans of the versions whose tiles TMA loads.

use lab_device::{DType, Device, DeviceKind, Instance, Launch};
use lab_harness::{Error, Operand, Plan, Request, Setting, Version, arguments};

use crate::{BEHIND, Blocks, GRID, Matmul, SPLIT, STORES, TENSOR, TURNED, narrow_round, tuning};

/// Of G matrices of M rows and N columns, with sums of K terms; C has the leading indices that A and B have.
///
/// # Errors
/// As those of a plan.
pub(crate) fn plan(
    version: &Matmul,
    device: &Device,
    request: &Request<'_>,
    leading: &[usize],
) -> Result<Plan, Error> {
    let sizes = ["G", "M", "N", "K"].map(|d| request.dim(d));
    let [g, m, n, k] = sizes;
    let dtype = request.dtype;
    if version.blocks == Blocks::Snake
        && request.number(narrow_round::LAST.name) == -1.0
        && g * (m * k + k * n) * dtype.size() <= device.facts().l2 as usize
    {
        return BEHIND.plan(device, request);
    }
    let last = match version.blocks {
        Blocks::Narrow | Blocks::Snake => match narrow_round::columns(version, device, request)? {
            None => return GRID.plan(device, request),
            some => some,
        },
        _ => None,
    };
    if !version.packs(dtype, n, k) {
        if matches!(version.blocks, Blocks::Sized | Blocks::Grid(_))
            && tile(version, request) != "auto"
        {
            let expected = "auto, for N or K is no multiple of 8: no boxes, but v7's tiles";
            return Err(Error::bad("--set tile", expected, tile(version, request)));
        }
        // A tensor map's strides are multiples of 16 bytes.
        return TENSOR.plan(device, request);
    }
    let (version, parts, side) = match version.blocks {
        Blocks::Grid(shared) => match parts_of_grid(version, shared, device, request)? {
            Some(parts) => (version, parts, None),
            None => return shared.otherwise().plan(device, request),
        },
        Blocks::Sized => match way(version, request, &Room::of(device)?)? {
            Way::Whole => (&STORES, 1, None),
            Way::Parts { side, parts } => (version, parts, Some(side)),
        },
        _ => (version, 1, None),
    };
    let fits = |i: &Instance| {
        i.has("T", dtype.cpp())
            && side.is_none_or(|side| i.size("BM") == side)
            && last.is_none_or(|last| i.size("LAST") == last)
    };
    let instance = version.source.instances(version.kernel).find(fits);
    let instance = instance.expect("a type and a tile that the version has");
    let sides = ["BM", "BN", "BK"];
    let (kernel, [rows, columns, depth]) = match request.tiling {
        None => (device.load(instance)?, sides.map(|name| instance.size(name))),
        Some(tiling) => {
            let name = tuning::choose(version, instance, dtype, tiling)?;
            let kernel = device.instantiate(version.source, &name, instance.name())?;
            (kernel, sides.map(|name| tiling.get(name)))
        }
    };
    let [down, along] = [m.div_ceil(rows), n.div_ceil(columns)];
    let block = kernel.block()?;
    let launch = match version.blocks {
        Blocks::Stay { cluster, .. } => {
            let all = down.div_ceil(cluster as usize) * along * g;
            let at_once = device.facts().multiprocessors / cluster;
            Launch::of([cluster * at_once.clamp(1, all.min(1 << 20) as u32), 1, 1], block)
                .cluster(cluster)
        }
        Blocks::Narrow | Blocks::Snake => Launch::of([device.facts().multiprocessors, 1, 1], block),
        Blocks::Grid(_) => {
            Launch::of([(along * parts) as u32, down as u32, g as u32], block).cooperative()
        }
        _ => {
            Launch::of([(along * parts) as u32, down as u32, g as u32], block).cluster(parts as u32)
        }
    };

    let mut plan = Plan::new(device);
    let [a, b] = request.inputs(&mut plan, ["A", "B"]);
    let c = plan.output("C", dtype, &[leading, &[m, n]].concat());
    let matrices = |rows, columns| Operand::new(dtype, [rows, columns]).several(g);
    let a = a.loaded_by(matrices(m, k).loaded(rows)?);
    let b = b.loaded_by(matrices(k, n).loaded(depth)?);
    let c = match version.blocks {
        Blocks::Stay { stores: true, .. } | Blocks::Narrow | Blocks::Snake => {
            c.stored_by(matrices(m, n).stored()?)
        }
        _ => c.into(),
    };
    match version.blocks {
        Blocks::Stay { .. } | Blocks::Narrow | Blocks::Snake => {
            plan.launch(&kernel, launch, arguments![A: a, B: b, C: c, G: g, M: m, N: n, K: k])?;
        }
        Blocks::Grid(_) => {
            let sums = plan.scratch(DType::F32, g * down * along * parts * rows * columns);
            let all = arguments![A: a, B: b, C: c, sums: sums, parts: parts, M: m, N: n, K: k];
            plan.launch(&kernel, launch, all)?;
        }
        _ => plan.launch(&kernel, launch, arguments![A: a, B: b, C: c, M: m, N: n, K: k])?,
    }
    Ok(plan)
}

/// The option that says how a product is cut.
pub(crate) const TILE: Setting = Setting::choice(
    "tile",
    "rows and columns of a tile, and blocks for each; auto: by the size",
    &[
        "auto",
        "128x256",
        "64x64",
        "128x128",
        "128x128/2",
        "128x128/3",
        "128x128/4",
        "128x128/5",
        "128x128/6",
        "128x128/7",
        "128x128/8",
    ],
);

fn tile<'a>(version: &Matmul, request: &'a Request<'_>) -> &'a str {
    request.options().text(&version.info, TILE.name)
}

/// As the option says, or by the size.
fn way(version: &Matmul, request: &Request<'_>, room: &Room) -> Result<Way, Error> {
    let sizes = ["G", "M", "N", "K"].map(|d| request.dim(d));
    let text = tile(version, request);
    let (tile, parts) = text.split_once('/').unwrap_or((text, "1"));
    let way = match tile {
        "auto" => return Ok(Way::of(sizes, room)),
        "128x256" => Way::Whole,
        "64x64" => Way::Parts { side: 64, parts: 1 },
        _ => Way::Parts { side: 128, parts: parts.parse().expect("one of the choices") },
    };
    let steps = sizes[3].div_ceil(Way::STEP);
    match way {
        Way::Parts { parts, .. } if parts > steps => {
            let expected =
                format!("at most {steps} blocks for a tile: K has so many steps of {}", Way::STEP);
            Err(Error::bad("--set tile", expected, text))
        }
        _ => Ok(way),
    }
}

/// The option that says whether all multiprocessors share the tiles.
pub(crate) const PARTS: Setting = Setting::choice(
    "tile",
    "grid: parts of whole tiles for all multiprocessors; auto: by the size, that or as the parent",
    &["auto", "grid"],
);

/// Blocks of each tile where all multiprocessors share the tiles; `None` where they do better as the parent cuts them.
///
/// # Errors
/// More tiles than multiprocessors, and they are asked for.
fn parts_of_grid(
    version: &Matmul,
    shared: Shared,
    device: &Device,
    request: &Request<'_>,
) -> Result<Option<usize>, Error> {
    let sizes = ["G", "M", "N", "K"].map(|d| request.dim(d));
    let room = Room::of(device)?;
    if request.options().text(&version.info, PARTS.name) != "grid" {
        return Ok(shared.quickest_parts(sizes, &room));
    }
    let (tiles, parts) = shared.parts(sizes, &room);
    let most = room.multiprocessors;
    let expected = format!("auto, for {tiles} tiles are more than {most} multiprocessors");
    match parts {
        0 => Err(Error::bad("--set tile", expected, "grid")),
        _ => Ok(Some(parts)),
    }
}

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
    fn parts(self, [g, m, n, k]: [usize; 4], room: &Room) -> (usize, usize) {
        let [rows, columns] = match self {
            Self::Halves => [128, 256],
            Self::Turned => [256, 128],
        };
        let tiles = m.div_ceil(rows) * n.div_ceil(columns) * g;
        (tiles, (room.multiprocessors / tiles).min(k.div_ceil(Way::STEP)))
    }

    /// The parts, where fits of measured times, as those of [`Way`], say that they are the quickest.
    fn quickest_parts(self, sizes: [usize; 4], room: &Room) -> Option<usize> {
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
    fn of([g, m, n, k]: [usize; 4], room: &Room) -> Self {
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
