//! `mlp_fused`: the training step of a language model of one word, in a few kernels, then in one.
//!
//! token → embedding → hidden layer with ReLU → logits over the vocabulary → cross-entropy with the
//! next token; and back, and down the gradient. The equations are those of [`lab_reference::mlp`], the
//! tensors those of [`lab_families::mlp`].
//!
//! A version is a way to make N such steps of B pairs each.

#![deny(unsafe_code)]

mod batch;
mod checks;
mod flat;
mod recomputed;
mod resident;
mod sample;
mod shared;
mod steps;
mod tensor;
mod wgmma;

use lab_device::{Arithmetic, DType, Device, KernelSource};
use lab_families::mlp::{self, sizes};
use lab_harness::compare::{unit, unit_roundoff};
use lab_harness::{
    Dim, Dims, Error, Info, Magnitudes, Options, Output, Plan, Preference, Prepared, Reference,
    Request, Stage, Tensors, Version,
};
pub use lab_reference::mlp::Sizes;

use batch::Products;
use steps::StepsPlan;

pub mod launches {
    //! What a training step is made of, within a larger plan: a [`Batch`] of pairs, forward and back.

    pub use crate::batch::{Batch, Pairs, Products};
    pub use crate::flat::Layout;
    pub use crate::shared::Use;
    pub use crate::steps::{blocks, load_kernel};
}

#[allow(missing_docs, unsafe_code)]
pub mod kernels {
    //! The kernel files, embedded by the build script, and what this crate promises of their launches: its only unsafe code.
    include!(concat!(env!("OUT_DIR"), "/kernels.rs"));
}

/// How the steps are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Pair by pair, in three kernels.
    Sample,
    /// In a few launches a step; recorded as a graph or not.
    Batch {
        /// How the products by w2 are made.
        products: Products,
        /// Whether all launches are replayed as one.
        graph: bool,
    },
    /// Pair by pair in one launch, which keeps the parameters.
    Resident,
}

impl Way {
    fn is_graph(self) -> bool {
        matches!(self, Self::Batch { graph: true, .. })
    }

    /// Of how many hidden units there is a multiple.
    fn hidden_in(self) -> usize {
        match self {
            Self::Batch { products: Products::Recomputed, .. } => recomputed::HIDDEN_IN,
            _ => 1,
        }
    }
}

/// A version of the stage.
#[derive(Debug)]
pub struct Fused {
    info: Info,
    way: Way,
}

/// A pair a step.
static SAMPLE_DIMS: [Dim; 5] = mlp::dims([
    [3, 16, 1 << 15],
    [1, 1, 1],
    [50, 1000, 1 << 20],
    [12, 64, 1 << 12],
    [20, 128, 1 << 10],
]);

/// What sixteen blocks have room for.
static RESIDENT_DIMS: [Dim; 5] = [
    SAMPLE_DIMS[0],
    SAMPLE_DIMS[1],
    SAMPLE_DIMS[2],
    Dim { max: resident::MOST[1], ..SAMPLE_DIMS[3] },
    Dim { max: resident::MOST[0], ..SAMPLE_DIMS[4] },
];

/// Many.
static BATCH_DIMS: [Dim; 5] = mlp::dims([
    [3, 16, 1 << 15],
    [20, 256, 1 << 15],
    [50, 5000, 1 << 20],
    [12, 128, 1 << 12],
    [20, 256, 1 << 12],
]);

/// What a block of the products by w2 has room for.
static RECOMPUTED_DIMS: [Dim; 5] = [
    BATCH_DIMS[0],
    BATCH_DIMS[1],
    BATCH_DIMS[2],
    BATCH_DIMS[3],
    Dim { max: recomputed::MOST_HIDDEN, ..BATCH_DIMS[4] },
];

const F32: DType = DType::F32;
const F64: DType = DType::F64;

