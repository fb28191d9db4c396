//! The page of the benchmark history: of each family the newest record beside its peers, its times
//! from version to version, and all records there are.

use std::fmt::Write as _;

use lab_harness::Dims;
use lab_harness::record::{Measurement, Of, Run};

use super::lists::{cases_order, fastest, list, own, playground, short};
use super::peers::{Origin, Peer};
use crate::failure::Failure;
use crate::plot::versions::{Line, versions};
use crate::{STAGES, commands::history, plot};

/// The page and its plots, by file name; nothing where nothing was measured.
pub(super) fn pages(
    runs: &[Run],
    peers: &[Peer],
    origins: &[Origin],
) -> Result<Vec<(String, String)>, Failure> {
    let mut all = Vec::new();
    let mut text = String::new();
    let mut done: Vec<&str> = Vec::new();
    for stage in STAGES {
        let families = history::families(stage.name);
        if let [family, _, ..] = families[..]
            && peers.iter().all(|p| !families.contains(&&*p.family))
        {
            text += &playground(runs, stage.name, &families, family);
            done.extend(&families);
        }
        for family in families {
            if done.contains(&family) {
                continue;
            }
            done.push(family);
            let records: Vec<&Run> = runs.iter().filter(|r| has(r, family)).collect();
            let Some(newest) = records.last() else { continue };
            let family = Family::new(family, newest, peers);
            text += &family.heading();
            if let Some(svg) = family.plot()? {
                let file = format!("history-{}.svg", family.name);
                writeln!(
                    text,
                    "<figure class=\"plot\"><img src=\"generated/{file}\" alt=\"{}: time over the versions\"></figure>\n",
                    family.name
                )
                .expect("writing to a string");
                all.push((file, svg));
            }
            text += &family.table(origins);
            text += &list(&records, family.name);
        }
    }
    if !text.is_empty() {
        all.push(("history.md".into(), text));
    }
    Ok(all)
}

pub(super) fn has(run: &Run, family: &str) -> bool {
    run.results.iter().any(|m| m.family == family)
}

/// One family's newest record.
struct Family<'a> {
    name: &'a str,
    run: &'a Run,
    peers: Vec<&'a Peer>,
    /// Each problem and type once, in the record's order.
    cases: Vec<(&'a str, &'a str, Dims)>,
}

/// Somebody else's times.
struct Other {
    name: String,
    launched: f64,
    replayed: Option<f64>,
    error: Option<f64>,
}

impl Other {
    /// Like with like: TF32 is not held against f32. Ten times the error is no rounding any more.
    fn is_beside(&self, version: &Measurement) -> bool {
        let errors = self.error.zip(version.relative_error);
        errors.is_none_or(|(theirs, ours)| ours <= 10.0 * theirs.max(f64::from(f32::EPSILON)))
    }
}

/// Two times beside each other.
struct Pair<'a> {
    graph: bool,
    version: &'a Measurement,
    us: f64,
    peer: String,
    peer_us: f64,
}

impl<'a> Family<'a> {
    fn new(name: &'a str, run: &'a Run, peers: &'a [Peer]) -> Self {
        let mut cases: Vec<(&str, &str, Dims)> = Vec::new();
        for m in own(run, name) {
            let known = cases.iter().any(|c| (c.0, c.1) == (&m.shape, &m.dtype));
            if let Some(dims) = Dims::parse(&m.shape).ok().filter(|_| !known) {
                cases.push((&m.shape, &m.dtype, dims));
            }
        }
        cases.sort_by_key(|c| cases_order(c.1));
        Self { name, run, peers: peers.iter().filter(|p| p.family == name).collect(), cases }
    }

