//! Heads with more keys or values than a walk has registers for: the states of every fourth chunk in device memory.

use lab_device::{DType, Device, Instance, KernelSource, Launch, Swizzle, TensorMap};
use lab_families::qkv::sizes;
use lab_families::vlstm::{
    self, ForwardBackwardSlots, PackedSlot, StateGradientSlots, StateSlots, forward_backward_slots,
};
use lab_harness::{Dim, Dims, Error, Info, Plan, Preference, Request, Version, arguments};
use vlstm_fw_v4::{ANCHOR_CHUNKS, CHUNK, ForBackward, Forward, Saved, WEIGHTS, panels};

use crate::{BEFORE, INFO, blocks, instance, kernels};

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

/// More keys, more values.
pub static WIDE: Wide = Wide {
    info: Info {
        name: "v4_wide",
        parent: Some("v1_together"),
        change: "up to 256 keys and 512 values: the state goes to memory every fourth chunk, and all stretches between are made at once",
        dims: &DIMS,
        ..INFO
    },
};

impl Version for Wide {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        Some(Preference::new(30))
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        use kernels::{FORGET, GATES, WIDE_GRADIENTS, WIDE_NORMALISER, WIDE_STATES};
        vec![&GATES, &WIDE_STATES, &WIDE_NORMALISER, &WIDE_GRADIENTS, &FORGET]
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
        let exact = request.text(vlstm::NORMALIZER_GRAD.name) == "exact";

        let mut plan = Plan::new(device);
        let ForwardBackwardSlots { scope, .. } = forward_backward_slots(&mut plan, request);
        let packed = vlstm::packed_slot(&mut plan, request);
        let PackedSlot { cu_seqlens, .. } = packed;
        let StateGradientSlots { states: state, given: given_last, wanted, last, first } =
            vlstm::state_gradient_slots(&mut plan, request)?;
        let StateSlots { given, first: [c0, n0, m0], last: [c_n, n_n, _], .. } = state.clone();
        let through_n = exact || given || given_last;
        let backward = ForBackward { anchors, through_n, rows: true };
        let columns = [KEYS, dhhv];
        let (segments, rows_apart) = (1, [None; 4]);
        let forward =
            Forward { dims, dtype, columns, eps, state, packed, segments, rows_apart, backward };
        let Saved { states: c, scales: c_scales, slopes, .. } =
            vlstm_fw_v4::WIDE.add_forward(&mut plan, kernels::PROMISE, forward)?;

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
        // C of what stretches begin with, dC of what they end with.
        let [of_c, of_dc] =
            [given, given_last].map(|at_end| heads * (anchors + usize::from(at_end)));
        let dc = plan.scratch(dtype, of_dc.max(1) * rows * KEYS);
        let of_scales = if dtype == DType::F16 { of_dc * rows / CHUNK } else { 0 };
        let dc_scales = plan.scratch(DType::F32, of_scales.max(1));
        let of_n = if through_n { heads * anchors * KEYS } else { 0 };
        let [saved_n, saved_dn] = [(); 2].map(|()| plan.scratch(DType::F32, of_n.max(1)));
        let rho = plan.scratch(DType::F32, if exact { heads * s } else { 1 });
        let keys = panels(dtype, dhqk, s, heads, None)?;
        let values = panels(dtype, dhhv, s, heads, None)?;
        let states = |all: usize| {
            let map = TensorMap::new(dtype, &[KEYS, rows, all.max(1)], &[CHUNK, CHUNK, 1])?;
            Ok::<_, Error>(map.swizzle(Swizzle::Bytes128))
        };
        let [states, gradients] = [states(of_c)?, states(of_dc)?];
        let [q, k] = ["q", "k"].map(|name| slot(&plan, name).loaded_by(keys));
        let [v, dh] = ["v", "dh"].map(|name| slot(&plan, name).loaded_by(values));
        let [dq, dk] = ["dq", "dk"].map(|name| slot(&plan, name).stored_by(keys));
        let dv = slot(&plan, "dv").stored_by(values);
        let scope = scope
            .with(arguments![sums, q_dq, k_dk, products, normaliser: n, parts_of_dot, anchors])
            .with(arguments![heads, chunks, stretches, slices: 1, log2_scale, eps, rho])
            .with(arguments![cu_seqlens, packed: false, sequences: 1, given, given_last, wanted])
            .with(arguments![through_n, exact, saved_n, saved_dn, keys: KEYS, C0: c0, n0, m0])
            .with(arguments![CN: c_n, nN: n_n, dCN: last[0], dnN: last[1], dC0: first[0]])
            .with(arguments![dn0: first[1], C_scales: c_scales, dC_scales: dc_scales, panels: rows / CHUNK])
            .with(arguments![forward: of_stretches, reverse: back_of_stretches, weighed: true]);

