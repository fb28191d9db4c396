//! A linear layer, and the products of its gradients: `kernels/linear.cu`.

use lab_device::{DType, Device, DeviceKind, Instance, KernelSource, TensorMap};
use lab_harness::compare::each;
use lab_harness::compare::unit;
use lab_harness::plan::Slot;
use lab_harness::{
    Cost, Dim, Dims, Error, Family, Info, Input, Magnitudes, Operand, Options, Output, Plan,
    Problem, Reference, Request, Setting, Tensors, Version, arguments,
};

use crate::kernels;
use crate::sizes::LARGEST;

/// How an operand of a product lies in memory, row-major.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lies {
    /// \[M, K\] or \[N, K\].
    AlongK,
    /// \[K, M\] or \[K, N\].
    AcrossK,
}

impl Lies {
    fn cpp(self) -> &'static str {
        match self {
            Self::AlongK => "ALONG_K",
            Self::AcrossK => "ACROSS_K",
        }
    }
}

/// What is made of each sum. In the order of `lab/epilogue.cuh`: kernels are told the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// Nothing.
    Identity,
    /// max(v, 0).
    Relu,
    /// v (1 + erf(v / √2)) / 2.
    Gelu,
    /// v / (1 + exp(-v)).
    Silu,
}

impl Activation {
    /// By the names of the option.
    const ALL: [(&'static str, Self); 4] = [
        ("gelu", Self::Gelu),
        ("none", Self::Identity),
        ("relu", Self::Relu),
        ("silu", Self::Silu),
    ];

    fn of(self, v: f64) -> f64 {
        match self {
            Self::Identity => v,
            Self::Relu if v < 0.0 => 0.0,
            Self::Relu => v,
            Self::Gelu => 0.5 * v * (1.0 + libm::erf(v / std::f64::consts::SQRT_2)),
            Self::Silu => v / (1.0 + (-v).exp()),
        }
    }
}

/// C = f(scale A B + bias) + R, for G matrices, in one launch.
///
/// All are row-major and without gaps. Halves are multiplied on the tensor cores of sm_90a, by `kernels/linear.cu`, if rows are
/// multiples of 16 bytes: N is a multiple of 8, and so is K where an operand lies along it, and M where A lies across. Else, and in
/// f32, CUDA cores multiply, by `kernels/linear_plain.cu`. One matrix of weights for several of x: all rows are those of one matrix.
///
/// ```text
/// y = f(x Wᵀ + b) + r    lies: [AlongK, AlongK]
/// dx = dy W              lies: [AlongK, AcrossK]
/// dW = dyᵀ x             lies: [AcrossK, AcrossK]; or dW += dyᵀ x, in f32
/// ```
///
/// K is never split: few tiles with a long sum are slower than by the versions of the product, and dW than by
/// [`crate::weight_gradient::WeightGradient`]. A GPU compiles what it is asked for; the
/// emulator has the three above, y and dx of halves, y and dW of f32; and in f32 all three.
///
/// ```no_run
/// # use lab_device::{DType, Device};
/// # use lab_harness::Plan;
/// # use matmul::linear::{Activation, Lies, Product};
/// # fn add(device: &Device) -> Result<Plan, lab_harness::Error> {
/// let [rows, n, k] = [4096, 3072, 768];
/// let mut plan = Plan::new(device);
/// let dy = plan.input("dy", DType::BF16, &[rows, n]);
/// let x = plan.input("x", DType::BF16, &[rows, k]);
/// // It goes from run to run; whoever binds the plan fills it, or `plan.zero` does at each run.
/// let dw = plan.state("dw", DType::F32, &[n, k]);
/// Product {
///     dtype: DType::BF16,
///     out: DType::F32,
///     sizes: [1, n, k, rows],
///     lies: [Lies::AcrossK, Lies::AcrossK],
///     scale: 1.0,
///     activation: Activation::Identity,
///     a: dy,
///     b: x,
///     bias: None,
///     added: None,
///     c: dw,
///     accumulates: true,
/// }
/// .add(&mut plan)?;
/// # Ok(plan)
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Product {
    /// Of A, B and the bias: f16, bf16 or f32.
    pub dtype: DType,
    /// Of C and R: the same, or f32.
    pub out: DType,
    /// G, M, N, K.
    pub sizes: [usize; 4],
    /// How A and B lie.
    pub lies: [Lies; 2],
    /// Of the product, before the bias is added.
    pub scale: f32,
    /// f, before R is added.
    pub activation: Activation,
    /// A, G matrices.
    pub a: Slot,
    /// B, G matrices.
    pub b: Slot,
    /// \[N\]; zeros where there is none.
    pub bias: Option<Slot>,
    /// R, \[G, M, N\], apart from C.
    pub added: Option<Slot>,
    /// C, \[G, M, N\].
    pub c: Slot,
    /// All of it, bias and R too, is added to what C holds, which is of f32: the sum of several products, or of several runs.
    pub accumulates: bool,
}

/// Depth of a tile: a span of 128 bytes.
const DEEP: usize = 64;

/// Columns of a tile.
const NARROW: usize = 128;

/// The columns of C from which warpgroups take turns: on an H200 turns gain 2 % at 2304 and 9 % at 4096, and lose 2 % at 768.
const TURNS_FROM: usize = 2048;

const WIDE: usize = 256;

impl Product {
    /// Adds the launch.
    ///
    /// # Errors
    /// `dtype` is f64, or `out` neither that nor f32; a sum in halves; a slot of another length; of halves on the emulator, a row
    /// that is no multiple of 16 bytes; what a kernel or a tensor map refuses.
    pub fn add(&self, plan: &mut Plan) -> Result<(), Error> {
        self.check()?;
        // What stands behind a product is made while the other warpgroup multiplies, where each has several tiles. Narrow results
        // gain nothing: reading their operands more often takes longer than their ends.
        let halves = self.out == self.dtype && self.lies[0] == Lies::AlongK && !self.is_bare();
        let [g, m, n, _] = self.sizes;
        let tiles = g * m.div_ceil(128) * n.div_ceil(NARROW);
        let are_many = tiles >= 4 * plan.device().facts().multiprocessors as usize;
        if halves && n >= TURNS_FROM && are_many && !self.is_plain(plan.device())? {
            return self.add_in_turns(plan);
        }
        self.add_alone(plan)
    }

