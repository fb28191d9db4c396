//! `attention`: softmax attention, forward and backward, on the tiles of the stages before.
//!
//! The equations are those of `lab_reference::attention`. Versions of the forward pass: scores in memory, a running
//! maximum, tensor cores. Of both passes: scores in memory, tensor cores. The last of either take packed sequences.

#![deny(unsafe_code)]

use lab_device::{DType, Device, Instance, KernelSource, Swizzle, TensorMap};
use lab_families::attention::{self, CAUSAL, Slots, group_of, is_causal, sizes, sizes_of};
use lab_families::packed::{packed_sequences, room_for_parts};
use lab_harness::compare::unit;
use lab_harness::plan::Scope;
use lab_harness::suite::Check;
use lab_harness::tiling::candidates;
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Preference, Request, Stage, Tiling, Version, arguments,
};

mod checks;
mod handed;
mod step;

use checks::{gone_positions_have_no_weight, packed_is_as_a_batch};
pub use step::{STEP, STEP_SPLIT};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// A version of either family.
#[derive(Debug)]
pub struct Attention {
    info: Info,
    way: Way,
}

/// Where the pairs are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// In device memory.
    Scores,
    /// A tile of them, in shared memory.
    Online,
    /// A tile of them, in the registers that tensor cores read.
    Mma,
    /// The same of warpgroups.
    Wgmma,
    /// The same, by warpgroups that take turns, of blocks that stay. Of sequences of one length, or of packed ones.
    Turns,
    /// The same, and dq's sums handed on from block to block.
    Handed,
}

/// Columns of the widest head of tiles in f32.
const MOST_COLUMNS: usize = 256;

/// Positions of a sequence whose pairs lie in memory: 1 GiB a head, and as much for the backward pass.
const MOST_IN_MEMORY: usize = 1 << 14;

/// With so many positions and columns at most.
const fn dims(positions: usize, columns: usize, timed: usize) -> [Dim; 5] {
    attention::dims([
        [1, 8, 65535],
        [4, 16, 65535],
        [2, 16, 65535],
        [100, timed, positions],
        [64, if columns < 128 { columns } else { 128 }, columns],
    ])
}

static IN_MEMORY: [Dim; 5] = dims(MOST_IN_MEMORY, MOST_COLUMNS, 1024);
static IN_TILES: [Dim; 5] = dims(1 << 24, MOST_COLUMNS, 2048);
static IN_REGISTERS: [Dim; 5] = dims(1 << 24, 128, 2048);
static IN_WIDE_REGISTERS: [Dim; 5] = dims(1 << 24, 256, 2048);
static PACKED_DIMS: [Dim; 5] = {
    let columns = [64, 128, 256];
    attention::packed_dims([
        [4, 8, 65535],
        [4, 16, 65535],
        [2, 16, 65535],
        [300, 16384, 1 << 24],
        columns,
    ])
};

const F16: DType = DType::F16;
const BF16: DType = DType::BF16;
const F32: DType = DType::F32;

/// An output's bounds as a whole, then of elements, in f32, f16 and bf16.
const fn output(
    name: &'static str,
    bounds: &'static [(DType, f64)],
    elements: &'static [(DType, f64)],
) -> Output {
    Output { name, bounds, elements }
}

const INFO: Info = Info {
    stage: "attention",
    name: "v0_scores",
    family: &attention::FORWARD,
    parent: None,
    change: "scores in memory: two products and a softmax, one launch each",
    dtypes: &[F32, F16, BF16],
    dims: &IN_MEMORY,
    settings: &[CAUSAL],
    inputs: attention::FORWARD_INPUTS,
    // f32: sums of up to S terms, one after the other. Halves: the one rounding of the result.
    outputs: &[
        output(
            "o",
            &[(F32, 2e-6), (F16, 5e-4), (BF16, 4e-3)],
            &[(F32, 4.0 * unit::F32), (F16, 4.0 * unit::F32), (BF16, 4.0 * unit::F32)],
        ),
        LSE,
    ],
};