/// How many magnitudes an element may be off by, in units of roundoff ([`mlp::magnitudes`]). Of the errors that were seen the largest is
/// 1.4; one more is for a GPU's exponential, and for more elements.
const OFF: &[(DType, f64)] = &[(F32, 3.0 * unit::F32), (F64, 3.0 * unit::F64)];

/// The same where products are of bf16: 2.6, for `v3_wgmma` rounds exponentials as well.
const OFF_OF_HALVES: &[(DType, f64)] = &[(F32, 4.0 * unit::BF16)];

const INFO: Info = Info {
    stage: "mlp_fused",
    name: "v0_sample",
    family: &mlp::FAMILY,
    parent: None,
    change: "a pair a step, three kernels: forward with the loss, backward, update",
    dtypes: &[F32, F64],
    dims: &SAMPLE_DIMS,
    settings: &[mlp::LEARNING_RATE],
    inputs: mlp::INPUTS,
    // The roundings of the sums; of the changes, those of the parameters as well, of which a change is
    // a small part.
    outputs: &[
        Output {
            name: "loss",
            bounds: &[(F32, 3e-7), (F64, 6e-16)],
            elements: &[(F32, 8.0 * unit::F32), (F64, 6.0 * unit::F64)],
        },
        Output { name: "emb", bounds: &[(F32, 2e-7), (F64, 2e-16)], elements: OFF },
        Output { name: "w1", bounds: &[(F32, 5e-7), (F64, 5e-16)], elements: OFF },
        Output { name: "b1", bounds: &[(F32, 5e-7), (F64, 9e-16)], elements: OFF },
        Output { name: "w2", bounds: &[(F32, 6e-7), (F64, 3e-16)], elements: OFF },
        Output { name: "b2", bounds: &[(F32, 5e-7), (F64, 6e-16)], elements: OFF },
        Output { name: "emb_change", bounds: &[(F32, 3e-5), (F64, 8e-15)], elements: OFF },
        Output { name: "w1_change", bounds: &[(F32, 1.6e-5), (F64, 3e-15)], elements: OFF },
        Output { name: "b1_change", bounds: &[(F32, 1.4e-6), (F64, 3e-15)], elements: OFF },
        Output { name: "w2_change", bounds: &[(F32, 3e-6), (F64, 1.6e-15)], elements: OFF },
        Output { name: "b2_change", bounds: &[(F32, 3e-6), (F64, 1e-15)], elements: OFF },
    ],
};

/// A pair a step.
pub static SAMPLE: Fused = Fused { info: INFO, way: Way::Sample };

/// Many pairs a step.
pub static BATCH: Fused = Fused {
    info: Info {
        name: "v1_batch",
        parent: Some("v0_sample"),
        change: "many pairs a step: products of tiles, w2 moved where its gradient is summed",
        dtypes: &[F32],
        dims: &BATCH_DIMS,
        // The mean over many pairs moves a parameter by little, w1 by 10⁻⁴ of itself: there the rounding
        // of the parameter is nearly all of the error of its change.
        outputs: &[
            INFO.outputs[0],
            INFO.outputs[1],
            INFO.outputs[2],
            INFO.outputs[3],
            INFO.outputs[4],
            INFO.outputs[5],
            Output { name: "emb_change", bounds: &[(F32, 4e-4)], elements: OFF },
            Output { name: "w1_change", bounds: &[(F32, 1e-3)], elements: OFF },
            Output { name: "b1_change", bounds: &[(F32, 2e-5)], elements: OFF },
            Output { name: "w2_change", bounds: &[(F32, 6e-5)], elements: OFF },
            Output { name: "b2_change", bounds: &[(F32, 5e-5)], elements: OFF },
        ],
        ..INFO
    },
    way: Way::Batch { products: Products::F32, graph: false },
};

/// Many, whose logits are computed twice and never stored.
pub static RECOMPUTED: Fused = Fused {
    info: Info {
        name: "v1_recomputed",
        parent: Some("v1_batch"),
        change: "no logit is stored: an online softmax on the way there, all of them again on the way back",
        dims: &RECOMPUTED_DIMS,
        ..BATCH.info
    },
    way: Way::Batch { products: Products::Recomputed, graph: false },
};

