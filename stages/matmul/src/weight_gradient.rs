//! The gradient of a linear layer's weights, dW = dyᵀ x, in f32: `kernels/weight_gradient.cu`.

use lab_device::{DType, Device, KernelSource};
use lab_harness::compare::{each, unit};
use lab_harness::plan::Slot;
use lab_harness::{
    Cost, Dim, Dims, Error, Family, Info, Input, Magnitudes, Operand, Options, Output, Plan,
    Problem, Reference, Request, Tensors, Version, arguments,
};

use crate::kernels;
use crate::sizes::LARGEST;

/// dW_nk = Σ_r dy_rn x_rk, or dW += the same: dy \[rows, N\], x \[rows, K\], row-major and without gaps, dW \[N, K\] of f32.
///
/// Of halves, on the tensor cores of sm_90a; rows are multiples of 16 bytes, so that N and K are multiples of 8. Where there are
/// few tiles of dW the rows are taken in parts, whose sums are added in their order: each run gives the same bits.
///
/// ```no_run
/// # use lab_device::{DType, Device};
/// # use lab_harness::Plan;
/// # use matmul::weight_gradient::WeightGradient;
/// # fn add(device: &Device) -> Result<Plan, lab_harness::Error> {
/// let [rows, n, k] = [4096, 3072, 768];
/// let mut plan = Plan::new(device);
/// let dy = plan.input("dy", DType::BF16, &[rows, n]);
/// let x = plan.input("x", DType::BF16, &[rows, k]);
/// let dw = plan.output("dw", DType::F32, &[n, k]);
/// let sizes = [rows, n, k];
/// WeightGradient { dtype: DType::BF16, sizes, dy, x, dw, accumulates: false, parts: None, squares: None }
///     .add(&mut plan)?;
/// # Ok(plan)
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WeightGradient {
    /// Of dy and x: f16 or bf16.
    pub dtype: DType,
    /// Rows, N, K.
    pub sizes: [usize; 3],
    /// What comes back from the layer's output.
    pub dy: Slot,
    /// What went into the layer.
    pub x: Slot,
    /// The gradient, of f32.
    pub dw: Slot,
    /// The gradient is added to what `dw` holds.
    pub accumulates: bool,
    /// Into how many parts the rows are cut; what is quickest by measured times where it is not said.
    pub parts: Option<usize>,
    /// Where sums of the squares of `dw` go, f64, as many as [`WeightGradient::sums_of_squares`] says; none where nobody asks.
    pub squares: Option<Slot>,
}

/// Rows and columns of a tile of dW, and rows that a step sums up.
const TILE: [usize; 2] = [128, 256];
const STEP: usize = 64;

/// Of the kernel that adds parts up, a thread four elements.
const SUM_THREADS: usize = 256;
/// Elements whose squares are one sum: those of its warps; of a tile, rows of a warp.
const SQUARED: usize = 32 * 4;
const ROWS_OF_WARP: usize = 16;

impl WeightGradient {
    /// Whether these types and sizes are for this kernel, on this device: halves, rows of multiples of 16 bytes, sm_90a.
    pub fn takes(device: &Device, dtype: DType, [_, n, k]: [usize; 3]) -> bool {
        [DType::F16, DType::BF16].contains(&dtype)
            && kernels::WEIGHT_GRADIENT.runs_on(&device.facts().arch)
            && n.is_multiple_of(8)
            && k.is_multiple_of(8)
    }

    /// Into how many parts the rows are cut.
    fn cut(&self, device: &Device) -> usize {
        let multiprocessors = device.facts().multiprocessors as usize;
        self.parts.unwrap_or_else(|| quickest_parts(self.sizes, multiprocessors))
    }

    /// How many sums of squares it leaves where somebody asks.
    pub fn sums_of_squares(&self, device: &Device) -> usize {
        let [_, n, k] = self.sizes;
        match self.cut(device) {
            1 => self.tiles() * (TILE[0] / ROWS_OF_WARP),
            _ => (n * k).div_ceil(SQUARED),
        }
    }

    fn tiles(&self) -> usize {
        let [_, n, k] = self.sizes;
        n.div_ceil(TILE[0]) * k.div_ceil(TILE[1])
    }

