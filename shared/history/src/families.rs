//! The page of the benchmark history: of each family its problems beside its peers, its times from
//! version to version, and all records there are.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use lab_harness::Dims;
use lab_harness::Products;
use lab_plots::roofline::{Points, roofline};
use lab_plots::versions::{Line, versions};
use lab_records::record::{Measurement, Of, Run};
use lab_registry::STAGES;

use crate::counted::computes_what_is_counted;
use crate::lists::{cases_order, fastest, list, measures, own, playground, short};
use crate::sizes::Over;
use crate::{Error, layers, lists, sizes};

/// The page and its plots, by file name; nothing where nothing was measured.
pub(crate) fn pages(runs: &[Run]) -> Result<Vec<(String, String)>, Error> {
    let mut pages = Vec::new();
    let (mut text, mut summary) = (String::new(), String::from(SUMMARY));
    let mut done: Vec<&str> = Vec::new();
    for stage in STAGES {
        let families = lists::families(stage.name);
        if let [family, _, _, ..] = families[..]
            && (stage.name == layers::STAGE
                || !families.iter().any(|f| runs.iter().any(|r| has_peers(r, f))))
        {
            text += &playground(runs, stage.name, &families, family);
            done.extend(&families);
        }
        for family in families {
            if done.contains(&family) {
                continue;
            }
            done.push(family);
            let records: Vec<&Run> = runs.iter().filter(|r| measures(r, family)).collect();
            let Some(newest) = records.last() else { continue };
            // The newest of those that have the most problems and versions: a later one may be of a single problem.
            let beside = records.iter().filter(|r| has_peers(r, family));
            let widest = beside.max_by_key(|r| own(r, family).count()).unwrap_or(newest);
            let all =
                Family::of_all(family, &records).unwrap_or_else(|| Family::new(family, newest));
            let family = Family::new(family, widest);
            summary += &all.summary();
            text += &family.heading();
            text += "<details><summary>Times, roofline, and all records</summary>\n\n";
            let plots = [
                ("history", "time over the versions", family.plot()?),
                ("roofline", "roofline", family.roofline()?),
                ("lengths", "time over the length", sizes::plot(runs, family.name, Over::Length)?),
                ("rows", "a step over the rows", sizes::plot(runs, family.name, Over::Rows)?),
            ];
            for (file, what, svg) in plots {
                let Some(svg) = svg else { continue };
                let (name, file) = (family.name, format!("{file}-{}.svg", family.name));
                writeln!(
                    text,
                    "<figure class=\"plot\"><img src=\"generated/{file}\" alt=\"{name}: {what}\"></figure>\n",
                )
                .expect("writing to a string");
                pages.push((file, svg));
            }
            text += &all.table();
            text += &list(&records, family.name);
            text += "</details>\n\n";
        }
    }
    if !text.is_empty() {
        pages.push(("history.md".into(), text));
        pages.push(("history-summary.md".into(), summary));
    }
    Ok(pages)
}

fn has_peers(run: &Run, family: &str) -> bool {
    run.results.iter().any(|m| m.family == family && m.is_peer())
}

/// Of the table of all families that stand beside a library.
const SUMMARY: &str = "| family | comparisons | faster here | smallest ours / theirs | largest ours / theirs |\n\
                       |---|--:|--:|---|---|\n";

/// Versions whose names have room below a plot.
const ROOM: usize = 16;

/// One family's problems, each with a record of it.
struct Family<'a> {
    name: &'a str,
    /// In the order of their types and of the record.
    cases: Vec<Case<'a>>,
}

/// A problem in a type, and the record that its times are from.
struct Case<'a> {
    shape: &'a str,
    dtype: &'a str,
    dims: Dims,
    run: &'a Run,
    /// Whether a newer record has a version that is faster by more than a tenth; of a loss, one that is as fast as the library.
    overtaken: bool,
}

/// Two times beside each other.
struct Pair<'a> {
    graph: bool,
    version: &'a Measurement,
    peer: &'a Measurement,
}

impl Pair<'_> {
    /// In µs: of the version and of the peer.
    fn times(&self) -> (f64, f64) {
        let time = |m: &Measurement| time(m, self.graph).expect("it was chosen by it");
        (time(self.version), time(self.peer))
    }
}

