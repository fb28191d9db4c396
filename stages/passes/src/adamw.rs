//! AdamW over one flat arena: `kernels/adamw.cu`.

use lab_device::{DType, DeviceKind, Kernel};
use lab_harness::compare::{Magnitudes, each};
use lab_harness::family::Reference;
use lab_harness::plan::Slot;
use lab_harness::progress::{COUNTS, NUMBERS, SCALE, TAKEN};
use lab_harness::{
    Dim, Error, Info, Input, Output, Plan, Problem, Setting, Tensor, Tensors, arguments,
};
use lab_reference::passes as reference;
use lab_reference::training::{Adam, clip_factor, global_norm};

use crate::kernels;
use crate::magnitudes::in_f32;
use crate::pass::{Formula, Operands, Pass, bytes};
use crate::slots::{THREADS, check_dtype, check_lengths, check_sizes, untouched};

/// One step of all parameters, which lie in one arena, as their gradients, moments and working copies do.
///
/// Where training stands is on the device, so that one graph serves all steps: the step's learning rate, the powers of the
/// betas, the loss scale. A step whose loss or gradients are not finite changes nothing else; with a loss scale that
/// follows the gradients, the scale is halved then.
#[derive(Clone, Copy, Debug)]
pub struct AdamW {
    /// Of the working copy: f16 or bf16, or f32 where the masters are what the model reads.
    pub dtype: DType,
    /// N.
    pub parameters: usize,
    /// So many of the first parameters decay.
    pub decayed: usize,
    /// Of the two moments.
    pub betas: [f64; 2],
    /// Added outside of the root.
    pub eps: f64,
    /// λ: p ← p − rate λ p.
    pub weight_decay: f64,
    /// The largest norm of all gradients together; none where they are taken as they are.
    pub max_norm: Option<f64>,
    /// Steps after which the loss scale doubles; none where it stays as it is.
    pub scale_doubles_after: Option<u32>,
    /// Masters, f32 \[N\].
    pub p: Slot,
    /// Working copy, \[N\]; none where `dtype` is f32.
    pub copy: Option<Slot>,
    /// Gradients, \[W N\]: of so many ranks, which are added up where they are read.
    pub g: Slot,
    /// W; 1 where they are sums already, or one device's.
    pub ranks: usize,
    /// Their type: f32, or bf16 where devices have summed rounded ones.
    pub gradient: DType,
    /// First moments, f32 \[N\].
    pub m: Slot,
    /// Second moments, f32 \[N\].
    pub v: Slot,
    /// f64, one of each step; later steps have the last.
    pub rates: Slot,
    /// f64 \[1\]: that of this step.
    pub loss: Slot,
    /// Where training stands.
    pub progress: Progress,
}

/// Where training stands: two copies of `lab/progress.cuh`, as [`lab_harness::progress`] names their places.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// i64 \[2 · COUNTS\].
    pub counts: Slot,
    /// f64 \[2 · NUMBERS\].
    pub numbers: Slot,
}

impl Progress {
    /// Elements of [`Progress::counts`].
    pub const COUNTS: usize = 2 * COUNTS;
    /// Elements of [`Progress::numbers`].
    pub const NUMBERS: usize = 2 * NUMBERS;

    /// Before the first step, with this loss scale: what the two slots hold.
    pub fn first(loss_scale: f64) -> [Tensor; 2] {
        let numbers = [loss_scale, 1.0, 1.0];
        let both = [numbers, numbers].concat();
        [Tensor::new(&[Self::COUNTS], &[0i64; Self::COUNTS]), Tensor::new(&[Self::NUMBERS], &both)]
    }

    /// Steps of training before the coming one, i64 \[1\]: for [`crate::Dropout`].
    pub fn steps_taken(&self) -> Slot {
        self.counts.part(COUNTS + TAKEN, 1)
    }

    /// What the loss of the coming step is multiplied with, f64 \[1\]: for [`crate::CrossEntropy::add_with_gradient`].
    pub fn loss_scale(&self) -> Slot {
        self.numbers.part(NUMBERS + SCALE, 1)
    }
}

/// Sums of squares of some gradients, which the launches that make these leave: their norm need not be read from them once more.
#[derive(Clone, Debug)]
pub struct Squares {
    pub(crate) sums: Slot,
    pub(crate) taken: usize,
    pub(crate) of: Vec<Slot>,
}

