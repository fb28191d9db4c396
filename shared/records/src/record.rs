//! The files of `benches/history/`: one a run of `lab bench --record`.

use std::collections::BTreeMap;
use std::path::Path;

use lab_harness::timing::Times;
use lab_harness::{Error, Heads, Products};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The version of the format. Records of the first are read as well: they have no peaks, so that
/// their rooflines are the copy's alone, and tell no clock.
pub const FORMAT: u32 = 2;

/// One benchmark run on one GPU.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Version of this format.
    pub format: u32,
    /// The commit that was measured, in full; its tree was clean.
    pub commit: String,
    /// UTC, as 2026-01-31T12:00:00Z.
    pub date: String,
    /// The machine.
    pub device: Machine,
    /// Whether versions and libraries ran in turns, not one after the other ([`lab_harness::timing::time_in_turns`]).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_turns: bool,
    /// Whether the libraries that scripts measure from Python took part in the turns; in older records they came after them.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub peers_in_turns: bool,
    /// What was typed behind `lab bench`, but where it is written and what is printed; none in older records.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// What was measured.
    pub results: Vec<Measurement>,
}

/// The GPU and what drove it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// As the driver names it.
    pub gpu: String,
    /// The driver, with the CUDA version it speaks.
    pub driver: String,
    /// The compiler, as `13.0`.
    pub nvrtc: String,
    /// The host's processor, on whose threads the lines `cpu` ran.
    pub cpu: String,
    /// How many threads those had.
    pub cpu_threads: usize,
    /// The GPU's largest clock, in MHz.
    pub clock_mhz: u32,
    /// The memory's clock, in MHz.
    pub memory_clock_mhz: u32,
    /// Bytes read plus bytes written a second by a large device-to-device copy in this run, in
    /// GB/s: the ceiling for kernels that memory bounds.
    pub copy_gbps: f64,
    /// What the arithmetic units can do at the largest clock, by the type of the inputs, in
    /// TFLOP/s: of halves the tensor cores, which `tf32` is for f32. Empty where it is not known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub peak_tflops: BTreeMap<String, f64>,
    /// Other libraries that were measured, with their versions: `cuBLAS 13.0.2`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub libraries: Vec<String>,
}

/// What a line of a record is of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Of {
    /// A version of a stage, timed by device events.
    #[default]
    Version,
    /// A library on the same GPU, timed by the same events.
    Library,
    /// Code on the host's cores, timed by the host's clock.
    Host,
}

/// Heads of a problem, each judged whole: the first, the last, and some between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Judged {
    /// How many.
    pub heads: usize,
    /// How many the problem has.
    pub of: usize,
}

impl From<&Heads> for Judged {
    fn from(heads: &Heads) -> Self {
        let [heads, of] = heads.counts();
        Self { heads, of }
    }
}

/// One version on one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Measurement {
    /// Versions of one family compute the same.
    pub family: String,
    /// Stage and version, `playg:softmax`; or the library, `cublas`.
    pub version: String,
    /// Which of these it is.
    #[serde(default)]
    pub of: Of,
    /// Sizes, as `R=4096,C=16384`.
    pub shape: String,
    /// The run's type.
    pub dtype: String,
    /// Half of the runs took less, in µs.
    pub median_us: f64,
    /// A tenth of the runs took less, in µs.
    pub p10_us: f64,
    /// Nine tenths of the runs took less, in µs.
    pub p90_us: f64,
    /// How many runs.
    pub runs: usize,
    /// Operations that the mathematics needs, a second, in TFLOP/s; none where it computes nothing.
    pub tflops: Option<f64>,
    /// Bytes that must cross device memory, a second, in GB/s; none where it moves nothing.
    pub gbps: Option<f64>,
    /// The least time that the GPU allows, over the median, in percent: the larger of what
    /// `copy_gbps` allows for those bytes and what `peak_tflops` allows for those operations. None
    /// of what does not run on it.
    pub roofline_percent: Option<f64>,
    /// A run in the steady state of a replayed graph, with warm caches, in µs; where the family is
    /// one of short launches ([`lab_harness::Version::replayed`]).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replay_us: Option<f64>,
    /// The largest relative error of its outputs against f64, on this problem; none where there is
    /// no output, or where a library's script cannot tell.
    pub relative_error: Option<f64>,
    /// The largest share that an element's error takes of what is allowed there: at most 1; none in older records,
    /// of what has no output, and of a library's script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub element_share: Option<f64>,
    /// On which part of the problem its outputs were judged; none where that is the whole, and in older records.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub judged: Option<Judged>,
    /// Registers a thread; of several kernels, the most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registers: Option<u32>,
    /// Local memory a thread, in bytes: what is spilled. Of several kernels, the most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub local_bytes: Option<u32>,
    /// What the operands of its products are rounded to, where the type has more digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub products: Option<Products>,
    /// The most device memory that a run takes beyond its inputs, in bytes: what was asked of the allocator, which older records
    /// compute by the plan; of a library, where it says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_bytes: Option<u64>,
    /// Of a library: another function than its family's, measured for scale.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub computes: Option<String>,
}

