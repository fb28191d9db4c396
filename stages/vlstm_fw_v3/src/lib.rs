//! `vlstm_fw_v3`: the vLSTM's forward pass in chunks, on tensor cores.
//!
//! The equations are those of `lab_reference::vlstm` with a state. A head is cut into chunks of L positions.
//! What gates alone decide comes first; then what each chunk adds to the state, all chunks at once; then the
//! states themselves, along the chunks; then the outputs, all chunks at once again.

#![deny(unsafe_code)]

use lab_device::{DType, Device, Instance, Kernel, KernelSource, LaunchPromise};
use lab_families::qkv::{self, Grid, one_a_block, sizes};
use lab_families::vlstm;
use lab_families::vlstm::StateSlots;
use lab_harness::compare::{in_f32_of_halves as in_f32, unit};
use lab_harness::plan::{Scope, Slot};
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Preference, Request, Setting, Stage, Version, arguments,
};

mod checks;

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// The chunkwise form with chunks of one length.
#[derive(Debug)]
pub struct Chunks {
    info: Info,
    /// Positions of a chunk.
    pub length: usize,
}

/// Positions and heads are counted by ints; a head's first element by more. So many columns of q at most: a block keeps
/// a chunk of them. What it makes of v and C goes past it.
const fn dims(most_keys: usize) -> [Dim; 5] {
    let sizes = [[1, 1, 65535], [2, 32, 65535], [150, 4096, 1 << 24]];
    let [b, nh, s] = sizes;
    vlstm::dims([b, nh, s, [64, 64, most_keys], [64, 64, MOST_VALUES]])
}

const MOST_VALUES: usize = 512;

/// Columns of q in shared memory, of the kernels for narrow heads and for wide ones.
const NARROW: usize = 256;
const BROAD: usize = 512;

static DIMS: [Dim; 5] = dims(BROAD);
static DIMS_OF_LONG: [Dim; 5] = dims(NARROW);

// C: α k is rounded once. n is a multiple of exp(mN), whose rounding to f32 it carries.
static LAST_STATE: &[Output] = &[
    Output {
        name: "CN",
        bounds: &[(DType::F16, 7e-4), (DType::BF16, 5e-3)],
        elements: &[(DType::F16, unit::F16), (DType::BF16, unit::BF16)],
    },
    Output { name: "nN", bounds: &in_f32(2e-6), elements: &in_f32(6.0 * unit::F32) },
    Output { name: "mN", bounds: &in_f32(1e-7), elements: &in_f32(2.0 * unit::F32) },
];

static SETTINGS: &[Setting] = &[vlstm::EPSILON, vlstm::last_state(LAST_STATE)];

static ROUNDING_OF_M: [(DType, f64); 2] = in_f32(2.0 * unit::F32);
static ROUNDING_OF_N: [(DType, f64); 2] = in_f32(6.0 * unit::F32);

/// h: the weights, α k, C and h itself are rounded once each. n is within so much.
/// An element of h: a quarter of a unit of roundoff of the halves; of n, in f32, two over a long row.
const fn outputs(n: &'static [(DType, f64)]) -> [Output; 3] {
    [
        Output {
            name: "h",
            bounds: &[(DType::F16, 1e-3), (DType::BF16, 8e-3)],
            elements: &[(DType::F16, 0.85 * unit::F16), (DType::BF16, 0.85 * unit::BF16)],
        },
        Output { name: "m", bounds: &IN_F32_M, elements: &ROUNDING_OF_M },
        Output { name: "n", bounds: n, elements: &ROUNDING_OF_N },
    ]
}

const IN_F32_M: [(DType, f64); 2] = in_f32(1e-7);
// A tensor core cuts off what its sum has no bits for: the error grows with the keys, 512 in v0_chunks, 256 in v1_long.
static OUTPUTS: [Output; 3] = outputs(&in_f32(1e-6));
static OUTPUTS_OF_LONG: [Output; 3] = outputs(&in_f32(5e-7));

const INFO: Info = Info {
    stage: "vlstm_fw_v3",
    name: "v0_chunks",
    family: &vlstm::FORWARD,
    parent: Some("online"),
    change: "a state between chunks in place of all pairs; the products on tensor cores",
    // Of 4-byte elements ldmatrix transposes none, and TF32 would keep no more than f16 does.
    dtypes: &[DType::F16, DType::BF16],
    dims: &DIMS,
    settings: SETTINGS,
    inputs: vlstm::FORWARD_INPUTS_WITH_STATE,
    outputs: &OUTPUTS,
};

/// Chunks of 64 positions.
pub static CHUNKS: Chunks = Chunks { info: INFO, length: 64 };

/// Chunks of 128 positions.
pub static LONG: Chunks = Chunks {
    info: Info {
        name: "v1_long",
        parent: Some("v0_chunks"),
        change: "chunks of 128 positions: half as many states go to memory and back",
        dims: &DIMS_OF_LONG,
        outputs: &OUTPUTS_OF_LONG,
        ..INFO
    },
    length: 128,
};

