//! RMSNorm and layer norm of a residual stream: `kernels/rms_norm.cu`.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Dim, Error, Info, Input, Output, Plan, Request, Setting, arguments};
use lab_reference::passes as reference;

use crate::column_sums::ColumnSums;
use crate::kernels;
use crate::magnitudes;
use crate::pass::{Formula, Operands, Pass, bytes};
use crate::slots::{
    check_dtype, check_eps, check_lengths, check_sizes, holding_a_row, pack, untouched,
};

/// y = norm(x + added) · weight over the last index, and the sum itself.
///
/// All activations are \[rows, width\], row-major. Widths go to 8192. Where `width` is no multiple of 16 bytes, or a slot does
/// not begin at one, elements are moved one by one.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    /// Of activations and the weight: f32, f16 or bf16.
    pub dtype: DType,
    /// B · S.
    pub rows: usize,
    /// Columns.
    pub width: usize,
    /// Added to the mean of squares.
    pub eps: f32,
    /// Whether each row's mean is subtracted first: layer norm without a shift.
    pub centered: bool,
    /// The residual stream.
    pub x: Slot,
    /// \[width\].
    pub weight: Slot,
    /// What is added to the stream before the norm.
    pub added: Option<Slot>,
    /// Where y goes; scratch of its own where it is not said.
    pub y: Option<Slot>,
    /// Where x + added goes, likewise. Nothing is written there where nothing is added.
    pub sum: Option<Slot>,
}

/// What [`RmsNorm::add_forward`] has made.
#[derive(Clone, Copy, Debug)]
pub struct RmsNormOut {
    /// The normalised rows.
    pub y: Slot,
    /// The residual stream: x + added, or x.
    pub sum: Slot,
    /// What the way back reads.
    pub saved: RmsNormSaved,
}

/// What the way back reads of the way there.
#[derive(Clone, Copy, Debug)]
pub struct RmsNormSaved {
    /// What was normalised, \[rows, width\].
    pub sum: Slot,
    /// 1 / √(mean of squares + ε) of each row, f32 \[rows\].
    pub rstd: Slot,
}

/// What comes from above, and where the gradients go.
#[derive(Clone, Copy, Debug)]
pub struct RmsNormUpstream {
    /// Of y.
    pub dy: Slot,
    /// The gradient that comes down the residual stream: it is added to that of the norm.
    pub residual: Option<Slot>,
    /// Of the weight, f32 \[width\].
    pub dweight: Slot,
    /// Whether `dweight` is added to.
    pub accumulates: bool,
    /// Where the gradient of x goes; scratch of its own where it is not said.
    pub dx: Option<Slot>,
}

const NAME: &str = "rms_norm";

impl RmsNorm {
    fn check(&self) -> Result<(), Error> {
        let Self { dtype, rows, width, .. } = *self;
        check_dtype(NAME, dtype)?;
        check_sizes(NAME, &[("rows", rows), ("width", width)])?;
        check_eps(NAME, self.eps)?;
        let all = rows * width;
        check_lengths(
            NAME,
            &[
                ("x", Some(self.x), all),
                ("weight", Some(self.weight), width),
                ("added", self.added, all),
                ("y", self.y, all),
                ("sum", self.sum, all),
            ],
        )
    }

    fn pack(&self, slots: &[Option<Slot>]) -> usize {
        let own = slots.iter().flatten().map(|slot| (*slot, self.dtype));
        pack(self.dtype, &[self.width], &own.collect::<Vec<_>>())
    }

    /// Adds the launch.
    ///
    /// # Errors
    /// A type, a size or a slot's length that does not fit; a width beyond 8192.
    pub fn add_forward(&self, plan: &mut Plan) -> Result<RmsNormOut, Error> {
        self.check()?;
        let Self { dtype, rows, width, eps, centered, x, weight, added, .. } = *self;
        let pack = self.pack(&[Some(x), Some(weight), added, self.y, self.sum]);
        let strip = holding_a_row(plan, &kernels::RMS_NORM, "rms_norm", dtype, [width, pack])?;
        let y = self.y.unwrap_or_else(|| plan.scratch(dtype, rows * width));
        let rstd = plan.scratch(DType::F32, rows);
        let stream = added.map(|_| self.sum.unwrap_or_else(|| plan.scratch(dtype, rows * width)));
        let sum = stream.unwrap_or_else(|| untouched(plan, dtype));
        let launch = strip.launch(rows, 1)?.overlap_previous();
        let has_added = added.is_some();
        let all = arguments![
            x, added: added.unwrap_or(x), weight, sum, y, rstd, rows, width, eps, has_added, centered
        ];
        plan.launch(&strip.kernel, launch, all)?;
        let sum = stream.unwrap_or(x);
        Ok(RmsNormOut { y, sum, saved: RmsNormSaved { sum, rstd } })
    }

