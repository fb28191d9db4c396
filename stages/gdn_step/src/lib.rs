//! `gdn_step`: one position of the gated delta rule behind a state that is updated where it lies, as decoding wants it.
//!
//! The equations are those of `lab_reference::gdn` with one position; the tensors those of [`lab_families::gdn::step`].

#![deny(unsafe_code)]

mod checks;

use lab_device::{DType, Device, Instance, KernelSource};
use lab_families::gdn::{self, step};
use lab_harness::compare::{in_f32, unit};
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Preference, Request, Setting, Stage, Version, arguments,
};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// The step by one kernel.
#[derive(Debug)]
pub struct Step {
    info: Info,
    source: &'static KernelSource,
    kernel: &'static str,
    /// Threads beside each other in a row of a slice of C, 16 bytes each; a block has a whole head where there are none.
    lanes: Option<usize>,
}

static DIMS: [Dim; 5] =
    step::dims([[2, 64, 65535], [2, 32, 65535], [1, 16, 65535], [48, 128, 256], [80, 128, 1024]]);

static SETTINGS: &[Setting] = &[gdn::SCALE, step::STATE];

const INFO: Info = Info {
    stage: "gdn_step",
    name: "v0_simple",
    family: &step::FAMILY,
    parent: None,
    change: "a block a head, a thread a column of the state, which it goes down twice",
    dtypes: &[DType::F32, DType::F16, DType::BF16],
    dims: &DIMS,
    settings: SETTINGS,
    inputs: step::INPUTS,
    // All is f32; h is rounded to the run's type, and CN to that of C. An element of h: two sums of DHQK terms, one after the other,
    // and an exponential that a GPU may have off by two units in the last place. With 128 keys its error is 0.14 of a unit of
    // roundoff of its magnitude on average, and of 6 · 10⁵ elements, with such exponentials, 1.4 at most.
    outputs: &[
        Output {
            name: "h",
            bounds: &[(DType::F32, 1e-6), (DType::F16, 4e-4), (DType::BF16, 4e-3)],
            elements: &in_f32(2.0 * unit::F32),
        },
        Output {
            name: "CN",
            bounds: &[(DType::F32, 4e-7), (DType::F16, 4e-7), (DType::BF16, 4e-3)],
            elements: &[
                (DType::F32, 1.0 * unit::F32),
                (DType::F16, 1.0 * unit::F32),
                (DType::BF16, 1.0 * unit::F32),
            ],
        },
    ],
};

/// A block a head.
pub static SIMPLE: Step =
    Step { info: INFO, source: &kernels::V0_SIMPLE, kernel: "gdn_step_simple", lanes: None };

/// The state is read once.
pub static ONCE: Step = Step {
    info: Info {
        name: "v1_once",
        parent: Some("v0_simple"),
        change: "the state is read once and waits in registers, 16 bytes a load; a block has a slice of a head",
        ..INFO
    },
    source: &kernels::V1_ONCE,
    kernel: "gdn_step_once",
    lanes: Some(8),
};

/// All that is read is asked for at once, and a thread has more of it.
pub static RUNS: Step = Step {
    info: Info {
        name: "v2_runs",
        parent: Some("v1_once"),
        change: "a thread has a run of neighbouring rows, and nothing that it reads waits for anything else; lanes share out their sums",
        ..ONCE.info
    },
    source: &kernels::V2_RUNS,
    kernel: "gdn_step_runs",
    lanes: Some(8),
};

/// This stage.
pub static STAGE: Stage = Stage {
    name: "gdn_step",
    teaches: "one step of the delta rule: what is written depends on all that is read",
    versions: &[&SIMPLE, &ONCE, &RUNS],
    kernels: kernels::KERNELS,
    version_checks: checks::VERSION_CHECKS,
    ..Stage::EMPTY
};

impl Version for Step {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        Some(match self.info.name {
            "v2_runs" => Preference::new(10),
            "v1_once" => Preference::new(20),
            "v0_simple" => Preference::new(30).on_emulator(1),
            _ => return None,
        })
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        vec![self.source]
    }

    fn test_shapes(&self) -> Vec<Dims> {
        [
            [1, 1, 1, 16, 16],
            // Fewer columns than a slice; one more of 16 than a slice of f32, and than one of bf16.
            [1, 2, 1, 48, 16],
            [3, 1, 1, 16, 48],
            [1, 4, 2, 64, 80],
            // More keys than rows are under way; all the room there is.
            [1, 1, 1, 80, 144],
            [2, 2, 2, 256, 32],
        ]
        .map(step::sizes)
        .to_vec()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let [b, nh, _, dhqk, dhhv] = step::sizes_of(&request.dims);
        let mut plan = Plan::new(device);
        let step::StepSlots { state, scope } = step::slots(&mut plan, &self.info, request)?;
        let fits = |i: &Instance| {
            let holds = self.lanes.is_none() || i.size("KEYS") >= dhqk;
            i.has("T", request.dtype.cpp()) && i.has("State", state.cpp()) && holds
        };
        let instance = self.source.instances(self.kernel).find(fits);
        let kernel = device.load(instance.expect("types and sizes were checked"))?;
        let slices = self.lanes.map_or(1, |lanes| dhhv.div_ceil(lanes * 16 / state.size()));
        let (all, most) = (b * nh * slices, i32::MAX as usize);
        if all > most {
            return Err(Error::bad(
                "B NH slices of C",
                format!("at most {most}, one a block"),
                all,
            ));
        }
        let grid = kernel.grid([all as u32, 1, 1])?;
        plan.launch_in(&scope.with(arguments![slices]), &kernel, grid, arguments![])?;
        Ok(plan)
    }
}
