//! The files of `benches/tuned/`: what `lab tune --record` found on a GPU.

use std::collections::BTreeMap;
use std::path::Path;

use lab_harness::{Error, Tiling};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::{Machine, check_date, check_length};

/// The version of the format.
pub const FORMAT: u32 = 1;

/// The tilings of one version on one GPU, one type and one problem.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tuned {
    /// Version of this format.
    pub format: u32,
    /// The commit that was measured, in full; its tree was clean.
    pub commit: String,
    /// UTC, as 2026-01-31T12:00:00Z.
    pub date: String,
    /// The machine.
    pub device: Machine,
    /// Stage and version, `matmul:v5_warps`.
    pub version: String,
    /// The run's type.
    pub dtype: String,
    /// Sizes, as `K=4096,M=4096,N=4096`.
    pub shape: String,
    /// The tiling that the version uses.
    pub in_use: Trial,
    /// The fastest.
    pub best: Trial,
    /// How many were tried.
    pub tried: usize,
    /// How many of them were right and timed; the others do not compile, do not launch, or are
    /// wrong.
    pub timed: usize,
}

/// The format as a JSON schema.
pub fn schema() -> String {
    let schema = schemars::schema_for!(Tuned);
    serde_json::to_string_pretty(&schema).expect("a schema is JSON") + "\n"
}

/// A tiling, and its time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// The template parameters by name.
    pub tiling: BTreeMap<String, usize>,
    /// Half of the runs took less, in µs; none of what was not timed.
    pub median_us: Option<f64>,
}

impl Trial {
    /// A tiling and its time.
    pub fn new(tiling: &Tiling, median_us: Option<f64>) -> Self {
        let tiling = tiling.iter().map(|(name, value)| (name.to_owned(), value)).collect();
        Self { tiling, median_us }
    }
}

impl Tuned {
    /// Reads a file and checks what its types do not say.
    ///
    /// # Errors
    /// It cannot be read or is no such record.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let failed = |message: String| Error::File { path: path.display().to_string(), message };
        let text = lab_device::emulator::read_text(path).map_err(|e| failed(e.to_string()))?;
        let tuned: Self = serde_json::from_str(&text).map_err(|e| failed(e.to_string()))?;
        tuned.check().map_err(failed)?;
        Ok(tuned)
    }

    fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("format: expected {FORMAT}, got {}", self.format));
        }
        check_date(&self.date)?;
        // They are parts of the file's name.
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':');
        let names = [("version", &self.version), ("dtype", &self.dtype)];
        if let Some((what, name)) = names.into_iter().find(|n| !n.1.chars().all(plain)) {
            return Err(format!("{what}: expected letters, digits, '_' and ':', got '{name}'"));
        }
        for (what, part, most) in [
            ("version", &self.version, 80),
            ("dtype", &self.dtype, 16),
            ("gpu", &self.device.gpu, 100),
        ] {
            check_length(what, part, most)?;
        }
        let positive = |t: &Trial| t.median_us.is_none_or(|us| us > 0.0 && us.is_finite());
        if self.best.median_us.is_none() || !positive(&self.best) || !positive(&self.in_use) {
            return Err("best, in_use: expected times over zero, and one of the best".into());
        }
        if !(1..=self.tried).contains(&self.timed) {
            return Err(format!("timed: expected 1 to {}, got {}", self.tried, self.timed));
        }
        Ok(())
    }

    /// `matmul-v5_warps-f32-nvidia-h200.json`: one file a version, type and GPU.
    pub fn file_name(&self) -> String {
        let version = self.version.replace(':', "-");
        format!("{version}-{}-{}.json", self.dtype, crate::record::slug(&self.device.gpu))
    }

    /// Writes it into `directory`, whole or not at all, over what an earlier run has left; returns
    /// the file's name.
    ///
    /// # Errors
    /// It makes no sense, or cannot be written.
    pub fn write(&self, directory: &Path) -> Result<String, Error> {
        let name = self.file_name();
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

    fn example() -> Tuned {
        let tiling = |bm| Tiling::new(&["BM", "BN"], [bm, 128]);
        Tuned {
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
                peak_tflops: BTreeMap::new(),
                libraries: Vec::new(),
            },
            version: "matmul:v5_warps".into(),
            dtype: "f32".into(),
            shape: "K=1".into(),
            in_use: Trial::new(&tiling(128), Some(2.0)),
            best: Trial::new(&tiling(256), Some(1.0)),
            tried: 3,
            timed: 2,
        }
    }

    #[test]
    fn a_record_survives_its_file_and_a_wrong_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let name = example().write(directory.path()).unwrap();
        assert_eq!(name, "matmul-v5_warps-f32-example-gpu.json");
        let path = directory.path().join(name);
        assert_eq!(Tuned::read(&path).unwrap(), example());
        let text = std::fs::read_to_string(&path).unwrap();
        for (from, to) in [
            ("\"format\": 1", "\"format\": 9"),
            ("\"timed\": 2", "\"timed\": 4"),
            ("\"timed\": 2", "\"timed\": 0"),
            ("\"median_us\": 1.0", "\"median_us\": null"),
            ("\"median_us\": 2.0", "\"median_us\": -2.0"),
            ("\"tried\"", "\"tired\""),
        ] {
            assert!(text.contains(from), "{from}");
            std::fs::write(&path, text.replace(from, to)).unwrap();
            assert!(Tuned::read(&path).is_err(), "{to}");
        }
    }
}
