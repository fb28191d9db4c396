//! Words of messages.

use lab_emulator::Finding;

/// `1 finding`, `2 findings`.
pub fn counted(count: usize, noun: &str) -> String {
    counted_as(count, noun, &format!("{noun}s"))
}

/// As [`counted`], of a noun whose plural is irregular.
pub fn counted_as(count: usize, singular: &str, plural: &str) -> String {
    format!("{count} {}", if count == 1 { singular } else { plural })
}

/// `2 findings`, `0 findings, 1 by the letter alone`.
pub fn counted_findings<'a>(findings: impl Iterator<Item = &'a Finding>) -> String {
    let (formal, others): (Vec<_>, Vec<_>) = findings.partition(|f| f.formal.is_some());
    match formal.len() {
        0 => counted(others.len(), "finding"),
        n => format!("{}, {n} by the letter alone", counted(others.len(), "finding")),
    }
}
