//! `slstm_fused`: the sLSTM, forward and backward through time.
//!
//! A version is a way to go through the steps. Heads do not meet: a head is a small LSTM with a normaliser, of DH units.
//! The gradients by R and b come after the loop, from those by wx of all steps at once.
//!
//! The equations are those of `lab_reference::slstm`; the tensors those of [`lab_families::slstm`]. Beck et al. 2024
//! (arXiv 2405.04517, section 2.2).

#![deny(unsafe_code)]

mod checks;
mod recurrence;

use lab_device::{DType, Device, KernelSource};
use lab_families::slstm::{self, sizes, sizes_of};
use lab_harness::compare::unit;
use lab_harness::plan::{Argument, Arguments};
use lab_harness::{
    Dim, Dims, Error, Family, Info, Output, Plan, Preference, Request, Stage, Version, arguments,
};

pub use recurrence::{Recurrence, Way};

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// A version of the stage.
#[derive(Debug)]
pub struct Slstm {
    info: Info,
    way: Way,
    backward: bool,
}

/// A block has a thread for each of 128 units of all rows; the grid and the columns of dwx are counted by ints.
const DIMS: [Dim; 4] =
    slstm::dims([[3, 8, 1 << 12], [6, 1024, 1 << 15], [2, 4, 1 << 8], [20, 192, 1 << 12]]);

/// A cluster of four blocks has registers for all weights of a head.
static HEADS_DIMS: [Dim; 4] = [DIMS[0], DIMS[1], DIMS[2], Dim { max: 256, ..DIMS[3] }];

const F32: DType = DType::F32;
const F16: DType = DType::F16;
const BF16: DType = DType::BF16;

/// How many magnitudes an element may be off by, in units of roundoff. They follow each rounding from step to step
/// (`lab_reference::slstm::Sizes::magnitudes`), and of the errors that were seen the largest is 0.6 in f32, and 1.1 in halves: of
/// sums of what is random, of some 10⁴ elements. One more is for a GPU's functions, whose largest errors the magnitudes have in them.
const OFF: &[(DType, f64)] =
    &[(F32, 2.0 * unit::F32), (F16, 2.0 * unit::F16), (BF16, 2.0 * unit::BF16)];

/// m, which is a sum itself, and the gradient by R, which multiplies two that are off: 1.5 in halves.
const OFF_OF_SUMS: &[(DType, f64)] =
    &[(F32, 2.0 * unit::F32), (F16, 2.6 * unit::F16), (BF16, 2.6 * unit::BF16)];

const INFO: Info = Info {
    stage: "slstm_fused",
    name: "v0_cell",
    family: &slstm::FAMILY,
    parent: None,
    change: "a thread a unit of a row, all four gates and the memory; a launch a step",
    dtypes: &[F32, F16, BF16],
    dims: &DIMS,
    settings: &[],
    inputs: slstm::INPUTS,
    // f32: the roundings of a sum of DH terms, and of the steps that it goes through; of c and n also that of m, whose size is
    // their relative error. Halves: the rounding of the result, and that of each h and da that a step gets from the one before;
    // cn, nn and mn are not rounded themselves.
    outputs: &[
        Output { name: "y", bounds: &[(F32, 1.2e-6), (F16, 8e-4), (BF16, 7e-3)], elements: OFF },
        Output { name: "hn", bounds: &[(F32, 1.2e-6), (F16, 8e-4), (BF16, 7e-3)], elements: OFF },
        Output { name: "cn", bounds: &[(F32, 5e-6), (F16, 3e-4), (BF16, 2.6e-3)], elements: OFF },
        Output { name: "nn", bounds: &[(F32, 8e-6), (F16, 1.7e-4), (BF16, 1.4e-3)], elements: OFF },
        Output {
            name: "mn",
            bounds: &[(F32, 7e-7), (F16, 2.2e-4), (BF16, 2e-3)],
            elements: OFF_OF_SUMS,
        },
        Output { name: "dwx", bounds: &[(F32, 3e-6), (F16, 8e-4), (BF16, 8e-3)], elements: OFF },
        Output {
            name: "dr",
            bounds: &[(F32, 3e-6), (F16, 8e-4), (BF16, 8e-3)],
            elements: OFF_OF_SUMS,
        },
        Output { name: "db", bounds: &[(F32, 3e-6), (F16, 8e-4), (BF16, 8e-3)], elements: OFF },
        Output { name: "dh0", bounds: &[(F32, 3e-6), (F16, 8e-4), (BF16, 8e-3)], elements: OFF },
        Output { name: "dc0", bounds: &[(F32, 1.6e-6), (F16, 8e-4), (BF16, 7e-3)], elements: OFF },
        Output { name: "dn0", bounds: &[(F32, 1.6e-6), (F16, 8e-4), (BF16, 7e-3)], elements: OFF },
    ],
};

