//! `vlstm_fw_v2`: the vLSTM's forward pass over all pairs of positions, on tensor cores.
//!
//! The equations are those of `lab_reference::vlstm`. What gates alone decide is made by a launch before. Then a block
//! owns some rows of Q and h, and tiles of K and V come past it, from the diagonal back to the first.

#![deny(unsafe_code)]

mod checks;

use lab_device::{DType, Device, Instance, KernelSource, LaunchPromise, Swizzle, TensorMap};
use lab_families::qkv::{self, one_a_block, sizes};
use lab_families::vlstm;
use lab_harness::compare::{in_f32_of_halves as in_f32, unit};
use lab_harness::plan::{Scope, Slot};
use lab_harness::{Dim, Dims, Error, Info, Output, Plan, Request, Stage, Version, arguments};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// All pairs, tile by tile.
#[derive(Debug)]
pub struct Pairs {
    info: Info,
    source: &'static KernelSource,
    kernel: &'static str,
    factors: bool,
}

/// Bytes of the kernels' struct `Factors`.
pub const FACTORS: usize = 272;

/// Columns of a panel of a matrix, and rows of a warpgroup.
const SIDE: usize = 64;

/// More keys than 128 leave no room for two tiles of K and V beside Q; take `vlstm_fw_v3`.
static DIMS: [Dim; 5] = vlstm::dims([
    [1, 4, 65535],
    [2, 16, 65535],
    [150, 2048, 1 << 24],
    [64, 128, 128],
    [64, 128, 1024],
]);

const INFO: Info = Info {
    stage: "vlstm_fw_v2",
    name: "v0_mma",
    family: &vlstm::FORWARD,
    parent: Some("online"),
    change: "both products on tensor cores; m is known before the first of them, from the gates",
    // ldmatrix and wgmma transpose halves alone.
    dtypes: &[DType::F16, DType::BF16],
    dims: &DIMS,
    settings: &[vlstm::EPSILON],
    inputs: vlstm::FORWARD_INPUTS,
    // h: the weights and h itself are rounded once each.
    // An element of h: a third of a unit of roundoff of the halves; m and n are summed in f32.
    outputs: &[
        Output {
            name: "h",
            bounds: &[(DType::F16, 1e-3), (DType::BF16, 8e-3)],
            elements: &[(DType::F16, unit::F16), (DType::BF16, unit::BF16)],
        },
        Output { name: "m", bounds: &in_f32(1e-7), elements: &in_f32(2.0 * unit::F32) },
        Output {
            name: "n",
            bounds: &in_f32(1e-6),
            elements: &[(DType::F16, 7.0 * unit::F32), (DType::BF16, 4.0 * unit::F32)],
        },
    ],
};

/// By warps.
pub static MMA: Pairs =
    Pairs { info: INFO, source: &kernels::V0_MMA, kernel: "vlstm_fw_mma", factors: false };

/// By warpgroups.
pub static WGMMA: Pairs = Pairs {
    info: Info {
        name: "v1_wgmma",
        parent: Some("v0_mma"),
        change: "wgmma, of tiles that a producer asks TMA for; weights stay in registers",
        ..INFO
    },
    source: &kernels::V1_WGMMA,
    kernel: "vlstm_fw_wgmma",
    factors: false,
};

/// Without a power for each pair.
pub static FACTORED: Pairs = Pairs {
    info: Info {
        name: "v2_factors",
        parent: Some("v1_wgmma"),
        change: "off the diagonal a weight is a factor of the row times one of the column: no power a pair",
        ..INFO
    },
    source: &kernels::V2_FACTORS,
    kernel: "vlstm_fw_factors",
    factors: true,
};

/// Scores before they are needed.
pub static AHEAD: Pairs = Pairs {
    info: Info {
        name: "v3_ahead",
        parent: Some("v2_factors"),
        change: "the next tile's scores are asked for before this one's weights multiply V",
        ..INFO
    },
    source: &kernels::V3_AHEAD,
    kernel: "vlstm_fw_ahead",
    factors: true,
};