/// The same with the tensor cores.
pub static TENSOR: Fused = Fused {
    info: Info {
        name: "v1_tensor",
        parent: Some("v1_batch"),
        change: "the products by w2 of bf16, on the tensor cores; parameters stay in f32",
        // The roundings of h, w2 and dz to bf16.
        outputs: &[
            Output { name: "loss", bounds: &[(F32, 8e-3)], elements: &[(F32, 2.5 * unit::BF16)] },
            Output { name: "emb", bounds: &[(F32, 1e-3)], elements: &[(F32, 3.0 * unit::BF16)] },
            Output { name: "w1", bounds: &[(F32, 1.4e-3)], elements: &[(F32, 3.0 * unit::BF16)] },
            Output { name: "b1", bounds: &[(F32, 3.6e-3)], elements: &[(F32, 2.0 * unit::BF16)] },
            Output { name: "w2", bounds: &[(F32, 3.6e-3)], elements: &[(F32, 3.0 * unit::BF16)] },
            Output { name: "b2", bounds: &[(F32, 6e-3)], elements: &[(F32, 2.0 * unit::BF16)] },
            Output {
                name: "emb_change",
                bounds: &[(F32, 1.2e-2)],
                elements: &[(F32, 3.0 * unit::BF16)],
            },
            Output { name: "w1_change", bounds: &[(F32, 1.4e-2)], elements: OFF_OF_HALVES },
            Output { name: "b1_change", bounds: &[(F32, 1.3e-2)], elements: OFF_OF_HALVES },
            Output { name: "w2_change", bounds: &[(F32, 1.4e-2)], elements: OFF_OF_HALVES },
            Output { name: "b2_change", bounds: &[(F32, 1.1e-2)], elements: OFF_OF_HALVES },
        ],
        ..BATCH.info
    },
    way: Way::Batch { products: Products::Halves, graph: false },
};

/// The same launches, replayed.
pub static GRAPH: Fused = Fused {
    info: Info {
        name: "v2_graph",
        parent: Some("v1_batch"),
        change: "the launches of all steps recorded once, and launched as one",
        ..BATCH.info
    },
    way: Way::Batch { products: Products::F32, graph: true },
};

/// All steps in a launch.
pub static RESIDENT: Fused = Fused {
    info: Info {
        name: "v2_resident",
        parent: Some("v2_graph"),
        change: "all steps in a launch: the parameters stay in the shared memory of a cluster",
        dtypes: &[F32],
        dims: &RESIDENT_DIMS,
        ..INFO
    },
    way: Way::Resident,
};

/// As `v1_tensor`, by warpgroups.
pub static WGMMA: Fused = Fused {
    info: Info {
        name: "v3_wgmma",
        parent: Some("v1_tensor"),
        change: "the products by w2 by wgmma and TMA; of the logits their exponentials are stored, in bf16",
        // Behind w1 there are five roundings in place of two: dz is made of an exponential that was rounded, and
        // rounded itself; so are w2, and of dw1 = da xᵀ both. With one pair a step nothing averages them.
        outputs: &[
            TENSOR.info.outputs[0],
            TENSOR.info.outputs[1],
            Output { name: "w1", bounds: &[(F32, 2.8e-3)], elements: &[(F32, 3.0 * unit::BF16)] },
            TENSOR.info.outputs[3],
            TENSOR.info.outputs[4],
            TENSOR.info.outputs[5],
            TENSOR.info.outputs[6],
            TENSOR.info.outputs[7],
            TENSOR.info.outputs[8],
            TENSOR.info.outputs[9],
            TENSOR.info.outputs[10],
        ],
        ..TENSOR.info
    },
    way: Way::Batch { products: Products::Warpgroups, graph: false },
};

/// Every version, in the order of the story.
pub static VERSIONS: [&Fused; 7] =
    [&SAMPLE, &BATCH, &RECOMPUTED, &TENSOR, &GRAPH, &RESIDENT, &WGMMA];