    /// Adds the launch by `kernels/linear.cu`, or of bare products by `kernels/linear_behind.cu`.
    ///
    /// # Errors
    /// As [`Product::add`].
    pub(crate) fn add_alone(&self, plan: &mut Plan) -> Result<(), Error> {
        self.check()?;
        if self.is_plain(plan.device())? {
            return self.add_plain(plan);
        }
        let device = plan.device();
        let best = self.columns(device.facts().multiprocessors as usize);
        if best == WIDE && self.is_bare() {
            return self.add_behind(plan);
        }
        let source = &kernels::LINEAR;
        let listed = |wide| source.instances("linear").find(|i| i.name() == self.name(wide));
        // The emulator has the tiles that the build script lists, a GPU's are compiled as they are asked for.
        let other =
            || listed(NARROW + WIDE - best).filter(|_| device.kind() == DeviceKind::Emulator);
        let wide = listed(best).or_else(other).map_or(best, |instance| instance.size("BN"));
        self.add_tiles(plan, source, "linear", (&self.name(wide), wide))
    }

    /// Adds the launch by `kernels/linear_turns.cu`, whatever stands behind the product.
    ///
    /// # Errors
    /// As [`Product::add`].
    pub(crate) fn add_in_turns(&self, plan: &mut Plan) -> Result<(), Error> {
        self.check()?;
        if self.is_plain(plan.device())? {
            return self.add_plain(plan);
        }
        let [t, out] = [self.dtype, self.out].map(DType::cpp);
        let [a, b] = self.lies.map(Lies::cpp);
        // As many as there is room for beside two tiles of C.
        let places = if self.out == DType::F32 { 3 } else { 5 };
        let name =
            format!("linear_turns<{t}, {out}, {a}, {b}, 128, {NARROW}, {DEEP}, {places}, 16>");
        self.add_tiles(plan, &kernels::LINEAR_TURNS, "linear_turns", (&name, NARROW))
    }