/// Blocks that stay.
pub static PERSISTENT: Pairs = Pairs {
    info: Info {
        name: "v4_persistent",
        parent: Some("v3_ahead"),
        change: "a block a multiprocessor, which takes tile of Q after tile of Q",
        ..INFO
    },
    source: &kernels::V4_PERSISTENT,
    kernel: "vlstm_fw_persistent",
    factors: true,
};

/// This stage.
pub static STAGE: Stage = Stage {
    name: "vlstm_fw_v2",
    teaches: "all pairs on tensor cores: the gates alone tell the maximum, and weights are products",
    versions: &[&MMA, &WGMMA, &FACTORED, &AHEAD, &PERSISTENT],
    kernels: kernels::KERNELS,
    version_checks: checks::VERSION_CHECKS,
    ..Stage::EMPTY
};

/// Panels of a tensor: 64 of its columns, `rows` positions.
///
/// # Errors
/// The tensor is none that a copy of tensors takes.
pub fn panels(
    dtype: DType,
    [heads, positions, columns]: [usize; 3],
    rows: usize,
) -> Result<TensorMap, Error> {
    let map = TensorMap::new(dtype, &[columns, positions, heads], &[SIDE, rows, 1])?;
    Ok(map.swizzle(Swizzle::Bytes128))
}

impl Version for Pairs {
    fn info(&self) -> &Info {
        &self.info
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        vec![&kernels::GATES, self.source]
    }

    fn test_shapes(&self) -> Vec<Dims> {
        [
            [1, 1, 1, 16, 16],
            // A tile; one and a bit, one less a bit.
            [1, 1, 64, 64, 64],
            [1, 1, 128, 128, 128],
            [1, 1, 129, 48, 16],
            [1, 1, 127, 112, 80],
            // Heads, narrow and wide, of unlike widths.
            [2, 3, 40, 64, 64],
            [3, 1, 5, 16, 64],
            [1, 2, 70, 128, 48],
            [2, 2, 9, 16, 208],
            // Several tiles; more than there are places for, and than the gates' block has threads.
            [1, 2, 200, 64, 144],
            [1, 1, 300, 128, 256],
            // And than there are multiprocessors, several times.
            [1, 2, 700, 16, 16],
            [2, 3, 500, 16, 16],
            [1, 1, 560, 128, 128],
        ]
        .map(sizes)
        .to_vec()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let eps = vlstm::epsilon(&self.info, request.options())?;
        let [b, nh, s, _, dhhv] = qkv::sizes_of(&request.dims);
        let mut plan = Plan::new(device);
        request.inputs(&mut plan, ["q", "k", "v", "i", "f"]);
        plan.output("h", request.dtype, &[b, nh, s, dhhv]);
        for name in ["m", "n"] {
            plan.output(name, DType::F32, &[b, nh, s]);
        }
        self.add_forward(
            &mut plan,
            kernels::PROMISE,
            Forward { dims: &request.dims, dtype: request.dtype, eps },
        )?;
        Ok(plan)
    }
}

/// A forward pass whose tensors a plan has already, under their names: of a backward pass, too.
#[derive(Clone, Copy, Debug)]
pub struct Forward<'a> {
    /// Sizes.
    pub dims: &'a Dims,
    /// Of q, k, v and h.
    pub dtype: DType,
    /// ε.
    pub eps: f64,
}

/// What its launches leave of the gates to those behind them. Weights of pairs are 2^(row_i + column_j).
#[derive(Clone, Copy, Debug)]
pub struct Gates {
    /// Positions of a head that `row` and `column` have, whole tiles.
    pub length: usize,
    /// How many heads are worked on at once.
    pub together: usize,
    /// Of each position the part of the exponent as a row, two floats.
    pub row: Slot,
    /// And as a column.
    pub column: Slot,
    /// Of each 64 positions the kernels' struct `Factors`, of versions that make weights of factors.
    pub factors: Slot,
}

