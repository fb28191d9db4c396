//! `vlstm_fwbw_v4`: the vLSTM forward and backward by chunks, with the state and its gradient on the chip.
//!
//! The forward pass is that of `vlstm_fw_v4`. Each gradient is made by a walk like it over the chunks of a head: dq forward,
//! with the state made once more; dk and dv back, with the state's gradient. The equations are those of
//! `lab_reference::vlstm`, by chunks of 64 positions.

#![deny(unsafe_code)]

mod checks;
mod linear;
mod wide;

use lab_device::{DType, Device, Instance, KernelSource, Launch};
use lab_families::packed::room_for_parts;
use lab_families::vlstm::{
    self, ForwardBackwardSlots, PackedSlot, StateGradientSlots, StateSlots, forward_backward_slots,
};
use lab_harness::compare::unit;
use lab_harness::plan::Argument;
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Preference, Request, Setting, Stage, Version, arguments,
};
use vlstm_fw_v4::{ANCHOR_CHUNKS, CHUNK, ForBackward, Forward, ROWS, Saved, WEIGHTS, panels};

pub use linear::{DECAY, Linear, PACKED_DECAY, PACKED_SIGMOID, SIGMOID};
pub use wide::{WIDE, Wide};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// Walks for the gradients.
#[derive(Debug)]
pub struct Walks {
    info: Info,
    launches: Launches,
}

/// In how many launches the gradients are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Launches {
    /// One for each of dq, dk and dv.
    Three,
    /// One for all.
    One,
    /// One for all, of segments of heads; and one before it, for what these begin with.
    Segments,
}

/// Positions of a chunk, and columns of a panel of a matrix.
const SIDE: usize = CHUNK;

/// Bytes of the kernels' struct `Before`.
const BEFORE: usize = 16;

/// Wider heads leave no registers for a state.
const SIZES: [[usize; 3]; 5] =
    [[1, 4, 65535], [2, 16, 65535], [150, 2048, 1 << 24], [64, 128, 128], [64, 256, 256]];

static DIMS: [Dim; 5] = vlstm::dims(SIZES);

static PACKED_DIMS: [Dim; 5] = {
    let [_, nh, _, dhqk, dhhv] = SIZES;
    vlstm::packed_dims([[4, 8, 65535], nh, [300, 16384, 1 << 24], dhqk, dhhv])
};

const F16: DType = DType::F16;
const BF16: DType = DType::BF16;

static LAST_STATE: &[Output] = &[
    Output {
        name: "CN",
        bounds: &[(F16, 1.2e-3), (BF16, 9e-3)],
        elements: &[(F16, 2.5 * unit::F16), (BF16, 2.5 * unit::BF16)],
    },
    Output {
        name: "nN",
        bounds: &[(F16, 2e-6), (BF16, 1e-5)],
        elements: &[(F16, 6.0 * unit::F32), (BF16, 200.0 * unit::F32)],
    },
    Output {
        name: "mN",
        bounds: &[(F16, 1.4e-7), (BF16, 1.4e-7)],
        elements: &[(F16, 2.0 * unit::F32), (BF16, 2.0 * unit::F32)],
    },
];

// dn0: its terms are taken from halves of what is written to the state.
static FIRST_STATE_GRADIENT: &[Output] = &[
    Output {
        name: "dC0",
        bounds: &[(F16, 1.2e-3), (BF16, 9e-3)],
        elements: &[(F16, 0.6 * unit::F16), (BF16, 0.75 * unit::BF16)],
    },
    Output {
        name: "dn0",
        bounds: &[(F16, 1.2e-3), (BF16, 9e-3)],
        elements: &[(F16, 0.05 * unit::F16), (BF16, 0.05 * unit::BF16)],
    },
];

const LAST: Setting = vlstm::last_state(LAST_STATE);
const FIRST: Setting = vlstm::state_grad(FIRST_STATE_GRADIENT);

/// Of few heads, into how many segments each is cut.
const SEGMENTS: Setting = Setting::choice(
    "segments",
    "parts of a sequence that are walked at once; auto: as many as fill the GPU",
    &["auto", "1", "2", "3", "4", "5", "6", "8", "12", "16", "32"],
);

