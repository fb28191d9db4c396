//! Gates with a soft cap, in the layout that the mixer reads: `kernels/gates.cu`.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Dim, Error, Info, Input, Output, Plan, Request, Setting, arguments};
use lab_reference::passes as reference;

use crate::column_sums::ColumnSums;
use crate::kernels;
use crate::magnitudes;
use crate::pass::{Formula, Pass, bytes};
use crate::slots::{
    THREADS, check_dtype, check_lengths, check_rows, check_rows_count, check_sizes, grid, untouched,
};

/// i, f = cap · tanh((pre + bias) / cap), from the columns of a product: those of i of each head, then those of f.
///
/// `i` and `f` are f32 \[B, NH, S\]. `pre` may be columns of wider rows: its slot begins with its first column, and its rows are
/// `stride` elements apart.
#[derive(Clone, Copy, Debug)]
pub struct SoftCapGates {
    /// Of `pre`: f32, f16 or bf16.
    pub pre_dtype: DType,
    /// Of the bias: the type of `pre`, or, where that is f32, any.
    pub dtype: DType,
    /// B.
    pub batch: usize,
    /// S.
    pub positions: usize,
    /// NH.
    pub heads: usize,
    /// Above 0.
    pub cap: f32,
    /// \[B S, 2 NH\] in rows `stride` apart.
    pub pre: Slot,
    /// Elements from row to row of `pre`.
    pub stride: usize,
    /// \[2 NH\].
    pub bias: Option<Slot>,
    /// Where i and f go; scratch of their own where it is not said.
    pub gates: Option<Gates>,
}

/// Gates, or their gradients, f32 \[B, NH, S\] each.
#[derive(Clone, Copy, Debug)]
pub struct Gates {
    /// The input gate.
    pub i: Slot,
    /// The forget gate.
    pub f: Slot,
}

/// What comes from above, and where the gradients go.
#[derive(Clone, Copy, Debug)]
pub struct SoftCapGatesUpstream {
    /// Of the gates.
    pub gates: Gates,
    /// Where the gradient of `pre` goes, in its type and in rows `dstride` apart; scratch of its own, without gaps, where it is
    /// not said.
    pub dpre: Option<Slot>,
    /// Elements from row to row of `dpre`.
    pub dstride: usize,
    /// Of the bias, f32 \[2 NH\].
    pub dbias: Option<Slot>,
    /// Whether `dbias` is added to.
    pub accumulates: bool,
}

const NAME: &str = "soft_cap_gates";

impl SoftCapGates {
    fn rows(&self) -> usize {
        self.batch * self.positions
    }

    fn check(&self) -> Result<(), Error> {
        let Self { pre_dtype, dtype, batch, positions, heads, cap, .. } = *self;
        check_dtype(NAME, pre_dtype)?;
        check_dtype(NAME, dtype)?;
        if ![dtype, DType::F32].contains(&pre_dtype) {
            let what = format!("type of pre of {NAME}");
            return Err(Error::bad(what, format!("{dtype}, as the bias, or f32"), pre_dtype));
        }
        check_sizes(NAME, &[("batch", batch), ("positions", positions), ("heads", heads)])?;
        check_rows_count(NAME, self.rows())?;
        if !(cap > 0.0 && cap.is_finite()) {
            return Err(Error::bad(format!("cap of {NAME}"), "a finite number above 0", cap));
        }
        check_rows(NAME, "pre", self.pre, [self.rows(), 2 * heads, self.stride])?;
        let all = self.rows() * heads;
        let gates = self.gates;
        check_lengths(
            NAME,
            &[
                ("bias", self.bias, 2 * heads),
                ("i", gates.map(|g| g.i), all),
                ("f", gates.map(|g| g.f), all),
            ],
        )
    }

    fn name(&self, kernel: &str) -> String {
        format!("{kernel}<{}, {}>", self.pre_dtype.cpp(), self.dtype.cpp())
    }

