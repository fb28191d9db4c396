//! The launches of `kernels/v9_bytes.cu`.

use lab_device::{DType, Device};
use lab_harness::plan::Slot;
use lab_harness::{Error, Plan, Tiling, arguments};

use crate::few_rows::{FewRows, MOST_COLUMNS, MOST_WIDE_ROWS, Norm, Way};
use crate::wgmma::{Tiles, map_of_boxes, multiprocessors};

/// x as two planes of bytes, and what a unit of each row stands for.
#[derive(Clone, Copy)]
struct Planes {
    /// int8 \[2, R, K\]: upper bytes, then lower ones.
    bytes: Slot,
    /// f32 \[R\].
    quantum: Slot,
}

impl FewRows<'_> {
    /// Whether [`Way::Bytes`] takes so many rows of x and columns, of halves, by W of int8.
    pub(crate) fn takes_bytes(device: &Device, [rows, k]: [usize; 2]) -> bool {
        rows <= MOST_WIDE_ROWS
            && k <= MOST_COLUMNS
            && Way::Bytes.source().runs_on(&device.facts().arch)
    }

    /// Elements of shared memory that a block has for the weight of a norm, and for heads that are normed.
    pub(crate) fn kept_by_split(norm: Option<Norm>, k: usize) -> usize {
        match norm {
            None => 0,
            Some(Norm { heads: None, .. }) => k,
            Some(_) => 2 * k,
        }
    }

    /// Adds the launch that makes whole numbers of x.
    fn add_planes(&self, plan: &mut Plan) -> Result<Planes, Error> {
        let Self { dtype, rows, k, x, norm, .. } = *self;
        let name = format!("rows_as_bytes<{}, {}>", dtype.cpp(), self.norm_in_kernels());
        let kernel = plan.device().kernel(Way::Bytes.source(), &name)?;
        let shared = Self::kept_by_split(norm, k) * dtype.size();
        let launch = kernel.grid([rows as u32, 1, 1])?.shared(shared);
        let bytes = plan.scratch(DType::I8, 2 * rows * k);
        let quantum = plan.scratch(DType::F32, rows);
        let of_heads = norm.and_then(|norm| norm.heads);
        let ogate = of_heads.map_or(x, |heads| heads.ogate);
        let width = of_heads.map_or(k, |heads| heads.width);
        let eps = norm.map_or(0.0, |norm| norm.eps);
        let norm = norm.map_or(x, |norm| norm.weight);
        let all = arguments![
            x, norm, ogate, planes: bytes, quantum, R: rows, K: k, D: width, eps
        ];
        plan.launch(&kernel, launch.overlap_previous(), all)?;
        Ok(Planes { bytes, quantum })
    }

    /// Adds the launches of what fits [`Way::Bytes`]; y.
    pub(crate) fn add_bytes(
        &self,
        plan: &mut Plan,
        tiling: Option<&Tiling>,
    ) -> Result<Slot, Error> {
        let Self { dtype, rows, n, k, gated, .. } = *self;
        let fit = multiprocessors(plan.device());
        let usual = Tiles::chosen((Way::Bytes, true), fit, [rows, n, k], gated);
        let tiles = tiling.map_or(usual, |tiling| Tiles::tiled(Way::Bytes, rows, true, tiling));
        let device = plan.device().clone();
        let name = |tiles: &Tiles| tiles.name_of_bytes(dtype.cpp());
        let kernel = device.instantiate(Way::Bytes.source(), &name(&tiles), &name(&usual))?;
        let cluster = tiles.cluster(fit, [n, k], gated, tiling);
        let launch = cluster.launch(&kernel, tiles.across(n, gated))?;
        let Planes { bytes, quantum } = self.add_planes(plan)?;
        let weight = self.weight.loaded_by(tiles.map_of_weight(DType::I8, [n, k], gated)?);
        let deep = if cluster.beside == 1 { 2 } else { 1 };
        let high = cluster.rows_of_a_box(tiles.rows(), 2);
        let planes = bytes.loaded_by(map_of_boxes(DType::I8, [2, rows, k], [deep, high])?);
        let scope = self.scope_of_wide(plan);
        let y = scope.y;
        plan.launch_in(
            &scope.scope,
            &kernel,
            launch,
            arguments![weight: weight, planes: planes, quantum, beside: cluster.beside],
        )?;
        Ok(y)
    }
}
