//! `vlstm_fwbw_v0`: the vLSTM forward and backward, the sums of its forget gates carried from tile
//! to tile.
//!
//! Five kernels: the sums F of the gates; the forward pass; two that split the backward pass by who
//! writes what; and the forget gates' gradient. Only the first differs between the versions: blocks
//! that need what another block has get it by a sync of the whole grid, or each by a flag from the
//! one block before it.
//!
//! The equations are those of [`lab_families::vlstm`]; xLSTM, arXiv 2405.04517, appendix A, and Tiled
//! Flash Linear Attention, arXiv 2503.14376.

mod checks;

use lab_device::{DType, Device, KernelSource, LaunchPromise};
use lab_families::qkv::{Grid, MOST_COLUMNS, instance_for, sizes, sizes_of};
use lab_families::vlstm::{self, ForwardBackwardSlots, forward_backward_slots};
use lab_harness::compare::unit;
use lab_harness::plan::{Scope, Slot};
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Preference, Request, Stage, Version, arguments,
};
use lab_reference::vlstm::NormalizerGrad;

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// How the sums of the gates get from block to block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carry {
    GridSync,
    Flags,
}

/// A version of the stage.
#[derive(Debug)]
pub struct ForwardBackward {
    info: Info,
    carry: Carry,
}

/// Positions of a tile of the kernels that sum up gates: one a thread.
const GATES: usize = 128;

static DIMS: [Dim; 5] = vlstm::dims([
    [1, 1, 65535],
    [2, 16, 65535],
    [100, 4096, 1 << 24],
    [64, 64, MOST_COLUMNS],
    [64, 64, MOST_COLUMNS],
]);

const F32: DType = DType::F32;
const F16: DType = DType::F16;
const BF16: DType = DType::BF16;

/// What comes out, and how far it may be off.
///
/// f32: a row whose l_i nearly cancels, where n_i is |l_i|, magnifies the roundings of its sums; in
/// the suite to 3e-6, without such rows they are below 1e-6. Halves: the one rounding of the
/// result. m, n, di, df are f32 in every run. df is a sum over all later positions of what
/// nearly cancels, and grows with S: 2e-6 at S = 400, 8e-6 at 4096, 1.3e-5 at 8192. What it is
/// at a few hundred, the checks hold relative to di.
///
/// An element: at most two units of roundoff of f32. Gradients are relative to sums of absolute values through both passes, and off
/// by a small part of them.
pub const OUTPUTS: &[Output] = &[
    Output {
        name: "h",
        bounds: &[(F32, 1e-5), (F16, 5e-4), (BF16, 5e-3)],
        elements: &[(F32, 7.0 * unit::F32), (F16, 4.0 * unit::F32), (BF16, 4.0 * unit::F32)],
    },
    Output {
        name: "m",
        bounds: &[(F32, 1.2e-7), (F16, 1.2e-7), (BF16, 1.2e-7)],
        elements: &[(F32, 3.9 * unit::F32), (F16, 3.9 * unit::F32), (BF16, 3.9 * unit::F32)],
    },
    Output {
        name: "n",
        bounds: &[(F32, 1.2e-6), (F16, 9e-7), (BF16, 6e-7)],
        elements: &[(F32, 3.4 * unit::F32), (F16, 3.4 * unit::F32), (BF16, 3.4 * unit::F32)],
    },
    Output {
        name: "dq",
        bounds: &[(F32, 1.2e-5), (F16, 5e-4), (BF16, 5e-3)],
        elements: &[(F32, 2.8 * unit::F32), (F16, 2.8 * unit::F32), (BF16, 2.8 * unit::F32)],
    },
    Output {
        name: "dk",
        bounds: &[(F32, 1.2e-5), (F16, 5e-4), (BF16, 5e-3)],
        elements: &[(F32, 1.8 * unit::F32), (F16, 1.8 * unit::F32), (BF16, 1.8 * unit::F32)],
    },
    Output {
        name: "dv",
        bounds: &[(F32, 1e-5), (F16, 5e-4), (BF16, 5e-3)],
        elements: &[(F32, 1.1 * unit::F32), (F16, 1.1 * unit::F32), (BF16, 1.1 * unit::F32)],
    },
    Output {
        name: "di",
        bounds: &[(F32, 7e-6), (F16, 4e-6), (BF16, 1.9e-6)],
        elements: &[(F32, 0.16 * unit::F32), (F16, 0.24 * unit::F32), (BF16, 0.16 * unit::F32)],
    },
    Output {
        name: "df",
        bounds: &[(F32, 5e-5), (F16, 5e-5), (BF16, 5e-5)],
        elements: &[(F32, 0.16 * unit::F32), (F16, 0.16 * unit::F32), (BF16, 0.16 * unit::F32)],
    },
];