const INFO: Info = Info {
    stage: "vlstm_fwbw_v4",
    name: "v0_walks",
    family: &vlstm::FORWARD_BACKWARD,
    parent: Some("ahead"),
    change: "by chunks: the state, and its gradient, stay in registers, as accumulators of wgmma",
    dtypes: &[F16, BF16],
    dims: &DIMS,
    settings: &[vlstm::EPSILON, vlstm::NORMALIZER_GRAD, LAST, FIRST],
    inputs: vlstm::FORWARD_BACKWARD_INPUTS_WITH_STATES,
    // An element: of h a quarter to a third of a unit of roundoff of the halves; of gradients, which are relative to sums of
    // absolute values through both passes, a tenth and less.
    outputs: &[
        Output {
            name: "h",
            bounds: &[(F16, 1e-3), (BF16, 8e-3)],
            elements: &[(F16, unit::F16), (BF16, 1.1 * unit::BF16)],
        },
        Output {
            name: "m",
            bounds: &[(F16, 1.4e-7), (BF16, 1.4e-7)],
            elements: &[(F16, 2.0 * unit::F32), (BF16, 2.0 * unit::F32)],
        },
        Output {
            name: "n",
            bounds: &[(F16, 1e-6), (BF16, 5e-6)],
            elements: &[(F16, 7.0 * unit::F32), (BF16, 50.0 * unit::F32)],
        },
        Output {
            name: "dq",
            bounds: &[(F16, 1e-3), (BF16, 8e-3)],
            elements: &[(F16, 0.33 * unit::F16), (BF16, 0.27 * unit::BF16)],
        },
        Output {
            name: "dk",
            bounds: &[(F16, 1e-3), (BF16, 8e-3)],
            elements: &[(F16, 0.35 * unit::F16), (BF16, 0.25 * unit::BF16)],
        },
        Output {
            name: "dv",
            bounds: &[(F16, 1e-3), (BF16, 8e-3)],
            elements: &[(F16, 0.75 * unit::F16), (BF16, 0.35 * unit::BF16)],
        },
        Output {
            name: "di",
            bounds: &[(F16, 1e-3), (BF16, 8e-3)],
            elements: &[(F16, 0.35 * unit::F16), (BF16, 0.055 * unit::BF16)],
        },
        Output {
            name: "df",
            bounds: &[(F16, 2e-3), (BF16, 1.2e-2)],
            elements: &[(F16, 0.04 * unit::F16), (BF16, 0.007 * unit::BF16)],
        },
    ],
};

/// A launch for each gradient.
pub static WALKS: Walks = Walks { info: INFO, launches: Launches::Three };

/// One for all.
pub static TOGETHER: Walks = Walks {
    info: Info {
        name: "v1_together",
        parent: Some("v0_walks"),
        change: "the walks of all gradients in one launch: a head's tensors meet in the L2 cache",
        ..INFO
    },
    launches: Launches::One,
};

/// Few heads.
pub static SEGMENTED: Walks = Walks {
    info: Info {
        name: "v2_segments",
        parent: Some("v1_together"),
        change: "few heads: several blocks walk one; dq begins with a saved state, dk and dv with what they join of parts",
        settings: &[vlstm::EPSILON, vlstm::NORMALIZER_GRAD, LAST, FIRST, SEGMENTS],
        ..INFO
    },
    launches: Launches::Segments,
};

/// Sequences of unlike lengths.
pub static PACKED: Walks = Walks {
    info: Info {
        name: "v3_packed",
        family: &vlstm::PACKED_FORWARD_BACKWARD,
        parent: None,
        change: "as v1_together, of sequences one behind the other: a tile ends where its sequence ends",
        dims: &PACKED_DIMS,
        inputs: vlstm::PACKED_BACKWARD_INPUTS,
        ..INFO
    },
    launches: Launches::One,
};

