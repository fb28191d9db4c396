//! SwiGLU: `kernels/swiglu.cu`.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Dim, Error, Info, Input, Output, Plan, Request, arguments};
use lab_reference::passes as reference;

use crate::kernels;
use crate::magnitudes;
use crate::pass::{Formula, Pass, bytes};
use crate::slots::{
    check_dtype, check_lengths, check_sizes, grid_over, pack, untouched, with_pack,
};

/// u = silu(gate) · up, of rows that hold all columns of gate, then those of up.
#[derive(Clone, Copy, Debug)]
pub struct SwiGlu {
    /// Of all tensors: f32, f16 or bf16.
    pub dtype: DType,
    /// B · S.
    pub rows: usize,
    /// Columns of u.
    pub width: usize,
    /// \[rows, 2 width\].
    pub gate_up: Slot,
    /// Where u goes, \[rows, width\]; scratch of its own where it is not said.
    pub u: Option<Slot>,
}

/// What comes from above, and where the gradients go.
#[derive(Clone, Copy, Debug)]
pub struct SwiGluUpstream {
    /// Of u.
    pub du: Slot,
    /// Where the gradient of `gate_up` goes; scratch of its own where it is not said.
    pub dgate_up: Option<Slot>,
    /// Where u is written again, where it was not kept.
    pub recompute_into: Option<Slot>,
}

const NAME: &str = "swiglu";

impl SwiGlu {
    fn check(&self) -> Result<(), Error> {
        check_dtype(NAME, self.dtype)?;
        check_sizes(NAME, &[("rows", self.rows), ("width", self.width)])?;
        let all = self.rows * self.width;
        check_lengths(NAME, &[("gate_up", Some(self.gate_up), 2 * all), ("u", self.u, all)])
    }

    fn pack(&self, slots: &[Option<Slot>]) -> usize {
        let own = slots.iter().flatten().map(|slot| (*slot, self.dtype));
        pack(self.dtype, &[self.width], &own.collect::<Vec<_>>())
    }

    /// Adds the launch; u.
    ///
    /// # Errors
    /// A type, a size or a slot's length that does not fit.
    pub fn add_forward(&self, plan: &mut Plan) -> Result<Slot, Error> {
        self.check()?;
        let Self { dtype, rows, width, gate_up, .. } = *self;
        let pack = self.pack(&[Some(gate_up), self.u]);
        let kernel = with_pack(plan, &kernels::SWIGLU, "swiglu", dtype, pack)?;
        let u = self.u.unwrap_or_else(|| plan.scratch(dtype, rows * width));
        let launch = grid_over(&kernel, rows * (width / pack))?;
        plan.launch(&kernel, launch, arguments![gate_up, u, rows, width])?;
        Ok(u)
    }

    /// Adds the launch of the way back; the gradient of `gate_up`.
    ///
    /// # Errors
    /// As [`SwiGlu::add_forward`].
    pub fn add_backward(&self, plan: &mut Plan, upstream: SwiGluUpstream) -> Result<Slot, Error> {
        self.check()?;
        let Self { dtype, rows, width, gate_up, .. } = *self;
        let SwiGluUpstream { du, dgate_up, recompute_into } = upstream;
        let all = rows * width;
        let lengths = [
            ("du", Some(du), all),
            ("dgate_up", dgate_up, 2 * all),
            ("recomputed u", recompute_into, all),
        ];
        check_lengths(NAME, &lengths)?;
        let pack = self.pack(&[Some(gate_up), Some(du), dgate_up, recompute_into]);
        let kernel = with_pack(plan, &kernels::SWIGLU, "swiglu_back", dtype, pack)?;
        let dgate_up = dgate_up.unwrap_or_else(|| plan.scratch(dtype, 2 * all));
        let recomputes = recompute_into.is_some();
        let u = recompute_into.unwrap_or_else(|| untouched(plan, dtype));
        let launch = grid_over(&kernel, rows * (width / pack))?;
        plan.launch(
            &kernel,
            launch,
            arguments![gate_up, du, dgate_up, u, rows, width, recomputes],
        )?;
        Ok(dgate_up)
    }
}

