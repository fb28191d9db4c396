//! What a launch has asked of the memory system, joined with the source that asked.

use lab_emulator::{Counts, Line, Operation, Profile};
use serde_json::{Value, json};

use crate::table::table;

/// Said wherever the figures are shown.
pub const CAVEAT: &str = "A model, not a measurement: accesses counted on the CPU emulator; no caches, \
                      no times.";

/// `file:line:column`, taken apart.
pub struct Place<'a> {
    /// The file.
    pub file: &'a str,
    /// From 1.
    pub line: usize,
    /// From 1.
    pub column: usize,
}

impl<'a> Place<'a> {
    /// A place without line or column, as of a kernel without line tables, is line 0 of its text.
    pub fn of(text: &'a str) -> Self {
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
pub fn settled(mut profile: Profile) -> Profile {
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
pub struct Counted<'a> {
    /// The counts.
    pub profile: &'a Profile,
    /// The text of a file that a place names.
    pub source: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Counted<'a> {
    /// Sums by operation, of those that came up.
    pub fn totals(&self) -> Vec<(Operation, Counts)> {
        let all = Operation::ALL.into_iter().map(|o| (o, self.profile.total(o)));
        all.filter(|(_, c)| c.requests > 0).collect()
    }

    /// Whether no other line of the same unit wastes more, and this one wastes something.
    pub fn worst(&self, line: &Line) -> bool {
        let others =
            self.profile.lines.iter().filter(|l| unit(l.operation) == unit(line.operation));
        let most = others.map(|l| excess(&l.counts)).max().unwrap_or(0);
        excess(&line.counts) > 0 && excess(&line.counts) == most
    }

    /// The files that have counted lines, the stage's own first.
    pub fn files(&self) -> Vec<&'a str> {
        let mut files: Vec<&str> =
            self.profile.lines.iter().map(|l| Place::of(&l.place).file).collect();
        files.dedup();
        files.sort_by_key(|f| !f.starts_with("stages/"));
        files
    }

    /// By operation, as JSON.
    pub fn totals_json(&self) -> Vec<Value> {
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
    pub fn lines_json(&self) -> Vec<Value> {
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
    pub fn source_line(&self, place: &Place<'_>) -> Option<String> {
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

/// What is said of an operation that has no cost: warps that came, or what tensor cores computed.
pub fn said(operation: Operation, c: &Counts) -> String {
    match operation {
        Operation::TensorCore => {
            format!("{} instructions, {} flops", number(c.requests), number(c.flops))
        }
        _ => format!("{} warps", number(c.requests)),
    }
}

/// What a cost counts: sectors, wavefronts; nothing for barriers and tensor cores.
pub fn unit(operation: Operation) -> &'static str {
    match operation {
        o if o.global() => "sectors",
        o if o.shared() => "wavefronts",
        _ => "",
    }
}

/// Cost that a better pattern would not have.
pub fn excess(counts: &Counts) -> u64 {
    counts.cost.saturating_sub(counts.ideal)
}

/// Cost over ideal; `None` of what has no cost.
pub fn ratio(counts: &Counts) -> Option<f64> {
    (counts.ideal > 0).then(|| counts.cost as f64 / counts.ideal as f64)
}

/// `12,345`
pub fn number(n: u64) -> String {
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

/// Sums by operation, then every line that was counted.
pub fn print_counted(counted: &Counted<'_>) {
    print_totals(counted);
    print_lines(counted);
}

/// Sums by operation.
pub fn print_totals(counted: &Counted<'_>) {
    let mut rows = table(&[
        "operation",
        ">requests",
        ">cost",
        "",
        ">ideal",
        ">ratio",
        ">worst conflict",
        ">bytes",
        ">bytes / request",
    ]);
    for (operation, c) in counted.totals() {
        let mut cells = vec![operation.name().to_owned(), number(c.requests)];
        cells.extend(costs(operation, &c));
        cells.extend(match unit(operation) {
            "" => [String::new(), String::new()],
            _ => [number(c.bytes), format!("{:.1}", c.bytes as f64 / c.requests as f64)],
        });
        rows.add_row(cells);
    }
    say!("{rows}");
}

/// Every line of source that was counted.
pub fn print_lines(counted: &Counted<'_>) {
    say!(
        "cost: 32-byte sectors in global memory, wavefronts in shared memory; ideal: the fewest \
         for as many different bytes."
    );

    say!("\nBy line; ◀ wastes the most:");
    for file in counted.files() {
        print_file(counted, file);
    }
    let named = counted.totals().into_iter().filter_map(|(o, _)| Some((o, o.nsight()?)));
    say!("\nThe same in Nsight Compute, of a run on a GPU:");
    for (operation, (requests, cost)) in named {
        say!("  {:<14}requests    {requests}", operation.name());
        say!("  {:<14}{:<12}{cost}", "", unit(operation));
    }
    if counted.profile.left_out > 0 {
        say!(
            "{} accesses were left out: too many between two barriers; a smaller --shape counts \
             them all.",
            number(counted.profile.left_out)
        );
    }
}

/// Cost, unit, ideal, ratio, worst conflict.
fn costs(operation: Operation, c: &Counts) -> [String; 5] {
    if unit(operation).is_empty() {
        return [const { String::new() }; 5];
    }
    [
        number(c.cost),
        unit(operation).to_owned(),
        number(c.ideal),
        ratio(c).map_or(String::new(), |r| format!("{r:.2}")),
        match c.degree {
            0 => String::new(),
            1 => "none".to_owned(),
            n => format!("{n}-way"),
        },
    ]
}

/// Each line of source that was counted, and under it what it does.
fn print_file(counted: &Counted<'_>, file: &str) {
    const SHOWN: usize = 108;
    say!("\n{file}");
    let mut last = None;
    for line in &counted.profile.lines {
        let place = Place::of(&line.place);
        if place.file != file {
            continue;
        }
        if last != Some(place.line) {
            let mut source = counted.source_line(&place).unwrap_or_default();
            if source.chars().count() > SHOWN {
                source = source.chars().take(SHOWN - 1).chain(['…']).collect();
            }
            say!("{:>5} │ {source}", place.line);
        }
        last = Some(place.line);
        let (c, requests) = (&line.counts, number(line.counts.requests));
        let head = format!("      │   {:<14}", line.operation.name());
        let [cost, unit, ideal, ratio, degree] = costs(line.operation, c);
        if unit.is_empty() {
            say!("{head}  {}", said(line.operation, c));
            continue;
        }
        let conflict = if c.degree > 1 { format!("  {degree} conflict") } else { String::new() };
        let worst = if counted.worst(line) { " ◀" } else { "" };
        say!(
            "{head}{requests:>9} requests {cost:>11} {unit:<10} for {ideal:>9} {ratio:>7}×{conflict}{worst}"
        );
    }
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
