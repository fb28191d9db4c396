//! What all trainings of the tool share.

pub(crate) mod history;
pub(crate) mod stop;

use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use lab_checker::check_target;
use lab_training::Error;

use crate::failure::Failure;

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::Harness(e) => e.into(),
            // Counted from 1, as in the lines of the training.
            Error::NotFinite { epoch, step, tensor, index, value } => Self::Refused(format!(
                "epoch {}, step {}: {tensor} is {value} at element {index}, expected finite \
                 numbers; a smaller --lr or --clip may help",
                epoch + 1,
                step + 1
            )),
            e => Self::Usage(e.to_string()),
        }
    }
}

/// A file beside the model: `sine.safetensors` and `loss.svg` make `sine.loss.svg`.
pub(crate) fn beside(model: &Path, ending: &str) -> PathBuf {
    model.with_extension(ending)
}

/// The model's name, from that of its file.
pub(crate) fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

/// On a terminal only; of so many epochs some were done before.
pub(crate) fn bar(epochs: usize, done: usize, steps_per_epoch: usize) -> ProgressBar {
    let steps = |epochs: usize| epochs.saturating_mul(steps_per_epoch) as u64;
    let bar = ProgressBar::new(steps(epochs)).with_position(steps(done));
    bar.reset_eta();
    let template = "{wide_bar} {pos}/{len} steps, {eta} left";
    bar.set_style(ProgressStyle::with_template(template).expect("a template"));
    bar
}

/// Refuses files that cannot be written: the model's, which is a file or none yet, and those beside it.
pub(crate) fn check_targets(out: &Path, others: &[&Path]) -> Result<(), Failure> {
    if std::fs::metadata(out).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
        let expected = "a file, beside which others are written";
        return Err(lab_harness::Error::bad("--out", expected, out.display()).into());
    }
    for path in [out].iter().chain(others) {
        check_target(path)?;
    }
    Ok(())
}

/// Said before a training begins anew where a model lies already.
pub(crate) fn note_replaced(out: &Path, resume: bool) {
    if !resume && out.exists() {
        note!(
            "{} holds a model, which this training replaces; Ctrl-C in its first epoch keeps it (--resume goes on \
             with a training that was stopped)",
            out.display()
        );
    }
}

/// After the first epoch of a call: how long the others take, if that is long.
pub(crate) fn estimate(took: Duration, left: usize) -> Option<String> {
    const LONG: Duration = Duration::from_secs(10);
    let rest = took * u32::try_from(left).unwrap_or(u32::MAX);
    let epochs =
        if left == 1 { "1 more epoch takes".into() } else { format!("{left} more epochs take") };
    (rest >= LONG).then(|| {
        format!(
            "{epochs} about {} at this pace; Ctrl-C stops, --resume goes on",
            format_duration(rest)
        )
    })
}

/// As a person reads it.
pub(crate) fn format_duration(elapsed: Duration) -> String {
    match elapsed.as_secs_f64() {
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 100.0 => format!("{s:.1} s"),
        s => format!("{:.0} min {:02.0} s", (s / 60.0).floor(), s % 60.0),
    }
}

/// Four digits that count.
pub(crate) fn digits(value: f64) -> String {
    match value.abs() {
        v if v != 0.0 && !(1e-3..1e5).contains(&v) => format!("{value:.3e}"),
        v => format!("{value:.*}", (3 - v.max(1e-3).log10().floor() as i32).clamp(0, 6) as usize),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_training_is_estimated() {
        let of = |seconds, left| estimate(Duration::from_secs_f64(seconds), left);
        let expected =
            "29 more epochs take about 7 min 50 s at this pace; Ctrl-C stops, --resume goes on";
        assert_eq!(of(16.2, 29).as_deref(), Some(expected));
        assert_eq!((of(0.1, 99), of(60.0, 0)), (None, None));
    }

    #[test]
    fn four_digits_count() {
        let all = [0.0, 0.001234567, 0.5, 12.3456, 99999.4, 1e-9, f64::NAN].map(digits);
        assert_eq!(all, ["0.000000", "0.001235", "0.5000", "12.35", "99999", "1.000e-9", "NaN"]);
    }
}
