//! `vlstm_fw_v0`: the causal products, without gates and normaliser.
//!
//! h_i = Σ_{j ≤ i} (q_i · k_j / √DHQK) v_j. A block owns some rows of Q and h, and takes the tiles
//! of K and V up to its own rows: those above the diagonal are never touched.

#![deny(unsafe_code)]

use lab_device::{DType, Device, KernelSource};
use lab_families::qkv::{self, Grid};
use lab_families::vlstm;
use lab_harness::compare::unit;
use lab_harness::{Dim, Dims, Error, Info, Output, Plan, Request, Stage, Version, arguments};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// Tiles up to the diagonal.
#[derive(Debug)]
pub struct Causal;

/// Positions and heads are counted by ints; a head's first element by more.
static DIMS: [Dim; 5] = vlstm::dims([
    [1, 1, 65535],
    [2, 32, 65535],
    [100, 4096, 1 << 24],
    [64, 64, qkv::MOST_COLUMNS],
    [64, 64, qkv::MOST_COLUMNS],
]);

static INFO: Info = Info {
    stage: "vlstm_fw_v0",
    name: "causal",
    family: &vlstm::UNGATED,
    parent: Some("block_tile"),
    change: "only the tiles up to the diagonal: no position takes from a later one",
    dtypes: &[DType::F32, DType::F16, DType::BF16],
    dims: &DIMS,
    settings: &[],
    inputs: vlstm::UNGATED_INPUTS,
    // f32: the roundings of a sum of up to S terms, one after the other, grow with √S; S = 2000 is
    // the largest of the suite on the emulator (7e-7), 8192 on a GPU. Halves: the one rounding
    // of the result.
    // An element: both sums are in f32; 1.9 units of roundoff.
    outputs: &[Output {
        name: "h",
        bounds: &[(DType::F32, 2.5e-6), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
        elements: &[
            (DType::F32, 7.5 * unit::F32),
            (DType::F16, 4.0 * unit::F32),
            (DType::BF16, 4.0 * unit::F32),
        ],
    }],
};

/// The one version.
pub static CAUSAL: Causal = Causal;

/// This stage.
pub static STAGE: Stage = Stage {
    name: "vlstm_fw_v0",
    teaches: "a causal mask: only the tiles up to the diagonal are loaded and multiplied",
    versions: &[&CAUSAL],
    kernels: kernels::KERNELS,
    ..Stage::EMPTY
};

impl Version for Causal {
    fn info(&self) -> &Info {
        &INFO
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        vec![&kernels::CAUSAL]
    }

    fn test_shapes(&self) -> Vec<Dims> {
        qkv::test_shapes()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let dtype = request.dtype;
        let [b, nh, s, dhqk, dhhv] = qkv::sizes_of(&request.dims);
        let instance = qkv::instance_for(&kernels::CAUSAL, "causal_qkv", dtype, &request.dims);
        let Grid { tiles, blocks } = Grid::of(&request.dims, instance.size("TQ"))?;
        let kernel = device.load(instance)?;
        let launch = kernel.grid([blocks, 1, 1])?;

        let mut plan = Plan::new(device);
        let [q, k, v] = request.inputs(&mut plan, ["q", "k", "v"]);
        let h = plan.output("h", dtype, &[b, nh, s, dhhv]);
        let scale = 1.0 / (dhqk as f64).sqrt();
        plan.launch(&kernel, launch, arguments![q, k, v, h, tiles, S: s, dhqk, dhhv, scale])?;
        Ok(plan)
    }
}
