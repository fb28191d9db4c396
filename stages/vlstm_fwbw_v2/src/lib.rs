//! `vlstm_fwbw_v2`: the vLSTM forward and backward over all pairs of positions, on tensor cores.
//!
//! The forward pass is that of `vlstm_fw_v2`. Of the gradients one kernel owns positions, and makes dv, dk and di of the
//! rows that come past; another owns rows, and makes dq. Nobody adds to what another has written. The equations are those
//! of `lab_reference::vlstm`.

#![deny(unsafe_code)]

mod checks;

use lab_device::{DType, Device, Instance, KernelSource};
use lab_families::qkv::{self, sizes};
use lab_families::vlstm::{self, ForwardBackwardSlots, forward_backward_slots};
use lab_harness::compare::unit;
use lab_harness::plan::{Scope, Slot};
use lab_harness::{Dim, Dims, Error, Info, Output, Plan, Request, Stage, Version, arguments};
use lab_reference::vlstm::NormalizerGrad;
use vlstm_fw_v2::{FACTORS, Forward, Pairs, panels};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// Gradients of all pairs.
#[derive(Debug)]
pub struct Gradients {
    info: Info,
    /// The kernel that owns positions, and the one that owns rows, each of a file.
    kernels: [(&'static KernelSource, &'static str); 2],
    forward: &'static Pairs,
    factors: bool,
}

/// Columns of a panel of a matrix, and rows that come past at once.
const SIDE: usize = 64;

/// Wider heads leave no registers for the sums of dk and dv.
static DIMS: [Dim; 5] = vlstm::dims([
    [1, 4, 65535],
    [2, 16, 65535],
    [150, 2048, 1 << 24],
    [64, 128, 128],
    [64, 128, 128],
]);

const F16: DType = DType::F16;
const BF16: DType = DType::BF16;

static INFO: Info = Info {
    stage: "vlstm_fwbw_v2",
    name: "v0_mma",
    family: &vlstm::FORWARD_BACKWARD,
    parent: Some("ahead"),
    change: "all products on tensor cores; sums that nearly cancel stay in f32, beside them",
    dtypes: &[F16, BF16],
    dims: &DIMS,
    settings: &[vlstm::EPSILON, vlstm::NORMALIZER_GRAD],
    inputs: vlstm::FORWARD_BACKWARD_INPUTS,
    // An element: of h a quarter to a third of a unit of roundoff of the halves; of gradients, which are relative to sums of
    // absolute values through both passes, a tenth and less.
    outputs: &[
        Output {
            name: "h",
            bounds: &[(F16, 1e-3), (BF16, 8e-3)],
            elements: &[(F16, unit::F16), (BF16, 1.4 * unit::BF16)],
        },
        Output {
            name: "m",
            bounds: &[(F16, 1e-7), (BF16, 1e-7)],
            elements: &[(F16, 2.0 * unit::F32), (BF16, 2.0 * unit::F32)],
        },
        Output {
            name: "n",
            bounds: &[(F16, 1e-6), (BF16, 1e-6)],
            elements: &[(F16, 5.0 * unit::F32), (BF16, 5.0 * unit::F32)],
        },
        Output {
            name: "dq",
            bounds: &[(F16, 1e-3), (BF16, 8e-3)],
            elements: &[(F16, 0.2 * unit::F16), (BF16, 0.28 * unit::BF16)],
        },
        Output {
            name: "dk",
            bounds: &[(F16, 1e-3), (BF16, 8e-3)],
            // Near the end of a sequence a sum has few terms: 0.057 units were seen in bf16.
            elements: &[(F16, 0.08 * unit::F16), (BF16, 0.08 * unit::BF16)],
        },
        Output {
            name: "dv",
            bounds: &[(F16, 1e-3), (BF16, 8e-3)],
            elements: &[(F16, 0.25 * unit::F16), (BF16, 0.35 * unit::BF16)],
        },
        Output {
            name: "di",
            bounds: &[(F16, 1e-3), (BF16, 8e-3)],
            elements: &[(F16, 0.3 * unit::F32), (BF16, 0.2 * unit::F32)],
        },
        Output {
            name: "df",
            bounds: &[(F16, 2e-3), (BF16, 1.2e-2)],
            elements: &[(F16, 0.05 * unit::F32), (BF16, 0.03 * unit::F32)],
        },
    ],
};

/// By warps.
pub static MMA: Gradients = Gradients {
    info: INFO,
    kernels: [(&kernels::V0_MMA, "vlstm_keys_mma"), (&kernels::V0_MMA, "vlstm_queries_mma")],
    forward: &vlstm_fw_v2::MMA,
    factors: false,
};

