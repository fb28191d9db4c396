//! `gdn_fw`: the gated delta rule's forward pass, from position to position and in chunks.
//!
//! The equations are those of [`lab_families::gdn`]. In a chunk of 64 positions all that waits for the position before is
//! one triangular inverse, which depends on keys and gates alone: a launch makes it of all chunks at once. The walk behind it
//! goes from chunk to chunk.

#![forbid(unsafe_code)]

mod checks;

use lab_device::{DType, Device, Instance, KernelSource};
use lab_families::gdn::{self, Slots, sizes};
use lab_harness::compare::unit;
use lab_harness::plan::Scope;
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Request, Setting, Stage, Version, arguments,
};

#[allow(missing_docs)]
pub mod kernels {
    //! The kernel files, embedded by the build script.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// The forward pass by one walk, over positions or over chunks.
#[derive(Debug)]
pub struct Delta {
    info: Info,
    /// The launch before the walk: what a chunk's keys and gates alone decide.
    before: Option<(&'static KernelSource, &'static str)>,
    walk: (&'static KernelSource, &'static str),
    /// Columns of V that a block has.
    columns: usize,
    /// The type of the inverse and the pairs that the launch before leaves, where it is not the run's.
    left: Option<DType>,
    /// Whether the state lies in device memory between chunks.
    state_in_memory: bool,
}

/// Positions of a chunk.
const CHUNK: usize = 64;

/// Bytes of the kernels' struct `Decays`.
const DECAYS: usize = 2 * 4 * CHUNK;

static DIMS: [Dim; 6] = gdn::dims([
    [1, 4, 65535],
    [2, 32, 65535],
    [1, 32, 65535],
    [150, 4096, 1 << 24],
    [64, 128, 256],
    [64, 128, 1024],
]);

/// Of the version whose state goes through memory, which has room for 128 keys.
static NARROW_DIMS: [Dim; 6] = gdn::dims([
    [1, 4, 65535],
    [2, 32, 65535],
    [1, 32, 65535],
    [150, 4096, 1 << 24],
    [64, 128, 128],
    [64, 128, 1024],
]);

/// Of what is f32 in runs of every type.
const fn in_f32(bound: f64) -> [(DType, f64); 3] {
    [(DType::F32, bound), (DType::F16, bound), (DType::BF16, bound)]
}

static EXACT_STATE: [Output; 1] =
    [Output { name: "CN", bounds: &in_f32(1e-6), elements: &in_f32(2.0 * unit::F32) }];

static EXACT_SETTINGS: &[Setting] = &[gdn::SCALE, gdn::last_state(&EXACT_STATE)];

const INFO: Info = Info {
    stage: "gdn_fw",
    name: "v0_steps",
    family: &gdn::FORWARD,
    parent: None,
    change: "from position to position, a column of the state in registers of eight lanes",
    dtypes: &[DType::F32, DType::F16, DType::BF16],
    dims: &DIMS,
    settings: EXACT_SETTINGS,
    inputs: gdn::FORWARD_INPUTS,
    // All is f32; of halves h is rounded once.
    outputs: &[Output {
        name: "h",
        bounds: &[(DType::F32, 1e-6), (DType::F16, 4e-4), (DType::BF16, 4e-3)],
        elements: &in_f32(2.0 * unit::F32),
    }],
};

/// From position to position.
pub static STEPS: Delta = Delta {
    info: INFO,
    before: None,
    walk: (&kernels::V0_STEPS, "gdn_fw_steps"),
    columns: 16,
    left: None,
    state_in_memory: false,
};

/// From chunk to chunk.
pub static CHUNKS: Delta = Delta {
    info: Info {
        name: "v1_chunks",
        parent: Some("v0_steps"),
        change: "chunks of 64 positions; their inverse by forward substitution, in a launch before",
        ..INFO
    },
    before: Some((&kernels::SUBSTITUTE, "gdn_fw_substitute")),
    walk: (&kernels::V1_CHUNKS, "gdn_fw_chunks"),
    columns: 32,
    left: Some(DType::F32),
    state_in_memory: true,
};

// What tensor cores take is rounded: the state and what is left of V, the inverse, V′, the pairs.
static ROUNDED_STATE: [Output; 1] = [Output {
    name: "CN",
    bounds: &[(DType::F16, 1e-3), (DType::BF16, 8e-3)],
    elements: &[(DType::F16, unit::F16), (DType::BF16, unit::BF16)],
}];

static ROUNDED_SETTINGS: &[Setting] = &[gdn::SCALE, gdn::last_state(&ROUNDED_STATE)];

/// On tensor cores.
pub static BLOCKS: Delta = Delta {
    info: Info {
        name: "v2_blocks",
        parent: Some("v1_chunks"),
        change: "products on tensor cores; the inverse by blocks of 16, with merges of TF32 in two parts",
        // ldmatrix transposes halves alone.
        dtypes: &[DType::F16, DType::BF16],
        dims: &NARROW_DIMS,
        settings: ROUNDED_SETTINGS,
        outputs: &[Output {
            name: "h",
            bounds: &[(DType::F16, 1e-3), (DType::BF16, 8e-3)],
            elements: &[(DType::F16, unit::F16), (DType::BF16, unit::BF16)],
        }],
        ..INFO
    },
    before: Some((&kernels::BLOCKS, "gdn_fw_blocks")),
    walk: (&kernels::V2_BLOCKS, "gdn_fw_tensor"),
    columns: 64,
    left: None,
    state_in_memory: true,
};

/// With a state on the chip.
pub static RESIDENT: Delta = Delta {
    info: Info {
        name: "v3_resident",
        parent: Some("v2_blocks"),
        change: "the state stays in registers from the first chunk to the last",
        dims: &DIMS,
        ..BLOCKS.info
    },
    walk: (&kernels::V3_RESIDENT, "gdn_fw_resident"),
    state_in_memory: false,
    ..BLOCKS
};

/// This stage.
pub static STAGE: Stage = Stage {
    name: "gdn_fw",
    teaches: "the gated delta rule: one triangular inverse a chunk, by blocks and never by powers",
    versions: &[&STEPS, &CHUNKS, &BLOCKS, &RESIDENT],
    kernels: kernels::KERNELS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

impl Version for Delta {
    fn info(&self) -> &Info {
        &self.info
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        self.before.iter().chain([&self.walk]).map(|of| of.0).collect()
    }

    fn test_shapes(&self) -> Vec<Dims> {
        [
            [1, 1, 1, 1, 16, 16],
            // A chunk; one and a bit, one less a bit.
            [1, 1, 1, 64, 64, 64],
            [1, 1, 1, 65, 48, 16],
            [1, 2, 1, 63, 32, 80],
            // Heads that share keys, narrow and wide, of unlike widths.
            [2, 4, 2, 40, 16, 32],
            [1, 2, 1, 70, 128, 48],
            [1, 1, 1, 9, 16, 144],
            // Several chunks; more keys than the narrow kernels have room for.
            [1, 2, 2, 200, 64, 16],
            [1, 1, 1, 130, 80, 128],
            [1, 1, 1, 67, 256, 32],
        ]
        .into_iter()
        .filter(|shape| shape[4] <= self.info.dims[4].max)
        .map(sizes)
        .collect()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let [b, nh, _, s, dhqk, dhhv] = gdn::sizes_of(&request.dims);
        let group = gdn::group_of(&request.dims)?;
        let scale = gdn::scale_of(&self.info, request.options(), dhqk);
        let mut plan = Plan::new(device);
        let Slots { q, k, v, g, beta, h, first: (c0, given), last: (c_n, wanted) } =
            Slots::new(&mut plan, request);
        let (heads, chunks, slices) = (b * nh, s.div_ceil(CHUNK), dhhv.div_ceil(self.columns));
        let between = match self.state_in_memory && !wanted {
            true => plan.scratch(DType::F32, heads * dhqk * dhhv),
            false => c_n,
        };
        let scope = Scope::new()
            .with(arguments![q, k, v, g, beta, h, C0: c0, CN: c_n, C: between, given, wanted])
            .with(arguments![S: s, dhqk, dhhv, group, chunks, slices, scale]);
        let scope = match self.before {
            Some(_) => self.add_before(&mut plan, request, scope, heads * chunks)?,
            None => scope,
        };
        let blocks = one_a_block("B NH slices of V", heads * slices)?;
        let kernel = device.load(self.instance(self.walk, request.dtype, dhqk))?;
        plan.launch_in(&scope, &kernel, kernel.grid([blocks, 1, 1])?, [])?;
        Ok(plan)
    }
}

impl Delta {
    /// Adds the launch before the walk, and to the scope what it leaves.
    fn add_before(
        &self,
        plan: &mut Plan,
        request: &Request<'_>,
        scope: Scope,
        chunks: usize,
    ) -> Result<Scope, Error> {
        let before = self.before.expect("a version with a launch before the walk");
        let [inverse, pairs] = [(); 2]
            .map(|()| plan.scratch(self.left.unwrap_or(request.dtype), chunks * CHUNK * CHUNK));
        let decays = plan.records("Decays", DECAYS, chunks);
        let scope = scope.with(arguments![inverse, pairs, decays]);
        let blocks = one_a_block("B NH ceil(S / 64)", chunks)?;
        let instance = self.instance(before, request.dtype, request.dim("DHQK"));
        let kernel = plan.device().load(instance)?;
        plan.launch_in(&scope, &kernel, kernel.grid([blocks, 1, 1])?, [])?;
        Ok(scope)
    }

    /// The first for this type that has room for these keys.
    fn instance(
        &self,
        (source, name): (&'static KernelSource, &str),
        dtype: DType,
        dhqk: usize,
    ) -> Instance {
        let fits = |i: &Instance| {
            i.has("T", dtype.cpp()) && i.argument("KEY").is_none_or(|_| dhqk <= i.size("KEY"))
        };
        source.instances(name).find(fits).expect("each type, and room for all keys there may be")
    }
}

/// As many blocks, where a grid can have them.
fn one_a_block(what: &str, blocks: usize) -> Result<u32, Error> {
    i32::try_from(blocks)
        .map(|blocks| blocks as u32)
        .map_err(|_| Error::bad(what, format!("at most {}, one a block", i32::MAX), blocks))
}
