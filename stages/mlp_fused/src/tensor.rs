//! The launches of a step of B pairs that are made of bf16.

use lab_device::{DType, Device, Launch};
use lab_harness::program::{Argument, Program, Slot};
use lab_harness::{Error, Tensor};
use lab_reference::mlp::Sizes;

use crate::batch::{Batch, Logits, Pairs, SMALL, SMALL_THREADS, SOFTMAX_THREADS, Use};
use crate::kernels::V1_TENSOR;
use crate::steps::{blocks, int, kernel};

/// Tiles, BM, BN, WM and WN, of a grid that fills the device, and of one that would not.
const TILES: [[usize; 4]; 2] = [[128, 128, 32, 64], [64, 64, 32, 32]];

/// As in the kernels: elements of k of a tile, tiles in flight.
const DEPTH: usize = 64;
const STAGES: usize = 3;

const MOST_PARTS: usize = 32;
const ROUND_THREADS: usize = 256;

/// What is in bf16 beside the rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Halves {
    h: Slot,
    /// The copy of w2, \[V, H\] with padded rows.
    pub(crate) w2: Slot,
    dz: Slot,
}

/// A tile, with how it is launched.
struct Tile([usize; 4]);

impl Tile {
    /// For results of so many rows and columns: the largest with which each multiprocessor has a block.
    fn of(device: &Device, rows: usize, columns: usize) -> Self {
        let enough = device.facts().multiprocessors as usize;
        let fills = |t: &&[usize; 4]| rows.div_ceil(t[0]) * columns.div_ceil(t[1]) >= enough;
        Self(*TILES.iter().find(fills).unwrap_or(&TILES[TILES.len() - 1]))
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
    pub(crate) fn new(program: &mut Program, sizes: Sizes, batch: usize) -> Result<Self, Error> {
        let (columns, z) = (padded(sizes.hidden), padded(sizes.vocabulary));
        let mut scratch = |len| program.scratch(DType::BF16, len);
        Ok(Self {
            h: scratch(batch * columns)?,
            w2: scratch(sizes.vocabulary * columns)?,
            dz: scratch(batch * z)?,
        })
    }

    /// Writes the copy of w2 \[V, H\].
    pub(crate) fn write(&self, program: &mut Program, w2: &Tensor) -> Result<(), Error> {
        let columns = w2.shape[1];
        let mut rows = Vec::with_capacity(self.w2.len());
        for row in w2.values().chunks(columns) {
            rows.extend_from_slice(row);
            rows.resize(rows.len() + padded(columns) - columns, 0.0);
        }
        program.write(self.w2, &Tensor::rounded(DType::BF16, &[rows.len()], &rows))
    }
}

/// Columns of a row of whole chunks of 16 bytes.
fn padded(columns: usize) -> usize {
    columns.next_multiple_of(8)
}

/// How many slices of a row of logits have their own statistics.
pub(crate) fn slices(device: &Device, batch: usize, vocabulary: usize) -> usize {
    let [_, bn, _, wn] = Tile::of(device, batch, vocabulary).0;
    vocabulary.div_ceil(bn) * (bn / wn)
}

impl Batch {
    /// The bf16 copy of w2.
    pub(crate) fn round(&self, program: &mut Program, halves: Halves) -> Result<(), Error> {
        let Sizes { vocabulary, hidden, .. } = self.sizes;
        let columns = padded(hidden);
        let round = kernel(program.device(), &V1_TENSOR, "round_weights", "__nv_bfloat16")?;
        let launch = Launch::new(blocks(vocabulary * columns, ROUND_THREADS), ROUND_THREADS as u32);
        let sizes = [vocabulary, hidden, columns].map(int);
        let [_, _, _, w2, _] = self.parameters;
        program.launch(round, launch, [w2.read(), halves.w2.write(), sizes[0], sizes[1], sizes[2]]);
        Ok(())
    }