static GRID_SYNC_INFO: Info = Info {
    stage: "vlstm_fwbw_v0",
    name: "grid_sync",
    family: &vlstm::FORWARD_BACKWARD,
    parent: None,
    change: "the sums of the gates by a sync of the grid; gradients without atomics",
    dtypes: &[F32, F16, BF16],
    dims: &DIMS,
    settings: &[vlstm::EPSILON, vlstm::NORMALIZER_GRAD],
    inputs: vlstm::FORWARD_BACKWARD_INPUTS,
    outputs: OUTPUTS,
};

/// By a sync of the grid.
pub static GRID_SYNC: ForwardBackward =
    ForwardBackward { info: GRID_SYNC_INFO, carry: Carry::GridSync };

/// By a flag from the block before.
pub static FLAGS: ForwardBackward = ForwardBackward {
    info: Info {
        name: "flags",
        parent: Some("grid_sync"),
        change: "a block waits for the one before it in its head, and for no other",
        ..GRID_SYNC_INFO
    },
    carry: Carry::Flags,
};

/// This stage.
pub static STAGE: Stage = Stage {
    name: "vlstm_fwbw_v0",
    teaches: "a block that waits for one other block, by flags; a backward pass without atomics",
    versions: &[&GRID_SYNC, &FLAGS],
    kernels: kernels::KERNELS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

impl ForwardBackward {
    /// Adds the launch that sums up the gates f \[B, NH, S\]: F of every position, in two floats. Whoever calls for it promises
    /// that f has so many elements.
    ///
    /// # Errors
    /// More tiles than a launch has blocks, or what the device says of the kernel.
    pub fn add_gate_sums(
        &self,
        plan: &mut Plan,
        _promise: LaunchPromise,
        f: Slot,
        dims: &Dims,
    ) -> Result<Slot, Error> {
        let [b, nh, s, ..] = sizes_of(dims);
        let (heads, Grid { tiles, blocks }) = (b * nh, Grid::of(dims, GATES)?);
        let sums = plan.scratch(F32, 2 * heads * s);
        let per_tile = plan.scratch(DType::F64, blocks as usize);
        let device = plan.device().clone();
        let kernel = |source: &'static KernelSource, name: &str| {
            device.kernel(source, &format!("{name}<{GATES}>"))
        };
        match self.carry {
            Carry::GridSync => {
                let kernel = kernel(&kernels::GRID_SYNC, "gate_sums_grid_sync")?;
                let resident = kernel.resident_blocks(kernel.block()?.threads, 0)?;
                let launch = kernel.grid([blocks.min(resident), 1, 1])?.cooperative();
                let arguments = arguments![f, total: per_tile, F: sums, heads, tiles, S: s];
                plan.launch(&kernel, launch, arguments)?;
            }
            Carry::Flags => {
                let kernel = kernel(&kernels::FLAGS, "gate_sums_flags")?;
                let ready = plan.scratch(DType::U32, blocks as usize);
                let ticket = plan.scratch(DType::U32, 1);
                plan.zero(ready);
                plan.zero(ticket);
                let arguments =
                    arguments![f, carried: per_tile, ready, ticket, F: sums, heads, tiles, S: s];
                plan.launch(&kernel, kernel.grid([blocks, 1, 1])?, arguments)?;
            }
        }
        Ok(sums)
    }
}

