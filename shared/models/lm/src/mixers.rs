//! Which mixer each block has.

use std::fmt;
use std::str::FromStr;

use lab_harness::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What mixes positions in a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mixer {
    /// xLSTM's matrix memory.
    Vlstm,
    /// Softmax attention with rotary positions.
    Attention,
    /// The LSTM, of as many units as the vLSTM has values.
    Lstm,
    /// xLSTM's scalar memory, likewise.
    Slstm,
}

const ALL: [(&str, Mixer); 4] = [
    ("vlstm", Mixer::Vlstm),
    ("attention", Mixer::Attention),
    ("lstm", Mixer::Lstm),
    ("slstm", Mixer::Slstm),
];

impl Mixer {
    fn name(self) -> &'static str {
        ALL.iter().find(|(_, mixer)| *mixer == self).expect("one of all").0
    }

    /// Of a block, what its parameters of the norm before the mixer and of the mixer are called.
    pub(crate) fn names(self) -> [&'static str; 2] {
        match self {
            Self::Vlstm => ["norm_mlstm", "mlstm_layer"],
            Self::Attention => ["norm_attention", "attention_layer"],
            Self::Lstm => ["norm_lstm", "lstm_layer"],
            Self::Slstm => ["norm_slstm", "slstm_layer"],
        }
    }
}

/// Runs that a pattern may have, and blocks of a run.
const MOST_RUNS: usize = 8;
const MOST_BLOCKS: u16 = 1024;

/// The mixers of the blocks, from the first: runs of one mixer each, again and again until there are no more blocks. As text:
/// `vlstm`, or `7 vlstm : 1 attention`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mixers {
    /// Those from `used` on are as the first.
    runs: [(u16, Mixer); MOST_RUNS],
    used: usize,
}

impl Default for Mixers {
    /// The vLSTM in each block.
    fn default() -> Self {
        Self::only(Mixer::Vlstm)
    }
}

impl Mixers {
    /// One in each block.
    pub fn only(mixer: Mixer) -> Self {
        Self { runs: [(1, mixer); MOST_RUNS], used: 1 }
    }

    /// Of a block, from 0.
    pub fn of_block(&self, block: usize) -> Mixer {
        let runs = &self.runs[..self.used];
        let period: usize = runs.iter().map(|(count, _)| usize::from(*count)).sum();
        let mut left = block % period;
        let holds = |(count, _): &&(u16, Mixer)| {
            let count = usize::from(*count);
            let is_here = left < count;
            left = left.saturating_sub(count);
            is_here
        };
        runs.iter().find(holds).expect("a block of the period").1
    }

    /// Whether a pattern has this one.
    pub fn has(&self, mixer: Mixer) -> bool {
        self.runs[..self.used].iter().any(|(_, own)| *own == mixer)
    }

    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Mixers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.used == 1 {
            return f.write_str(self.runs[0].1.name());
        }
        for (n, (count, mixer)) in self.runs[..self.used].iter().enumerate() {
            write!(f, "{}{count} {}", if n > 0 { " : " } else { "" }, mixer.name())?;
        }
        Ok(())
    }
}

impl FromStr for Mixers {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let refuse = || {
            let names = ALL.map(|(name, _)| name).join(", ");
            let expected = format!(
                "one of {names}, or at most {MOST_RUNS} runs of them, of 1 to {MOST_BLOCKS} blocks each, as in '7 vlstm : 1 attention'"
            );
            Error::bad("mixer", expected, format!("'{text}'"))
        };
        let mut runs: Vec<(u16, Mixer)> = Vec::new();
        for run in text.split(':') {
            let words: Vec<&str> = run.split_whitespace().collect();
            let (count, name) = match words[..] {
                [name] => (1, name),
                [count, name] => (count.parse().map_err(|_| refuse())?, name),
                _ => return Err(refuse()),
            };
            let mixer = ALL.iter().find(|(own, _)| *own == name).ok_or_else(refuse)?.1;
            match runs.last_mut().filter(|(_, last)| *last == mixer) {
                Some((so_far, _)) => *so_far = so_far.checked_add(count).ok_or_else(refuse)?,
                None => runs.push((count, mixer)),
            }
        }
        let counts_fit = runs.iter().all(|(count, _)| (1..=MOST_BLOCKS).contains(count));
        if runs.len() > MOST_RUNS || !counts_fit {
            return Err(refuse());
        }
        let mut all = Self::only(runs[0].1);
        if runs.len() > 1 {
            all.runs = [runs[0]; MOST_RUNS];
            all.runs[..runs.len()].copy_from_slice(&runs);
            all.used = runs.len();
        }
        Ok(all)
    }
}

impl Serialize for Mixers {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Mixers {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_read_written_and_repeated() {
        let of = |text: &str| text.parse::<Mixers>().unwrap();
        for (text, written) in [
            ("vlstm", "vlstm"),
            ("3 attention", "attention"),
            ("attention:vlstm", "1 attention : 1 vlstm"),
            ("  7 vlstm:1 attention ", "7 vlstm : 1 attention"),
            ("vlstm : 2 vlstm : attention", "3 vlstm : 1 attention"),
        ] {
            assert_eq!(of(text).to_string(), written);
            assert_eq!(of(written), of(text));
            assert_eq!(serde_json::to_value(of(text)).unwrap(), written);
        }
        assert!(of("vlstm").is_default() && !of("attention").is_default());
        let mixed = of("2 vlstm : 1 attention");
        let places: Vec<usize> =
            (0..8).filter(|n| mixed.of_block(*n) == Mixer::Attention).collect();
        assert_eq!(places, [2, 5]);
        assert!(mixed.has(Mixer::Attention) && !of("vlstm").has(Mixer::Attention));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        let many = ["vlstm : attention"; 5].join(" : ");
        for text in [
            "",
            "lstm2",
            "0 vlstm",
            "-1 vlstm",
            "1025 vlstm",
            "65535 vlstm : 2 vlstm",
            "vlstm 2",
            "vlstm :",
            "1 2 vlstm",
            &many,
        ] {
            let said = text.parse::<Mixers>().unwrap_err().to_string();
            assert!(
                said.starts_with(
                    "mixer: expected one of vlstm, attention, lstm, slstm, or at most 8 runs"
                ),
                "{said}"
            );
            assert!(said.ends_with(&format!("got '{text}'")), "{said}");
        }
    }
}
