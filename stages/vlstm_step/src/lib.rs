//! `vlstm_step`: one position of the vLSTM behind a state that is updated where it lies, as decoding wants it.
//!
//! The equations are those of `lab_reference::vlstm` with one position; the tensors those of
//! [`lab_families::vlstm::step`]. A step computes five operations for each number of the state and moves it twice, so
//! that memory alone decides its time.

#![deny(unsafe_code)]

mod checks;
mod relatives;

use lab_device::{DType, Device, Instance, KernelSource, Launch};
use lab_families::vlstm;
use lab_families::vlstm::step::{self, StepSlots, sizes};
use lab_harness::compare::{in_f32, unit};
use lab_harness::plan::Scope;
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Preference, Request, Setting, Stage, Version, arguments,
};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

pub use self::relatives::{DECAY, NORMALISED, Relative, SIGMOID};

/// The step by one kernel.
#[derive(Debug)]
pub struct Step {
    info: Info,
    source: &'static KernelSource,
    kernel: &'static str,
    split: Split,
}

/// What a block has of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Split {
    /// A head.
    Heads,
    /// A slice of a head, as wide as [`LANES`] says.
    Lanes,
    /// A slice of a head, of 32 lanes.
    Warp,
}

/// A block has room for the keys of a head, and the first of them counts its cells by an int.
static DIMS: [Dim; 4] = step::dims([[2, 64, 65535], [3, 8, 65535], [48, 256, 512], [80, 512, 512]]);

static SETTINGS: &[Setting] = &[vlstm::EPSILON, step::STATE];

/// How wide a slice of C is.
const LANES: Setting = Setting::choice(
    "lanes",
    "threads beside each other in a row of C, 16 bytes each; auto: as many as leave blocks for all multiprocessors",
    &["auto", "4", "8", "16", "32"],
);

static SLICES_SETTINGS: &[Setting] = &[vlstm::EPSILON, step::STATE, LANES];

const INFO: Info = Info {
    stage: "vlstm_step",
    name: "v0_simple",
    family: &step::FAMILY,
    parent: None,
    change: "a block a head, a thread a column of the state",
    dtypes: &[DType::F32, DType::F16, DType::BF16],
    dims: &DIMS,
    settings: SETTINGS,
    inputs: step::INPUTS,
    // An element: of h a unit of roundoff of f32, of CN and nN two to three, those of the two factors and of the exponents.
    outputs: &[
        // One sum over all keys, in a row; of halves the rounding of h.
        Output {
            name: "h",
            bounds: &[(DType::F32, 2e-6), (DType::F16, 4e-4), (DType::BF16, 4e-3)],
            elements: &[
                (DType::F32, 4.0 * unit::F32),
                (DType::F16, 4.0 * unit::F32),
                (DType::BF16, 4.0 * unit::F32),
            ],
        },
        // Of bf16, rounded once; of f32 in a run of bf16 a check has the bound of f32.
        Output {
            name: "CN",
            bounds: &[(DType::F32, 2e-7), (DType::F16, 2e-7), (DType::BF16, 3.4e-3)],
            elements: &in_f32(10.0 * unit::F32),
        },
        Output { name: "nN", bounds: &in_f32(2.5e-7), elements: &in_f32(9.0 * unit::F32) },
        Output { name: "mN", bounds: &in_f32(2e-7), elements: &in_f32(2.0 * unit::F32) },
    ],
};

/// A block a head.
pub static SIMPLE: Step = Step {
    info: INFO,
    source: &kernels::V0_SIMPLE,
    kernel: "vlstm_step_simple",
    split: Split::Heads,
};

/// More bytes under way.
pub static PACKS: Step = Step {
    info: Info {
        name: "v1_packs",
        parent: Some("v0_simple"),
        change: "16 bytes of the state in a load, and eight loads of a thread under way",
        // The sum over the keys is one of short sums.
        outputs: &[
            Output {
                name: "h",
                bounds: &[(DType::F32, 7e-7), (DType::F16, 4e-4), (DType::BF16, 4e-3)],
                elements: &[
                    (DType::F32, 3.5 * unit::F32),
                    (DType::F16, 4.0 * unit::F32),
                    (DType::BF16, 4.0 * unit::F32),
                ],
            },
            INFO.outputs[1],
            INFO.outputs[2],
            INFO.outputs[3],
        ],
        ..INFO
    },
    source: &kernels::V1_PACKS,
    kernel: "vlstm_step_packs",
    split: Split::Heads,
};

/// Few heads.
pub static SLICES: Step = Step {
    info: Info {
        name: "v2_slices",
        parent: Some("v1_packs"),
        change: "several blocks share a head, each with some columns; the last that has read n writes it",
        settings: SLICES_SETTINGS,
        ..PACKS.info
    },
    source: &kernels::V2_SLICES,
    kernel: "vlstm_step_slices",
    split: Split::Lanes,
};

/// Copies that go on by themselves.
pub static RING: Step = Step {
    info: Info {
        name: "v3_ring",
        parent: Some("v2_slices"),
        change: "rows come and go by bulk copies, through places in shared memory, not through registers",
        settings: SETTINGS,
        ..PACKS.info
    },
    source: &kernels::V3_RING,
    kernel: "vlstm_step_ring",
    split: Split::Warp,
};

