//! `vlstm_fw_v4`: the vLSTM's forward pass in one walk over chunks, with the state on the chip.
//!
//! The equations are those of `lab_reference::vlstm`, by chunks of 64 positions. A block walks a head, for 64 or 128
//! columns of V: their part of the state stays in its registers, as the accumulators of wgmma.

#![deny(unsafe_code)]

mod checks;
mod linear;

use lab_device::{
    DType, Device, Instance, Kernel, KernelSource, Launch, LaunchPromise, Swizzle, TensorMap,
};
use lab_families::vlstm;
use lab_families::vlstm::{PackedSlot, StateSlots};
use lab_harness::compare::{in_f32_of_halves as in_f32, unit};
use lab_harness::plan::{Scope, Slot};
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Preference, Request, Setting, Stage, Version, arguments,
};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

pub use self::linear::{
    DECAY, Linear, LinearForward, PACKED_DECAY, PACKED_SIGMOID, SIGMOID, has_weights,
    linear_bench_shapes, linear_test_shapes,
};

/// A walk over chunks.
#[derive(Debug)]
pub struct Walk {
    info: Info,
    source: &'static KernelSource,
    kernel: &'static str,
    segments: bool,
    gates_first: bool,
}

/// Positions of a chunk, and columns of a panel of a matrix.
const SIDE: usize = 64;

/// Bytes of the kernels' struct `Before`.
const BEFORE: usize = 16;

/// Bytes of the kernels' struct `GateRecord`: what the gates say of a chunk.
const GATE_RECORD: usize = 1808;

/// More keys than a version has leave no registers for the state; take `vlstm_fw_v3`.
const fn sizes_up_to(most_keys: usize) -> [[usize; 3]; 5] {
    let sizes = [[1, 4, 65535], [2, 16, 65535], [150, 2048, 1 << 24]];
    [sizes[0], sizes[1], sizes[2], [64, 128, most_keys], [64, 256, 1024]]
}

static DIMS: [Dim; 5] = vlstm::dims(sizes_up_to(128));

/// With one more role in fewer registers.
static WIDE_DIMS: [Dim; 5] = vlstm::dims(sizes_up_to(256));

static PACKED_DIMS: [Dim; 5] = {
    let [_, nh, _, dhqk, dhhv] = sizes_up_to(128);
    vlstm::packed_dims([[4, 8, 65535], nh, [300, 16384, 1 << 24], dhqk, dhhv])
};

// C: α v is rounded once, α before it; n has α to twice the bits.
static LAST_STATE: &[Output] = &[
    Output {
        name: "CN",
        bounds: &[(DType::F16, 1.2e-3), (DType::BF16, 9e-3)],
        elements: &[(DType::F16, 2.5 * unit::F16), (DType::BF16, 3.0 * unit::BF16)],
    },
    Output {
        name: "nN",
        bounds: &[(DType::F16, 2e-6), (DType::BF16, 1e-5)],
        elements: &[(DType::F16, 9.0 * unit::F32), (DType::BF16, 130.0 * unit::F32)],
    },
    Output { name: "mN", bounds: &in_f32(1.4e-7), elements: &in_f32(2.0 * unit::F32) },
];

static SETTINGS: &[Setting] = &[vlstm::EPSILON, vlstm::last_state(LAST_STATE)];

/// Of few heads, into how many segments each is cut.
const SEGMENTS: Setting = Setting::choice(
    "segments",
    "parts of a sequence that are walked at once; auto: as many as fill the GPU",
    &["auto", "1", "2", "3", "4", "6", "8", "12", "16", "32"],
);

static SEGMENT_SETTINGS: &[Setting] = &[vlstm::EPSILON, vlstm::last_state(LAST_STATE), SEGMENTS];

