//! Which GPU the emulator stands for, where code asks.

use std::fmt;
use std::str::FromStr;

/// An architecture: what `__CUDA_ARCH__` says, and how much a launch may ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arch {
    name: &'static str,
    number: u32,
    /// KiB of shared memory that a block may have, where its kernel has asked for it.
    shared: usize,
}

/// From the table of technical specifications in CUDA's programming guide.
const ALL: [(&str, u32, usize); 10] = [
    ("sm_70", 700, 96),
    ("sm_75", 750, 64),
    ("sm_80", 800, 163),
    ("sm_86", 860, 99),
    ("sm_87", 870, 163),
    ("sm_89", 890, 99),
    ("sm_90", 900, 227),
    ("sm_90a", 900, 227),
    ("sm_100", 1000, 227),
    ("sm_120", 1200, 99),
];

impl Arch {
    /// Bytes of shared memory that a block may have.
    pub fn shared(self) -> usize {
        self.shared << 10
    }

    /// `__CUDA_ARCH__`.
    pub(crate) fn number(self) -> u32 {
        self.number
    }

    /// 90 of `sm_90`.
    pub(crate) fn capability(self) -> u32 {
        self.number / 10
    }

    /// Whether blocks meet in clusters.
    pub fn has_clusters(self) -> bool {
        self.number >= 900
    }

    /// For the compiler.
    pub(crate) fn flags(self) -> Vec<String> {
        let mut flags =
            vec![format!("-DEMU_ARCH={}", self.number), format!("-DEMU_SHARED={}", self.shared())];
        if self.name.ends_with('a') {
            flags.push("-D__CUDA_ARCH_FEAT_SM90_ALL".into());
        }
        flags
    }
}

impl Default for Arch {
    /// `sm_80`, for which most of what is published is written.
    fn default() -> Self {
        let (name, number, shared) = ALL[2];
        Self { name, number, shared }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl FromStr for Arch {
    /// What is expected.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let known = ALL.into_iter().find(|(name, ..)| *name == text);
        let arch = known.map(|(name, number, shared)| Self { name, number, shared });
        arch.ok_or_else(|| format!("one of {}", ALL.map(|(name, ..)| name).join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_shown() {
        for (name, ..) in ALL {
            assert_eq!(name.parse::<Arch>().unwrap().to_string(), name);
        }
        assert_eq!("sm_80".parse(), Ok(Arch::default()));
        assert!("sm_81".parse::<Arch>().unwrap_err().starts_with("one of sm_70, "));
    }
}
