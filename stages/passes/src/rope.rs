//! Rotary positions: `kernels/rope.cu`.

use lab_device::DType;
use lab_harness::plan::Slot;
use lab_harness::{Dim, Error, Info, Input, Output, Plan, Request, Setting, Tensor, arguments};
use lab_reference::passes as reference;

use crate::kernels;
use crate::magnitudes;
use crate::pass::{Formula, Operands, Pass, bytes};
use crate::slots::{
    check_dtype, check_lengths, check_rows, check_rows_count, check_sizes, grid_over, pack,
    with_pack,
};

/// Turns the halves of each head by its position, in place, as Llama does.
///
/// `x` is \[B S, NH D\], or columns of wider rows: its slot begins with the first of them, and its rows are `stride` elements
/// apart. Several heads of different tensors that lie side by side, such as those of q and k, can be turned at once.
#[derive(Clone, Copy, Debug)]
pub struct Rope {
    /// Of `x`: f32, f16 or bf16.
    pub dtype: DType,
    /// B.
    pub batch: usize,
    /// S.
    pub positions: usize,
    /// NH.
    pub heads: usize,
    /// D, an even number.
    pub width: usize,
    /// Elements from row to row.
    pub stride: usize,
    /// f32 \[2, S, D / 2\]: [`Rope::table`], which all layers of a plan may share.
    pub table: Slot,
}

const NAME: &str = "rope";

impl Rope {
    /// The cosines, then the sines, of position · θ^(−2c / width), for [`Plan::constant`].
    pub fn table(positions: usize, width: usize, theta: f64) -> Tensor {
        let half = width / 2;
        let angle =
            |e: usize| (e / half) as f64 * theta.powf(-2.0 * (e % half) as f64 / width as f64);
        let angles: Vec<f64> = (0..positions * half).map(angle).collect();
        let all: Vec<f64> =
            angles.iter().map(|a| a.cos()).chain(angles.iter().map(|a| a.sin())).collect();
        Tensor::rounded(DType::F32, &[2, positions, half], &all)
    }

    fn add(&self, plan: &mut Plan, x: Slot, is_back: bool) -> Result<(), Error> {
        let Self { dtype, batch, positions, heads, width, stride, table } = *self;
        let (rows, half) = (batch * positions, width / 2);
        check_dtype(NAME, dtype)?;
        let sizes =
            [("batch", batch), ("positions", positions), ("heads", heads), ("width", width)];
        check_sizes(NAME, &sizes)?;
        check_rows_count(NAME, rows)?;
        if !width.is_multiple_of(2) {
            return Err(Error::bad(format!("width of {NAME}"), "an even number", width));
        }
        check_rows(NAME, "x", x, [rows, heads * width, stride])?;
        check_lengths(NAME, &[("table", Some(table), 2 * positions * half)])?;
        let pack = pack(dtype, &[half, stride], &[(x, dtype), (table, DType::F32)]);
        let kernel = with_pack(plan, &kernels::ROPE, "rope", dtype, pack)?;
        let launch = grid_over(&kernel, rows * heads * (half / pack))?;
        let all = arguments![x, table, rows, positions, heads, half, stride, is_back];
        plan.launch(&kernel, launch, all)
    }

    /// Adds the launch that turns `x` where it lies.
    ///
    /// # Errors
    /// A type, a size, a stride or a slot's length that does not fit; an odd width.
    pub fn add_forward(&self, plan: &mut Plan, x: Slot) -> Result<(), Error> {
        self.add(plan, x, false)
    }

    /// Adds the launch that turns the gradient of what was turned back, where it lies: it is then that of `x`.
    ///
    /// # Errors
    /// As [`Rope::add_forward`].
    pub fn add_backward(&self, plan: &mut Plan, upstream: Slot) -> Result<(), Error> {
        self.add(plan, upstream, true)
    }
}

static TURN: Formula = Formula {
    name: "rope",
    draw: |_, _| (),
    reference: |of| vec![("out", turned(of, "x", false)), ("dx", turned(of, "dout", true))],
    magnitudes: magnitudes::rope,
    cost: |dims, dtype| {
        let all = ["B", "S", "NH", "D"].map(|name| dims.get(name) as f64).iter().product::<f64>();
        bytes(dtype, 6.0 * all, 4.0 * all, 8.0 * (dims.get("S") * dims.get("D")) as f64)
    },
};

fn turned(of: &Operands<'_>, name: &str, is_back: bool) -> Vec<f64> {
    let sizes = ["S", "NH", "D"].map(|name| of.dim(name));
    reference::rope(&of.values(name), sizes, of.number("theta"), is_back)
}

/// There and back.
pub static ROPE: Pass = Pass {
    info: Info {
        stage: "passes",
        name: "rope",
        family: &TURN,
        parent: None,
        change: "in place, both halves of a pair in one thread; angles from a table made in f64",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &[
            Dim::new("B", "batch", [2, 8, 1 << 20]),
            Dim::new("S", "positions", [9, 2048, 1 << 20]),
            Dim::new("NH", "heads", [3, 12, 1 << 16]),
            Dim::new("D", "columns of a head", [48, 64, 1 << 16]).in_steps_of(2),
        ],
        settings: &[Setting::number("theta", "the base of the angles", "10000")],
        inputs: &[
            Input::new("x", &["B", "S", "NH", "D"]),
            Input::new("dout", &["B", "S", "NH", "D"]),
        ],
        outputs: &[
            Output {
                name: "out",
                bounds: &[(DType::F32, 1.6e-7), (DType::F16, 6e-4), (DType::BF16, 5e-3)],
                elements: &magnitudes::in_f32(2.0),
            },
            Output {
                name: "dx",
                bounds: &[(DType::F32, 1.6e-7), (DType::F16, 6e-4), (DType::BF16, 5e-3)],
                elements: &magnitudes::in_f32(2.0),
            },
        ],
    },
    // The last position is far from the first.
    shapes: &[&[1, 1, 1, 2], &[2, 5, 3, 6], &[1, 33, 4, 64], &[1, 3000, 1, 16]],
    timed: &[],
    sources: &[&kernels::ROPE],
    plan: |plan, request| {
        let [batch, positions, heads, width] = ["B", "S", "NH", "D"].map(|name| request.dim(name));
        let theta = request.number("theta");
        if theta <= 0.0 {
            return Err(Error::bad("--set theta", "a number above 0", theta));
        }
        let dtype = request.dtype;
        let table = plan.constant(&Rope::table(positions, width, theta));
        let op = Rope { dtype, batch, positions, heads, width, stride: heads * width, table };
        let [x, dout] = turned_slots(plan, request);
        op.add_forward(plan, x)?;
        op.add_backward(plan, dout)
    },
};

fn turned_slots(plan: &mut Plan, request: &Request<'_>) -> [Slot; 2] {
    [("x", "out"), ("dout", "dx")]
        .map(|(name, after)| plan.updated(name, after, request.dtype, &request.shape(name).sizes))
}