fn time(m: &Measurement, graph: bool) -> Option<f64> {
    if graph { m.replay_us } else { Some(m.median_us) }
}

/// Launched, or in a graph where that is faster.
fn least_us(m: &Measurement) -> f64 {
    m.replay_us.map_or(m.median_us, |us| us.min(m.median_us))
}

/// The one that takes the least.
fn fastest_of<'a>(
    all: impl Iterator<Item = &'a Measurement>,
    graph: bool,
) -> Option<&'a Measurement> {
    let timed = all.filter_map(|m| Some((time(m, graph)?, m)));
    timed.min_by(|a, b| a.0.total_cmp(&b.0)).map(|t| t.1)
}

impl<'a> Case<'a> {
    fn is(&self, other: &Case<'_>) -> bool {
        (self.shape, self.dtype) == (other.shape, other.dtype)
    }

    fn all(&self, family: &str) -> impl Iterator<Item = &'a Measurement> {
        let (shape, dtype) = (self.shape, self.dtype);
        let of_problem = move |m: &&Measurement| m.shape == shape && m.dtype == dtype;
        self.run.results.iter().filter(of_problem).filter(move |m| m.family == family)
    }

    fn versions(&self, family: &str) -> impl Iterator<Item = &'a Measurement> {
        self.all(family).filter(|m| m.of == Of::Version)
    }

    fn peers(&self, family: &str) -> impl Iterator<Item = &'a Measurement> {
        self.all(family).filter(|m| m.is_peer())
    }

    fn is_overtaken(&self, family: &str, records: &[&Run]) -> bool {
        let least = |all: &mut dyn Iterator<Item = &Measurement>| {
            all.map(least_us).min_by(f64::total_cmp).unwrap_or(f64::INFINITY)
        };
        let [own, peer] = [least(&mut self.versions(family)), least(&mut self.peers(family))];
        let newer = records.iter().filter(|run| run.date > self.run.date);
        // A loss stays one until a version is as fast as the library was.
        let enough = if own > peer { peer.min(0.9 * own) } else { 0.9 * own };
        newer.into_iter().any(|run| {
            let there = Case { dims: self.dims.clone(), run, ..*self };
            least(&mut there.versions(family)) < enough
        })
    }

    /// The fastest of each side, launched and replayed. Where the fastest peer gives up digits, the
    /// fastest of those that do not as well.
    fn pairs(&self, family: &str) -> Vec<Pair<'a>> {
        let peers: Vec<&Measurement> = self.peers(family).collect();
        let exact = peers.iter().map(|m| m.products).min();
        let pair = |graph: bool, as_exact: bool| {
            let held = |m: &&Measurement| !as_exact || Some(m.products) == exact;
            let peer = fastest_of(peers.iter().copied().filter(held), graph)?;
            let version = fastest_of(self.versions(family).filter(|m| m.is_beside(peer)), graph)?;
            Some(Pair { graph, version, peer })
        };
        let mut all: Vec<Pair> = Vec::new();
        for (graph, as_exact) in [(false, true), (true, true), (false, false), (true, false)] {
            let Some(new) = pair(graph, as_exact) else { continue };
            let known = |p: &Pair| p.graph == graph && std::ptr::eq(p.peer, new.peer);
            if !all.iter().any(known) {
                all.push(new);
            }
        }
        all
    }
}

impl<'a> Family<'a> {
    /// The problems of one record.
    fn new(name: &'a str, run: &'a Run) -> Self {
        let mut cases: Vec<Case> = Vec::new();
        for m in own(run, name) {
            let Ok(dims) = Dims::parse(&m.shape) else { continue };
            let case = Case { shape: &m.shape, dtype: &m.dtype, dims, run, overtaken: false };
            if !cases.iter().any(|c| c.is(&case)) {
                cases.push(case);
            }
        }
        cases.sort_by_key(|c| cases_order(c.dtype));
        Self { name, cases }
    }

