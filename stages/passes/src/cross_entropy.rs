//! Cross-entropy, with its gradient in the place of the logits: `kernels/cross_entropy.cu`.

use lab_device::{DType, Device, DeviceKind, Instance, Kernel, KernelSource};
use lab_harness::compare::{Magnitudes, each};
use lab_harness::family::Reference;
use lab_harness::plan::Slot;
use lab_harness::{
    Dim, Error, Info, Input, Output, Plan, Problem, Request, Setting, Tensor, Tensors, arguments,
};
use lab_reference::passes as reference;

use crate::kernels;
use crate::magnitudes::in_f32;
use crate::pass::{Formula, Operands, Pass, bytes};
use crate::slots::{check_dtype, check_lengths, check_rows, check_sizes, grid, pack};

/// The mean over rows of lse(z) − z\[target\] + ζ lse², z = cap · tanh(logits / cap).
///
/// A target outside of the vocabulary is ignored: its row has no loss and no gradient, and does not count for the mean.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropy {
    /// Of the logits: f32, f16 or bf16.
    pub dtype: DType,
    /// B · S.
    pub rows: usize,
    /// V.
    pub vocabulary: usize,
    /// Elements from row to row of the logits. Columns behind the vocabulary are padding: their gradient is zero.
    pub stride: usize,
    /// Of the logits; none where they are taken as they are.
    pub cap: Option<f32>,
    /// ζ, the factor of the squared logarithm of the softmax's denominator; 0 for none.
    pub z_loss: f32,
    /// Before the cap, \[rows, stride\].
    pub logits: Slot,
    /// i32 \[rows\].
    pub targets: Slot,
    /// Where the loss of each row goes, f32 \[rows\]; scratch of its own where it is not said.
    pub row_losses: Option<Slot>,
    /// Where the mean goes, f64 \[1\]; scratch of its own where it is not said. NaN where all targets are ignored.
    pub loss: Option<Slot>,
}

/// What [`CrossEntropy`] has made.
#[derive(Clone, Copy, Debug)]
pub struct CrossEntropyOut {
    /// The mean, f64 \[1\].
    pub loss: Slot,
    /// Of each row, f32 \[rows\]; 0 where it is ignored.
    pub row_losses: Slot,
    /// Targets that are not ignored, i32 \[1\].
    pub count: Slot,
}

const NAME: &str = "cross_entropy";

impl CrossEntropy {
    fn check(&self) -> Result<(), Error> {
        let Self { dtype, rows, vocabulary, stride, cap, z_loss, .. } = *self;
        check_dtype(NAME, dtype)?;
        check_sizes(NAME, &[("rows", rows), ("vocabulary", vocabulary)])?;
        if stride > 1 << 30 {
            return Err(Error::bad(format!("row stride of {NAME}"), "at most 2^30", stride));
        }
        if cap.is_some_and(|cap| !(1.0..=40.0).contains(&cap)) {
            // exp(−2 cap) is the smallest power there is.
            return Err(Error::bad(
                format!("cap of {NAME}"),
                "1 to 40, or none",
                cap.unwrap_or(0.0),
            ));
        }
        if !z_loss.is_finite() {
            return Err(Error::bad(format!("z_loss of {NAME}"), "a finite number", z_loss));
        }
        check_rows(NAME, "logits", self.logits, [rows, vocabulary, stride])?;
        check_lengths(
            NAME,
            &[
                ("logits", Some(self.logits), rows * stride),
                ("targets", Some(self.targets), rows),
                ("row_losses", self.row_losses, rows),
                ("loss", self.loss, 1),
            ],
        )
    }