impl Measurement {
    /// A line that tells its times and nothing else yet.
    pub fn timed(
        family: &str,
        version: String,
        of: Of,
        shape: &str,
        dtype: &str,
        times: Times,
    ) -> Self {
        let Times { median_us, p10_us, p90_us, runs } = times;
        Self {
            family: family.into(),
            version,
            of,
            shape: shape.into(),
            dtype: dtype.into(),
            median_us,
            p10_us,
            p90_us,
            runs,
            tflops: None,
            gbps: None,
            roofline_percent: None,
            replay_us: None,
            relative_error: None,
            element_share: None,
            judged: None,
            registers: None,
            local_bytes: None,
            products: None,
            peak_bytes: None,
            computes: None,
        }
    }

    /// The time of the fastest library on the same problem that this one [is beside](Self::is_beside),
    /// of those that round alike if there are any, over this one, in percent; `all` is of one run. None where no such
    /// library was measured, of
    /// libraries, and of the host, whose clock is another.
    pub fn library_percent(&self, all: &[Self]) -> Option<f64> {
        let same =
            |m: &&Self| (&m.family, &m.shape, &m.dtype) == (&self.family, &self.shape, &self.dtype);
        let libraries = || all.iter().filter(same).filter(|m| m.is_peer() && self.is_beside(m));
        // Those that round as it does, if there are any.
        let like = libraries().any(|m| m.products == self.products);
        let libraries = libraries().filter(|m| !like || m.products == self.products);
        let fastest = libraries.map(|m| m.median_us).min_by(f64::total_cmp);
        let fastest = fastest.filter(|_| self.of == Of::Version)?;
        Some(100.0 * fastest / self.median_us)
    }

    /// A library that computes what its family does.
    pub fn is_peer(&self) -> bool {
        self.of == Of::Library && self.computes.is_none()
    }

    /// Whether its time may stand beside the other's, like with like: what computes f32 as TF32 is not
    /// held against f32, but f32 may be against TF32. Records before [`Products`] tell by their errors: ten
    /// times as much is no rounding any more.
    pub fn is_beside(&self, other: &Self) -> bool {
        let errors = self.relative_error.zip(other.relative_error);
        let near = |(own, theirs): (f64, f64)| own <= 10.0 * theirs.max(f64::from(f32::EPSILON));
        self.products <= other.products && (other.products.is_some() || errors.is_none_or(near))
    }
}

/// Refuses what is not as 2026-01-31T12:00:00Z: it is a part of a file's name.
pub(crate) fn check_date(date: &str) -> Result<(), String> {
    const LIKE: &str = "0000-00-00T00:00:00Z";
    let plain = |c: char| if c.is_ascii_digit() { '0' } else { c };
    if date.chars().map(plain).eq(LIKE.chars()) {
        Ok(())
    } else {
        Err(format!("date: expected one as 2026-01-31T12:00:00Z, got '{date}'"))
    }
}

/// Refuses a part of a file's name that is too long for one.
pub(crate) fn check_length(what: &str, text: &str, most: usize) -> Result<(), String> {
    match text.chars().count() {
        length if length <= most => Ok(()),
        length => Err(format!("{what}: expected at most {most} characters, got {length}")),
    }
}

/// A name for files: `NVIDIA H200` is `nvidia-h200`.
pub(crate) fn slug(text: &str) -> String {
    let kept = text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' });
    kept.collect::<String>().to_lowercase()
}

/// Every record of a directory, oldest first.
///
/// # Errors
/// It cannot be read, or one of its `.json` files but `schema.json` is no record.
pub fn read_all(directory: &Path) -> Result<Vec<Run>, Error> {
    let failed = |e: std::io::Error| Error::File {
        path: directory.display().to_string(),
        message: e.to_string(),
    };
    let mut paths: Vec<_> = std::fs::read_dir(directory)
        .map_err(failed)?
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "json") && !p.ends_with("schema.json"))
        .collect();
    paths.sort();
    paths.iter().map(|p| Run::read(p)).collect()
}

/// The format as a JSON schema.
pub fn schema() -> String {
    let schema = schemars::schema_for!(Run);
    serde_json::to_string_pretty(&schema).expect("a schema is JSON") + "\n"
}

