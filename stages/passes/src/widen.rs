//! Gradients in halves among those in f32, and numbers of f32 in a narrower type: `kernels/widen.cu`.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Dim, Error, Info, Input, Output, Plan, arguments};

use crate::kernels;
use crate::magnitudes;
use crate::pass::{Formula, Pass, bytes};
use crate::slots::{THREADS, check_dtype, check_lengths, check_sizes, grid, pack, with_pack};

/// sum = x, or sum += x, in f32.
#[derive(Clone, Copy, Debug)]
pub struct Widen {
    /// Of x: f32, f16 or bf16.
    pub dtype: DType,
    /// Elements of both.
    pub elements: usize,
    /// What is added.
    pub x: Slot,
    /// f32.
    pub sum: Slot,
    /// Whether what is there stays.
    pub accumulates: bool,
}

const NAME: &str = "widen";

impl Widen {
    /// Adds the launch.
    ///
    /// # Errors
    /// A type or a slot's length that does not fit.
    pub fn add(&self, plan: &mut Plan) -> Result<(), Error> {
        let Self { dtype, elements: n, x, sum, accumulates } = *self;
        check_dtype(NAME, dtype)?;
        check_sizes(NAME, &[("elements", n)])?;
        check_lengths(NAME, &[("x", Some(x), n), ("sum", Some(sum), n)])?;
        let pack = pack(dtype, &[n], &[(x, dtype), (sum, DType::F32)]);
        let kernel = with_pack(plan, &kernels::WIDEN, NAME, dtype, pack)?;
        let launch = grid(&kernel, [n.div_ceil(pack * THREADS), 1])?;
        plan.launch(&kernel, launch, arguments![x, sum, n, accumulates])
    }
}

/// y = x of f32, rounded once to the type of y.
#[derive(Clone, Copy, Debug)]
pub struct Narrow {
    /// Of y: f32, f16 or bf16.
    pub dtype: DType,
    /// Elements of both.
    pub elements: usize,
    /// f32.
    pub x: Slot,
    /// What it becomes.
    pub y: Slot,
}

impl Narrow {
    /// Adds the launch.
    ///
    /// # Errors
    /// A type or a slot's length that does not fit.
    pub fn add(&self, plan: &mut Plan) -> Result<(), Error> {
        const NAME: &str = "narrow";
        let Self { dtype, elements: n, x, y } = *self;
        check_dtype(NAME, dtype)?;
        check_sizes(NAME, &[("elements", n)])?;
        check_lengths(NAME, &[("x", Some(x), n), ("y", Some(y), n)])?;
        let pack = pack(dtype, &[n], &[(x, DType::F32), (y, dtype)]);
        let kernel = with_pack(plan, &kernels::WIDEN, NAME, dtype, pack)?;
        let launch = grid(&kernel, [n.div_ceil(pack * THREADS), 1])?;
        plan.launch(&kernel, launch, arguments![x, y, n])
    }
}

static WIDENED: Formula = Formula {
    name: "widen",
    draw: |_, _| (),
    reference: |of| {
        let sums = of.values("sum").into_iter().zip(of.values("x"));
        vec![("sum_after", sums.map(|(sum, x)| sum + x).collect())]
    },
    magnitudes: magnitudes::own_size,
    cost: |dims, dtype| {
        let n = dims.get("N") as f64;
        bytes(dtype, n, n, 8.0 * n)
    },
};

/// Added to.
pub static WIDEN: Pass = Pass {
    info: Info {
        stage: "passes",
        name: "widen",
        family: &WIDENED,
        parent: None,
        change: "16 bytes of halves a thread, and the floats that they join",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &[Dim::new("N", "elements", [1000, 1 << 24, 1 << 40])],
        settings: &[],
        inputs: &[Input::new("x", &["N"]), Input::new("sum", &["N"]).always(DType::F32)],
        // One rounding.
        outputs: &[Output {
            name: "sum_after",
            bounds: &[(DType::F32, 1.2e-7), (DType::F16, 1.2e-7), (DType::BF16, 1.2e-7)],
            elements: &magnitudes::in_f32(0.0),
        }],
    },
    shapes: &[&[1], &[7], &[256 * 8], &[256 * 8 + 8], &[1003]],
    timed: &[],
    sources: &[&kernels::WIDEN],
    plan: |plan, request| {
        let (n, dtype) = (request.dim("N"), request.dtype);
        let x = request.input(plan, "x");
        let sum = plan.updated("sum", "sum_after", DType::F32, &[n]);
        Widen { dtype, elements: n, x, sum, accumulates: true }.add(plan)
    },
};
