//! `gdn_fwbw`: the gated delta rule, forward and backward, in chunks.
//!
//! The equations are those of [`lab_families::gdn`]. The forward pass is that of `gdn_fw:v1_chunks`, which keeps the state before
//! each chunk and what each position has written. From the last chunk to the first the gradient of the state is made; what is
//! left can be made of all chunks at once. [`TENSOR`] does the same on tensor cores.

#![deny(unsafe_code)]

mod checks;
mod tensor;

pub use tensor::{PACKED, TENSOR, Tensor};

use gdn_fw::{Forward, add_saving_forward};
use lab_device::{DType, Device, KernelSource};
use lab_families::gdn::{self, BackwardSlots, sizes};
use lab_families::qkv::one_a_block;
use lab_harness::compare::{in_f32, unit};
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Preference, Request, Setting, Stage, Version, arguments,
};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// Both passes, in chunks.
#[derive(Debug)]
pub struct Chunks {
    info: Info,
}

/// Positions of a chunk, and columns of V of a block of the walk back.
const CHUNK: usize = 64;
const COLUMNS: usize = 32;

static DIMS: [Dim; 6] = gdn::dims([
    [1, 4, 65535],
    [2, 8, 65535],
    [1, 8, 65535],
    [70, 1024, 1 << 24],
    [32, 64, 256],
    [32, 64, 1024],
]);

/// Of what is rounded to the run's type once.
const fn rounded(f32: f64) -> [(DType, f64); 3] {
    [(DType::F32, f32), (DType::F16, 4e-4), (DType::BF16, 4e-3)]
}

const U: f64 = unit::F32;

static LAST_STATE: [Output; 1] =
    [Output { name: "CN", bounds: &in_f32(4e-7), elements: &in_f32(0.7 * U) }];

static FIRST_GRADIENT: [Output; 1] =
    [Output { name: "dC0", bounds: &in_f32(8e-7), elements: &in_f32(1.2 * U) }];

static SETTINGS: &[Setting] =
    &[gdn::SCALE, gdn::last_state(&LAST_STATE), gdn::state_grad(&FIRST_GRADIENT)];

/// The versions.
pub static CHUNKS: Chunks = Chunks {
    info: Info {
        stage: "gdn_fwbw",
        name: "v0_chunks",
        family: &gdn::FORWARD_BACKWARD,
        parent: None,
        change: "chunks; the gradient of the state goes back from chunk to chunk, all else is made at once",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &DIMS,
        settings: SETTINGS,
        inputs: gdn::FORWARD_BACKWARD_INPUTS,
        // All is f32, but for what is rounded to the run's type once. Of the whole most where a sequence has one position, or keys
        // are alike; the magnitudes of dv and dg have roundings added up by squares, and here each addition of
        // up to 64 rounds.
        outputs: &[
            Output { name: "h", bounds: &rounded(2e-6), elements: &in_f32(1.5 * U) },
            Output { name: "dq", bounds: &rounded(6e-6), elements: &in_f32(0.7 * U) },
            Output { name: "dk", bounds: &rounded(6e-6), elements: &in_f32(0.5 * U) },
            Output { name: "dv", bounds: &rounded(3e-6), elements: &in_f32(6.0 * U) },
            Output { name: "dg", bounds: &in_f32(6e-6), elements: &in_f32(6.0 * U) },
            Output { name: "dbeta", bounds: &in_f32(8e-6), elements: &in_f32(0.8 * U) },
        ],
    },
};

/// This stage.
pub static STAGE: Stage = Stage {
    name: "gdn_fwbw",
    teaches: "gradients of the delta rule: the transposed inverse, from the last chunk to the first",
    versions: &[&CHUNKS, &PACKED, &TENSOR],
    kernels: kernels::KERNELS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

impl Version for Chunks {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        (self.info.name == "v0_chunks").then_some(Preference::new(40).on_emulator(1))
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        let [substitute, walk] = [&gdn_fw::kernels::SUBSTITUTE, &gdn_fw::kernels::V1_CHUNKS];
        vec![substitute, walk, &kernels::BACK, &kernels::CHUNKS]
    }

    fn test_shapes(&self) -> Vec<Dims> {
        [
            [1, 1, 1, 1, 16, 16],
            // A chunk; one and a bit, one less a bit.
            [1, 1, 1, 64, 16, 32],
            [1, 2, 1, 65, 48, 16],
            [2, 2, 2, 63, 32, 48],
            // Heads that share keys; several chunks.
            [1, 4, 1, 20, 16, 80],
            [1, 1, 1, 140, 32, 32],
        ]
        .map(sizes)
        .to_vec()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let (dims, dtype, f32) = (&request.dims, request.dtype, DType::F32);
        let [b, nh, nkv, s, dhqk, dhhv] = gdn::sizes_of(dims);
        let (heads, group, chunks) = (b * nh, gdn::group_of(dims)?, s.div_ceil(CHUNK));
        let scale = gdn::scale_of(&self.info, request.options(), dhqk);
        let mut plan = Plan::new(device);
        let slots = BackwardSlots::new(&mut plan, request)?;
        let BackwardSlots { forward, dh, of_rows, of_gates, last, first } = slots;
        let scope = add_saving_forward(&mut plan, Forward { slots: forward, dims, dtype, scale })?;
        let ([dq, dk, dv], [dg, dbeta]) = (of_rows, of_gates);
        let d_state = plan.scratch(f32, heads * chunks * dhqk * dhhv);
        let d_rest = plan.scratch(f32, heads * s * dhhv);
        // Sums over the heads of a group, until its last.
        let of_sum = if group > 1 { b * nkv * s * dhqk } else { 1 };
        let [dq_sum, dk_sum] = [(); 2].map(|()| plan.scratch(f32, of_sum));
        let slices = dhhv.div_ceil(COLUMNS);
        let scope = scope
            .with(arguments![dh, dq, dk, dv, dg, dbeta, dq_sum, dk_sum, dC: d_state, dR: d_rest])
            .with(arguments![dCN: last.0, dC0: first.0, gradient_given: last.1])
            .with(arguments![gradient_wanted: first.1, group, slices]);
        for (source, name, blocks) in [
            (&kernels::BACK, "gdn_fwbw_back", heads * slices),
            (&kernels::CHUNKS, "gdn_fwbw_chunks", b * nkv * chunks),
        ] {
            let of_type = |i: &lab_device::Instance| i.has("T", dtype.cpp());
            let instance = source.instances(name).find(of_type).expect("each type has one");
            let kernel = device.load(instance)?;
            let grid = kernel.grid([one_a_block("B NH slices or chunks", blocks)?, 1, 1])?;
            plan.launch_in(&scope, &kernel, grid, arguments![])?;
        }
        Ok(plan)
    }
}
