//! `gdn_fw`: the gated delta rule's forward pass, from position to position and in chunks.
//!
//! The equations are those of [`lab_families::gdn`]. In a chunk of 64 positions all that waits for the position before is
//! one triangular inverse, which depends on keys and gates alone: a launch makes it of all chunks at once. The walk behind it
//! goes from chunk to chunk.

#![deny(unsafe_code)]

mod checks;

use lab_device::{DType, Device, Instance, KernelSource, Swizzle, TensorMap};
use lab_families::gdn::{self, Slots};
use lab_families::packed::{PackedSlot, room_for_parts};
use lab_families::qkv::one_a_block;
use lab_harness::compare::{in_f32, unit};
use lab_harness::plan::Scope;
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Preference, Request, Setting, Stage, Version, arguments,
};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
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
    between: Between,
}

/// Where the state is between chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Between {
    /// On the chip.
    Chip,
    /// In memory of its own.
    Scratch,
    /// In that of the last state, where one is wanted.
    Output,
}

/// The forward pass in one launch, whose blocks invert the chunks that they are about to walk.
#[derive(Debug)]
pub struct FusedDelta {
    info: Info,
}

/// Positions of a chunk.
const CHUNK: usize = 64;

/// Columns of a panel, as a tensor copy brings it.
const PANEL: usize = 64;

/// Bytes of the kernels' struct `Decays`.
const DECAYS: usize = 3 * 4 * CHUNK;

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

static EXACT_STATE: [Output; 1] =
    [Output { name: "CN", bounds: &in_f32(2e-6), elements: &in_f32(1.2 * unit::F32) }];

static EXACT_SETTINGS: &[Setting] = &[gdn::SCALE, gdn::last_state(&EXACT_STATE)];

// Of who multiplies by each position's exp(g): a GPU's expf may be off by two units in the last place, 2⁻²³ of a gate that is nearly
// open, and by the same where gates are equal. What n positions keep is then off by n 2⁻²³, and CN, whose parts are of all ages,
// by half as much. For 130 gates that is 8e-6; with f64 in place of f32 for all else it is 7.8e-6, where keys are alike. Who adds up
// gates in f64 first takes one exponential for 64 of them.
static STEPS_STATE: [Output; 1] = [Output { bounds: &in_f32(8e-6), ..EXACT_STATE[0] }];

static STEPS_SETTINGS: &[Setting] = &[gdn::SCALE, gdn::last_state(&STEPS_STATE)];

const INFO: Info = Info {
    stage: "gdn_fw",
    name: "v0_steps",
    family: &gdn::FORWARD,
    parent: None,
    change: "from position to position, a column of the state in registers of eight lanes",
    dtypes: &[DType::F32, DType::F16, DType::BF16],
    dims: &DIMS,
    settings: STEPS_SETTINGS,
    inputs: gdn::FORWARD_INPUTS,
    // All is f32; of halves h is rounded once. An element of h: most where nothing is kept, or keys are alike; what halves leave
    // beside their own rounding is no more.
    outputs: &[Output {
        name: "h",
        bounds: &[(DType::F32, 2e-6), (DType::F16, 4e-4), (DType::BF16, 4e-3)],
        elements: &in_f32(1.5 * unit::F32),
    }],
};

/// From position to position.
pub static STEPS: Delta = Delta {
    info: INFO,
    before: None,
    walk: (&kernels::V0_STEPS, "gdn_fw_steps"),
    columns: 16,
    left: None,
    between: Between::Chip,
};

/// From chunk to chunk.
pub static CHUNKS: Delta = Delta {
    info: Info {
        name: "v1_chunks",
        parent: Some("v0_steps"),
        change: "chunks of 64 positions; their inverse by forward substitution, in a launch before",
        settings: EXACT_SETTINGS,
        ..INFO
    },
    before: Some((&kernels::SUBSTITUTE, "gdn_fw_substitute")),
    walk: (&kernels::V1_CHUNKS, "gdn_fw_chunks"),
    columns: 32,
    left: Some(DType::F32),
    between: Between::Scratch,
};

