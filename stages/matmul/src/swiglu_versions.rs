//! The layers of [`crate::swiglu`] as versions: references, costs, bounds.

use lab_device::{DType, Device, KernelSource};
use lab_harness::compare::{each, in_f32_of_halves, unit};
use lab_harness::{
    Cost, Dim, Dims, Error, Family, Info, Input, Magnitudes, Options, Output, Plan, Problem,
    Reference, Request, Tensor, Tensors, Version, tensor,
};
use lab_reference::matmul::matmul;
use lab_reference::passes::{swiglu, swiglu_back};

use crate::kernels;
use crate::sizes::LARGEST;
use crate::swiglu::{LinearSwiGlu, LinearSwiGluBack};

/// Into a feed-forward block: x → gate_up, u.
pub static LINEAR_SWIGLU: SwiGlu = SwiGlu { info: &FORWARD_INFO, in_turns: false };

/// Back out of it: dy, gate_up → dgate_up, u.
pub static LINEAR_SWIGLU_BACK: SwiGlu = SwiGlu { info: &BACKWARD_INFO, in_turns: false };

/// The same by two warpgroups that take turns.
pub static LINEAR_SWIGLU_BACK_TURNS: SwiGlu = SwiGlu { info: &TURNS_INFO, in_turns: true };

/// A layer with SwiGLU as a version.
#[derive(Debug)]
pub struct SwiGlu {
    info: &'static Info,
    in_turns: bool,
}

static FORWARD_INFO: Info = Info {
    stage: "matmul",
    name: "linear_swiglu",
    family: &Layer { backward: false },
    parent: None,
    change: "v20's way to C; u is made of the rounded sums while the next tile is multiplied",
    dtypes: &[DType::BF16, DType::F16],
    dims: &[
        Dim::new("M", "rows of x, or of dy", [100, 32768, LARGEST]),
        Dim::new("H", "columns of u", [96, 2048, LARGEST]).in_steps_of(8),
        Dim::new("K", "columns of x, or of dy", [96, 768, LARGEST]).in_steps_of(8),
    ],
    settings: &[],
    inputs: &[Input::new("x", &["M", "K"]), Input::new("weight", &["2H", "K"])],
    outputs: &[
        // As `linear`.
        Output {
            name: "gate_up",
            bounds: &[(DType::F16, 5e-4), (DType::BF16, 4e-3)],
            elements: &in_f32_of_halves(20.0 * unit::F32),
        },
        // Gate and up are rounded before: so u is off by what that changes, and by its own rounding.
        Output {
            name: "u",
            bounds: &[(DType::F16, 1e-3), (DType::BF16, 8e-3)],
            elements: &[(DType::F16, unit::F16), (DType::BF16, unit::BF16)],
        },
    ],
};

static BACKWARD_INFO: Info = Info {
    name: "linear_swiglu_back",
    family: &Layer { backward: true },
    parent: None,
    change: "gate and up are brought behind the products, and their gradients stored there: du never is",
    inputs: &[
        Input::new("dy", &["M", "K"]),
        Input::new("weight", &["K", "H"]),
        Input::new("gate_up", &["M", "2H"]),
    ],
    outputs: &[
        // du is rounded before, and the gradients after.
        Output {
            name: "dgate_up",
            bounds: &[(DType::F16, 7e-4), (DType::BF16, 6e-3)],
            elements: &[(DType::F16, unit::F16), (DType::BF16, unit::BF16)],
        },
        // As SwiGLU alone.
        Output {
            name: "u",
            bounds: &[(DType::F16, 5e-4), (DType::BF16, 4e-3)],
            elements: &in_f32_of_halves(4.0 * unit::F32),
        },
    ],
    ..FORWARD_INFO
};

static TURNS_INFO: Info = Info {
    name: "linear_swiglu_back_turns",
    parent: Some("linear_swiglu_back"),
    change: "a tile a warpgroup: one multiplies while the other makes the gradients of its tile",
    ..BACKWARD_INFO
};

#[derive(Debug)]
struct Layer {
    backward: bool,
}

fn sizes(dims: &Dims) -> [usize; 3] {
    ["M", "H", "K"].map(|d| dims.get(d))
}