    fn of(&self, shape: &str, dtype: &str) -> impl Iterator<Item = &'a Measurement> {
        own(self.run, self.name).filter(move |m| m.shape == shape && m.dtype == dtype)
    }

    /// Peers of a problem: libraries of the same run, and those of other runs.
    fn others(&self, shape: &str, dtype: &str, dims: &Dims) -> Vec<Other> {
        let library = self.run.results.iter().filter(|m| {
            (&*m.family, &*m.shape, &*m.dtype, m.of) == (self.name, shape, dtype, Of::Library)
        });
        let same_run = library.map(|m| Other {
            name: m.version.clone(),
            launched: m.median_us,
            replayed: m.replay_us,
            error: m.relative_error,
        });
        let elsewhere = self.peers.iter().filter(|p| p.dtype == dtype).filter_map(|p| {
            let runs = p.runs_of(dims)?;
            Some(Other {
                name: p.name.clone(),
                launched: runs * p.median_us,
                replayed: p.replay_us.map(|us| runs * us),
                error: None,
            })
        });
        same_run.chain(elsewhere).collect()
    }

    /// The fastest of each side, launched and replayed.
    fn pairs(&self, (shape, dtype, dims): &(&str, &str, Dims)) -> Vec<Pair<'a>> {
        let others = self.others(shape, dtype, dims);
        let pair = |graph: bool| {
            let theirs = |o: &Other| if graph { o.replayed } else { Some(o.launched) };
            let ours = |m: &Measurement| if graph { m.replay_us } else { Some(m.median_us) };
            let timed = others.iter().filter_map(|o| Some((theirs(o)?, o)));
            let (peer_us, peer) = timed.min_by(|a, b| a.0.total_cmp(&b.0))?;
            let timed = self.of(shape, dtype).filter(|m| peer.is_beside(m));
            let timed = timed.filter_map(|m| Some((ours(m)?, m)));
            let (us, version) = timed.min_by(|a, b| a.0.total_cmp(&b.0))?;
            Some(Pair { graph, version, us, peer: peer.name.clone(), peer_us })
        };
        [false, true].into_iter().filter_map(pair).collect()
    }

    fn heading(&self) -> String {
        let stages = STAGES.iter().map(|s| s.name);
        let chapters: Vec<String> = stages
            .filter(|s| history::families(s).contains(&self.name))
            .map(|s| format!("[{s}]({s}.md)"))
            .collect();
        let plural = if chapters.len() == 1 { "The chapter" } else { "The chapters" };
        format!("## {}\n\n{plural}: {}.\n\n", self.name, chapters.join(", "))
    }

    /// Ours beside theirs; where there is nobody, the share of the roofline.
    fn table(&self, origins: &[Origin]) -> String {
        let pairs: Vec<_> = self.cases.iter().map(|c| (c, self.pairs(c))).collect();
        let three = plot::three_digits;
        let roofline = |m: &Measurement| m.roofline_percent.map_or(String::new(), three);
        let all: Vec<&Dims> = self.cases.iter().map(|c| &c.2).collect();
        let mut text = format!("| {} | type |", common(&all));
        let mut row = |cells: String| writeln!(text, "{cells}").expect("writing to a string");
        if pairs.iter().all(|p| p.1.is_empty()) {
            row(" fastest version, µs | % of the roofline |\n|---|---|--:|--:|".into());
            for (shape, dtype, dims) in &self.cases {
                let Some(m) = fastest(self.of(shape, dtype)) else { continue };
                let (version, us) = (short(&m.version), three(m.median_us));
                let problem = label(dims, &all).replace(' ', "\u{a0}");
                row(format!("| {problem} | {dtype} | `{version}` {us} | {} |", roofline(m)));
            }
            return text + "\n";
        }
        let graphs = pairs.iter().any(|p| p.1.iter().any(|p| p.graph));
        let (how, line) = if graphs { (" run |", "---|") } else { ("", "") };
        row(format!(
            "{how} fastest version, µs | fastest peer, µs | ours / theirs | % of the roofline |\n\
             |---|---|{line}--:|--:|--:|--:|"
        ));
        for ((_, dtype, dims), of) in &pairs {
            for pair in of {
                let how = match (graphs, pair.graph) {
                    (false, _) => "",
                    (true, false) => " launched |",
                    (true, true) => " graph |",
                };
                let ratio = pair.us / pair.peer_us;
                let bold = if ratio < 1.0 { "**" } else { "" };
                let share = if pair.graph { String::new() } else { roofline(pair.version) };
                row(format!(
                    "| {} | {dtype} |{how} `{}` {} | {} {} | {bold}{ratio:.2}{bold} | {share} |",
                    label(dims, &all).replace(' ', "\u{a0}"),
                    short(&pair.version.version),
                    three(pair.us),
                    pair.peer,
                    three(pair.peer_us),
                ));
            }
        }
        text + "\n" + &self.whence(origins) + "\n\n"
    }

    /// Where the peers' times are from.
    fn whence(&self, origins: &[Origin]) -> String {
        let mut said: Vec<String> = Vec::new();
        if self.run.results.iter().any(|m| m.family == self.name && m.of == Of::Library) {
            said.push(format!(
                "{} was measured in the same run. Beside it stands the fastest version that is not off by \
                 more than ten times as much: none that computes f32 as TF32, which the picture has too.",
                self.run.device.libraries.join(", ")
            ));
        }
        for origin in origins.iter().filter(|o| o.families.contains(&self.name)) {
            said.push(format!(
                "The peers were measured **in another run**, on an {} ({}; `benches/peers/{}`).",
                origin.gpu,
                origin.versions.join(", "),
                origin.file
            ));
            if let Some(error) = origin.error {
                said.push(format!(
                    "Their f32 is TF32 on the tensor cores: h is off by up to {error:.1e}, relative to its \
                     largest element."
                ));
            }
        }
        let steps =
            |c: &&(&str, &str, Dims)| self.peers.iter().any(|p| p.runs_of(&c.2) > Some(1.0));
        if self.cases.iter().any(|c| steps(&c)) {
            said.push("A run is N steps; theirs is N times the time of one.".into());
        }
        said.join(" ")
    }

    /// Times in f32, or in the first type there is, from version to version.
    fn plot(&self) -> Result<Option<String>, Failure> {
        let mut names: Vec<&str> = Vec::new();
        for m in own(self.run, self.name) {
            if !names.contains(&&*m.version) {
                names.push(&m.version);
            }
        }
        let Some((_, dtype, _)) = self.cases.first() else { return Ok(None) };
        if names.len() < 2 {
            return Ok(None);
        }
        let cases: Vec<_> = self.cases.iter().filter(|c| c.1 == *dtype).collect();
        let shapes: Vec<&Dims> = cases.iter().map(|c| &c.2).collect();
        let lines: Vec<Line> = cases
            .iter()
            .map(|(shape, dtype, dims)| {
                let time = |name: &&str| {
                    let found = self.of(shape, dtype).find(|m| m.version == **name);
                    found.map(|m| m.median_us)
                };
                let others = self.others(shape, dtype, dims);
                let least =
                    others.iter().map(|o| o.replayed.map_or(o.launched, |us| us.min(o.launched)));
                Line {
                    label: label(dims, &shapes),
                    times: names.iter().map(time).collect(),
                    other: least.min_by(f64::total_cmp),
                }
            })
            .collect();
        let title = format!("{}, {dtype}, {}: µs", self.name, self.run.device.gpu);
        let names: Vec<String> = names.into_iter().map(|n| short(n).to_owned()).collect();
        Ok(Some(versions(&title, &names, "fastest peer", &lines)?))
    }
}

