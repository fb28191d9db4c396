//! `vlstm_fwbw_v3`: the vLSTM forward and backward in chunks, with the states and their gradients in device memory.
//!
//! The forward pass is that of `vlstm_fw_v3`, whose states ahead of each chunk stay in memory. The backward pass has the same
//! three launches once more: what each chunk adds to the gradient of the state, a walk along the chunks, from the last to the
//! first, and then the gradients of all chunks at once. The equations are those of `lab_reference::vlstm`, by chunks.

#![deny(unsafe_code)]

use lab_device::{DType, Device, Instance, KernelSource};
use lab_families::qkv::{self, Grid, sizes};
use lab_families::vlstm::{self, ForwardBackwardSlots, forward_backward_slots};
use lab_harness::compare::unit;
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Preference, Request, Stage, Version, arguments,
};
use lab_reference::vlstm::NormalizerGrad;
use vlstm_fw_v3::{Forward, POSITION, Saved};

mod checks;

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// Gradients in chunks.
#[derive(Debug)]
pub struct Gradients {
    info: Info,
    /// Whose chunks these are.
    forward: &'static vlstm_fw_v3::Chunks,
    /// Whether what chunks add to dC stays in registers.
    carries: bool,
    /// Of dq, dk and dv, what the launches make, one after the other: one of them, or all.
    launches: &'static [i32],
}

const DQ: i32 = 0;
const DK: i32 = 1;
const DV: i32 = 2;
const ALL: i32 = -1;

const F16: DType = DType::F16;
const BF16: DType = DType::BF16;
const F32: DType = DType::F32;

/// Positions and heads are counted by ints; a head's first element by more.
static DIMS: [Dim; 5] = vlstm::dims([
    [1, 2, 65535],
    [2, 16, 65535],
    [150, 2048, 1 << 24],
    [64, 128, qkv::MOST_COLUMNS],
    [64, 256, qkv::MOST_COLUMNS],
]);

const INFO: Info = Info {
    stage: "vlstm_fwbw_v3",
    name: "v0_chunks",
    family: &vlstm::FORWARD_BACKWARD,
    parent: Some("ahead"),
    change: "by chunks, on tensor cores: states and their gradients go to memory, all chunks at once",
    dtypes: &[F16, BF16],
    dims: &DIMS,
    settings: &[vlstm::EPSILON, vlstm::NORMALIZER_GRAD],
    inputs: vlstm::FORWARD_BACKWARD_INPUTS,
    // An element: of h a quarter to a third of a unit of roundoff of the halves; of gradients, which are relative to sums of
    // absolute values through both passes, a tenth and less.
    outputs: &[
        Output {
            name: "h",
            bounds: &[(F16, 1e-3), (BF16, 8e-3)],
            elements: &[(F16, 0.8 * unit::F16), (BF16, 0.9 * unit::BF16)],
        },
        Output {
            name: "m",
            bounds: &[(F16, 1e-7), (BF16, 1e-7)],
            elements: &[(F16, 2.0 * unit::F32), (BF16, 2.0 * unit::F32)],
        },
        Output {
            name: "n",
            bounds: &[(F16, 5e-7), (BF16, 5e-7)],
            elements: &[(F16, 1.8 * unit::F32), (BF16, 1.2 * unit::F32)],
        },
        Output {
            name: "dq",
            bounds: &[(F16, 1e-3), (BF16, 8e-3)],
            elements: &[(F16, 0.16 * unit::F16), (BF16, 0.28 * unit::BF16)],
        },
        Output {
            name: "dk",
            bounds: &[(F16, 1e-3), (BF16, 8e-3)],
            elements: &[(F16, 0.3 * unit::F16), (BF16, 0.09 * unit::BF16)],
        },
        Output {
            name: "dv",
            bounds: &[(F16, 1e-3), (BF16, 8e-3)],
            elements: &[(F16, 0.25 * unit::F16), (BF16, 0.3 * unit::BF16)],
        },
        Output {
            name: "di",
            bounds: &[(F16, 1e-3), (BF16, 8e-3)],
            elements: &[(F16, 0.02 * unit::F16), (BF16, 0.07 * unit::BF16)],
        },
        Output {
            name: "df",
            bounds: &[(F16, 2e-3), (BF16, 1.2e-2)],
            elements: &[(F16, 0.01 * unit::F16), (BF16, 0.013 * unit::BF16)],
        },
    ],
};