/// x Wᵀ, W \[N, K\].
fn by_rows(x: &[f64], w: &[f64], [m, n, k]: [usize; 3]) -> Vec<f64> {
    let across: Vec<f64> = (0..k * n).map(|e| w[e % n * k + e / n]).collect();
    matmul(x, &across, m, n, k)
}

fn logistic(a: f64) -> f64 {
    1.0 / (1.0 + (-a).exp())
}

/// |silu′(a)|, and |silu(a)|.
fn slopes(a: f64) -> [f64; 2] {
    let s = logistic(a);
    [(s * (1.0 + a * (1.0 - s))).abs(), (a * s).abs()]
}

/// Of both passes: the values of inputs, made absolute where that is asked.
struct Values {
    of: Tensors,
    sizes: [usize; 3],
    absolute: bool,
}

impl Values {
    fn new(inputs: &Tensors, backward: bool, absolute: bool) -> Self {
        let (x, w) = (&inputs[if backward { "dy" } else { "x" }], &inputs["weight"]);
        let width = if backward { w.shape[1] } else { w.shape[0] / 2 };
        let sizes = [x.shape[0], width, x.shape[1]];
        Self { of: inputs.clone(), sizes, absolute }
    }

    fn of(&self, name: &str) -> Vec<f64> {
        let tensor = &self.of[name];
        if self.absolute { tensor.absolute().values() } else { tensor.values() }
    }

    fn gate_up(&self) -> Vec<f64> {
        let [m, h, k] = self.sizes;
        by_rows(&self.of("x"), &self.of("weight"), [m, 2 * h, k])
    }

    fn du(&self) -> Vec<f64> {
        let [m, h, k] = self.sizes;
        matmul(&self.of("dy"), &self.of("weight"), m, h, k)
    }
}

/// The rounding of sums in f32, 20 units, as a share of a half's: of f16's unit, the smaller of both, so that it is enough for either.
const SUMS: f64 = 20.0 * unit::F32 / unit::F16;

impl Family for Layer {
    fn name(&self) -> &'static str {
        if self.backward { "linear_swiglu_back" } else { "linear_swiglu" }
    }

    /// Weights as a network has them: 1 / √K, so that sums are about 1.
    fn draw_inputs(&self, _: &Info, problem: &Problem) -> Tensors {
        let [m, h, k] = sizes(&problem.dims);
        let weight = |shape: &[usize]| {
            let values = problem.normal(1, shape).values();
            let scaled: Vec<f64> = values.iter().map(|v| v / (k as f64).sqrt()).collect();
            Tensor::rounded(problem.dtype, shape, &scaled)
        };
        if self.backward {
            return tensor::tensors([
                ("dy", problem.normal(0, &[m, k])),
                ("weight", weight(&[k, h])),
                ("gate_up", problem.normal(2, &[m, 2 * h])),
            ]);
        }
        tensor::tensors([("x", problem.normal(0, &[m, k])), ("weight", weight(&[2 * h, k]))])
    }

    fn reference(&self, _: &Info, inputs: &Tensors, _: &Options) -> Vec<(&'static str, Vec<f64>)> {
        let values = Values::new(inputs, self.backward, false);
        let width = values.sizes[1];
        if self.backward {
            let gate_up = values.of("gate_up");
            let d = swiglu_back(&gate_up, &values.du(), width);
            return vec![("dgate_up", d), ("u", swiglu(&gate_up, width))];
        }
        let gate_up = values.gate_up();
        let u = swiglu(&gate_up, width);
        vec![("gate_up", gate_up), ("u", u)]
    }

    /// Of a product the sum of its terms. Of what is made of a rounded number that number's size times the slope by it.
    fn magnitudes(
        &self,
        _: &Info,
        inputs: &Tensors,
        _: &Options,
        reference: &Reference,
    ) -> Magnitudes {
        let sums = Values::new(inputs, self.backward, true);
        let width = sums.sizes[1];
        let found = |name| &reference.iter().find(|r| r.0 == name).expect("asked for").1;
        if !self.backward {
            let (terms, gate_up) = (sums.gate_up(), found("gate_up"));
            let of_row = |(row, terms): (&[f64], &[f64])| -> Vec<f64> {
                let off = |c: usize| row[c].abs() + SUMS * terms[c];
                let of = |c: usize| {
                    let [slope, silu] = slopes(row[c]);
                    slope * row[width + c].abs() * off(c) + silu * off(width + c)
                };
                (0..width).map(of).collect()
            };
            let rows = gate_up.chunks(2 * width).zip(terms.chunks(2 * width));
            let u = rows.flat_map(of_row).collect();
            return each(vec![("gate_up", terms), ("u", u)]);
        }
        let gate_up = Values::new(inputs, true, false).of("gate_up");
        let (terms, d) = (sums.du(), found("dgate_up"));
        let (mut of_d, mut of_u) = (Vec::with_capacity(d.len()), Vec::new());
        for ((row, d), terms) in
            gate_up.chunks(2 * width).zip(d.chunks(2 * width)).zip(terms.chunks(width))
        {
            // 1 − σ beside 1: of a number in f32, as SwiGLU alone.
            let by = |c: usize| SUMS * terms[c] * logistic(row[c]) * (1.0 + row[c].abs());
            of_d.extend((0..width).map(|c| d[c].abs() + by(c) * row[width + c].abs()));
            of_d.extend((0..width).map(|c| d[width + c].abs() + by(c)));
            of_u.extend((0..width).map(|c| slopes(row[c])[1] * row[width + c].abs()));
        }
        each(vec![("dgate_up", of_d), ("u", of_u)])
    }

    fn cost(&self, dims: &Dims, dtype: DType) -> Cost {
        let [m, h, k] = sizes(dims).map(|size| size as f64);
        let (products, columns) = if self.backward { (1.0, 5.0) } else { (2.0, 3.0) };
        let elements = m * k + products * h * k + columns * m * h;
        Cost { flops: 2.0 * products * m * h * k, bytes: elements * dtype.size() as f64 }
    }

    /// The feed-forward blocks of language models of 768 and 2048 columns.
    fn bench_shapes(&self, _: &Info, _: DType) -> Vec<Dims> {
        let all = [[32768, 2048, 768], [16384, 5504, 2048]];
        all.map(|[m, h, k]| Dims::new([("M", m), ("H", h), ("K", k)])).to_vec()
    }
}