/// In f32 in runs of every type.
const LSE: Output = output(
    "lse",
    &[(F32, 1e-6), (F16, 1e-6), (BF16, 1e-6)],
    &[(F32, 8.0 * unit::F32), (F16, 8.0 * unit::F32), (BF16, 8.0 * unit::F32)],
);

/// Scores in memory.
pub static SCORES: Attention = Attention { info: INFO, way: Way::Scores };

/// A running maximum.
pub static ONLINE: Attention = Attention {
    info: Info {
        name: "v1_online",
        parent: Some("v0_scores"),
        change: "a running maximum: a tile of scores at a time, none in memory",
        dims: &IN_TILES,
        ..INFO
    },
    way: Way::Online,
};

/// By warps.
pub static MMA: Attention = Attention {
    info: Info {
        name: "v2_mma",
        parent: Some("v1_online"),
        change: "both products on tensor cores; weights stay in registers",
        dtypes: &[F16, BF16],
        dims: &IN_REGISTERS,
        // The weights and o are rounded once each.
        outputs: &[
            output(
                "o",
                &[(F16, 1e-3), (BF16, 8e-3)],
                &[(F16, 0.2 * unit::F16), (BF16, unit::BF16)],
            ),
            LSE,
        ],
        ..INFO
    },
    way: Way::Mma,
};

/// By warpgroups.
pub static WGMMA: Attention = Attention {
    info: Info {
        name: "v5_wgmma",
        parent: Some("v2_mma"),
        change: "wgmma of 64 rows a warpgroup; one thread asks for tiles by TMA",
        dims: &IN_WIDE_REGISTERS,
        ..MMA.info
    },
    way: Way::Wgmma,
};

/// By warpgroups that take turns.
pub static TURNS: Attention = Attention {
    info: Info {
        name: "v6_turns",
        parent: Some("v5_wgmma"),
        change: "the next scores under this softmax; warpgroups take turns; blocks stay",
        ..WGMMA.info
    },
    way: Way::Turns,
};

/// Both passes, pairs in memory.
pub static SCORES_BACK: Attention = Attention {
    info: Info {
        name: "v3_scores_back",
        family: &attention::FORWARD_BACKWARD,
        parent: Some("v0_scores"),
        change: "the gradients: weights and their slopes in memory, a product for each gradient",
        inputs: attention::FORWARD_BACKWARD_INPUTS,
        // δ is of o as it was rounded.
        outputs: &[
            INFO.outputs[0],
            LSE,
            output(
                "dq",
                &[(F32, 4e-6), (F16, 1.5e-3), (BF16, 1.2e-2)],
                &[(F32, 2.0 * unit::F32), (F16, 0.1 * unit::F16), (BF16, 0.4 * unit::BF16)],
            ),
            output(
                "dk",
                &[(F32, 4e-6), (F16, 1.5e-3), (BF16, 1.2e-2)],
                &[(F32, 2.0 * unit::F32), (F16, 0.1 * unit::F16), (BF16, 0.4 * unit::BF16)],
            ),
            output(
                "dv",
                &[(F32, 2e-6), (F16, 5e-4), (BF16, 4e-3)],
                &[(F32, 4.0 * unit::F32), (F16, 4.0 * unit::F32), (BF16, 4.0 * unit::F32)],
            ),
        ],
        ..INFO
    },
    way: Way::Scores,
};

/// Both passes by warps.
pub static MMA_BACK: Attention = Attention {
    info: Info {
        name: "v4_mma_back",
        parent: Some("v3_scores_back"),
        change: "scores are made again, from lse: one walk owns positions, one rows, and nobody adds to another's",
        dtypes: &[F16, BF16],
        dims: &IN_REGISTERS,
        // Weights and slopes are rounded, then the sums.
        outputs: &[
            MMA.info.outputs[0],
            LSE,
            output(
                "dq",
                &[(F16, 1.5e-3), (BF16, 1.2e-2)],
                &[(F16, 0.12 * unit::F16), (BF16, 0.8 * unit::BF16)],
            ),
            output(
                "dk",
                &[(F16, 1.5e-3), (BF16, 1.2e-2)],
                &[(F16, 0.12 * unit::F16), (BF16, 0.8 * unit::BF16)],
            ),
            output(
                "dv",
                &[(F16, 1e-3), (BF16, 8e-3)],
                &[(F16, 1.2 * unit::F16), (BF16, 1.4 * unit::BF16)],
            ),
        ],
        ..SCORES_BACK.info
    },
    way: Way::Mma,
};

