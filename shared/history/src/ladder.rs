//! A family that is timed at several sizes: tables and a plot over the size.

use std::fmt::Write as _;

use lab_harness::Dims;
use lab_plots::Curve;
use lab_records::record::{Measurement, Of, Run};

use crate::Error;
use crate::counted::computes_what_is_counted;

/// The results of one type at all their sizes.
pub(crate) struct Ladder<'a> {
    run: &'a Run,
    dtype: &'a str,
    /// What the sizes are of: `K = M = N`; empty where they are told in full.
    axis: String,
    /// Each size, how it is told, and where on the axis it stands.
    sizes: Vec<(&'a str, String, f64)>,
    /// Versions in their order, then what is beside them.
    lines: Vec<(&'a str, Of)>,
    results: Vec<&'a Measurement>,
}

impl<'a> Ladder<'a> {
    /// Of one family's results, those in this type.
    pub(crate) fn new(run: &'a Run, dtype: &'a str, results: &[&'a Measurement]) -> Self {
        let results: Vec<_> = results.iter().copied().filter(|m| m.dtype == dtype).collect();
        let mut shapes: Vec<(&str, Dims)> = Vec::new();
        let mut lines: Vec<(&str, Of)> = Vec::new();
        for m in &results {
            let known = shapes.iter().any(|s| s.0 == m.shape);
            if let Some(dims) = Dims::parse(&m.shape).ok().filter(|_| !known) {
                shapes.push((&m.shape, dims));
            }
            if !lines.contains(&(&m.version, m.of)) {
                lines.push((&m.version, m.of));
            }
        }
        let names: Vec<&str> =
            shapes.first().map_or(Vec::new(), |s| s.1.iter().map(|d| d.0).collect());
        // Sizes of one shape alone do not tell what is varied: whatever is not 1 is.
        let varied: Vec<&str> = names
            .into_iter()
            .filter(|name| {
                let first = shapes[0].1.find(name);
                match shapes.len() {
                    1 => first != Some(1),
                    _ => shapes.iter().any(|s| s.1.find(name) != first),
                }
            })
            .collect();
        let square = |dims: &Dims| {
            let first = dims.find(varied.first()?)?;
            varied.iter().all(|n| dims.find(n) == Some(first)).then_some(first)
        };
        let all_square = shapes.iter().all(|s| square(&s.1).is_some());
        let mut sizes: Vec<(&str, String, f64)> = shapes
            .iter()
            .map(|(text, dims)| match square(dims).filter(|_| all_square) {
                Some(size) => (*text, size.to_string(), size as f64),
                None => {
                    let product: f64 = dims.iter().map(|d| d.1 as f64).product();
                    (*text, (*text).to_owned(), product)
                }
            })
            .collect();
        sizes.sort_by(|a, b| a.2.total_cmp(&b.2));
        let axis = if all_square { varied.join(" = ") } else { String::new() };
        Self { run, dtype, axis, sizes, lines, results }
    }

    pub(crate) fn has_several_sizes(&self) -> bool {
        self.sizes.len() > 1
    }

    /// Whether its sizes are those of one axis. Unlike shapes lie on none, and a line between them
    /// would say nothing.
    pub(crate) fn has_an_axis(&self) -> bool {
        self.has_several_sizes() && !self.axis.is_empty()
    }

    fn at(&self, line: (&str, Of), shape: &str) -> Option<&'a Measurement> {
        let found = |m: &&&Measurement| (m.version.as_str(), m.of) == line && m.shape == shape;
        self.results.iter().find(found).copied()
    }

    /// What a line is called.
    fn label((name, of): (&str, Of)) -> String {
        match of {
            Of::Version => name.split(':').next_back().unwrap_or(name).to_owned(),
            Of::Library => name.to_owned(),
            Of::Host => format!("{name} (host time)"),
        }
    }

    /// A table each of times, operations a second, shares of the library and of the roofline.
    pub(crate) fn tables(&self) -> String {
        let all: Vec<Measurement> = self.results.iter().map(|&m| m.clone()).collect();
        let library = self.lines.iter().find(|l| l.1 == Of::Library).map(|l| l.0);
        let mut text = String::new();
        type Value<'v> = Box<dyn Fn(&Measurement) -> Option<f64> + 'v>;
        let mut tables: Vec<(String, Value<'_>)> = vec![
            ("median, µs".into(), Box::new(|m| Some(m.median_us))),
            ("replayed as a graph, with warm caches, µs".into(), Box::new(|m| m.replay_us)),
            ("TFLOP/s".into(), Box::new(|m| m.tflops.filter(|_| computes_what_is_counted(m)))),
        ];
        if let Some(name) = library {
            tables.push((format!("% of {name}"), Box::new(|m| m.library_percent(&all))));
        }
        let share = |m: &Measurement| m.roofline_percent.filter(|_| computes_what_is_counted(m));
        tables.push(("% of the roofline".into(), Box::new(share)));
        for (what, value) in tables {
            let timed = |line: &(&str, Of)| {
                let mut cells = self.sizes.iter().filter_map(|size| self.at(*line, size.0));
                cells.any(|m| value(m).is_some())
            };
            let lines: Vec<_> = self.lines.iter().copied().filter(timed).collect();
            if lines.is_empty() {
                continue;
            }
            let cell = |line, size: &str| {
                self.at(line, size).and_then(&value).map_or(String::new(), lab_plots::three_digits)
            };
            let names: Vec<String> = lines.iter().map(|&line| Self::label(line)).collect();
            let sizes: Vec<String> = self.sizes.iter().map(|s| s.1.clone()).collect();
            // Sizes on an axis go along it. Whole shapes are too wide for that: a row each.
            let (columns, rows): (_, Vec<(&str, Vec<String>)>) = if self.axis.is_empty() {
                let row = |size: &str| lines.iter().map(|&line| cell(line, size)).collect();
                (&names, self.sizes.iter().map(|s| (s.1.as_str(), row(s.0))).collect())
            } else {
                let row = |line| self.sizes.iter().map(|s| cell(line, s.0)).collect();
                (&sizes, names.iter().zip(&lines).map(|(n, &l)| (n.as_str(), row(l))).collect())
            };
            let (dashes, columns) = ("--:|".repeat(columns.len()), columns.join(" | "));
            write!(
                text,
                "**{}, {what}**\n\n| {} | {columns} |\n|---|{dashes}\n",
                self.dtype, self.axis
            )
            .expect("writing to a string");
            for (name, cells) in rows {
                writeln!(text, "| {name} | {} |", cells.join(" | ")).expect("writing to a string");
            }
            text.push('\n');
        }
        text
    }

    /// TFLOP/s over the size: a line a version, the library's dashed; nothing of the host, which
    /// would lie below all of them.
    pub(crate) fn plot(&self, stage: &str) -> Result<String, Error> {
        let curves: Vec<Curve> = self
            .lines
            .iter()
            .filter(|l| l.1 != Of::Host)
            .map(|&line| Curve {
                label: Self::label(line),
                dashed: line.1 == Of::Library,
                points: self
                    .sizes
                    .iter()
                    .filter_map(|size| Some((size.2, self.at(line, size.0)?.tflops?)))
                    .collect(),
            })
            .filter(|c| !c.points.is_empty())
            .collect();
        let title = format!("{stage}, {}, {}: TFLOP/s", self.dtype, self.run.device.gpu);
        let mut ceilings = Vec::new();
        let peaks = &self.run.device.peak_tflops;
        if let Some(&peak) = peaks.get(self.dtype) {
            ceilings.push(("peak".to_owned(), peak));
            let above = self.results.iter().any(|m| m.tflops.is_some_and(|t| t > peak));
            if let Some(&tensor) = peaks.get("tf32").filter(|_| self.dtype == "f32" && above) {
                ceilings.push(("peak of TF32".to_owned(), tensor));
            }
        }
        let ticks: Vec<_> = self.sizes.iter().map(|s| (s.2, s.1.clone())).collect();
        Ok(lab_plots::curves(&title, &self.axis, &ticks, &ceilings, &curves)?)
    }
}

#[cfg(test)]
mod tests {
    use lab_harness::timing::Times;
    use lab_records::record::Machine;

    use super::*;

    /// Versions over three sizes, of which the slow one leaves out the largest, and a library.
    pub(crate) fn example() -> Run {
        let line = |version: &str, of, size: usize, us: f64| {
            let flops = 2.0 * (size as f64).powi(3);
            let times = Times { median_us: us, p10_us: us, p90_us: us, runs: 3 };
            let shape = format!("G=1,K={size},M={size},N={size}");
            Measurement {
                tflops: Some(flops / us * 1e-6),
                gbps: Some(1.0),
                roofline_percent: (of != Of::Host).then_some(50.0),
                relative_error: Some(0.0),
                ..Measurement::timed("matmul", version.into(), of, &shape, "f32", times)
            }
        };
        let mut results = vec![
            line("matmul:v0", Of::Version, 128, 40.0),
            line("matmul:v0", Of::Version, 1024, 4000.0),
            line("matmul:v6", Of::Version, 128, 10.0),
            line("matmul:v6", Of::Version, 1024, 60.0),
            line("matmul:v6", Of::Version, 8192, 24000.0),
            line("cublas", Of::Library, 128, 5.0),
            line("cublas", Of::Library, 1024, 54.0),
            line("cublas", Of::Library, 8192, 21600.0),
            line("cpu_naive", Of::Host, 128, 2000.0),
        ];
        results.rotate_left(4);
        Run {
            format: 2,
            commit: "0123456789abcdef0123456789abcdef01234567".into(),
            date: "2026-01-31T12:00:00Z".into(),
            device: Machine {
                gpu: "Example GPU".into(),
                driver: "1".into(),
                nvrtc: "13.0".into(),
                cpu: "Example CPU".into(),
                cpu_threads: 2,
                clock_mhz: 1000,
                memory_clock_mhz: 2000,
                copy_gbps: 4000.0,
                peak_tflops: [("f32".to_owned(), 66.9)].into(),
                libraries: vec![],
            },
            in_turns: false,
            peers_in_turns: false,
            command: Vec::new(),
            results,
        }
    }

    #[test]
    fn sizes_on_an_axis_are_columns_in_their_order_and_what_was_not_timed_is_empty() {
        let run = example();
        let all: Vec<_> = run.results.iter().collect();
        let ladder = Ladder::new(&run, "f32", &all);
        assert!(ladder.has_several_sizes());
        let text = ladder.tables();
        assert!(text.contains("| K = M = N | 128 | 1024 | 8192 |\n|---|--:|--:|--:|"), "{text}");
        assert!(text.contains("| v0 | 40.0 | 4000 |  |"), "{text}");
        assert!(text.contains("**f32, % of cublas**"), "{text}");
        assert!(text.contains("| v6 | 50.0 | 90.0 | 90.0 |"), "{text}");
        assert!(text.contains("| cpu_naive (host time) | 2000 |  |  |"), "{text}");
        let none = Ladder::new(&run, "f16", &all);
        assert!(!none.has_several_sizes());
    }

    #[test]
    fn unlike_shapes_have_no_axis_and_a_table_all_the_same() {
        let mut run = example();
        assert!(Ladder::new(&run, "f32", &run.results.iter().collect::<Vec<_>>()).has_an_axis());
        for m in &mut run.results {
            m.shape = m.shape.replace("M=1024", "M=7");
        }
        let all: Vec<_> = run.results.iter().collect();
        let ladder = Ladder::new(&run, "f32", &all);
        assert!(ladder.has_several_sizes() && !ladder.has_an_axis());
        let text = ladder.tables();
        assert!(text.contains("|  | v6 | cublas | cpu_naive (host time) | v0 |"), "{text}");
        assert!(text.contains("| G=1,K=1024,M=7,N=1024 | 60.0 | 54.0 |  | 4000 |"), "{text}");
    }

    #[test]
    fn what_works_in_chunks_has_times_but_no_rate() {
        let mut run = example();
        for m in run.results.iter_mut().filter(|m| m.version == "matmul:v6") {
            m.version = "vlstm_fw_v4:v6".into();
        }
        let all: Vec<_> = run.results.iter().collect();
        let text = Ladder::new(&run, "f32", &all).tables();
        let has = |table: &str| {
            let rest = text.split(&format!("**f32, {table}**")).nth(1).unwrap();
            rest.split("**").next().unwrap().contains("| v6 |")
        };
        assert!(has("median, µs") && !has("TFLOP/s") && !has("% of the roofline"), "{text}");
    }

    #[test]
    fn the_plot_has_a_line_a_version_and_a_dashed_library() {
        let run = example();
        let all: Vec<_> = run.results.iter().collect();
        let svg = Ladder::new(&run, "f32", &all).plot("matmul").unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let texts: Vec<_> =
            document.descendants().filter_map(|n| n.text()).map(str::trim).collect();
        for text in ["v0", "v6", "cublas", "128", "8192", "K = M = N"] {
            assert!(texts.contains(&text), "{text}: {texts:?}");
        }
        assert!(texts.contains(&"peak 67"), "{texts:?}");
        // One path a line, and as many as there are dashes of the library's.
        let blue = document.descendants().filter(|n| n.attribute("stroke") == Some("#3884C8"));
        let dashes = document.descendants().filter(|n| n.attribute("stroke") == Some("#D67A30"));
        assert!(blue.count() == 2 && dashes.count() > 20, "{svg}");
        assert!(!texts.contains(&"cpu_naive (host time)"));
        // Numbers that are none would be drawn nowhere.
        assert!(!svg.contains("NaN"), "{svg}");
        if let Some(path) = std::env::var_os("LAB_KEEP_PLOT") {
            std::fs::write(path, svg).unwrap();
        }
    }
}