const INFO: Info = Info {
    stage: "vlstm_fw_v4",
    name: "v0_steps",
    family: &vlstm::FORWARD,
    parent: Some("v1_long"),
    change: "the state stays in registers, as accumulators of wgmma; one block walks a head",
    // B of a product is transposed where it lies, which wgmma does for halves alone.
    dtypes: &[DType::F16, DType::BF16],
    dims: &DIMS,
    settings: SETTINGS,
    inputs: vlstm::FORWARD_INPUTS_WITH_STATE,
    // h: the weights, α, α v, C and h itself are rounded once each.
    // An element of h: 0.4 units of roundoff of the halves. n has α to twice the bits, which in bf16 is 50 units of f32; with input
    // gates of a million a GPU's exponentials leave 5 of them in f16.
    outputs: &[
        Output {
            name: "h",
            bounds: &[(DType::F16, 1e-3), (DType::BF16, 8e-3)],
            elements: &[(DType::F16, unit::F16), (DType::BF16, unit::BF16)],
        },
        Output { name: "m", bounds: &in_f32(1.4e-7), elements: &in_f32(2.0 * unit::F32) },
        Output {
            name: "n",
            bounds: &[(DType::F16, 1e-6), (DType::BF16, 5e-6)],
            elements: &[(DType::F16, 7.0 * unit::F32), (DType::BF16, 34.0 * unit::F32)],
        },
    ],
};

/// One step after the other.
pub static STEPS: Walk = Walk {
    info: INFO,
    source: &kernels::V0_STEPS,
    kernel: "vlstm_fw_steps",
    segments: false,
    gates_first: false,
};

/// Each at its own pace.
pub static ROLES: Walk = Walk {
    info: Info {
        name: "v1_roles",
        parent: Some("v0_steps"),
        change: "rings between the roles: tiles, gates and scores are made ahead of the state",
        ..INFO
    },
    source: &kernels::V1_ROLES,
    kernel: "vlstm_fw_roles",
    segments: false,
    gates_first: false,
};

/// Few heads.
pub static SEGMENTED: Walk = Walk {
    info: Info {
        name: "v2_segments",
        parent: Some("v1_roles"),
        change: "few heads: several blocks walk one, each from the state that it joins of parts",
        settings: SEGMENT_SETTINGS,
        ..INFO
    },
    source: &kernels::V2_SEGMENTS,
    kernel: "vlstm_fw_segments",
    segments: true,
    gates_first: false,
};

/// Sequences of unlike lengths.
pub static PACKED: Walk = Walk {
    info: Info {
        name: "v3_packed",
        family: &vlstm::PACKED_FORWARD,
        parent: None,
        change: "as v1_roles, of sequences one behind the other: a tile ends where its sequence ends",
        dims: &PACKED_DIMS,
        inputs: vlstm::PACKED_INPUTS,
        ..INFO
    },
    source: &kernels::V1_ROLES,
    kernel: "vlstm_fw_roles",
    segments: false,
    gates_first: false,
};

/// More keys.
pub static WIDE: Walk = Walk {
    info: Info {
        name: "v4_wide",
        parent: Some("v1_roles"),
        change: "up to 256 keys: a warpgroup holds them all, and gates are a launch of their own",
        dims: &WIDE_DIMS,
        ..INFO
    },
    source: &kernels::V4_WIDE,
    kernel: "vlstm_fw_wide",
    segments: false,
    gates_first: true,
};