        if exact {
            let kernel = instance(&kernels::GATES, "vlstm_normaliser_gradient", dtype, |_| true);
            let kernel = device.load(kernel)?;
            let grid = blocks("B NH S", (heads * s).div_ceil(4))?;
            let own = arguments![slopes, rows: heads * s];
            plan.launch_in(&scope, &kernel, kernel.grid([grid, 1, 1])?, own)?;
        }
        let grid = blocks("B NH chunks of S", (heads * chunks).div_ceil(4))?;
        let kernel = device.kernel(&kernels::GATES, "vlstm_gate_sums<128>")?;
        plan.launch_in(&scope, &kernel, kernel.grid([grid, 1, 1])?, arguments![])?;
        let kernel = instance(&kernels::GATES, "vlstm_gate_weights_twice", dtype, |_| true);
        let kernel = device.load(kernel)?;
        let own = arguments![of_chunks, back_of_chunks];
        plan.launch_in(&scope, &kernel, kernel.grid([grid, 2, 1])?, own)?;
        let grid = blocks("B NH slices of V", heads * slices)?;
        // Where a state goes in, its gradient is asked for.
        if of_dc + of_c > 0 {
            let kernel = instance(&kernels::WIDE_STATES, "vlstm_wide_states", dtype, |_| true);
            let kernel = device.load(kernel)?;
            let (c, dc) = (c.loaded_by(states), dc.stored_by(gradients));
            let own = arguments![q, dh, C: c, dC: dc, weights: back_of_chunks];
            plan.launch_in(&scope, &kernel, Launch::of([grid, 1, 1], kernel.block()?), own)?;
        }
        if through_n {
            let kernel =
                instance(&kernels::WIDE_NORMALISER, "vlstm_wide_normaliser", dtype, |_| true);
            let kernel = device.load(kernel)?;
            let grid = blocks("B NH slices of K", 2 * heads * dhqk.div_ceil(CHUNK))?;
            plan.launch_in(
                &scope,
                &kernel,
                Launch::of([grid, 1, 1], kernel.block()?),
                arguments![],
            )?;
        }
        let through = if through_n { "true" } else { "false" };
        let of_kind = |i: &Instance| i.has("THROUGH_N", through);
        let kernel = instance(&kernels::WIDE_GRADIENTS, "vlstm_wide_gradients", dtype, of_kind);
        let kernel = device.load(kernel)?;
        let of_stretch = 2 * (2 + dhhv.div_ceil(WIDTH));
        let works = blocks("B NH parts of the gradients", heads * stretches * of_stretch)?;
        let grid = works.min(device.facts().multiprocessors);
        let own = arguments![
            q, k, v, dh, dq, dk, dv, C: c.loaded_by(states), dC: dc.loaded_by(gradients)
        ];
        plan.launch_in(&scope, &kernel, Launch::of([grid, 1, 1], kernel.block()?), own)?;

        let kernel = device.kernel(&kernels::FORGET, "vlstm_anchored_forget<128>")?;
        let grid = blocks("B NH stretches of S", (heads * stretches).div_ceil(4))?;
        plan.launch_in(&scope, &kernel, kernel.grid([grid, 1, 1])?, arguments![])?;
        Ok(plan)
    }
}
