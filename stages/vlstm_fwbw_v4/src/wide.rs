//! Heads with more keys or values than a walk has registers for: the states of every fourth chunk in device memory.

use lab_device::{DType, Device, Instance, KernelSource, Launch, Swizzle, TensorMap};
use lab_harness::qkv::sizes;
use lab_harness::vlstm::{self, ForwardBackwardSlots, PackedSlot, forward_backward_slots};
use lab_harness::{Dim, Dims, Error, Info, Plan, Request, Setting, Version, arguments};
use vlstm_fw_v4::{ANCHOR_CHUNKS, CHUNK, ForBackward, Forward, panels};

use crate::{BEFORE, INFO, WEIGHTS, blocks, instance, kernels};

/// See the stage's page, "v4_wide".
#[derive(Debug)]
pub struct Wide {
    info: Info,
}

const SIZES: [[usize; 3]; 5] =
    [[1, 4, 65535], [2, 16, 65535], [150, 2048, 1 << 24], [64, 256, 256], [64, 512, 512]];

static DIMS: [Dim; 5] = vlstm::dims(SIZES);

/// Columns of V that a block of the walks for the states has, keys of a state in memory, and columns of a gradient that a
/// block has.
const STATE_WIDTH: usize = 2 * CHUNK;
const KEYS: usize = 256;
const WIDTH: usize = 256;

/// The exact one would take n and its gradient along with the states.
const NORMALIZER_GRAD: Setting = Setting::choice(
    vlstm::NORMALIZER_GRAD.name,
    "constant: n is taken as a constant",
    &["constant"],
);

/// More keys, more values.
pub static WIDE: Wide = Wide {
    info: Info {
        name: "v4_wide",
        parent: Some("v1_together"),
        change: "up to 256 keys and 512 values: the state goes to memory every fourth chunk, and all stretches between are made at once",
        // A state of f16 in memory would need a power of two for each of its rows.
        dtypes: &[DType::BF16],
        dims: &DIMS,
        settings: &[vlstm::EPSILON, NORMALIZER_GRAD],
        inputs: vlstm::FORWARD_BACKWARD_INPUTS,
        ..INFO
    },
};

impl Version for Wide {
    fn info(&self) -> &Info {
        &self.info
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        use kernels::{FORGET, GATES, WIDE_GRADIENTS, WIDE_STATES};
        vec![&GATES, &WIDE_STATES, &WIDE_GRADIENTS, &FORGET]
    }

    fn test_shapes(&self) -> Vec<Dims> {
        let all = [
            [1, 1, 1, 16, 16],
            // A chunk and a bit; half a stretch, and a bit.
            [1, 2, 65, 144, 80],
            [1, 1, 130, 256, 272],
            // A stretch and a bit; several, of unlike widths. What it costs grows with the chunks, not with the columns.
            [2, 1, 300, 208, 512],
            [1, 1, 1024, 256, 320],
        ];
        all.iter().map(|&shape| sizes(shape)).collect()
    }

