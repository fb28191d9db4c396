//! What is broken, and what runs against it.

use std::collections::BTreeMap;
use std::time::Duration;

use lab_device::KernelSource;
use lab_harness::Stage;
use lab_mutate::{Codes, INSTRUCTIONS, Judge, Sources};

use crate::commands::workspace;
use crate::failure::Failure;
use crate::{model, stage};

/// Whose kernels are broken, and what is to notice.
pub(crate) enum Suite {
    /// A stage's kernels and the headers that they include, by its tests.
    Stage(&'static Stage),
    /// A model's own kernels and the headers that they include, by its checks.
    Model(&'static lab_harness::suite::Suite),
    /// The headers of instructions that the corpus's kernels include, by the verdicts on these: the kernels themselves
    /// are wrong on purpose, or there to show that they are right.
    Corpus,
}

impl Suite {
    pub(super) fn named(name: &str) -> Result<Self, Failure> {
        match name {
            "corpus" => Ok(Self::Corpus),
            _ => match model(name) {
                Some(model) => Ok(Self::Model(model)),
                None => Ok(Self::Stage(stage(name)?)),
            },
        }
    }

    pub(super) fn is_corpus(&self) -> bool {
        matches!(self, Self::Corpus)
    }

    /// Whether a file is one that is broken.
    pub(super) fn breaks(&self, file: &str) -> bool {
        !self.is_corpus() || file.starts_with(INSTRUCTIONS)
    }

    /// The sources, which must be those that this binary was built from.
    pub(crate) fn sources(&self) -> Result<Sources, Failure> {
        let workspace = workspace()?;
        match self {
            Self::Stage(stage) => {
                Ok(Sources::read(&workspace, &format!("stages/{}", stage.name), stage.kernels)?)
            }
            Self::Model(model) => Ok(Sources::read(&workspace, model.home, model.kernels)?),
            Self::Corpus => {
                let all: Vec<&'static KernelSource> = lab_corpus::kernels::KERNELS.to_vec();
                Ok(Sources::read(&workspace, "shared/corpus", &all)?)
            }
        }
    }

    /// Whether what runs can be told by kernel files.
    pub(super) fn tells_files(&self) -> bool {
        match self {
            Self::Stage(stage) => stage.versions.iter().all(|v| !v.sources().is_empty()),
            // It has no versions: all of its checks run.
            Self::Model(_) => false,
            Self::Corpus => true,
        }
    }

    /// The limits of [`clean`] for these kernel files, without its runs.
    pub(crate) fn trusted<'a>(
        &self,
        files: impl Iterator<Item = &'a str>,
        seconds: u64,
    ) -> BTreeMap<String, Duration> {
        if !self.tells_files() {
            return BTreeMap::new();
        }
        let limit = Duration::from_secs(seconds);
        files.map(|file| (file.to_owned(), limit)).collect()
    }

    /// This tool, told to run the suite up to its first failure.
    pub(crate) fn judge(&self, seconds: u64, large: bool, jobs: usize) -> Result<Judge, Failure> {
        let tool = crate::own::command().map_err(|e| Failure::Usage(format!("lab: {e}")))?;
        let before = tool[1..].iter().map(|word| word.to_string_lossy().into_owned());
        let mut arguments = match self {
            Self::Stage(stage) => {
                vec!["selftest", stage.name, "--device", "emulator", "--fail-fast"]
            }
            Self::Model(model) => {
                vec!["selftest", model.name, "--device", "emulator", "--fail-fast"]
            }
            Self::Corpus => vec!["dev", "corpus", "--fail-fast"],
        };
        if !large && !self.is_corpus() {
            arguments.push("--small");
        }
        let threads = (super::jobs(None) / jobs).max(1).to_string();
        let environment = [
            ("LAB_EMULATOR_MODE", "checked"),
            ("LAB_EMULATOR_THREADS", &threads),
            ("RAYON_NUM_THREADS", &threads),
        ];
        Ok(Judge {
            program: tool[0].clone().into(),
            arguments: before.chain(arguments.into_iter().map(str::to_owned)).collect(),
            environment: environment.map(|(k, v)| (k.to_owned(), v.to_owned())).to_vec(),
            limit: Duration::from_secs(seconds),
            limits: BTreeMap::new(),
            one_by_one: self.is_corpus(),
            codes: Codes::new(),
        })
    }
}
