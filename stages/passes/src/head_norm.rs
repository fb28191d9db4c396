//! The norm over each head with its output gate: `kernels/head_norm.cu`.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Dim, Error, Info, Input, Output, Plan, Request, Setting, arguments};
use lab_reference::passes as reference;

use crate::column_sums::ColumnSums;
use crate::kernels;
use crate::magnitudes;
use crate::pass::{Formula, Operands, Pass, bytes};
use crate::slots::{
    check_dtype, check_eps, check_lengths, check_rows, check_rows_count, check_sizes,
    holding_a_row, pack,
};

/// How the heads of a tensor lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeadLayout {
    /// \[B, NH, S, D\].
    HeadsFirst,
    /// \[B, S, NH, D\].
    PositionsFirst,
}

impl HeadLayout {
    /// Elements from one batch entry, position and head to the next.
    pub(crate) fn strides(self, [positions, heads, width]: [usize; 3]) -> [usize; 3] {
        let batch = positions * heads * width;
        match self {
            Self::HeadsFirst => [batch, width, positions * width],
            Self::PositionsFirst => [batch, heads * width, width],
        }
    }
}

/// out = σ(ogate) · (layer norm over each head's D · weight), without a shift.
///
/// `out` is \[B, S, NH D\]; D goes to 2048. `ogate` may be columns of wider rows: its slot begins with its first column, and its
/// rows are `ogate_stride` elements apart. Nothing is kept for the way back but `h` and `ogate` themselves.
#[derive(Clone, Copy, Debug)]
pub struct GatedHeadNorm {
    /// Of all tensors: f32, f16 or bf16.
    pub dtype: DType,
    /// B.
    pub batch: usize,
    /// NH.
    pub heads: usize,
    /// S.
    pub positions: usize,
    /// D, columns of a head.
    pub width: usize,
    /// Added to the variance.
    pub eps: f32,
    /// What is normalised.
    pub h: Slot,
    /// How its heads lie.
    pub layout: HeadLayout,
    /// Before the sigmoid, \[B S, NH D\] in rows `ogate_stride` apart.
    pub ogate: Slot,
    /// Elements from row to row of `ogate`.
    pub ogate_stride: usize,
    /// \[NH D\].
    pub weight: Slot,
    /// Where the result goes; scratch of its own where it is not said.
    pub out: Option<Slot>,
}

/// What comes from above, and where the gradients go.
#[derive(Clone, Copy, Debug)]
pub struct GatedHeadNormUpstream {
    /// Of the result, \[B, S, NH D\].
    pub dout: Slot,
    /// Where the gradient of `ogate` goes, in rows `dogate_stride` apart; scratch of its own, without gaps, where it is not said.
    pub dogate: Option<Slot>,
    /// Elements from row to row of `dogate`.
    pub dogate_stride: usize,
    /// Where the gradient of `h` goes, in the layout of `h`; scratch of its own where it is not said.
    pub dh: Option<Slot>,
    /// Of the weight, f32 \[NH D\].
    pub dweight: Slot,
    /// Whether `dweight` is added to.
    pub accumulates: bool,
}

/// The gradients of [`GatedHeadNorm::add_backward`].
#[derive(Clone, Copy, Debug)]
pub struct GatedHeadNormGradients {
    /// In the layout of `h`.
    pub dh: Slot,
    /// In rows of `dogate_stride`.
    pub dogate: Slot,
}

const NAME: &str = "head_norm";

impl GatedHeadNorm {
    fn rows(&self) -> usize {
        self.batch * self.positions
    }

    /// Elements of h.
    fn all(&self) -> usize {
        self.rows() * self.heads * self.width
    }

