//! Dropout by counter: `kernels/dropout.cu`.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Dim, Error, Info, Input, Output, Plan, Setting, arguments};
use lab_reference::passes as reference;

use crate::kernels;
use crate::magnitudes;
use crate::pass::{Formula, Operands, Pass, bytes};
use crate::slots::{THREADS, check_dtype, check_lengths, check_sizes, grid, pack, with_pack};

/// x / (1 − rate), or zero with probability `rate`.
///
/// Which elements are kept depends on the seed, the stream, the step and the element alone: the way back makes the same choice,
/// and so does a run that is repeated.
#[derive(Clone, Copy, Debug)]
pub struct Dropout {
    /// Of all tensors: f32, f16 or bf16.
    pub dtype: DType,
    /// Elements of x.
    pub elements: usize,
    /// From 0 to below 1.
    pub rate: f64,
    /// That of the training.
    pub seed: u64,
    /// The number of this dropout in the model: another choice in each.
    pub stream: u16,
    /// i64 \[1\]: the step of training, such as [`crate::Progress::steps_taken`].
    pub step: Slot,
    /// What elements are dropped of.
    pub x: Slot,
    /// Where the result goes; scratch of its own where it is not said.
    pub out: Option<Slot>,
}

const NAME: &str = "dropout";

impl Dropout {
    fn add(&self, plan: &mut Plan, x: Slot, out: Option<Slot>) -> Result<Slot, Error> {
        let Self { dtype, elements: n, rate, seed, stream, step, .. } = *self;
        check_dtype(NAME, dtype)?;
        check_sizes(NAME, &[("elements", n)])?;
        if !(0.0..1.0).contains(&rate) {
            return Err(Error::bad(format!("rate of {NAME}"), "from 0 to below 1", rate));
        }
        check_lengths(NAME, &[("x", Some(x), n), ("step", Some(step), 1), ("out", out, n)])?;
        let out = out.unwrap_or_else(|| plan.scratch(dtype, n));
        let pack = pack(dtype, &[n], &[(x, dtype), (out, dtype)]);
        let kernel = with_pack(plan, &kernels::DROPOUT, "dropout", dtype, pack)?;
        let launch = grid(&kernel, [n.div_ceil(pack.max(4) * THREADS), 1])?;
        let threshold = (rate * 2f64.powi(32)) as u32;
        let all = arguments![
            x, out, step, seed, stream: i32::from(stream), threshold, factor: 1.0 / (1.0 - rate), n
        ];
        plan.launch(&kernel, launch, all)?;
        Ok(out)
    }

    /// Adds the launch; the result.
    ///
    /// # Errors
    /// A type, a rate or a slot's length that does not fit.
    pub fn add_forward(&self, plan: &mut Plan) -> Result<Slot, Error> {
        self.add(plan, self.x, self.out)
    }

    /// Adds the launch of the way back: the gradient of x, into scratch of its own where it is not said.
    ///
    /// # Errors
    /// As [`Dropout::add_forward`].
    pub fn add_backward(
        &self,
        plan: &mut Plan,
        upstream: Slot,
        into: Option<Slot>,
    ) -> Result<Slot, Error> {
        self.add(plan, upstream, into)
    }
}

static DROP: Formula = Formula {
    name: "dropout",
    draw: |_, _| (),
    reference: |of| vec![("out", dropped(of, "x")), ("dx", dropped(of, "dout"))],
    magnitudes: magnitudes::own_size,
    cost: |dims, dtype| bytes(dtype, 2.0 * dims.get("N") as f64, 4.0 * dims.get("N") as f64, 0.0),
};

fn dropped(of: &Operands<'_>, name: &str) -> Vec<f64> {
    reference::dropout(&of.values(name), of.number("p"), [0, 0], STREAM.into())
}

/// Of the version: any.
const STREAM: u16 = 3;

/// There and back.
pub static DROPOUT: Pass = Pass {
    info: Info {
        stage: "passes",
        name: "dropout",
        family: &DROP,
        parent: None,
        change: "a counter a choice: the way back makes it again, and nothing is kept",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &[Dim::new("N", "elements", [1000, 1 << 24, 1 << 40])],
        settings: &[Setting::number("p", "probability that an element is dropped", "0.3")],
        inputs: &[Input::new("x", &["N"]), Input::new("dout", &["N"])],
        // A product and a rounding.
        outputs: &[
            Output {
                name: "out",
                bounds: &[(DType::F32, 2e-7), (DType::F16, 6e-4), (DType::BF16, 5e-3)],
                elements: &magnitudes::in_f32(2.0),
            },
            Output {
                name: "dx",
                bounds: &[(DType::F32, 2e-7), (DType::F16, 6e-4), (DType::BF16, 5e-3)],
                elements: &magnitudes::in_f32(2.0),
            },
        ],
    },
    shapes: &[&[1], &[7], &[1000], &[4099], &[5000]],
    timed: &[],
    sources: &[&kernels::DROPOUT],
    plan: |plan, request| {
        let [x, dout] = request.inputs(plan, ["x", "dout"]);
        let (dtype, elements, rate) = (request.dtype, request.dim("N"), request.number("p"));
        if !(0.0..1.0).contains(&rate) {
            return Err(Error::bad("--set p", "from 0 to below 1", rate));
        }
        let [out, dx] = ["out", "dx"].map(|name| plan.output(name, dtype, &[elements]));
        let step = plan.constant(&lab_harness::Tensor::new(&[1], &[0i64]));
        let (seed, stream) = (0, STREAM);
        let op = Dropout { dtype, elements, rate, seed, stream, step, x, out: Some(out) };
        op.add_forward(plan)?;
        op.add_backward(plan, dout, Some(dx))?;
        Ok(())
    },
};