/// Both passes by warpgroups.
pub static WGMMA_BACK: Attention = Attention {
    info: Info {
        name: "v7_wgmma_back",
        parent: Some("v4_mma_back"),
        change: "wgmma for the gradients too: weights and slopes are operands as they stand in registers",
        dims: &IN_WIDE_REGISTERS,
        ..MMA_BACK.info
    },
    way: Way::Turns,
};

/// Both passes, the gradients in one walk.
pub static HANDED_BACK: Attention = Attention {
    info: Info {
        name: "v8_handed",
        parent: Some("v7_wgmma_back"),
        change: "one walk: five products for seven, dq's sums handed on from block to block, in order",
        dims: &IN_REGISTERS,
        ..WGMMA_BACK.info
    },
    way: Way::Handed,
};

/// The forward pass over packed sequences.
pub static PACKED: Attention = Attention {
    info: Info {
        name: "v8_packed",
        family: &attention::PACKED_FORWARD,
        parent: Some("v6_turns"),
        change: "sequences one behind the other: a tile ends where its sequence ends",
        dims: &PACKED_DIMS,
        inputs: attention::PACKED_INPUTS,
        ..TURNS.info
    },
    way: Way::Turns,
};

/// Both passes over packed sequences.
pub static PACKED_BACK: Attention = Attention {
    info: Info {
        name: "v9_packed_back",
        family: &attention::PACKED_FORWARD_BACKWARD,
        parent: Some("v7_wgmma_back"),
        change: "sequences one behind the other: a tile ends where its sequence ends",
        dims: &PACKED_DIMS,
        inputs: attention::PACKED_BACKWARD_INPUTS,
        ..WGMMA_BACK.info
    },
    way: Way::Turns,
};

/// This stage.
pub static STAGE: Stage = Stage {
    name: "attention",
    teaches: "softmax attention: a running maximum, and gradients that make their scores again",
    versions: &[
        &SCORES,
        &ONLINE,
        &MMA,
        &WGMMA,
        &TURNS,
        &SCORES_BACK,
        &MMA_BACK,
        &WGMMA_BACK,
        &HANDED_BACK,
        &PACKED,
        &PACKED_BACK,
        &STEP,
        &STEP_SPLIT,
    ],
    kernels: kernels::KERNELS,
    checks: &[
        Check::new("packed_sequences_of_one_length_are_as_a_batch", |device| {
            packed_is_as_a_batch(device, [&TURNS, &PACKED]);
            packed_is_as_a_batch(device, [&WGMMA_BACK, &PACKED_BACK]);
        }),
        Check::new("positions_behind_the_end_have_no_weight", |device| {
            gone_positions_have_no_weight(device, [&WGMMA_BACK, &HANDED_BACK]);
        }),
    ],
    ..Stage::EMPTY
};