/// This stage.
pub static STAGE: Stage = Stage {
    name: "vlstm_fwbw_v4",
    teaches: "one walk, four uses: each gradient is one more forward walk",
    // `lab run` takes the last of the stage's family, which takes states and both types.
    versions: &[
        &WALKS,
        &TOGETHER,
        &WIDE,
        &SEGMENTED,
        &PACKED,
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

/// The first that has room for the keys and the values: its sizes have these names.
fn instance(
    source: &'static KernelSource,
    kernel: &str,
    dtype: DType,
    room: impl Fn(&Instance) -> bool,
) -> Instance {
    let fits = |i: &Instance| i.has("T", dtype.cpp()) && room(i);
    source.instances(kernel).find(fits).expect("DHQK and DHHV of a checked problem")
}

/// Of how many segments the short blocks come last in a launch: of as many as the GPU works on at once.
fn late_units(device: &Device, blocks_of_each: usize) -> usize {
    device.facts().multiprocessors as usize / blocks_of_each
}

/// As many as there are, if a launch can have so many.
fn blocks(what: &str, all: usize) -> Result<u32, Error> {
    let too_many = |_| Error::bad(what, format!("at most {}, one a block", i32::MAX), all);
    i32::try_from(all).map(|all| all as u32).map_err(too_many)
}

impl Version for Walks {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        Some(match self.info.name {
            "v2_segments" => Preference::new(10),
            "v3_packed" => Preference::new(10),
            "v1_together" => Preference::new(20).on_emulator(3),
            "v0_walks" => Preference::new(40),
            _ => return None,
        })
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        use kernels::{FORGET, GATES, GRADIENTS, PARTS};
        vec![&GATES, &GRADIENTS, &PARTS, &FORGET]
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
            [3, 1, 5, 16, 256],
            [1, 2, 70, 128, 48],
            [2, 2, 9, 16, 208],
            // Several chunks, more than places; anchors.
            [1, 2, 200, 64, 144],
            [1, 1, 130, 128, 256],
            [1, 1, 600, 16, 16],
            [1, 1, 560, 128, 128],
            [1, 1, 330, 80, 256],
        ];
        // The walks are the same: of the other versions, one of each shape.
        let few = if self.launches == Launches::One { &all[..] } else { &all[9..] };
        vlstm::fitting_shapes(&self.info, few)
    }

    fn bench_shapes(&self, dtype: DType) -> Vec<Dims> {
        vlstm::wide_bench_shapes(&self.info, dtype)
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let (dims, dtype) = (&request.dims, request.dtype);
        let eps = vlstm::epsilon(&self.info, request.options())?;
        let [b, nh, s, dhqk, dhhv] = vlstm::tensor_sizes(dims);
        let packed = vlstm::packed_sequences(dims);
        let (heads, sequences) = (b * nh, packed.unwrap_or(1));
        let Room { chunks, stretches, anchors } = Room::of(s, packed);
        let log2_scale = -0.5 * (dhqk as f64).log2();
        let exact = request.text(vlstm::NORMALIZER_GRAD.name) == "exact";
        let through_n = exact || request.has("C0") || request.has("dCN");
        let through = if through_n { "true" } else { "false" };
        // Its sizes, or its states, as structs by value would be other machine code (NVRTC 13.0: the same number of instructions, or
        // eight more or fewer, by the instantiation). With its pointers, too, it would be worse code: those of a struct may overlap, for all
        // that the compiler knows (of 128 x 256 through n in bf16 it spills 560 bytes, not 136).
        let gradients = instance(&kernels::GRADIENTS, "vlstm_gradients", dtype, |i| {
            dhqk <= i.size("DHQK")
                && dhhv <= i.size("DHHV")
                && i.has("THROUGH_N", through)
                && i.argument("NORMALIZER").is_none()
        });
        let room = ["DHQK", "DHHV"].map(|name| gradients.size(name));
        // 64s of columns that the blocks of a head have, and those that one has.
        let widths = room.map(|columns| if columns == 128 { 2 } else { 1 });
        let [value_width, key_width] = widths;
        let key_blocks = dhqk.div_ceil(SIDE * key_width);
        let value_blocks = dhhv.div_ceil(SIDE * value_width);
        let of_head = 2 * key_blocks + value_blocks;
        let Segments { count: segments, chunks_each } =
            self.segments(request, chunks, heads * sequences * of_head, device)?;

        let mut plan = Plan::new(device);
        let ForwardBackwardSlots { scope, .. } = forward_backward_slots(&mut plan, request);
        let packed = vlstm::packed_slot(&mut plan, request);
        let StateGradientSlots { states: state, given: given_last, wanted, last, first } =
            vlstm::state_gradient_slots(&mut plan, request)?;
        let StateSlots { given, first: [c0, n0, m0], last: [c_n, n_n, _], .. } = state.clone();
        let forward = match self.launches {
            Launches::Segments => &vlstm_fw_v4::SEGMENTED,
            _ if packed.sequences.is_some() => &vlstm_fw_v4::PACKED,
            _ => &vlstm_fw_v4::ROLES,
        };
        let of_forward = match segments {
            1 if self.launches != Launches::Segments => 1,
            _ => forward.segments_for(device, dims, dtype),
        };
        let columns = [room[0], dhhv];
        let backward = ForBackward { anchors, through_n, rows: false };
        let PackedSlot { cu_seqlens, .. } = packed;
        let is_packed = packed.sequences.is_some();
        let rows_apart = ROWS.map(|name| request.row_stride(name));
        let launches = Forward {
            dims,
            dtype,
            columns,
            eps,
            state,
            packed,
            segments: of_forward,
            rows_apart,
            backward,
        };
        let Saved { states: saved, n: saved_n, slopes, .. } =
            forward.add_forward(&mut plan, kernels::PROMISE, launches)?;
        let rho = plan.scratch(DType::F32, if exact { heads * s } else { 1 });
        if exact {
            let kernel = instance(&kernels::GATES, "vlstm_normaliser_gradient", dtype, |_| true);
            let kernel = device.load(kernel)?;
            let grid = blocks("B NH S", (heads * s).div_ceil(4))?;
            let own = arguments![slopes, rho, rows: heads * s];
            plan.launch_in(&scope, &kernel, kernel.grid([grid, 1, 1])?, own)?;
        }

        let slot = |plan: &Plan, name: &str| plan.slot(name).expect("of the family");
        let n = slot(&plan, "n");
        let key_panels = key_blocks * key_width;
        let value_panels = value_blocks * value_width;
        let parts_of_dot = 4 * value_panels;
        let sums = plan.records("Before", BEFORE, heads * chunks);
        let [forward, reverse] = [(); 2].map(|()| plan.records("Weights", WEIGHTS, heads * chunks));
        let [q_dq, k_dk] = [(); 2].map(|()| plan.scratch(DType::F32, key_panels * heads * s));
        let borders = anchors + 2 * sequences;
        let products = plan.scratch(DType::F32, heads * borders * parts_of_dot);
        let keys_at_anchors = if through_n { heads * anchors * room[0] } else { 0 };
        let saved_dn = plan.scratch(DType::F32, keys_at_anchors.max(1));
        let later = heads * (segments - 1);
        let parts = plan.scratch(DType::F32, (later * value_panels * SIDE * room[0]).max(1));
        let gammas = plan.scratch(DType::F32, later.max(1));
        let n_parts = plan.scratch(DType::F32, (later * room[0]).max(1));
        let of = |name: &str, columns| panels(dtype, columns, s, heads, request.row_stride(name));
        let loaded = |name, columns| -> Result<Argument, Error> {
            Ok(slot(&plan, name).loaded_by(of(name, columns)?))
        };
        let stored = |name, columns| -> Result<Argument, Error> {
            Ok(slot(&plan, name).stored_by(of(name, columns)?))
        };
        let (q, k) = (loaded("q", dhqk)?, loaded("k", dhqk)?);
        let (v, dh) = (loaded("v", dhhv)?, loaded("dh", dhhv)?);
        let (dq, dk, dv) = (stored("dq", dhqk)?, stored("dk", dhqk)?, stored("dv", dhhv)?);
        let scope = scope
            .with(arguments![saved, sums, forward, reverse, q_dq, k_dk, products, parts, gammas])
            .with(arguments![q, k, v, dh, dq, dk, dv, normaliser: n, parts_of_dot])
            .with(
                arguments![heads, chunks, stretches, anchors, slices: key_panels, log2_scale, eps],
            )
            .with(arguments![cu_seqlens, packed: is_packed, sequences])
            .with(arguments![sharing: 1, weighed: true, segments, chunks_each, given, given_last, wanted, through_n, exact])
            .with(arguments![saved_n, saved_dn, n_parts, rho, keys: room[0]])
            .with(arguments![C0: c0, n0, m0, CN: c_n, nN: n_n, dCN: last[0], dnN: last[1]])
            .with(arguments![dC0: first[0], dn0: first[1]]);

        let of_gates = [
            device.kernel(&kernels::GATES, "vlstm_gate_sums<128>")?,
            device.load(instance(&kernels::GATES, "vlstm_gate_weights", dtype, |i| {
                i.size("UNIT") == 1
            }))?,
        ];
        for kernel in of_gates {
            let grid = blocks("B NH chunks of S", (heads * chunks).div_ceil(4))?;
            plan.launch_in(&scope, &kernel, kernel.grid([grid, 1, 1])?, arguments![])?;
        }
        if segments > 1 {
            let of_parts = |i: &Instance| room[0] == i.size("DHQK") && i.has("THROUGH_N", through);
            let parts = instance(&kernels::PARTS, "vlstm_gradient_parts", dtype, of_parts);
            let kernel = device.load(parts)?;
            let grid = blocks("B NH slices of segments", later * value_blocks)?;
            plan.launch_in(
                &scope,
                &kernel,
                Launch::of([grid, 1, 1], kernel.block()?),
                arguments![],
            )?;
        }

        let kernel = device.load(gradients)?;
        let late = late_units(device, of_head);
        let launches: &[(i32, usize, usize)] = match self.launches {
            Launches::Three => &[(0, key_blocks, 0), (1, key_blocks, 0), (2, value_blocks, 0)],
            _ => &[(-1, of_head, late)],
        };
        for &(only, of_head, late) in launches {
            let grid =
                blocks("B NH slices of the gradients", heads * sequences * segments * of_head)?;
            let launch = Launch::of([grid, 1, 1], kernel.block()?);
            plan.launch_in(&scope, &kernel, launch, arguments![only, late])?;
        }

        let kernel = device.kernel(&kernels::FORGET, "vlstm_anchored_forget<128>")?;
        let grid = blocks("B NH stretches of S", (heads * stretches).div_ceil(4))?;
        plan.launch_in(&scope, &kernel, kernel.grid([grid, 1, 1])?, arguments![])?;
        Ok(plan)
    }
}

