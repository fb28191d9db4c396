//! The lines that a training prints.

use std::time::Duration;

use lab_lstm::training::Epoch;

use crate::commands::training::history::Entry;
use crate::commands::training::{digits, format_duration};

/// Of an epoch that is done, counted from 0.
pub(super) fn epoch(
    epoch: usize,
    epochs: usize,
    report: &Epoch,
    validation: Option<f64>,
    better: bool,
    elapsed: Duration,
) -> String {
    let wide = epochs.to_string().len();
    let mut line = format!("epoch {:>wide$}/{epochs}  loss {}", epoch + 1, digits(report.loss));
    if let Some(loss) = validation {
        line += &format!("  validation {}{}", digits(loss), if better { " best" } else { "     " });
    }
    line += &format!("  rate {:.2e}  {}", report.rate, format_duration(elapsed));
    if report.skipped > 0 {
        line += &format!("  {} steps skipped, scale {}", report.skipped, report.scale);
    }
    line
}

/// Of the epoch whose parameters are kept.
pub(super) fn best(epoch: usize, epochs: usize, entry: &Entry) -> String {
    let loss = digits(entry.train);
    match entry.validation {
        None => format!("loss {} after the last epoch", loss.trim()),
        Some(v) if epoch + 1 == epochs => {
            format!("loss {}, validation {} after the last epoch, its best", loss.trim(), digits(v))
        }
        Some(v) => format!(
            "loss {}, validation {} after epoch {}, the best, which is kept",
            loss.trim(),
            digits(v),
            epoch + 1
        ),
    }
}