impl Version for ForwardBackward {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        Some(match self.info.name {
            "flags" => Preference::new(120).on_emulator(1),
            "grid_sync" => Preference::new(130),
            _ => return None,
        })
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        let sums = match self.carry {
            Carry::GridSync => &kernels::GRID_SYNC,
            Carry::Flags => &kernels::FLAGS,
        };
        vec![sums, &kernels::FORWARD, &kernels::BACKWARD, &kernels::FORGET]
    }

    fn test_shapes(&self) -> Vec<Dims> {
        [
            // One position; one tile of each class.
            [1, 1, 1, 16, 16],
            [1, 1, 64, 64, 64],
            [1, 1, 64, 128, 128],
            [1, 1, 32, 256, 256],
            // Ragged, of unlike widths.
            [1, 1, 65, 16, 48],
            [1, 1, 67, 112, 80],
            [1, 1, 33, 240, 16],
            // Heads, narrow and wide.
            [2, 3, 40, 64, 32],
            [3, 1, 5, 16, 128],
            [1, 2, 70, 48, 256],
            // Several tiles, of the gates too.
            [1, 2, 200, 64, 64],
            [2, 1, 150, 32, 128],
            [1, 1, 100, 256, 48],
            [1, 1, 400, 16, 16],
        ]
        .map(sizes)
        .to_vec()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let (dims, dtype) = (&request.dims, request.dtype);
        let eps = vlstm::epsilon(&self.info, request.options())?;
        let exact = vlstm::normalizer_grad(&self.info, request.options()) == NormalizerGrad::Exact;
        let instances = [
            instance_for(&kernels::FORWARD, "vlstm_forward", dtype, dims),
            instance_for(&kernels::BACKWARD, "vlstm_backward_q", dtype, dims),
            instance_for(&kernels::BACKWARD, "vlstm_backward_kv", dtype, dims),
        ];
        // Square ones, alike in all three.
        let Grid { tiles, blocks } = Grid::of(dims, instances[0].size("TQ"))?;

        let mut plan = Plan::new(device);
        let ForwardBackwardSlots { f, scope } = forward_backward_slots(&mut plan, request);
        let [side, r, q_dq] = [(); 3].map(|()| plan.scratch(F32, f.len()));
        let sums = self.add_gate_sums(&mut plan, kernels::PROMISE, f, dims)?;
        let scope = scope.with(arguments![F: sums, side, r, q_dq, tiles, eps, exact]);
        for instance in instances {
            let kernel = device.load(instance)?;
            plan.launch_in(&scope, &kernel, kernel.grid([blocks, 1, 1])?, arguments![])?;
        }
        add_forget_gradient(&mut plan, kernels::PROMISE, &scope, dims)?;
        Ok(plan)
    }
}

/// Adds the launch that takes f, q · dq and di to df, all \[B, NH, S\], under the names `f`, `q_dq`,
/// `di` and `df` of a scope. Whoever calls for it promises that these have so many elements.
///
/// # Errors
/// The kernel does not load, or there are more tiles than an int counts.
pub fn add_forget_gradient(
    plan: &mut Plan,
    _promise: LaunchPromise,
    scope: &Scope,
    dims: &Dims,
) -> Result<(), Error> {
    let [b, nh, ..] = sizes_of(dims);
    let kernel = plan.device().kernel(&kernels::FORGET, &format!("vlstm_forget<{GATES}>"))?;
    let Grid { tiles, .. } = Grid::of(dims, GATES)?;
    let launch = kernel.grid([(b * nh) as u32, 1, 1])?;
    plan.launch_in(scope, &kernel, launch, arguments![tiles])
}
