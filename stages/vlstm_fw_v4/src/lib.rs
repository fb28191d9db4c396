//! `vlstm_fw_v4`: the vLSTM's forward pass in one walk over chunks, with the state on the chip.
//!
//! The equations are those of `lab_reference::vlstm`, by chunks of 64 positions. A block walks a head, for some
//! columns of V: their part of the state never leaves its registers.

use lab_device::{Arithmetic, DType, Device, KernelSource, Launch, Swizzle, TensorMap};
use lab_harness::qkv::{self, sizes};
use lab_harness::suite::{Check, every_kernel_loads};
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Request, Stage, Version, arguments, vlstm,
};

#[allow(missing_docs)]
pub mod kernels {
    //! The kernel files, embedded by the build script.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// A walk over chunks.
#[derive(Debug)]
pub struct Walk {
    info: Info,
    source: &'static KernelSource,
    kernel: &'static str,
}

/// Positions of a chunk, columns of a panel.
const SIDE: usize = 64;

/// A head's chunks are counted by an int, and a tensor map's sizes are below 2³².
static DIMS: [Dim; 5] = vlstm::dims([
    [1, 8, 65535],
    [2, 16, 65535],
    [100, 2048, 1 << 24],
    [64, 128, 128],
    [64, 256, 1024],
]);

const INFO: Info = Info {
    stage: "vlstm_fw_v4",
    name: "v2_scores",
    family: &vlstm::FORWARD,
    parent: Some("online"),
    change: "",
    dtypes: &[DType::F16, DType::BF16],
    dims: &DIMS,
    settings: &[vlstm::EPSILON],
    inputs: vlstm::FORWARD_INPUTS,
    outputs: &[
        Output { name: "h", bounds: &[(DType::F16, 1.5e-3), (DType::BF16, 1e-2)] },
        Output { name: "m", bounds: &[(DType::F16, 1.4e-7), (DType::BF16, 1.4e-7)] },
        Output { name: "n", bounds: &[(DType::F16, 2e-6), (DType::BF16, 2e-5)] },
    ],
};

/// Scores by a warpgroup of their own.
pub static SCORES: Walk =
    Walk { info: INFO, source: &kernels::V2_SCORES, kernel: "vlstm_fw_scores" };

/// This stage.
pub static STAGE: Stage = Stage {
    name: "vlstm_fw_v4",
    teaches: "one pass over the chunks, the state in registers as accumulators",
    versions: &[&SCORES],
    kernels: kernels::KERNELS,
    checks: &[Check {
        name: "every_kernel_loads_on_every_device",
        run: |device| every_kernel_loads(&STAGE, device),
    }],
    ..Stage::EMPTY
};

/// Columns, positions and heads of a tensor, and the box of a panel.
fn panels(dtype: DType, columns: usize, positions: usize, heads: usize) -> Result<TensorMap, Error> {
    let map = TensorMap::new(dtype, &[columns, positions, heads], &[SIDE, SIDE, 1])?;
    Ok(map.swizzle(Swizzle::Bytes128))
}

impl Version for Walk {
    fn info(&self) -> &Info {
        &self.info
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        vec![self.source]
    }

    fn arithmetic(&self, dtype: DType) -> Option<Arithmetic> {
        Arithmetic::fastest_for(dtype)
    }

    fn test_shapes(&self) -> Vec<Dims> {
        [
            [1, 1, 1, 16, 16],
            [1, 1, 64, 64, 64],
            [1, 1, 64, 128, 128],
            // Ragged: the last chunk ends within.
            [1, 1, 2, 16, 48],
            [1, 1, 65, 48, 16],
            [1, 1, 63, 112, 80],
            // Heads, narrow and wide, of unlike widths.
            [2, 3, 40, 64, 64],
            [3, 1, 5, 16, 64],
            [1, 2, 70, 64, 16],
            [2, 2, 9, 16, 208],
            // Several chunks, more than there are places for.
            [1, 2, 200, 64, 64],
            [1, 1, 130, 128, 80],
            [1, 1, 384, 16, 16],
            [1, 1, 300, 128, 256],
        ]
        .map(sizes)
        .to_vec()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let dtype = request.dtype;
        let eps = vlstm::epsilon(&self.info, request.options())?;
        let [b, nh, s, dhqk, dhhv] = qkv::of(&request.dims);
        let heads = b * nh;
        let fits = |i: &lab_device::Instance| {
            i.has("T", dtype.cpp())
                && dhqk <= i.size("KEY")
                && (i.size("GROUPS") > 1 || dhhv <= SIDE)
        };
        let instance = self.source.instances(self.kernel).find(fits);
        let instance = instance.expect("DHQK of a checked problem");
        let slices = dhhv.div_ceil(SIDE * instance.size("GROUPS"));
        let kernel = device.load(instance)?;
        let blocks = u32::try_from(heads * slices).expect("heads that were checked");
        let launch = Launch::of([blocks, 1, 1], kernel.block()?);

        let mut plan = Plan::new(device);
        let [q, k, v, i_gate, f_gate] = request.inputs(&mut plan, ["q", "k", "v", "i", "f"]);
        let h = plan.output("h", dtype, &[b, nh, s, dhhv]);
        let m_out = plan.output("m", DType::F32, &[b, nh, s]);
        let n_out = plan.output("n", DType::F32, &[b, nh, s]);
        let keys = panels(dtype, dhqk, s, heads)?;
        let values = panels(dtype, dhhv, s, heads)?;
        let [q, k] = [q, k].map(|slot| slot.loaded_by(keys));
        let (v, h) = (v.loaded_by(values), h.stored_by(values));
        let log2_scale = -0.5 * (dhqk as f64).log2();
        plan.launch(
            &kernel,
            launch,
            arguments![q, k, v, h, i_gate, f_gate, m_out, n_out, S: s, slices, log2_scale, eps],
        )?;
        Ok(plan)
    }
}
