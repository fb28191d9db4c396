//! What arguments of several commands say.

use std::time::Duration;

use lab_app::{Arch, BadArgument};
use lab_emulator::Order;

use crate::failure::CheckFailure;

/// A length of time.
pub(crate) fn seconds(given: f64) -> Result<Duration, CheckFailure> {
    let wrong = || format!("--timeout: expected seconds from 0.001 to 1000000, got {given}");
    let is_fine = (0.001..=1e6).contains(&given);
    is_fine.then(|| Duration::from_secs_f64(given)).ok_or_else(|| CheckFailure::Usage(wrong()))
}

/// `8GiB`, `500MB`, `1000000`.
pub(crate) fn bytes(given: &str) -> Result<u64, CheckFailure> {
    let wrong = || {
        let expected = "bytes from 64MiB, such as 8GiB, 500MB or 1000000000";
        let given = lab_emulator::shown(given, 60);
        CheckFailure::Usage(format!("--memory: expected {expected}, got '{given}'"))
    };
    let text = given.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit: u64 = match &text[end..] {
        "" | "B" => 1,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..end].parse().map_err(|_| wrong())?;
    number.checked_mul(unit).filter(|&n| n >= 64 << 20).ok_or_else(wrong)
}

/// The GPU that is stood for.
pub(crate) fn arch(given: Option<&str>) -> Result<Arch, CheckFailure> {
    let Some(name) = given else { return Ok(Arch::default()) };
    name.parse().map_err(|expected: String| bad("--arch", &expected, &format!("'{name}'")))
}

/// An order of threads, with the seed where the text has none.
pub(crate) fn order(given: Option<&str>, seed: u64) -> Result<Option<Order>, CheckFailure> {
    let Some(text) = given else { return Ok(None) };
    let with_seed = match text {
        "random" | "starve" => format!("{text}:{seed}"),
        _ => text.to_owned(),
    };
    let order = with_seed.parse();
    order.map(Some).map_err(|_: lab_emulator::BadOrder| {
        let expected = "forward, reverse, warps, random[:SEED] or starve[:SEED]";
        bad("--order", expected, &format!("'{text}'"))
    })
}

/// Bad usage: what was expected of an argument, and what came.
pub(crate) fn bad(argument: &str, expected: &str, got: &str) -> CheckFailure {
    CheckFailure::Usage(BadArgument::new(argument, expected, got).to_string())
}