/// This stage.
pub static STAGE: Stage = Stage {
    name: "vlstm_fw_v3",
    teaches: "a recurrence in chunks: all chunks at once, then a walk that carries the state along",
    versions: &[&CHUNKS, &LONG],
    is_chunkwise: true,
    kernels: kernels::KERNELS,
    version_checks: checks::VERSION_CHECKS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

/// Bytes of the kernels' structs `Added` and `Chunk`.
const ADDED: usize = 24;
const CHUNK: usize = 24;

/// Columns of a panel.
const COLUMNS: usize = 64;
/// Columns of C's tiles in `chunk_parts`, along k and along v, and threads of `walk_chunks`.
const TILE: [usize; 2] = [64, 128];
const WALKERS: usize = 256;

impl Version for Chunks {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        Some(match self.info.name {
            "v1_long" => Preference::new(50),
            "v0_chunks" => Preference::new(60).on_emulator(3),
            _ => return None,
        })
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        vec![&kernels::GATES, &kernels::PARTS, &kernels::WALK, &kernels::OUTPUTS]
    }

    fn bench_shapes(&self, dtype: DType) -> Vec<Dims> {
        vlstm::wide_bench_shapes(&self.info, dtype)
    }

    fn test_shapes(&self) -> Vec<Dims> {
        let chunk = self.length;
        let all = [
            [1, 1, 1, 16, 16],
            // One chunk; one and a bit, one less a bit.
            [1, 1, chunk, 64, 64],
            [1, 1, chunk + 1, 48, 16],
            [1, 1, chunk - 1, 112, 80],
            // Heads, narrow and wide, of unlike widths.
            [2, 3, 40, 64, 64],
            [3, 1, 5, 16, 64],
            [1, 2, chunk + 6, 256, 48],
            [2, 2, 9, 16, 208],
            // Several chunks, and more than a warp takes at a time.
            [1, 2, 3 * chunk + 8, 64, 144],
            [1, 1, 2 * chunk + 2, 128, 256],
            [1, 1, 34 * chunk + 20, 16, 16],
            [1, 1, chunk + 3, 32, 512],
            // Columns that the narrow kernels have no room for.
            [1, 2, chunk + 1, 272, 16],
            [1, 1, 2 * chunk + 2, 512, 80],
        ];
        let most = self.info.dims[3].max;
        all.into_iter().filter(|shape| shape[3] <= most).map(sizes).collect()
    }

    /// Beside inputs and outputs it has C ahead of each chunk, in the run's type, and what each chunk adds
    /// to it, in f32.
    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let (dims, dtype) = (&request.dims, request.dtype);
        let eps = vlstm::epsilon(&self.info, request.options())?;
        let [b, nh, s, _, dhhv] = qkv::sizes_of(dims);
        let mut plan = Plan::new(device);
        request.inputs(&mut plan, ["q", "k", "v", "i", "f"]);
        plan.output("h", dtype, &[b, nh, s, dhhv]);
        for name in ["m", "n"] {
            plan.output(name, DType::F32, &[b, nh, s]);
        }
        let state = vlstm::state_slots(&mut plan, request);
        self.add_forward(&mut plan, kernels::PROMISE, Forward { dims, dtype, eps, state })?;
        Ok(plan)
    }
}

/// What the launches of a forward pass are made of, beside the slots `q`, `k`, `v`, `i`, `f`, `h`, `m` and `n` of the plan.
#[derive(Debug)]
pub struct Forward<'a> {
    /// Sizes.
    pub dims: &'a Dims,
    /// Of q, k, v and h.
    pub dtype: DType,
    /// ε.
    pub eps: f64,
    /// The states that go in and come out.
    pub state: StateSlots,
}

/// What a forward pass leaves in memory, for a backward pass. The structs are those of `lab/vlstm/chunkwise.cuh`.
#[derive(Clone, Copy, Debug)]
pub struct Saved {
    /// `Position`, of each position of each chunk.
    pub positions: Slot,
    /// `Chunk`, of each.
    pub chunk: Slot,
    /// C ahead of each chunk, in the run's type, and n, in f32.
    pub state: [Slot; 2],
    /// What each chunk has added to them, in f32: of no use any more.
    pub parts: [Slot; 2],
}

/// Bytes of a `Position`.
pub const POSITION: usize = 24;

impl Chunks {
    /// How many chunks a head has, and all heads.
    ///
    /// # Errors
    /// More than a grid can have blocks.
    pub fn chunks(&self, dims: &Dims) -> Result<Grid, Error> {
        Grid::of(dims, self.length)
    }

    /// The kernel for this type and length.
    fn kernel(
        &self,
        plan: &Plan,
        source: &'static KernelSource,
        name: &str,
        dtype: DType,
    ) -> Result<Kernel, Error> {
        self.kernel_of(plan, source, name, dtype, |_| true)
    }