    /// Adds the launches of the way back; the gradient of x, which is that of what was added, too.
    ///
    /// # Errors
    /// As [`RmsNorm::add_forward`].
    pub fn add_backward(
        &self,
        plan: &mut Plan,
        saved: &RmsNormSaved,
        upstream: RmsNormUpstream,
    ) -> Result<Slot, Error> {
        let (dx, sums) = self.add_backward_to_sums(plan, saved, upstream)?;
        ColumnSums::add_all(plan, &[sums])?;
        Ok(dx)
    }

    /// The same without the last step of the weight's gradient: several such are [added up](ColumnSums::add_all) at once.
    ///
    /// # Errors
    /// As [`RmsNorm::add_forward`].
    pub fn add_backward_to_sums(
        &self,
        plan: &mut Plan,
        saved: &RmsNormSaved,
        upstream: RmsNormUpstream,
    ) -> Result<(Slot, ColumnSums), Error> {
        self.check()?;
        let Self { dtype, rows, width, centered, weight, .. } = *self;
        let RmsNormSaved { sum: s, rstd } = *saved;
        let RmsNormUpstream { dy, residual, dweight, accumulates, .. } = upstream;
        let all = rows * width;
        check_lengths(
            NAME,
            &[
                ("saved sum", Some(s), all),
                ("saved rstd", Some(rstd), rows),
                ("dy", Some(dy), all),
                ("residual", residual, all),
                ("dweight", Some(dweight), width),
                ("dx", upstream.dx, all),
            ],
        )?;
        let pack = self.pack(&[Some(s), Some(weight), Some(dy), residual, upstream.dx]);
        let strip = holding_a_row(plan, &kernels::RMS_NORM, "rms_norm_back", dtype, [width, pack])?;
        let launch = strip.launch_of_sums(rows, 1)?;
        let blocks = launch.grid[0] as usize;
        let dx = upstream.dx.unwrap_or_else(|| plan.scratch(dtype, all));
        let partial = plan.scratch(DType::F32, blocks * width);
        let has_residual = residual.is_some();
        let all = arguments![
            dy, s, weight, rstd, residual: residual.unwrap_or(dy), dx, partial, rows, width,
            has_residual, centered
        ];
        plan.launch(&strip.kernel, launch, all)?;
        Ok((dx, ColumnSums { partial, out: dweight, accumulates }))
    }
}

const ROWS: Dim = Dim::new("R", "rows", [5, 16384, i32::MAX as usize]);
const WIDTH: Dim = Dim::new("C", "columns", [80, 768, 8192]);

static FORWARD: Formula = Formula {
    name: "rms_norm",
    draw: |_, _| (),
    reference: |of| {
        let (sum, y) = norm(of).forward(&of.values("x"), &of.values("added"));
        vec![("sum", sum), ("y", y)]
    },
    magnitudes: magnitudes::rms_norm,
    cost: |dims, dtype| {
        let all = (dims.get("R") * dims.get("C")) as f64;
        bytes(dtype, 5.0 * all, 4.0 * all + dims.get("C") as f64, 0.0)
    },
};

static BACKWARD: Formula = Formula {
    name: "rms_norm_back",
    draw: |_, _| (),
    reference: |of| {
        let norm = norm(of);
        let (sum, y) = norm.forward(&of.values("x"), &of.values("added"));
        let (mut dx, dweight) = norm.backward(&sum, &of.values("dy"));
        dx.iter_mut().zip(of.values("residual")).for_each(|(d, r)| *d += r);
        vec![("sum", sum), ("y", y), ("dx", dx), ("dweight", dweight)]
    },
    magnitudes: magnitudes::rms_norm,
    cost: |dims, dtype| {
        let (all, width) = ((dims.get("R") * dims.get("C")) as f64, dims.get("C") as f64);
        bytes(dtype, 15.0 * all, 7.0 * all + width, 4.0 * width)
    },
};

fn norm(of: &Operands<'_>) -> reference::Norm {
    reference::Norm {
        weight: of.values("weight"),
        eps: of.number("eps"),
        centered: of.text("norm") == "layer",
    }
}

