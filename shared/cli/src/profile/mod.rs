//! What a run has asked of the memory system, joined with the source that asked.

mod banks;
mod html;
mod picture;
mod sectors;
mod text;

use lab_device::emulator::{Counts, Line, Operation, Profile};
use lab_device::{DType, KernelSource};
use lab_harness::{Comparison, Cost, Dims, Info};
use serde_json::{Value, json};

use crate::STAGES;

pub(crate) use html::page;
pub(crate) use text::{print, print_counted};

/// One profiled run.
pub(crate) struct Report<'a> {
    pub(crate) info: &'a Info,
    pub(crate) dims: Dims,
    pub(crate) dtype: DType,
    pub(crate) seed: u64,
    pub(crate) comparisons: Vec<Comparison>,
    pub(crate) cost: Cost,
    pub(crate) profile: Profile,
}

/// `file:line:column`, taken apart.
pub(crate) struct Place<'a> {
    pub(crate) file: &'a str,
    pub(crate) line: usize,
    pub(crate) column: usize,
}

impl<'a> Place<'a> {
    /// A place without line or column, as of a kernel without line tables, is line 0 of its text.
    pub(crate) fn of(text: &'a str) -> Self {
        let mut parts = text.rsplitn(3, ':');
        let column = parts.next().and_then(|p| p.parse().ok());
        let line = parts.next().and_then(|p| p.parse().ok());
        match (parts.next(), line, column) {
            (Some(file), Some(line), Some(column)) => Self { file, line, column },
            _ => Self { file: text, line: 0, column: 0 },
        }
    }
}

/// Shared memory has no arrays that a launch was given, so that offsets there start anywhere; banks
/// repeat every 128 bytes, and so does what is shown: from the line of 128 bytes of the first.
pub(crate) fn settled(mut profile: Profile) -> Profile {
    for line in profile.lines.iter_mut().filter(|l| l.operation.shared()) {
        if let Some(sample) = &mut line.sample {
            let start = sample.lanes.iter().flatten().min().copied().unwrap_or(0) / 128 * 128;
            sample.lanes.iter_mut().flatten().for_each(|lane| *lane -= start);
        }
    }
    profile
}

/// What was counted, with the texts that the places are in.
#[derive(Clone, Copy)]
pub(crate) struct Counted<'a> {
    pub(crate) profile: &'a Profile,
    /// The text of a file that a place names.
    pub(crate) source: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Counted<'a> {
    /// Sums by operation, of those that came up.
    pub(crate) fn totals(&self) -> Vec<(Operation, Counts)> {
        let all = Operation::ALL.into_iter().map(|o| (o, self.profile.total(o)));
        all.filter(|(_, c)| c.requests > 0).collect()
    }

    /// Whether no other line of the same unit wastes more, and this one wastes something.
    pub(crate) fn worst(&self, line: &Line) -> bool {
        let others =
            self.profile.lines.iter().filter(|l| unit(l.operation) == unit(line.operation));
        let most = others.map(|l| excess(&l.counts)).max().unwrap_or(0);
        excess(&line.counts) > 0 && excess(&line.counts) == most
    }

    /// The files that have counted lines, the stage's own first.
    pub(crate) fn files(&self) -> Vec<&'a str> {
        let mut files: Vec<&str> =
            self.profile.lines.iter().map(|l| Place::of(&l.place).file).collect();
        files.dedup();
        files.sort_by_key(|f| !f.starts_with("stages/"));
        files
    }

    /// By operation, as JSON.
    pub(crate) fn totals_json(&self) -> Vec<Value> {
        let totals = self.totals().into_iter().map(|(operation, counts)| {
            let mut all = figures(operation, &counts);
            all["bytes_per_request"] = json!(counts.bytes as f64 / counts.requests as f64);
            all["nsight"] =
                json!(operation.nsight().map(|(r, c)| json!({ "requests": r, "cost": c })));
            all
        });
        totals.collect()
    }

    /// By line, as JSON.
    pub(crate) fn lines_json(&self) -> Vec<Value> {
        let lines = self.profile.lines.iter().map(|line| {
            let place = Place::of(&line.place);
            let mut all = figures(line.operation, &line.counts);
            all["file"] = json!(place.file);
            all["line"] = json!(place.line);
            all["column"] = json!(place.column);
            all["source"] = json!(self.source_line(&place));
            all["worst"] = json!(self.worst(line));
            all["sample"] = json!(line.sample.as_ref().map(
                |s| json!({ "bytes": s.bytes, "lanes": s.lanes, "cost": s.cost, "ideal": s.ideal })
            ));
            all
        });
        lines.collect()
    }

    /// The line of source at a place.
    pub(crate) fn source_line(&self, place: &Place<'_>) -> Option<String> {
        let text = (self.source)(place.file)?;
        Some(text.lines().nth(place.line.checked_sub(1)?)?.trim().to_owned())
    }
}

