//! Plans of the versions whose tiles TMA loads.

use lab_device::{DType, Device, Instance, Launch};
use lab_harness::{Error, Operand, Plan, Request, Version, arguments};

use crate::model::{Room, Shared, Way};
use crate::settings::{LAST, PARTS, TILE};
use crate::versions::{BEHIND, Blocks, GRID, Matmul, STORES, TENSOR};
use crate::{narrow_round, tuning};

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
        && request.number(LAST.name) == -1.0
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
            let name = tuning::instantiation_with(version, instance, dtype, tiling)?;
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