/// This stage.
pub static STAGE: Stage = Stage {
    name: "vlstm_fw_v4",
    teaches: "a recurrence whose state stays in registers from the first chunk to the last",
    versions: &[
        &STEPS,
        &ROLES,
        &SEGMENTED,
        &PACKED,
        &WIDE,
        &PACKED_DECAY,
        &PACKED_SIGMOID,
        &DECAY,
        &SIGMOID,
    ],
    is_chunkwise: true,
    kernels: kernels::KERNELS,
    version_checks: checks::VERSION_CHECKS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

/// Panels of a tensor: 64 of its columns, a chunk of the positions of a head, and no position behind a sequence's end, as
/// the kernels' `Sequence` asks for them. Heads come one behind the other, or lie beside each other in rows that are so many
/// elements apart ([`Request::with_rows_apart`]).
///
/// # Errors
/// As [`TensorMap::new`].
pub fn panels(
    dtype: DType,
    columns: usize,
    positions: usize,
    heads: usize,
    row_stride: Option<usize>,
) -> Result<TensorMap, Error> {
    let map = TensorMap::ending_anywhere(dtype, [columns, positions, heads], [SIDE, SIDE])?;
    let map = match row_stride {
        None => map,
        Some(stride) => map.rows_apart(stride * dtype.size(), columns * dtype.size())?,
    };
    Ok(map.swizzle(Swizzle::Bytes128))
}

impl Version for Walk {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        Some(match self.info.name {
            "v2_segments" => Preference::new(10),
            "v3_packed" => Preference::new(10),
            "v1_roles" => Preference::new(20).on_emulator(2),
            "v4_wide" => Preference::new(30),
            "v0_steps" => Preference::new(40),
            _ => return None,
        })
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        if self.segments { vec![self.source, ROLES.source] } else { vec![self.source] }
    }

    fn test_shapes(&self) -> Vec<Dims> {
        let all = [
            [1, 1, 1, 16, 16],
            // A chunk; one and a bit, one less a bit.
            [1, 1, 64, 64, 64],
            [1, 1, 65, 48, 16],
            [1, 1, 63, 112, 80],
            // Heads, narrow and wide, of unlike widths.
            [2, 3, 40, 64, 64],
            [3, 1, 5, 16, 64],
            [1, 2, 70, 128, 48],
            [2, 2, 9, 16, 208],
            // Several chunks; more than there are places for, and than warps that scan gates.
            [1, 2, 200, 64, 144],
            [1, 1, 130, 128, 256],
            [1, 1, 600, 16, 16],
            [1, 1, 560, 128, 128],
            // More keys than 128.
            [1, 2, 70, 144, 48],
            [1, 1, 330, 256, 208],
        ];
        vlstm::fitting_shapes(&self.info, &all)
    }

    fn bench_shapes(&self, dtype: DType) -> Vec<Dims> {
        vlstm::wide_bench_shapes(&self.info, dtype)
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let dtype = request.dtype;
        let eps = vlstm::epsilon(&self.info, request.options())?;
        let [b, nh, s, dhqk, dhhv] = vlstm::tensor_sizes(&request.dims);
        let asked = if self.segments { request.text(SEGMENTS.name) } else { "1" };
        let segments = match asked {
            "auto" => self.segments_for(device, &request.dims, dtype),
            text => text.parse().expect("one of the choices"),
        };
        let mut plan = Plan::new(device);
        request.inputs(&mut plan, ["q", "k", "v", "i", "f"]);
        request.output(&mut plan, "h", dtype, &[b, nh, s, dhhv]);
        for name in ["m", "n"] {
            plan.output(name, DType::F32, &[b, nh, s]);
        }
        let state = vlstm::state_slots(&mut plan, request);
        let packed = vlstm::packed_slot(&mut plan, request);
        let columns = [dhqk, dhhv];
        let backward = ForBackward { anchors: 0, through_n: false, rows: false };
        let rows_apart = ROWS.map(|name| request.row_stride(name));
        let dims = &request.dims;
        let forward =
            Forward { dims, dtype, columns, eps, state, packed, segments, rows_apart, backward };
        self.add_forward(&mut plan, kernels::PROMISE, forward)?;
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
    /// For how many columns of q and v the kernels have room: those of the problem, or more.
    pub columns: [usize; 2],
    /// ε.
    pub eps: f64,
    /// The states that go in and come out.
    pub state: StateSlots,
    /// Where packed sequences are; of [`PACKED`] alone.
    pub packed: PackedSlot,
    /// Parts of a sequence that are walked at once.
    pub segments: usize,
    /// Elements from row to row of those of [`ROWS`] whose heads lie beside each other.
    pub rows_apart: [Option<usize>; 4],
    /// What is saved for a backward pass.
    pub backward: ForBackward,
}

/// The tensors that may be rows: of [`PACKED`] alone.
pub const ROWS: [&str; 4] = ["q", "k", "v", "h"];

/// What a forward pass saves for a backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ForBackward {
    /// For how many times a head has room for its state, each [`ANCHOR_CHUNKS`] chunks behind the last: 0 for no backward pass.
    pub anchors: usize,
    /// Whether also what the gradient through the normaliser needs.
    pub through_n: bool,
    /// Of [`WIDE`] alone: states are saved as rows (`borders.cuh`), that which goes in before those at anchors, and no n.
    pub rows: bool,
}

/// The slots of what a forward pass has saved, as the kernels' `Anchors` has them.
#[derive(Clone, Debug)]
pub struct Saved {
    /// C of each head, each anchor, and each 64 columns of V that blocks have room for, as `State::save` leaves it, or in rows.
    pub states: Slot,
    /// Of rows of f16: what 64 columns of V are divided by.
    pub scales: Slot,
    /// n \[heads, anchors, keys that blocks have room for\].
    pub n: Slot,
    /// ∂n / ∂l \[heads, S\].
    pub slopes: Slot,
}

/// Chunks from one anchor to the next.
pub const ANCHOR_CHUNKS: usize = 4;

