//! `vlstm_fwbw_v4`: the vLSTM forward and backward by chunks, with the state and its gradient on the chip.
//!
//! The forward pass is that of `vlstm_fw_v4`. Each gradient is made by a walk like it over the chunks of a head: dq forward,
//! with the state made once more; dk and dv back, with the state's gradient. The equations are those of
//! `lab_reference::vlstm`, by chunks of 64 positions.

mod checks;

use lab_device::{DType, Device, Instance, KernelSource, Launch, Swizzle, TensorMap};
use lab_harness::plan::Slot;
use lab_harness::qkv::{self, sizes};
use lab_harness::vlstm::{self, ForwardBackwardSlots, forward_backward_slots};
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Request, Setting, Stage, Version, arguments,
};

#[allow(missing_docs)]
pub mod kernels {
    //! The kernel files, embedded by the build script.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// Walks for the gradients.
#[derive(Debug)]
pub struct Walks {
    info: Info,
    /// Whether the walks of all gradients are one launch.
    together: bool,
}

/// Positions of a chunk, and columns of a panel of a matrix.
const SIDE: usize = 64;

/// Chunks from one anchor to the next, as `weights.cuh` has them.
const ANCHOR_CHUNKS: usize = 4;

/// Bytes of the kernels' structs `Before` and `Weights`.
const BEFORE: usize = 16;
const WEIGHTS: usize = SIDE * (8 + 8 + 4 + 2) + 16;

/// Wider heads leave no registers for a state.
static DIMS: [Dim; 5] = vlstm::dims([
    [1, 4, 65535],
    [2, 16, 65535],
    [150, 2048, 1 << 24],
    [64, 128, 128],
    [64, 256, 256],
]);

const F16: DType = DType::F16;
const BF16: DType = DType::BF16;

/// The gradient through n is not made yet.
const CONSTANT: Setting = Setting::choice(
    "normalizer_grad",
    "of the gradient: the normaliser n is held constant",
    &["constant"],
);

static INFO: Info = Info {
    stage: "vlstm_fwbw_v4",
    name: "v0_walks",
    family: &vlstm::FORWARD_BACKWARD,
    parent: Some("ahead"),
    change: "by chunks: the state, and its gradient, stay in registers, as accumulators of wgmma",
    dtypes: &[F16, BF16],
    dims: &DIMS,
    settings: &[vlstm::EPSILON, CONSTANT],
    inputs: vlstm::FORWARD_BACKWARD_INPUTS,
    outputs: &[
        Output { name: "h", bounds: &[(F16, 1e-3), (BF16, 8e-3)] },
        Output { name: "m", bounds: &[(F16, 1.4e-7), (BF16, 1.4e-7)] },
        Output { name: "n", bounds: &[(F16, 1e-6), (BF16, 5e-6)] },
        Output { name: "dq", bounds: &[(F16, 1e-3), (BF16, 8e-3)] },
        Output { name: "dk", bounds: &[(F16, 1e-3), (BF16, 8e-3)] },
        Output { name: "dv", bounds: &[(F16, 1e-3), (BF16, 8e-3)] },
        Output { name: "di", bounds: &[(F16, 1e-3), (BF16, 8e-3)] },
        Output { name: "df", bounds: &[(F16, 2e-3), (BF16, 1.2e-2)] },
    ],
};

/// A launch for each gradient.
pub static WALKS: Walks = Walks { info: INFO, together: false };

/// One for all.
pub static TOGETHER: Walks = Walks {
    info: Info {
        name: "v1_together",
        parent: Some("v0_walks"),
        change: "the walks of all gradients in one launch: a head's tensors meet in the L2 cache",
        ..INFO
    },
    together: true,
};

/// This stage.
pub static STAGE: Stage = Stage {
    name: "vlstm_fwbw_v4",
    teaches: "one walk, four uses: the gradients as fast as the forward pass",
    versions: &[&WALKS, &TOGETHER],
    kernels: kernels::KERNELS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

/// Panels of a tensor: 64 of its columns, a chunk of positions.
fn panels(
    dtype: DType,
    columns: usize,
    positions: usize,
    heads: usize,
) -> Result<TensorMap, Error> {
    let map = TensorMap::new(dtype, &[columns, positions, heads], &[SIDE, SIDE, 1])?;
    Ok(map.swizzle(Swizzle::Bytes128))
}

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

/// As many as there are, if a launch can have so many.
fn blocks(what: &str, all: usize) -> Result<u32, Error> {
    let too_many = |_| Error::bad(what, format!("at most {}, one a block", i32::MAX), all);
    i32::try_from(all).map(|all| all as u32).map_err(too_many)
}

impl Version for Walks {
    fn info(&self) -> &Info {
        &self.info
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
        // The walks are the same: of the other version, one of each shape.
        let few = if self.together { &all[..] } else { &all[9..] };
        few.iter().map(|&shape| sizes(shape)).collect()
    }

    fn bench_shapes(&self, dtype: DType) -> Vec<Dims> {
        vlstm::wide_bench_shapes(&self.info, dtype)
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let dtype = request.dtype;
        let eps = vlstm::epsilon(&self.info, request.options())?;
        let [b, nh, s, dhqk, dhhv] = qkv::of(&request.dims);
        let (heads, chunks) = (b * nh, s.div_ceil(SIDE));
        let anchors = (chunks - 1) / ANCHOR_CHUNKS;
        let log2_scale = -0.5 * (dhqk as f64).log2();

        let mut plan = Plan::new(device);
        let ForwardBackwardSlots { scope, .. } = forward_backward_slots(&mut plan, request);
        let tensor = |plan: &Plan, name: &str| plan.slot(name).expect("of the family");
        let forward = instance(&kernels::FORWARD, "vlstm_forward_anchored", dtype, |i| {
            dhqk <= i.size("KEY") && (i.size("GROUPS") > 1 || dhhv <= SIDE)
        });
        let gradients = instance(&kernels::GRADIENTS, "vlstm_gradients", dtype, |i| {
            dhqk <= i.size("DHQK") && dhhv <= i.size("DHHV")
        });
        // 64s of columns, as whole blocks have them.
        let value_panels = dhhv.div_ceil(SIDE * forward.size("GROUPS")) * forward.size("GROUPS");
        let key_width = if gradients.size("DHHV") == 128 { 2 } else { 1 };
        let key_panels = dhqk.div_ceil(SIDE * key_width) * key_width;
        let parts = 4 * value_panels;
        let words = forward.size("KEY") * if dtype == F16 { SIDE } else { SIDE / 2 };
        let saved_words = (heads * anchors * value_panels * words).max(1);
        let saved = plan.scratch(DType::U32, saved_words);
        let sums = plan.records("Before", BEFORE, heads * chunks);
        let weights: [Slot; 2] = [(); 2].map(|()| plan.records("Weights", WEIGHTS, heads * chunks));
        let [q_dq, k_dk] = [(); 2].map(|()| plan.scratch(DType::F32, key_panels * heads * s));
        let products = plan.scratch(DType::F32, (heads * anchors * parts).max(1));
        let scope = scope
            .with(arguments![saved, sums, forward: weights[0], reverse: weights[1]])
            .with(arguments![q_dq, k_dk, products, normaliser: tensor(&plan, "n")])
            .with(arguments![heads, chunks, anchors, parts, slices: key_panels, log2_scale, eps]);

        let keys = panels(dtype, dhqk, s, heads)?;
        let values = panels(dtype, dhhv, s, heads)?;
        let [q, k] = ["q", "k"].map(|name| tensor(&plan, name));
        let [v, dh] = ["v", "dh"].map(|name| tensor(&plan, name).loaded_by(values));
        let [h, dv] = ["h", "dv"].map(|name| tensor(&plan, name).stored_by(values));
        let [dq, dk] = ["dq", "dk"].map(|name| tensor(&plan, name).stored_by(keys));
        let scope = scope
            .with(arguments![q: q.loaded_by(keys), k: k.loaded_by(keys), v, dh, h, dv, dq, dk]);

        let kernel = device.load(forward)?;
        let all = heads * value_panels / forward.size("GROUPS");
        let launch = Launch::of([blocks("B NH slices of V", all)?, 1, 1], kernel.block()?);
        plan.launch_in(&scope, &kernel, launch, [])?;

        let of_gates = [
            device.kernel(&kernels::GATES, "vlstm_gate_sums<128>")?,
            device.load(instance(&kernels::GATES, "vlstm_gate_weights", dtype, |_| true))?,
        ];
        for kernel in of_gates {
            let grid = blocks("B NH chunks of S", (heads * chunks).div_ceil(4))?;
            plan.launch_in(&scope, &kernel, kernel.grid([grid, 1, 1])?, [])?;
        }

        let kernel = device.load(gradients)?;
        let key_blocks = key_panels / key_width;
        let value_blocks = value_panels / forward.size("GROUPS");
        let launches: &[(i32, usize)] = match self.together {
            true => &[(-1, 2 * key_blocks + value_blocks)],
            false => &[(0, key_blocks), (1, key_blocks), (2, value_blocks)],
        };
        for &(only, of_head) in launches {
            let grid = blocks("B NH slices of the gradients", heads * of_head)?;
            let launch = Launch::of([grid, 1, 1], kernel.block()?);
            plan.launch_in(&scope, &kernel, launch, arguments![only])?;
        }

        let kernel = device.kernel(&kernels::FORGET, "vlstm_anchored_forget<128>")?;
        let grid = blocks("B NH stretches of S", (heads * (anchors + 1)).div_ceil(4))?;
        plan.launch_in(&scope, &kernel, kernel.grid([grid, 1, 1])?, [])?;
        Ok(plan)
    }
}
