//! The launches of `kernels/v11_units.cu`.

use lab_device::{DType, Device};
use lab_harness::plan::Slot;
use lab_harness::{Error, Plan, arguments};

use crate::few_rows::{FewRows, Way};
use crate::wgmma::{Cluster, SPAN, Tiles, map_of_boxes, multiprocessors};

/// Columns that a unit is for are counted in quarters of a step.
const QUARTER: usize = SPAN / 4;

/// Columns of a unit that `rows_as_units` makes.
const STRETCH: usize = 128;

/// Units of a row that a block has room for.
const MOST_STRETCHES: usize = 48;

/// Columns of a unit at least: those of y that a tile of 192 rows of W has, half of which are gates.
const NARROWEST: usize = 96;

/// x as two planes of bytes, and what a unit of each stretch of a row stands for.
#[derive(Clone, Copy)]
struct Planes {
    /// int8 \[2, R, K\]: upper bytes, then lower ones.
    bytes: Slot,
    /// f32 \[stretches, R\].
    units: Slot,
    /// f32 \[stretches, R\]: of x before a norm's weight.
    squares: Slot,
    /// Columns of a stretch.
    stretch: usize,
}

impl Planes {
    fn new(plan: &mut Plan, [rows, k]: [usize; 2], stretch: usize) -> Self {
        let stretches = k.div_ceil(stretch);
        Self {
            bytes: plan.scratch(DType::I8, 2 * rows * k),
            units: plan.scratch(DType::F32, stretches * rows),
            squares: plan.scratch(DType::F32, stretches * rows),
            stretch,
        }
    }
}

/// A product that can write its y as bytes, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Maker {
    y: Slot,
    rows: usize,
    n: usize,
    /// Columns of y of a tile.
    wide: usize,
}

impl FewRows<'_> {
    /// The tiles and clusters of [`Way::Units`], where a block has room for the units of its part of each row; the rows have no say.
    fn by_units(&self, device: &Device) -> Option<(Tiles, Cluster)> {
        let Self { rows, n, k, gated, .. } = *self;
        let fit = multiprocessors(device);
        let tiles = Tiles::chosen((Way::Units, true), fit, [rows, n, k], gated);
        let cluster = tiles.cluster(fit, [n, k], gated, None);
        let columns = k.div_ceil(SPAN).div_ceil(cluster.parts) * SPAN;
        (columns.div_ceil(NARROWEST) < MOST_STRETCHES).then_some((tiles, cluster))
    }

    /// What it can write as bytes, once it is added, with y.
    pub(crate) fn maker(&self, device: &Device, way: Way) -> Option<Maker> {
        let Self { rows, n, gated, y, parts, .. } = *self;
        let (tiles, _) = (way == Way::Units).then(|| self.by_units(device))??;
        let takes = parts.is_empty() && n.is_multiple_of(16);
        Some(Maker { y: y.filter(|_| takes)?, rows, n, wide: tiles.wide(gated) })
    }

    /// Adds the launch, behind that of a step which can write bytes: where that made x, it writes the bytes of x, too. y.
    ///
    /// # Errors
    /// As [`FewRows::add`].
    pub(crate) fn add_behind(
        &self,
        plan: &mut Plan,
        (step, maker): (usize, Option<Maker>),
    ) -> Result<Slot, Error> {
        let way = self.check(plan.device())?;
        let made = maker.filter(|maker| {
            let is_x = maker.y == self.x && [maker.rows, maker.n] == [self.rows, self.k];
            is_x && self.norm.is_none_or(|norm| norm.heads.is_none())
        });
        match made.filter(|_| way == Way::Units && self.by_units(plan.device()).is_some()) {
            None => self.add(plan),
            Some(maker) => {
                let planes = Planes::new(plan, [self.rows, self.k], maker.wide);
                let Planes { bytes, units, squares, .. } = planes;
                let none = plan.scratch(self.dtype, 1);
                let next_norm = self.norm.map_or(none, |norm| norm.weight);
                let makes = if self.norm.is_some() { 2 } else { 1 };
                plan.set_arguments(
                    step,
                    arguments![
                        makes, next_norm, next_planes: bytes, next_units: units,
                        next_squares: squares
                    ],
                )?;
                self.add_units_of(plan, planes)
            }
        }
    }

    /// Adds the launches of what fits [`Way::Units`]; y.
    pub(crate) fn add_units(&self, plan: &mut Plan) -> Result<Slot, Error> {
        let Self { dtype, rows, k, x, norm, .. } = *self;
        if self.by_units(plan.device()).is_none() {
            return self.add_bytes(plan, None);
        }
        let name = format!("rows_as_units<{}, {}>", dtype.cpp(), self.norm_in_kernels());
        let kernel = plan.device().kernel(Way::Units.source(), &name)?;
        let shared = Self::kept_by_split(norm, k) * dtype.size();
        let launch = kernel.grid([rows as u32, 1, 1])?.shared(shared);
        let planes = Planes::new(plan, [rows, k], STRETCH);
        let Planes { bytes, units, squares, .. } = planes;
        let of_heads = norm.and_then(|norm| norm.heads);
        let ogate = of_heads.map_or(x, |heads| heads.ogate);
        let width = of_heads.map_or(k, |heads| heads.width);
        let eps = norm.map_or(0.0, |norm| norm.eps);
        let norm = norm.map_or(x, |norm| norm.weight);
        let all = arguments![
            x, norm, ogate, planes: bytes, units, squares, R: rows, K: k, D: width, eps
        ];
        plan.launch(&kernel, launch.overlap_previous(), all)?;
        self.add_units_of(plan, planes)
    }

    fn add_units_of(&self, plan: &mut Plan, planes: Planes) -> Result<Slot, Error> {
        let Self { dtype, rows, n, k, gated, norm, .. } = *self;
        let Planes { bytes, units, squares, stretch } = planes;
        let device = plan.device().clone();
        let (tiles, cluster) = self.by_units(&device).expect("who calls has asked");
        let kernel = device.kernel(Way::Units.source(), &tiles.name_of_units(dtype.cpp()))?;
        let launch = cluster.launch(&kernel, tiles.across(n, gated))?;
        let weight = self.weight.loaded_by(tiles.map_of_weight(DType::I8, [n, k], gated)?);
        let planes = bytes.loaded_by(map_of_boxes(DType::I8, [2, rows, k], [2, tiles.rows()])?);
        // Of heads the norm is in the bytes.
        let of_rows = norm.filter(|norm| norm.heads.is_none());
        let (normed, eps) = (of_rows.is_some(), of_rows.map_or(0.0, |norm| norm.eps));
        let scope = self.scope_of_wide(plan);
        let y = scope.y;
        // No bytes of y until the next product asks for them.
        let [next_units, next_squares] = [0; 2].map(|_| plan.scratch(DType::F32, 1));
        let next_planes = plan.scratch(DType::I8, 1);
        let next_norm = plan.scratch(dtype, 1);
        plan.launch_in(
            &scope.scope,
            &kernel,
            launch,
            arguments![
                weight: weight, planes: planes, units, squares, quarters: stretch / QUARTER, normed,
                eps, makes: 0, next_norm, next_planes, next_units, next_squares
            ],
        )?;
        Ok(y)
    }
}