// What tensor cores take is rounded once each: the state as it is read, what is left of V, the inverse, U and the pairs. So an
// element is off by less than a unit of roundoff, of the sum of its terms. The bound of the whole is that of keys that are
// alike: each position overwrites most of what it reads, h is small beside those terms, and four times as far off as with
// random keys.
static ROUNDED_STATE: [Output; 1] = [Output {
    name: "CN",
    bounds: &[(DType::F16, 1.5e-3), (DType::BF16, 8e-3)],
    elements: &[(DType::F16, 0.7 * unit::F16), (DType::BF16, unit::BF16)],
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
            bounds: &[(DType::F16, 3e-3), (DType::BF16, 3e-2)],
            elements: &[(DType::F16, 0.7 * unit::F16), (DType::BF16, unit::BF16)],
        }],
        ..INFO
    },
    before: Some((&kernels::BLOCKS, "gdn_fw_blocks")),
    walk: (&kernels::V2_BLOCKS, "gdn_fw_tensor"),
    columns: 64,
    left: None,
    between: Between::Output,
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
    between: Between::Chip,
    ..BLOCKS
};

static PACKED_DIMS: [Dim; 6] = gdn::packed_dims([
    [4, 8, 65535],
    [2, 32, 65535],
    [1, 32, 65535],
    [300, 16384, 1 << 24],
    [64, 128, 128],
    [64, 128, 1024],
]);

/// In one launch.
pub static FUSED: FusedDelta = FusedDelta {
    info: Info {
        name: "v4_fused",
        parent: Some("v3_resident"),
        change: "one launch: a warpgroup makes the inverse of the next chunk while others walk; wgmma and TMA",
        dims: &NARROW_DIMS,
        ..RESIDENT.info
    },
};

/// Sequences of unlike lengths.
pub static PACKED: FusedDelta = FusedDelta {
    info: Info {
        name: "v5_packed",
        family: &gdn::PACKED_FORWARD,
        parent: None,
        change: "as v4_fused, of sequences one behind the other: a tile ends where its sequence ends",
        dims: &PACKED_DIMS,
        inputs: gdn::PACKED_INPUTS,
        ..FUSED.info
    },
};

static PACKED_WIDE_DIMS: [Dim; 6] = gdn::packed_dims([
    [4, 8, 65535],
    [2, 16, 65535],
    [1, 16, 65535],
    [150, 16384, 1 << 24],
    [64, 256, 256],
    [64, 256, 1024],
]);

/// The same of more keys, and on older GPUs.
pub static PACKED_RESIDENT: Delta = Delta {
    info: Info {
        name: "v6_packed_resident",
        family: &gdn::PACKED_FORWARD,
        parent: None,
        change: "as v3_resident, of sequences one behind the other: each begins its own chunk",
        dims: &PACKED_WIDE_DIMS,
        inputs: gdn::PACKED_INPUTS,
        ..RESIDENT.info
    },
    ..RESIDENT
};

/// As [`RESIDENT`], for a backward pass: the walk leaves what that takes.
static SAVING: Delta = Delta { walk: (&kernels::SAVING, "gdn_fw_saving"), ..RESIDENT };

/// This stage.
pub static STAGE: Stage = Stage {
    name: "gdn_fw",
    teaches: "the gated delta rule: one triangular inverse a chunk, by blocks and never by powers",
    versions: &[&STEPS, &CHUNKS, &BLOCKS, &RESIDENT, &PACKED, &PACKED_RESIDENT, &FUSED],
    kernels: kernels::KERNELS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

impl Version for Delta {
    fn info(&self) -> &Info {
        &self.info
    }

    /// On GPUs the order of the ladder, until they are timed.
    fn preference(&self) -> Option<Preference> {
        Some(match self.info.name {
            "v3_resident" => Preference::new(10),
            "v6_packed_resident" => Preference::new(60),
            "v2_blocks" => Preference::new(20),
            "v1_chunks" => Preference::new(30).on_emulator(1),
            "v0_steps" => Preference::new(40),
            _ => return None,
        })
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        self.before.iter().chain([&self.walk]).map(|of| of.0).collect()
    }

    fn test_shapes(&self) -> Vec<Dims> {
        let packed = [[1, 1, 1, 1, 16, 16], [3, 4, 2, 130, 64, 80], [2, 2, 1, 200, 256, 48]];
        gdn::fitting_shapes(&self.info, &TEST_SHAPES, &packed)
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let mut plan = Plan::new(device);
        gdn::group_of(&request.dims)?;
        let scale = gdn::scale_of(&self.info, request.options(), request.dim("DHQK"));
        let slots = Slots::new(&mut plan, request);
        let (dims, dtype) = (&request.dims, request.dtype);
        self.add(&mut plan, Forward { slots, dims, dtype, scale }, false)?;
        Ok(plan)
    }
}

/// A forward pass whose tensors a plan has already: of a backward pass, too.
#[derive(Clone, Copy, Debug)]
pub struct Forward<'a> {
    /// Its tensors.
    pub slots: Slots,
    /// Sizes.
    pub dims: &'a Dims,
    /// Of q, k, v and h.
    pub dtype: DType,
    /// s.
    pub scale: f64,
}