impl Squares {
    /// With room for so many sums.
    pub fn new(plan: &mut Plan, room: usize) -> Self {
        Self { sums: plan.scratch(DType::F64, room), taken: 0, of: Vec::new() }
    }

    /// Where so many sums of squares of this gradient go, f64; none where there is no room. Nothing may be added to the gradient behind
    /// the launch that leaves them.
    pub fn of(&mut self, gradient: Slot, sums: usize) -> Option<Slot> {
        if sums > self.sums.len() - self.taken {
            return None;
        }
        let own = self.sums.part(self.taken, sums);
        self.taken += sums;
        self.of.push(gradient);
        Some(own)
    }

    /// All of them; none where there are none.
    fn all(&self) -> Option<Slot> {
        (self.taken > 0).then(|| self.sums.part(0, self.taken))
    }

    /// Begin and length of the parts of this arena of whose gradients there are none.
    fn others(&self, arena: Slot) -> Vec<(usize, usize)> {
        let begins = |slot: &Slot| slot.start() - arena.start();
        let mut of = self.of.clone();
        of.sort_by_key(begins);
        let mut at = 0;
        let mut others: Vec<_> = of
            .iter()
            .map(|slot| {
                let (start, end) = (begins(slot), begins(slot) + slot.len());
                (std::mem::replace(&mut at, end), start)
            })
            .collect();
        others.push((at, arena.len()));
        others.into_iter().filter(|(at, end)| at < end).map(|(at, end)| (at, end - at)).collect()
    }
}

const NAME: &str = "adamw";

impl AdamW {
    fn check(&self) -> Result<(), Error> {
        let Self { dtype, gradient, parameters, decayed, copy, .. } = *self;
        check_dtype(NAME, dtype)?;
        if ![DType::F32, DType::BF16].contains(&gradient) {
            return Err(Error::bad(format!("gradients of {NAME}"), "f32 or bf16", gradient));
        }
        check_sizes(NAME, &[("parameters", parameters), ("rates", self.rates.len())])?;
        if decayed > parameters {
            let what = format!("decayed parameters of {NAME}");
            return Err(Error::bad(what, format!("at most {parameters}"), decayed));
        }
        if copy.is_some() != (dtype != DType::F32) {
            let expected = if copy.is_some() { "none of masters in f32" } else { "one of halves" };
            let got = if copy.is_some() { "one" } else { "none" };
            return Err(Error::bad(format!("copy of {NAME}"), expected, got));
        }
        let positive = |name: &str, value: f64| {
            if value > 0.0 && value.is_finite() {
                Ok(())
            } else {
                Err(Error::bad(format!("{name} of {NAME}"), "a finite number above 0", value))
            }
        };
        self.max_norm.map_or(Ok(()), |norm| positive("max_norm", norm))?;
        positive("eps", self.eps)?;
        if self.betas.iter().any(|beta| !(0.0..1.0).contains(beta)) {
            let got = format!("{:?}", self.betas);
            return Err(Error::bad(format!("betas of {NAME}"), "from 0 to below 1", got));
        }
        if self.scale_doubles_after.is_some_and(|steps| steps == 0 || steps > i32::MAX as u32) {
            let what = format!("scale_doubles_after of {NAME}");
            return Err(Error::bad(what, "1 to 2^31 - 1", self.scale_doubles_after.unwrap_or(0)));
        }
        check_sizes(NAME, &[("ranks", self.ranks)])?;
        if self.ranks > 1 && !parameters.is_multiple_of(4) {
            let what = format!("parameters of {NAME}");
            return Err(Error::bad(
                what,
                "a multiple of 4, with several ranks' gradients",
                parameters,
            ));
        }
        let all = [("p", self.p, 1), ("g", self.g, self.ranks), ("m", self.m, 1), ("v", self.v, 1)];
        let all = all.into_iter().chain(copy.map(|copy| ("copy", copy, 1)));
        for (name, slot, times) in all {
            check_lengths(NAME, &[(name, Some(slot), times * parameters)])?;
            if !slot.start().is_multiple_of(4) {
                let what = format!("first element of {name} of {NAME}");
                return Err(Error::bad(what, "a multiple of 4", slot.start()));
            }
        }
        check_lengths(
            NAME,
            &[
                ("loss", Some(self.loss), 1),
                ("counts", Some(self.progress.counts), Progress::COUNTS),
                ("numbers", Some(self.progress.numbers), Progress::NUMBERS),
            ],
        )
    }

