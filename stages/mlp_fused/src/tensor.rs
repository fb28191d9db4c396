//! The launches of a step of B pairs that are made of bf16.

use lab_device::{DType, Device, Kernel, Launch};
use lab_harness::plan::{Plan, Scope, Slot};
use lab_harness::{Error, Tensor, arguments};
use lab_reference::mlp::Sizes;

use crate::batch::{Batch, HiddenGradients, Use};
use crate::kernels::V1_TENSOR;
use crate::steps::{blocks, load_kernel};

/// Tiles, BM, BN, WM and WN, of a grid that fills the device, and of one that would not.
const TILES: [[usize; 4]; 2] = [[128, 128, 32, 64], [64, 64, 32, 32]];

/// As in the kernels: elements of k of a tile, tiles in flight.
const DEPTH: usize = 64;
const STAGES: usize = 3;

const MOST_PARTS: usize = 32;
const ROUND_THREADS: usize = 256;

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

/// A tile, with how it is launched.
struct Tile([usize; 4]);

impl Tile {
    /// For results of so many rows and columns: the largest with which each multiprocessor has a block.
    fn largest_filling(device: &Device, rows: usize, columns: usize) -> Self {
        let enough = device.facts().multiprocessors as usize;
        let fills = |t: &&[usize; 4]| rows.div_ceil(t[0]) * columns.div_ceil(t[1]) >= enough;
        Self(*TILES.iter().find(fills).unwrap_or(&TILES[TILES.len() - 1]))
    }

    /// In how many parts V is cut for products of `batch` rows, and tokens of a part.
    fn split_vocabulary(&self, device: &Device, sizes: Sizes, batch: usize) -> [usize; 2] {
        let Sizes { vocabulary, hidden, .. } = sizes;
        let tiles = batch.div_ceil(self.0[0]) * hidden.div_ceil(self.0[1]);
        let wanted = device.facts().multiprocessors as usize / tiles;
        let span = vocabulary.div_ceil(wanted.clamp(1, MOST_PARTS)).next_multiple_of(DEPTH);
        [vocabulary.div_ceil(span), span]
    }

    fn arguments(&self) -> String {
        self.0.map(|side| side.to_string()).join(", ")
    }

    fn launch(&self, grid: [u32; 3]) -> Launch {
        let [bm, bn, wm, wn] = self.0;
        let threads = blocks(bm / wm * (bn / wn) * 32, 1);
        let bytes = STAGES * (bm + bn) * DEPTH * DType::BF16.size();
        Launch::new_3d(grid, [threads, 1, 1]).shared(bytes)
    }
}

impl Halves {
    /// Makes room for B pairs, and adds what the launches share to their scope.
    pub(crate) fn new(plan: &mut Plan, sizes: Sizes, batch: usize, scope: Scope) -> (Self, Scope) {
        let Sizes { vocabulary, hidden, .. } = sizes;
        let (columns, dz_columns) = (padded(hidden), padded(vocabulary));
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

    /// Rounds w2 \[V, H\] to what the copy holds.
    pub(crate) fn round(&self, w2: &Tensor) -> Tensor {
        let columns = w2.shape[1];
        let mut rows = Vec::with_capacity(self.copy.len());
        for row in w2.values().chunks(columns) {
            rows.extend_from_slice(row);
            rows.resize(rows.len() + padded(columns) - columns, 0.0);
        }
        Tensor::rounded(DType::BF16, &[rows.len()], &rows)
    }

    /// Loads the kernel that makes the losses of the pairs, and dz.
    pub(crate) fn load_softmax(device: &Device) -> Result<Kernel, Error> {
        load_kernel(device, &V1_TENSOR, "softmax_halves", "256")
    }
}

/// Columns of a row of whole chunks of 16 bytes.
fn padded(columns: usize) -> usize {
    columns.next_multiple_of(8)
}

/// How many slices of a row of logits have their own statistics.
fn slices(device: &Device, batch: usize, vocabulary: usize) -> usize {
    let [_, bn, _, wn] = Tile::largest_filling(device, batch, vocabulary).0;
    vocabulary.div_ceil(bn) * (bn / wn)
}

impl Batch {
    /// Adds the launch that makes the bf16 copy of w2.
    pub(crate) fn launch_rounding_to_halves(&self, plan: &mut Plan) -> Result<(), Error> {
        let Sizes { vocabulary, hidden, .. } = self.sizes;
        let round = load_kernel(plan.device(), &V1_TENSOR, "round_weights", "__nv_bfloat16")?;
        let grid = blocks(vocabulary * padded(hidden), ROUND_THREADS);
        plan.launch_in(&self.scope, &round, Launch::new(grid, ROUND_THREADS as u32), [])
    }

    /// As [`Batch::launch_logits`].
    pub(crate) fn launch_logits_in_halves(
        &self,
        plan: &mut Plan,
        Halves { rounded, copy, .. }: Halves,
    ) -> Result<(), Error> {
        let Self { batch, sizes: Sizes { vocabulary, .. }, ref scope, .. } = *self;
        let hidden =
            load_kernel(plan.device(), &V1_TENSOR, "hidden_halves", &self.pack.to_string())?;
        plan.launch_in(scope, &hidden, self.hidden_layer(), [])?;
        let tile = Tile::largest_filling(plan.device(), batch, vocabulary);
        let logits = load_kernel(plan.device(), &V1_TENSOR, "logits_tensor", &tile.arguments())?;
        let launch = tile.launch([blocks(vocabulary, tile.0[1]), blocks(batch, tile.0[0]), 1]);
        plan.launch_in(scope, &logits, launch, arguments![h: rounded, w2: copy])
    }

    /// Adds the products of [`Batch::launch_backward`] that have to do with w2.
    pub(crate) fn launch_back_in_halves(
        &self,
        plan: &mut Plan,
        Halves { copy, .. }: Halves,
        gradients: Use,
    ) -> Result<HiddenGradients, Error> {
        let Sizes { vocabulary, hidden, .. } = self.sizes;
        let (gradient_use, [_, _, _, w2, b2]) = self.destination(gradients);
        let device = plan.device().clone();
        let load = |name, arguments: &str| load_kernel(&device, &V1_TENSOR, name, arguments);

        // Along V there is as much parallel as is wanted: the larger tile where B and H have one.
        let large = self.batch >= TILES[0][0] && hidden >= TILES[0][1];
        let tile = Tile(TILES[usize::from(!large)]);
        let [splits, span] = tile.split_vocabulary(&device, self.sizes, self.batch);
        let parts = self.gradient_parts(plan, splits);
        let grid = [blocks(self.batch, tile.0[0]), blocks(hidden, tile.0[1]), blocks(splits, 1)];
        let output_input = load("output_input_tensor", &tile.arguments())?;
        let launch = tile.launch(grid);
        plan.launch_in(&self.scope, &output_input, launch, arguments![w2: copy, parts, span])?;
        let back = self.launch_hidden_gradient(plan, parts, splits)?;
        let HiddenGradients { da, dx } = back;
        let tile = Tile::largest_filling(&device, vocabulary, hidden);
        let tiles = vocabulary.div_ceil(tile.0[0]) * hidden.div_ceil(tile.0[1]);
        let arguments = format!("{gradient_use}{}, {}", self.pack, tile.arguments());
        let output_weights = load("output_weights_tensor", &arguments)?;
        let launch = tile.launch([blocks(self.input_tiles() + tiles, 1), 1, 1]);
        plan.launch_in(&self.scope, &output_weights, launch, arguments![da, dx, w2, b2])?;
        Ok(back)
    }
}
