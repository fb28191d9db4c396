//! Both passes on tensor cores.

use gdn_fw::{Forward, add_tensor_forward, room_for_chunks};
use lab_device::{DType, Device, Instance, KernelSource};
use lab_families::gdn::{self, BackwardSlots};
use lab_families::qkv::one_a_block;
use lab_harness::compare::unit;
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Preference, Request, Setting, Version, arguments,
};

use crate::{CHUNK, CHUNKS, kernels};

/// Both passes on tensor cores.
#[derive(Debug)]
pub struct Tensor {
    info: Info,
}

/// Columns of V of a block of the walk back.
const COLUMNS: usize = 64;

static DIMS: [Dim; 6] = gdn::dims([
    [1, 4, 65535],
    [2, 32, 65535],
    [1, 32, 65535],
    [70, 4096, 1 << 24],
    [32, 128, 256],
    [32, 128, 1024],
]);

/// The bounds of what is rounded to halves on its way.
const fn of_halves(f16: f64, bf16: f64) -> [(DType, f64); 2] {
    [(DType::F16, f16), (DType::BF16, bf16)]
}

/// So many units of roundoff of the run's type.
const fn units(f16: f64, bf16: f64) -> [(DType, f64); 2] {
    of_halves(f16 * unit::F16, bf16 * unit::BF16)
}

static LAST_STATE: [Output; 1] =
    [Output { name: "CN", bounds: &of_halves(1.5e-3, 8e-3), elements: &units(0.7, 1.0) }];

static FIRST_GRADIENT: [Output; 1] =
    [Output { name: "dC0", bounds: &of_halves(3e-3, 3e-2), elements: &units(1.0, 1.0) }];

static SETTINGS: &[Setting] =
    &[gdn::SCALE, gdn::last_state(&LAST_STATE), gdn::state_grad(&FIRST_GRADIENT)];

static PACKED_DIMS: [Dim; 6] = gdn::packed_dims([
    [4, 8, 65535],
    [2, 32, 65535],
    [1, 32, 65535],
    [150, 16384, 1 << 24],
    [32, 128, 256],
    [32, 128, 1024],
]);

/// On tensor cores.
pub static TENSOR: Tensor = Tensor {
    info: Info {
        name: "v1_tensor",
        parent: Some("v0_chunks"),
        change: "products on tensor cores; the gradient of the state stays in registers; what is saved is of the run's type",
        dtypes: &[DType::F16, DType::BF16],
        dims: &DIMS,
        settings: SETTINGS,
        // What tensor cores take is rounded once each, as forward: C, U, dC, dR, dS, Z and the inverse. Of an element the
        // magnitude is a sum over all columns without its cancellation, where roundings add up at random: so all but h, whose
        // magnitude is of one column, are off by far less than a unit of roundoff of it. The magnitudes of dv and dg have that in them: roundings by squares, so that few
        // keys and many, few positions and many are off by the same share: of dg by 0.16 of a unit as a root of a mean of squares, of all
        // from 9 positions of 16 keys to 200 of 64 and 130 of 256. The bounds of the whole are those of
        // keys that are alike: most of dg cancels there.
        outputs: &[
            Output { name: "h", bounds: &of_halves(3e-3, 3e-2), elements: &units(0.7, 1.0) },
            Output { name: "dq", bounds: &of_halves(4e-3, 3e-2), elements: &units(0.1, 0.1) },
            Output { name: "dk", bounds: &of_halves(4e-3, 3e-2), elements: &units(0.1, 0.1) },
            Output { name: "dv", bounds: &of_halves(3e-3, 3e-2), elements: &units(0.6, 0.6) },
            Output { name: "dg", bounds: &of_halves(8e-3, 6e-2), elements: &units(1.5, 1.5) },
            Output { name: "dbeta", bounds: &of_halves(4e-3, 3e-2), elements: &units(0.12, 0.12) },
        ],
        ..CHUNKS.info
    },
};

/// Sequences of unlike lengths.
pub static PACKED: Tensor = Tensor {
    info: Info {
        name: "v2_packed",
        family: &gdn::PACKED_FORWARD_BACKWARD,
        parent: None,
        change: "as v1_tensor, of sequences one behind the other: each begins its own chunk",
        dims: &PACKED_DIMS,
        inputs: gdn::PACKED_BACKWARD_INPUTS,
        // Among more positions one wrong element is a smaller part of the whole, so dk, whose magnitudes are the largest, has less room.
        outputs: &[
            TENSOR.info.outputs[0],
            TENSOR.info.outputs[1],
            Output { elements: &units(0.03, 0.01), ..TENSOR.info.outputs[2] },
            TENSOR.info.outputs[3],
            TENSOR.info.outputs[4],
            TENSOR.info.outputs[5],
        ],
        ..TENSOR.info
    },
};