impl Version for Attention {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        Some(match self.info.name {
            "v6_turns" => Preference::new(10),
            "v5_wgmma" => Preference::new(20),
            "v2_mma" => Preference::new(30),
            "v1_online" => Preference::new(40),
            "v0_scores" => Preference::new(50),
            "v7_wgmma_back" => Preference::new(10),
            "v8_handed" => Preference::new(5).on_emulator(15),
            "v4_mma_back" => Preference::new(20),
            "v3_scores_back" => Preference::new(30),
            "v8_packed" => Preference::new(10),
            "v9_packed_back" => Preference::new(10),
            _ => return None,
        })
    }

    // With 64 columns it was not faster than v7 when both were measured.
    fn is_chosen_for(&self, dims: &Dims) -> bool {
        self.info.name != "v8_handed" || dims.get("D") > 64
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        match (self.way, self.is_backward()) {
            (Way::Scores, _) => vec![&kernels::SCORES],
            (Way::Online, _) => vec![&kernels::ONLINE],
            (Way::Mma, false) => vec![&kernels::MMA],
            (Way::Mma, true) => vec![&kernels::MMA, &kernels::MMA_BACK],
            (Way::Wgmma, _) => vec![&kernels::WGMMA],
            (Way::Handed, _) => vec![&kernels::TURNS, &kernels::HANDED_BACK, &kernels::MMA_BACK],
            (Way::Turns, false) => vec![&kernels::TURNS],
            (Way::Turns, true) => vec![&kernels::TURNS, &kernels::WGMMA_BACK, &kernels::MMA_BACK],
        }
    }

    fn test_shapes(&self) -> Vec<Dims> {
        if self.info.takes("cu_seqlens") {
            let shapes = [
                [1, 1, 1, 1, 16],
                [1, 2, 1, 64, 64],
                [3, 4, 2, 130, 80],
                [5, 1, 1, 300, 64],
                [2, 2, 1, 70, 256],
                // More tiles than a ring has places.
                [2, 1, 1, 540, 16],
                [2, 1, 1, 350, 128],
            ];
            return shapes.map(attention::packed_sizes).to_vec();
        }
        let most = self.info.dims[4].max;
        // More tiles than a ring has places, for each width of a head.
        let rings = [[1, 1, 1, 530, 16], [1, 1, 1, 340, 80], [1, 1, 1, 200, 256]];
        let has_rings = matches!(self.way, Way::Wgmma | Way::Turns | Way::Handed);
        [
            [1, 1, 1, 1, 16],
            // A tile; one and a bit, one less a bit.
            [1, 1, 1, 64, 64],
            [1, 1, 1, 65, 48],
            [1, 1, 1, 63, 112],
            [1, 1, 1, 128, 128],
            // Heads that share, of several sequences.
            [2, 4, 2, 40, 64],
            [1, 6, 2, 9, 16],
            [3, 2, 1, 70, 32],
            // Several tiles; more than there are places for.
            [1, 2, 1, 200, 80],
            [1, 1, 1, 300, 16],
            // Wide heads.
            [1, 2, 1, 40, 256],
            [1, 1, 1, 33, 144],
        ]
        .into_iter()
        .chain(rings.into_iter().filter(|_| has_rings))
        .filter(|shape| shape[4] <= most)
        .map(sizes)
        .collect()
    }

    fn tilings(&self, dims: &Dims, dtype: DType) -> Vec<Tiling> {
        match self.way {
            Way::Handed => handed::tilings(dims, dtype),
            Way::Turns if !self.is_backward() => tilings_of_turns(dims, dtype),
            _ => Vec::new(),
        }
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let problem = Pass::of(&self.info, request)?;
        let mut plan = Plan::new(device);
        let slots = Slots::new(&mut plan, request);
        match self.way {
            Way::Scores => problem.add_with_scores(&mut plan, slots)?,
            Way::Online => {
                problem.add_in_tiles(&mut plan, slots, &kernels::ONLINE, "attention_online")?
            }
            Way::Wgmma => problem.add_by_warpgroups(&mut plan, slots, &kernels::WGMMA, None)?,
            Way::Turns => {
                problem.add_by_warpgroups(&mut plan, slots, &kernels::TURNS, request.tiling)?;
                if slots.gradients.is_some() {
                    problem.add_gradients_by_warpgroups(&mut plan, slots)?;
                }
            }
            Way::Handed => {
                problem.add_by_warpgroups(&mut plan, slots, &kernels::TURNS, None)?;
                problem.add_gradients_handed_on(&mut plan, slots, request.tiling)?;
            }
            Way::Mma => {
                problem.add_in_tiles(&mut plan, slots, &kernels::MMA, "attention_mma")?;
                if slots.gradients.is_some() {
                    problem.add_gradients(&mut plan, slots)?;
                }
            }
        }
        Ok(plan)
    }
}

impl Attention {
    fn is_backward(&self) -> bool {
        self.info.takes("do")
    }
}

