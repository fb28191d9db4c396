//! The launches of a step of B pairs that are made of bf16.

use lab_device::{DType, Device, Instance, Kernel};
use lab_harness::plan::{Plan, Scope, Slot};
use lab_harness::{Error, Tensor, arguments};
use lab_reference::mlp::Sizes;

use crate::kernels::V1_TENSOR;
use crate::shared::{HiddenGradients, Shared, Use};
use crate::steps::{blocks, load_kernel};

/// As in the kernels: elements of k of a tile, `TensorTile::BK`.
const DEPTH: usize = 64;

const MOST_PARTS: usize = 32;

/// What a step in bf16 has beside the rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Halves {
    /// The logits, in f32.
    pub(crate) z: Slot,
    /// h, in rows of whole chunks of 16 bytes.
    rounded: Slot,
    /// The copy of w2 \[V, H\], in such rows: it is kept from step to step.
    pub(crate) copy: Slot,
}

/// Of the tiles of a kernel, the larger first, the first with which each multiprocessor has a block for
/// results of so many rows and columns; else the last.
fn largest_filling(device: &Device, kernel: &str, pack: usize, size: [usize; 2]) -> Instance {
    let enough = device.facts().multiprocessors as usize;
    let fills = |i: &Instance| tiles(i, size) >= enough;
    first_or_last(kernel, pack, fills)
}

/// Of the instantiations with packs of `pack` (all where packs are none of its parameters), in any use,
/// the first that is `wanted`; else the last.
fn first_or_last(kernel: &str, pack: usize, wanted: impl Fn(&Instance) -> bool) -> Instance {
    let pack = pack.to_string();
    let has_pack = |i: &Instance| i.argument("PACK").is_none_or(|p| p == pack);
    let mut last = None;
    for instance in V1_TENSOR.instances(kernel).filter(has_pack) {
        if wanted(&instance) {
            return instance;
        }
        last = Some(instance);
    }
    last.expect("a kernel of each pack")
}

/// How many tiles results of so many rows and columns take.
fn tiles(instance: &Instance, [rows, columns]: [usize; 2]) -> usize {
    rows.div_ceil(instance.size("BM")) * columns.div_ceil(instance.size("BN"))
}

impl Halves {
    /// Makes room for B pairs, and adds what the launches share to their scope.
    pub(crate) fn new(plan: &mut Plan, sizes: Sizes, batch: usize, scope: Scope) -> (Self, Scope) {
        let Sizes { vocabulary, hidden, .. } = sizes;
        let (columns, dz_columns) = (row_stride(hidden), row_stride(vocabulary));
        let slices = slices(plan.device(), batch, vocabulary);
        let z = plan.scratch(DType::F32, batch * vocabulary.next_multiple_of(4));
        let stats = plan.scratch(DType::F32, batch * 2 * slices);
        let rounded = plan.scratch(DType::BF16, batch * columns);
        let copy = plan.state("w2_copy", DType::BF16, &[vocabulary, columns]);
        let dz = plan.scratch(DType::BF16, batch * dz_columns);
        let scope = scope
            .with(arguments![z, stats, slices, rounded, copy, dz, HB: columns, ZB: dz_columns]);
        (Self { z, rounded, copy }, scope)
    }

    /// Loads the kernel that makes the losses of the pairs, and dz.
    pub(crate) fn load_softmax(device: &Device) -> Result<Kernel, Error> {
        load_kernel(device, &V1_TENSOR, "softmax_halves", "256")
    }
}

/// Columns of a row of whole chunks of 16 bytes.
pub(crate) fn row_stride(columns: usize) -> usize {
    columns.next_multiple_of(8)
}

/// Rounds w2 \[V, H\] to what its copy holds.
pub(crate) fn round_rows(w2: &Tensor) -> Tensor {
    let columns = w2.shape[1];
    let mut rows = Vec::with_capacity(w2.shape[0] * row_stride(columns));
    for row in w2.values().chunks(columns) {
        rows.extend_from_slice(row);
        rows.resize(rows.len() + row_stride(columns) - columns, 0.0);
    }
    Tensor::rounded(DType::BF16, &[rows.len()], &rows)
}

