//! Cross-entropy under other options, with padding, masks, large logits and scales.

use lab_device::{DType, Device};
use lab_harness::suite::check;
use lab_harness::tensor::tensors;
use lab_harness::{Dims, Options, Plan, Problem, Tensor, Tensors, Version};
use lab_reference::passes as reference;

use super::{assert_close, noise, rounding, run_plan};
use crate::{CROSS_ENTROPY, CROSS_ENTROPY_BACK, CrossEntropy};

pub(super) fn losses_are_right_under_all_options(device: &Device) {
    let shapes = [[3, 40], [4, 3001], [2, 9000]];
    for (n, settings) in
        [&["cap=0"][..], &["z_loss=1e-2"], &["cap=0", "z_loss=1e-2"], &["cap=3"]].iter().enumerate()
    {
        for version in [&CROSS_ENTROPY, &CROSS_ENTROPY_BACK] {
            let info = version.info();
            for (m, [rows, vocabulary]) in shapes.into_iter().enumerate() {
                let dtype = info.dtypes[(n + m) % info.dtypes.len()];
                let options = Options::parse(settings, info).unwrap();
                let dims = Dims::new([("R", rows), ("V", vocabulary)]);
                let case =
                    check(version, device, &Problem { options, ..Problem::new(dims, dtype) });
                assert!(case.passed(), "{settings:?}: {}", case.describe());
            }
        }
    }
}

/// Logits in rows that are `stride` long, and their targets.
struct Rows {
    dtype: DType,
    vocabulary: usize,
    stride: usize,
    cap: Option<f32>,
    logits: Vec<f64>,
    targets: Vec<i32>,
}

impl Rows {
    /// All outputs of the gradient's launches, with a scale of the host's and one of the device's.
    fn run(&self, device: &Device, scale: f32, loss_scale: Option<f64>) -> Tensors {
        let Self { dtype, vocabulary, stride, cap, .. } = *self;
        let rows = self.targets.len();
        let mut plan = Plan::new(device);
        let op = CrossEntropy {
            dtype,
            rows,
            vocabulary,
            stride,
            cap,
            z_loss: 0.0,
            logits: plan.updated("logits", "dlogits", dtype, &[rows, stride]),
            targets: plan.input("targets", DType::I32, &[rows]),
            row_losses: Some(plan.output("row_losses", DType::F32, &[rows])),
            loss: Some(plan.output("loss", DType::F64, &[1])),
        };
        let on_device = loss_scale.map(|_| plan.input("loss_scale", DType::F64, &[1]));
        op.add_with_gradient(&mut plan, scale, on_device).unwrap();
        let inputs = tensors([
            ("logits", Tensor::rounded(dtype, &[rows, stride], &self.logits)),
            ("targets", Tensor::new(&[rows], &self.targets)),
            ("loss_scale", Tensor::new(&[1], &[loss_scale.unwrap_or(1.0)])),
        ]);
        run_plan(plan, &inputs)
    }

    /// The losses alone.
    fn losses(&self, device: &Device) -> Vec<f64> {
        let Self { dtype, vocabulary, stride, cap, .. } = *self;
        let rows = self.targets.len();
        let mut plan = Plan::new(device);
        let op = CrossEntropy {
            dtype,
            rows,
            vocabulary,
            stride,
            cap,
            z_loss: 0.0,
            logits: plan.input("logits", dtype, &[rows, stride]),
            targets: plan.input("targets", DType::I32, &[rows]),
            row_losses: Some(plan.output("row_losses", DType::F32, &[rows])),
            loss: None,
        };
        op.add_forward(&mut plan).unwrap();
        let inputs = tensors([
            ("logits", Tensor::rounded(dtype, &[rows, stride], &self.logits)),
            ("targets", Tensor::new(&[rows], &self.targets)),
        ]);
        run_plan(plan, &inputs)["row_losses"].values()
    }

    /// The reference's losses, mean and gradient, of the vocabulary's columns.
    fn expected(&self) -> (Vec<f64>, f64, Vec<f64>) {
        let of = reference::CrossEntropy { cap: self.cap.map(f64::from), z_loss: 0.0 };
        let rounded = Tensor::rounded(self.dtype, &[self.logits.len()], &self.logits).values();
        let targets: Vec<i64> = self.targets.iter().map(|&target| target.into()).collect();
        of.loss_and_gradient(&self.words(&rounded), &targets, self.vocabulary)
    }

    fn words(&self, all: &[f64]) -> Vec<f64> {
        all.chunks(self.stride).flat_map(|row| row[..self.vocabulary].to_vec()).collect()
    }

