//! The launches of `kernels/v6_columns.cu` and `kernels/v7_ring.cu`.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Error, Plan, arguments};

use crate::few_rows::{FewRows, Norm, Way};

/// How a kernel is instantiated.
#[derive(Clone, Copy)]
struct Tiling {
    /// Warps of a block.
    warps: usize,
    /// Rows of W at a time.
    each: usize,
    /// Steps of so many rows in flight.
    depth: usize,
    /// Blocks that fit a multiprocessor by their registers.
    blocks: usize,
    /// Rounds of `depth` steps before the end from which on the next launch may begin; 0: from the beginning.
    late: usize,
    /// Whether there is one block a multiprocessor, beside which there is room for one of the next launch.
    alone: bool,
}

impl Tiling {
    fn of(way: Way, rows: usize) -> Self {
        match (way, rows) {
            (Way::Ring, _) => {
                Self { warps: 16, each: 2, depth: 5, blocks: 2, late: 1, alone: true }
            }
            (_, 1) => Self { warps: 16, each: 4, depth: 2, blocks: 2, late: 1, alone: false },
            // The sums of two rows of x take the registers of a second block.
            _ => Self { warps: 16, each: 4, depth: 2, blocks: 1, late: 1, alone: false },
        }
    }
}

/// Columns of y of a block at most: their sums lie in its shared memory.
const MOST_COLUMNS: usize = 512;

impl FewRows<'_> {
    /// Adds the launch of what fits [`Way::Columns`] or [`Way::Ring`], by this one; y.
    pub(crate) fn add_columns(&self, plan: &mut Plan, way: Way) -> Result<Slot, Error> {
        let Self { dtype, rows, n, k, x, weight, gated, norm, parts, .. } = *self;
        let Tiling { warps, each, depth, blocks, late, alone } = Tiling::of(way, rows);
        let w = if self.scale.is_some() { DType::I8 } else { dtype }.cpp();
        let name = format!(
            "few_rows_{}<{}, {w}, {rows}, {}, {warps}, {each}, {depth}, {blocks}, {late}>",
            if way == Way::Ring { "ring" } else { "columns" },
            dtype.cpp(),
            self.norm_in_kernels()
        );
        let kernel = plan.device().kernel(way.source(), &name)?;
        let most = MOST_COLUMNS / if gated { 2 } else { 1 };
        let shared = |columns: usize| {
            let sums = columns * rows * (1 + warps * if gated { 2 } else { 1 });
            let normed = match norm {
                None => 0,
                Some(Norm { heads: None, .. }) => k,
                Some(_) => k + rows * k,
            };
            let ring = if way == Way::Ring { warps * 32 * each * depth * 16 } else { 0 };
            ring + (rows * k + normed) * dtype.size() + sums * DType::F32.size()
        };
        // Fewer at most, where rows of x and a ring leave no room for so many: a kernel has up to 1 KB beside.
        let room = plan.device().facts().max_shared_per_block as usize;
        let left = room.saturating_sub(shared(0) + (1 << 10));
        let most = most.min(left / (shared(1) - shared(0))).max(1);
        // All blocks that fit have as many columns; as many of them fit as with the most.
        let threads = u32::try_from(32 * warps).expect("threads of a block");
        let fit = kernel.resident_blocks(threads, shared(most))?.max(1);
        let multiprocessors = plan.device().facts().multiprocessors;
        let fit = if alone { fit.min(multiprocessors) } else { fit } as usize;
        let useful = (if gated { 2 * n } else { n }).div_ceil(each);
        let across = fit.min(useful).max(n.div_ceil(most));
        let launch = kernel.grid([across as u32, 1, 1])?.shared(shared(n.div_ceil(across)));

        let y = self.y.unwrap_or_else(|| plan.scratch(dtype, rows * n));
        let has_residual = self.added.is_some();
        let residual = self.added.unwrap_or_else(|| plan.scratch(dtype, 1));
        let begin = |part: usize| parts.get(part).copied().unwrap_or(n);
        let [p1, p2, p3, p4] = [0, 1, 2, 3].map(begin);
        let scale = self.scale.unwrap_or_else(|| plan.scratch(DType::F32, 1));
        let eps = norm.map_or(0.0, |norm| norm.eps);
        let of_heads = norm.and_then(|norm| norm.heads);
        let width = of_heads.map_or(k, |heads| heads.width);
        let ogate = of_heads.map_or_else(|| plan.scratch(dtype, 1), |heads| heads.ogate);
        let norm = norm.map_or_else(|| plan.scratch(dtype, 1), |norm| norm.weight);
        let bias = self.gates.map_or_else(|| plan.scratch(dtype, 1), |gates| gates.bias);
        let to = self.gates.map_or_else(|| plan.scratch(DType::F32, 1), |gates| gates.to);
        let (heads, cap) = self.gates.map_or((0, 1.0), |gates| (gates.heads, gates.cap));
        let all = arguments![
            weight, scale, x, norm, ogate, bias, residual, y, gates: to, N: n, K: k, D: width,
            has_residual, gated, eps, heads, cap, p1, p2, p3, p4
        ];
        plan.launch(&kernel, launch.overlap_previous(), all)?;
        Ok(y)
    }
}