/// This stage.
pub static STAGE: Stage = Stage {
    name: "mlp_fused",
    teaches: "a whole training step: which parts can share a launch, and which must wait for the grid",
    versions: &[&SAMPLE, &BATCH, &RECOMPUTED, &TENSOR, &GRAPH, &RESIDENT, &WGMMA],
    kernels: kernels::KERNELS,
    version_checks: checks::OF_EACH,
    checks: checks::CHECKS,
    ..Stage::EMPTY
};

impl Fused {
    fn plan_steps(&self, device: &Device, request: &Request<'_>) -> Result<StepsPlan, Error> {
        let lr = mlp::learning_rate(&self.info, request.options())?;
        let mut run = StepsPlan::new(device, request, lr, self.way.hidden_in());
        self.add_steps(&mut run)?;
        Ok(run)
    }

    fn add_steps(&self, run: &mut StepsPlan) -> Result<(), Error> {
        match self.way {
            Way::Sample => sample::add_steps(run),
            Way::Resident => resident::add_steps(run, true),
            Way::Batch { products, .. } => batch::add_steps(run, products),
        }
    }

    /// Of what type the factors of the products by w2 are.
    pub fn operand_dtype(&self, dtype: DType) -> DType {
        match self.way {
            Way::Batch { products, .. } => products.dtype(),
            Way::Sample | Way::Resident => dtype,
        }
    }

    /// The plan of a run that trains the parameters where they lie. Its slots:
    ///
    /// - inputs `tokens` and `targets`, \[N, B\] in i32. Nothing looks whether they are of the vocabulary: whoever binds them has;
    /// - `emb`, `w1`, `b1`, `w2`, `b2`, which it updates: row-major, each at a multiple of 16 bytes;
    /// - the output `loss` \[N\] in f64;
    /// - where there may be several pairs a step, inputs `order` \[N B\] in i32, which holds 0, 1, 2 and so on, and `rates`
    ///   \[N\] in f64, the learning rate of each step. Other versions have the one of the options in their launches;
    /// - where the products are of bf16, the state `w2_copy`: room that no run finds anything in.
    ///
    /// # Errors
    /// The hidden units are no multiple of what the version wants, or the model has no room on the device; what the
    /// device says of the kernels.
    pub fn plan_in_place(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let (hidden, wanted) = (request.dim("H"), self.way.hidden_in());
        if hidden % wanted != 0 {
            let expected =
                format!("a multiple of {wanted} hidden units, for {}", self.info.full_name());
            return Err(Error::Tensor { name: "w1".into(), expected, got: hidden.to_string() });
        }
        let lr = request.options().number(&self.info, mlp::LEARNING_RATE.name);
        let mut run = StepsPlan::in_place(device, request, lr);
        self.add_steps(&mut run)?;
        Ok(run.plan)
    }
}

impl Version for Fused {
    fn info(&self) -> &Info {
        &self.info
    }

    fn preference(&self) -> Option<Preference> {
        Some(match self.info.name {
            "v2_resident" => Preference::new(10).on_emulator(50),
            "v1_batch" => Preference::new(20),
            "v3_wgmma" => Preference::new(30).on_emulator(40),
            "v1_tensor" => Preference::new(40).on_emulator(30),
            "v1_recomputed" => Preference::new(50).on_emulator(60),
            "v0_sample" => Preference::new(60).on_emulator(10),
            _ => return None,
        })
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        match self.way {
            Way::Sample => vec![&kernels::V0_SAMPLE],
            Way::Resident => vec![&kernels::V2_RESIDENT],
            Way::Batch { products, .. } => match products {
                Products::F32 => vec![&kernels::V1_BATCH],
                Products::Halves => vec![&kernels::V1_TENSOR, &kernels::V1_BATCH],
                Products::Warpgroups => {
                    vec![&kernels::V3_WGMMA, &kernels::V3_HIDDEN, &kernels::V1_TENSOR]
                }
                Products::Recomputed => vec![&kernels::V1_RECOMPUTED, &kernels::V1_BATCH],
            },
        }
    }

