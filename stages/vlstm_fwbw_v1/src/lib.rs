//! `vlstm_fwbw_v1`: the vLSTM forward and backward with tiles of any shape, tuned for each width of
//! a head, the next tile on its way while the present one is multiplied.
//!
//! Five kernels as in `vlstm_fwbw_v0`, of which it takes the first and the last, the gates', as they
//! are. In the three between a block owns tiles of one size, and tiles of another come past it.
//!
//! The equations are those of [`lab_harness::vlstm`]; xLSTM, arXiv 2405.04517, appendix A, and Tiled
//! Flash Linear Attention, arXiv 2503.14376.

mod checks;
mod tiles;
mod tuning;

use lab_device::{DType, Device, KernelSource, Launch};
use lab_harness::qkv::{Grid, of, sizes};
use lab_harness::vlstm::{self, ForwardBackwardSlots, forward_backward_slots};
use lab_harness::{Dim, Dims, Error, Info, Plan, Request, Stage, Tiling, Version, arguments};
use lab_reference::vlstm::NormalizerGrad;
use vlstm_fwbw_v0::{FLAGS, forget};

use crate::tiles::{BACKWARD_KV, BACKWARD_Q, FORWARD};

#[allow(missing_docs)]
pub mod kernels {
    //! The kernel files, embedded by the build script.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// Tiles of any shape, the next ones on their way.
#[derive(Debug)]
pub struct Ahead;

const F32: DType = DType::F32;
const F16: DType = DType::F16;
const BF16: DType = DType::BF16;

static DIMS: [Dim; 5] = vlstm::dims([
    [1, 1, 65535],
    [2, 16, 65535],
    [100, 4096, 1 << 24],
    [64, 64, 256],
    [64, 64, 256],
]);

static INFO: Info = Info {
    stage: "vlstm_fwbw_v1",
    name: "ahead",
    family: &vlstm::FORWARD_BACKWARD,
    parent: Some("flags"),
    change: "tiles of any shape, the next on its way; of a row all that a pair needs, made once",
    dtypes: &[F32, F16, BF16],
    dims: &DIMS,
    settings: &[vlstm::EPSILON, vlstm::NORMALIZER_GRAD],
    inputs: vlstm::FORWARD_BACKWARD_INPUTS,
    outputs: vlstm_fwbw_v0::OUTPUTS,
};

/// The one version.
pub static AHEAD: Ahead = Ahead;

/// This stage.
pub static STAGE: Stage = Stage {
    name: "vlstm_fwbw_v1",
    teaches: "tiles of any shape, tuned; the next one arrives while this one is multiplied",
    versions: &[&AHEAD],
    kernels: kernels::KERNELS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

impl Version for Ahead {
    fn info(&self) -> &Info {
        &INFO
    }

    fn test_shapes(&self) -> Vec<Dims> {
        // And tiles of Q and of K and V that end in unlike places.
        let more = [[1, 1, 129, 64, 48], [1, 2, 97, 256, 192], [2, 1, 191, 128, 96]];
        [FLAGS.test_shapes(), more.map(sizes).to_vec()].concat()
    }

    fn tilings(&self, dims: &Dims, _dtype: DType) -> Vec<Tiling> {
        tuning::tilings(dims)
    }

    /// Beside inputs and outputs it has, of each position, 32 bytes of temporaries: F, a `Query`, the
    /// sign of l and q · dq; and 12 of each tile of gates.
    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let (dims, dtype) = (&request.dims, request.dtype);
        let eps = vlstm::epsilon(&INFO, request.options())?;
        let exact = vlstm::normalizer_grad(&INFO, request.options()) == NormalizerGrad::Exact;
        let [_, _, _, dhqk, dhhv] = of(dims);
        let in_use = tuning::in_use(dhqk, dhhv);
        let class = match request.tiling {
            None => in_use,
            Some(tiling) => tuning::choose(tiling, dhqk, dhhv)?,
        };
        let kernel = |source: &'static KernelSource, index: usize| {
            let listed = in_use.instantiation(index, dtype.cpp());
            device.instantiate(source, &class.instantiation(index, dtype.cpp()), &listed)
        };
        let launches = [
            (FORWARD, kernel(&kernels::FORWARD, FORWARD)?),
            (BACKWARD_Q, kernel(&kernels::BACKWARD, BACKWARD_Q)?),
            (BACKWARD_KV, kernel(&kernels::BACKWARD, BACKWARD_KV)?),
        ];

        let mut plan = Plan::new(device);
        let ForwardBackwardSlots { f, scope } = forward_backward_slots(&mut plan, request);
        let [side, q_dq] = [(); 2].map(|()| plan.scratch(F32, f.len()));
        let queries = plan.records("Query", 16, f.len());
        let sums = FLAGS.gate_sums(&mut plan, f, dims)?;
        let scope = scope.with(arguments![F: sums, side, q_dq, queries, eps, exact]);
        for (index, kernel) in &launches {
            let own = class.tiles[*index];
            let Grid { tiles, blocks } = Grid::of(dims, own.own)?;
            let launch = Launch::new(blocks, own.threads() as u32).shared(own.shared(class.dh));
            plan.launch_in(&scope, kernel, launch, arguments![tiles])?;
        }
        forget(&mut plan, &scope, dims)?;
        Ok(plan)
    }
}
