//! What NVIDIA's tools said of the corpus on a GPU: the records that `compare.py` writes.

use serde::Deserialize;

use crate::Kind;

macro_rules! records {
    ($($(#[$doc:meta])* $name:ident by $tool:literal { $($(#[$of:meta])* $field:ident: $t:ty,)* })*) => { $(
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// When it was measured, in UTC.
            pub date: String,
            /// The commit that the lab was built from.
            pub commit: Option<String>,
            /// The GPU's name.
            pub gpu: String,
            /// The driver's version.
            pub driver: String,
            /// The CUDA toolkit's version.
            pub cuda: String,
            /// The tool's version.
            pub tool: String,
            $($(#[$of])* pub $field: $t,)*
        }

        impl $name {
            /// Device, driver, versions, date and commit in one line.
            pub fn origin(&self) -> String {
                let commit = self.commit.as_deref().map_or_else(
                    || "no commit named".into(),
                    |c| format!("commit `{}`", c.get(..12).unwrap_or(c)),
                );
                format!(
                    "{}, driver {}, CUDA {}, {} {}, {}, {commit}",
                    self.gpu, self.driver, self.cuda, $tool, self.tool, self.date
                )
            }
        }
    )* };
}

records! {
    /// `sanitizers.json`: each case under the tools of compute-sanitizer.
    Sanitizers by "compute-sanitizer" {
        /// In the order of [`crate::cases()`].
        cases: Vec<Sanitized>,
        /// What each tool says of all right kernels together.
        alarms: Tools<Alarms>,
    }
    /// `counters.json`: the kernels of known traffic under Nsight Compute; `bulk_counters.json`: those that
    /// copy in bulk or multiply by wgmma.
    Counters by "Nsight Compute" {
        /// One for each kernel and operation.
        counted: Vec<Counted>,
    }
}

/// The tools, in the order of [`Tools::all`].
pub const TOOLS: [&str; 4] = ["memcheck", "initcheck", "racecheck", "synccheck"];

/// One thing for each tool of compute-sanitizer.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs)] // the tools' names
pub struct Tools<T> {
    pub memcheck: T,
    pub initcheck: T,
    pub racecheck: T,
    pub synccheck: T,
}

impl<T> Tools<T> {
    /// One after the other.
    pub fn all(&self) -> [&T; 4] {
        [&self.memcheck, &self.initcheck, &self.racecheck, &self.synccheck]
    }
}

/// A case, what the emulator said of it, and what the tools did.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sanitized {
    /// The case's name.
    pub name: String,
    /// The file it is in.
    pub file: String,
    /// The lines of its bug.
    pub lines: Vec<usize>,
    /// The kind of its bug; `None` where it is right.
    pub bug: Option<Kind>,
    /// What the emulator said: a [`crate::Judgement`] as `Debug` writes it.
    pub judgement: String,
    /// [`crate::Judgement::right`].
    pub right: bool,
    /// How it fares on the GPU without a tool; only of bugs.
    #[serde(default)]
    pub plain: Option<Plain>,
    /// What each tool said; only of bugs.
    #[serde(default)]
    pub tools: Option<Tools<Said>>,
    /// The commit of the run that added it, where it is not the record's.
    #[serde(default)]
    pub commit: Option<String>,
}

impl Sanitized {
    /// Whether the emulator named a planted line, by whichever check.
    pub fn emulator_named_the_line(&self) -> bool {
        self.bug.is_some() && self.judgement.starts_with("Found")
    }
}

/// How a kernel with a bug fares on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Plain {
    /// As if there was no bug: only its results may be wrong.
    Ends,
    /// The driver reports an error.
    Fails,
    /// It had not ended when its time was up.
    Hangs,
}

/// What a tool said of a bug.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Said {
    /// How near it came.
    pub said: Nearness,
    /// The lines of the case's file that it named.
    pub lines: Vec<usize>,
    /// How many errors it counted; `None` where it came to no summary. Warnings are not among them.
    pub errors: Option<u64>,
    /// Whether it ended before its time was up.
    pub ended: bool,
}

/// How near a tool came to a bug. The nearer, the less.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Nearness {
    /// It named a planted line.
    Line,
    /// It named a kernel or another line.
    Elsewhere,
    /// It counted an error, and named no kernel.
    Error,
    /// It said nothing.
    Nothing,
}

/// What a tool said of the right kernels.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alarms {
    /// Those that it named.
    pub kernels: Vec<String>,
    /// How many errors it counted, of kernels or of the API.
    pub errors: Option<u64>,
    /// Whether it ended, and as it should.
    pub ended: bool,
}

/// One operation of a kernel, counted by the emulator and measured.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counted {
    /// The kernel's name.
    pub kernel: String,
    /// Such as `global load`.
    pub operation: String,
    /// Requests that the emulator counted.
    pub requests: u64,
    /// Sectors or wavefronts that the emulator counted.
    pub cost: u64,
    /// The least that would do.
    pub ideal: u64,
    /// Names of the metrics.
    pub nsight: Pair<String>,
    /// Their values; `None` where there was none.
    pub measured: Pair<Option<f64>>,
}

/// Something of requests and of what they cost.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair<T> {
    /// Of requests.
    pub requests: T,
    /// Of sectors or wavefronts.
    pub cost: T,
}