    fn check(&self) -> Result<(), Error> {
        let Self { batch, heads, positions, width, .. } = *self;
        check_dtype(NAME, self.dtype)?;
        let sizes =
            [("batch", batch), ("heads", heads), ("positions", positions), ("width", width)];
        check_sizes(NAME, &sizes)?;
        check_rows_count(NAME, self.rows())?;
        check_eps(NAME, self.eps)?;
        let all = self.all();
        check_lengths(
            NAME,
            &[
                ("h", Some(self.h), all),
                ("weight", Some(self.weight), heads * width),
                ("out", self.out, all),
            ],
        )?;
        check_rows(NAME, "ogate", self.ogate, [self.rows(), heads * width, self.ogate_stride])
    }

    fn pack(&self, strides: &[usize], slots: &[Option<Slot>]) -> usize {
        let own = slots.iter().flatten().map(|slot| (*slot, self.dtype));
        let sizes = [&[self.width, self.ogate_stride], strides].concat();
        pack(self.dtype, &sizes, &own.collect::<Vec<_>>())
    }

    /// Adds the launch; the result.
    ///
    /// # Errors
    /// A type, a size, a stride or a slot's length that does not fit; heads of more than 2048 columns.
    pub fn add_forward(&self, plan: &mut Plan) -> Result<Slot, Error> {
        self.check()?;
        let Self { dtype, heads, positions, width, eps, h, ogate, ogate_stride, weight, .. } =
            *self;
        let pack = self.pack(&[], &[Some(h), Some(ogate), Some(weight), self.out]);
        let strip = holding_a_row(plan, &kernels::HEAD_NORM, "head_norm", dtype, [width, pack])?;
        let out = self.out.unwrap_or_else(|| plan.scratch(dtype, self.all()));
        let rows = self.rows();
        let launch = strip.launch(rows, heads)?.overlap_previous();
        let [h_batch, h_position, h_head] = self.layout.strides([positions, heads, width]);
        let all = arguments![
            h,
            ogate,
            weight,
            out,
            rows,
            positions,
            heads,
            width,
            h_batch,
            h_position,
            h_head,
            ogate_stride,
            eps
        ];
        plan.launch(&strip.kernel, launch, all)?;
        Ok(out)
    }

    /// Adds the launches of the way back.
    ///
    /// # Errors
    /// As [`GatedHeadNorm::add_forward`].
    pub fn add_backward(
        &self,
        plan: &mut Plan,
        upstream: GatedHeadNormUpstream,
    ) -> Result<GatedHeadNormGradients, Error> {
        let (gradients, sums) = self.add_backward_to_sums(plan, upstream)?;
        ColumnSums::add_all(plan, &[sums])?;
        Ok(gradients)
    }

    /// The same without the last step of the weight's gradient: several such are [added up](ColumnSums::add_all) at once.
    ///
    /// # Errors
    /// As [`GatedHeadNorm::add_forward`].
    pub fn add_backward_to_sums(
        &self,
        plan: &mut Plan,
        upstream: GatedHeadNormUpstream,
    ) -> Result<(GatedHeadNormGradients, ColumnSums), Error> {
        self.check()?;
        let Self { dtype, heads, positions, width, eps, h, ogate, ogate_stride, weight, .. } =
            *self;
        let GatedHeadNormUpstream { dout, dweight, accumulates, .. } = upstream;
        let (rows, all, columns) = (self.rows(), self.all(), heads * width);
        let lengths = [
            ("dout", Some(dout), all),
            ("dweight", Some(dweight), columns),
            ("dh", upstream.dh, all),
        ];
        check_lengths(NAME, &lengths)?;
        let dogate_stride = upstream.dogate.map_or(columns, |_| upstream.dogate_stride);
        if let Some(dogate) = upstream.dogate {
            check_rows(NAME, "dogate", dogate, [rows, columns, dogate_stride])?;
        }
        let slots = [Some(h), Some(ogate), Some(weight), Some(dout), upstream.dogate, upstream.dh];
        let pack = self.pack(&[dogate_stride], &slots);
        let strip =
            holding_a_row(plan, &kernels::HEAD_NORM, "head_norm_back", dtype, [width, pack])?;
        let launch = strip.launch_of_sums(rows, heads)?;
        let blocks = launch.grid[0] as usize;
        let dogate = upstream.dogate.unwrap_or_else(|| plan.scratch(dtype, all));
        let dh = upstream.dh.unwrap_or_else(|| plan.scratch(dtype, all));
        let partial = plan.scratch(DType::F32, blocks * columns);
        let [h_batch, h_position, h_head] = self.layout.strides([positions, heads, width]);
        let arguments = arguments![
            dout,
            h,
            ogate,
            weight,
            dh,
            dogate,
            partial,
            rows,
            positions,
            heads,
            width,
            h_batch,
            h_position,
            h_head,
            ogate_stride,
            dogate_stride,
            eps
        ];
        plan.launch(&strip.kernel, launch, arguments)?;
        let sums = ColumnSums { partial, out: dweight, accumulates };
        Ok((GatedHeadNormGradients { dh, dogate }, sums))
    }
}