    /// As [`Batch::logits`].
    pub(crate) fn logits_of(
        &self,
        program: &mut Program,
        logits: Logits,
        halves: Halves,
    ) -> Result<(), Error> {
        let Sizes { vocabulary, embedding, hidden } = self.sizes;
        let Pairs { tokens, targets, order, counts, numbers, .. } = self.pairs;
        let [emb, w1, b1, _, b2] = self.parameters.map(Slot::read);
        let device = program.device().clone();
        let columns = padded(hidden);
        let grid = [blocks(self.batch, SMALL), blocks(hidden, SMALL), 1];
        program.launch(
            kernel(&device, &V1_TENSOR, "hidden_halves", &self.pack.to_string())?,
            Launch::new_3d(grid, [SMALL_THREADS, 1, 1]),
            [
                tokens.read(),
                targets.read(),
                order.read(),
                counts.write(),
                numbers.write(),
                self.ids.write(),
                emb,
                w1,
                b1,
                self.x.write(),
                self.h.write(),
                halves.h.write(),
                int(order.len()),
                int(self.batch),
                int(embedding),
                int(hidden),
                int(columns),
            ],
        );
        let tile = Tile::of(&device, self.batch, vocabulary);
        let [b, v, _, _, z] = self.ints();
        program.launch(
            kernel(&device, &V1_TENSOR, "logits_tensor", &tile.arguments())?,
            tile.launch([blocks(vocabulary, tile.0[1]), blocks(self.batch, tile.0[0]), 1]),
            [
                halves.h.read(),
                halves.w2.read(),
                b2,
                logits.z.write(),
                logits.stats.write(),
                b,
                v,
                int(columns),
                z,
            ],
        );
        Ok(())
    }

    /// As [`Batch::loss`].
    pub(crate) fn loss_of(
        &self,
        program: &mut Program,
        logits: Logits,
        halves: Halves,
    ) -> Result<(), Error> {
        let device = program.device().clone();
        let vocabulary = self.sizes.vocabulary;
        let [b, v, _, _, z] = self.ints();
        program.launch(
            kernel(&device, &V1_TENSOR, "softmax_halves", "256")?,
            Launch::new(blocks(self.batch, 1), SOFTMAX_THREADS),
            [
                self.ids.read(),
                self.pairs.counts.read(),
                logits.stats.read(),
                logits.z.read(),
                halves.dz.write(),
                self.row_losses.write(),
                int(self.pairs.order.len()),
                b,
                v,
                z,
                int(padded(vocabulary)),
                int(slices(&device, self.batch, vocabulary)),
            ],
        );
        Ok(())
    }

    /// In how many parts V is cut, and tokens of a part.
    fn parts_of(&self, device: &Device, tile: &Tile) -> [usize; 2] {
        let Sizes { vocabulary, hidden, .. } = self.sizes;
        let tiles = self.batch.div_ceil(tile.0[0]) * hidden.div_ceil(tile.0[1]);
        let wanted = device.facts().multiprocessors as usize / tiles;
        let span = vocabulary.div_ceil(wanted.clamp(1, MOST_PARTS)).next_multiple_of(DEPTH);
        [vocabulary.div_ceil(span), span]
    }

    /// The products of [`Batch::back`] that have to do with w2.
    pub(crate) fn back_of(
        &self,
        program: &mut Program,
        halves: Halves,
        gradients: Use,
    ) -> Result<[Slot; 2], Error> {
        let Sizes { vocabulary, hidden, .. } = self.sizes;
        let Pairs { counts, rates, losses, .. } = self.pairs;
        let (how, [_, _, _, w2, b2]) = self.moved(gradients);
        let device = program.device().clone();
        let [b, v, e, h, _] = self.ints();
        let [columns, z]: [Argument; 2] = [padded(hidden), padded(vocabulary)].map(int);

        // Along V there is as much parallel as is wanted: the larger tile where B and H have one.
        let large = self.batch >= TILES[0][0] && hidden >= TILES[0][1];
        let tile = Tile(TILES[usize::from(!large)]);
        let [splits, span] = self.parts_of(&device, &tile);
        let back = self.room(program, splits)?;
        let grid = [blocks(self.batch, tile.0[0]), blocks(hidden, tile.0[1]), blocks(splits, 1)];
        program.launch(
            kernel(&device, &V1_TENSOR, "output_input_tensor", &tile.arguments())?,
            tile.launch(grid),
            [
                halves.dz.read(),
                halves.w2.read(),
                self.row_losses.read(),
                counts.read(),
                back.parts.write(),
                losses.write(),
                b,
                v,
                h,
                columns,
                z,
                int(span),
            ],
        );
        self.hidden_gradient(program, &back, splits)?;
        let tile = Tile::of(&device, vocabulary, hidden);
        let tiles = vocabulary.div_ceil(tile.0[0]) * hidden.div_ceil(tile.0[1]);
        let arguments = format!("{how}{}, {}", self.pack, tile.arguments());
        program.launch(
            kernel(&device, &V1_TENSOR, "output_weights_tensor", &arguments)?,
            tile.launch([blocks(self.input_tiles() + tiles, 1), 1, 1]),
            [
                halves.dz.read(),
                halves.h.read(),
                back.da.read(),
                self.parameters[1].read(),
                back.dx.write(),
                w2.write(),
                halves.w2.write(),
                b2.write(),
                counts.read(),
                rates.read(),
                losses.read(),
                b,
                v,
                e,
                h,
                columns,
                z,
            ],
        );
        Ok([back.da, back.dx])
    }
}