impl Run {
    /// Reads a record and checks what its types do not say.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let failed = |message: String| Error::File { path: path.display().to_string(), message };
        let text = lab_device::emulator::read_text(path).map_err(|e| failed(e.to_string()))?;
        let mut run: Self = serde_json::from_str(&text).map_err(|e| failed(e.to_string()))?;
        run.check().map_err(failed)?;
        if run.format == 1 {
            // It told the host's lines by their name.
            run.results.iter_mut().filter(|m| m.version == "cpu").for_each(|m| m.of = Of::Host);
        }
        run.rate_peers();
        Ok(run)
    }

    /// The share of the roofline of libraries that round: some records rated them by the units of their
    /// problem's type, not by those that they use.
    fn rate_peers(&mut self) {
        let device = &self.device;
        for m in self.results.iter_mut().filter(|m| m.is_peer()) {
            let peak = m.products.and_then(|p| device.peak_tflops.get(p.peak_of()));
            let (Some(peak), Some(tflops), Some(gbps)) = (peak, m.tflops, m.gbps) else { continue };
            let share = (tflops / peak).max(gbps / device.copy_gbps);
            m.roofline_percent = Some(100.0 * share);
        }
    }

    fn check(&self) -> Result<(), String> {
        if !(1..=FORMAT).contains(&self.format) {
            return Err(format!("format: expected 1 to {FORMAT}, got {}", self.format));
        }
        if self.commit.len() != 40 || !self.commit.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(format!("commit: expected 40 hexadecimal digits, got '{}'", self.commit));
        }
        check_date(&self.date)?;
        check_length("gpu", &self.device.gpu, 100)?;
        for m in &self.results {
            let ordered = 0.0 < m.p10_us && m.p10_us <= m.median_us && m.median_us <= m.p90_us;
            if !ordered || m.runs == 0 || !m.relative_error.unwrap_or(0.0).is_finite() {
                return Err(format!("{} {}: times or error make no sense", m.version, m.shape));
            }
        }
        Ok(())
    }

    /// Writes it into `directory` under date, GPU and commit, whole or not at all, beside what is there: two runs may end
    /// within a second. Returns the file's name.
    pub fn write(&self, directory: &Path) -> Result<String, Error> {
        let date = self.date.replace([':', '-'], "");
        let commit = &self.commit[..12.min(self.commit.len())];
        let stem = format!("{date}-{}-{commit}", slug(&self.device.gpu));
        let mut name = format!("{stem}.json");
        for n in 2.. {
            if !directory.join(&name).exists() {
                break;
            }
            name = format!("{stem}-{n}.json");
        }
        let path = directory.join(&name);
        let failed = |message: String| Error::File { path: path.display().to_string(), message };
        self.check().map_err(failed)?;
        let text = crate::layout::text(self);
        std::fs::create_dir_all(directory).map_err(|e| failed(e.to_string()))?;
        lab_device::emulator::write_atomically(&path, text.as_bytes())
            .map_err(|e| failed(e.to_string()))?;
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Run {
        Run {
            format: FORMAT,
            commit: "0123456789abcdef0123456789abcdef01234567".into(),
            date: "2026-01-31T12:00:00Z".into(),
            device: Machine {
                gpu: "Example GPU".into(),
                driver: "1.2.3 (CUDA 13.0)".into(),
                nvrtc: "13.0".into(),
                cpu: "Example CPU".into(),
                cpu_threads: 2,
                clock_mhz: 1000,
                memory_clock_mhz: 2000,
                copy_gbps: 4000.0,
                peak_tflops: [("f32".to_owned(), 60.0)].into(),
                libraries: vec!["cuBLAS 1.2.3".into()],
            },
            in_turns: false,
            peers_in_turns: false,
            command: vec!["f".into(), "--runs".into(), "10".into()],
            results: vec![Measurement {
                family: "f".into(),
                version: "s:v".into(),
                of: Of::Version,
                shape: "N=1".into(),
                dtype: "f32".into(),
                median_us: 2.0,
                p10_us: 1.0,
                p90_us: 3.0,
                runs: 10,
                tflops: Some(1.0),
                gbps: Some(1.0),
                replay_us: None,
                roofline_percent: Some(50.0),
                relative_error: None,
                element_share: None,
                judged: Some(Judged { heads: 3, of: 16 }),
                registers: Some(32),
                local_bytes: None,
                products: None,
                peak_bytes: None,
                computes: None,
            }],
        }
    }

    #[test]
    fn a_record_survives_its_file_and_a_wrong_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let mut run = example();
        run.results.push(Measurement { version: "s:w".into(), ..run.results[0].clone() });
        let name = run.write(directory.path()).unwrap();
        assert_eq!(name, "20260131T120000Z-example-gpu-0123456789ab.json");
        let path = directory.path().join(name);
        assert_eq!(Run::read(&path).unwrap(), run);
        let beside = run.write(directory.path()).unwrap();
        assert_eq!(beside, "20260131T120000Z-example-gpu-0123456789ab-2.json");

        let text = std::fs::read_to_string(&path).unwrap();
        let results = text.lines().filter(|line| line.contains("\"median_us\": "));
        assert_eq!(results.count(), 2, "a result is a line: {text}");
        for (from, to) in [
            ("\"median_us\": 2.0", "\"median_us\": 0.5"),
            ("\"commit\": \"0", "\"commit\": \"x"),
            ("\"format\": 2", "\"format\": 9"),
            ("\"of\": \"version\"", "\"of\": \"verse\""),
            ("\"gpu\"", "\"gqu\""),
            ("\"runs\": 10", "\"runs\": 0"),
            ("\"date\": \"2026", "\"date\": \"../2026"),
            ("Example GPU", &"GPU".repeat(100)),
        ] {
            assert!(text.contains(from), "{from}");
            std::fs::write(&path, text.replace(from, to)).unwrap();
            assert!(Run::read(&path).is_err(), "{to}");
        }
    }

    #[test]
    fn versions_are_a_share_of_the_library_on_the_same_problem() {
        let version = example().results[0].clone();
        let library = Measurement {
            version: "library".into(),
            of: Of::Library,
            median_us: 1.5,
            ..version.clone()
        };
        let host = Measurement { of: Of::Host, ..version.clone() };
        let elsewhere = Measurement { shape: "N=2".into(), ..version.clone() };
        let faster = Measurement { median_us: 1.0, ..library.clone() };
        let another = Measurement {
            median_us: 0.5,
            computes: Some("another function".into()),
            ..library.clone()
        };
        let mut all = [version, library, host, elsewhere, faster, another];
        let shares = |all: &[Measurement]| {
            let shares = all.iter().map(|m| m.library_percent(all));
            shares.map(|s| s.map(f64::round)).collect::<Vec<_>>()
        };
        assert_eq!(shares(&all), [Some(50.0), None, None, None, None, None]);
        // The faster one is now the more exact as well: no share of it.
        (all[0].relative_error, all[4].relative_error) = (Some(1e-3), Some(1e-6));
        assert_eq!(shares(&all), [Some(75.0), None, None, None, None, None]);
        // It need not be: where products are told, they decide. One that rounds is not looked at while another does not.
        all[4].products = Some(Products::Tf32);
        assert_eq!(shares(&all), [Some(75.0), None, None, None, None, None]);
        all[1].products = Some(Products::Tf32);
        assert_eq!(shares(&all), [Some(50.0), None, None, None, None, None]);
        all[0].products = Some(Products::Halves);
        assert_eq!(shares(&all), [None; 6]);
    }

    /// As the first format had it: no peaks, no libraries, no word on what a line is of.
    #[test]
    fn a_record_of_the_first_format_still_loads() {
        let mut old = example();
        old.format = 1;
        old.results.push(Measurement { version: "cpu".into(), ..old.results[0].clone() });
        let mut value = serde_json::to_value(&old).unwrap();
        for name in ["peak_tflops", "libraries"] {
            value["device"].as_object_mut().unwrap().remove(name).unwrap();
        }
        for result in value["results"].as_array_mut().unwrap() {
            let result = result.as_object_mut().unwrap();
            result.remove("of").unwrap();
            result.remove("registers").unwrap();
        }
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("old.json");
        std::fs::write(&path, value.to_string()).unwrap();
        let read = Run::read(&path).unwrap();
        assert_eq!(read.results.iter().map(|m| m.of).collect::<Vec<_>>(), [Of::Version, Of::Host]);
        assert!(read.device.peak_tflops.is_empty() && read.results[0].registers.is_none());
    }

    #[test]
    fn a_library_that_rounds_is_rated_by_the_units_that_it_uses() {
        let mut run = example();
        run.device.peak_tflops.insert("bf16".into(), 1000.0);
        let line = Measurement { tflops: Some(100.0), ..run.results[0].clone() };
        let halves = Measurement { products: Some(Products::Halves), ..line.clone() };
        let of = |of, line: &Measurement| Measurement { of, ..line.clone() };
        run.results =
            vec![of(Of::Library, &halves), of(Of::Library, &line), of(Of::Version, &halves)];
        run.rate_peers();
        let shares: Vec<_> = run.results.iter().map(|m| m.roofline_percent.unwrap()).collect();
        assert_eq!(shares, [10.0, 50.0, 50.0]);
    }
}