/// Chunks of 64 positions.
pub static CHUNKS: Gradients = Gradients {
    info: INFO,
    forward: &vlstm_fw_v3::CHUNKS,
    carries: false,
    launches: &[DQ, DK, DV],
};

/// Chunks of 128 positions.
pub static LONG: Gradients = Gradients {
    info: Info {
        name: "v1_long",
        parent: Some("v0_chunks"),
        change: "chunks of 128 positions: half as many states and gradients of them go to memory and back",
        ..INFO
    },
    forward: &vlstm_fw_v3::LONG,
    carries: false,
    launches: &[DQ, DK, DV],
};

/// One launch for the three gradients.
pub static TOGETHER: Gradients = Gradients {
    info: Info {
        name: "v2_together",
        parent: Some("v1_long"),
        change: "one launch for dq, dk and dv, those of a chunk side by side: its tiles come from memory once",
        ..INFO
    },
    forward: &vlstm_fw_v3::LONG,
    carries: false,
    launches: &[ALL],
};

/// Parts and walk in one launch.
pub static CARRIED: Gradients = Gradients {
    info: Info {
        name: "v3_carried",
        parent: Some("v2_together"),
        change: "dC stays in registers from chunk to chunk: what a chunk adds to it never goes to memory",
        ..INFO
    },
    forward: &vlstm_fw_v3::LONG,
    carries: true,
    launches: &[ALL],
};