    /// Adds the launches.
    ///
    /// # Errors
    /// [`WeightGradient::takes`] says no; a slot of another length; `dw` at no multiple of 16 bytes; no parts, or more
    /// than there are steps of 64 rows; what a kernel
    /// or a tensor map refuses.
    pub fn add(&self, plan: &mut Plan) -> Result<(), Error> {
        self.check(plan.device())?;
        let Self { dtype, sizes: [rows, n, k], .. } = *self;
        let device = plan.device();
        let multiprocessors = device.facts().multiprocessors as usize;
        let (tiles, parts) = (self.tiles(), self.cut(device));
        let source = &kernels::WEIGHT_GRADIENT;
        let mut of_type = source.instances("weight_gradient").filter(|i| i.has("T", dtype.cpp()));
        let kernel = device.load(of_type.next().expect("of both halves"))?;
        let launch = kernel.grid([(tiles * parts).min(multiprocessors) as u32, 1, 1])?;
        let sums = if parts == 1 { self.dw } else { plan.scratch(DType::F32, parts * n * k) };
        let (squares, wanted) = match self.squares {
            Some(squares) => (squares, true),
            None => (plan.scratch(DType::F64, 1), false),
        };
        let operand = |columns| Operand::new(dtype, [rows, columns]).loaded(STEP);
        let all = arguments![
            dy: self.dy.loaded_by(operand(n)?),
            x: self.x.loaded_by(operand(k)?),
            C: sums,
            parts,
            M: n,
            N: k,
            rows,
            accumulates: parts == 1 && self.accumulates,
            squares,
            wanted: parts == 1 && wanted,
        ];
        plan.launch(&kernel, launch, all)?;
        if parts == 1 {
            return Ok(());
        }
        let kernel = plan.device().kernel(source, "sum_parts")?;
        let launch = kernel.grid([(n * k).div_ceil(4).div_ceil(SUM_THREADS) as u32, 1, 1])?;
        let (elements, accumulates) = (n * k, self.accumulates);
        let all = arguments![sums, C: self.dw, squares, parts, elements, accumulates, wanted];
        plan.launch(&kernel, launch, all)
    }

    fn check(&self, device: &Device) -> Result<(), Error> {
        let Self { dtype, sizes: [rows, n, k], .. } = *self;
        if ![DType::F16, DType::BF16].contains(&dtype) {
            return Err(Error::bad("dtype of a gradient by weights", "f16 or bf16", dtype));
        }
        let arch = &device.facts().arch;
        if !kernels::WEIGHT_GRADIENT.runs_on(arch) {
            return Err(Error::bad("GPU of a gradient by weights", "sm_90a", arch));
        }
        for (name, size) in [("N", n), ("K", k)] {
            if !size.is_multiple_of(8) {
                let expected = "a multiple of 8, for TMA takes rows of a multiple of 16 bytes";
                return Err(Error::bad(name, expected, size));
            }
        }
        for (name, slot, length) in
            [("dy", self.dy, rows * n), ("x", self.x, rows * k), ("dw", self.dw, n * k)]
        {
            if slot.len() != length {
                return Err(Error::bad(name, format!("{length} elements"), slot.len()));
            }
        }
        if !self.dw.start().is_multiple_of(4) {
            return Err(Error::bad("begin of dw", "a multiple of 16 bytes", 4 * self.dw.start()));
        }
        let most = rows.div_ceil(STEP);
        if let Some(parts) = self.parts.filter(|parts| !(1..=most).contains(parts)) {
            let expected = format!("1 to {most}, one for each step of {STEP} rows at most");
            return Err(Error::bad("parts", expected, parts));
        }
        let sums = self.sums_of_squares(device);
        match self.squares.map(Slot::len).filter(|got| *got != sums) {
            Some(got) => Err(Error::bad("squares of dw", format!("{sums} elements"), got)),
            None => Ok(()),
        }
    }
}

/// What takes the least time, of rounds of all multiprocessors and of the parts' way to memory and back.
fn quickest_parts([rows, n, k]: [usize; 3], multiprocessors: usize) -> usize {
    /// Cycles of a step of such a tile, of a tile's end, and of a launch.
    const OF_STEP: f64 = 1060.0;
    const OF_END: f64 = 4500.0;
    const OF_LAUNCH: f64 = 5000.0;
    /// Bytes of device memory a cycle.
    const BYTES: f64 = 2200.0;
    let tiles = n.div_ceil(TILE[0]) * k.div_ceil(TILE[1]);
    let steps = rows.div_ceil(STEP);
    let cycles = |parts: usize| {
        let rounds = (tiles * parts).div_ceil(multiprocessors) as f64;
        let product = rounds * (steps.div_ceil(parts) as f64 * OF_STEP + OF_END);
        let bytes = (4 * n * k * (2 * parts + 1)) as f64;
        product + if parts == 1 { 0.0 } else { bytes / BYTES + OF_LAUNCH }
    };
    let all = 1..=steps.min(16);
    all.min_by(|a, b| cycles(*a).total_cmp(&cycles(*b))).unwrap_or(1)
}

/// The gradient as a version.
#[derive(Debug)]
pub struct OfWeights;

/// The gradient of a linear layer's weights.
pub static WEIGHT_GRADIENT: OfWeights = OfWeights;