    /// Adds the launch; i and f.
    ///
    /// # Errors
    /// A type, a size, a stride, a cap or a slot's length that does not fit.
    pub fn add_forward(&self, plan: &mut Plan) -> Result<Gates, Error> {
        self.check()?;
        let Self { dtype, positions, heads, cap, pre, stride, .. } = *self;
        let rows = self.rows();
        let kernel = plan.device().kernel(&kernels::GATES, &self.name("soft_cap_gates"))?;
        let Gates { i, f } = self.gates.unwrap_or_else(|| Gates {
            i: plan.scratch(DType::F32, rows * heads),
            f: plan.scratch(DType::F32, rows * heads),
        });
        let has_bias = self.bias.is_some();
        let bias = self.bias.unwrap_or_else(|| untouched(plan, dtype));
        let launch = grid(&kernel, [rows.div_ceil(THREADS), 1])?;
        let all = arguments![pre, bias, i, f, rows, positions, heads, stride, cap, has_bias];
        plan.launch(&kernel, launch, all)?;
        Ok(Gates { i, f })
    }

    /// Adds the launches of the way back; the gradient of `pre`.
    ///
    /// # Errors
    /// As [`SoftCapGates::add_forward`]; also a gradient of a bias that there is none of.
    pub fn add_backward(
        &self,
        plan: &mut Plan,
        upstream: SoftCapGatesUpstream,
    ) -> Result<Slot, Error> {
        let (dpre, sums) = self.add_backward_to_sums(plan, upstream)?;
        ColumnSums::add_all(plan, sums.as_slice())?;
        Ok(dpre)
    }

    /// The same without the last step of the bias' gradient: several such are [added up](ColumnSums::add_all) at once.
    ///
    /// # Errors
    /// As [`SoftCapGates::add_backward`].
    pub fn add_backward_to_sums(
        &self,
        plan: &mut Plan,
        upstream: SoftCapGatesUpstream,
    ) -> Result<(Slot, Option<ColumnSums>), Error> {
        self.check()?;
        let Self { pre_dtype, dtype, positions, heads, cap, pre, stride, .. } = *self;
        let SoftCapGatesUpstream { gates: Gates { i: di, f: df }, dbias, accumulates, .. } =
            upstream;
        if dbias.is_some() && self.bias.is_none() {
            return Err(Error::bad(
                format!("dbias of {NAME}"),
                "none, for there is no bias",
                "one",
            ));
        }
        let (rows, columns) = (self.rows(), 2 * heads);
        let lengths = [
            ("di", Some(di), rows * heads),
            ("df", Some(df), rows * heads),
            ("dbias", dbias, columns),
        ];
        check_lengths(NAME, &lengths)?;
        let dstride = upstream.dpre.map_or(columns, |_| upstream.dstride);
        if let Some(dpre) = upstream.dpre {
            check_rows(NAME, "dpre", dpre, [rows, columns, dstride])?;
        }
        let kernel = plan.device().kernel(&kernels::GATES, &self.name("soft_cap_gates_back"))?;
        let launch = grid(&kernel, [rows.div_ceil(THREADS), 1])?;
        let blocks = launch.grid[0] as usize;
        let dpre = upstream.dpre.unwrap_or_else(|| plan.scratch(pre_dtype, rows * columns));
        let partial = plan.scratch(DType::F32, blocks * columns);
        let has_bias = self.bias.is_some();
        let bias = self.bias.unwrap_or_else(|| untouched(plan, dtype));
        let all = arguments![
            pre, bias, di, df, dpre, partial, rows, positions, heads, stride, dstride, cap,
            has_bias
        ];
        plan.launch(&kernel, launch, all)?;
        Ok((dpre, dbias.map(|out| ColumnSums { partial, out, accumulates })))
    }
}

static FORWARD: Formula = Formula {
    name: "soft_cap_gates",
    draw: |_, _| (),
    reference: |of| {
        let [i, f] = gates(of).forward(&of.values("pre"), &of.values("bias"));
        vec![("i", i), ("f", f)]
    },
    magnitudes: magnitudes::soft_cap_gates,
    cost: |dims, dtype| {
        let all = (dims.get("B") * dims.get("S") * dims.get("NH") * 2) as f64;
        bytes(dtype, 3.0 * all, all, 4.0 * all)
    },
};

static BACKWARD: Formula = Formula {
    name: "soft_cap_gates_back",
    draw: |_, _| (),
    reference: |of| {
        let (gates, pre, bias) = (gates(of), of.values("pre"), of.values("bias"));
        let [i, f] = gates.forward(&pre, &bias);
        let (dpre, dbias) = gates.backward(&pre, &bias, [&of.values("di"), &of.values("df")]);
        vec![("i", i), ("f", f), ("dpre", dpre), ("dbias", dbias)]
    },
    magnitudes: magnitudes::soft_cap_gates,
    cost: |dims, dtype| {
        let all = (dims.get("B") * dims.get("S") * dims.get("NH") * 2) as f64;
        bytes(dtype, 9.0 * all, 3.0 * all, 8.0 * all)
    },
};