    /// All problems that have stood beside a library: each in the newest of the records that have the version which is
    /// the fastest of all.
    fn of_all(name: &'a str, records: &[&'a Run]) -> Option<Self> {
        let all: Vec<(Case, Vec<Pair>)> = (records.iter().rev())
            .flat_map(|run| Self::new(name, run).cases)
            .map(|case| {
                let pairs = case.pairs(name);
                (case, pairs)
            })
            .filter(|(_, pairs)| !pairs.is_empty())
            .collect();
        let mut cases: Vec<Case> = Vec::new();
        for (case, _) in &all {
            let same = || all.iter().filter(|(other, _)| other.is(case));
            let pairs = same().flat_map(|(_, pairs)| pairs);
            let fastest = pairs.min_by(|a, b| a.times().0.total_cmp(&b.times().0))?.version;
            let has_it = |pair: &Pair| pair.version.version == fastest.version;
            let (newest, _) = same().find(|(_, pairs)| pairs.iter().any(has_it))?;
            if !cases.iter().any(|c| c.is(case)) {
                let overtaken = newest.is_overtaken(name, records);
                cases.push(Case { dims: newest.dims.clone(), overtaken, ..*newest });
            }
        }
        let types = ["f32", "f16", "bf16"];
        let order = |c: &Case| types.iter().position(|t| *t == c.dtype).unwrap_or(types.len());
        cases.sort_by_key(|c| (order(c), c.dims.iter().map(|d| d.1).collect::<Vec<_>>()));
        (!cases.is_empty()).then_some(Self { name, cases })
    }

    fn heading(&self) -> String {
        let stages = STAGES.iter().map(|s| s.name);
        let chapters: Vec<String> = stages
            .filter(|s| lists::families(s).contains(&self.name))
            .map(|s| format!("[{s}]({s}.md)"))
            .collect();
        let plural = if chapters.len() == 1 { "The chapter" } else { "The chapters" };
        format!("## {}\n\n{plural}: {}.\n\n", self.name, chapters.join(", "))
    }

    /// A row: in how many comparisons the version here is faster, and the smallest and the largest ratio. A problem that
    /// was replayed in a graph counts by that; it has two where the fastest library gives up digits. One that a newer record has overtaken does
    /// not count.
    fn summary(&self) -> String {
        let all: Vec<&Dims> = self.cases.iter().map(|c| &c.dims).collect();
        let mut ratios: Vec<(f64, String)> = Vec::new();
        for case in self.cases.iter().filter(|case| !case.overtaken) {
            let pairs = case.pairs(self.name);
            let graph = pairs.iter().any(|p| p.graph);
            ratios.extend(pairs.iter().filter(|p| p.graph == graph).map(|pair| {
                let (us, peer_us) = pair.times();
                let (problem, peer) = (label(&case.dims, &all), &pair.peer.version);
                (us / peer_us, format!("{:.2}: {problem}, {}, {peer}", us / peer_us, case.dtype))
            }));
        }
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (Some((_, least)), Some((_, most))) = (ratios.first(), ratios.last()) else {
            return String::new();
        };
        let (count, faster) = (ratios.len(), ratios.iter().filter(|r| r.0 < 1.0).count());
        format!("| [{0}](records.md#{0}) | {count} | {faster} | {least} | {most} |\n", self.name)
    }

    /// Ours beside theirs; where there is nobody, the share of the roofline.
    fn table(&self) -> String {
        let pairs: Vec<_> = self.cases.iter().map(|c| (c, c.pairs(self.name))).collect();
        let three = lab_plots::three_digits;
        let counted = |m: &Measurement| m.roofline_percent.filter(|_| computes_what_is_counted(m));
        let roofline = |m: &Measurement| counted(m).map_or("—".into(), three);
        let all: Vec<&Dims> = self.cases.iter().map(|c| &c.dims).collect();
        let mut text = format!("| {} | type |", shared_sizes(&all));
        let mut row = |cells: String| writeln!(text, "{cells}").expect("writing to a string");
        if pairs.iter().all(|p| p.1.is_empty()) {
            row(" fastest version, µs | % of roofline |\n|---|---|--:|--:|".into());
            for case in &self.cases {
                let Some(m) = fastest(case.versions(self.name)) else { continue };
                let (version, us) = (short(&m.version), three(m.median_us));
                let (problem, dtype) = (label(&case.dims, &all), case.dtype);
                row(format!("| {problem} | {dtype} | `{version}` {us} | {} |", roofline(m)));
            }
            return text + "\nNo record of this family has libraries beside it yet.\n\n";
        }
        let graphs = pairs.iter().any(|p| p.1.iter().any(|p| p.graph));
        let (how, line) = if graphs { (" run |", "---|") } else { ("", "") };
        let one = self.runs().len() == 1;
        let (record, of_record) = if one { ("", "") } else { (" record |", "---|") };
        row(format!(
            "{how} fastest version, µs | fastest peer, µs | ours / theirs | % of roofline |{record}\n\
             |---|---|{line}--:|--:|--:|--:|{of_record}"
        ));
        for (case, of) in &pairs {
            let record = if one { String::new() } else { format!(" {} |", day(case.run)) };
            for pair in of {
                let how = match (graphs, pair.graph) {
                    (false, _) => "",
                    (true, false) => " launched |",
                    (true, true) => " graph |",
                };
                let (us, peer_us) = pair.times();
                let ratio = us / peer_us;
                let bold = if ratio < 1.0 { "**" } else { "" };
                let share = if pair.graph { String::new() } else { roofline(pair.version) };
                row(format!(
                    "| {} | {} |{how} `{}` {}{} | {} {}{} | {bold}{ratio:.2}{bold} | {share} |{record}",
                    label(&case.dims, &all),
                    case.dtype,
                    short(&pair.version.version),
                    three(us),
                    digits_given_up(pair.version),
                    pair.peer.version,
                    three(peer_us),
                    digits_given_up(pair.peer),
                ));
            }
        }
        text + "\n" + &self.describe_peers() + "\n\n" + &self.for_scale(&all)
    }

    /// Each record once, the newest first.
    fn runs(&self) -> Vec<&'a Run> {
        let mut runs: Vec<&Run> = Vec::new();
        for case in &self.cases {
            if !runs.iter().any(|run| std::ptr::eq(*run, case.run)) {
                runs.push(case.run);
            }
        }
        runs.sort_by(|a, b| b.date.cmp(&a.date));
        runs
    }

    /// What the peers are.
    fn describe_peers(&self) -> String {
        let runs = self.runs();
        let libraries: BTreeSet<&str> =
            runs.iter().flat_map(|r| &r.device.libraries).map(|l| &**l).collect();
        let libraries = libraries.into_iter().collect::<Vec<_>>().join(", ");
        let of = match runs[..] {
            [run] => format!("Of the record of {}, one run with {libraries}", day(run)),
            _ => format!(
                "Each row is of one run: of the newest record in which the fastest of all versions stood beside a library \
                 ({libraries})"
            ),
        };
        let mut all = self.cases.iter().flat_map(|c| c.versions(self.name));
        let fewer = if !all.all(computes_what_is_counted) {
            " A version that needs fewer operations than the definition has no share of its roofline (—)."
        } else {
            ""
        };
        format!(
            "{of}: each problem went to the versions, then to the libraries. \
             Beside each peer stands the fastest version that rounds its operands no more coarsely than that peer does.{fewer}"
        )
    }

    /// Other functions on the same tensors.
    fn for_scale(&self, all: &[&Dims]) -> String {
        let mut text = String::new();
        let mut functions: Vec<&str> = Vec::new();
        for case in &self.cases {
            for m in case.all(self.name) {
                let Some(function) = &m.computes else { continue };
                if !functions.contains(&&**function) {
                    functions.push(function);
                }
                let (problem, us) = (label(&case.dims, all), lab_plots::three_digits(m.median_us));
                writeln!(text, "| {problem} | {} | {} {us} |", case.dtype, m.version)
                    .expect("writing to a string");
            }
        }
        if functions.is_empty() {
            text
        } else {
            format!(
                "For scale, {} on the same tensors:\n\n| {} | type | µs |\n|---|---|--:|\n{text}\n",
                functions.join(", "),
                shared_sizes(all)
            )
        }
    }

    /// Times over the versions, in the type in which most of them are timed: in f32 where that is one. Types with a library come first.
    fn plot(&self) -> Result<Option<String>, Error> {
        let of_type = |dtype: &'a str| self.cases.iter().filter(move |c| c.dtype == dtype);
        let has_peers =
            |dtype: &'a str| of_type(dtype).any(|c| c.peers(self.name).next().is_some());
        // The last of several that are alike, which is the first type.
        let types = self.cases.iter().rev().map(|c| (c.dtype, self.names_in(c.dtype)));
        let with_room = types.filter(|(_, names)| (2..=ROOM).contains(&names.len()));
        let best = with_room.max_by_key(|(dtype, names)| (has_peers(dtype), names.len()));
        let Some((dtype, names)) = best else { return Ok(None) };
        let cases: Vec<&Case> = of_type(dtype).collect();
        let shapes: Vec<&Dims> = cases.iter().map(|c| &c.dims).collect();
        let lines: Vec<Line> = cases
            .iter()
            .map(|case| {
                let time = |name: &&str| {
                    let found = case.versions(self.name).find(|m| m.version == **name);
                    found.map(|m| m.median_us)
                };
                Line {
                    label: label(&case.dims, &shapes),
                    times: names.iter().map(time).collect(),
                    other: case.peers(self.name).map(least_us).min_by(f64::total_cmp),
                }
            })
            .collect();
        let title = format!("{}, {dtype}, {}: µs", self.name, cases[0].run.device.gpu);
        let names: Vec<String> = names.into_iter().map(|n| short(n).to_owned()).collect();
        Ok(Some(versions(&title, &names, "fastest peer", &lines)?))
    }

    /// The versions that are timed in a type, in order.
    fn names_in(&self, dtype: &str) -> Vec<&'a str> {
        let of_type = || self.cases.iter().filter(|case| case.dtype == dtype);
        let is_timed = |name: &&str| {
            of_type().any(|case| case.versions(self.name).any(|m| m.version == **name))
        };
        self.names().into_iter().filter(is_timed).collect()
    }

    /// Every version, in order.
    fn names(&self) -> Vec<&'a str> {
        let mut names: Vec<&str> = Vec::new();
        for m in self.runs().into_iter().flat_map(|run| own(run, self.name)) {
            if !names.contains(&&*m.version) {
                names.push(&m.version);
            }
        }
        names
    }

    /// Of a family of one record: what each version reaches of what the GPU can do, and the fastest peer, in f32 or in the first type
    /// there is.
    fn roofline(&self) -> Result<Option<String>, Error> {
        let Some(Case { dtype, run, .. }) = self.cases.first() else { return Ok(None) };
        let place = |m: &Measurement| {
            let (tflops, gbps) = (m.tflops.filter(|_| computes_what_is_counted(m))?, m.gbps?);
            Some((1e3 * tflops / gbps, tflops * m.median_us / least_us(m)))
        };
        let of_type = |m: &&Measurement| m.dtype == *dtype;
        let mut all: Vec<Points> = Vec::new();
        for name in self.names() {
            let own = own(run, self.name).filter(of_type).filter(|m| m.version == name);
            let points = own.filter_map(place).collect();
            all.push(Points { label: short(name).to_owned(), other: false, points });
        }
        let cases = self.cases.iter().filter(|c| c.dtype == *dtype);
        let fastest = cases
            .filter_map(|c| c.peers(self.name).min_by(|a, b| least_us(a).total_cmp(&least_us(b))));
        let points = fastest.filter_map(place).collect();
        all.push(Points { label: "fastest peer".into(), other: true, points });
        all.retain(|p| !p.points.is_empty());
        if all.is_empty() {
            return Ok(None);
        }
        let device = &run.device;
        // Beside the type's own, what any line rounds its operands to.
        let of_family = run.results.iter().filter(|m| m.family == self.name && of_type(m));
        let mut rounded: BTreeSet<_> = of_family.filter_map(|m| m.products).collect();
        // Records before products were told: whoever is above the type's own peak.
        let above = |peak: f64| all.iter().flat_map(|a| &a.points).any(|p| p.1 > peak);
        if rounded.is_empty() && device.peak_tflops.get(*dtype).is_some_and(|peak| above(*peak)) {
            rounded.insert(Products::Tf32);
        }
        let units =
            [*dtype].into_iter().chain(rounded.into_iter().map(|p| -> &str { p.peak_of() }));
        let peaks: Vec<(String, f64)> =
            units.filter_map(|u| Some((u.to_owned(), *device.peak_tflops.get(u)?))).collect();
        let title = format!("{}, {dtype}, {}: TFLOP/s", self.name, device.gpu);
        Ok(Some(roofline(&title, device.copy_gbps, &peaks, &all)?))
    }
}