    /// The launch of an instantiation, by its name, whose tiles are so wide.
    fn add_tiles(
        &self,
        plan: &mut Plan,
        source: &'static KernelSource,
        kernel: &str,
        (name, wide): (&str, usize),
    ) -> Result<(), Error> {
        let Self { dtype, out, sizes: [g, m, n, k], lies: [a_lies, b_lies], .. } = *self;
        let device = plan.device();
        let kernel = match source.instances(kernel).find(|i| i.name() == name) {
            Some(instance) => device.load(instance)?,
            None => {
                let types = |i: &Instance| i.has("T", dtype.cpp()) && i.has("OUT", out.cpp());
                let like = source.instances(kernel).find(types).expect("of all types");
                device.instantiate(source, name, like.name())?
            }
        };
        let multiprocessors = device.facts().multiprocessors as usize;
        let all = m.div_ceil(128) * n.div_ceil(wide) * g;
        let launch = kernel.grid([all.min(multiprocessors) as u32, 1, 1])?;
        let bias = self.bias.unwrap_or_else(|| plan.zeros(dtype, n));
        let result = Operand::new(out, [m, n]).several(g).stored()?;
        let added = match self.added {
            Some(added) => added.loaded_by(result),
            // Nobody loads it.
            None => plan.scratch(out, 8).loaded_by(Operand::new(out, [1, 8]).stored()?),
        };
        let all = arguments![
            A: self.a.loaded_by(self.operand(a_lies, m, 128)?),
            B: self.b.loaded_by(self.operand(b_lies, n, wide)?),
            C: self.c.stored_by(result),
            bias,
            R: added,
            G: g,
            M: m,
            N: n,
            K: k,
            scale: self.scale,
            activation: self.activation as i32,
            has_added: self.added.is_some(),
            accumulates: self.accumulates,
        ];
        plan.launch(&kernel, launch, all)
    }

    /// The launch where nothing stands behind the product: [`Product::is_bare`].
    fn add_behind(&self, plan: &mut Plan) -> Result<(), Error> {
        let Self { dtype, sizes: [g, m, n, k], lies: [a_lies, b_lies], .. } = *self;
        let device = plan.device();
        let is_like = |i: &Instance| i.has("T", dtype.cpp()) && i.has("B_LIES", b_lies.cpp());
        let instance = kernels::LINEAR_BEHIND.instances("linear_behind").find(is_like);
        let kernel = device.load(instance.expect("of halves, both ways"))?;
        let multiprocessors = device.facts().multiprocessors as usize;
        let tiles = m.div_ceil(128) * n.div_ceil(WIDE) * g;
        let launch = kernel.grid([tiles.min(multiprocessors) as u32, 1, 1])?;
        let all = arguments![
            A: self.a.loaded_by(self.operand(a_lies, m, 128)?),
            B: self.b.loaded_by(self.operand(b_lies, n, WIDE)?),
            C: self.c.stored_by(Operand::new(dtype, [m, n]).several(g).stored()?),
            G: g,
            M: m,
            N: n,
            K: k,
        ];
        plan.launch(&kernel, launch, all)
    }

    /// Boxes of `high` rows of `side`, along k, or of a tile's depth across it.
    fn operand(&self, lies: Lies, side: usize, high: usize) -> Result<TensorMap, Error> {
        let Self { dtype, sizes: [g, .., k], .. } = *self;
        match lies {
            Lies::AlongK => Operand::new(dtype, [side, k]).several(g).loaded(high),
            Lies::AcrossK => Operand::new(dtype, [k, side]).several(g).loaded(DEEP),
        }
    }

    /// Whether the sums become halves and nothing else, of an A along k.
    fn is_bare(&self) -> bool {
        let is_added_to = self.bias.is_some() || self.added.is_some() || self.accumulates;
        let is_changed = self.scale != 1.0 || self.activation != Activation::Identity;
        self.out == self.dtype && self.lies[0] == Lies::AlongK && !is_added_to && !is_changed
    }

    /// Whether CUDA cores multiply.
    fn is_plain(&self, device: &Device) -> Result<bool, Error> {
        if self.dtype == DType::F32 || !kernels::LINEAR.runs_on(&device.facts().arch) {
            return Ok(true);
        }
        match self.check_rows() {
            // The emulator has no kernel for it that was not asked for when it was built.
            Err(error) if device.kind() == DeviceKind::Emulator => Err(error),
            outcome => Ok(outcome.is_err()),
        }
    }