static INFO: Info = Info {
    stage: "matmul",
    name: "weight_gradient",
    family: &Gradient,
    parent: None,
    change: "wide tiles with a deep ring: sums of f32 go to memory from registers; long sums in parts",
    dtypes: &[DType::BF16, DType::F16],
    dims: &[
        Dim::new("R", "rows of x", [100, 32768, LARGEST]),
        Dim::new("N", "columns of y", [96, 4096, LARGEST]).in_steps_of(8),
        Dim::new("K", "columns of x", [96, 768, LARGEST]).in_steps_of(8),
    ],
    settings: &[],
    inputs: &[Input::new("dy", &["R", "N"]), Input::new("x", &["R", "K"])],
    // Products of halves are exact in f32. What a sum has no digits for tensor cores cut off, so that it comes out too small, in
    // proportion to its length: on an H200 by 9e-6 after 8,192 rows of a part, by 1.9e-5 after 16,384; an element by 15 units of
    // its magnitude.
    outputs: &[Output {
        name: "dw",
        bounds: &[(DType::F16, 6e-5), (DType::BF16, 6e-5)],
        elements: &[(DType::F16, 40.0 * unit::F32), (DType::BF16, 40.0 * unit::F32)],
    }],
};

/// dW = dyᵀ x.
#[derive(Debug)]
struct Gradient;

fn sizes(dims: &Dims) -> [usize; 3] {
    ["R", "N", "K"].map(|d| dims.get(d))
}

fn gradient(inputs: &Tensors) -> Vec<f64> {
    let [dy, x] = ["dy", "x"].map(|name| &inputs[name]);
    let [rows, n] = [dy.shape[0], dy.shape[1]];
    let of = dy.values();
    let transposed: Vec<f64> = (0..n * rows).map(|e| of[e % rows * n + e / rows]).collect();
    lab_reference::matmul::matmul(&transposed, &x.values(), n, x.shape[1], rows)
}

impl Family for Gradient {
    fn name(&self) -> &'static str {
        "weight_gradient"
    }

    fn draw_inputs(&self, _: &Info, problem: &Problem) -> Tensors {
        let [rows, n, k] = sizes(&problem.dims);
        lab_harness::tensor::tensors([
            ("dy", problem.normal(0, &[rows, n])),
            ("x", problem.normal(1, &[rows, k])),
        ])
    }

    fn reference(&self, _: &Info, inputs: &Tensors, _: &Options) -> Vec<(&'static str, Vec<f64>)> {
        vec![("dw", gradient(inputs))]
    }

    fn magnitudes(&self, _: &Info, inputs: &Tensors, _: &Options, _: &Reference) -> Magnitudes {
        let absolute = inputs.iter().map(|(name, tensor)| (name.clone(), tensor.absolute()));
        each(vec![("dw", gradient(&absolute.collect()))])
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let [rows, n, k] = sizes(dims).map(|size| size as f64);
        Cost {
            flops: 2.0 * rows * n * k,
            bytes: rows * (n + k) * dtype.size() as f64 + 4.0 * n * k,
        }
    }

    /// The layers of a language model of 768 columns.
    fn bench_shapes(&self, _: &Info, _: DType) -> Vec<Dims> {
        let all = [[4096, 768], [768, 2048], [2304, 768], [768, 768]];
        all.map(|[n, k]| Dims::new([("R", 32768), ("N", n), ("K", k)])).to_vec()
    }
}

impl Version for OfWeights {
    fn info(&self) -> &Info {
        &INFO
    }

    fn test_shapes(&self) -> Vec<Dims> {
        let all = [
            [1, 8, 8],
            [100, 96, 64],
            // Steps that end within 64 rows, tiles that end within 128 and 256.
            [200, 264, 136],
            [70, 136, 520],
            // In parts.
            [700, 40, 72],
        ];
        all.map(|[r, n, k]| Dims::new([("R", r), ("N", n), ("K", k)])).to_vec()
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        vec![&kernels::WEIGHT_GRADIENT]
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let [rows, n, k] = sizes(&request.dims);
        let mut plan = Plan::new(device);
        let [dy, x] = request.inputs(&mut plan, ["dy", "x"]);
        let dw = plan.output("dw", DType::F32, &[n, k]);
        let (dtype, sizes) = (request.dtype, [rows, n, k]);
        let (accumulates, parts, squares) = (false, None, None);
        WeightGradient { dtype, sizes, dy, x, dw, accumulates, parts, squares }.add(&mut plan)?;
        Ok(plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_cut_where_multiprocessors_would_idle() {
        let parts = |n, k| quickest_parts([32768, n, k], 132);
        // 18 tiles; 96, which three rounds in four parts fill; 1179.
        assert_eq!([parts(768, 768), parts(4096, 768), parts(50304, 768)], [7, 4, 1]);
    }
}