static FORWARD: Formula = Formula {
    name: "swiglu",
    draw: |_, _| (),
    reference: |of| vec![("u", reference::swiglu(&of.values("gate_up"), of.dim("C")))],
    magnitudes: magnitudes::swiglu,
    cost: |dims, dtype| {
        let all = (dims.get("R") * dims.get("C")) as f64;
        bytes(dtype, 6.0 * all, 3.0 * all, 0.0)
    },
};

static BACKWARD: Formula = Formula {
    name: "swiglu_back",
    draw: |_, _| (),
    reference: |of| {
        let (gate_up, width) = (of.values("gate_up"), of.dim("C"));
        let d = reference::swiglu_back(&gate_up, &of.values("du"), width);
        vec![("u", reference::swiglu(&gate_up, width)), ("dgate_up", d)]
    },
    magnitudes: magnitudes::swiglu,
    cost: |dims, dtype| {
        let all = (dims.get("R") * dims.get("C")) as f64;
        bytes(dtype, 14.0 * all, 6.0 * all, 0.0)
    },
};

/// Forward.
pub static SWIGLU: Pass = Pass {
    info: Info {
        stage: "passes",
        name: "swiglu",
        family: &FORWARD,
        parent: None,
        change: "16 bytes of gate and of up a thread, from the rows that one product has made",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &[
            Dim::new("R", "rows", [5, 16384, i32::MAX as usize]),
            Dim::new("C", "columns of u", [48, 2048, 1 << 24]),
        ],
        settings: &[],
        inputs: &[Input::new("gate_up", &["R", "2C"])],
        outputs: &[Output {
            name: "u",
            bounds: &[(DType::F32, 4e-7), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
            elements: &magnitudes::in_f32(4.0),
        }],
    },
    shapes: &[&[1, 1], &[1, 8], &[3, 31], &[2, 1000], &[5, 1024], &[40, 72], &[3, 2047]],
    timed: &[],
    sources: &[&kernels::SWIGLU],
    plan: |plan, request| {
        let (swiglu, rows, width) = operation(plan, request);
        let u = Some(plan.output("u", swiglu.dtype, &[rows, width]));
        SwiGlu { u, ..swiglu }.add_forward(plan)?;
        Ok(())
    },
};

/// Back, with u again.
pub static SWIGLU_BACK: Pass = Pass {
    info: Info {
        name: "swiglu_back",
        family: &BACKWARD,
        change: "back in one pass, with u made again: it need not be kept",
        inputs: &[SWIGLU.info.inputs[0], Input::new("du", &["R", "C"])],
        outputs: &[
            SWIGLU.info.outputs[0],
            Output {
                name: "dgate_up",
                bounds: &[(DType::F32, 4e-7), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
                elements: &magnitudes::in_f32(5.0),
            },
        ],
        ..SWIGLU.info
    },
    plan: |plan, request| {
        let (swiglu, rows, width) = operation(plan, request);
        let upstream = SwiGluUpstream {
            du: request.input(plan, "du"),
            dgate_up: Some(plan.output("dgate_up", swiglu.dtype, &[rows, 2 * width])),
            recompute_into: Some(plan.output("u", swiglu.dtype, &[rows, width])),
        };
        swiglu.add_backward(plan, upstream)?;
        Ok(())
    },
    ..SWIGLU
};

fn operation(plan: &mut Plan, request: &Request<'_>) -> (SwiGlu, usize, usize) {
    let (rows, width) = (request.dim("R"), request.dim("C"));
    let gate_up = request.input(plan, "gate_up");
    (SwiGlu { dtype: request.dtype, rows, width, gate_up, u: None }, rows, width)
}
