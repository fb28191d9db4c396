//! A problem: sizes, element type, seed, options.

use std::collections::BTreeMap;
use std::fmt;

use lab_device::DType;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use rayon::prelude::*;

use crate::{Error, Info, Tensor};

/// Sizes by the names of `lab list`: `B=2,NH=4,S=256`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dims(BTreeMap<String, usize>);

impl Dims {
    /// From pairs.
    pub fn new<const N: usize>(all: [(&str, usize); N]) -> Self {
        Self(all.into_iter().map(|(n, v)| (n.to_owned(), v)).collect())
    }

    /// From text: `R=4,C=100`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let bad = |part: &str| Error::bad("--shape", "NAME=SIZE[,NAME=SIZE…]", format!("'{part}'"));
        let mut all = BTreeMap::new();
        for part in text.split(',') {
            let (name, value) = part.split_once('=').ok_or_else(|| bad(part))?;
            let size = value.trim().parse().map_err(|_| bad(part))?;
            if all.insert(name.trim().to_owned(), size).is_some() {
                return Err(Error::bad("--shape", "each name once", name));
            }
        }
        Ok(Self(all))
    }

    /// The size of that name. Checked problems have all that their version names.
    pub fn get(&self, name: &str) -> usize {
        *self.0.get(name).unwrap_or_else(|| panic!("dimension {name} of a checked problem"))
    }

    /// Sets a size, or changes it.
    pub fn set(&mut self, name: &str, size: usize) {
        self.0.insert(name.to_owned(), size);
    }

    /// The size of that name, if it has one.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.0.get(name).copied()
    }

    /// All, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, usize)> {
        self.0.iter().map(|(n, &v)| (n.as_str(), v))
    }
}

impl fmt::Display for Dims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.iter().map(|(n, v)| format!("{n}={v}")).collect();
        f.pad(&all.join(","))
    }
}

/// Options by name: `--set a=2`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options(BTreeMap<String, String>);

impl Options {
    /// From `key=value` texts, checked against what the version knows.
    pub fn parse<S: AsRef<str>>(texts: &[S], info: &Info) -> Result<Self, Error> {
        let mut all = BTreeMap::new();
        for text in texts.iter().map(AsRef::as_ref) {
            let (key, value) = text
                .split_once('=')
                .ok_or_else(|| Error::bad("--set", "KEY=VALUE", format!("'{text}'")))?;
            let setting = info.settings.iter().find(|s| s.name == key).ok_or_else(|| {
                let known: Vec<_> = info.settings.iter().map(|s| s.name).collect();
                let known = if known.is_empty() { "no option".into() } else { known.join(", ") };
                Error::bad(format!("--set of {}", info.full_name()), known, format!("'{key}'"))
            })?;
            setting.check(value)?;
            all.insert(key.to_owned(), value.to_owned());
        }
        Ok(Self(all))
    }

    /// The number under that name, or the setting's default.
    pub fn number(&self, info: &Info, name: &str) -> f64 {
        let text = self.text(info, name);
        text.parse().unwrap_or_else(|_| panic!("setting {name} of a checked problem"))
    }

    /// The text under that name, or the setting's default: of a setting with choices, one of them.
    pub fn text<'a>(&'a self, info: &Info, name: &str) -> &'a str {
        let setting = info.settings.iter().find(|s| s.name == name);
        let given = self.0.get(name).map(String::as_str);
        given
            .or(setting.map(|s| s.default))
            .unwrap_or_else(|| panic!("setting {name} of a checked problem"))
    }
}

/// Everything that decides a run's inputs.
#[derive(Clone, Debug)]
pub struct Problem {
    /// Sizes.
    pub dims: Dims,
    /// The run's element type.
    pub dtype: DType,
    /// Seed of the random inputs.
    pub seed: u64,
    /// Options.
    pub options: Options,
}

impl Problem {
    /// With seed 0 and default options.
    pub fn new(dims: Dims, dtype: DType) -> Self {
        Self { dims, dtype, seed: 0, options: Options::default() }
    }

    /// A tensor of standard normal values, rounded to the run's type. `stream` tells the tensors
    /// of one problem apart; the same everywhere for the same seed.
    pub fn normal(&self, stream: u64, shape: &[usize]) -> Tensor {
        self.normal_around(0.0, self.dtype, stream, shape)
    }

    /// As [`normal`](Self::normal), with this mean and in this type.
    pub fn normal_around(&self, mean: f64, dtype: DType, stream: u64, shape: &[usize]) -> Tensor {
        // Each chunk draws from a stream of its own, so that all cores can draw at once.
        const CHUNK: usize = 1 << 16;
        let mut values = vec![0f64; shape.iter().product()];
        values.par_chunks_mut(CHUNK).enumerate().for_each(|(chunk, values)| {
            let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
            rng.set_stream(stream << 32 | chunk as u64);
            values.fill_with(|| {
                let value: f64 = StandardNormal.sample(&mut rng);
                mean + value
            });
        });
        Tensor::rounded(dtype, shape, &values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_parse_or_say_why_not() {
        assert_eq!(Dims::parse("R=4, C=100").unwrap(), Dims::new([("R", 4), ("C", 100)]));
        for bad in ["", "R", "R=", "R=x", "R=-1", "R=1,,C=2", "R=1,R=2", "R=99999999999999999999"] {
            let message = Dims::parse(bad).unwrap_err().to_string();
            assert!(message.starts_with("--shape: expected"), "{bad}: {message}");
        }
    }

    #[test]
    fn inputs_depend_on_seed_and_stream_only() {
        let problem = |seed| Problem { seed, ..Problem::new(Dims::default(), DType::F32) };
        assert_eq!(problem(1).normal(0, &[100]), problem(1).normal(0, &[100]));
        assert_ne!(problem(1).normal(0, &[100]), problem(2).normal(0, &[100]));
        assert_ne!(problem(1).normal(0, &[100]), problem(1).normal(1, &[100]));
        let v = problem(1).normal(0, &[10_000]).values();
        let mean = v.iter().sum::<f64>() / 1e4;
        let variance = v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e4;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }
}