/// How many slices of a row of logits have their own statistics.
fn slices(device: &Device, batch: usize, vocabulary: usize) -> usize {
    let tile = largest_filling(device, "logits_tensor", 1, [batch, vocabulary]);
    vocabulary.div_ceil(tile.size("BN")) * (tile.size("BN") / tile.size("WN"))
}

impl Shared {
    /// Adds the launch that makes the bf16 copy of w2.
    pub(crate) fn add_rounding_to_halves(&self, plan: &mut Plan) -> Result<(), Error> {
        let Sizes { vocabulary, hidden, .. } = self.sizes;
        let round = load_kernel(plan.device(), &V1_TENSOR, "round_weights", "__nv_bfloat16")?;
        let launch = round.grid_over(vocabulary * row_stride(hidden))?;
        plan.launch_in(&self.scope, &round, launch, arguments![])
    }

    /// The logits.
    pub(crate) fn add_logits_in_halves(
        &self,
        plan: &mut Plan,
        Halves { rounded, copy, .. }: Halves,
    ) -> Result<(), Error> {
        let Self { batch, sizes: Sizes { vocabulary, .. }, ref scope, .. } = *self;
        let hidden =
            load_kernel(plan.device(), &V1_TENSOR, "hidden_halves", &self.pack.to_string())?;
        plan.launch_in(scope, &hidden, self.hidden_layer(&hidden)?, arguments![])?;
        let size = [batch, vocabulary];
        let tile = largest_filling(plan.device(), "logits_tensor", self.pack, size);
        let logits = plan.device().load(tile)?;
        let grid = [blocks(vocabulary, tile.size("BN")), blocks(batch, tile.size("BM")), 1];
        let launch = logits.grid(grid)?;
        plan.launch_in(scope, &logits, launch, arguments![h: rounded, w2: copy])
    }

    /// Adds the products of the way back that have to do with w2.
    pub(crate) fn add_back_in_halves(
        &self,
        plan: &mut Plan,
        Halves { copy, .. }: Halves,
        gradients: Use,
    ) -> Result<HiddenGradients, Error> {
        let Sizes { vocabulary, hidden, .. } = self.sizes;
        let (gradient_use, [_, _, _, w2, b2]) = self.destination(gradients);
        let device = plan.device().clone();

        // Along V there is as much parallel as is wanted: the larger tile where B and H have one.
        let size = [self.batch, hidden];
        let is_filled = |i: &Instance| self.batch >= i.size("BM") && hidden >= i.size("BN");
        let tile = first_or_last("output_input_tensor", self.pack, is_filled);
        let wanted = device.facts().multiprocessors as usize / tiles(&tile, size);
        let span = vocabulary.div_ceil(wanted.clamp(1, MOST_PARTS)).next_multiple_of(DEPTH);
        let splits = vocabulary.div_ceil(span);
        let parts = self.gradient_parts(plan, splits);
        let output_input = device.load(tile)?;
        let grid = [self.batch.div_ceil(tile.size("BM")), hidden.div_ceil(tile.size("BN")), splits];
        let launch = output_input.grid(grid.map(|n| blocks(n, 1)))?;
        plan.launch_in(&self.scope, &output_input, launch, arguments![w2: copy, parts, span])?;
        let back = self.add_hidden_gradient(plan, parts, splits)?;
        let HiddenGradients { da, dx } = back;
        let tile =
            largest_filling(&device, "output_weights_tensor", self.pack, [vocabulary, hidden]);
        let sides = ["BM", "BN", "WM", "WN"].map(|name| tile.size(name).to_string()).join(", ");
        let arguments = format!("{gradient_use}{}, {sides}", self.pack);
        let output_weights = load_kernel(&device, &V1_TENSOR, "output_weights_tensor", &arguments)?;
        let all = self.input_gradient_tiles() + tiles(&tile, [vocabulary, hidden]);
        let launch = output_weights.grid([blocks(all, 1), 1, 1])?;
        plan.launch_in(&self.scope, &output_weights, launch, arguments![da, dx, w2, b2])?;
        Ok(back)
    }
}
