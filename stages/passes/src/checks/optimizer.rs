//! AdamW over several steps, and steps that are not finite.

use lab_device::{DType, Device};
use lab_harness::plan::Slot;
use lab_harness::progress::{COUNTS, NUMBERS, SCALE, SKIPPED, STEP, UPDATES};
use lab_harness::{Binding, Dims, Options, Plan, Problem, Tensor, Version, compare, run};
use lab_reference::training::{Adam, AdamState, clip_factor, global_norm};

use super::{assert_close, noise};
use crate::{ADAMW, AdamW, Progress, Squares};

const N: usize = 1003;
const DECAYED: usize = 502;
const SUMS: usize = 2100;
const RATES: [f64; 3] = [1e-2, 3e-3, 1e-3];

/// An arena on a device, and the slots that a test looks at.
struct Arena {
    run: Binding,
    g: Slot,
    loss: Slot,
    p: Slot,
    m: Slot,
    copy: Slot,
    progress: Progress,
    /// Of squares that somebody else makes.
    sums: Slot,
}

impl Arena {
    /// Parameters like noise, moments of zero.
    fn new(device: &Device, loss_scale: f64, scale_doubles_after: Option<u32>) -> Self {
        Self::with_gradients(device, DType::F32, loss_scale, scale_doubles_after)
    }

    /// With gradients of this type.
    fn with_gradients(
        device: &Device,
        gradient: DType,
        loss_scale: f64,
        scale_doubles_after: Option<u32>,
    ) -> Self {
        Self::of_ranks(device, [1, N], gradient, loss_scale, scale_doubles_after, &[])
    }

    /// Of so many parameters, with gradients of so many ranks; of `made`, begins and lengths, somebody else makes the squares.
    fn of_ranks(
        device: &Device,
        [ranks, parameters]: [usize; 2],
        gradient: DType,
        loss_scale: f64,
        scale_doubles_after: Option<u32>,
        made: &[(usize, usize)],
    ) -> Self {
        let dtype = DType::BF16;
        let mut plan = Plan::new(device);
        let state = |plan: &mut Plan, name: &str, dtype| plan.state(name, dtype, &[parameters]);
        let [p, m, v] = ["p", "m", "v"].map(|name| state(&mut plan, name, DType::F32));
        let g = plan.state("g", gradient, &[ranks * parameters]);
        let copy = state(&mut plan, "copy", dtype);
        let counts = plan.state("counts", DType::I64, &[Progress::COUNTS]);
        let numbers = plan.state("numbers", DType::F64, &[Progress::NUMBERS]);
        let loss = plan.state("loss", DType::F64, &[1]);
        let progress = Progress { counts, numbers };
        let op = AdamW {
            dtype,
            parameters,
            decayed: DECAYED,
            betas: [0.9, 0.99],
            eps: 1e-8,
            weight_decay: 0.1,
            max_norm: Some(1.0),
            scale_doubles_after,
            p,
            copy: Some(copy),
            g,
            gradient,
            ranks,
            m,
            v,
            rates: plan.input("rates", DType::F64, &[RATES.len()]),
            loss,
            progress,
        };
        let sums = plan.state("squares", DType::F64, &[SUMS]);
        let taken = if made.is_empty() { 0 } else { SUMS };
        let of = made.iter().map(|&(start, len)| g.part(start, len)).collect();
        op.add_behind(&mut plan, &Squares { sums, taken, of }).unwrap();
        let rates = Tensor::new(&[RATES.len()], &RATES);
        let mut run = plan.bind().upload("rates", &rates).unwrap().finish().unwrap();
        let [first_counts, first_numbers] = Progress::first(loss_scale);
        run.write(counts, &first_counts).unwrap();
        run.write(numbers, &first_numbers).unwrap();
        run.write(p, &noise(1, DType::F32, &[parameters])).unwrap();
        let zeros = vec![0.0; parameters];
        for slot in [m, v] {
            run.write(slot, &Tensor::rounded(DType::F32, &[parameters], &zeros)).unwrap();
        }
        run.write(copy, &Tensor::rounded(dtype, &[parameters], &zeros)).unwrap();
        Self { run, g, loss, p, m, copy, progress, sums }
    }

    fn step(&mut self, g: &Tensor, loss: f64) {
        self.run.write(self.g, g).unwrap();
        self.run.write(self.loss, &Tensor::new(&[1], &[loss])).unwrap();
        self.run.run().unwrap();
    }

    fn values(&self, slot: Slot) -> Vec<f64> {
        self.run.read(slot).unwrap().values()
    }

    /// After the last step.
    fn count(&self, place: usize) -> f64 {
        self.values(self.progress.counts)[COUNTS + place]
    }

    fn loss_scale(&self) -> f64 {
        let place = NUMBERS + SCALE;
        assert_eq!(self.progress.loss_scale().start(), place);
        self.values(self.progress.numbers)[place]
    }
}