/// Adds the launches of [`CHUNKS`] to a plan, which leave what a backward pass takes. The scope that comes back has the names of
/// the forward pass, and `inverse` and `pairs` \[heads, chunks, 64, 64\], `decays` (records `Decays`), `C` before each chunk and
/// behind the last, \[heads, chunks + 1, DHQK, DHHV\], and `saved_values`, U \[heads, S, DHHV\]; all f32.
///
/// # Errors
/// NH is no multiple of NKV; more blocks than a launch can have, or what the device says of the kernels.
///
/// # Panics
/// Where DHQK or DHHV is no multiple of [`gdn::STEP`].
pub fn add_saving_forward(plan: &mut Plan, forward: Forward<'_>) -> Result<Scope, Error> {
    check_steps(forward.dims);
    CHUNKS.add(plan, forward, true)
}

/// The same on tensor cores, for runs of halves: the launches of [`RESIDENT`], whose `inverse` and `pairs` are of the run's type, as
/// are `C` before each chunk, transposed, \[heads, chunks, DHHV, DHQK\], and `saved_values`, transposed in each chunk,
/// \[heads, chunks, DHHV, 64\].
///
/// # Errors
/// As [`add_saving_forward`].
///
/// # Panics
/// As [`add_saving_forward`]; where the type is none of [`RESIDENT`]'s, or DHQK is above 256.
pub fn add_tensor_forward(plan: &mut Plan, forward: Forward<'_>) -> Result<Scope, Error> {
    check_steps(forward.dims);
    SAVING.add(plan, forward, true)
}

/// The kernels that save move 16 columns at a time.
fn check_steps(dims: &Dims) {
    for size in ["DHQK", "DHHV"] {
        assert!(dims.get(size).is_multiple_of(gdn::STEP), "{size}: expected a multiple of 16");
    }
}