impl Pairs {
    /// Adds the launches of a forward pass to a plan. Whoever calls for them promises that the plan's slots have the elements that the sizes say.
    ///
    /// # Errors
    /// More blocks than a launch can have, or what the device says of the kernels.
    ///
    /// # Panics
    /// The plan has no slots of the forward pass.
    pub fn add_forward(
        &self,
        plan: &mut Plan,
        _promise: LaunchPromise,
        forward: Forward<'_>,
    ) -> Result<Gates, Error> {
        let Forward { dims, dtype, eps } = forward;
        let (device, f32) = (plan.device().clone(), DType::F32);
        let [b, nh, s, dhqk, dhhv] = qkv::sizes_of(dims);
        let instance = self.instance(dims, dtype);
        let (heads, rows) = (b * nh, instance.size("L"));
        let tiles = s.div_ceil(rows);
        let length = tiles * rows;
        let of_gates = one_a_block("B NH", heads)?;
        let slices = dhhv.div_ceil(instance.size("VALUE"));
        let parts = one_a_block("B NH ceil(S / L) slices of V", heads * tiles * slices)?;
        let blocks = if self.kernel == PERSISTENT.kernel {
            parts.min(device.facts().multiprocessors)
        } else {
            parts
        };

        let slot = |name: &str| plan.slot(name).expect("a slot of the forward pass");
        let [q, k, v, h] = ["q", "k", "v", "h"].map(slot);
        let [i_gate, f_gate, m, n_out] = ["i", "f", "m", "n"].map(slot);
        let [row, column] = [(); 2].map(|()| plan.scratch(f32, 2 * heads * length));
        let cells = if self.factors { heads * length / SIDE } else { 1 };
        let factors = plan.records("Factors", FACTORS, cells);
        let taken = plan.scratch(DType::I32, 1);
        // K and V of the heads that are worked on at once fill a third of the second-level cache.
        let of_a_head = s * (dhqk + dhhv) * dtype.size();
        let together = match device.facts().l2 as usize {
            0 => 2.min(heads), // the emulator
            l2 => (l2 / 3 / of_a_head).clamp(1, heads),
        };
        let log2_scale = -0.5 * (dhqk as f64).log2();
        let scope = Scope::new()
            .with(arguments![i_gate, f_gate, m, n_out, row, column, factors])
            .with(arguments![taken, tiles, together, parts, length, S: s, dhqk, dhhv, log2_scale, eps]);
        let wanted = if self.factors { "true" } else { "false" };
        let mut gates = kernels::GATES.instances("vlstm_fw_gates");
        let gates = gates.find(|i| i.has("FACTORS", wanted)).expect("with and without them");
        let gates = device.load(gates)?;
        plan.launch_in(&scope, &gates, gates.grid([of_gates, 1, 1])?, arguments![])?;
        let scope = if self.by_tma() {
            let keys = panels(dtype, [heads, s, dhqk], rows)?;
            let values = panels(dtype, [heads, s, dhhv], rows)?;
            let out = panels(dtype, [heads, s, dhhv], SIDE)?;
            let [q, k] = [q, k].map(|slot| slot.loaded_by(keys));
            scope.with(arguments![q, k, v: v.loaded_by(values), h: h.stored_by(out)])
        } else {
            scope.with(arguments![q, k, v, h])
        };
        let kernel = device.load(instance)?;
        plan.launch_in(&scope, &kernel, kernel.grid([blocks, 1, 1])?, arguments![])?;
        Ok(Gates { length, together, row, column, factors })
    }

    /// The first that has room for a head, or else for its keys, with a block for each slice of its values.
    fn instance(&self, dims: &Dims, dtype: DType) -> Instance {
        let [.., dhqk, dhhv] = qkv::sizes_of(dims);
        let mut of_type: Vec<_> = self
            .source
            .instances(self.kernel)
            .filter(|i| i.has("T", dtype.cpp()) && dhqk <= i.size("KEY"))
            .collect();
        let fits = of_type.iter().position(|i| dhhv <= i.size("VALUE"));
        of_type.remove(fits.unwrap_or(of_type.len() - 1))
    }

    fn by_tma(&self) -> bool {
        self.kernel != MMA.kernel
    }
}
