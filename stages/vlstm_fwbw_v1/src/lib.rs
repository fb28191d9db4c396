//! `vlstm_fwbw_v1`: the vLSTM forward and backward with tiles of any shape, tuned for each width of
//! a head, the next tile on its way while the present one is multiplied.
//!
//! Five kernels as in `vlstm_fwbw_v0`, of which it takes the first and the last, the gates', as they
//! are. In the three between a block owns tiles of one size, and tiles of another come past it.
//!
//! The equations are those of [`lab_families::vlstm`]; xLSTM, arXiv 2405.04517, appendix A, and Tiled
//! Flash Linear Attention, arXiv 2503.14376.

#![deny(unsafe_code)]

mod checks;
mod tuning;

use lab_device::{DType, Device, Instance};
use lab_families::qkv::{Grid, sizes};
use lab_families::vlstm::{self, ForwardBackwardSlots, forward_backward_slots};
use lab_harness::{
    Dim, Dims, Error, Info, Plan, Preference, Request, Stage, Tiling, Version, arguments,
};
use lab_reference::vlstm::NormalizerGrad;
use vlstm_fwbw_v0::{FLAGS, add_forget_gradient};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// A version of the stage: the same five kernels, with other tiles.
#[derive(Debug)]
pub struct ForwardBackward {
    info: Info,
    tiles: Tiles,
}

/// How tiles come, and how the threads lie that multiply them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tiles {
    /// Whole, one after the other.
    Whole,
    /// Whole, with the threads of a warp as twins.
    WholeTwins,
    /// In pieces, the next on its way; the threads as twins.
    Pieces,
}

impl Tiles {
    /// The kernel with such tiles for heads of so many columns: the first of the table with room.
    fn instance(self, kernel: &tuning::Kernel, dtype: DType, columns: usize) -> Instance {
        let is_so = |i: &Instance| match self {
            Self::Whole => i.has("L", "InRows"),
            Self::WholeTwins => i.size("CX") == 0 && i.argument("L").is_none(),
            Self::Pieces => i.size("CX") > 0,
        };
        let fits = |i: &Instance| i.has("T", dtype.cpp()) && columns <= i.size("DH") && is_so(i);
        let found = kernel.source.instances(kernel.name).find(fits);
        found.expect("DHQK and DHHV of a checked problem")
    }
}

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
    parent: Some("twins"),
    change: "tiles come in pieces, the next on its way while one is multiplied; tiles of any shape",
    dtypes: &[F32, F16, BF16],
    dims: &DIMS,
    settings: &[vlstm::EPSILON, vlstm::NORMALIZER_GRAD],
    inputs: vlstm::FORWARD_BACKWARD_INPUTS,
    outputs: vlstm_fwbw_v0::OUTPUTS,
};

/// What the steps to it are built for.
static STEP_DIMS: [Dim; 5] =
    [DIMS[0], DIMS[1], DIMS[2], Dim { max: 128, ..DIMS[3] }, Dim { max: 128, ..DIMS[4] }];
static STEP: Info = Info { dtypes: &[F32], dims: &STEP_DIMS, ..INFO };

/// Once for each row what v0 makes for each pair.
pub static ROWS: ForwardBackward = ForwardBackward {
    info: Info {
        name: "rows",
        parent: Some("flags"),
        change: "of a row all that a pair needs, made once: exponents of 2 in two floats, 1 / N, r",
        ..STEP
    },
    tiles: Tiles::Whole,
};

/// The same threads in another order.
pub static TWINS: ForwardBackward = ForwardBackward {
    info: Info {
        name: "twins",
        parent: Some("rows"),
        change: "threads in another order: two lanes of a load ask for the same, 2 wavefronts, not 4",
        ..STEP
    },
    tiles: Tiles::WholeTwins,
};

/// Tiles of any shape, their pieces on their way.
pub static AHEAD: ForwardBackward = ForwardBackward { info: INFO, tiles: Tiles::Pieces };

/// This stage.
pub static STAGE: Stage = Stage {
    name: "vlstm_fwbw_v1",
    teaches: "tiles of any shape, tuned; the next tile arrives while the current one is multiplied",
    versions: &[&ROWS, &TWINS, &AHEAD],
    kernels: kernels::KERNELS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

impl Version for ForwardBackward {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        Some(match self.info.name {
            "ahead" => Preference::new(90).on_emulator(2),
            "twins" => Preference::new(100),
            "rows" => Preference::new(110),
            _ => return None,
        })
    }

    fn test_shapes(&self) -> Vec<Dims> {
        if self.tiles != Tiles::Pieces {
            let few = [[1, 1, 1, 16, 16], [1, 2, 129, 64, 48], [2, 1, 150, 32, 128]];
            return few.map(sizes).to_vec();
        }
        // And tiles of Q and of K and V that end in unlike places.
        let more = [[1, 1, 129, 64, 48], [1, 2, 97, 256, 192], [2, 1, 191, 128, 96]];
        [FLAGS.test_shapes(), more.map(sizes).to_vec()].concat()
    }

    fn tilings(&self, dims: &Dims, _dtype: DType) -> Vec<Tiling> {
        if self.tiles == Tiles::Pieces { tuning::tilings(dims) } else { Vec::new() }
    }

    /// Beside inputs and outputs it has, of each position, 32 bytes of temporaries: F, a `Query`, the
    /// sign of l and q · dq; and 12 of each tile of gates.
    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let (dims, dtype) = (&request.dims, request.dtype);
        let eps = vlstm::epsilon(&self.info, request.options())?;
        let exact = vlstm::normalizer_grad(&self.info, request.options()) == NormalizerGrad::Exact;
        let columns = request.dim("DHQK").max(request.dim("DHHV"));
        let tiling = request.tiling.map(|tiling| tuning::choose(tiling, dims)).transpose()?;

        let mut plan = Plan::new(device);
        let ForwardBackwardSlots { f, scope } = forward_backward_slots(&mut plan, request);
        let [side, q_dq] = [(); 2].map(|()| plan.scratch(F32, f.len()));
        let queries = plan.records("Query", 16, f.len());
        let sums = FLAGS.add_gate_sums(&mut plan, kernels::PROMISE, f, dims)?;
        let scope = scope.with(arguments![F: sums, side, q_dq, queries, eps, exact]);
        for (n, kernel) in tuning::KERNELS.iter().enumerate() {
            let instance = self.tiles.instance(kernel, dtype, columns);
            let (own, kernel) = match tiling {
                None => (instance.size(kernel.own), device.load(instance)?),
                Some(tiling) => {
                    let name = kernel.instantiation(n, tiling, dtype);
                    let loaded = device.instantiate(kernel.source, &name, instance.name())?;
                    (kernel.tiles_in(tiling, n)[0], loaded)
                }
            };
            let Grid { tiles, blocks } = Grid::of(dims, own)?;
            plan.launch_in(&scope, &kernel, kernel.grid([blocks, 1, 1])?, arguments![tiles])?;
        }
        add_forget_gradient(&mut plan, kernels::PROMISE, &scope, dims)?;
        Ok(plan)
    }
}