/// A launch a step.
pub static CELL: Slstm = Slstm { info: INFO, way: Way::Cell, backward: true };

/// A launch for all steps.
pub static HEADS: Slstm = Slstm {
    info: Info {
        name: "v1_heads",
        parent: Some("v0_cell"),
        change: "a cluster walks a head through all steps: its weights stay in registers, as fragments of tensor cores",
        dtypes: &[F16, BF16],
        dims: &HEADS_DIMS,
        ..INFO
    },
    way: Way::Heads,
    backward: true,
};

/// The forward pass alone, of each.
pub static FORWARD: [Slstm; 2] = [
    forward(Info { name: "v0_cell_fw", ..INFO }, Way::Cell),
    forward(
        Info {
            name: "v1_heads_fw",
            parent: Some("v0_cell_fw"),
            change: "a cluster walks a head through all steps",
            dtypes: &[F16, BF16],
            dims: &HEADS_DIMS,
            ..INFO
        },
        Way::Heads,
    ),
];

const fn forward(info: Info, way: Way) -> Slstm {
    let outputs = INFO.outputs.split_at(slstm::FORWARD_OUTPUTS).0;
    let family: &'static dyn Family = &slstm::FORWARD;
    let info = Info { family, inputs: slstm::FORWARD_INPUTS, outputs, ..info };
    Slstm { info, way, backward: false }
}

/// This stage.
pub static STAGE: Stage = Stage {
    name: "slstm_fused",
    teaches: "a recurrence with independent heads: one launch for all steps of a head",
    versions: &[&CELL, &HEADS, &FORWARD[0], &FORWARD[1]],
    kernels: kernels::KERNELS,
    version_checks: checks::OF_EACH,
    ..Stage::EMPTY
};

impl Slstm {
    /// How it goes through the steps.
    pub fn way(&self) -> Way {
        self.way
    }
}

impl Version for Slstm {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        Some(match self.info.name {
            "v1_heads" => Preference::new(10),
            "v0_cell" => Preference::new(20),
            "v1_heads_fw" => Preference::new(10),
            "v0_cell_fw" => Preference::new(20),
            _ => return None,
        })
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        self.way.sources()
    }

    fn test_shapes(&self) -> Vec<Dims> {
        [
            [1, 1, 1, 1],
            // No size a multiple of anything; a step; a row; more rows than a block of any version has.
            [3, 6, 2, 5],
            [2, 1, 3, 16],
            [1, 9, 2, 33],
            [17, 3, 1, 20],
            // All units that a block, or a cluster, has room for, and some of them.
            [9, 4, 2, 64],
            [2, 5, 1, 72],
            [1, 3, 2, 192],
            [2, 3, 1, 250],
        ]
        .map(sizes)
        .to_vec()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let mut plan = Plan::new(device);
        let sizes @ [b, t, nh, dh] = sizes_of(&request.dims);
        let (dtype, state) = (request.dtype, [b, nh, dh]);
        let mut all: Vec<(&str, Argument)> = Vec::new();
        for input in self.info.inputs {
            let slot = if request.has(input.name) {
                request.input(&mut plan, input.name)
            } else {
                plan.zeros(input.always.unwrap_or(dtype), b * nh * dh)
            };
            all.push((input.name, slot.into()));
        }
        for Output { name, .. } in self.info.outputs {
            let (dtype, shape): (DType, &[usize]) = match *name {
                "y" => (dtype, &[t, b, nh, dh]),
                "dwx" => (dtype, &[t, b, 4, nh, dh]),
                "dr" => (dtype, &[4, nh, dh, dh]),
                "db" => (dtype, &[4, nh, dh]),
                "hn" | "dh0" => (dtype, &state),
                _ => (F32, &state),
            };
            all.push((name, plan.output(name, dtype, shape).into()));
        }
        let all = Arguments::new(kernels::PROMISE, all);
        let recurrence = Recurrence::new(&mut plan, self.way, dtype, sizes, self.backward, all);
        recurrence.add_forward(&mut plan)?;
        if self.backward {
            recurrence.add_backward(&mut plan, arguments![])?;
        }
        Ok(plan)
    }
}