/// The gradients of a step, small ones and large ones in turns.
fn gradients(step: u64, scale: f64) -> Tensor {
    let size = if step.is_multiple_of(2) { 1e-2 } else { 1.0 };
    let values: Vec<f64> =
        noise(10 + step, DType::F32, &[N]).values().iter().map(|v| v * size * scale).collect();
    Tensor::rounded(DType::F32, &[N], &values)
}

/// With rates by the step, of which the last holds on; clipped where the norm is above 1, which it is in every second step.
pub(super) fn many_steps_follow_the_reference(device: &Device) {
    let mut arena = Arena::new(device, 1.0, None);
    let mut p = noise(1, DType::F32, &[N]).values();
    let [mut decayed, mut others] = [AdamState::new(DECAYED), AdamState::new(N - DECAYED)];
    for step in 0..5 {
        let g = gradients(step, 1.0);
        arena.step(&g, 1.0);
        let norm = global_norm([&g.values()[..]]);
        let factor = clip_factor(norm, 1.0);
        assert_eq!(factor < 1.0, step % 2 == 1, "norm {norm}");
        let g: Vec<f64> = g.values().iter().map(|g| g * factor).collect();
        let adam = Adam {
            lr: RATES[(step as usize).min(2)],
            betas: [0.9, 0.99],
            eps: 1e-8,
            weight_decay: 0.1,
            decoupled: true,
        };
        let (first, second) = p.split_at_mut(DECAYED);
        adam.step(first, &g[..DECAYED], &mut decayed);
        Adam { weight_decay: 0.0, ..adam }.step(second, &g[DECAYED..], &mut others);
    }
    let before = noise(1, DType::F32, &[N]).values();
    let change = |p: &[f64]| -> Vec<f64> { p.iter().zip(&before).map(|(p, b)| p - b).collect() };
    let got = arena.values(arena.p);
    // A parameter is rounded at each step; of it the change is a hundredth.
    assert_close("change of the masters", &change(&got), &change(&p), 2e-5);
    let rounded = Tensor::rounded(DType::BF16, &[N], &got).values();
    assert_eq!(arena.values(arena.copy), rounded, "the copy is the masters, rounded");
    assert_eq!((arena.count(STEP), arena.count(UPDATES)), (5.0, 5.0));
}

/// Gradients in bf16 are what they are in f32, to the bit, once they are rounded.
pub(super) fn rounded_gradients_are_as_good_as_floats(device: &Device) {
    let [mut floats, mut halves] = [DType::F32, DType::BF16]
        .map(|gradient| Arena::with_gradients(device, gradient, 1.0, None));
    for step in 0..3 {
        let rounded = Tensor::rounded(DType::BF16, &[N], &gradients(step, 1.0).values());
        floats.step(&Tensor::rounded(DType::F32, &[N], &rounded.values()), 1.0);
        halves.step(&rounded, 1.0);
    }
    assert_eq!(halves.values(halves.p), floats.values(floats.p));
    assert_eq!(halves.values(halves.copy), floats.values(floats.copy));
}

/// Gradients of several ranks are what their sums in f32 are, in the order of the ranks, to the bit: in packs of several rounds.
pub(super) fn gradients_of_ranks_are_added_up(device: &Device) {
    const RANKS: usize = 3;
    for (gradient, parameters) in [(DType::F32, 40_000), (DType::BF16, 1000)] {
        let mut sent = Arena::of_ranks(device, [RANKS, parameters], gradient, 1.0, None, &[]);
        let mut summed = Arena::of_ranks(device, [1, parameters], DType::F32, 1.0, None, &[]);
        for step in 0..2 {
            let g = noise(20 + step, gradient, &[RANKS * parameters]);
            let values = g.values();
            let sum = |n: usize| {
                let of_ranks = values[n..].iter().step_by(parameters).map(|g| *g as f32);
                f64::from(of_ranks.reduce(|sum, g| sum + g).unwrap())
            };
            let sums: Vec<f64> = (0..parameters).map(sum).collect();
            sent.step(&g, 1.0);
            summed.step(&Tensor::rounded(DType::F32, &[parameters], &sums), 1.0);
        }
        assert_eq!(sent.values(sent.p), summed.values(summed.p), "{gradient}");
        assert_eq!(sent.values(sent.copy), summed.values(summed.copy), "{gradient}");
    }
}