/// Tensors that may lie as rows, heads beside each other ([`Request::with_rows_apart`]): of the versions of warpgroups.
const ROW_TENSORS: [&str; 8] = ["q", "k", "v", "o", "do", "dq", "dk", "dv"];

/// What the launches of a problem have in common.
#[derive(Clone, Copy, Debug)]
struct Pass {
    /// Elements from row to row, of each of [`ROW_TENSORS`]; `None` where heads come one behind the other.
    rows_apart: [Option<usize>; 8],
    dtype: DType,
    /// Of all sequences together.
    heads: usize,
    heads_a_sequence: usize,
    group: usize,
    positions: usize,
    columns: usize,
    causal: bool,
    /// How many sequences are packed; `None` where they are of one length.
    packed: Option<usize>,
}

impl Pass {
    fn of(info: &Info, request: &Request<'_>) -> Result<Self, Error> {
        let [b, nh, _, positions, columns] = sizes_of(&request.dims);
        Ok(Self {
            dtype: request.dtype,
            heads: b * nh,
            heads_a_sequence: nh,
            group: group_of(&request.dims)?,
            positions,
            columns,
            causal: is_causal(info, request.options()),
            rows_apart: ROW_TENSORS.map(|name| request.row_stride(name)),
            packed: packed_sequences(&request.dims),
        })
    }

    /// Sizes and factors by the names of the kernels.
    fn scope(&self, slots: Slots) -> Scope {
        let Slots { q, k, v, o, lse, gradients, packed } = slots;
        let (cu_seqlens, sequences) = (packed.cu_seqlens, packed.sequences.unwrap_or(0));
        let scale = 1.0 / (self.columns as f64).sqrt();
        let log2_scale = scale * std::f64::consts::LOG2_E;
        let scope = Scope::new()
            .with(
                arguments![q, k, v, o, lse, group: self.group, S: self.positions, D: self.columns],
            )
            .with(arguments![scale, log2_scale, causal: self.causal, cu_seqlens, sequences]);
        match gradients {
            Some([grad, dq, dk, dv]) => scope.with(arguments![grad, dq, dk, dv]),
            None => scope,
        }
    }

    /// A thread a pair or an element, and pairs in memory.
    fn add_with_scores(&self, plan: &mut Plan, slots: Slots) -> Result<(), Error> {
        let Self { heads, positions: s, columns, .. } = *self;
        let t = self.dtype.cpp();
        let pairs = plan.scratch(F32, heads * s * s);
        let rows = heads * s;
        let scope = self.scope(slots).with(arguments![pairs, rows]);
        let source = &kernels::SCORES;
        let launch = |plan: &mut Plan, name: &str, blocks: usize, scope: &Scope| {
            let kernel = plan.device().kernel(source, name)?;
            let grid = kernel.grid([blocks_of(blocks)?, 1, 1])?;
            plan.launch_in(scope, &kernel, grid, arguments![])
        };
        let squares = |columns: usize| s.div_ceil(SIDE) * columns.div_ceil(SIDE);
        let (of_pairs, of_rows) = (heads * squares(s), rows.div_ceil(ROWS_A_BLOCK));
        let of_heads = |heads: usize| heads * squares(columns);
        launch(plan, &format!("attention_scores<{t}>"), of_pairs, &scope)?;
        launch(plan, "attention_softmax<128>", of_rows, &scope)?;
        let sum = |scope: &Scope, pairs, x, out, scale: f64| {
            scope.clone().with(arguments![pairs, x, out, scale])
        };
        let name = format!("attention_over_columns<{t}>");
        launch(plan, &name, of_heads(heads), &sum(&scope, pairs, slots.v, slots.o, 1.0))?;
        let Some([grad, dq, dk, dv]) = slots.gradients else { return Ok(()) };

        let slopes = plan.scratch(F32, heads * s * s);
        let delta = plan.scratch(F32, rows);
        let scope = scope.with(arguments![slopes, delta]);
        let scale = 1.0 / (columns as f64).sqrt();
        launch(plan, &format!("attention_deltas<{t}, 128>"), of_rows, &scope)?;
        launch(plan, &format!("attention_slopes<{t}>"), of_pairs, &scope)?;
        launch(plan, &name, of_heads(heads), &sum(&scope, slopes, slots.k, dq, scale))?;
        let name = format!("attention_over_rows<{t}>");
        let shared = of_heads(heads / self.group);
        launch(plan, &name, shared, &sum(&scope, slopes, slots.q, dk, scale))?;
        launch(plan, &name, shared, &sum(&scope, pairs, grad, dv, 1.0))
    }