    /// The launch on CUDA cores.
    fn add_plain(&self, plan: &mut Plan) -> Result<(), Error> {
        let Self { dtype, out, sizes: [g, m, n, k], lies, .. } = *self;
        let (source, device) = (&kernels::LINEAR_PLAIN, plan.device());
        let [a_lies, b_lies] = lies.map(Lies::cpp);
        let name = format!("linear_plain<{}, {}, {a_lies}, {b_lies}>", dtype.cpp(), out.cpp());
        let kernel = match source.instances("linear_plain").find(|i| i.name() == name) {
            Some(instance) => device.load(instance)?,
            None => {
                let types = |i: &Instance| i.has("T", dtype.cpp()) && i.has("OUT", out.cpp());
                let like = source.instances("linear_plain").find(types).expect("of all types");
                device.instantiate(source, &name, like.name())?
            }
        };
        let [across, down] = [n, m].map(|size| size.div_ceil(64) as u32);
        let launch = kernel.grid([across, down, g as u32])?;
        let [has_bias, has_added] = [self.bias, self.added].map(|slot| slot.is_some());
        let bias = self.bias.unwrap_or_else(|| plan.scratch(dtype, 1));
        let added = self.added.unwrap_or_else(|| plan.scratch(out, 1));
        let all = arguments![
            A: self.a, B: self.b, C: self.c, bias, R: added, M: m, N: n, K: k,
            scale: self.scale, activation: self.activation as i32,
            has_bias, has_added, accumulates: self.accumulates,
        ];
        plan.launch(&kernel, launch, all)
    }

    /// Columns of a tile, by the model of [`crate::model::Way`]: narrow ones where there are few, and where C of f32 takes
    /// the place.
    fn columns(&self, multiprocessors: usize) -> usize {
        let [g, m, n, k] = self.sizes;
        let cycles = |wide: usize, step, ends| {
            let rounds = (m.div_ceil(128) * n.div_ceil(wide) * g).div_ceil(multiprocessors);
            rounds * (k.div_ceil(DEEP) * step + ends)
        };
        // What a wide tile takes beside its products: where it is stored behind the next one's, that it is rounded.
        let ends = if self.is_bare() { 700 } else { 3700 };
        let narrow = self.out == DType::F32 || cycles(NARROW, 680, 2500) < cycles(WIDE, 1040, ends);
        if narrow { NARROW } else { WIDE }
    }

    /// The instantiation with so wide a tile.
    fn name(&self, wide: usize) -> String {
        let [t, out] = [self.dtype, self.out].map(DType::cpp);
        let [a, b] = self.lies.map(Lies::cpp);
        // As many as there is room for beside the tile of C.
        let places = match (wide, self.out) {
            (WIDE, _) => 3,
            (_, DType::F32) => 4,
            _ => 5,
        };
        format!("linear<{t}, {out}, {a}, {b}, 128, {wide}, {DEEP}, {places}, 16>")
    }

    fn check(&self) -> Result<(), Error> {
        let types = [DType::F16, DType::BF16, DType::F32];
        if !types.contains(&self.dtype) || ![self.dtype, DType::F32].contains(&self.out) {
            let got = format!("{} and {}", self.dtype, self.out);
            return Err(Error::bad(
                "types of a product",
                "f16, bf16 or f32, into that or f32",
                got,
            ));
        }
        if self.accumulates && self.out != DType::F32 {
            return Err(Error::bad("what a product is added to", "f32", self.out.to_string()));
        }
        let [g, m, n, k] = self.sizes;
        for (name, slot, length) in [
            ("A", Some(self.a), g * m * k),
            ("B", Some(self.b), g * k * n),
            ("bias", self.bias, n),
            ("R", self.added, g * m * n),
            ("C", Some(self.c), g * m * n),
        ] {
            if let Some(slot) = slot.filter(|slot| slot.len() != length) {
                let expected = format!("{length} elements");
                return Err(Error::bad(name, expected, slot.len().to_string()));
            }
        }
        Ok(())
    }