/// The norm has each gradient once: where some are large, the first moments tell it. And without a limit nothing is clipped.
pub(super) fn every_gradient_counts_for_the_norm(device: &Device) {
    let info = ADAMW.info();
    for (max_norm, n) in [("max_norm=1", 328_083), ("max_norm=0", 1000)] {
        // The ends, the first of each round of all threads on the emulator, and others.
        let is_large = |e: usize| e.is_multiple_of(65536) || e.is_multiple_of(9973) || e + 9 > n;
        let g: Vec<f64> = (0..n).map(|e| if is_large(e) { 1000.0 } else { 0.0 }).collect();
        let options = Options::parse(&[max_norm], info).unwrap();
        let problem = Problem { options, ..Problem::new(Dims::new([("N", n)]), DType::BF16) };
        let mut inputs = ADAMW.inputs(&problem);
        inputs.insert("g".into(), Tensor::rounded(DType::F32, &[n], &g));
        inputs.insert("m".into(), Tensor::rounded(DType::F32, &[n], &vec![0.0; n]));
        let outputs = run(&ADAMW, device, &inputs, &problem.options).unwrap();
        for c in compare(&ADAMW, &inputs, &outputs, &problem.options, DType::BF16) {
            assert!(c.passed(), "{max_norm}: {c}");
        }
    }
}

/// Whatever parts of the gradients they are of, at its begin, at its end, side by side or all: the moments and the parameters become what
/// they become without.
pub(super) fn squares_that_others_have_made_join(device: &Device) {
    let n = 6000;
    let g = gradients(1, 3.0).values();
    let g: Vec<f64> = (0..n).map(|e| g[e % g.len()] * (1 + e / 1000) as f64).collect();
    let of = |made: &[(usize, usize)]| {
        let mut arena = Arena::of_ranks(device, [1, n], DType::F32, 1.0, None, made);
        let squares = made.iter().flat_map(|&(start, len)| &g[start..start + len]).map(|g| g * g);
        let all: f64 = squares.sum();
        // The first and the last sum have some of it: threads add several.
        let sums: Vec<f64> = (0..SUMS)
            .map(|sum| match sum {
                0 => 0.25 * all,
                1000 => 0.5 * all,
                2099 => 0.25 * all,
                _ => 0.0,
            })
            .collect();
        arena.run.write(arena.sums, &Tensor::new(&[SUMS], &sums)).unwrap();
        arena.step(&Tensor::rounded(DType::F32, &[n], &g), 1.0);
        assert_eq!(arena.count(UPDATES), 1.0);
        [arena.values(arena.m), arena.values(arena.p)]
    };
    let [m, p] = of(&[]);
    for made in [
        &[(0, 64)][..],
        &[(4000, 2000), (64, 128)],
        &[(192, 64), (128, 64), (1024, 1024)],
        &[(0, 3000), (3000, 3000)],
    ] {
        let got = of(made);
        assert_close(&format!("m behind {made:?}"), &got[0], &m, 1e-6);
        assert_close(&format!("p behind {made:?}"), &got[1], &p, 1e-6);
    }
}

pub(super) fn a_step_that_is_not_finite_is_left_out(device: &Device) {
    for (bad, loss) in [(f64::NAN, 1.0), (f64::INFINITY, 1.0), (0.5, f64::NAN)] {
        let [mut with, mut without] = [(); 2].map(|()| Arena::new(device, 1.0, None));
        // The rate follows the step, whether it is taken or not: this one has that of the third in both.
        for step in 0..2 {
            with.step(&gradients(step, 1.0), 1.0);
            without.step(&gradients(step, 1.0), 1.0);
        }
        let mut values = gradients(2, 1.0).values();
        values[700] = bad;
        let before = with.values(with.p);
        with.step(&Tensor::rounded(DType::F32, &[N], &values), loss);
        assert_eq!(with.values(with.p), before, "{bad}, {loss}: masters");
        assert_eq!((with.count(STEP), with.count(UPDATES), with.count(SKIPPED)), (3.0, 2.0, 1.0));
        assert_eq!(with.loss_scale(), 1.0);
        with.step(&gradients(3, 1.0), 1.0);
        without.step(&gradients(3, 1.0), 1.0);
        assert_eq!(with.values(with.p), without.values(without.p), "{bad}, {loss}: the next step");
        assert_eq!(with.values(with.copy), without.values(without.copy));
    }
}

/// Halved by a step that overflows, doubled after two good ones; the step itself does not depend on it.
pub(super) fn a_loss_scale_follows_the_gradients(device: &Device) {
    let mut scaled = Arena::new(device, 1024.0, Some(2));
    let mut plain = Arena::new(device, 1.0, None);
    scaled.step(&Tensor::rounded(DType::F32, &[N], &[f64::INFINITY; N]), 1.0);
    plain.step(&Tensor::rounded(DType::F32, &[N], &[f64::INFINITY; N]), 1.0);
    assert_eq!((scaled.loss_scale(), plain.loss_scale()), (512.0, 1.0));
    let mut scales = Vec::new();
    for step in 0..3 {
        let scale = scaled.loss_scale();
        scaled.step(&gradients(step, scale), 1.0);
        plain.step(&gradients(step, 1.0), 1.0);
        scales.push(scaled.loss_scale());
    }
    assert_eq!(scales, [512.0, 1024.0, 1024.0]);
    assert_close("masters", &scaled.values(scaled.p), &plain.values(plain.p), 1e-7);
    assert_eq!((scaled.count(UPDATES), scaled.count(SKIPPED)), (3.0, 1.0));
}
