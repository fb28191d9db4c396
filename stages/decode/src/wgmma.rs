//! The launch of `kernels/v8_wgmma.cu`.

use lab_device::{DType, Device, Kernel, Launch, Swizzle, TensorMap};
use lab_harness::plan::{Scope, Slot};
use lab_harness::tiling::candidates;
use lab_harness::{Error, Operand, Plan, Tiling, arguments, named};

use crate::few_rows::{FewRows, MOST_WIDE_ROWS, Way};

/// Bytes that a row of a box has.
pub(crate) const SPAN: usize = 128;

/// Bytes of the places of all blocks of a multiprocessor, with room for barriers.
const ROOM: usize = 220 << 10;

/// How the kernel is instantiated, and launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiles {
    /// Rows of x of a place.
    rows: usize,
    /// Warpgroups of a block, of 64 rows of W each.
    groups: usize,
    /// Blocks of a multiprocessor.
    blocks: usize,
    /// Steps in a block's shared memory.
    places: usize,
    /// Tiles side by side whose blocks bring x for each other.
    beside: usize,
}

impl Tiles {
    /// With W of the type of x, or of int8.
    fn new(way: Way, rows: usize, int8: bool, [groups, blocks]: [usize; 2]) -> Self {
        // Of bytes the two planes are columns of B.
        let rows = rows.next_power_of_two().max(if way == Way::Wgmma { 16 } else { 8 });
        let of_step = (64 * groups + rows * if int8 { 2 } else { 1 }) * SPAN;
        let places = (ROOM / blocks / of_step).max(1);
        // Of bytes each brings its own: that two blocks wait for each other costs more than x does.
        let beside = if way == Way::Wgmma && rows >= SHARED_FROM { 2 } else { 1 };
        Self { rows, groups, blocks, places, beside }
    }

    /// Low ones.
    fn usual(way: Way, rows: usize, int8: bool) -> Self {
        // The sums of more rows of x, of Units in floats as well, and the halves made of int8 take the registers of a second block.
        let most = if way == Way::Units { 32 } else { 64 };
        Self::new(way, rows, int8, [2, if int8 && rows > most { 1 } else { 2 }])
    }

    /// Those in use. All bytes of W and of x, which comes once for each tile or cluster, go through the L2 cache: higher tiles ask for x less
    /// often. Of tiles of 128 and of 192 rows of W those are taken that are done first, if a multiprocessor has one block at a time, and each
    /// takes as long as it has rows of W and of x. What shares k has no say: a row has the same bits among any others.
    pub(crate) fn chosen(
        (way, int8): (Way, bool),
        multiprocessors: usize,
        [rows, n, row]: [usize; 3],
        gated: bool,
    ) -> Self {
        let low = Self::usual(way, rows, int8);
        let high = Self::new(way, rows, int8, [3, 1]);
        let time = |tiles: &Self| {
            let cluster = tiles.cluster(multiprocessors, [n, row], gated, None);
            let blocks = cluster.blocks(tiles.across(n, gated));
            // Multiprocessors come in groups of 16 or 18, and a cluster has some of one group.
            let fit = if cluster.size() > 2 { multiprocessors * 15 / 16 } else { multiprocessors };
            blocks.div_ceil(fit.max(1)) * (2 * tiles.high() + 64)
        };
        // Halves made of int8, and the sums of more than 64 rows of bytes, have no room in the registers of four warpgroups.
        let fits = if way == Way::Wgmma { !int8 } else { rows <= 64 };
        if fits && time(&high) < time(&low) { high } else { low }
    }

    /// Of one of [`tilings`].
    pub(crate) fn tiled(way: Way, rows: usize, int8: bool, tiling: &Tiling) -> Self {
        Self::new(way, rows, int8, [tiling.get("GROUPS"), tiling.get("BLOCKS")])
    }

    /// Rows of x of a place.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// The kernel's name.
    fn name(&self, t: &str, w: &str) -> String {
        let Self { rows, groups, blocks, places, .. } = self;
        format!("few_rows_wgmma<{t}, {w}, {rows}, {groups}, {places}, {blocks}>")
    }

    /// That of [`Way::Bytes`].
    pub(crate) fn name_of_bytes(&self, t: &str) -> String {
        let Self { rows, groups, blocks, places, .. } = self;
        format!("few_rows_bytes<{t}, {rows}, {groups}, {places}, {blocks}>")
    }

    /// That of [`Way::Units`].
    pub(crate) fn name_of_units(&self, t: &str) -> String {
        self.name_of_bytes(t).replace("bytes", "units")
    }

    /// Rows of W of a tile.
    fn high(&self) -> usize {
        64 * self.groups
    }

    /// Tiles of so many columns of y.
    pub(crate) fn across(&self, n: usize, gated: bool) -> usize {
        n.div_ceil(self.wide(gated))
    }

    /// Columns of y of a tile.
    pub(crate) fn wide(&self, gated: bool) -> usize {
        if gated { self.high() / 2 } else { self.high() }
    }