    /// The same of some of its parameters, by an update of their own behind the squares of all: the result has the same bits. They begin
    /// at a multiple of four.
    ///
    /// # Panics
    /// The gradients are several ranks'.
    #[must_use]
    pub fn of_part(self, start: usize, len: usize) -> Self {
        assert_eq!(self.ranks, 1, "gradients of one part lie together");
        let part = |slot: Slot| slot.part(start, len);
        Self {
            parameters: len,
            decayed: self.decayed.saturating_sub(start).min(len),
            p: part(self.p),
            copy: self.copy.map(part),
            g: part(self.g),
            m: part(self.m),
            v: part(self.v),
            ..self
        }
    }

    /// Adds both launches.
    ///
    /// # Errors
    /// A number, a type or a slot's length that does not fit; a tensor that does not begin at 16 bytes.
    pub fn add(&self, plan: &mut Plan) -> Result<(), Error> {
        let squares = Self::add_squares(&[*self], None, plan)?;
        self.add_update(plan, squares)
    }

    /// The same behind what has left sums of squares of some of these gradients: the first launch reads only the others.
    ///
    /// # Errors
    /// As [`AdamW::add`].
    ///
    /// # Panics
    /// The gradients are several ranks', or those of another arena.
    pub fn add_behind(&self, plan: &mut Plan, made: &Squares) -> Result<(), Error> {
        let others = made.others(self.g);
        if made.taken == 0 || others.is_empty() {
            return self.add(plan); // some launch must begin the step
        }
        let others: Vec<Self> =
            others.into_iter().map(|(start, len)| self.of_part(start, len)).collect();
        let squares = Self::add_squares(&others, made.all(), plan)?;
        self.add_update(plan, squares)
    }

    /// Blocks of such a kernel, no more than there are parameters for.
    fn blocks(&self, plan: &Plan, kernel: &Kernel) -> Result<usize, Error> {
        // Each thread adds up what all blocks have left. The emulator has no use for more of them than it has processors.
        const EMULATED: usize = 8;
        let most = match plan.device().kind() {
            DeviceKind::Cuda => usize::MAX,
            DeviceKind::Emulator => EMULATED,
        };
        let most = most.min(self.parameters.div_ceil(4 * THREADS));
        Ok(most.min(kernel.resident_blocks(THREADS as u32, 0)? as usize))
    }

    /// Adds the first launch of each of these parts of all parameters, and gives what they leave: sums of squares of the gradients, f64,
    /// one a block. `made` are sums that others have left: they join those of the first part. Where these parts are one device's, the sums over all devices, element by element, take its place: all have as many,
    /// of parts of one size.
    ///
    /// # Errors
    /// As [`AdamW::add`].
    pub fn add_squares(parts: &[Self], made: Option<Slot>, plan: &mut Plan) -> Result<Slot, Error> {
        let mut launches = Vec::with_capacity(parts.len());
        for part in parts {
            part.check()?;
            let name = format!("arena_squares<{}>", part.gradient.cpp());
            let kernel = plan.device().kernel(&kernels::ADAMW, &name)?;
            // Each block of an update adds up what all of these have left: of many parts at most twice what one launch leaves.
            let most = part.blocks(plan, &kernel)?;
            launches.push((part, most.min((2 * most).div_ceil(parts.len())), kernel));
        }
        let all = plan.scratch(DType::F64, launches.iter().map(|(_, blocks, _)| blocks).sum());
        let (mut first, mut joining) = (0, made);
        for (&Self { parameters, g, ranks, progress, .. }, blocks, kernel) in launches {
            let Progress { counts, numbers } = progress;
            let squares = all.part(first, blocks);
            let launch = kernel.grid([blocks as u32, 1, 1])?;
            let (made_sums, made) = match joining.take() {
                Some(sums) => (sums.len(), sums),
                None => (0, untouched(plan, DType::F64)),
            };
            let all =
                arguments![g, made, squares, counts, numbers, ranks, made_sums, N: parameters];
            plan.launch(&kernel, launch, all)?;
            first += blocks;
        }
        Ok(all)
    }