    /// Of several for this type and length, that which is wanted.
    fn kernel_of(
        &self,
        plan: &Plan,
        source: &'static KernelSource,
        name: &str,
        dtype: DType,
        wanted: impl Fn(&Instance) -> bool,
    ) -> Result<Kernel, Error> {
        let fits = |i: &Instance| {
            i.argument("T").is_none_or(|t| t == dtype.cpp())
                && i.argument("L").is_none_or(|_| i.size("L") == self.length)
                && wanted(i)
        };
        let instance = source.instances(name).find(fits).expect("each type and each length");
        Ok(plan.device().load(instance)?)
    }

    /// Adds the launches of a forward pass to a plan. Whoever calls for them promises that the plan's slots have the elements that the sizes say.
    ///
    /// # Errors
    /// More blocks than a launch can have, or what the device says of the kernels.
    pub fn add_forward(
        &self,
        plan: &mut Plan,
        _promise: LaunchPromise,
        forward: Forward<'_>,
    ) -> Result<Saved, Error> {
        let Forward { dims, dtype, eps, state } = forward;
        let StateSlots { given, wanted, first: [c0, n0, m0], last: [c_n, n_n, m_n] } = state;
        let [b, nh, s, dhqk, dhhv] = qkv::sizes_of(dims);
        let heads = b * nh;
        let Grid { tiles: chunks, blocks } = self.chunks(dims)?;
        let blocks_a_head = ((dhqk * dhhv + dhqk) / 4).div_ceil(WALKERS);
        let of_walk = one_a_block("B NH blocks along the chunks", heads * blocks_a_head)?;

        let slot = |plan: &Plan, name: &str| plan.slot(name).expect("of the family");
        let [q, k, v, i_gate, f_gate] = ["q", "k", "v", "i", "f"].map(|name| slot(plan, name));
        let [h, m, n_out] = ["h", "m", "n"].map(|name| slot(plan, name));
        let all = heads * chunks;
        let positions = plan.records("Position", POSITION, all * self.length);
        let added = plan.records("Added", ADDED, all);
        let chunk = plan.records("Chunk", CHUNK, all);
        let c_part = plan.scratch(DType::F32, all * dhqk * dhhv);
        let c = plan.scratch(dtype, all * dhqk * dhhv);
        let [n_part, n_state] = [(); 2].map(|()| plan.scratch(DType::F32, all * dhqk));
        let scale = 1.0 / (dhqk as f64).sqrt();
        let scope = Scope::new()
            .with(arguments![q, k, v, i_gate, f_gate, h, m, n_out, positions, added, chunk])
            .with(arguments![C0: c0, n0, m0, CN: c_n, nN: n_n, mN: m_n, given, wanted])
            .with(arguments![C_part: c_part, n_part, C: c, n_state, n: n_state])
            .with(arguments![chunks, S: s, dhqk, dhhv, scale, eps])
            .with(arguments![cells: dhqk * dhhv, blocks_a_head]);
        let launch = |plan: &mut Plan, source, name, blocks| {
            let kernel = self.kernel(plan, source, name, dtype)?;
            plan.launch_in(&scope, &kernel, kernel.grid([blocks, 1, 1])?, arguments![])
        };
        launch(plan, &kernels::GATES, "chunk_gates", one_a_block("B NH", heads)?)?;
        self.add_parts(plan, kernels::PROMISE, &scope, dims, dtype)?;
        launch(plan, &kernels::WALK, "walk_chunks", of_walk)?;
        let panels = if dhqk > NARROW { BROAD } else { NARROW } / COLUMNS;
        let outputs = self.kernel_of(plan, &kernels::OUTPUTS, "chunk_outputs", dtype, |i| {
            i.size("PANELS") == panels
        })?;
        plan.launch_in(&scope, &outputs, outputs.grid([blocks, 1, 1])?, arguments![])?;
        Ok(Saved { positions, chunk, state: [c, n_state], parts: [c_part, n_part] })
    }

    /// Adds the launch that makes what each chunk adds, Σ α k vᵀ and Σ α k, of what the scope has under the names of
    /// `chunk_parts`. Whoever calls for it promises that those have the elements that the sizes say.
    ///
    /// # Errors
    /// As [`Chunks::add_forward`].
    pub fn add_parts(
        &self,
        plan: &mut Plan,
        _promise: LaunchPromise,
        scope: &Scope,
        dims: &Dims,
        dtype: DType,
    ) -> Result<(), Error> {
        let [.., dhqk, dhhv] = qkv::sizes_of(dims);
        let tiles = dhqk.div_ceil(TILE[0]) * dhhv.div_ceil(TILE[1]);
        let all = self.chunks(dims)?.blocks as usize * tiles;
        let blocks = one_a_block("B NH ceil(S / L) tiles of C", all)?;
        let kernel = self.kernel(plan, &kernels::PARTS, "chunk_parts", dtype)?;
        plan.launch_in(scope, &kernel, kernel.grid([blocks, 1, 1])?, arguments![])
    }
}