static FORWARD: Formula = Formula {
    name: "head_norm",
    draw: |_, _| (),
    reference: |of| {
        vec![("out", norm(of).forward(&h(of), &of.values("ogate"), &of.values("weight")))]
    },
    magnitudes: magnitudes::head_norm,
    cost: |dims, dtype| {
        let all = elements(dims);
        bytes(dtype, 12.0 * all, 3.0 * all, 0.0)
    },
};

static BACKWARD: Formula = Formula {
    name: "head_norm_back",
    draw: |_, _| (),
    reference: |of| {
        let (norm, h, ogate, weight) = (norm(of), h(of), of.values("ogate"), of.values("weight"));
        let out = norm.forward(&h, &ogate, &weight);
        let (dh, dogate, dweight) = norm.backward(&h, &ogate, &weight, &of.values("dout"));
        let dh = reference::split_heads(&dh, sizes(of));
        vec![("out", out), ("dh", dh), ("dogate", dogate), ("dweight", dweight)]
    },
    magnitudes: magnitudes::head_norm,
    cost: |dims, dtype| {
        let all = elements(dims);
        bytes(dtype, 30.0 * all, 8.0 * all, 0.0)
    },
};

fn elements(dims: &lab_harness::Dims) -> f64 {
    ["B", "S", "NH", "DHHV"].map(|name| dims.get(name) as f64).iter().product()
}

fn sizes(of: &Operands<'_>) -> [usize; 4] {
    ["B", "S", "NH", "DHHV"].map(|name| of.dim(name))
}

/// h as \[B, S, NH, D\].
fn h(of: &Operands<'_>) -> Vec<f64> {
    reference::merge_heads(&of.values("h"), sizes(of))
}

fn norm(of: &Operands<'_>) -> reference::HeadNorm {
    reference::HeadNorm { heads: of.dim("NH"), width: of.dim("DHHV"), eps: of.number("eps") }
}

