//! Words of messages.

use lab_emulator::Finding;
use strsim::osa_distance;

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

/// Characters of names that a message lists.
const LISTED: usize = 300;

/// What a name may be that is none of the known: those that it resembles, or else all, as far as there is room; `lister`
/// is the command that lists them.
pub fn known_names(known: &[&str], name: &str, lister: &str) -> String {
    let near = near(known, name);
    if !near.is_empty() {
        return format!("{}, or another that `{lister}` lists", near.join(", "));
    }
    let mut text = String::new();
    for (index, one) in known.iter().enumerate() {
        if text.len() + one.len() > LISTED {
            return format!("{text} and {} more that `{lister}` lists", known.len() - index);
        }
        let comma = if index > 0 { ", " } else { "" };
        text += &format!("{comma}{one}");
    }
    text
}

/// At most three of the known names that may be meant, the likeliest first: those that differ in a few letters, have the
/// same part behind a colon, or contain the name.
pub fn near<'a>(known: &[&'a str], name: &str) -> Vec<&'a str> {
    const MOST: usize = 3;
    let name = name.to_lowercase();
    let len = name.chars().count();
    let score = |one: &str| {
        let own = one.rsplit(':').next().unwrap_or(one);
        let edits = osa_distance(one, &name).min(osa_distance(own, &name));
        let longer = own.chars().count().abs_diff(len);
        (edits <= len / 4 && edits < len).then_some(edits).or_else(|| {
            let holds = len >= 4 && own.contains(&*name) || own.len() >= 4 && name.contains(own);
            holds.then_some(len + longer)
        })
    };
    let mut scored: Vec<(usize, &str)> =
        known.iter().filter_map(|one| Some((score(one)?, *one))).collect();
    scored.sort_by_key(|(score, _)| *score);
    scored.dedup_by_key(|(_, one)| *one);
    scored.into_iter().take(MOST).map(|(_, one)| one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_resembles_a_name_is_offered() {
        let known = ["playg", "matmul", "playg:softmax", "playg:softmax_online", "two-maxima"];
        let told = |name| known_names(&known, name, "lab list");
        assert_eq!(told("two-maxim"), "two-maxima, or another that `lab list` lists");
        assert_eq!(told("mtamul"), "matmul, or another that `lab list` lists");
        let softmax = "playg:softmax, playg:softmax_online, or another that `lab list` lists";
        assert_eq!(told("softmax"), softmax);
        assert_eq!(told("nothing"), known.join(", "));
        assert_eq!(told("x"), known.join(", "));
        let many = vec!["a-name-of-some-length"; 20];
        let told = known_names(&many, "nothing", "lab bug");
        assert!(told.ends_with("a-name-of-some-length and 7 more that `lab bug` lists"), "{told}");
    }
}
