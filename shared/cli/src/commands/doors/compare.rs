//! Each version's small problem by both doors: the same bits, and as many barriers, copies, products and atomics?

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use lab_device::emulator::write_atomically;
use lab_device::nvrtc::Nvrtc;
use lab_harness::{Tensors, Version, tensor};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Arguments, Of};
use crate::commands::compile::versions::{by_file, launched};
use crate::failure::Failure;
use crate::table::list;
use crate::{Common, named};

/// What is counted alike by both doors. Loads and stores are not: a compiler may drop, widen or repeat them.
const COUNTED: [&str; 6] =
    ["global atomic", "bulk load", "bulk store", "shared atomic", "barrier", "tensor core"];

/// What a version did by both doors.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Row {
    version: String,
    shape: String,
    dtype: String,
    /// Elements of all outputs, and those whose bits differ.
    elements: usize,
    other_bits: usize,
    /// The largest difference, as a share of its output's largest element.
    distance: f64,
    /// By operation: requests as C++ and as PTX.
    counts: BTreeMap<String, [u64; 2]>,
    /// It is wrong on purpose, and both doors find it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    found_by_both: bool,
    /// What was found by one door alone, or why it did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

impl Row {
    fn has_same_counts(&self) -> bool {
        self.counts.values().all(|[own, other]| own == other)
    }

    fn is_same(&self) -> bool {
        self.refused.is_none() && self.other_bits == 0 && self.has_same_counts()
    }

    fn bits(&self) -> String {
        match (&self.refused, self.other_bits) {
            _ if self.found_by_both => "found by both".into(),
            (Some(reason), _) => reason.lines().next().unwrap_or_default().to_owned(),
            (None, 0) => "the same".into(),
            (None, n) => format!("{n} of {} differ, by {:.1e}", self.elements, self.distance),
        }
    }

    fn other_counts(&self) -> String {
        let differ = self.counts.iter().filter(|(_, [own, other])| own != other);
        let all: Vec<String> =
            differ.map(|(what, [own, other])| format!("{what}: {own}, {other}")).collect();
        if all.is_empty() { "the same".into() } else { all.join("; ") }
    }
}

pub(super) fn run(
    common: &Common,
    nvrtc: &Nvrtc,
    root: &Path,
    arguments: &Arguments,
) -> Result<(), Failure> {
    let versions: Vec<&'static dyn Version> = match &arguments.stages[..] {
        [] => crate::STAGES.iter().flat_map(|stage| stage.versions).copied().collect(),
        some => some.iter().map(|name| named(name)).collect::<Result<Vec<_>, _>>()?.concat(),
    };
    let mut rows = Vec::new();
    for version in versions {
        let row = compare(nvrtc, root, version, &arguments.arch)?;
        note!("{}: {}; counts: {}", row.version, row.bits(), row.other_counts());
        rows.push(row);
        if let Some(path) = &arguments.record {
            write_record(path, &rows)?;
        }
    }
    let differ = rows.iter().filter(|row| !row.is_same()).count();
    if common.json {
        say!("{}", json!({ "differ": differ, "rows": rows }));
    } else {
        let mut shown = list(&["version", "shape", "type", "bits", "counts"]);
        for row in &rows {
            let [version, shape, dtype] = [&row.version, &row.shape, &row.dtype].map(Clone::clone);
            shown.add_row([version, shape, dtype, row.bits(), row.other_counts()]);
        }
        say!("{shown}");
        say!("{} of {} the same by both doors", rows.len() - differ, rows.len());
    }
    match rows.iter().filter(|row| row.refused.is_some() || !row.has_same_counts()).count() {
        0 => Ok(()),
        n => Err(Failure::Wrong(format!("{n} versions are refused or counted otherwise as PTX"))),
    }
}

/// Puts the rows in place of those of the same versions.
fn write_record(path: &Path, rows: &[Row]) -> Result<(), Failure> {
    let refuse = |e| Failure::file(path, e);
    let mut all: BTreeMap<String, Value> = match std::fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).map_err(|e| {
            Failure::Usage(format!("{}: expected rows by version: {e}", path.display()))
        })?,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
        Err(e) => return Err(refuse(e)),
    };
    all.extend(rows.iter().map(|row| (row.version.clone(), json!(row))));
    let lines: Vec<String> =
        all.iter().map(|(name, row)| format!("{}: {row}", json!(name))).collect();
    write_atomically(path, format!("{{\n{}\n}}\n", lines.join(",\n")).as_bytes()).map_err(refuse)
}