    /// Refuses rows that TMA does not take.
    fn check_rows(&self) -> Result<(), Error> {
        let [_, m, n, k] = self.sizes;
        let of = |name, lies| match lies {
            Lies::AlongK => ("K", k),
            Lies::AcrossK => name,
        };
        let [a, b] = self.lies;
        for (name, size) in [of(("M", m), a), of(("N", n), b), ("N", n)] {
            if !size.is_multiple_of(8) {
                let expected = "a multiple of 8, for TMA takes rows of a multiple of 16 bytes";
                return Err(Error::bad(name, expected, size.to_string()));
            }
        }
        Ok(())
    }
}

/// The layer as a version.
#[derive(Debug)]
pub struct Linear {
    info: &'static Info,
    in_turns: bool,
}

/// A linear layer with all that stands behind it.
pub static LINEAR: Linear = Linear { info: &INFO, in_turns: false };

/// The same by two warpgroups that take turns.
pub static LINEAR_TURNS: Linear = Linear { info: &TURNS, in_turns: true };

static TURNS: Info = Info {
    name: "linear_turns",
    parent: Some("linear"),
    change: "a tile a warpgroup: one multiplies while the other ends its tile",
    dtypes: &[DType::BF16, DType::F16],
    ..INFO
};

static INFO: Info = Info {
    stage: "matmul",
    name: "linear",
    family: &Layer,
    parent: None,
    change: "v13's pipeline; bias, activation and residual in the registers of the product",
    dtypes: &[DType::BF16, DType::F16, DType::F32],
    dims: &[
        Dim::new("G", "leading indices of x", [1, 1, 65535]),
        Dim::new("M", "rows of x", [100, 4096, LARGEST]),
        Dim::new("N", "columns of y", [96, 4096, LARGEST]),
        Dim::new("K", "columns of x", [96, 4096, LARGEST]),
    ],
    settings: &[
        Setting::choice(
            "activation",
            "what is made of each sum before the residual is added",
            &["gelu", "none", "relu", "silu"],
        ),
        Setting::number("scale", "of the product, before the bias", "1"),
        Setting::choice("out", "type of y and the residual: that of x, or f32", &["same", "f32"]),
    ],
    inputs: &[
        Input::new("x", &["G..", "M", "K"]),
        Input::new("weight", &["N", "K"]),
        Input::new("bias", &["N"]).optional("bias"),
        Input::new("residual", &["G..", "M", "N"])
            .always(DType::F32)
            .or(&[DType::F16, DType::BF16])
            .optional("residual"),
    ],
    // The one rounding of the result.
    // An element: its sum is in f32; of halves in tensor cores, which cut off what it has no digits for (versions.rs).
    outputs: &[Output {
        name: "y",
        bounds: &[(DType::F16, 5e-4), (DType::BF16, 4e-3), (DType::F32, 2e-6)],
        // f32: its sums of up to 200 terms here go one after the other.
        elements: &[
            (DType::F16, 20.0 * unit::F32),
            (DType::BF16, 20.0 * unit::F32),
            (DType::F32, 16.0 * unit::F32),
        ],
    }],
};

/// y = f(scale x Wᵀ + b) + residual.
#[derive(Debug)]
struct Layer;

fn sizes(dims: &Dims) -> [usize; 4] {
    ["G", "M", "N", "K"].map(|d| dims.get(d))
}

fn activation(info: &Info, options: &Options) -> Activation {
    let name = options.text(info, "activation");
    Activation::ALL.iter().find(|(own, _)| *own == name).expect("one of the choices").1
}

fn out(dtype: DType, info: &Info, options: &Options) -> DType {
    if options.text(info, "out") == "f32" { DType::F32 } else { dtype }
}

/// f(scale x Wᵀ + b) + residual, with zeros for a bias and a residual that are not there.
fn layer(inputs: &Tensors, scale: f64, f: impl Fn(f64) -> f64) -> Vec<f64> {
    let [x, weight] = ["x", "weight"].map(|name| &inputs[name]);
    let [n, k] = [weight.shape[0], weight.shape[1]];
    let (x, w) = (x.values(), weight.values());
    let transposed: Vec<f64> = (0..k * n).map(|e| w[e % n * k + e / n]).collect();
    let mut y = lab_reference::matmul::matmul(&x, &transposed, x.len() / k, n, k);
    let values = |name| inputs.get(name).map(lab_harness::Tensor::values);
    let (bias, residual) = (values("bias"), values("residual"));
    for (e, y) in y.iter_mut().enumerate() {
        let of_column = bias.as_ref().map_or(0.0, |bias| bias[e % n]);
        let of_cell = residual.as_ref().map_or(0.0, |residual| residual[e]);
        *y = f(scale * *y + of_column) + of_cell;
    }
    y
}

impl Family for Layer {
    fn name(&self) -> &'static str {
        "linear"
    }