/// A problem among others: what differs.
fn label(dims: &Dims, all: &[&Dims]) -> String {
    let differs = |name: &str| all.iter().any(|d| d.find(name) != dims.find(name));
    let mut told: Vec<(&str, usize)> = dims.iter().filter(|d| differs(d.0)).collect();
    if told.is_empty() {
        told = dims.iter().collect();
    }
    if told.len() > 1 && told.iter().all(|d| d.1 == told[0].1) {
        let names: Vec<&str> = told.iter().map(|d| d.0).collect();
        return format!("{} = {}", names.join(" = "), told[0].1);
    }
    let told: Vec<String> = told.iter().map(|(name, size)| format!("{name}={size}")).collect();
    told.join(",")
}

/// What all problems share.
fn common(all: &[&Dims]) -> String {
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
pub(super) mod tests {
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
        let family = Family::new("matmul", &run, &[]);
        let text = family.table(&[]);
        let row = "| K\u{a0}=\u{a0}M\u{a0}=\u{a0}8 | f32 | launched | `v6` 20.0 | cublas 10.0 | 2.00 | 50.0 |";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("cuBLAS 1 was measured in the same run."), "{text}");
        assert!(family.plot().unwrap().is_some());
    }

    #[test]
    fn a_peer_of_one_step_is_taken_as_often_as_there_are_steps() {
        let run = run(
            "2026-01-31T12:00:00Z",
            vec![line("mlp_fused:v2", "version", "B=1,N=16", 80.0, 1e-6)],
        );
        let peers = [Peer {
            family: "mlp".into(),
            name: "torch".into(),
            dims: Dims::parse("B=1,N=1").unwrap(),
            dtype: "f32".into(),
            median_us: 10.0,
            replay_us: None,
        }];
        let text = Family::new("mlp", &run, &peers).table(&[]);
        assert!(text.contains("| `v2` 80.0 | torch 160 | **0.50** | 50.0 |"), "{text}");
        assert!(text.contains("theirs is N times"), "{text}");
    }
}