impl Version for SwiGlu {
    fn info(&self) -> &Info {
        self.info
    }

    fn test_shapes(&self) -> Vec<Dims> {
        let all = [
            [1, 8, 8],
            [100, 96, 64],
            // Tiles that end within 128 and 256 columns, rows that a tile does not fill, steps that end within a span; more tiles than
            // an emulated device has multiprocessors.
            [300, 264, 200],
            [129, 520, 8],
            // As many steps as panels need, and more.
            [70, 136, 1000],
        ];
        all.map(|[m, h, k]| Dims::new([("M", m), ("H", h), ("K", k)])).to_vec()
    }

    fn sources(&self) -> Vec<&'static KernelSource> {
        vec![match (self.info.family.name(), self.in_turns) {
            ("linear_swiglu", _) => &kernels::LINEAR_SWIGLU,
            (_, false) => &kernels::LINEAR_SWIGLU_BACK,
            (_, true) => &kernels::LINEAR_SWIGLU_BACK_TURNS,
        }]
    }

    fn plan(&self, device: &Device, request: &Request<'_>) -> Result<Plan, Error> {
        let all @ [m, h, _] = sizes(&request.dims);
        let dtype = request.dtype;
        let mut plan = Plan::new(device);
        if self.info.family.name() == "linear_swiglu_back" {
            let [dy, weight, gate_up] = request.inputs(&mut plan, ["dy", "weight", "gate_up"]);
            let dgate_up = plan.output("dgate_up", dtype, &[m, 2 * h]);
            let u = Some(plan.output("u", dtype, &[m, h]));
            let back = LinearSwiGluBack { dtype, sizes: all, dy, weight, gate_up, dgate_up, u };
            if self.in_turns {
                back.add_in_turns(&mut plan)?;
            } else {
                back.add(&mut plan)?;
            }
            return Ok(plan);
        }
        let [x, weight] = request.inputs(&mut plan, ["x", "weight"]);
        let gate_up = Some(plan.output("gate_up", dtype, &[m, 2 * h]));
        let u = plan.output("u", dtype, &[m, h]);
        LinearSwiGlu { dtype, sizes: all, x, weight, gate_up, u }.add(&mut plan)?;
        Ok(plan)
    }
}