    fn assert_right(&self, what: &str, got: &Tensors) {
        let (rows, mean, d) = self.expected();
        assert_close(&format!("{what}: rows"), &got["row_losses"].values(), &rows, 2e-6);
        assert_close(&format!("{what}: loss"), &got["loss"].values(), &[mean], 2e-6);
        let dlogits = got["dlogits"].values();
        let bound = rounding(self.dtype).max(6e-6);
        assert_close(&format!("{what}: dlogits"), &self.words(&dlogits), &d, bound);
        for (at, d) in dlogits.iter().enumerate() {
            assert!(
                at % self.stride < self.vocabulary || *d == 0.0,
                "{what}: padding at {at} is {d}"
            );
        }
    }
}

/// Beyond half of the cap, and beyond the cap itself; without one, where exp overflows.
pub(super) fn large_logits_are_right(device: &Device) {
    for (dtype, cap, size) in [
        (DType::BF16, Some(30.0), 12.0),
        (DType::F16, Some(30.0), 200.0),
        (DType::F32, Some(30.0), 100.0),
        (DType::F32, None, 500.0),
        (DType::BF16, None, 5000.0),
    ] {
        let (rows, vocabulary) = (5, 600);
        let logits =
            noise(1, DType::F32, &[rows * vocabulary]).values().iter().map(|v| size * v).collect();
        let all = Rows {
            dtype,
            vocabulary,
            stride: vocabulary,
            cap,
            logits,
            targets: vec![3, 0, 599, 77, -1],
        };
        all.assert_right(
            &format!("{dtype}, logits of {size}, cap {cap:?}"),
            &all.run(device, 1.0, None),
        );
    }
}

/// Rows that are longer than the vocabulary, and targets that are none.
pub(super) fn padding_has_no_loss_and_no_gradient(device: &Device) {
    for (dtype, vocabulary, stride, cap) in [
        (DType::BF16, 2051, 2056, Some(30.0)),
        (DType::F32, 70, 800, None),
        (DType::F16, 33, 35, Some(30.0)),
        (DType::BF16, 5, 8, None),
    ] {
        // The first and the last are nowhere in memory.
        let targets = vec![-1 << 30, 2, vocabulary as i32, 4, i32::MAX];
        let mut logits = noise(1, DType::F32, &[5 * stride]).values();
        // What stands in the padding is nobody's.
        logits
            .iter_mut()
            .enumerate()
            .filter(|(at, _)| at % stride >= vocabulary)
            .for_each(|(_, v)| *v = f64::NAN);
        let all = Rows { dtype, vocabulary, stride, cap, logits, targets };
        let got = all.run(device, 1.0, None);
        all.assert_right(&format!("{dtype}, {vocabulary} of {stride}"), &got);
        let d = got["dlogits"].values();
        let is_ignored = |at: usize| [0, 2, 4].contains(&(at / stride));
        assert!(
            d.iter().enumerate().all(|(at, d)| !is_ignored(at) || *d == 0.0),
            "{dtype}: ignored rows"
        );
        assert_close("losses alone", &all.losses(device), &got["row_losses"].values(), 1e-6);
    }
    let none = Rows {
        dtype: DType::F32,
        vocabulary: 8,
        stride: 8,
        cap: None,
        logits: vec![1.0; 16],
        targets: vec![-1, -1],
    };
    let got = none.run(device, 1.0, None);
    assert!(got["loss"].values()[0].is_nan(), "a mean of nothing");
    assert!(got["dlogits"].values().iter().all(|d| *d == 0.0), "all targets are ignored");
}

/// Rows so wide that a multiprocessor has one block, and more than twice as many of them as there are blocks; padding that is wider
/// than a block of few threads.
pub(super) fn wide_rows_come_one_behind_the_other(device: &Device) {
    let rows = 3 * device.facts().multiprocessors as usize + 2;
    let (dtype, vocabulary, stride) = (DType::BF16, 29003, 29320);
    let targets: Vec<i32> = (0..rows).map(|r| (r * 7919 % vocabulary) as i32).collect();
    let logits = noise(1, DType::F32, &[rows * stride]).values();
    let all = Rows { dtype, vocabulary, stride, cap: Some(30.0), logits, targets };
    all.assert_right("wide rows", &all.run(device, 1.0, None));
}