/// Forward.
pub static HEAD_NORM: Pass = Pass {
    info: Info {
        stage: "passes",
        name: "head_norm",
        family: &FORWARD,
        parent: None,
        change: "a half warp a head: norm, weight and sigmoid gate in one pass, in the mixer's layout",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &[
            Dim::new("B", "batch", [2, 8, 1 << 20]),
            Dim::new("S", "positions", [5, 2048, 1 << 20]),
            Dim::new("NH", "heads", [2, 4, 65535]),
            Dim::new("DHHV", "columns of a head", [48, 192, 2048]),
        ],
        settings: &[Setting::number("eps", "added to the variance", "1e-6")],
        inputs: &[
            Input::new("h", &["B", "NH", "S", "DHHV"]),
            Input::new("ogate", &["B", "S", "NH", "DHHV"]),
            Input::new("weight", &["NH", "DHHV"]),
        ],
        outputs: &[Output {
            name: "out",
            bounds: &[(DType::F32, 4e-7), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
            elements: &magnitudes::in_f32(4.0),
        }],
    },
    shapes: &[
        &[1, 1, 1, 8],
        &[1, 3, 2, 5],
        &[2, 9, 3, 64],
        &[1, 17, 4, 192],
        &[1, 5, 2, 256],
        &[1, 9, 1, 264],
        &[2, 3, 1, 1024],
        &[1, 2, 1, 2047],
    ],
    timed: &[],
    sources: &[&kernels::HEAD_NORM],
    plan: |plan, request| forward(plan, request).map(|_| ()),
};

/// Forward and back.
pub static HEAD_NORM_BACK: Pass = Pass {
    info: Info {
        name: "head_norm_back",
        family: &BACKWARD,
        change: "and back in one pass: dh, the gate's gradient, and partial sums of dw a block",
        inputs: &[
            HEAD_NORM.info.inputs[0],
            HEAD_NORM.info.inputs[1],
            HEAD_NORM.info.inputs[2],
            Input::new("dout", &["B", "S", "NH", "DHHV"]),
        ],
        outputs: &[
            HEAD_NORM.info.outputs[0],
            Output {
                name: "dh",
                bounds: &[(DType::F32, 6e-7), (DType::F16, 6e-4), (DType::BF16, 5e-3)],
                elements: &magnitudes::in_f32(4.0),
            },
            Output {
                name: "dogate",
                bounds: &[(DType::F32, 6e-7), (DType::F16, 6e-4), (DType::BF16, 5e-3)],
                elements: &magnitudes::in_f32(3.0),
            },
            Output {
                name: "dweight",
                bounds: &[(DType::F32, 4.5e-7), (DType::F16, 4.5e-7), (DType::BF16, 4.5e-7)],
                elements: &magnitudes::in_f32(3.0),
            },
        ],
        ..HEAD_NORM.info
    },
    // Also rows that come in several rounds of a block.
    shapes: &[
        &[1, 1, 1, 8],
        &[1, 3, 2, 5],
        &[2, 90, 3, 64],
        &[1, 70, 4, 192],
        &[1, 150, 1, 256],
        &[1, 37, 1, 264],
        &[2, 5, 1, 1024],
        &[1, 6, 1, 2047],
    ],
    sources: &[&kernels::HEAD_NORM, &kernels::COLUMN_SUMS],
    plan: |plan, request| {
        let norm = forward(plan, request)?;
        let GatedHeadNorm { dtype, batch, heads, positions, width, .. } = norm;
        let [by_heads, by_positions] =
            [[batch, heads, positions, width], [batch, positions, heads, width]];
        let upstream = GatedHeadNormUpstream {
            dout: request.input(plan, "dout"),
            dogate: Some(plan.output("dogate", dtype, &by_positions)),
            dogate_stride: heads * width,
            dh: Some(plan.output("dh", dtype, &by_heads)),
            dweight: plan.output("dweight", DType::F32, &[heads, width]),
            accumulates: false,
        };
        norm.add_backward(plan, upstream)?;
        Ok(())
    },
    ..HEAD_NORM
};

fn forward(plan: &mut Plan, request: &Request<'_>) -> Result<GatedHeadNorm, Error> {
    let [batch, positions, heads, width] = ["B", "S", "NH", "DHHV"].map(|name| request.dim(name));
    let [h, ogate, weight] = request.inputs(plan, ["h", "ogate", "weight"]);
    let dtype = request.dtype;
    let norm = GatedHeadNorm {
        dtype,
        batch,
        heads,
        positions,
        width,
        eps: request.number("eps") as f32,
        h,
        layout: HeadLayout::HeadsFirst,
        ogate,
        ogate_stride: heads * width,
        weight,
        out: Some(plan.output("out", dtype, &[batch, positions, heads, width])),
    };
    norm.add_forward(plan)?;
    Ok(norm)
}
