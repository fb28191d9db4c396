//! Slots and launches.
//!
//! How S is cut depends on S alone. So a head gives the same among others as alone, bit for bit.

use lab_device::{DType, Device, Instance, KernelSource, Swizzle, TensorMap};
use lab_families::qkv;
use lab_harness::plan::{Argument, Slot};
use lab_harness::{Error, Info, Plan, Request, Setting, arguments};

use crate::kernels;

/// Rows of a tile.
const TILE: usize = 64;

/// Tiles of a segment at least, and segments of a head at most.
const TILES: usize = 8;
const SEGMENTS: usize = 64;

/// Blocks of a cluster that are chosen, at most. Eight would be more at work for a head; but on an H200 30 clusters of
/// eight run at once, and of seven 32: 32 heads of 4096 x 64 take 28 µs with seven blocks each, 41 with eight.
const AUTO_BLOCKS: usize = 7;

/// The option that says how many blocks share a head.
pub(crate) const BLOCKS: Setting = Setting::choice(
    "blocks",
    "blocks of a cluster, which share a head; auto: one for each 64 positions, at most 7",
    &["auto", "1", "2", "3", "4", "5", "6", "7", "8"],
);

/// Blocks that share a head where they stay: with 4 of them 32 heads are 128 blocks, for an H200's 132
/// multiprocessors. More where each has more than so many tiles, by powers of two, so that as many are busy. At most 32,
/// for each block reads the parts of all.
const RESIDENT_BLOCKS_LEAST: usize = 4;
const RESIDENT_BLOCKS_MOST: usize = 32;
const RESIDENT_TILES: usize = 16;

/// The same option, for them.
pub(crate) const RESIDENT_BLOCKS: Setting = Setting::choice(
    "blocks",
    "blocks that share a head; auto: a power of two from 4 to 32, as long as each has 1024 positions, and a tile each",
    &["auto", "1", "2", "3", "4", "5", "6", "7", "8"],
);

/// Sizes of a request, and what follows from them.
struct Sizes {
    heads: usize,
    s: usize,
    dhqk: usize,
    dhhv: usize,
    scale: f64,
    /// Segments of a head, and tiles of each but the last.
    segments: usize,
    tiles: usize,
}

impl Sizes {
    fn of(request: &Request<'_>) -> Self {
        let [b, nh, s, dhqk, dhhv] = qkv::sizes_of(&request.dims);
        let all = s.div_ceil(TILE);
        let tiles = all.div_ceil(SEGMENTS).max(TILES);
        let scale = 1.0 / (dhqk as f64).sqrt();
        Self { heads: b * nh, s, dhqk, dhhv, scale, segments: all.div_ceil(tiles), tiles }
    }

    /// A box of so many rows and 64 columns of `columns`, of a matrix of that many rows for each head.
    fn map(
        &self,
        dtype: DType,
        [rows, columns]: [usize; 2],
        of: usize,
    ) -> Result<TensorMap, Error> {
        let map = TensorMap::new(dtype, &[columns, rows, self.heads], &[TILE, of, 1])?;
        Ok(map.swizzle(Swizzle::Bytes128))
    }

    /// The same of rows of S.
    fn rows(&self, dtype: DType, columns: usize) -> Result<TensorMap, Error> {
        self.map(dtype, [self.s, columns], TILE)
    }

    /// `each` blocks for each head.
    fn blocks(&self, each: usize) -> Result<u32, Error> {
        let all = self.heads * each;
        let fits = i32::try_from(all).map(|all| all as u32);
        fits.map_err(|_| {
            let expected = format!("at most {}, for {each} blocks each", i32::MAX as usize / each);
            Error::bad("B NH", expected, self.heads)
        })
    }
}

/// q, k, v, o.
fn tensors(plan: &mut Plan, request: &Request<'_>) -> [Slot; 4] {
    let [q, k, v] = request.inputs(plan, ["q", "k", "v"]);
    let [b, nh, s, _, dhhv] = qkv::sizes_of(&request.dims);
    [q, k, v, plan.output("o", request.dtype, &[b, nh, s, dhhv])]
}

/// The launch between the products, which adds up the parts of `parts`: C and its factors.
fn add_parts(
    plan: &mut Plan,
    request: &Request<'_>,
    sizes: &Sizes,
    parts: Slot,
) -> Result<[Slot; 2], Error> {
    let &Sizes { heads, dhqk, dhhv, segments, scale, .. } = sizes;
    let fits = |i: &Instance| i.has("T", request.dtype.cpp());
    let instance = kernels::ADD_PARTS.instances("qkv_state").find(fits);
    let kernel = plan.device().load(instance.expect("a type that the stage has"))?;
    let state = plan.scratch(request.dtype, heads * dhqk * dhhv);
    let factor = plan.scratch(DType::F32, heads * dhhv);
    let launch = kernel.grid([sizes.blocks(1)?, dhhv.div_ceil(32) as u32, 1])?;
    plan.launch(&kernel, launch, arguments![parts, state, factor, segments, dhqk, dhhv, scale])?;
    Ok([state, factor])
}

