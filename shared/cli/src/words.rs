//! Words of messages.

/// `1 finding`, `2 findings`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    counted_as(count, noun, &format!("{noun}s"))
}

/// As [`counted`], of a noun whose plural is irregular.
pub(crate) fn counted_as(count: usize, singular: &str, plural: &str) -> String {
    format!("{count} {}", if count == 1 { singular } else { plural })
}