impl Version for Tensor {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        Some(Preference::new(10))
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        let [blocks, walk] = [&gdn_fw::kernels::BLOCKS, &gdn_fw::kernels::SAVING];
        vec![blocks, walk, &kernels::TENSOR_BACK, &kernels::TENSOR_CHUNKS]
    }

    fn test_shapes(&self) -> Vec<Dims> {
        let packed = [
            [1, 4, 2, 1, 32, 64],
            [3, 4, 2, 130, 64, 64],
            [2, 1, 1, 330, 128, 144],
            [2, 2, 1, 140, 208, 80],
        ];
        let alike = [
            // One position: of several heads, for a head's dh·u may nearly cancel.
            [2, 4, 2, 1, 32, 64],
            // A chunk; one and a bit, one less a bit.
            [1, 1, 1, 64, 64, 64],
            [1, 2, 1, 65, 48, 16],
            [2, 2, 2, 63, 32, 80],
            // Heads that share keys; more columns of V than a block has at a time; several chunks.
            [1, 4, 1, 20, 16, 144],
            [1, 2, 1, 70, 128, 272],
            [1, 1, 1, 140, 80, 128],
            // More keys than 128.
            [1, 2, 1, 130, 256, 80],
            [2, 1, 1, 20, 144, 48],
        ];
        gdn::fitting_shapes(&self.info, &alike, &packed)
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let (dims, dtype) = (&request.dims, request.dtype);
        let [b, nh, nkv, s, dhqk, dhhv] = gdn::sizes_of(dims);
        let (heads, group, chunks) = (b * nh, gdn::group_of(dims)?, room_for_chunks(dims));
        let sequences = gdn::packed_sequences(dims).unwrap_or(1);
        let scale = gdn::scale_of(&self.info, request.options(), dhqk);
        let mut plan = Plan::new(device);
        let slots = BackwardSlots::new(&mut plan, request)?;
        let BackwardSlots { forward, dh, of_rows, of_gates, last, first } = slots;
        let scope = add_tensor_forward(&mut plan, Forward { slots: forward, dims, dtype, scale })?;
        let ([dq, dk, dv], [dg, dbeta]) = (of_rows, of_gates);
        let d_state = plan.scratch(dtype, heads * chunks * dhqk * dhhv);
        let d_rest = plan.scratch(dtype, heads * chunks * CHUNK * dhhv);
        // Sums over the heads of a group and over columns of V, until the last.
        let of_sum = if group > 1 || dhhv > part(dhqk) { b * nkv * s * dhqk } else { 1 };
        let [dq_sum, dk_sum] = [(); 2].map(|()| plan.scratch(DType::F32, of_sum));
        let slices = dhhv.div_ceil(COLUMNS);
        let scope = scope
            .with(arguments![dh, dq, dk, dv, dg, dbeta, dq_sum, dk_sum, dC: d_state, dR: d_rest])
            .with(arguments![dCN: last.0, dC0: first.0, gradient_given: last.1])
            .with(arguments![gradient_wanted: first.1, group, slices]);
        for (source, name, blocks) in [
            (&kernels::TENSOR_BACK, "gdn_fwbw_tensor_back", heads * sequences * slices),
            (&kernels::TENSOR_CHUNKS, "gdn_fwbw_tensor_chunks", b * nkv * chunks),
        ] {
            let fits = |i: &Instance| i.has("T", dtype.cpp()) && dhqk <= i.size("KEY");
            let instance =
                source.instances(name).find(fits).expect("room for all keys there may be");
            let kernel = device.load(instance)?;
            let grid = kernel.grid([one_a_block("B NH slices or chunks", blocks)?, 1, 1])?;
            plan.launch_in(&scope, &kernel, grid, arguments![])?;
        }
        Ok(plan)
    }
}

/// Columns of V that a block makes gradients of at a time: more keys leave less room.
fn part(dhqk: usize) -> usize {
    if dhqk > 128 { 64 } else { 128 }
}