/// This stage.
pub static STAGE: Stage = Stage {
    name: "vlstm_step",
    teaches: "one step, for decoding: the state is updated in place, at the speed of memory",
    versions: &[&SIMPLE, &PACKS, &SLICES, &RING, &DECAY, &SIGMOID, &NORMALISED],
    kernels: kernels::KERNELS,
    version_checks: checks::VERSION_CHECKS,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

impl Version for Step {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        Some(match self.info.name {
            "v2_slices" => Preference::new(10),
            "v1_packs" => Preference::new(20),
            "v3_ring" => Preference::new(30),
            "v0_simple" => Preference::new(40).on_emulator(1),
            _ => return None,
        })
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        vec![self.source]
    }

    fn test_shapes(&self) -> Vec<Dims> {
        [
            [1, 1, 16, 16],
            // Fewer columns than a slice; one more of 16 than some slices.
            [1, 2, 48, 80],
            [3, 1, 16, 144],
            [2, 2, 64, 272],
            // More keys than threads, than rows under way; all the room there is.
            [1, 1, 272, 48],
            [1, 1, 512, 32],
            [1, 1, 32, 512],
            [1, 3, 256, 128],
        ]
        .map(sizes)
        .to_vec()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let [b, nh, _, dhhv] = step::sizes_of(&request.dims);
        let heads = b * nh;
        let mut plan = Plan::new(device);
        let StepSlots { state, scope } = step::slots(&mut plan, &self.info, request)?;
        let of_types =
            |i: &Instance| i.has("T", request.dtype.cpp()) && i.has("State", state.cpp());
        let mut instances = self.source.instances(self.kernel).filter(of_types);
        let mut first = || device.load(instances.next().expect("the types were checked"));
        match self.split {
            Split::Heads => {
                let kernel = first()?;
                let launch = Launch::of([blocks(heads)?, 1, 1], kernel.block()?);
                plan.launch_in(&scope, &kernel, launch, arguments![])?;
            }
            Split::Warp => {
                let kernel = first()?;
                let tickets = plan.zeros(DType::U32, heads);
                let slices = dhhv.div_ceil(32 * 16 / state.size());
                let launch = Launch::of([blocks(heads * slices)?, 1, 1], kernel.block()?);
                plan.launch_in(&scope, &kernel, launch, arguments![tickets, slices])?;
            }
            Split::Lanes => {
                let slices = Slices::of(device, request, heads, dhhv, state)?;
                let fits =
                    |i: &Instance| i.size("LANES") == slices.lanes && i.argument("GATES").is_none();
                let instance = instances.find(fits).expect("each choice has one");
                let tickets = plan.zeros(DType::U32, heads);
                let scope = scope.with(arguments![tickets, sharing: 1, weighed: true]);
                slices.launch(&mut plan, &scope, instance)?;
            }
        }
        Ok(plan)
    }
}

/// How the columns of a head are shared out by [`SLICES`] and its relatives.
#[derive(Clone, Copy)]
struct Slices {
    lanes: usize,
    slices: usize,
    blocks: u32,
}

impl Slices {
    fn of(
        device: &Device,
        request: &Request<'_>,
        heads: usize,
        dhhv: usize,
        state: DType,
    ) -> Result<Self, Error> {
        let of_pack = 16 / state.size();
        let lanes = match request.text(LANES.name) {
            "auto" => lanes_for(heads, dhhv, of_pack, device.facts().multiprocessors as usize),
            text => text.parse().expect("one of the choices"),
        };
        let slices = dhhv.div_ceil(lanes * of_pack);
        Ok(Self { lanes, slices, blocks: blocks(heads * slices)? })
    }

    fn launch(self, plan: &mut Plan, scope: &Scope, instance: Instance) -> Result<(), Error> {
        let kernel = plan.device().load(instance)?;
        // It waits for the launch before within the kernel.
        let launch = Launch::of([self.blocks, 1, 1], kernel.block()?).overlap_previous();
        plan.launch_in(scope, &kernel, launch, arguments![slices: self.slices])
    }
}

fn blocks(all: usize) -> Result<u32, Error> {
    let most = i32::MAX as usize;
    match all {
        _ if all <= most => Ok(all as u32),
        _ => Err(Error::bad("B NH slices of C", format!("at most {most}, one a block"), all)),
    }
}

/// The widest slices of which there are about two for each multiprocessor, and that are no wider than C; else the narrowest.
/// What a block reads of q, k and n is then least, beside its part of C.
fn lanes_for(heads: usize, dhhv: usize, of_pack: usize, multiprocessors: usize) -> usize {
    let fills = |lanes: &usize| {
        let columns = lanes * of_pack;
        columns <= dhhv && 4 * heads * dhhv.div_ceil(columns) >= 7 * multiprocessors
    };
    [32, 16, 8].into_iter().find(fills).unwrap_or(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_heads_have_narrow_slices() {
        // In f32 and in bf16: 64 x 8 heads of 512 columns, 8 x 16 of 256, 1 x 8 of 512, one of 16.
        assert_eq!(lanes_for(512, 512, 4, 132), 32);
        assert_eq!(lanes_for(512, 512, 8, 132), 32);
        assert_eq!(lanes_for(128, 256, 4, 132), 32);
        assert_eq!(lanes_for(128, 256, 8, 132), 16);
        assert_eq!(lanes_for(64, 512, 4, 132), 32);
        assert_eq!(lanes_for(8, 512, 4, 132), 4);
        assert_eq!(lanes_for(8, 512, 8, 132), 4);
        assert_eq!(lanes_for(9999, 16, 4, 132), 4);
    }
}
