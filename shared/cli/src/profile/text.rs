//! A profile on a terminal.

use lab_checker::counted::{print_lines, print_totals};
use lab_device::emulator::Operation;

use super::{Report, number};
use crate::table::bytes;

/// Sums by operation, then every line that was counted.
pub(crate) fn print(report: &Report<'_>, device: &str, caveat: &str) {
    say!("{} on {}", report.title(), device);
    say!("{caveat}\n");
    let counted = report.counted();
    print_totals(&counted);
    let (flops, least) = (report.cost.flops, report.cost.bytes);
    if flops > 0.0 {
        say!(
            "As declared: {} flops and {} that must move, {:.3} flops a byte; {:.3} a byte asked of \
             global memory.",
            number(flops as u64),
            bytes(least),
            flops / least.max(1.0),
            flops / (report.global_bytes() as f64).max(1.0),
        );
    } else {
        say!("As declared: no arithmetic, and {} that must move.", bytes(least));
    }
    let on_tensor_cores = report.profile.total(Operation::TensorCore).flops;
    if on_tensor_cores > 0 {
        say!(
            "On tensor cores: {} flops, {:.2} times those declared; what is more fills tiles up.",
            number(on_tensor_cores),
            on_tensor_cores as f64 / flops.max(1.0)
        );
    }
    print_lines(&counted);
}
