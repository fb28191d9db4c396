//! `vlstm_fw_v1`: the vLSTM's forward pass in one kernel.
//!
//! The equations are those of `lab_reference::vlstm`. A block owns some rows of Q and h, and takes
//! the tiles of K and V from the diagonal back to the first, with a running maximum of the exponents
//! and, for each tile, the sums of the forget gates anew.

#![deny(unsafe_code)]

use lab_device::{DType, Device, KernelSource};
use lab_families::qkv::{self, Grid};
use lab_families::vlstm;
use lab_harness::compare::unit;
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Preference, Request, Stage, Version, arguments,
};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// Gates, a running maximum, a normaliser at the end.
#[derive(Debug)]
pub struct Online;

/// Positions and heads are counted by ints; a head's first element by more.
static DIMS: [Dim; 5] = vlstm::dims([
    [1, 1, 65535],
    [2, 32, 65535],
    [100, 4096, 1 << 24],
    [64, 64, qkv::MOST_COLUMNS],
    [64, 64, qkv::MOST_COLUMNS],
]);

/// Of m and n, which are f32 in runs of every type.
const fn bounds_of_a_row(bound: f64) -> [(DType, f64); 3] {
    [(DType::F32, bound), (DType::F16, bound), (DType::BF16, bound)]
}

static INFO: Info = Info {
    stage: "vlstm_fw_v1",
    name: "online",
    family: &vlstm::FORWARD,
    parent: Some("causal"),
    change: "gates and a normaliser, by a running maximum, in the pass over the tiles",
    dtypes: &[DType::F32, DType::F16, DType::BF16],
    dims: &DIMS,
    settings: &[vlstm::EPSILON],
    inputs: vlstm::FORWARD_INPUTS,
    // h, f32: a row where Σ C nearly cancels and exp(-m) is small is divided by little, and with it
    // the roundings of the sum; up to 2.8e-6, as shapes and seeds fall. Halves: the one rounding of
    // the result. m is a sum of few roundings (3.5e-8), n a sum over a row (3.4e-7).
    // An element is relative to its row without the cancellation: 1.7 units of roundoff of f32.
    outputs: &[
        Output {
            name: "h",
            bounds: &[(DType::F32, 1e-5), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
            elements: &[
                (DType::F32, 6.5 * unit::F32),
                (DType::F16, 4.0 * unit::F32),
                (DType::BF16, 4.0 * unit::F32),
            ],
        },
        Output {
            name: "m",
            bounds: &bounds_of_a_row(1.4e-7),
            elements: &bounds_of_a_row(2.0 * unit::F32),
        },
        Output {
            name: "n",
            bounds: &bounds_of_a_row(1.3e-6),
            elements: &bounds_of_a_row(3.4 * unit::F32),
        },
    ],
};

/// The one version.
pub static ONLINE: Online = Online;

/// This stage.
pub static STAGE: Stage = Stage {
    name: "vlstm_fw_v1",
    teaches: "gates and a running maximum: when the maximum grows, the sums so far are rescaled",
    versions: &[&ONLINE],
    kernels: kernels::KERNELS,
    ..Stage::EMPTY
};

impl Version for Online {
    fn info(&self) -> &Info {
        &INFO
    }

    fn preference(&self) -> Option<Preference> {
        Some(Preference::new(70).on_emulator(1))
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        vec![&kernels::ONLINE]
    }

    fn test_shapes(&self) -> Vec<Dims> {
        qkv::test_shapes()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let dtype = request.dtype;
        let eps = vlstm::epsilon(&INFO, request.options())?;
        let [b, nh, s, dhqk, dhhv] = qkv::sizes_of(&request.dims);
        let instance = qkv::instance_for(&kernels::ONLINE, "vlstm_fw", dtype, &request.dims);
        let Grid { tiles, blocks } = Grid::of(&request.dims, instance.size("TQ"))?;
        let kernel = device.load(instance)?;
        let launch = kernel.grid([blocks, 1, 1])?;

        let mut plan = Plan::new(device);
        let [q, k, v, i_gate, f_gate] = request.inputs(&mut plan, ["q", "k", "v", "i", "f"]);
        let h = plan.output("h", dtype, &[b, nh, s, dhhv]);
        let m_out = plan.output("m", DType::F32, &[b, nh, s]);
        let n_out = plan.output("n", DType::F32, &[b, nh, s]);
        let scale = 1.0 / (dhqk as f64).sqrt();
        let arguments = arguments![
            q, k, v, i_gate, f_gate, h, m_out, n_out, tiles, S: s, dhqk, dhhv, scale, eps
        ];
        plan.launch(&kernel, launch, arguments)?;
        Ok(plan)
    }
}