/// The norm of a sum.
pub static RMS_NORM: Pass = Pass {
    info: Info {
        stage: "passes",
        name: "rms_norm",
        family: &FORWARD,
        parent: None,
        change: "a warp a row in registers: the sum is stored, then normalised, in one pass",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &[ROWS, WIDTH],
        settings: &[
            Setting::number("eps", "added to the mean of squares", "1e-6"),
            Setting::choice("norm", "whether the mean is subtracted first", &["rms", "layer"]),
        ],
        inputs: &[
            Input::new("x", &["R", "C"]),
            Input::new("weight", &["C"]),
            Input::new("added", &["R", "C"]),
        ],
        // A row's sum in f32, then one rounding; in halves, that of the sum, which the norm sees.
        outputs: &[
            Output {
                name: "sum",
                bounds: &[(DType::F32, 1e-7), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
                elements: &magnitudes::of_stream(0.0, 1.0),
            },
            Output {
                name: "y",
                bounds: &[(DType::F32, 3e-7), (DType::F16, 8e-4), (DType::BF16, 6e-3)],
                elements: &magnitudes::of_stream(3.0, 1.0),
            },
        ],
    },
    shapes: &[
        &[1, 1],
        &[1, 8],
        &[3, 31],
        &[17, 64],
        &[9, 768],
        &[2, 1000],
        &[10, 1024],
        &[3, 1032],
        &[2, 8192],
        &[1, 8191],
    ],
    timed: &[],
    sources: &[&kernels::RMS_NORM],
    plan: |plan, request| forward(plan, request).map(|_| ()),
};

/// The same, and back.
pub static RMS_NORM_BACK: Pass = Pass {
    info: Info {
        name: "rms_norm_back",
        family: &BACKWARD,
        change: "and back in one pass: dx with the stream's gradient, partial sums of dw a block",
        inputs: &[
            RMS_NORM.info.inputs[0],
            RMS_NORM.info.inputs[1],
            RMS_NORM.info.inputs[2],
            Input::new("dy", &["R", "C"]),
            Input::new("residual", &["R", "C"]),
        ],
        outputs: &[
            RMS_NORM.info.outputs[0],
            RMS_NORM.info.outputs[1],
            Output {
                name: "dx",
                bounds: &[(DType::F32, 2.5e-7), (DType::F16, 8e-4), (DType::BF16, 6e-3)],
                elements: &magnitudes::of_stream(3.0, 1.0),
            },
            Output {
                name: "dweight",
                bounds: &[(DType::F32, 4e-7), (DType::F16, 6e-4), (DType::BF16, 5e-3)],
                elements: &magnitudes::of_stream(3.0, 1.0),
            },
        ],
        ..RMS_NORM.info
    },
    sources: &[&kernels::RMS_NORM, &kernels::COLUMN_SUMS],
    // Also rows that come in several rounds of a block, and more blocks than the last sum has warps.
    shapes: &[
        &[1, 8],
        &[1100, 8],
        &[3, 31],
        &[70, 64],
        &[300, 40],
        &[33, 768],
        &[2, 1000],
        &[67, 1024],
        &[9, 1032],
        &[5, 8192],
        &[3, 8191],
    ],
    plan: |plan, request| {
        let (norm, out) = forward(plan, request)?;
        let RmsNorm { dtype, rows, width, .. } = norm;
        let upstream = RmsNormUpstream {
            dy: request.input(plan, "dy"),
            residual: Some(request.input(plan, "residual")),
            dweight: plan.output("dweight", DType::F32, &[width]),
            accumulates: false,
            dx: Some(plan.output("dx", dtype, &[rows, width])),
        };
        norm.add_backward(plan, &out.saved, upstream)?;
        Ok(())
    },
    ..RMS_NORM
};

fn forward(plan: &mut Plan, request: &Request<'_>) -> Result<(RmsNorm, RmsNormOut), Error> {
    let (dtype, rows, width) = (request.dtype, request.dim("R"), request.dim("C"));
    let [x, weight, added] = request.inputs(plan, ["x", "weight", "added"]);
    let y = Some(plan.output("y", dtype, &[rows, width]));
    let sum = Some(plan.output("sum", dtype, &[rows, width]));
    let (eps, centered) = (request.number("eps") as f32, request.text("norm") == "layer");
    let norm = RmsNorm { dtype, rows, width, eps, centered, x, weight, added: Some(added), y, sum };
    let out = norm.add_forward(plan)?;
    Ok((norm, out))
}
