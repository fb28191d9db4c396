//! Tile parameters: what `lab tune` varies.

use std::collections::BTreeSet;
use std::fmt;

/// Values for the template parameters of a kernel that a user could choose otherwise, by name, in
/// the order of the template: `BM=128 BN=128 BK=8`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tiling(Vec<(&'static str, usize)>);

impl Tiling {
    /// From names and as many values.
    pub fn new<const N: usize>(names: &[&'static str; N], values: [usize; N]) -> Self {
        Self(names.iter().copied().zip(values).collect())
    }

    /// The value of that name.
    ///
    /// # Panics
    /// There is none: a mistake of the stage, whose own names these are.
    pub fn get(&self, name: &str) -> usize {
        let found = self.0.iter().find(|p| p.0 == name);
        found.unwrap_or_else(|| panic!("a tiling without {name}: {self}")).1
    }

    /// All, in the order of the template.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, usize)> {
        self.0.iter().copied()
    }

    /// As template arguments: `128, 128, 8`.
    pub fn arguments(&self) -> String {
        let values: Vec<_> = self.0.iter().map(|p| p.1.to_string()).collect();
        values.join(", ")
    }
}

impl fmt::Display for Tiling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = self.0.iter().map(|(name, value)| format!("{name}={value}")).collect();
        f.pad(&all.join(" "))
    }
}

/// Every combination of these values of which `keep` holds, each once, behind `in_use`.
pub fn candidates<const N: usize>(
    names: &[&'static str; N],
    in_use: [usize; N],
    values: [&[usize]; N],
    keep: impl Fn(&Tiling) -> bool,
) -> Vec<Tiling> {
    let mut all: Vec<[usize; N]> = vec![in_use];
    let mut partial = vec![in_use];
    for (place, values) in values.iter().enumerate() {
        let with = |base: &[usize; N]| {
            let base = *base;
            values.iter().map(move |&value| {
                let mut next = base;
                next[place] = value;
                next
            })
        };
        partial = partial.iter().flat_map(with).collect();
    }
    all.extend(partial);
    let mut seen = BTreeSet::new();
    all.into_iter()
        .filter(|values| seen.insert(*values))
        .map(|values| Tiling::new(names, values))
        .filter(|tiling| *tiling == Tiling::new(names, in_use) || keep(tiling))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_come_once_behind_the_one_in_use() {
        let names = ["BM", "BN"];
        let all = candidates(&names, [64, 64], [&[32, 64], &[64, 128]], |t| {
            t.get("BM") * t.get("BN") < 64 * 128
        });
        let texts: Vec<_> = all.iter().map(Tiling::to_string).collect();
        assert_eq!(texts, ["BM=64 BN=64", "BM=32 BN=64", "BM=32 BN=128"]);
        assert_eq!(all[2].arguments(), "32, 128");
    }

    #[test]
    fn the_one_in_use_is_kept_whatever_the_rule() {
        let all = candidates(&["BM"], [7], [&[8]], |t| t.get("BM") == 8);
        assert_eq!(all.len(), 2);
    }
}