    /// The kernel with as many threads as a row has work for; on the emulator with the fewest that there are: each is a coroutine
    /// there, which gives way at each shuffle.
    fn load(
        &self,
        plan: &Plan,
        source: &'static KernelSource,
        name: &str,
    ) -> Result<Kernel, Error> {
        let Self { dtype, vocabulary, cap, .. } = *self;
        let pack = self.pack();
        const HELD: usize = 7;
        let is_like = |i: &Instance| {
            let capped = i.has("CAPPED", if cap.is_some() { "true" } else { "false" });
            i.has("T", dtype.cpp()) && i.size("N") == pack && capped
        };
        let holds = |i: &Instance| i.size("THREADS") * i.size("N") * HELD >= vocabulary;
        let all = || source.instances(name).filter(is_like);
        let instance = match plan.device().kind() {
            DeviceKind::Cuda => all().find(holds).or_else(|| all().last()),
            DeviceKind::Emulator => all().min_by_key(|i| i.size("THREADS")),
        };
        Ok(plan.device().load(instance.expect("of all types and packs"))?)
    }

    /// Elements of an access of a row.
    fn pack(&self) -> usize {
        pack(self.dtype, &[self.stride], &[(self.logits, self.dtype)])
    }

    /// The kernel that makes the gradient, and its shared memory. On the emulator f32 goes by the kernel of the fewest threads.
    fn load_with_gradient(&self, plan: &Plan) -> Result<(Kernel, usize), Error> {
        const BESIDE: usize = 2 << 10; // of a block: 1 KB that each takes, and what lies before its rows
        let Self { dtype, stride, .. } = *self;
        let device = plan.device();
        let room = device.facts().shared_per_multiprocessor as usize;
        let row = stride * dtype.size();
        let runs = self.pack() > 1
            && match device.kind() {
                DeviceKind::Cuda => kernels::CROSS_ENTROPY_STAGED.runs_on(&device.facts().arch),
                DeviceKind::Emulator => dtype != DType::F32,
            };
        match self.kept(device) {
            Some(instance) if runs && 2 * row + BESIDE <= room => {
                Ok((device.load(instance)?, 2 * row))
            }
            _ if runs && 2 * (row + BESIDE) <= room => {
                Ok((self.load(plan, &kernels::CROSS_ENTROPY_STAGED, "cross_entropy_staged")?, row))
            }
            _ => Ok((self.load(plan, &kernels::CROSS_ENTROPY, "cross_entropy")?, 0)),
        }
    }

    /// The kernel of the fewest threads whose registers hold a row of capped halves. On a GPU a row must have work for all threads.
    fn kept(&self, device: &Device) -> Option<Instance> {
        let Self { dtype, vocabulary, cap, .. } = *self;
        let pack = self.pack();
        let fits = |i: &Instance| {
            let threads = i.size("THREADS") * pack;
            let has_work = device.kind() == DeviceKind::Emulator || threads <= vocabulary;
            i.has("T", dtype.cpp()) && has_work && threads * i.size("HELD") >= vocabulary
        };
        let all = kernels::CROSS_ENTROPY_KEPT.instances("cross_entropy_kept");
        all.filter(|i| cap.is_some() && fits(i)).min_by_key(|i| i.size("THREADS"))
    }

    /// Adds the launch that counts the targets that are not ignored: i32 \[1\].
    ///
    /// # Errors
    /// There are no targets, or no vocabulary.
    pub fn add_count(plan: &mut Plan, targets: Slot, vocabulary: usize) -> Result<Slot, Error> {
        let rows = targets.len();
        check_sizes(NAME, &[("targets", rows), ("vocabulary", vocabulary)])?;
        let count = plan.scratch(DType::I32, 1);
        let kernel = plan.device().kernel(&kernels::CROSS_ENTROPY, "count_targets")?;
        let all = arguments![targets, count, rows, vocabulary];
        plan.launch(&kernel, grid(&kernel, [1, 1])?, all)?;
        Ok(count)
    }

    /// Adds the launch that makes the mean of the losses of all rows, f64 \[1\]; into scratch of its own where it is not said.
    ///
    /// # Errors
    /// A slot's length that does not fit.
    pub fn add_mean(
        plan: &mut Plan,
        row_losses: Slot,
        count: Slot,
        into: Option<Slot>,
    ) -> Result<Slot, Error> {
        check_lengths(NAME, &[("count", Some(count), 1), ("loss", into, 1)])?;
        let loss = into.unwrap_or_else(|| plan.scratch(DType::F64, 1));
        let kernel = plan.device().kernel(&kernels::CROSS_ENTROPY, "mean_loss")?;
        let all = arguments![row_losses, count, loss, rows: row_losses.len()];
        plan.launch(&kernel, grid(&kernel, [1, 1])?, all)?;
        Ok(loss)
    }