/// The day of a record.
fn day(run: &Run) -> &str {
    run.date.get(..10).unwrap_or(&run.date)
}

/// What gives up digits says how many it has left.
fn digits_given_up(m: &Measurement) -> String {
    let error = m.relative_error.filter(|_| m.products.is_some());
    error.map_or(String::new(), |e| format!(" (off by {e:.0e})"))
}

/// A problem among others: what differs. Sizes that are alike in all of them are told once.
pub(crate) fn label(dims: &Dims, all: &[&Dims]) -> String {
    let differs = |name: &str| all.iter().any(|d| d.find(name) != dims.find(name));
    let alike = |a: &str, b: &str| all.iter().all(|d| d.find(a) == d.find(b));
    let mut told: Vec<(&str, usize)> = dims.iter().filter(|d| differs(d.0)).collect();
    if told.is_empty() {
        told = dims.iter().collect();
    }
    let mut groups: Vec<(Vec<&str>, usize)> = Vec::new();
    for (name, size) in told {
        match groups.iter_mut().find(|(names, _)| alike(names[0], name)) {
            Some((names, _)) => names.push(name),
            None => groups.push((vec![name], size)),
        }
    }
    if let [(names, size)] = &groups[..] {
        return format!("{} = {size}", names.join(" = ")).replace(' ', "\u{a0}");
    }
    let told: Vec<String> =
        groups.iter().map(|(names, size)| format!("{}={size}", names.join("="))).collect();
    told.join(", ")
}