    /// A block for each tile of rows of each head.
    fn add_in_tiles(
        &self,
        plan: &mut Plan,
        slots: Slots,
        source: &'static KernelSource,
        name: &str,
    ) -> Result<(), Error> {
        let instance = self.instance(source, name);
        let rows = if instance.argument("TQ").is_some() { "TQ" } else { "L" };
        let tiles = self.positions.div_ceil(instance.size(rows));
        let scope = self.scope(slots).with(arguments![tiles]);
        let kernel = plan.device().load(instance)?;
        let grid = kernel.grid([blocks_of(self.heads * tiles)?, 1, 1])?;
        plan.launch_in(&scope, &kernel, grid, arguments![])
    }

    /// A block for 64 rows a warpgroup of each head, or as many blocks as run at once.
    fn add_by_warpgroups(
        &self,
        plan: &mut Plan,
        slots: Slots,
        source: &'static KernelSource,
        tiling: Option<&Tiling>,
    ) -> Result<(), Error> {
        let stays = std::ptr::eq(source, &kernels::TURNS);
        let name = if stays { "attention_turns" } else { "attention_wgmma" };
        let instance = self.instance(source, name);
        let [rows, keys] = [ROWS * instance.size("GROUPS"), instance.size("L")];
        let (heads, tiles) = (self.heads, self.tiles_of(rows));
        let all = heads * tiles;
        let device = plan.device();
        let blocks = if stays { all.min(device.facts().multiprocessors as usize) } else { all };
        let kernel = device.load(instance)?;
        let launch = kernel.grid([blocks_of(blocks)?, 1, 1])?;
        let scope = self.scope(slots).with(arguments![
            q: slots.q.loaded_by(self.panels("q", ROWS)?),
            k: slots.k.loaded_by(self.panels("k", keys)?),
            v: slots.v.loaded_by(self.panels("v", keys)?),
            o: slots.o.stored_by(self.panels("o", ROWS)?),
            heads,
            tiles,
            together: tiling.map_or_else(|| self.together(), |tiling| tiling.get(HEADS) * self.group),
            NH: self.heads_a_sequence,
        ]);
        if !stays {
            return plan.launch_in(&scope, &kernel, launch, arguments![]);
        }
        // The kernel leaves it at 0.
        let counter = plan.zeros(DType::U32, 1);
        plan.launch_in(&scope.with(arguments![counter]), &kernel, launch, arguments![])
    }

    /// Tiles of so many rows of a head. Packed sequences begin one each: kernels/packed.cuh.
    fn tiles_of(&self, rows: usize) -> usize {
        room_for_parts(self.positions, rows, self.packed)
    }

    /// How many elements rows of one of [`ROW_TENSORS`] lie apart, heads of a sequence, and sequences. A head for each `group` of q.
    fn apart(&self, name: &str, group: usize) -> [usize; 3] {
        let Self { columns, positions, .. } = *self;
        let index = ROW_TENSORS.iter().position(|own| *own == name).expect("one of them");
        match self.rows_apart[index] {
            Some(row) => [row, columns, positions * row],
            None => {
                let head = positions * columns;
                [columns, head, self.heads_a_sequence / group * head]
            }
        }
    }