    fn bench_shapes(&self, dtype: DType) -> Vec<Dims> {
        vlstm::wide_bench_shapes(&self.info, dtype)
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let (dims, dtype) = (&request.dims, request.dtype);
        let eps = vlstm::epsilon(&self.info, request.options())?;
        let [b, nh, s, dhqk, dhhv] = vlstm::tensor_sizes(dims);
        let heads = b * nh;
        let [chunks, stretches] = [CHUNK, CHUNK * ANCHOR_CHUNKS].map(|size| s.div_ceil(size));
        let anchors = stretches - 1;
        let log2_scale = -0.5 * (dhqk as f64).log2();

        let mut plan = Plan::new(device);
        let ForwardBackwardSlots { scope, .. } = forward_backward_slots(&mut plan, request);
        let packed = vlstm::packed_slot(&mut plan, request);
        let PackedSlot { cu_seqlens, .. } = packed;
        let state = vlstm::no_state_slots(&mut plan);
        let backward = ForBackward { anchors: 0, through_n: false };
        let columns = [KEYS, dhhv];
        let forward = Forward { dims, dtype, columns, eps, state, packed, segments: 1, backward };
        vlstm_fw_v4::WIDE.launch(&mut plan, forward)?;

        let slot = |plan: &Plan, name: &str| plan.slot(name).expect("of the family");
        let n = slot(&plan, "n");
        let slices = dhhv.div_ceil(STATE_WIDTH);
        let rows = slices * STATE_WIDTH;
        let parts_of_dot = 4 * rows / CHUNK;
        let sums = plan.records("Before", BEFORE, heads * chunks);
        let [of_chunks, back_of_chunks, of_stretches, back_of_stretches] =
            [(); 4].map(|()| plan.records("Weights", WEIGHTS, heads * chunks));
        let [q_dq, k_dk] = [(); 2].map(|()| plan.scratch(DType::F32, heads * s));
        let products = plan.scratch(DType::F32, heads * (anchors + 2) * parts_of_dot);
        let saved = (heads * anchors).max(1);
        let [c, dc] = [(); 2].map(|()| plan.scratch(dtype, saved * rows * KEYS));
        let none = plan.scratch(DType::F32, 1);
        let keys = panels(dtype, dhqk, s, heads)?;
        let values = panels(dtype, dhhv, s, heads)?;
        let states = TensorMap::new(dtype, &[KEYS, rows, saved], &[CHUNK, CHUNK, 1])?;
        let states = states.swizzle(Swizzle::Bytes128);
        let [q, k] = ["q", "k"].map(|name| slot(&plan, name).loaded_by(keys));
        let [v, dh] = ["v", "dh"].map(|name| slot(&plan, name).loaded_by(values));
        let [dq, dk] = ["dq", "dk"].map(|name| slot(&plan, name).stored_by(keys));
        let dv = slot(&plan, "dv").stored_by(values);
        let scope = scope
            .with(arguments![sums, q_dq, k_dk, products, normaliser: n, parts_of_dot, anchors])
            .with(arguments![heads, chunks, stretches, slices: 1, log2_scale, eps, rho: none])
            .with(arguments![cu_seqlens, packed: false, sequences: 1, given: false])
            .with(arguments![given_last: false, through_n: false, exact: false, m0: none])
            .with(arguments![saved_n: none, saved_dn: none, n0: none, dn0: none, nN: none])
            .with(arguments![dnN: none, keys: KEYS]);

        let grid = blocks("B NH chunks of S", (heads * chunks).div_ceil(4))?;
        let kernel = device.kernel(&kernels::GATES, "vlstm_gate_sums<128>")?;
        plan.launch_in(&scope, &kernel, kernel.grid([grid, 1, 1])?, [])?;
        let units =
            [(1, of_chunks, back_of_chunks), (ANCHOR_CHUNKS, of_stretches, back_of_stretches)];
        for (unit, forward, reverse) in units {
            let of_unit = |i: &Instance| i.size("UNIT") == unit;
            let kernel =
                device.load(instance(&kernels::GATES, "vlstm_gate_weights", dtype, of_unit))?;
            let own = arguments![forward, reverse];
            plan.launch_in(&scope, &kernel, kernel.grid([grid, 1, 1])?, own)?;
        }
        if anchors > 0 {
            let grid = blocks("B NH slices of V", heads * slices)?;
            // The one that walks on multiplies with nothing.
            let walks = [
                ("false", k, v, of_chunks, c, k),
                ("true", q, dh, back_of_chunks, dc, c.loaded_by(states)),
            ];
            for (back, y, z, weights, to, others) in walks {
                let of_direction = |i: &Instance| i.has("BACK", back);
                let kernel =
                    instance(&kernels::WIDE_STATES, "vlstm_wide_states", dtype, of_direction);
                let kernel = device.load(kernel)?;
                let own = arguments![y, z, states: to.stored_by(states), others, weights];
                plan.launch_in(&scope, &kernel, Launch::of([grid, 1, 1], kernel.block()?), own)?;
            }
        }
        let gradients = |_: &Instance| true;
        let gradients =
            instance(&kernels::WIDE_GRADIENTS, "vlstm_wide_gradients", dtype, gradients);
        let kernel = device.load(gradients)?;
        let of_stretch = 2 * (2 + dhhv.div_ceil(WIDTH));
        let grid = blocks("B NH parts of the gradients", heads * stretches * of_stretch)?;
        let own = arguments![
            q, k, v, dh, dq, dk, dv, C: c.loaded_by(states), dC: dc.loaded_by(states),
            forward: of_stretches, reverse: back_of_stretches
        ];
        plan.launch_in(&scope, &kernel, Launch::of([grid, 1, 1], kernel.block()?), own)?;

        let kernel = device.kernel(&kernels::FORGET, "vlstm_anchored_forget<128>")?;
        let grid = blocks("B NH stretches of S", (heads * stretches).div_ceil(4))?;
        plan.launch_in(&scope, &kernel, kernel.grid([grid, 1, 1])?, [])?;
        Ok(plan)
    }
}