fn gates(of: &crate::pass::Operands<'_>) -> reference::SoftCapGates {
    reference::SoftCapGates { positions: of.dim("S"), heads: of.dim("NH"), cap: of.number("cap") }
}

/// Forward.
pub static SOFT_CAP_GATES: Pass = Pass {
    info: Info {
        stage: "passes",
        name: "soft_cap_gates",
        family: &FORWARD,
        parent: None,
        change: "a thread a row: both gates of all heads, straight into [B, NH, S]",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &[
            Dim::new("B", "batch", [2, 8, 1 << 20]),
            Dim::new("S", "positions", [37, 2048, 1 << 20]),
            Dim::new("NH", "heads", [3, 4, 1 << 10]),
        ],
        settings: &[Setting::number("cap", "of the gates' pre-activations", "15")],
        inputs: &[Input::new("pre", &["B", "S", "2NH"]), Input::new("bias", &["2NH"])],
        outputs: &[
            Output {
                name: "i",
                bounds: &[(DType::F32, 3e-7), (DType::F16, 3e-7), (DType::BF16, 3e-7)],
                elements: &magnitudes::in_f32(5.0),
            },
            Output {
                name: "f",
                bounds: &[(DType::F32, 3e-7), (DType::F16, 3e-7), (DType::BF16, 3e-7)],
                elements: &magnitudes::in_f32(5.0),
            },
        ],
    },
    // Also more columns than are added up at once.
    shapes: &[&[1, 1, 1], &[2, 300, 4], &[3, 37, 5], &[1, 513, 2], &[2, 20, 15]],
    timed: &[],
    sources: &[&kernels::GATES],
    plan: |plan, request| forward(plan, request).map(|_| ()),
};

/// Forward and back.
pub static SOFT_CAP_GATES_BACK: Pass = Pass {
    info: Info {
        name: "soft_cap_gates_back",
        family: &BACKWARD,
        change: "and back, with partial sums of the bias' gradient a block",
        inputs: &[
            SOFT_CAP_GATES.info.inputs[0],
            SOFT_CAP_GATES.info.inputs[1],
            Input::new("di", &["B", "NH", "S"]).always(DType::F32),
            Input::new("df", &["B", "NH", "S"]).always(DType::F32),
        ],
        outputs: &[
            SOFT_CAP_GATES.info.outputs[0],
            SOFT_CAP_GATES.info.outputs[1],
            Output {
                name: "dpre",
                bounds: &[(DType::F32, 3e-7), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
                elements: &magnitudes::in_f32(4.0),
            },
            Output {
                name: "dbias",
                bounds: &[(DType::F32, 6e-7), (DType::F16, 6e-7), (DType::BF16, 6e-7)],
                elements: &magnitudes::in_f32(2.0),
            },
        ],
        ..SOFT_CAP_GATES.info
    },
    sources: &[&kernels::GATES, &kernels::COLUMN_SUMS],
    plan: |plan, request| {
        let op = forward(plan, request)?;
        let SoftCapGates { dtype, batch, positions, heads, .. } = op;
        let [di, df] = request.inputs(plan, ["di", "df"]);
        let upstream = SoftCapGatesUpstream {
            gates: Gates { i: di, f: df },
            dpre: Some(plan.output("dpre", dtype, &[batch, positions, 2 * heads])),
            dstride: 2 * heads,
            dbias: Some(plan.output("dbias", DType::F32, &[2 * heads])),
            accumulates: false,
        };
        op.add_backward(plan, upstream)?;
        Ok(())
    },
    ..SOFT_CAP_GATES
};

fn forward(plan: &mut Plan, request: &Request<'_>) -> Result<SoftCapGates, Error> {
    let [batch, positions, heads] = ["B", "S", "NH"].map(|name| request.dim(name));
    let [pre, bias] = request.inputs(plan, ["pre", "bias"]);
    let [i, f] = ["i", "f"].map(|name| plan.output(name, DType::F32, &[batch, heads, positions]));
    let op = SoftCapGates {
        pre_dtype: request.dtype,
        dtype: request.dtype,
        batch,
        positions,
        heads,
        cap: request.number("cap") as f32,
        pre,
        stride: 2 * heads,
        bias: Some(bias),
        gates: Some(Gates { i, f }),
    };
    op.add_forward(plan)?;
    Ok(op)
}