    /// Where products are of halves, a parameter's own rounding is small beside theirs.
    fn magnitudes(&self, inputs: &Tensors, options: &Options, reference: &Reference) -> Magnitudes {
        let dtype = inputs["emb"].dtype;
        let share = unit_roundoff(dtype) / unit_roundoff(self.operand_dtype(dtype));
        let lr = options.number(&self.info, mlp::LEARNING_RATE.name);
        mlp::magnitudes(inputs, lr, reference, share)
    }

    fn arithmetic(&self, dtype: DType) -> Option<Arithmetic> {
        match self.way {
            Way::Batch { products, .. } => Arithmetic::fastest_for(products.dtype()),
            Way::Sample | Way::Resident => Arithmetic::fastest_for(dtype),
        }
    }

    fn replayed(&self) -> bool {
        !self.way.is_graph()
    }

    fn test_shapes(&self) -> Vec<Dims> {
        // Of all one; one step; several, with tokens that come again.
        let mut all: Vec<[usize; 5]> =
            vec![[1, 1, 1, 1, 1], [1, 1, 5, 3, 4], [6, 1, 3, 5, 33], [9, 1, 130, 33, 70]];
        if self.way == Way::Resident {
            // Fewer tokens than blocks; rows for several rounds of a block; all the room there is.
            all.extend([[5, 1, 17, 32, 64], [4, 1, 1100, 40, 128], [40, 1, 30, 7, 9]]);
        }
        if let Way::Batch { graph, .. } = self.way {
            // One pair less than a tile, one more; of everything some tiles; elements and packs.
            all.extend([[2, 63, 65, 12, 64], [1, 65, 130, 36, 68], [2, 70, 67, 33, 35]]);
            if !graph {
                all.extend([[1, 200, 600, 40, 132], [5, 7, 9, 4, 8], [40, 3, 20, 8, 8]]);
            }
        }
        if self.way == (Way::Batch { products: Products::F32, graph: false }) {
            // So many tokens that an emulator, too, has tiles of 128 rows.
            all.push([1, 130, 1540, 4, 132]);
        }
        if self.way == (Way::Batch { products: Products::Warpgroups, graph: false }) {
            // Pairs that the blocks of a cluster share, in packs and one by one.
            all.extend([[1, 600, 9, 4, 36], [1, 530, 11, 5, 33]]);
        }
        if self.way == (Way::Batch { products: Products::Recomputed, graph: false }) {
            // Rows of the longest kind; many parts of the vocabulary.
            all.extend([[2, 33, 70, 5, 259], [1, 5, 1300, 4, 12]]);
        }
        all.into_iter().map(sizes).collect()
    }

    fn bench_shapes(&self, dtype: DType) -> Vec<Dims> {
        // A small model, a middling one, a large one.
        let (small, middle, large) =
            ([16, 1, 1000, 64, 128], [16, 256, 5000, 128, 256], [4, 1024, 10000, 256, 512]);
        match self.way {
            Way::Sample | Way::Resident => vec![self.info.timed(dtype)],
            Way::Batch { .. } => [small, middle, large].into_iter().map(sizes).collect(),
        }
    }

    /// Its inputs are made of the family's tensors: `tokens` and `targets` in i32; `initial`, all
    /// parameters in one buffer, as is the output `parameters`; where there are several pairs a step, also
    /// their `order` \[N B\] and the `rates` \[N\] of the steps.
    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        Ok(self.plan_steps(device, request)?.plan)
    }

    fn prepare(
        &self,
        device: &Device,
        inputs: &Tensors,
        options: &Options,
    ) -> Result<Box<dyn Prepared>, Error> {
        let request = Request::of(&self.info, inputs, options)?;
        mlp::check_ids(inputs)?;
        let steps = self.plan_steps(device, &request)?;
        Ok(Box::new(steps.bind(inputs, self.way.is_graph())?))
    }
}