/// By mma.sync.
pub(crate) fn warps(device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
    let sizes = Sizes::of(request);
    let &Sizes { heads, s, dhqk, dhhv, segments, tiles, .. } = &sizes;
    let widest = 16 / request.dtype.size();
    let packs = dhqk.is_multiple_of(widest) && dhhv.is_multiple_of(widest);
    let pack = if packs { widest } else { 1 };
    let load = |name: &str| {
        let fits = |i: &Instance| i.has("T", request.dtype.cpp()) && i.size("PACK") == pack;
        let instance = kernels::V0_REORDERED.instances(name).find(fits);
        device.load(instance.expect("a type that the stage has"))
    };
    let [first, last] = [load("qkv_state_parts")?, load("qkv_rows")?];
    let [down, along] = [dhqk, dhhv].map(|columns| columns.div_ceil(TILE) as u32);

    let mut plan = Plan::new(device);
    let [q, k, v, o] = tensors(&mut plan, request);
    let parts = plan.scratch(DType::F32, heads * segments * dhqk * dhhv);
    let launch = first.grid([sizes.blocks(segments)?, down, along])?;
    let rows = tiles * TILE;
    plan.launch(&first, launch, arguments![k, v, parts, S: s, dhqk, dhhv, segments, rows])?;
    let [state, factor] = add_parts(&mut plan, request, &sizes, parts)?;
    let tiles = s.div_ceil(TILE);
    let launch = last.grid([sizes.blocks(tiles)?, along, 1])?;
    plan.launch(&last, launch, arguments![q, state, factor, o, S: s, dhqk, dhhv, tiles])?;
    Ok(plan)
}

/// Whether TMA can bring the tensors (a tensor map's strides are multiples of 16 bytes), and a block has
/// the warpgroups for C.
pub(crate) fn fits_boxes(request: &Request<'_>) -> bool {
    let [.., dhqk, dhhv] = qkv::sizes_of(&request.dims);
    let pack = 16 / request.dtype.size();
    dhqk.is_multiple_of(pack) && dhhv.is_multiple_of(pack) && dhqk <= 128
}

/// The smallest instantiation with room for DHQK and, if that takes no larger one, for DHHV: else
/// several blocks share V's columns.
fn instance(source: &'static KernelSource, name: &str, request: &Request<'_>) -> Instance {
    let [.., dhqk, dhhv] = qkv::sizes_of(&request.dims);
    let fits =
        |i: &Instance| i.has("T", request.dtype.cpp()) && dhqk.max(dhhv.min(128)) <= i.size("DQK");
    source.instances(name).find(fits).expect("a type and sizes that fit boxes")
}

/// By wgmma, in three launches.
pub(crate) fn warpgroups(device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
    let sizes = Sizes::of(request);
    let &Sizes { heads, s, dhqk, dhhv, segments, tiles, .. } = &sizes;
    let dtype = request.dtype;
    let [first, last] = ["qkv_wgmma_parts", "qkv_wgmma_rows"]
        .map(|name| instance(&kernels::V1_WGMMA, name, request));
    let (wide, deep) = (first.size("DHV"), last.size("DQK"));
    let [first, last] = [device.load(first)?, device.load(last)?];
    let grid = [sizes.blocks(segments)?, dhhv.div_ceil(wide) as u32, 1];

    let mut plan = Plan::new(device);
    let [q, k, v, o] = tensors(&mut plan, request);
    let parts = plan.scratch(DType::F32, heads * segments * dhqk * dhhv);
    let [k, v] = [k.loaded_by(sizes.rows(dtype, dhqk)?), v.loaded_by(sizes.rows(dtype, dhhv)?)];
    let arguments = arguments![K: k, V: v, parts, S: s, dhqk, dhhv, segments, tiles];
    plan.launch(&first, first.grid(grid)?, arguments)?;
    let [state, factor] = add_parts(&mut plan, request, &sizes, parts)?;
    let c = state.loaded_by(sizes.map(dtype, [dhqk, dhhv], deep)?);
    let [q, o] = [q.loaded_by(sizes.rows(dtype, dhqk)?), o.stored_by(sizes.rows(dtype, dhhv)?)];
    let arguments = arguments![Q: q, C: c, O: o, factor, S: s, dhhv, segments, tiles];
    plan.launch(&last, last.grid(grid)?, arguments)?;
    Ok(plan)
}