impl Delta {
    /// Adds the launches of a forward pass. The scope that comes back has their arguments.
    fn add(&self, plan: &mut Plan, forward: Forward<'_>, saves: bool) -> Result<Scope, Error> {
        let Forward { slots, dims, dtype, scale } = forward;
        let Slots { q, k, v, g, beta, h, first: (c0, given), last: (c_n, wanted), packed } = slots;
        let PackedSlot { sequences, cu_seqlens } = packed;
        let [b, nh, nkv, s, dhqk, dhhv] = gdn::sizes_of(dims);
        let group = gdn::group_of(dims)?;
        let (heads, chunks, slices) = (b * nh, room_for_chunks(dims), dhhv.div_ceil(self.columns));
        let left = self.left.unwrap_or(dtype);
        let of_state = heads * dhqk * dhhv;
        let state = match self.between {
            Between::Scratch if saves => plan.scratch(left, of_state * (chunks + 1)),
            Between::Chip if saves => plan.scratch(left, of_state * chunks),
            Between::Scratch => plan.scratch(DType::F32, of_state),
            Between::Output if !wanted => plan.scratch(DType::F32, of_state),
            Between::Output | Between::Chip => c_n,
        };
        // Of tensor cores whole chunks.
        let positions = if self.between == Between::Chip { chunks * CHUNK } else { s };
        let saved_values = plan.scratch(left, if saves { heads * positions * dhhv } else { 1 });
        let mut scope = Scope::new()
            .with(arguments![q, k, v, g, beta, h, C0: c0, CN: c_n, C: state, given, wanted])
            .with(arguments![cu_seqlens, packed: sequences.is_some(), heads, key_heads: b * nkv])
            .with(arguments![sequences: sequences.unwrap_or(1)])
            .with(arguments![saved_values, saves, S: s, dhqk, dhhv, group, chunks, slices, scale]);
        if let Some(before) = self.before {
            let pairs_of_chunks = heads * chunks * CHUNK * CHUNK;
            let [inverse, pairs] = [(); 2].map(|()| plan.scratch(left, pairs_of_chunks));
            let decays = plan.records("Decays", DECAYS, heads * chunks);
            scope = scope.with(arguments![inverse, pairs, decays]);
            let blocks = one_a_block("B NH ceil(S / 64)", heads * chunks)?;
            let kernel = plan.device().load(self.instance(before, dtype, dhqk))?;
            plan.launch_in(&scope, &kernel, kernel.grid([blocks, 1, 1])?, arguments![])?;
        }
        let blocks = one_a_block("B NH slices of V", heads * sequences.unwrap_or(1) * slices)?;
        let kernel = plan.device().load(self.instance(self.walk, dtype, dhqk))?;
        plan.launch_in(&scope, &kernel, kernel.grid([blocks, 1, 1])?, arguments![])?;
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

/// Chunks that a head has room for.
pub fn room_for_chunks(dims: &Dims) -> usize {
    let [_, _, _, s, ..] = gdn::sizes_of(dims);
    room_for_parts(s, CHUNK, gdn::packed_sequences(dims))
}

impl Version for FusedDelta {
    fn info(&self) -> &Info {
        &self.info
    }

    /// Behind the others on the emulator, which runs all of its threads.
    fn preference(&self) -> Option<Preference> {
        Some(Preference::new(5).on_emulator(50))
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        vec![&kernels::V4_FUSED]
    }

    fn test_shapes(&self) -> Vec<Dims> {
        // Chunks more than there are places, of one warpgroup that walks and of two, narrow and wide.
        let long = [[1, 2, 1, 390, 128, 128], [1, 1, 1, 420, 64, 64]];
        let mixed = [[1, 1, 1, 390, 64, 128], [1, 1, 1, 330, 128, 64]];
        let alike = [&TEST_SHAPES[..], &long, &mixed].concat();
        gdn::fitting_shapes(&self.info, &alike, &gdn::PACKED_TEST_SHAPES)
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let mut plan = Plan::new(device);
        let group = gdn::group_of(&request.dims)?;
        let scale = gdn::scale_of(&self.info, request.options(), request.dim("DHQK"));
        let Slots { q, k, v, g, beta, h, first: (c0, given), last: (c_n, wanted), packed } =
            Slots::new(&mut plan, request);
        let PackedSlot { sequences, cu_seqlens } = packed;
        let [b, nh, nkv, s, dhqk, dhhv] = gdn::sizes_of(&request.dims);
        let dtype = request.dtype;
        let fits = |i: &Instance| {
            i.has("T", dtype.cpp())
                && i.argument("PACKED").is_some() == sequences.is_some()
                && dhqk <= i.size("KEY")
                && (i.size("GROUPS") > 1 || dhhv <= PANEL)
        };
        let mut instances = kernels::V4_FUSED.instances("gdn_fw_fused");
        let instance = instances.find(fits).expect("each type, and room for all keys there may be");
        let slices = dhhv.div_ceil(PANEL * instance.size("GROUPS"));
        let walks = b * nh * sequences.unwrap_or(1);
        let blocks = one_a_block("B NH slices of V", walks * slices)?;
        let panels = |columns: usize, heads: usize| -> Result<TensorMap, Error> {
            let map = match sequences {
                None => TensorMap::new(dtype, &[columns, s, heads], &[PANEL, CHUNK, 1])?,
                Some(_) => TensorMap::ending_anywhere(dtype, [columns, s, heads], [PANEL, CHUNK])?,
            };
            Ok(map.swizzle(Swizzle::Bytes128))
        };
        let [of_keys, of_values] = [panels(dhqk, b * nkv)?, panels(dhhv, b * nh)?];
        let scope = Scope::new()
            .with(arguments![q: q.loaded_by(of_keys), k: k.loaded_by(of_keys)])
            .with(arguments![v: v.loaded_by(of_values), h: h.stored_by(of_values)])
            .with(arguments![g, beta, C0: c0, CN: c_n, given, wanted, cu_seqlens, heads: b * nh])
            .with(arguments![chunks: s.div_ceil(CHUNK), S: s, dhqk, dhhv, group, slices, scale]);
        let kernel = plan.device().load(instance)?;
        plan.launch_in(&scope, &kernel, kernel.grid([blocks, 1, 1])?, arguments![])?;
        Ok(plan)
    }
}

/// Problems of sequences of one length on which every version is tested.
const TEST_SHAPES: [[usize; 6]; 10] = [
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
];
