//! A step of the vLSTM's relatives, by the kernel of [`crate::SLICES`] with other gates and another normaliser.

use lab_device::{DType, Device, Instance, KernelSource};
use lab_families::gdn::{self, step};
use lab_families::vlstm::EPSILON;
use lab_harness::compare::{in_f32, unit};
use lab_harness::{
    Dim, Dims, Error, Info, Output, Plan, Preference, Request, Setting, Version, arguments,
};

use crate::{LANES, SLICES, Slices};

/// The step of a cell without m.
#[derive(Debug)]
pub struct Relative {
    info: Info,
    gates: &'static str,
    normaliser: &'static str,
}

static DIMS: [Dim; 5] =
    step::dims([[2, 64, 65535], [2, 32, 65535], [1, 1, 65535], [48, 128, 512], [80, 64, 1024]]);

/// The heads of mLSTMsig, each with keys of its own.
static OWN_KEYS: [Dim; 5] =
    step::dims([[2, 64, 65535], [2, 16, 65535], [1, 16, 65535], [48, 128, 512], [80, 256, 1024]]);

static SETTINGS: &[Setting] = &[gdn::SCALE, step::STATE, LANES];

static NORMALISED_SETTINGS: &[Setting] = &[gdn::SCALE, EPSILON, step::STATE, LANES];

/// Linear attention: decays in place of gates, and no normaliser.
pub static DECAY: Relative = Relative {
    info: Info {
        stage: "vlstm_step",
        name: "v4_decay",
        family: &step::LINEAR,
        parent: Some("v2_slices"),
        change: "gates and normaliser are types: without n and m a block reads its keys and its part of C alone, and takes no ticket",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &DIMS,
        settings: SETTINGS,
        inputs: step::LINEAR_INPUTS,
        // As of v2_slices: h is a sum of short sums, of halves rounded; of CN an element is a product, and another that is added.
        outputs: &[
            Output {
                name: "h",
                bounds: &[(DType::F32, 5e-7), (DType::F16, 4e-4), (DType::BF16, 4e-3)],
                elements: &in_f32(3.0 * unit::F32),
            },
            Output {
                name: "CN",
                bounds: &[(DType::F32, 2e-7), (DType::F16, 2e-7), (DType::BF16, 3.4e-3)],
                elements: &in_f32(4.0 * unit::F32),
            },
        ],
    },
    gates: "Decay",
    normaliser: "None",
};

/// mLSTMsig without a normaliser.
pub static SIGMOID: Relative = Relative {
    info: Info {
        name: "v5_sigmoid",
        family: &step::SIGMOID,
        parent: Some("v4_decay"),
        change: "gates as the vLSTM's, but a sigmoid for the input gate",
        dims: &OWN_KEYS,
        inputs: step::SIGMOID_INPUTS,
        ..DECAY.info
    },
    gates: "Sigmoid",
    normaliser: "None",
};

/// mLSTMsig.
pub static NORMALISED: Relative = Relative {
    info: Info {
        name: "v6_normalised",
        family: &step::NORMALISED,
        parent: Some("v5_sigmoid"),
        change: "a normaliser of at least 1: with n, and still without m",
        settings: NORMALISED_SETTINGS,
        inputs: step::NORMALISED_INPUTS,
        outputs: &[
            Output {
                name: "h",
                bounds: &[(DType::F32, 5e-7), (DType::F16, 4e-4), (DType::BF16, 4e-3)],
                elements: &in_f32(3.0 * unit::F32),
            },
            DECAY.info.outputs[1],
            Output { name: "nN", bounds: &in_f32(2.5e-7), elements: &in_f32(4.0 * unit::F32) },
        ],
        ..SIGMOID.info
    },
    gates: "Sigmoid",
    normaliser: "One",
};

impl Version for Relative {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        Some(Preference::new(10))
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        vec![SLICES.source]
    }

    fn test_shapes(&self) -> Vec<Dims> {
        [
            [1, 1, 1, 16, 16],
            // Fewer columns than a slice; one more of 16 than some slices; heads that share keys.
            [1, 2, 1, 48, 80],
            [3, 1, 1, 16, 144],
            [2, 4, 2, 64, 272],
            // More keys than threads, than rows under way; all the room there is.
            [1, 1, 1, 272, 48],
            [1, 1, 1, 512, 32],
            [1, 1, 1, 32, 1024],
            [1, 3, 3, 256, 128],
        ]
        .map(step::sizes)
        .to_vec()
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let [b, nh, _, _, dhhv] = step::sizes_of(&request.dims);
        let mut plan = Plan::new(device);
        let step::StepSlots { state, scope } = step::slots(&mut plan, &self.info, request)?;
        let slices = Slices::of(device, request, b * nh, dhhv, state)?;
        let fits = |i: &Instance| {
            i.has("T", request.dtype.cpp())
                && i.has("State", state.cpp())
                && i.has("GATES", self.gates)
                && i.has("NORMALIZER", self.normaliser)
                && i.size("LANES") == slices.lanes
        };
        let instance = SLICES.source.instances(SLICES.kernel).find(fits);
        // Of heads, where there is an n.
        let heads = if self.info.takes("n0") { b * nh } else { 1 };
        let scope = scope.with(arguments![tickets: plan.zeros(DType::U32, heads)]);
        slices.launch(&mut plan, &scope, instance.expect("types and lanes were checked"))?;
        Ok(plan)
    }
}