    /// Adds the second launch, with the squares of the first of all parts.
    ///
    /// # Errors
    /// As [`AdamW::add`].
    pub fn add_update(&self, plan: &mut Plan, squares: Slot) -> Result<(), Error> {
        self.check()?;
        let Self {
            dtype, gradient, parameters, decayed, eps, p, g, ranks, m, v, rates, loss, ..
        } = *self;
        let Progress { counts, numbers } = self.progress;
        let [beta1, beta2] = self.betas;
        let name = match gradient {
            DType::F32 => format!("adamw<{}>", dtype.cpp()),
            _ => format!("adamw<{}, {}>", dtype.cpp(), gradient.cpp()),
        };
        let kernel = plan.device().kernel(&kernels::ADAMW, &name)?;
        let copy = self.copy.unwrap_or_else(|| untouched(plan, dtype));
        let launch = kernel.grid([self.blocks(plan, &kernel)? as u32, 1, 1])?;
        let all = arguments![
            p, copy, g, m, v, squares, rates, loss, counts, numbers, beta1, beta2, eps,
            decay: self.weight_decay, max_norm: self.max_norm.unwrap_or(0.0),
            every: self.scale_doubles_after.unwrap_or(0), blocks: squares.len(), steps: rates.len(), decayed, ranks,
            N: parameters
        ];
        plan.launch(&kernel, launch, all)
    }
}

static STEP: Formula = Formula {
    name: "adamw",
    draw: draw_arena,
    reference: |of| {
        let number = |name: &str| of.number(name);
        let adam = Adam {
            lr: of.values("rates")[0],
            betas: [number("beta1"), number("beta2")],
            eps: number("eps"),
            weight_decay: number("decay"),
            decoupled: true,
        };
        let decayed = number("decayed") as usize;
        let max_norm = number("max_norm");
        let [p, m, v] = reference::adamw_step(
            &adam,
            (max_norm > 0.0).then_some(max_norm),
            decayed,
            [&of.values("p"), &of.values("g"), &of.values("m"), &of.values("v")],
        );
        let copy = match of.tensor("copy").dtype {
            // The model reads the masters: nobody touches the copy.
            DType::F32 => of.values("copy"),
            _ => p.clone(),
        };
        vec![("p1", p), ("copy1", copy), ("m1", m), ("v1", v)]
    },
    magnitudes,
    cost: |dims, dtype| {
        let all = dims.get("N") as f64;
        let copy = if dtype == DType::F32 { 0.0 } else { all };
        bytes(dtype, 16.0 * all, copy, 28.0 * all)
    },
};

/// The terms of each sum. 1 − β is off by the rounding of β, which is near 1. What a parameter moves by is off by the roundings
/// of both moments.
fn magnitudes(of: &Operands<'_>, reference: &Reference) -> Magnitudes {
    let [p, g, m, v] = ["p", "g", "m", "v"].map(|name| of.values(name));
    let [beta1, beta2, max_norm] = ["beta1", "beta2", "max_norm"].map(|name| of.number(name));
    let (lr, eps) = (of.values("rates")[0], of.number("eps"));
    let factor =
        if max_norm > 0.0 { clip_factor(global_norm([g.as_slice()]), max_norm) } else { 1.0 };
    let after = |name: &str| &reference.iter().find(|r| r.0 == name).expect("an output").1;
    let g: Vec<f64> = g.iter().map(|g| g.abs() * factor).collect();
    let of_m: Vec<f64> = m.iter().zip(&g).map(|(m, g)| beta1 * m.abs() + g).collect();
    let of_v: Vec<f64> = v.iter().zip(&g).map(|(v, g)| beta2 * v + g * g).collect();
    let moved = |n: usize| {
        let (m1, v1) = (after("m1")[n], after("v1")[n]);
        let root = (v1 / (1.0 - beta2)).sqrt() + eps;
        let of_root = if v1 > 0.0 { of_v[n] / v1 } else { 0.0 };
        lr / (1.0 - beta1) * (of_m[n] + m1.abs() * of_root) / root
    };
    let of_p: Vec<f64> = p.iter().enumerate().map(|(n, p)| p.abs() + moved(n)).collect();
    // The copy of a run in f32 is not touched.
    let of_copy =
        if of.tensor("copy").dtype == DType::F32 { vec![0.0; p.len()] } else { of_p.clone() };
    each(vec![("p1", of_p), ("copy1", of_copy), ("m1", of_m), ("v1", of_v)])
}