/// Positions of a chunk.
pub const CHUNK: usize = SIDE;

/// Bytes of the kernels' struct `Weights`, of a chunk and a direction.
pub const WEIGHTS: usize = SIDE * (8 + 8 + 4 + 4 + 2) + 16;

/// Words of so many states as `State::save` leaves them, of all columns of V that blocks have room for; one of none.
fn saved_words(instance: &Instance, states: usize, dhhv: usize, dtype: DType) -> usize {
    let width = SIDE * instance.size("GROUPS");
    let cells = dhhv.div_ceil(width) * width * instance.size("KEY");
    (states * cells / if dtype == DType::F16 { 1 } else { 2 }).max(1)
}

/// A block for each walk and slice of V.
fn blocks_of(
    kernel: &Kernel,
    instance: &Instance,
    walks: usize,
    dhhv: usize,
) -> Result<Launch, Error> {
    let all = walks * dhhv.div_ceil(SIDE * instance.size("GROUPS"));
    let blocks = i32::try_from(all).map_err(|_| {
        Error::bad("B NH slices of V", format!("at most {}, one a block", i32::MAX), all)
    })?;
    Ok(Launch::of([blocks as u32, 1, 1], kernel.block()?))
}

impl Walk {
    /// The first that has room for the keys, and, of 64 keys, for no more values than there are.
    fn instance(&self, kernel: &str, dtype: DType, columns: [usize; 2]) -> Instance {
        self.instance_where(kernel, dtype, columns, |_| true)
    }

    fn instance_where(
        &self,
        kernel: &str,
        dtype: DType,
        [dhqk, dhhv]: [usize; 2],
        is_asked: impl Fn(&Instance) -> bool,
    ) -> Instance {
        let fits = |i: &Instance| {
            is_asked(i)
                && i.has("T", dtype.cpp())
                && i.argument("GATES").is_none()
                && dhqk <= i.size("KEY")
                && (i.size("GROUPS") > 1 || dhhv <= SIDE)
        };
        self.source.instances(kernel).find(fits).expect("DHQK of a checked problem")
    }

    /// Into how many segments each head is best cut on this device.
    pub fn segments_for(&self, device: &Device, dims: &Dims, dtype: DType) -> usize {
        let [b, nh, s, dhqk, dhhv] = vlstm::tensor_sizes(dims);
        let groups = self.instance(self.kernel, dtype, [dhqk, dhhv]).size("GROUPS");
        let blocks = b * nh * dhhv.div_ceil(SIDE * groups);
        segments_for(blocks, s.div_ceil(SIDE), device.facts().multiprocessors as usize)
    }

