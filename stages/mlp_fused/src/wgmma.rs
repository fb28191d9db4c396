//! The launches of a step of B pairs whose products by w2 are made by wgmma and TMA.

use lab_device::{DType, Device, Instance, Kernel, KernelSource, Launch};
use lab_harness::plan::{Plan, Scope, Slot};
use lab_harness::{Error, Operand, arguments};
use lab_reference::mlp::Sizes;

use crate::kernels::{V3_HIDDEN, V3_WGMMA};
use crate::shared::{HiddenGradients, SMALL, Shared, Use};
use crate::steps::{blocks, load_kernel};
use crate::tensor::row_stride;

/// As in the kernels: elements of k of a tile, and of a row of a box, 128 bytes.
const DEPTH: usize = 64;

/// Columns of a tile of dx; it has half as many rows as the tile of w2 of the same launch.
const INPUT_COLUMNS: usize = 64;

/// Exponentials that have their statistics in common.
const SLICE: usize = 128;

const BLOCKS_OF_A_MULTIPROCESSOR: usize = 2;

/// Blocks of a cluster, as many as every device with clusters has room for: of V, for the gradient by h, or of the pairs,
/// for that by w1.
const MOST_PARTS: usize = 8;

/// Of a tile of dw1, for each block of its cluster: fewer are not worth a second block.
const PAIRS_OF_A_PART: usize = 512;

/// What such a step has beside the rest, all in bf16.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Warpgroups {
    /// h \[B, H\], in rows of whole chunks of 16 bytes.
    rounded: Slot,
    /// The copy of w2 \[V, H\], in such rows: it is kept from step to step.
    pub(crate) copy: Slot,
    /// The exponentials, then dz, \[B, V\], in such rows.
    dz: Slot,
}

/// A matrix \[rows, columns\] of bf16 in rows of whole chunks of 16 bytes.
fn matrix([rows, columns]: [usize; 2]) -> Operand {
    Operand::new(DType::BF16, [rows, columns]).rows_apart(row_stride(columns))
}

/// The kernel's instantiation with the highest tiles that still give each multiprocessor a tile of a result of so
/// many rows and columns, `parts` times; else the one with the lowest. Of those for packs of `pack`, if there are any, in
/// any use.
fn highest_filling(
    device: &Device,
    source: &'static KernelSource,
    kernel: &str,
    pack: usize,
    size: [usize; 2],
    parts: usize,
) -> Instance {
    let (pack, enough) = (pack.to_string(), device.facts().multiprocessors as usize);
    let of_pack = |i: &Instance| i.argument("PACK").is_none_or(|p| p == pack);
    let all: Vec<Instance> = source.instances(kernel).filter(of_pack).collect();
    let fills = |i: &&Instance| tiles(i, size) * parts >= enough;
    *all.iter().find(fills).or(all.last()).expect("a kernel of each pack")
}

/// How many tiles results of so many rows and columns take.
fn tiles(instance: &Instance, [rows, columns]: [usize; 2]) -> usize {
    rows.div_ceil(instance.size("BM")) * columns.div_ceil(instance.size("BN"))
}

impl Warpgroups {
    /// Makes room for B pairs, and adds what the launches share to their scope.
    pub(crate) fn new(plan: &mut Plan, sizes: Sizes, batch: usize, scope: Scope) -> (Self, Scope) {
        let Sizes { vocabulary, hidden, .. } = sizes;
        let (columns, dz_columns) = (row_stride(hidden), row_stride(vocabulary));
        let slices = vocabulary.div_ceil(SLICE);
        let stats = plan.scratch(DType::F32, batch * 2 * slices);
        let of_target = plan.scratch(DType::F32, batch);
        let rounded = plan.scratch(DType::BF16, batch * columns);
        let copy = plan.state("w2_copy", DType::BF16, &[vocabulary, columns]);
        let dz = plan.scratch(DType::BF16, batch * dz_columns);
        let slots = arguments![stats, of_target, slices, rounded, copy, dz];
        (
            Self { rounded, copy, dz },
            scope.with(slots).with(arguments![HB: columns, ZB: dz_columns]),
        )
    }

    pub(crate) fn load_softmax(device: &Device) -> Result<Kernel, Error> {
        load_kernel(device, &V3_WGMMA, "softmax_of_powers", &format!("256, {SLICE}"))
    }
}

impl Shared {
    /// What the logits leave: their exponentials.
    pub(crate) fn add_powers(
        &self,
        plan: &mut Plan,
        Warpgroups { rounded, copy, dz }: Warpgroups,
    ) -> Result<(), Error> {
        let Self { batch, sizes: Sizes { vocabulary, hidden, .. }, ref scope, .. } = *self;
        let size = [batch, hidden];
        let tile = highest_filling(plan.device(), &V3_HIDDEN, "hidden_rounded", self.pack, size, 2);
        let layer = plan.device().load(tile)?;
        let grid = [batch.div_ceil(tile.size("BM")), hidden.div_ceil(tile.size("BN")), 1];
        let launch = layer.grid(grid.map(|n| blocks(n, 1)))?;
        plan.launch_in(scope, &layer, launch, arguments![rounded])?;
        let size = [batch, vocabulary];
        let tile = highest_filling(plan.device(), &V3_WGMMA, "logits_wgmma", self.pack, size, 1);
        let logits = plan.device().load(tile)?;
        let launch = logits.grid([blocks(tiles(&tile, size), 1), 1, 1])?;
        let arguments = arguments![
            ROUNDED: rounded.loaded_by(matrix([batch, hidden]).loaded(tile.size("BM"))?),
            COPY: copy.loaded_by(matrix([vocabulary, hidden]).loaded(tile.size("BN"))?),
            DZ: dz.stored_by(matrix(size).stored()?),
        ];
        plan.launch_in(scope, &logits, launch, arguments)
    }