    /// Adds the launches of an evaluation: the losses alone; logits stay as they are.
    ///
    /// # Errors
    /// A type, a size, a cap or a slot's length that does not fit.
    pub fn add_forward(&self, plan: &mut Plan) -> Result<CrossEntropyOut, Error> {
        self.check()?;
        let count = Self::add_count(plan, self.targets, self.vocabulary)?;
        let row_losses = self.add_piece(plan)?;
        let loss = Self::add_mean(plan, row_losses, count, self.loss)?;
        Ok(CrossEntropyOut { loss, row_losses, count })
    }

    /// The same of a piece of the rows, whose losses it returns: see [`CrossEntropy::add_piece_with_gradient`].
    ///
    /// # Errors
    /// As [`CrossEntropy::add_forward`].
    pub fn add_piece(&self, plan: &mut Plan) -> Result<Slot, Error> {
        self.check()?;
        let Self { rows, vocabulary, stride, logits, targets, z_loss, .. } = *self;
        let kernel = self.load(plan, &kernels::CROSS_ENTROPY, "losses")?;
        let row_losses = self.row_losses.unwrap_or_else(|| plan.scratch(DType::F32, rows));
        let cap = self.cap.unwrap_or(1.0);
        let all = arguments![logits, targets, row_losses, vocabulary, stride, cap, z_loss];
        plan.launch(&kernel, grid(&kernel, [rows, 1])?, all)?;
        Ok(row_losses)
    }

    /// Adds the launches of a training step: the losses, and in the place of the logits the gradient of `scale` · loss. What it
    /// is multiplied with beside that, a number on the device, is `loss_scale` where it is given, f64 \[1\].
    ///
    /// # Errors
    /// As [`CrossEntropy::add_forward`].
    pub fn add_with_gradient(
        &self,
        plan: &mut Plan,
        scale: f32,
        loss_scale: Option<Slot>,
    ) -> Result<CrossEntropyOut, Error> {
        self.check()?;
        let count = Self::add_count(plan, self.targets, self.vocabulary)?;
        let row_losses = self.add_piece_with_gradient(plan, scale, loss_scale, count)?;
        let loss = Self::add_mean(plan, row_losses, count, self.loss)?;
        Ok(CrossEntropyOut { loss, row_losses, count })
    }

    /// The same of a piece of the rows, whose losses it returns: so logits need room for a piece only. `count` is that of the
    /// targets of all rows ([`CrossEntropy::add_count`]); the mean is made when the losses of all are there
    /// ([`CrossEntropy::add_mean`]).
    ///
    /// # Errors
    /// As [`CrossEntropy::add_forward`].
    pub fn add_piece_with_gradient(
        &self,
        plan: &mut Plan,
        scale: f32,
        loss_scale: Option<Slot>,
        count: Slot,
    ) -> Result<Slot, Error> {
        self.check()?;
        check_lengths(NAME, &[("loss_scale", loss_scale, 1), ("count", Some(count), 1)])?;
        if !scale.is_finite() {
            return Err(Error::bad(format!("scale of {NAME}"), "a finite number", scale));
        }
        let Self { rows, vocabulary, stride, logits, targets, z_loss, .. } = *self;
        let (kernel, shared) = self.load_with_gradient(plan)?;
        let row_losses = self.row_losses.unwrap_or_else(|| plan.scratch(DType::F32, rows));
        let loss_scale = loss_scale.unwrap_or_else(|| plan.constant(&Tensor::new(&[1], &[1f64])));
        let resident = kernel.resident_blocks(kernel.block()?.threads, shared)? as usize;
        let cap = self.cap.unwrap_or(1.0);
        let all = arguments![
            logits, targets, count, loss_scale, row_losses, rows, vocabulary, stride, cap, z_loss,
            scale
        ];
        let launch = grid(&kernel, [rows.min(resident), 1])?.shared(shared);
        plan.launch(&kernel, launch, all)?;
        Ok(row_losses)
    }
}