    /// Panels of 64 columns of so many rows of a head, of one of [`ROW_TENSORS`]: columns, rows, heads, sequences. Of packed
    /// sequences they end anywhere.
    fn panels(&self, name: &str, rows: usize) -> Result<TensorMap, Error> {
        let Self { dtype, columns, positions, .. } = *self;
        let group = if ["k", "v", "dk", "dv"].contains(&name) { self.group } else { 1 };
        let (heads, sequences) =
            (self.heads_a_sequence / group, self.heads / self.heads_a_sequence);
        if self.packed.is_some() {
            let [row, head, _] = self.apart(name, group).map(|elements| elements * dtype.size());
            let map =
                TensorMap::ending_anywhere(dtype, [columns, positions, heads], [PANEL, rows])?;
            return Ok(map.rows_apart(row, head)?.swizzle(Swizzle::Bytes128));
        }
        let map =
            TensorMap::new(dtype, &[columns, positions, heads, sequences], &[PANEL, rows, 1, 1])?;
        let map = map.strides(&self.apart(name, group).map(|elements| elements * dtype.size()))?;
        Ok(map.swizzle(Swizzle::Bytes128))
    }

    /// Heads of q that come at a time.
    fn together(&self) -> usize {
        let own = self.heads / self.group;
        heads_together(own, self.positions, self.columns, self.dtype) * self.group
    }

    /// What pairs need of their rows, of `length` a head, with what names it.
    fn add_rows(&self, plan: &mut Plan, slots: Slots, length: usize) -> Result<Scope, Error> {
        let heads = self.heads;
        let of_row = plan.scratch(F32, 2 * heads * length);
        let [o_row, o_head, o_sequence] = self.apart("o", 1);
        let [grad_row, grad_head, grad_sequence] = self.apart("do", 1);
        let scope = self
            .scope(slots)
            .with(arguments![of_row, length, all: heads * length, NH: self.heads_a_sequence])
            .with(arguments![o_row, o_head, o_sequence, grad_row, grad_head, grad_sequence]);
        let source = &kernels::MMA_BACK;
        let has_lanes = |i: &Instance| self.is_ours(i) && 8 * i.size("LANES") >= self.columns;
        let instance =
            source.instances("attention_rows").find(has_lanes).expect("D of a checked problem");
        let rows_a_block = instance.size("THREADS") / instance.size("LANES");
        let kernel = plan.device().load(instance)?;
        let blocks = blocks_of((heads * length).div_ceil(rows_a_block))?;
        plan.launch_in(&scope, &kernel, kernel.grid([blocks, 1, 1])?, arguments![])?;
        Ok(scope)
    }

    /// What pairs need of their rows, then dk and dv, then dq.
    fn add_gradients(&self, plan: &mut Plan, slots: Slots) -> Result<(), Error> {
        let source = &kernels::MMA_BACK;
        let keys = self.instance(source, "attention_keys_mma");
        let (rows, heads) = (keys.size("L"), self.heads);
        let tiles = self.positions.div_ceil(rows);
        let scope = self.add_rows(plan, slots, tiles * rows)?.with(arguments![tiles]);
        let queries = self.instance(source, "attention_queries_mma");
        for (instance, heads) in [(keys, heads / self.group), (queries, heads)] {
            let kernel = plan.device().load(instance)?;
            let grid = kernel.grid([blocks_of(heads * tiles)?, 1, 1])?;
            plan.launch_in(&scope, &kernel, grid, arguments![])?;
        }
        Ok(())
    }