/// By warpgroups.
pub static WGMMA: Gradients = Gradients {
    info: Info {
        name: "v1_wgmma",
        parent: Some("v0_mma"),
        change: "wgmma, of tiles that a producer asks TMA for; pairs stay in registers",
        ..INFO
    },
    kernels: [
        (&kernels::V1_WGMMA, "vlstm_keys_wgmma"),
        (&kernels::V1_WGMMA, "vlstm_queries_wgmma"),
    ],
    forward: &vlstm_fw_v2::PERSISTENT,
    factors: false,
};

/// Without a power for each pair.
pub static FACTORED: Gradients = Gradients {
    info: Info {
        name: "v2_factors",
        parent: Some("v1_wgmma"),
        change: "off the diagonal a weight is a factor of the row times one of the position: no power a pair",
        ..INFO
    },
    kernels: [
        (&kernels::V2_FACTORS, "vlstm_keys_factors"),
        (&kernels::V2_FACTORS, "vlstm_queries_factors"),
    ],
    forward: &vlstm_fw_v2::PERSISTENT,
    factors: true,
};

/// Products before they are needed.
pub static AHEAD: Gradients = Gradients {
    info: Info {
        name: "v3_ahead",
        parent: Some("v2_factors"),
        change: "pairs are weighed while the next product is made",
        ..INFO
    },
    kernels: [
        (&kernels::V3_AHEAD, "vlstm_keys_ahead"),
        (&kernels::V3_AHEAD, "vlstm_queries_ahead"),
    ],
    forward: &vlstm_fw_v2::PERSISTENT,
    factors: true,
};

/// Without half of the first tile.
pub static SKIP: Gradients = Gradients {
    info: Info {
        name: "v4_skip",
        parent: Some("v3_ahead"),
        change: "the second warpgroup leaves rows that come before all of its positions, and is out of step with the first",
        ..INFO
    },
    kernels: [(&kernels::V4_SKIP, "vlstm_keys_skipping"), AHEAD.kernels[1]],
    forward: &vlstm_fw_v2::PERSISTENT,
    factors: true,
};