/// By wgmma, in one launch.
pub(crate) fn cluster(device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
    let sizes = Sizes::of(request);
    let &Sizes { s, dhqk, dhhv, scale, .. } = &sizes;
    let dtype = request.dtype;
    let instance = instance(&kernels::V2_CLUSTER, "qkv_cluster", request);
    let wide = instance.size("DHV");
    let kernel = device.load(instance)?;
    let tiles = s.div_ceil(TILE);
    let blocks = blocks(&crate::CLUSTER.info, request, tiles)?.unwrap_or(tiles.min(AUTO_BLOCKS));
    let launch = kernel.grid([sizes.blocks(blocks)?, dhhv.div_ceil(wide) as u32, 1])?;

    let mut plan = Plan::new(device);
    let [q, k, v, o] = tensors(&mut plan, request);
    let [q, k] = [q, k].map(|slot| Ok::<Argument, Error>(slot.loaded_by(sizes.rows(dtype, dhqk)?)));
    let v = v.loaded_by(sizes.rows(dtype, dhhv)?);
    let o = o.stored_by(sizes.rows(dtype, dhhv)?);
    let arguments = arguments![Q: q?, K: k?, V: v, O: o, S: s, dhqk, scale];
    plan.launch(&kernel, launch.cluster(blocks as u32), arguments)?;
    Ok(plan)
}

/// By wgmma, in one launch of as many groups of blocks as are resident at once.
pub(crate) fn resident(device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
    let sizes = Sizes::of(request);
    let &Sizes { heads, s, dhqk, dhhv, scale, .. } = &sizes;
    let dtype = request.dtype;
    let instance = instance(&kernels::V3_RESIDENT, "qkv_resident", request);
    let [deep, wide] = ["DQK", "DHV"].map(|name| instance.size(name));
    let kernel = device.load(instance)?;
    let tiles = s.div_ceil(TILE);
    let shared = 1 << (tiles / RESIDENT_TILES).max(1).ilog2();
    let auto = tiles.min(shared.clamp(RESIDENT_BLOCKS_LEAST, RESIDENT_BLOCKS_MOST));
    let blocks = blocks(&crate::RESIDENT.info, request, tiles)?;
    let block = kernel.block()?;
    let resident = kernel.resident_blocks(block.threads, block.dynamic_shared)? as usize;
    // On a device with less, so many that one group is resident.
    let blocks = blocks.unwrap_or(auto.min(resident.max(1)));
    let slices = dhhv.div_ceil(wide);
    let groups = (resident / blocks).min(sizes.blocks(slices)? as usize);
    if groups == 0 {
        let expected = format!("auto or at most {resident}, which the device has at once");
        return Err(Error::bad("--set blocks", expected, blocks));
    }
    let launch = kernel.grid([(groups * blocks) as u32, 1, 1])?.cooperative();

    let mut plan = Plan::new(device);
    let [q, k, v, o] = tensors(&mut plan, request);
    let parts = plan.scratch(DType::F32, 2 * groups * blocks * deep * wide);
    let arrived = plan.zeros(DType::U32, 2 * groups);
    let [q, k] = [q, k].map(|slot| Ok::<Argument, Error>(slot.loaded_by(sizes.rows(dtype, dhqk)?)));
    let v = v.loaded_by(sizes.rows(dtype, dhhv)?);
    let o = o.stored_by(sizes.rows(dtype, dhhv)?);
    let arguments = arguments![Q: q?, K: k?, V: v, O: o, parts, arrived, heads, S: s, dhqk, slices,
        blocks, scale];
    plan.launch(&kernel, launch, arguments)?;
    Ok(plan)
}

/// Blocks that share a head, each of which has a tile at least; none for auto.
fn blocks(info: &Info, request: &Request<'_>, tiles: usize) -> Result<Option<usize>, Error> {
    let text = request.options().text(info, BLOCKS.name);
    match text.parse() {
        Err(_) => Ok(None),
        Ok(blocks) if blocks <= tiles => Ok(Some(blocks)),
        Ok(_) => {
            let expected = format!("auto or at most {tiles}: S has so many tiles of {TILE}");
            Err(Error::bad("--set blocks", expected, text))
        }
    }
}

/// Where blocks share no head: nobody may ask for some.
pub(crate) fn refuse_blocks(info: &Info, request: &Request<'_>) -> Result<(), Error> {
    let text = request.options().text(info, BLOCKS.name);
    if text == "auto" {
        return Ok(());
    }
    let expected = "auto, for DHQK is more than 128, or DHQK or DHHV no multiple of 8: no boxes, but v0's tiles";
    Err(Error::bad("--set blocks", expected, text))
}