    /// The same by warpgroups: dk and dv in one launch, or one each.
    fn add_gradients_by_warpgroups(&self, plan: &mut Plan, slots: Slots) -> Result<(), Error> {
        let Self { heads, group, heads_a_sequence: nh, .. } = *self;
        let Some([grad, dq, dk, dv]) = slots.gradients else { return Ok(()) };
        let scope = self.add_rows(plan, slots, self.tiles_of(2 * ROWS) * 2 * ROWS)?;
        let queries = self.instance(&kernels::WGMMA_BACK, "attention_queries_wgmma");
        let room = queries.size("ROOM");
        let is_ours = |i: &Instance| self.is_ours(i) && i.size("ROOM") == room;
        let of_keys = kernels::WGMMA_BACK.instances("attention_keys_wgmma").filter(is_ours);
        let all: Vec<_> =
            of_keys.map(|i| (i, true)).chain(std::iter::once((queries, false))).collect();
        for (instance, is_of_keys) in all {
            let tiles = self.tiles_of(ROWS * instance.size("GROUPS"));
            // What a block owns comes in a warpgroup's rows, what comes past in tiles of L.
            let [own, past] = [ROWS, instance.size("L")];
            let [of_q, of_k] = if is_of_keys { [past, own] } else { [own, past] };
            let shared = if is_of_keys { group } else { 1 };
            let kernel = plan.device().load(instance)?;
            let launch = kernel.grid([blocks_of(heads / shared * tiles)?, 1, 1])?;
            let scope = scope.clone().with(arguments![
                q: slots.q.loaded_by(self.panels("q", of_q)?),
                grad: grad.loaded_by(self.panels("do", of_q)?),
                k: slots.k.loaded_by(self.panels("k", of_k)?),
                v: slots.v.loaded_by(self.panels("v", of_k)?),
                dq: dq.stored_by(self.panels("dq", ROWS)?),
                dk: dk.stored_by(self.panels("dk", ROWS)?),
                dv: dv.stored_by(self.panels("dv", ROWS)?),
                heads: heads / shared,
                tiles,
                together: (self.together() / shared).max(1),
                NH: nh / shared,
            ]);
            plan.launch_in(&scope, &kernel, launch, arguments![])?;
        }
        Ok(())
    }

    /// Whether a kernel is of this type, and where it matters for sequences as these are.
    fn is_ours(&self, instance: &Instance) -> bool {
        let packed = if self.packed.is_some() { "true" } else { "false" };
        instance.has("T", self.dtype.cpp())
            && instance.argument("PACKED").is_none_or(|own| own == packed)
    }

    /// The first that has room for a head.
    fn instance(&self, source: &'static KernelSource, name: &str) -> Instance {
        let room = |i: &Instance| i.argument("DH").map_or_else(|| i.size("ROOM"), |_| i.size("DH"));
        let mut of_type = source.instances(name).filter(|i| self.is_ours(i));
        of_type.find(|i| self.columns <= room(i)).expect("D of a checked problem")
    }
}

/// Rows of a warpgroup, and columns of a panel.
const ROWS: usize = 64;
const PANEL: usize = 64;

/// Of the square of threads of kernels/scores.cu.
const SIDE: usize = 16;

/// Where a warp has a row and a block 128 threads.
const ROWS_A_BLOCK: usize = 4;

/// Heads whose keys and values half of a cache of 50 MB holds; one at least.
fn heads_in_cache(positions: usize, columns: usize, dtype: DType) -> usize {
    const BYTES: usize = 24 << 20;
    (BYTES / (2 * positions * columns * dtype.size())).max(1)
}

/// How many heads with keys of their own come at a time, of so many: those that a cache holds, or 4; and all groups of them
/// alike, or nearly so. The longest tiles of a group come first, so that its short ones fill the gaps; but the last group must
/// fill them alone, and a small one has too few.
fn heads_together(heads: usize, positions: usize, columns: usize, dtype: DType) -> usize {
    let least = heads_in_cache(positions, columns, dtype).max(4);
    heads.div_ceil((heads / least).max(1))
}

/// What `lab tune` tries of `turns.cu`: how many heads with keys of their own come at a time. The first is in use, the second is
/// what a cache holds, whatever is left for the last group.
fn tilings_of_turns(dims: &Dims, dtype: DType) -> Vec<Tiling> {
    let [b, nh, _, positions, columns] = sizes_of(dims);
    let Ok(group) = group_of(dims) else { return Vec::new() };
    let heads = b * nh / group;
    let in_use = heads_together(heads, positions, columns, dtype);
    let tried = [in_use, heads_in_cache(positions, columns, dtype), 4, 8, 16, 32, heads];
    let tried = tried.map(|n| n.min(heads));
    candidates(&[HEADS], [in_use], [&tried], |_| true)
}

/// The name of what is chosen there.
const HEADS: &str = "HEADS";

/// As many blocks, where a grid can have them.
fn blocks_of(all: usize) -> Result<u32, Error> {
    let refused = |_| Error::bad("B NH S", format!("at most {} blocks of a launch", i32::MAX), all);
    i32::try_from(all).map(|all| all as u32).map_err(refused)
}