    /// Adds the launches of a forward pass to a plan. Whoever calls for them promises that the plan's slots have the elements that the sizes say. Returns the slots of what a backward pass needs of it.
    ///
    /// # Errors
    /// More segments than chunks, more blocks than a launch can have, or what the device says of the kernels.
    pub fn add_forward(
        &self,
        plan: &mut Plan,
        _promise: LaunchPromise,
        forward: Forward<'_>,
    ) -> Result<Saved, Error> {
        let Forward { dims, dtype, columns, eps, state, packed, segments, rows_apart, backward } =
            forward;
        let ForBackward { anchors, through_n, rows } = backward;
        let [b, nh, s, dhqk, dhhv] = vlstm::tensor_sizes(dims);
        let (heads, chunks) = (b * nh, s.div_ceil(SIDE));
        if segments > chunks {
            let expected = format!("at most {chunks}: the sequence has so many chunks of {SIDE}");
            return Err(Error::bad("--set segments", expected, segments));
        }
        // None of them empty.
        let chunks_each = chunks.div_ceil(segments);
        let segments = chunks.div_ceil(chunks_each);
        let version = if self.segments && segments == 1 { &ROLES } else { self };
        let device = plan.device().clone();

        let slot = |name: &str| plan.slot(name).expect("a slot of the forward pass");
        let of = |n: usize, columns| panels(dtype, columns, s, heads, rows_apart[n]);
        let (q, k) = (slot("q").loaded_by(of(0, dhqk)?), slot("k").loaded_by(of(1, dhqk)?));
        let (v, h) = (slot("v").loaded_by(of(2, dhhv)?), slot("h").stored_by(of(3, dhhv)?));
        let [i_gate, f_gate, m_out, n_out] = ["i", "f", "m", "n"].map(slot);
        let StateSlots { given, wanted, first: [c0, n0, m0], last: [c_n, n_n, m_n] } = state;
        let log2_scale = -0.5 * (dhqk as f64).log2();
        let PackedSlot { sequences, cu_seqlens } = packed;
        let mut scope = Scope::new()
            .with(arguments![cu_seqlens, packed: sequences.is_some(), heads])
            .with(arguments![q, k, v, h, i_gate, f_gate, m_out, n_out])
            .with(arguments![C0: c0, n0, m0, CN: c_n, nN: n_n, mN: m_n, given, wanted])
            .with(arguments![anchors, through_n])
            .with(arguments![chunks])
            .with(arguments![S: s, dhqk, dhhv, segments, chunks_each, log2_scale, eps])
            .with(arguments![sharing: 1, weighed: true]);
        // What walks without m leave.
        let [left, back] = [(); 2].map(|()| plan.records("Weights", WEIGHTS, 1));
        scope = scope.with(arguments![forward: left, reverse: back, leaves: false]);

        let instance = match rows {
            true => {
                version.instance_where(version.kernel, dtype, columns, |i| i.has("SAVES", "true"))
            }
            false => version.instance(version.kernel, dtype, columns),
        };
        let width = SIDE * instance.size("GROUPS");
        let cells = dhhv.div_ceil(width) * width * instance.size("KEY");
        let of_rows = (heads * (anchors + usize::from(given))).max(1) * cells;
        let words = saved_words(&instance, heads * anchors, dhhv, dtype);
        let states =
            if rows { plan.scratch(dtype, of_rows) } else { plan.scratch(DType::U32, words) };
        let of_scales =
            if rows && dtype == DType::F16 { of_rows / (SIDE * instance.size("KEY")) } else { 0 };
        let scales = plan.scratch(DType::F32, of_scales.max(1));
        let of_n = if through_n && !rows { heads * anchors * instance.size("KEY") } else { 0 };
        let n = plan.scratch(DType::F32, of_n.max(1));
        let slopes = plan.scratch(DType::F32, if through_n { heads * s } else { 1 });
        scope = scope.with(arguments![saved: states, saved_n: n, slopes]);
        if version.gates_first {
            // Who saves nothing has a place for it all the same.
            let to = if rows { states } else { plan.scratch(dtype, 1) };
            scope = scope.with(arguments![C: to, C_scales: scales]);
        }
        if version.segments {
            let instance = version.instance("vlstm_fw_parts", dtype, columns);
            let parts = heads * (segments - 1);
            let c_part = plan.scratch(DType::F32, parts * cells);
            let n_part = plan.scratch(DType::F32, parts * instance.size("KEY"));
            let behind = plan.records("Before", BEFORE, parts);
            scope = scope.with(arguments![C_part: c_part, n_part, behind]);
            let kernel = device.load(instance)?;
            let launch = blocks_of(&kernel, &instance, parts, dhhv)?;
            plan.launch_in(&scope, &kernel, launch, arguments![])?;
        }
        if version.gates_first {
            let records = plan.records("GateRecord", GATE_RECORD, heads * chunks);
            scope = scope.with(arguments![records]);
            let mut instances = version.source.instances("vlstm_fw_gates");
            let gates = instances.find(|i| i.has("T", dtype.cpp())).expect("one of each type");
            let kernel = device.load(gates)?;
            plan.launch_in(
                &scope,
                &kernel,
                Launch::of([heads as u32, 1, 1], kernel.block()?),
                arguments![],
            )?;
        }
        let kernel = device.load(instance)?;
        let walks = heads * segments * sequences.unwrap_or(1);
        let launch = blocks_of(&kernel, &instance, walks, dhhv)?;
        plan.launch_in(&scope, &kernel, launch, arguments![])?;
        Ok(Saved { states, scales, n, slopes })
    }
}

/// As many as make a block for each multiprocessor, of four chunks at least: a part costs a launch, and the state's way
/// to memory and back.
fn segments_for(blocks: usize, chunks: usize, multiprocessors: usize) -> usize {
    (multiprocessors / blocks).min(chunks / 4).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_heads_are_cut() {
        assert_eq!(segments_for(256, 32, 132), 1);
        assert_eq!(segments_for(128, 32, 132), 1);
        assert_eq!(segments_for(32, 16, 132), 4);
        assert_eq!(segments_for(8, 128, 132), 16);
        assert_eq!(segments_for(1, 3, 132), 1);
    }
}