    /// Weights as a network has them: 1 / √K, so that sums are about 1.
    fn draw_inputs(&self, info: &Info, problem: &Problem) -> Tensors {
        let [g, m, n, k] = sizes(&problem.dims);
        let normal = |stream, shape: &[usize]| problem.normal(stream, shape);
        let weight = normal(1, &[n, k]);
        let scaled: Vec<f64> = weight.values().iter().map(|v| v / (k as f64).sqrt()).collect();
        let of_out = out(problem.dtype, info, &problem.options);
        lab_harness::tensor::tensors([
            ("x", normal(0, &[g, m, k])),
            ("weight", lab_harness::Tensor::rounded(problem.dtype, &[n, k], &scaled)),
            ("bias", normal(2, &[n])),
            ("residual", problem.normal_around(0.0, of_out, 3, &[g, m, n])),
        ])
    }

    fn reference(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
    ) -> Vec<(&'static str, Vec<f64>)> {
        let f = activation(info, options);
        vec![("y", layer(inputs, options.number(info, "scale"), |sum| f.of(sum)))]
    }

    /// The same of the absolute values, without the activation: none is steeper than 1.13.
    fn magnitudes(
        &self,
        info: &Info,
        inputs: &Tensors,
        options: &Options,
        _: &Reference,
    ) -> Magnitudes {
        let absolute = inputs.iter().map(|(name, tensor)| (name.clone(), tensor.absolute()));
        let y = layer(&absolute.collect(), options.number(info, "scale").abs(), |sum| sum);
        each(vec![("y", y)])
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let [g, m, n, k] = sizes(dims).map(|size| size as f64);
        let elements = g * m * k + n * k + n + 2.0 * g * m * n;
        Cost { flops: 2.0 * g * m * n * k, bytes: elements * dtype.size() as f64 }
    }

    /// The two layers behind the attention of a network of 768 columns, with 16384 rows; and with 4096 rows two layers of one
    /// of 4096 columns, which keep them and make four times as many.
    fn bench_shapes(&self, _: &Info, _: DType) -> Vec<Dims> {
        let all = [[16384, 3072, 768], [16384, 768, 3072], [4096, 4096, 4096], [4096, 16384, 4096]];
        all.map(|[m, n, k]| Dims::new([("G", 1), ("M", m), ("N", n), ("K", k)])).to_vec()
    }
}

impl Version for Linear {
    fn info(&self) -> &Info {
        self.info
    }

    fn test_shapes(&self) -> Vec<Dims> {
        let all = [
            [1, 1, 8, 8],
            [1, 100, 96, 64],
            // Several tiles of both kinds, steps that end within a span, and rows that a tile does not fill.
            [1, 300, 264, 200],
            [2, 70, 136, 72],
            [1, 129, 1032, 8],
            // More steps than a ring has places, several tiles of a block.
            [1, 700, 264, 456],
        ];
        all.map(|[g, m, n, k]| Dims::new([("G", g), ("M", m), ("N", n), ("K", k)])).to_vec()
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        if self.in_turns {
            return vec![&kernels::LINEAR_TURNS, &kernels::LINEAR_PLAIN];
        }
        vec![&kernels::LINEAR, &kernels::LINEAR_BEHIND, &kernels::LINEAR_PLAIN]
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let [g, m, n, k] = sizes(&request.dims);
        let out = out(request.dtype, self.info, request.options());
        let mut plan = Plan::new(device);
        let [a, b] = request.inputs(&mut plan, ["x", "weight"]);
        let [bias, added] = ["bias", "residual"]
            .map(|name| request.has(name).then(|| request.input(&mut plan, name)));
        if request.has("residual") && request.shape("residual").dtype != out {
            let got = request.shape("residual").to_string();
            let expected = format!("{out}, as y is");
            return Err(Error::Tensor { name: "residual".into(), expected, got });
        }
        let leading = &request.shape("x").sizes;
        let shape = [&leading[..leading.len() - 1], &[n]].concat();
        let c = plan.output("y", out, &shape);
        let scale = request.number("scale") as f32;
        // One matrix of all rows: W is the same for all.
        let product = Product {
            dtype: request.dtype,
            out,
            sizes: [1, g * m, n, k],
            lies: [Lies::AlongK, Lies::AlongK],
            scale,
            activation: activation(self.info, request.options()),
            a,
            b,
            bias,
            added,
            c,
            accumulates: false,
        };
        if self.in_turns {
            product.add_in_turns(&mut plan)?;
        } else {
            product.add_alone(&mut plan)?;
        }
        Ok(plan)
    }
}