/// This stage.
pub static STAGE: Stage = Stage {
    name: "vlstm_fwbw_v2",
    teaches: "all gradients of all pairs on tensor cores, without atomics; sums that nearly cancel stay in f32",
    versions: &[&MMA, &WGMMA, &FACTORED, &AHEAD, &SKIP],
    kernels: kernels::KERNELS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

/// The first that has room for the keys and, where it has values, for these.
fn instance(source: &'static KernelSource, kernel: &str, dtype: DType, dims: &Dims) -> Instance {
    let [.., dhqk, dhhv] = qkv::sizes_of(dims);
    let has_room = |i: &Instance| {
        dhqk <= i.size("KEY") && i.argument("VALUE").is_none_or(|_| dhhv <= i.size("VALUE"))
    };
    let mut of_type = source.instances(kernel).filter(|i| i.has("T", dtype.cpp()));
    of_type.find(has_room).expect("DHQK and DHHV of a checked problem")
}

impl Version for Gradients {
    fn info(&self) -> &Info {
        &self.info
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        let mut all = vec![&kernels::ROWS, &kernels::THROUGH_N, self.kernels[0].0];
        all.extend(Some(self.kernels[1].0).filter(|source| source.name != all[2].name));
        all
    }

    fn test_shapes(&self) -> Vec<Dims> {
        let all = [
            [1, 1, 1, 16, 16],
            // A tile; one and a bit, one less a bit.
            [1, 1, 64, 64, 64],
            [1, 1, 65, 48, 16],
            [1, 1, 127, 112, 80],
            [1, 1, 128, 128, 128],
            // Heads, narrow and wide, of unlike widths.
            [2, 3, 40, 64, 64],
            [3, 1, 5, 16, 128],
            [1, 2, 70, 128, 48],
            [2, 2, 9, 16, 112],
            // Several tiles; more than there are places for.
            [1, 2, 200, 64, 128],
            [1, 1, 600, 16, 16],
            [1, 1, 560, 128, 128],
            [2, 2, 330, 80, 96],
        ];
        // Most kernels differ in little from their parents': of these, a few of the shapes.
        let few =
            if ["v0_mma", "v4_skip"].contains(&self.info.name) { &all[..] } else { &all[7..] };
        few.iter().map(|&shape| sizes(shape)).collect()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let (dims, dtype) = (&request.dims, request.dtype);
        let eps = vlstm::epsilon(&self.info, request.options())?;
        let exact = vlstm::normalizer_grad(&self.info, request.options()) == NormalizerGrad::Exact;
        let [b, nh, s, ..] = qkv::sizes_of(dims);
        let heads = b * nh;

        let mut plan = Plan::new(device);
        let ForwardBackwardSlots { scope, .. } = forward_backward_slots(&mut plan, request);
        let gates =
            self.forward.add_forward(&mut plan, kernels::PROMISE, Forward { dims, dtype, eps })?;
        let (row, column, length) = (gates.row, gates.column, gates.length);
        let exponent = plan.scratch(DType::F32, 2 * heads * length);
        let rho = if exact {
            plan.scratch(DType::F32, heads * length)
        } else {
            plan.zeros(DType::F32, heads * length)
        };
        let scope = scope
            .with(arguments![row, column, exponent, rho, length, eps, together: gates.together])
            .with(arguments![all: heads * length, positions: heads * s]);
        if exact {
            let kernel = instance(&kernels::THROUGH_N, "vlstm_through_n", dtype, dims);
            let tiles = length / kernel.size("L"); // of rows past the end, too: others read them
            let kernel = device.load(kernel)?;
            let grid = kernel.grid([blocks(heads * tiles)?, 1, 1])?;
            plan.launch_in(&scope, &kernel, grid, arguments![tiles])?;
        }
        let cells = if self.factors { heads * length / SIDE } else { 1 };
        let row_factors = plan.records("Factors", FACTORS, cells);
        let scope = scope.with(arguments![row_factors, factors: gates.factors]);
        let kernel = format!("vlstm_rows<128, {}>", self.factors);
        let kernel = device.kernel(&kernels::ROWS, &kernel)?;
        plan.launch_in(&scope, &kernel, kernel.grid_over(heads * length)?, arguments![])?;

        let of_pairs = self.kernels.map(|(source, name)| instance(source, name, dtype, dims));
        let rows = of_pairs[0].size("L");
        let tiles = s.div_ceil(rows);
        let [sums, shares] = [s, tiles * length].map(|each| plan.scratch(DType::F32, heads * each));
        let scope = scope.with(arguments![sums, shares, tiles, L: rows]);
        for (past, instance) in [SIDE, rows].into_iter().zip(of_pairs) {
            let scope = if self.by_tma() {
                Self::by_maps(&plan, &scope, request, [rows, past])?
            } else {
                scope.clone()
            };
            let kernel = device.load(instance)?;
            let grid = kernel.grid([blocks(heads * tiles)?, 1, 1])?;
            plan.launch_in(&scope, &kernel, grid, arguments![])?;
        }

        let kernel = device.kernel(&kernels::ROWS, "vlstm_row_sums<128>")?;
        plan.launch_in(&scope, &kernel, kernel.grid_over(heads * s)?, arguments![])?;
        let kernel = device.kernel(&kernels::ROWS, "vlstm_forget_sums<512>")?;
        plan.launch_in(&scope, &kernel, kernel.grid([blocks(heads)?, 1, 1])?, arguments![])?;
        Ok(plan)
    }
}

impl Gradients {
    /// The matrices by tensor maps, in boxes of as many rows as a block owns, or as come past.
    fn by_maps(
        plan: &Plan,
        scope: &Scope,
        request: &Request<'_>,
        [own, past]: [usize; 2],
    ) -> Result<Scope, Error> {
        let [b, nh, s, dhqk, dhhv] = qkv::sizes_of(&request.dims);
        let slot = |name: &str| -> Slot { plan.slot(name).expect("of the family") };
        let map = |columns, rows| panels(request.dtype, [b * nh, s, columns], rows);
        let [of_q, of_dh] = [map(dhqk, past)?, map(dhhv, past)?];
        let [of_k, of_v] = [map(dhqk, own)?, map(dhhv, own)?];
        let [keys, values] = [map(dhqk, SIDE)?, map(dhhv, SIDE)?];
        let [q, k] = [slot("q").loaded_by(of_q), slot("k").loaded_by(of_k)];
        let [v, dh] = [slot("v").loaded_by(of_v), slot("dh").loaded_by(of_dh)];
        let [dq, dk] = ["dq", "dk"].map(|name| slot(name).stored_by(keys));
        let dv = slot("dv").stored_by(values);
        Ok(scope.clone().with(arguments![q, k, v, dh, dq, dk, dv]))
    }

    fn by_tma(&self) -> bool {
        self.kernels[0].1 != MMA.kernels[0].1
    }
}

/// As many blocks, where a grid can have them.
fn blocks(all: usize) -> Result<u32, Error> {
    let refused =
        |_| Error::bad("B NH ceil(S / L)", format!("at most {}, one a block", i32::MAX), all);
    i32::try_from(all).map(|all| all as u32).map_err(refused)
}