/// This stage.
pub static STAGE: Stage = Stage {
    name: "vlstm_fwbw_v3",
    teaches: "the backward pass in chunks: the forward pass's launches again, with the roles exchanged",
    versions: &[&CHUNKS, &LONG, &TOGETHER, &CARRIED],
    is_chunkwise: true,
    kernels: kernels::KERNELS,
    version_checks: checks::VERSION_CHECKS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

/// Bytes of the kernels' struct `Row`.
const ROW: usize = 8;

/// Elements of C that a warp of `walk_gradients` has, warps of its blocks and of those of `carry_gradients`, rows and columns
/// of dC that these have, and warps of the blocks of `chunk_forget`.
const CELLS_A_WARP: usize = 128;
const WALKING_WARPS: usize = 8;
const TILE: [usize; 2] = [64, 128];
const FORGET_WARPS: usize = 4;

impl Version for Gradients {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        Some(match self.info.name {
            "v3_carried" => Preference::new(50),
            "v2_together" => Preference::new(60),
            "v1_long" => Preference::new(70),
            "v0_chunks" => Preference::new(80).on_emulator(4),
            _ => return None,
        })
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        use kernels::{CARRY, FORGET, GRADIENTS, ROWS, WALK};
        vec![&ROWS, if self.carries { &CARRY } else { &WALK }, &GRADIENTS, &FORGET]
    }

    fn bench_shapes(&self, dtype: DType) -> Vec<Dims> {
        vlstm::wide_bench_shapes(&self.info, dtype)
    }

    fn test_shapes(&self) -> Vec<Dims> {
        let chunk = self.forward.length;
        let all = [
            [1, 1, 1, 16, 16],
            // One chunk; one and a bit, one less a bit.
            [1, 1, chunk, 64, 64],
            [1, 1, chunk + 1, 48, 16],
            [1, 1, chunk - 1, 112, 80],
            // Heads, narrow and wide, of unlike widths.
            [2, 3, 40, 64, 64],
            [3, 1, 5, 16, 256],
            [1, 2, chunk + 6, 256, 48],
            [2, 2, 9, 16, 208],
            // Several chunks.
            [1, 2, 3 * chunk + 8, 64, 144],
            [1, 1, 2 * chunk + 2, 128, 256],
            [1, 1, 9 * chunk + 20, 16, 16],
            [1, 1, 4 * chunk + 48, 80, 128],
        ];
        // The gradients are made by the same kernel: of the third version, one shape of each kind.
        let few = if self.launches == [ALL] && !self.carries { &all[8..10] } else { &all[..] };
        few.iter().map(|&shape| sizes(shape)).collect()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let (dims, dtype) = (&request.dims, request.dtype);
        let eps = vlstm::epsilon(&self.info, request.options())?;
        let exact = vlstm::normalizer_grad(&self.info, request.options()) == NormalizerGrad::Exact;
        let [b, nh, s, dhqk, dhhv] = qkv::sizes_of(dims);
        let heads = b * nh;
        let Grid { tiles: chunks, .. } = self.forward.chunks(dims)?;
        let all = heads * chunks;

        let mut plan = Plan::new(device);
        let ForwardBackwardSlots { scope, .. } = forward_backward_slots(&mut plan, request);
        let state = vlstm::no_state_slots(&mut plan);
        let saved = self.forward.add_forward(
            &mut plan,
            kernels::PROMISE,
            Forward { dims, dtype, eps, state },
        )?;
        let Saved { positions, chunk, state: [c, n_state], parts: [c_part, n_part] } = saved;

        let length = self.forward.length;
        let rows = plan.records("Row", ROW, all * length);
        let back = plan.records("Position", POSITION, all * length);
        let room = plan.scratch(F32, all);
        // TAKEN of the kernels: of f16 two numbers a chunk.
        let taken = plan.scratch(F32, if dtype == F16 { 2 * all } else { all });
        // What the forward pass has added to its states takes no more room: what each chunk adds to their gradients does.
        if !self.carries {
            [c_part, n_part].into_iter().for_each(|slot| plan.mark_renewed(slot));
        }
        let dc = plan.scratch(dtype, all * dhqk * dhhv);
        let [dn_part, dn] = [(); 2].map(|()| plan.scratch(F32, all * dhqk));
        let of_n = if exact { dhqk.div_ceil(CELLS_A_WARP) } else { 0 };
        let carrying = dhqk.div_ceil(TILE[0]) * dhhv.div_ceil(TILE[1]);
        let warps =
            if self.carries { carrying * WALKING_WARPS } else { dhqk * dhhv / CELLS_A_WARP + of_n };
        let products = plan.scratch(F32, all * warps);
        let q_dq = plan.scratch(F32, heads * s);
        let slot = |name: &str| plan.slot(name).expect("of the family");
        let [q, dh, n] = ["q", "dh", "n"].map(slot);
        let scope = scope
            .with(arguments![positions, chunk, rows, back, taken, room, normaliser: n])
            .with(arguments![C: c, n_state, dC_part: c_part, dC: dc, dn_part, dn, products, q_dq])
            .with(arguments![heads, chunks, warps, eps, exact]);

        self.add(&mut plan, &scope, (&kernels::ROWS, "chunk_rows"), dtype, all)?;
        if self.carries {
            let blocks = heads * carrying;
            self.add(&mut plan, &scope, (&kernels::CARRY, "carry_gradients"), dtype, blocks)?;
        } else {
            let of_parts = scope.clone().with(arguments![k: q, v: dh, positions: back]);
            let of_parts = of_parts.with(arguments![C_part: c_part, n_part]);
            self.forward.add_parts(&mut plan, kernels::PROMISE, &of_parts, dims, dtype)?;
            let of_walk = heads * warps.div_ceil(WALKING_WARPS);
            self.add(&mut plan, &scope, (&kernels::WALK, "walk_gradients"), dtype, of_walk)?;
        }
        for &only in self.launches {
            let blocks = if only == ALL { 3 * all } else { all };
            let scope = scope.clone().with(arguments![only]);
            self.add(&mut plan, &scope, (&kernels::GRADIENTS, "chunk_gradients"), dtype, blocks)?;
        }
        let of_forget = all.div_ceil(FORGET_WARPS);
        self.add(&mut plan, &scope, (&kernels::FORGET, "chunk_forget"), dtype, of_forget)?;
        Ok(plan)
    }
}

impl Gradients {
    /// Adds the launch of a kernel: that for this type, and for chunks of this length.
    fn add(
        &self,
        plan: &mut Plan,
        scope: &lab_harness::plan::Scope,
        (source, name): (&'static KernelSource, &str),
        dtype: DType,
        blocks: usize,
    ) -> Result<(), Error> {
        let fits = |i: &Instance| {
            i.argument("T").is_none_or(|t| t == dtype.cpp())
                && i.argument("L").is_none_or(|_| i.size("L") == self.forward.length)
        };
        let instance = source.instances(name).find(fits).expect("each type and each length");
        let kernel = plan.device().load(instance)?;
        let too_many = |_| Error::bad(name, format!("at most {} blocks", i32::MAX), blocks);
        let grid = i32::try_from(blocks).map_err(too_many)? as u32;
        plan.launch_in(scope, &kernel, kernel.grid([grid, 1, 1])?, arguments![])
    }
}