/// Moments as they are after some steps.
fn draw_arena(problem: &Problem, all: &mut Tensors) {
    let n = [problem.dims.get("N")];
    let scaled =
        |name: &str, by: f64| -> Vec<f64> { all[name].values().iter().map(|v| v * by).collect() };
    let (m, g) = (scaled("m", 0.01), scaled("g", 0.02));
    let v: Vec<f64> = scaled("v", 0.02).iter().map(|v| v * v + 1e-6).collect();
    for (name, values) in [("m", m), ("g", g), ("v", v)] {
        all.insert(name.into(), Tensor::rounded(DType::F32, &n, &values));
    }
    all.insert("loss".into(), Tensor::new(&[1], &[1f64]));
    all.insert("rates".into(), Tensor::new(&[1], &[1e-3f64]));
}

/// A step.
pub static ADAMW: Pass = Pass {
    info: Info {
        stage: "passes",
        name: "adamw",
        family: &STEP,
        parent: None,
        change: "16 bytes of each tensor a thread; norm, rate and verdict stay on the device",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &[Dim::new("N", "parameters", [3000, 1 << 24, 1 << 40])],
        settings: &[
            Setting::number("decay", "of the weights", "0.1"),
            Setting::number("decayed", "so many of the first parameters decay", "1001"),
            Setting::number("beta1", "of the first moment", "0.9"),
            Setting::number("beta2", "of the second moment", "0.95"),
            Setting::number("eps", "added outside of the root", "1e-8"),
            Setting::number("max_norm", "of all gradients together; 0 for any", "1"),
        ],
        inputs: &[
            Input::new("p", &["N"]).always(DType::F32),
            Input::new("copy", &["N"]),
            Input::new("g", &["N"]).always(DType::F32),
            Input::new("m", &["N"]).always(DType::F32),
            Input::new("v", &["N"]).always(DType::F32),
            Input::new("rates", &["1"]).always(DType::F64),
            Input::new("loss", &["1"]).always(DType::F64),
        ],
        // A single parameter's first moment may nearly cancel.
        outputs: &[
            Output {
                name: "p1",
                bounds: &[(DType::F32, 2e-7), (DType::F16, 2e-7), (DType::BF16, 2e-7)],
                elements: &in_f32(3.0),
            },
            Output {
                name: "copy1",
                bounds: &[(DType::F32, 0.0), (DType::F16, 5e-4), (DType::BF16, 4e-3)],
                elements: &in_f32(3.0),
            },
            Output {
                name: "m1",
                bounds: &[(DType::F32, 8e-7), (DType::F16, 8e-7), (DType::BF16, 8e-7)],
                elements: &in_f32(2.0),
            },
            Output {
                name: "v1",
                bounds: &[(DType::F32, 3e-7), (DType::F16, 3e-7), (DType::BF16, 3e-7)],
                elements: &in_f32(2.0),
            },
        ],
    },
    // In the last some threads have several rounds of four packs.
    shapes: &[&[1], &[3], &[1000], &[4099], &[328_083]],
    timed: &[],
    sources: &[&kernels::ADAMW],
    plan: |plan, request| {
        let [g, rates, loss] = request.inputs(plan, ["g", "rates", "loss"]);
        let (dtype, parameters) = (request.dtype, request.dim("N"));
        let mut updated =
            |name: &str, dtype| plan.updated(name, &format!("{name}1"), dtype, &[parameters]);
        let [p, m, v] = ["p", "m", "v"].map(|name| updated(name, DType::F32));
        let copy = updated("copy", dtype);
        let [counts, numbers] = Progress::first(1.0).map(|tensor| plan.constant(&tensor));
        let max_norm = request.number("max_norm");
        AdamW {
            dtype,
            parameters,
            decayed: (request.number("decayed") as usize).min(parameters),
            betas: [request.number("beta1"), request.number("beta2")],
            eps: request.number("eps"),
            weight_decay: request.number("decay"),
            max_norm: (max_norm > 0.0).then_some(max_norm),
            scale_doubles_after: None,
            p,
            copy: (dtype != DType::F32).then_some(copy),
            g,
            gradient: DType::F32,
            ranks: 1,
            m,
            v,
            rates,
            loss,
            progress: Progress { counts, numbers },
        }
        .add(plan)
    },
};