    /// How many blocks share the columns of a tile, of which W has so many bytes in a row.
    pub(crate) fn share(
        &self,
        multiprocessors: usize,
        [n, row]: [usize; 2],
        gated: bool,
        tiling: Option<&Tiling>,
    ) -> usize {
        // As for tiles of 128 rows of W, whichever are taken: a row has the same bits then.
        let nominal = Self { groups: 2, ..*self };
        let (across, steps) = (nominal.across(n, gated), row.div_ceil(SPAN));
        match tiling.map(|tiling| tiling.get("PARTS")) {
            None | Some(0) => {
                // Two blocks a multiprocessor, but clusters of many do not fit everywhere. Rows of x have no say: each has the same bits
                // among any others.
                let fit = multiprocessors * 7 / 4;
                let fits = |parts: &usize| across * parts <= fit && *parts <= steps;
                [8, 4, 2].into_iter().find(fits).unwrap_or(1)
            }
            Some(parts) => parts.min(steps),
        }
    }

    /// The blocks that work together, of which `tiling` may say how many.
    pub(crate) fn cluster(
        &self,
        multiprocessors: usize,
        sizes: [usize; 2],
        gated: bool,
        tiling: Option<&Tiling>,
    ) -> Cluster {
        let parts = self.share(multiprocessors, sizes, gated, tiling);
        let beside = tiling.map_or(self.beside, |tiling| tiling.get("BESIDE"));
        // Clusters of more than eight do not run everywhere.
        Cluster { parts, beside: if parts * beside <= MOST_IN_CLUSTER { beside } else { 1 } }
    }

    /// By which the rows of W come.
    pub(crate) fn map_of_weight(
        &self,
        dtype: DType,
        [n, k]: [usize; 2],
        gated: bool,
    ) -> Result<TensorMap, Error> {
        let [matrices, high] = if gated { [2, self.high() / 2] } else { [1, self.high()] };
        map_of_boxes(dtype, [matrices, n, k], [matrices, high])
    }
}

/// From so many rows of x on, blocks of neighbouring tiles bring them for each other.
const SHARED_FROM: usize = 32;

const MOST_IN_CLUSTER: usize = 8;

/// The blocks of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    /// That share the columns of a tile.
    pub(crate) parts: usize,
    /// Tiles side by side, whose blocks bring x for each other.
    pub(crate) beside: usize,
}

impl Cluster {
    fn size(&self) -> usize {
        self.parts * self.beside
    }

    /// Of so many tiles; the last ones may have no columns of y.
    fn blocks(&self, across: usize) -> usize {
        across.next_multiple_of(self.beside) * self.parts
    }

    pub(crate) fn launch(&self, kernel: &Kernel, across: usize) -> Result<Launch, Error> {
        let launch = kernel.grid([self.blocks(across) as u32, 1, 1])?;
        Ok(launch.cluster(self.size() as u32).overlap_previous())
    }

    /// Rows of x that one copy brings, of `rows` rows in so many boxes.
    pub(crate) fn rows_of_a_box(&self, rows: usize, boxes: usize) -> usize {
        if self.beside == 1 { rows } else { boxes * rows / self.beside }
    }
}

/// What `lab tune` tries: warpgroups of a block, blocks of a multiprocessor, blocks that share k (0 is as many as fit), and tiles
/// side by side whose blocks share x.
const NAMES: [&str; 4] = ["GROUPS", "BLOCKS", "PARTS", "BESIDE"];

/// Multiprocessors of the GPU whose tiling in use stands first.
const TUNED_FOR: usize = 132;

/// The tilings of so many rows, the one in use first; of other ways none.
pub(crate) fn tilings(way: Way, [rows, n, k]: [usize; 3], int8: bool) -> Vec<Tiling> {
    if ![Way::Wgmma, Way::Bytes].contains(&way) {
        return Vec::new();
    }
    let row = if int8 { k } else { 2 * k };
    let usual = Tiles::chosen((way, int8), TUNED_FOR, [rows, n, row], false);
    let Tiles { groups, blocks, .. } = usual;
    let Cluster { beside, .. } = usual.cluster(TUNED_FOR, [n, row], false, None);
    let values: [&[usize]; 4] = [&[2, 3], &[1, 2], &[0, 1, 2, 4], &[1, 2, 4]];
    candidates(&NAMES, [groups, blocks, 0, beside], values, |tiling| {
        let [groups, blocks] = [tiling.get("GROUPS"), tiling.get("BLOCKS")];
        let tiles = Tiles::new(way, rows, int8, [groups, blocks]);
        let cluster = tiles.cluster(TUNED_FOR, [n, row], false, Some(tiling));
        let shares = cluster.beside == tiling.get("BESIDE")
            && (cluster.beside == 1 || tiles.rows >= 8 * cluster.beside);
        // Sums of a thread and fragments of int8, in the registers that so many threads leave; of bytes the sums of two planes.
        let of_way = if way == Way::Bytes {
            tiles.rows / 2
        } else if int8 {
            16
        } else {
            0
        };
        let registers = 32 + tiles.rows / 2 + of_way;
        (128 * groups + 32) * blocks * registers <= 60_000 && tiles.places > 1 && shares
    })
}

