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
use lab_harness::program::{Program, Slot, scalar};
use lab_harness::qkv::{Grid, of, sizes};
use lab_harness::{
    Cost, Dim, Dims, Error, Info, Options, Prepared, Problem, Stage, Tensors, Tiling, Version,
    vlstm,
};
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
    family: vlstm::FORWARD_BACKWARD,
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
    version_checks: vlstm::checks::FORWARD_BACKWARD,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

impl Ahead {
    /// With the tiles in use, or with others. Beside inputs and outputs it has, of each position, 32
    /// bytes of temporaries: F, a `Query`, the sign of l and q · dq; and 12 of each tile of gates.
    fn program(
        &self,
        device: &Device,
        inputs: &Tensors,
        options: &Options,
        tiling: Option<&Tiling>,
    ) -> Result<Program, Error> {
        let (dims, dtype) = INFO.problem_of(inputs)?;
        let eps = vlstm::epsilon(&INFO, options)?;
        let exact = vlstm::normalizer_grad(&INFO, options) == NormalizerGrad::Exact;
        let [b, nh, s, dhqk, dhhv] = of(&dims);
        let class = match tiling {
            None => tuning::in_use(dhqk, dhhv),
            Some(tiling) => tuning::choose(tiling, dhqk, dhhv)?,
        };
        let kernel = |source: &'static KernelSource, index: usize| {
            let name = class.instantiation(index, dtype.cpp());
            match tiling {
                None => device.kernel(source, &name),
                Some(_) => {
                    let listed = tuning::in_use(dhqk, dhhv).instantiation(index, dtype.cpp());
                    device.instantiate(source, &name, &listed)
                }
            }
        };
        let forward = kernel(&kernels::FORWARD, FORWARD)?;
        let backward_q = kernel(&kernels::BACKWARD, BACKWARD_Q)?;
        let backward_kv = kernel(&kernels::BACKWARD, BACKWARD_KV)?;

        let mut program = Program::new(device);
        let p = &mut program;
        let mut inputs_of = |name: &str| p.input(&inputs[name]);
        let [q, k, v] = [inputs_of("q")?, inputs_of("k")?, inputs_of("v")?].map(Slot::read);
        let [i, dh] = [inputs_of("i")?, inputs_of("dh")?].map(Slot::read);
        let f = inputs_of("f")?;
        let row = [b, nh, s];
        let h = p.output("h", dtype, &[b, nh, s, dhhv])?;
        let m = p.output("m", F32, &row)?;
        let n = p.output("n", F32, &row)?;
        let dq = p.output("dq", dtype, &[b, nh, s, dhqk])?;
        let dk = p.output("dk", dtype, &[b, nh, s, dhqk])?;
        let dv = p.output("dv", dtype, &[b, nh, s, dhhv])?;
        let di = p.output("di", F32, &row)?;
        let df = p.output("df", F32, &row)?;
        let rows = b * nh * s;
        let [side, q_dq, queries] =
            [p.scratch(F32, rows)?, p.scratch(F32, rows)?, p.scratch(F32, 4 * rows)?];
        let sums = FLAGS.gate_sums(p, f, &dims)?;

        let launch_of = |kernel: usize| -> Result<_, Error> {
            let tiles = class.tiles[kernel];
            let grid = Grid::of(&dims, tiles.own)?;
            let launch = Launch::new(grid.blocks, tiles.threads() as u32);
            Ok((launch.shared(tiles.shared(class.dh)), scalar(grid.tiles as i32)))
        };
        let [length, qk, hv] = [s, dhqk, dhhv].map(|size| scalar(size as i32));
        let scale = scalar((1.0 / (dhqk as f64).sqrt()) as f32);
        let (eps, through_n) = (scalar(eps as f32), scalar(i32::from(exact)));
        let sr = sums.read();
        let (launch, tiles) = launch_of(FORWARD)?;
        let (hw, mw, nw, sw) = (h.write(), m.write(), n.write(), side.write());
        let all = [q, k, v, i, sr, hw, mw, nw, sw, tiles, length, qk, hv, scale, eps];
        p.launch(forward, launch, all);
        let (launch, tiles) = launch_of(BACKWARD_Q)?;
        let (hr, mr, nr, sider) = (h.read(), m.read(), n.read(), side.read());
        let (dqw, qsw, qdqw) = (dq.write(), queries.write(), q_dq.write());
        let all = [
            q, k, v, hr, dh, i, sr, mr, nr, sider, dqw, qsw, qdqw, tiles, length, qk, hv, scale,
            eps, through_n,
        ];
        p.launch(backward_q, launch, all);
        let (launch, tiles) = launch_of(BACKWARD_KV)?;
        let (dkw, dvw, diw) = (dk.write(), dv.write(), di.write());
        let all = [q, k, v, dh, i, sr, queries.read(), dkw, dvw, diw, tiles, length, qk, hv, scale];
        p.launch(backward_kv, launch, all);
        forget(p, [f.read(), q_dq.read(), di.read(), df.write()], &dims)?;
        Ok(program)
    }
}

impl Version for Ahead {
    fn info(&self) -> &Info {
        &INFO
    }

    fn inputs(&self, problem: &Problem) -> Tensors {
        vlstm::forward_backward_inputs(problem)
    }

    fn reference(&self, inputs: &Tensors, options: &Options) -> Vec<(&'static str, Vec<f64>)> {
        let eps = vlstm::epsilon(&INFO, options).expect("options of a checked problem");
        let through = vlstm::normalizer_grad(&INFO, options);
        vlstm::forward_backward_reference(inputs, eps, through)
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        vlstm::forward_backward_cost(dims, dtype)
    }

    fn replayed(&self) -> bool {
        true
    }

    fn bench_shapes(&self, dtype: DType) -> Vec<Dims> {
        vlstm::bench_shapes(&INFO, dtype)
    }

    fn test_shapes(&self) -> Vec<Dims> {
        // And tiles of Q and of K and V that end in unlike places.
        let more = [[1, 1, 129, 64, 48], [1, 2, 97, 256, 192], [2, 1, 191, 128, 96]];
        [FLAGS.test_shapes(), more.map(sizes).to_vec()].concat()
    }

    fn prepare(
        &self,
        device: &Device,
        inputs: &Tensors,
        options: &Options,
    ) -> Result<Box<dyn Prepared>, Error> {
        Ok(Box::new(self.program(device, inputs, options, None)?))
    }

    fn tilings(&self, dims: &Dims, _dtype: DType) -> Vec<Tiling> {
        tuning::tilings(dims)
    }

    fn prepare_tiled(
        &self,
        device: &Device,
        inputs: &Tensors,
        options: &Options,
        tiling: &Tiling,
    ) -> Result<Box<dyn Prepared>, Error> {
        Ok(Box::new(self.program(device, inputs, options, Some(tiling))?))
    }
}