    /// The kernel that moves w1, b1 and the embeddings, in so many tiles of [`SMALL`](crate::shared::SMALL), and
    /// its launch: clusters share the pairs of a tile, and behind them a warp has the embedding of one pair.
    pub(crate) fn rounded_input_weights(
        &self,
        device: &Device,
        gradient_use: &str,
        tiles: usize,
    ) -> Result<(Kernel, Launch), Error> {
        let arguments = format!("{gradient_use}{}, {SMALL}, {SMALL}, 16, 16", self.pack);
        let kernel = load_kernel(device, &V3_HIDDEN, "input_weights_rounded", &arguments)?;
        let at_once = device.facts().multiprocessors as usize * BLOCKS_OF_A_MULTIPROCESSOR;
        let most = self.batch.div_ceil(PAIRS_OF_A_PART).min(MOST_PARTS);
        let parts = (at_once / tiles).clamp(1, most);
        let warps = kernel.block()?.threads as usize / 32;
        let of_embeddings = self.batch.div_ceil(warps).next_multiple_of(parts);
        let launch = kernel.grid([blocks(tiles * parts + of_embeddings, 1), 1, 1])?;
        Ok((kernel, launch.cluster(blocks(parts, 1))))
    }

    /// Adds the products of the way back that have to do with w2.
    pub(crate) fn add_back_by_warpgroups(
        &self,
        plan: &mut Plan,
        Warpgroups { rounded, copy, dz }: Warpgroups,
        gradients: Use,
    ) -> Result<HiddenGradients, Error> {
        let Self { batch, sizes: Sizes { vocabulary, embedding, hidden }, .. } = *self;
        let device = plan.device().clone();

        // Along V there is as much parallel as is wanted: the higher tile where B has one.
        let size = [batch, hidden];
        let at_once = device.facts().multiprocessors as usize * BLOCKS_OF_A_MULTIPROCESSOR;
        let tile = highest_filling(
            &device,
            &V3_WGMMA,
            "hidden_gradient_wgmma",
            self.pack,
            size,
            MOST_PARTS,
        );
        let clusters = tiles(&tile, size);
        let wanted = (at_once / clusters).clamp(1, MOST_PARTS);
        let hidden_gradient = device.load(tile)?;
        let launch_of = |wanted: usize| {
            let span = vocabulary.div_ceil(wanted).next_multiple_of(DEPTH);
            let parts = vocabulary.div_ceil(span);
            let launch = hidden_gradient.grid([blocks(clusters * parts, 1), 1, 1])?;
            Ok::<_, Error>((span, launch.cluster(blocks(parts, 1))))
        };
        // A multiprocessor has room for two blocks, and yet not all clusters of so many begin at once, for not all
        // multiprocessors lie in groups of them. A second wave would take as long as the first: rather somewhat smaller
        // clusters, all of them at once.
        let mut chosen = launch_of(wanted)?;
        for fewer in (wanted / 2 + 1..=wanted).rev() {
            let (span, launch) = launch_of(fewer)?;
            if hidden_gradient.resident_clusters(&launch)? as usize >= clusters {
                chosen = (span, launch);
                break;
            }
        }
        let (span, launch) = chosen;
        let da = plan.scratch(DType::F32, batch * hidden);
        let dx = plan.scratch(DType::F32, batch * embedding);
        let arguments = arguments![
            DZ: dz.loaded_by(matrix([batch, vocabulary]).loaded(tile.size("BM"))?),
            COPY: copy.loaded_by(matrix([vocabulary, hidden]).loaded(DEPTH)?),
            rounded,
            da,
            span,
        ];
        plan.launch_in(&self.scope, &hidden_gradient, launch, arguments)?;

        let (gradient_use, [_, _, _, w2, b2]) = self.destination(gradients);
        let size = [vocabulary, hidden];
        let tile = highest_filling(&device, &V3_WGMMA, "output_weights_wgmma", self.pack, size, 1);
        let sides = ["BM", "BN", "PLACES"].map(|name| tile.size(name).to_string()).join(", ");
        let arguments = format!("{gradient_use}{}, {sides}", self.pack);
        let output_weights = load_kernel(&device, &V3_WGMMA, "output_weights_wgmma", &arguments)?;
        let of_input = batch.div_ceil(tile.size("BM") / 2) * embedding.div_ceil(INPUT_COLUMNS);
        let launch = output_weights.grid([blocks(of_input + tiles(&tile, size), 1), 1, 1])?;
        let arguments = arguments![
            DZ: dz.loaded_by(matrix([batch, vocabulary]).loaded(DEPTH)?),
            ROUNDED: rounded.loaded_by(matrix([batch, hidden]).loaded(DEPTH)?),
            da, dx, w2, b2,
        ];
        plan.launch_in(&self.scope, &output_weights, launch, arguments)?;
        Ok(HiddenGradients { da, dx })
    }
}