fn compare(
    nvrtc: &Nvrtc,
    root: &Path,
    version: &'static dyn Version,
    arch: &str,
) -> Result<Row, Failure> {
    let info = version.info();
    let name = info.full_name();
    let mut row = Row {
        shape: info.small().to_string(),
        dtype: info.dtypes.first().map(ToString::to_string).unwrap_or_default(),
        version: name.clone(),
        elements: 0,
        other_bits: 0,
        distance: 0.0,
        counts: BTreeMap::new(),
        found_by_both: false,
        refused: None,
    };
    let here = tempfile::tempdir().map_err(|e| Failure::Unavailable(e.to_string()))?;
    let kernels = launched(&name, None, None, true)?;
    for own in by_file(&kernels).into_values() {
        let names: Vec<&'static str> = own.iter().map(|kernel| kernel.name).collect();
        let of = Of { source: own[0].source, names: &names, arch };
        if let Err(reason) = of.write_object(nvrtc, root, here.path()) {
            row.refused = Some(reason);
            return Ok(row);
        }
    }
    let own = profile(&row, None, here.path())?;
    let other = profile(&row, Some(here.path()), here.path())?;
    let (own, other) = match (own, other) {
        (Ok(own), Ok(other)) => (own, other),
        (Err(_), Err(_)) => {
            row.found_by_both = true;
            return Ok(row);
        }
        (Err(said), Ok(_)) => {
            row.refused = Some(format!("as C++ alone: {said}"));
            return Ok(row);
        }
        (Ok(_), Err(said)) => {
            row.refused = Some(format!("as PTX alone: {said}"));
            return Ok(row);
        }
    };
    for what in COUNTED {
        let counts = [&own, &other].map(|(counts, _)| counts.get(what).copied().unwrap_or(0));
        if counts != [0, 0] {
            row.counts.insert(what.to_owned(), counts);
        }
    }
    for (own, other) in own.1.values().zip(other.1.values()) {
        let size = own.dtype.size();
        row.elements += own.bytes.len() / size;
        row.other_bits +=
            own.bytes.chunks(size).zip(other.bytes.chunks(size)).filter(|(a, b)| a != b).count();
        let (own, other) = (own.values(), other.values());
        let largest = own.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        let apart = own.iter().zip(&other).fold(0.0, |most: f64, (a, b)| most.max((a - b).abs()));
        if apart > 0.0 {
            row.distance = row.distance.max(apart / largest);
        }
    }
    Ok(row)
}

type Profiled = Result<(BTreeMap<String, u64>, Tensors), String>;

/// Requests by operation, and the outputs; or what was said in their place.
fn profile(row: &Row, objects: Option<&Path>, here: &Path) -> Result<Profiled, Failure> {
    let unavailable = |e: &dyn std::fmt::Display| Failure::Unavailable(e.to_string());
    let outputs = here.join("outputs.safetensors");
    let mut lab = Command::new(std::env::current_exe().map_err(|e| unavailable(&e))?);
    lab.args(["--device", "emulator", "--json", "profile", &row.version, "--shape", &row.shape]);
    lab.args(["--dtype", &row.dtype]).arg("--output").arg(&outputs);
    match objects {
        Some(directory) => lab.env(lab_device::OBJECTS_VARIABLE, directory),
        None => lab.env_remove(lab_device::OBJECTS_VARIABLE),
    };
    let done = lab.output().map_err(|e| unavailable(&e))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&[done.stderr, done.stdout].concat()).trim().to_owned();
        return Ok(Err(said));
    }
    let told: Value = serde_json::from_slice(&done.stdout).map_err(|e| unavailable(&e))?;
    let totals = told["totals"].as_array().into_iter().flatten();
    let counts = totals.filter_map(|total| {
        Some((total["operation"].as_str()?.to_owned(), total["requests"].as_u64()?))
    });
    Ok(Ok((counts.collect(), tensor::read(&outputs)?)))
}