/// Without a cap −∞ is a mask; NaN spreads over its row and no further.
pub(super) fn masks_and_nan_are_what_they_are(device: &Device) {
    let (dtype, vocabulary) = (DType::F32, 700);
    let mut logits = vec![f64::NEG_INFINITY; 3 * vocabulary];
    (logits[5], logits[vocabulary - 1]) = (2.0, 2.0);
    logits[vocabulary..].iter_mut().enumerate().for_each(|(at, v)| *v = (at % 13) as f64);
    logits[2 * vocabulary + 600] = f64::NAN;
    for cap in [None, Some(30.0)] {
        if cap.is_some() {
            logits[..vocabulary].fill(1.0);
        }
        let all = Rows {
            dtype,
            vocabulary,
            stride: vocabulary,
            cap,
            logits: logits.clone(),
            targets: vec![5, 1, 2],
        };
        let got = all.run(device, 1.0, None);
        let (losses, d) = (got["row_losses"].values(), got["dlogits"].values());
        let (expected, _, of_rows) = all.expected();
        let finite = ..2 * vocabulary;
        assert_close(&format!("cap {cap:?}: masks"), &losses[..2], &expected[..2], 2e-6);
        assert_close(&format!("cap {cap:?}: masks' gradient"), &d[finite], &of_rows[finite], 3e-6);
        assert!(all.losses(device)[2].is_nan(), "cap {cap:?}: NaN of the losses alone");
        assert!(
            losses[2].is_nan() && d[2 * vocabulary..].iter().all(|d| d.is_nan()),
            "cap {cap:?}: NaN"
        );
    }
}

/// Rows in pieces that share one place for their logits, each with a copy of its own here: the same bits as all at once.
pub(super) fn pieces_of_rows_are_as_all_at_once(device: &Device) {
    let (rows, vocabulary, dtype) = (7, 48, DType::BF16);
    let logits = noise(1, DType::F32, &[rows * vocabulary]).values();
    let targets = vec![1, -1, 39, 7, 47, -1, 0];
    let all = Rows { dtype, vocabulary, stride: vocabulary, cap: Some(30.0), logits, targets };
    let at_once = all.run(device, 1.0, None);

    let mut plan = Plan::new(device);
    let logits = plan.updated("logits", "dlogits", dtype, &[rows, vocabulary]);
    let targets = plan.input("targets", DType::I32, &[rows]);
    let row_losses = plan.output("row_losses", DType::F32, &[rows]);
    let count = CrossEntropy::add_count(&mut plan, targets, vocabulary).unwrap();
    for (first, rows) in [(0, 3), (3, 3), (6, 1)] {
        let piece = CrossEntropy {
            dtype,
            rows,
            vocabulary,
            stride: vocabulary,
            cap: Some(30.0),
            z_loss: 0.0,
            logits: logits.part(first * vocabulary, rows * vocabulary),
            targets: targets.part(first, rows),
            row_losses: Some(row_losses.part(first, rows)),
            loss: None,
        };
        piece.add_piece_with_gradient(&mut plan, 1.0, None, count).unwrap();
    }
    let loss = plan.output("loss", DType::F64, &[1]);
    CrossEntropy::add_mean(&mut plan, row_losses, count, Some(loss)).unwrap();
    let inputs = tensors([
        ("logits", Tensor::rounded(dtype, &[rows, vocabulary], &all.logits)),
        ("targets", Tensor::new(&[rows], &all.targets)),
    ]);
    assert_eq!(run_plan(plan, &inputs), at_once);
}

/// A NaN among masks, which a maximum passes over.
pub(super) fn nan_among_masks_is_not_lost(device: &Device) {
    let vocabulary = 16;
    for at in 0..8 {
        let mut logits = vec![f64::NEG_INFINITY; vocabulary];
        logits[at] = f64::NAN;
        for dtype in [DType::F32, DType::BF16] {
            let logits = logits.clone();
            let all =
                Rows { dtype, vocabulary, stride: vocabulary, cap: None, logits, targets: vec![9] };
            assert!(all.losses(device)[0].is_nan(), "{dtype}: NaN at {at}");
            assert!(
                all.run(device, 1.0, None)["row_losses"].values()[0].is_nan(),
                "{dtype}: NaN at {at}"
            );
        }
    }
}

pub(super) fn the_gradient_has_the_scale_of_the_device(device: &Device) {
    let (vocabulary, dtype) = (40, DType::F16);
    let logits = noise(1, DType::F32, &[4 * vocabulary]).values();
    let all = Rows {
        dtype,
        vocabulary,
        stride: vocabulary,
        cap: Some(30.0),
        logits,
        targets: vec![1, 39, -1, 7],
    };
    let got = all.run(device, 0.5, Some(1024.0));
    let (_, mean, d) = all.expected();
    assert_close("loss", &got["loss"].values(), &[mean], 2e-6);
    let scaled: Vec<f64> = d.iter().map(|d| 512.0 * d).collect();
    assert_close("dlogits", &got["dlogits"].values(), &scaled, rounding(dtype));
}