/// For how much a head has room in what is left between launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Room {
    chunks: usize,
    stretches: usize,
    anchors: usize,
}

impl Room {
    /// Of so many positions, in so many packed sequences.
    fn of(positions: usize, packed: Option<usize>) -> Self {
        let [chunks, stretches] =
            [SIDE, SIDE * ANCHOR_CHUNKS].map(|part| room_for_parts(positions, part, packed));
        Self { chunks, stretches, anchors: stretches - packed.unwrap_or(1) }
    }
}

/// Into how many parts the chunks of a head are cut, none of them empty; each begins at an anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Segments {
    count: usize,
    chunks_each: usize,
}

impl Segments {
    fn of(chunks: usize, asked: usize) -> Self {
        let chunks_each = chunks.div_ceil(asked).next_multiple_of(ANCHOR_CHUNKS);
        Self { count: chunks.div_ceil(chunks_each), chunks_each }
    }
}

impl Walks {
    /// As many as make a block for each multiprocessor: a part costs a launch, and the way of a state to memory and back.
    fn segments(
        &self,
        request: &Request<'_>,
        chunks: usize,
        blocks: usize,
        device: &Device,
    ) -> Result<Segments, Error> {
        if self.launches != Launches::Segments {
            return Ok(Segments::of(chunks, 1));
        }
        let most = chunks.div_ceil(ANCHOR_CHUNKS);
        match request.text(SEGMENTS.name) {
            "auto" => {
                let multiprocessors = device.facts().multiprocessors as usize;
                Ok(Segments::of(chunks, (multiprocessors / blocks).clamp(1, most)))
            }
            text => match text.parse().expect("one of the choices") {
                asked if asked > most => {
                    let expected = format!(
                        "at most {most}: a segment has {ANCHOR_CHUNKS} chunks of {SIDE}, at least"
                    );
                    Err(Error::bad("--set segments", expected, asked))
                }
                asked => Ok(Segments::of(chunks, asked)),
            },
        }
    }
}
