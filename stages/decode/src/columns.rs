//! The launches of `kernels/v6_columns.cu`, `kernels/v7_ring.cu` and `kernels/v10_dots.cu`.

use lab_device::{DType, Kernel, Launch};
use lab_harness::plan::{Scope, Slot};
use lab_harness::{Error, Plan, arguments, named};

use crate::few_rows::{FewRows, Norm, Way};
use crate::units::Maker;

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
    /// Adds the launch of what fits [`Way::Columns`], [`Way::Ring`] or [`Way::Dots`], by this one; y.
    pub(crate) fn add_columns(&self, plan: &mut Plan, way: Way) -> Result<Slot, Error> {
        let Self { dtype, rows, n, gated, .. } = *self;
        let Tiling { warps, each, depth, blocks, late, alone } = Tiling::of(way, rows);
        let w = if self.scale.is_some() { DType::I8 } else { dtype }.cpp();
        let (t, norm) = (dtype.cpp(), self.norm_in_kernels());
        let tiling = format!("{norm}, {warps}, {each}, {depth}, {blocks}");
        let name = match way {
            Way::Dots => format!("few_rows_dots<{t}, {rows}, {tiling}>"),
            Way::Ring => format!("few_rows_ring<{t}, {w}, {rows}, {tiling}, {late}>"),
            _ => format!("few_rows_columns<{t}, {w}, {rows}, {tiling}, {late}>"),
        };
        let kernel = plan.device().kernel(way.source(), &name)?;
        let most = MOST_COLUMNS / if gated { 2 } else { 1 };
        let shared = |columns: usize| {
            let of_columns = columns * if gated { 2 } else { 1 };
            let scales = if way == Way::Dots { of_columns } else { 0 };
            let floats = columns * rows + of_columns * rows * warps + scales;
            let ring = if way == Way::Ring { warps * 32 * each * depth * 16 } else { 0 };
            ring + self.elements_of_x(way) * dtype.size() + floats * DType::F32.size()
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

        self.launch_normed(plan, &kernel, launch)
    }

    /// Elements of shared memory for x, and for what its norm has beside it; of [`Way::Dots`] for planes of all rows, and those beside a row.
    fn elements_of_x(&self, way: Way) -> usize {
        let Self { rows, k, norm, .. } = *self;
        let of_heads = if way == Way::Dots { k } else { rows * k };
        let normed = match norm {
            None => 0,
            Some(Norm { heads: None, .. }) => k,
            Some(_) => k + of_heads,
        };
        rows * k + normed + if way == Way::Dots { k } else { 0 }
    }

    /// Adds the launch of a kernel that may norm x; y.
    fn launch_normed(
        &self,
        plan: &mut Plan,
        kernel: &Kernel,
        launch: Launch,
    ) -> Result<Slot, Error> {
        let Self { dtype, rows, n, k, x, weight, gated, norm, parts, .. } = *self;
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
        // Nothing is asked for ahead until something says so.
        let (next, state) = (weight, scale);
        let scope = Scope::new().with(named![
            weight, scale, x, norm, ogate, bias, residual, y, gates: to, R: rows, N: n, K: k, D: width,
            has_residual, gated, eps, heads, cap, p1, p2, p3, p4, next,
            next_half: 0, next_share: 0, next_bytes: 0, state, state_bytes: 0
        ]);
        plan.launch_in(&scope, kernel, launch.overlap_previous(), arguments![])?;
        Ok(y)
    }
}

/// Bytes that all blocks ask for of the weights of the next product, three microseconds of an H200's memory, and of a state. More do not
/// stay in the L2 cache until they are wanted: with 32 MB of each a token takes longer than with none.
const AHEAD: usize = 12 << 20;
const STATE_AHEAD: usize = 8 << 20;

/// From so many bytes of a state on, weights that were asked for before its step would leave the L2 cache again.
const LARGE_STATE: usize = 16 << 20;

/// A product that brings to the L2 cache what the launches behind it begin with, while its own last sums meet.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    /// Its step of the plan.
    step: usize,
    /// Of its W.
    int8: bool,
    /// Whether it asks for weights, too.
    asks_weights: bool,
    /// Of the state that the launch behind it reads.
    state_bytes: usize,
    /// What it can write as bytes for the next product.
    maker: Option<Maker>,
}

impl Before {
    /// The product that was added last, with its y, if it can.
    pub fn of_last(plan: &Plan, product: &FewRows<'_>) -> Option<Self> {
        let FewRows { dtype, rows, k, .. } = *product;
        let int8 = product.scale.is_some();
        let usual = || FewRows::usual_way(plan.device(), dtype, int8, [rows, k]);
        let way = product.way.unwrap_or_else(usual);
        // By TMA the next product's blocks ask for their first weights themselves, while they wait for x: asked for before, they only hold up
        // what this product waits for.
        let asks_weights = ![Way::Wgmma, Way::Bytes, Way::Units].contains(&way);
        let step = plan.len() - 1;
        let maker = product.maker(plan.device(), way);
        way.asks_ahead().then_some(Self { step, int8, asks_weights, state_bytes: 0, maker })
    }

    /// Adds the next product; where this one made its x, it writes the bytes of x, too. y.
    ///
    /// # Errors
    /// As [`FewRows::add`].
    pub fn add_next(&self, plan: &mut Plan, next: &FewRows<'_>) -> Result<Slot, Error> {
        next.add_behind(plan, (self.step, self.maker))
    }

    fn share(&self, plan: &Plan, bytes: usize) -> usize {
        let blocks = plan.blocks_of(self.step).expect("a product is a launch");
        // Whole lines; the last block's share is within the whole.
        bytes / blocks / 128 * 128
    }

    /// It asks for the beginning of a state, which the next launch reads.
    ///
    /// # Errors
    /// As [`Plan::set_arguments`].
    pub fn ask_for_state(&mut self, plan: &mut Plan, state: Slot) -> Result<(), Error> {
        let dtype = plan.dtype_of(state).unwrap_or(DType::F32);
        self.state_bytes = state.len() * dtype.size();
        if dtype != DType::F32 {
            // Kernels take a pointer to f32. A narrow state comes by itself in half of the time.
            return Ok(());
        }
        let bytes = self.share(plan, self.state_bytes).min(self.share(plan, STATE_AHEAD));
        plan.set_arguments(self.step, arguments![state, state_bytes: bytes])
    }

    /// It asks for the first rows of each block's share of W of the next product, which is to be added now.
    ///
    /// # Errors
    /// As [`Plan::set_arguments`].
    pub fn ask_for_weights(self, plan: &mut Plan, next: &FewRows<'_>) -> Result<(), Error> {
        let FewRows { n, k, weight, gated, dtype, .. } = *next;
        let fits = next.scale.is_some() == self.int8 && self.state_bytes <= LARGE_STATE;
        if !self.asks_weights || !fits {
            return Ok(());
        }
        let size = if self.int8 { 1 } else { dtype.size() };
        let share = self.share(plan, n * k * size);
        let bytes = share.min(self.share(plan, if gated { AHEAD / 2 } else { AHEAD }));
        let (next_share, next_half) = (share / size, if gated { n * k } else { 0 });
        // The second half begins where a bulk copy may.
        let bytes = if (next_half * size).is_multiple_of(16) { bytes } else { 0 };
        plan.set_arguments(
            self.step,
            arguments![next: weight, next_half, next_share, next_bytes: bytes],
        )
    }
}