/// Of matrices \[matrices, rows, columns\], in boxes of 128 bytes of `high` rows of `deep` matrices.
pub(crate) fn map_of_boxes(
    dtype: DType,
    [matrices, rows, columns]: [usize; 3],
    [deep, high]: [usize; 2],
) -> Result<TensorMap, Error> {
    let row = columns * dtype.size();
    let extents = [SPAN / dtype.size(), high, deep];
    let map = TensorMap::new(dtype, &[columns, rows, matrices], &extents)?;
    Ok(map.strides(&[row, rows * row])?.swizzle(Swizzle::Bytes128))
}

pub(crate) fn multiprocessors(device: &Device) -> usize {
    device.facts().multiprocessors as usize
}

impl FewRows<'_> {
    /// Whether [`Way::Wgmma`] takes such rows, of halves.
    pub(crate) fn takes_wgmma(device: &Device, rows: usize) -> bool {
        rows <= MOST_WIDE_ROWS && Way::Wgmma.source().runs_on(&device.facts().arch)
    }

    /// Adds the launch with one of [`tilings`]; y.
    ///
    /// # Errors
    /// As [`FewRows::add`]; it is none of these.
    pub(crate) fn add_tiled(&self, plan: &mut Plan, tiling: &Tiling) -> Result<Slot, Error> {
        let way = self.check(plan.device())?;
        match way {
            _ if !tilings(way, [self.rows, self.n, self.k], self.scale.is_some())
                .contains(tiling) =>
            {
                Err(Error::bad("tiling of few_rows", "one of those that it lists", tiling))
            }
            Way::Bytes => self.add_bytes(plan, Some(tiling)),
            _ => self.add_wgmma(plan, Some(tiling)),
        }
    }

    /// Adds the launch of what fits [`Way::Wgmma`]; y.
    pub(crate) fn add_wgmma(
        &self,
        plan: &mut Plan,
        tiling: Option<&Tiling>,
    ) -> Result<Slot, Error> {
        let Self { dtype, rows, n, k, gated, .. } = *self;
        let (way, int8) = (Way::Wgmma, self.scale.is_some());
        let of_weight = if int8 { DType::I8 } else { dtype };
        let device = plan.device().clone();
        let (fit, row) = (multiprocessors(&device), k * of_weight.size());
        let usual = Tiles::chosen((way, int8), fit, [rows, n, row], gated);
        let tiles = tiling.map_or(usual, |tiling| Tiles::tiled(way, rows, int8, tiling));
        let name = |tiles: &Tiles| tiles.name(dtype.cpp(), of_weight.cpp());
        let kernel = device.instantiate(Way::Wgmma.source(), &name(&tiles), &name(&usual))?;
        let cluster = tiles.cluster(fit, [n, row], gated, tiling);
        let launch = cluster.launch(&kernel, tiles.across(n, gated))?;
        let weight = self.weight.loaded_by(tiles.map_of_weight(of_weight, [n, k], gated)?);
        let boxes = if int8 { 2 } else { 1 };
        let map = Operand::new(dtype, [rows, k]).several(1);
        let x = self.x.loaded_by(map.loaded(cluster.rows_of_a_box(tiles.rows, boxes))?);
        let WideScope { scope, y } = self.scope_of_wide(plan);
        plan.launch_in(
            &scope,
            &kernel,
            launch,
            arguments![weight: weight, x: x, beside: cluster.beside],
        )?;
        Ok(y)
    }

    /// Arguments that both kernels of wide products have under one name.
    pub(crate) fn scope_of_wide(&self, plan: &mut Plan) -> WideScope {
        let Self { dtype, rows, n, k, gated, parts, .. } = *self;
        let y = self.y.unwrap_or_else(|| plan.scratch(dtype, rows * n));
        let has_residual = self.added.is_some();
        let residual = self.added.unwrap_or_else(|| plan.scratch(dtype, 1));
        let begin = |part: usize| parts.get(part).copied().unwrap_or(n);
        let [p1, p2, p3, p4] = [0, 1, 2, 3].map(begin);
        let scale = self.scale.unwrap_or_else(|| plan.scratch(DType::F32, 1));
        let bias = self.gates.map_or_else(|| plan.scratch(dtype, 1), |gates| gates.bias);
        let to = self.gates.map_or_else(|| plan.scratch(DType::F32, 1), |gates| gates.to);
        let (heads, cap) = self.gates.map_or((0, 1.0), |gates| (gates.heads, gates.cap));
        // Nothing is asked for ahead until something says so.
        let state = scale;
        let scope = Scope::new().with(named![
            state, state_bytes: 0,
            scale, bias, residual, y, gates: to, R: rows, N: n, K: k, has_residual, gated, heads, cap,
            p1, p2, p3, p4
        ]);
        WideScope { scope, y }
    }
}

/// See [`FewRows::scope_of_wide`].
pub(crate) struct WideScope {
    pub(crate) scope: Scope,
    pub(crate) y: Slot,
}