static FORWARD: Formula = Formula {
    name: "cross_entropy",
    draw: draw_targets,
    reference: |of| {
        let (rows, loss, _) = loss(of);
        vec![("loss", vec![loss]), ("row_losses", rows)]
    },
    magnitudes,
    cost: |dims, dtype| {
        let (rows, all) = (dims.get("R") as f64, (dims.get("R") * dims.get("V")) as f64);
        bytes(dtype, 8.0 * all, all, 8.0 * rows)
    },
};

static BACKWARD: Formula = Formula {
    name: "cross_entropy_back",
    draw: draw_targets,
    reference: |of| {
        let (rows, loss, dlogits) = loss(of);
        vec![("loss", vec![loss]), ("row_losses", rows), ("dlogits", dlogits)]
    },
    magnitudes,
    cost: |dims, dtype| {
        let (rows, all) = (dims.get("R") as f64, (dims.get("R") * dims.get("V")) as f64);
        bytes(dtype, 20.0 * all, 2.0 * all, 8.0 * rows)
    },
};

fn loss(of: &Operands<'_>) -> (Vec<f64>, f64, Vec<f64>) {
    let cap = of.number("cap");
    let loss =
        reference::CrossEntropy { cap: (cap > 0.0).then_some(cap), z_loss: of.number("z_loss") };
    loss.loss_and_gradient(&of.values("logits"), &of.ids("targets"), of.dim("V"))
}

/// What roundings are relative to: of the logarithm of the denominator, itself and the cap, or the row's largest z, from which
/// exponents are taken. A power is off by the roundings of its exponent, and the gradient at the target by those of the two
/// numbers near 1 whose difference it is.
fn magnitudes(of: &Operands<'_>, reference: &Reference) -> Magnitudes {
    let (targets, vocabulary) = (of.ids("targets"), of.dim("V"));
    let (cap, z_loss, logits) = (of.number("cap"), of.number("z_loss"), of.values("logits"));
    let is_back = reference.iter().any(|r| r.0 == "dlogits");
    let target_of = |r: usize| usize::try_from(targets[r]).ok().filter(|t| *t < vocabulary);
    let count = (0..targets.len()).filter(|r| target_of(*r).is_some()).count() as f64;
    let (mut rows, mut gradient) = (Vec::new(), Vec::new());
    for (r, row) in logits.chunks(vocabulary).enumerate() {
        let Some(target) = target_of(r) else {
            rows.push(0.0);
            gradient.extend(row.iter().filter(|_| is_back).map(|_| 0.0));
            continue;
        };
        let capped = |x: &f64| if cap > 0.0 { cap * (x / cap).tanh() } else { *x };
        let z: Vec<f64> = row.iter().map(capped).collect();
        let largest = z.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let lse = z.iter().map(|z| (z - largest).exp()).sum::<f64>().ln() + largest;
        let offset = if cap > 0.0 { cap } else { largest.abs() };
        let size = offset + lse.abs();
        let of_squares = z_loss.abs() * lse.abs();
        rows.push(size + z[target].abs() + 2.0 * of_squares * size);
        let of_power = (1.0 + size) * (1.0 + 2.0 * of_squares) / count;
        let cell = |(c, z): (usize, &f64)| {
            (z - lse).exp() * of_power + if c == target { 1.0 / count } else { 0.0 }
        };
        gradient.extend(z.iter().enumerate().filter(|_| is_back).map(cell));
    }
    let mut all = vec![("loss", vec![rows.iter().sum::<f64>() / count]), ("row_losses", rows)];
    if is_back {
        all.push(("dlogits", gradient));
    }
    each(all)
}

/// Logits of some size; every fifth target is ignored.
fn draw_targets(problem: &Problem, all: &mut Tensors) {
    let (rows, vocabulary) = (problem.dims.get("R"), problem.dims.get("V"));
    let logits: Vec<f64> = all["logits"].values().into_iter().map(|v| 4.0 * v).collect();
    all.insert("logits".into(), Tensor::rounded(problem.dtype, &[rows, vocabulary], &logits));
    let id = |row: usize| if row % 5 == 4 { -100 } else { (row * 7919 % vocabulary) as i32 };
    let ids: Vec<i32> = (0..rows).map(id).collect();
    all.insert("targets".into(), Tensor::new(&[rows], &ids));
}