fn figures(operation: Operation, c: &Counts) -> Value {
    json!({
        "operation": operation.name(), "unit": unit(operation), "requests": c.requests,
        "lanes": c.lanes, "bytes": c.bytes, "cost": c.cost, "ideal": c.ideal,
        "ratio": ratio(c), "degree": c.degree,
    })
}

impl Report<'_> {
    pub(crate) fn passed(&self) -> bool {
        self.comparisons.iter().all(Comparison::passed)
    }

    /// `playg:transpose C=64,R=64 f32`
    pub(crate) fn title(&self) -> String {
        format!("{} {} {}", self.info.full_name(), self.dims, self.dtype)
    }

    /// What was counted, with the stages' sources.
    pub(crate) fn counted(&self) -> Counted<'_> {
        Counted { profile: &self.profile, source: &|file| source(file).map(str::to_owned) }
    }

    /// Sums by operation, of those that came up.
    pub(crate) fn totals(&self) -> Vec<(Operation, Counts)> {
        self.counted().totals()
    }

    /// Bytes that lanes asked of device memory.
    pub(crate) fn global_bytes(&self) -> u64 {
        self.lines().filter(|l| l.operation.global()).map(|l| l.counts.bytes).sum()
    }

    /// Sectors, or wavefronts: the sum over all lines that count in the unit of this one.
    pub(crate) fn total_cost(&self, operation: Operation) -> u64 {
        self.lines().filter(|l| unit(l.operation) == unit(operation)).map(|l| l.counts.cost).sum()
    }

    fn lines(&self) -> impl Iterator<Item = &Line> {
        self.profile.lines.iter()
    }

    /// Whether no other line of the same unit wastes more, and this one wastes something.
    pub(crate) fn worst(&self, line: &Line) -> bool {
        self.counted().worst(line)
    }

    /// The files that have counted lines, the stage's own first.
    pub(crate) fn files(&self) -> Vec<&str> {
        self.counted().files()
    }

    /// The text of a file that a place names. A stage may launch kernels of another.
    pub(crate) fn source(&self, file: &str) -> Option<&'static str> {
        source(file)
    }
}

/// The text of a file of the stages.
pub(crate) fn source(file: &str) -> Option<&'static str> {
    let kernels = || STAGES.iter().flat_map(|s| s.kernels);
    let named = |k: &&&KernelSource| file == format!("stages/{}/{}", k.crate_name, k.file);
    if let Some(kernel) = kernels().find(named) {
        return Some(kernel.source);
    }
    kernels().find_map(|k| {
        let own = format!("stages/{}/kernels/", k.crate_name);
        let name = file.strip_prefix("shared/cuda/").or_else(|| file.strip_prefix(&own))?;
        k.headers.iter().find(|h| h.0 == name).map(|h| h.1)
    })
}

/// What is said of an operation that has no cost: warps that came, or what tensor cores computed.
pub(crate) fn said(operation: Operation, c: &Counts) -> String {
    match operation {
        Operation::TensorCore => {
            format!("{} instructions, {} flops", number(c.requests), number(c.flops))
        }
        _ => format!("{} warps", number(c.requests)),
    }
}

/// What a cost counts: sectors, wavefronts; nothing for barriers and tensor cores.
pub(crate) fn unit(operation: Operation) -> &'static str {
    match operation {
        o if o.global() => "sectors",
        o if o.shared() => "wavefronts",
        _ => "",
    }
}

/// Cost that a better pattern would not have.
pub(crate) fn excess(counts: &Counts) -> u64 {
    counts.cost.saturating_sub(counts.ideal)
}

/// Cost over ideal; `None` of what has no cost.
pub(crate) fn ratio(counts: &Counts) -> Option<f64> {
    (counts.ideal > 0).then(|| counts.cost as f64 / counts.ideal as f64)
}

/// `12,345`
pub(crate) fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_groups_of_three() {
        assert_eq!([0, 999, 1000, 1_234_567].map(number), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn places_come_apart() {
        let place = Place::of("stages/a/kernels/x.cu:12:5");
        assert_eq!((place.file, place.line, place.column), ("stages/a/kernels/x.cu", 12, 5));
        let unknown = Place::of("0x1234");
        assert_eq!((unknown.file, unknown.line), ("0x1234", 0));
    }
}