/// What all problems share.
fn shared_sizes(all: &[&Dims]) -> String {
    let shared = |d: &(&str, usize)| all.iter().all(|o| o.find(d.0) == Some(d.1));
    let told = all.first().map_or(Vec::new(), |first| first.iter().filter(shared).collect());
    match told[..] {
        [] => "problem".into(),
        // Nothing differs: each row tells it whole.
        _ if told.len() == all[0].iter().count() => "problem".into(),
        _ => {
            let told: Vec<String> = told.iter().map(|(n, size)| format!("{n}={size}")).collect();
            format!("problem, {}", told.join(","))
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(in super::super) fn line(
        version: &str,
        of: &str,
        shape: &str,
        us: f64,
        error: f64,
    ) -> serde_json::Value {
        let family = if shape.contains("K=") { "matmul" } else { "mlp" };
        serde_json::json!({
            "family": family, "version": version, "of": of, "shape": shape, "dtype": "f32",
            "median_us": us, "p10_us": us, "p90_us": us, "runs": 3, "tflops": 1.0, "gbps": 1.0,
            "replay_us": us / 2.0, "roofline_percent": 50.0, "relative_error": error
        })
    }

    pub(in super::super) fn run(date: &str, results: Vec<serde_json::Value>) -> Run {
        let device = serde_json::json!({
            "gpu": "Example GPU", "driver": "1.2", "nvrtc": "13.0", "cpu": "CPU", "cpu_threads": 2,
            "clock_mhz": 1, "memory_clock_mhz": 1, "copy_gbps": 1.0, "libraries": ["cuBLAS 1"]
        });
        let run = serde_json::json!({
            "format": 2, "commit": "0123456789abcdef0123456789abcdef01234567", "date": date,
            "device": device, "results": results
        });
        serde_json::from_value(run).unwrap()
    }

    #[test]
    fn a_library_stands_beside_the_fastest_that_is_as_exact() {
        let run = run(
            "2026-01-31T12:00:00Z",
            vec![
                line("matmul:v0", "version", "K=8,M=8", 40.0, 1e-6),
                line("matmul:v6", "version", "K=8,M=8", 20.0, 1e-6),
                line("matmul:v7", "version", "K=8,M=8", 5.0, 1e-3),
                line("cublas", "library", "K=8,M=8", 10.0, 2e-6),
            ],
        );
        let family = Family::new("matmul", &run);
        let text = family.table();
        let row = "| K\u{a0}=\u{a0}M\u{a0}=\u{a0}8 | f32 | launched | `v6` 20.0 | cublas 10.0 | 2.00 | 50.0 |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("one run with cuBLAS 1: each problem went to"), "{text}");
        // One comparison is the smallest and the largest.
        let ratio = "2.00: K\u{a0}=\u{a0}M\u{a0}=\u{a0}8, f32, cublas";
        let row = format!("| [matmul](records.md#matmul) | 1 | 0 | {ratio} | {ratio} |\n");
        assert_eq!(family.summary(), row);
        assert!(family.plot().unwrap().is_some());
        assert!(family.roofline().unwrap().is_some());
    }

    #[test]
    fn each_problem_is_of_the_newest_record_that_has_the_fastest_version() {
        let record = |day: u32, shape: &str, version: &str, us: f64| {
            let peer = line("cublas", "library", shape, 10.0, 1e-6);
            let own = line(version, "version", shape, us, 1e-6);
            run(&format!("2026-01-{day}T12:00:00Z"), vec![own, peer])
        };
        let of = [
            record(11, "K=8", "matmul:v6", 4.0),
            record(12, "K=8", "matmul:v6", 5.0),
            // Later, but of a slower version alone, or of another problem, or beside nobody.
            record(13, "K=8", "matmul:v0", 40.0),
            record(14, "K=9", "matmul:v0", 50.0),
            run("2026-01-15T12:00:00Z", vec![line("matmul:v6", "version", "K=8", 1.0, 1e-6)]),
        ];
        let all: Vec<&Run> = of.iter().collect();
        let text = Family::of_all("matmul", &all).unwrap().table();
        for row in [
            "| K\u{a0}=\u{a0}8 | f32 | launched | `v6` 5.00 | cublas 10.0 | **0.50** | 50.0 | 2026-01-12 |",
            "| K\u{a0}=\u{a0}9 | f32 | launched | `v0` 50.0 | cublas 10.0 | 5.00 | 50.0 | 2026-01-14 |",
        ] {
            assert!(text.contains(row), "{row}: {text}");
        }
        assert!(Family::of_all("matmul", &all[4..]).is_none());
    }

    #[test]
    fn a_problem_is_told_by_what_differs_and_sizes_that_are_alike_once() {
        let shapes = ["B=4,D=64,E=64,H=8,S=1024", "B=1,D=128,E=128,H=8,S=8192"];
        let parsed = shapes.map(|s| Dims::parse(s).unwrap());
        let all: Vec<&Dims> = parsed.iter().collect();
        assert_eq!(label(all[0], &all), "B=4, D=E=64, S=1024");
        assert_eq!(label(all[1], &all), "B=1, D=E=128, S=8192");
        assert_eq!(shared_sizes(&all), "problem, H=8");
        // One alone is told whole.
        assert_eq!(label(all[0], &all[..1]), "B=4, D=E=64, H=8, S=1024");
        assert_eq!(shared_sizes(&all[..1]), "problem");
        let squares = ["K=8,M=8", "K=9,M=9"].map(|s| Dims::parse(s).unwrap());
        let all: Vec<&Dims> = squares.iter().collect();
        assert_eq!(label(all[0], &all), "K\u{a0}=\u{a0}M\u{a0}=\u{a0}8");
    }

    #[test]
    fn a_peer_that_gives_up_digits_has_a_row_of_its_own() {
        let mut scale = line("sdpa", "library", "K=8", 1.0, 0.0);
        scale["computes"] = "another function".into();
        let mut coarse = line("coarse", "library", "K=8", 10.0, 1e-3);
        coarse["products"] = "tf32".into();
        let run = run(
            "2026-01-31T12:00:00Z",
            vec![
                line("matmul:v6", "version", "K=8", 20.0, 1e-6),
                line("exact", "library", "K=8", 40.0, 2e-6),
                coarse,
                scale,
            ],
        );
        let text = Family::new("matmul", &run).table();
        assert!(text.contains("| launched | `v6` 20.0 | exact 40.0 | **0.50** | 50.0 |"), "{text}");
        let coarse = "| launched | `v6` 20.0 | coarse 10.0 (off by 1e-3) | 2.00 | 50.0 |";
        assert!(text.contains(coarse), "{text}");
        assert!(text.contains("For scale, another function on the same tensors"), "{text}");
        assert!(text.contains("| K\u{a0}=\u{a0}8 | f32 | sdpa 1.00 |"), "{text}");
    }
}