/// The losses alone.
pub static CROSS_ENTROPY: Pass = Pass {
    info: Info {
        stage: "passes",
        name: "cross_entropy",
        family: &FORWARD,
        parent: None,
        change: "a block a row; with a cap no maximum is needed",
        dtypes: &[DType::F32, DType::F16, DType::BF16],
        dims: &[
            Dim::new("R", "rows", [6, 2048, i32::MAX as usize]),
            Dim::new("V", "tokens of the vocabulary", [120, 50304, 1 << 24]),
        ],
        settings: &[
            Setting::number("cap", "of the logits; 0 for none", "30"),
            Setting::number("z_loss", "factor of the squared logarithm of the denominator", "0"),
        ],
        inputs: &[
            Input::new("logits", &["R", "V"]),
            Input::new("targets", &["R"]).always(DType::I32),
        ],
        // z and lse are off by roundings of numbers of the size of the cap: with few tokens the loss is small beside it.
        outputs: &[
            Output {
                name: "loss",
                bounds: &[(DType::F32, 1e-6), (DType::F16, 1e-6), (DType::BF16, 1e-6)],
                elements: &in_f32(3.0),
            },
            Output {
                name: "row_losses",
                bounds: &[(DType::F32, 1.2e-6), (DType::F16, 1.2e-6), (DType::BF16, 1.2e-6)],
                elements: &in_f32(3.0),
            },
        ],
    },
    shapes: &[&[2, 9], &[7, 31], &[4, 256], &[9, 1000], &[3, 5003], &[2, 20_000]],
    timed: &[],
    sources: &[&kernels::CROSS_ENTROPY],
    plan: |plan, request| {
        let logits = request.input(plan, "logits");
        operation(plan, request, logits)?.add_forward(plan)?;
        Ok(())
    },
};

/// With the gradient.
pub static CROSS_ENTROPY_BACK: Pass = Pass {
    info: Info {
        name: "cross_entropy_back",
        family: &BACKWARD,
        change: "and the gradient in the logits' place; the next row is on its way",
        outputs: &[
            CROSS_ENTROPY.info.outputs[0],
            CROSS_ENTROPY.info.outputs[1],
            // Of a row with a small loss the gradient is a difference of two numbers near 1.
            Output {
                name: "dlogits",
                bounds: &[(DType::F32, 3e-6), (DType::F16, 6e-4), (DType::BF16, 4e-3)],
                elements: &in_f32(5.0),
            },
        ],
        ..CROSS_ENTROPY.info
    },
    // Also rows for several rounds of a block, and of more packs than a block holds.
    shapes: &[
        &[2, 9],
        &[7, 31],
        &[150, 256],
        &[9, 1000],
        &[3, 5003],
        &[300, 4104],
        &[20, 14_400],
        &[2, 60_000],
    ],
    plan: |plan, request| {
        let (rows, vocabulary) = (request.dim("R"), request.dim("V"));
        let logits = plan.updated("logits", "dlogits", request.dtype, &[rows, vocabulary]);
        operation(plan, request, logits)?.add_with_gradient(plan, 1.0, None)?;
        Ok(())
    },
    ..CROSS_ENTROPY
};

fn operation(plan: &mut Plan, request: &Request<'_>, logits: Slot) -> Result<CrossEntropy, Error> {
    let (rows, vocabulary, cap) =
        (request.dim("R"), request.dim("V"), request.number("cap") as f32);
    Ok(CrossEntropy {
        dtype: request.dtype,
        rows,
        vocabulary,
        stride: vocabulary,
        cap: (cap != 0.0).then_some(cap),
        z_loss: request.number("z_loss") as f32,
        logits,
        targets: request.input(plan, "targets"),
        row_losses: Some(plan.output("row_losses", DType::F32, &[rows])),
        loss: Some(plan.output("loss", DType::F64, &[1])),
    })
}
