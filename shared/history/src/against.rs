//! Attention against the vLSTM over the length of a text: time and memory of the forward pass, of both passes, and of one token
//! behind the text. From the records of `benches/lengths`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lab_harness::Dims;
use lab_plots::{Curve, curves, three_digits};
use lab_records::record::{Measurement, Run};

use crate::Error;

/// A record with fewer lengths than these draws no line.
const SIZES: usize = 4;
const DTYPE: &str = "bf16";
/// Of both: one sequence of so many heads.
const HEADS: usize = 16;
const COLUMNS: usize = 128;
const VALUES: usize = 256;

/// What is compared: the same work, by attention and by the vLSTM.
struct Pass {
    /// A part of the plots' names.
    file: &'static str,
    title: &'static str,
    attention: &'static str,
    /// The name of the text's length in attention's problem.
    length: &'static str,
    /// The library's name in the record, and as it is shown.
    library: [&'static str; 2],
    vlstm: &'static str,
    memory: Memory,
}

/// Which bytes are drawn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    /// Measured: the most that is allocated beyond the inputs.
    Peak,
    /// By the sizes: what must be kept from token to token.
    Kept,
}

const PASSES: [Pass; 3] = [
    Pass {
        file: "forward",
        title: "forward",
        attention: "attention",
        length: "S",
        library: ["cudnn", "cuDNN"],
        vlstm: "vlstm_fw",
        memory: Memory::Peak,
    },
    Pass {
        file: "gradients",
        title: "with all gradients",
        attention: "attention_fwbw",
        length: "S",
        library: ["cudnn", "cuDNN"],
        vlstm: "vlstm_fwbw",
        memory: Memory::Peak,
    },
    Pass {
        file: "token",
        title: "one token",
        attention: "attention_step",
        length: "T",
        library: ["sdpa", "PyTorch"],
        vlstm: "vlstm_step",
        memory: Memory::Kept,
    },
];

/// By length.
type Points = BTreeMap<usize, Value>;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Value {
    us: f64,
    bytes: Option<u64>,
}

/// The lines of a pass.
struct Lines {
    attention: Points,
    library: Points,
    vlstm: Points,
    /// Of one token: the versions of the vLSTM in its record and their µs, the fastest first.
    steps: Vec<(String, f64)>,
}

/// The page and its plots, by file name. It says so where nothing was measured.
pub(crate) fn pages(runs: &[Run]) -> Result<Vec<(String, String)>, Error> {
    let mut pages = Vec::new();
    let measured: Vec<(&Pass, Lines)> =
        PASSES.iter().filter_map(|pass| Some((pass, pass.lines(runs)?))).collect();
    let mut text = String::new();
    for (pass, lines) in &measured {
        let (file, title) = (pass.file, pass.title);
        let all: Vec<(String, String)> = ["time", "memory"]
            .into_iter()
            .map(|what| Ok((format!("against-{file}-{what}.svg"), pass.plot(lines, what)?)))
            .collect::<Result<_, Error>>()?;
        let image =
            |(file, what)| format!("<img src=\"generated/{file}\" alt=\"{title}: {what} over S\">");
        let images: Vec<String> =
            all.iter().map(|page| page.0.as_str()).zip(["time", "memory"]).map(image).collect();
        writeln!(
            text,
            "<figure class=\"plot\">{}<figcaption>{}</figcaption></figure>\n",
            images.join(""),
            pass.caption(),
        )
        .expect("writing to a string");
        pages.extend(all);
    }
    if measured.is_empty() {
        text += "Not measured yet.\n";
    } else {
        text += &table(&measured);
        for (pass, lines) in &measured {
            text += &pass.crossing(lines);
        }
        for (_, lines) in &measured {
            text += &versions_of_a_token(&lines.steps);
        }
    }
    pages.push(("against.md".into(), text));
    Ok(pages)
}

impl Pass {
    /// Each line from the newest record that has it; `None` where attention or the vLSTM has none.
    fn lines(&self, runs: &[Run]) -> Option<Lines> {
        let of_attention = |library: Option<&str>| {
            newest(runs, |m| {
                let sizes = [("B", 1), ("NH", HEADS), ("NKV", HEADS), ("D", COLUMNS)];
                let is_own = match library {
                    Some(name) => m.is_peer() && m.version == name,
                    None => m.version.contains(':'),
                };
                let length = length_of(m, self.attention, &sizes, self.length)?;
                is_own.then(|| (length, self.value(m, 4 * HEADS * length * COLUMNS)))
            })
        };
        let attention = of_attention(None)?;
        let library = of_attention(Some(self.library[0])).unwrap_or_default();
        let sizes = [("B", 1), ("NH", HEADS), ("DHQK", COLUMNS), ("DHHV", VALUES)];
        let mut steps = Vec::new();
        let vlstm = match self.memory {
            Memory::Peak => newest(runs, |m| {
                let length = length_of(m, self.vlstm, &sizes, "S")?;
                m.version.contains(':').then(|| (length, self.value(m, 0)))
            })?,
            // The same behind every text.
            Memory::Kept => {
                let of = |run: &Run| {
                    let own = run.results.iter().filter(|m| m.version.contains(':'));
                    let own = own.filter(|m| length_of(m, self.vlstm, &sizes, "B").is_some());
                    let mut own: Vec<Measurement> = own.cloned().collect();
                    own.sort_by(|a, b| a.median_us.total_cmp(&b.median_us));
                    (!own.is_empty()).then_some(own)
                };
                let all = runs.iter().rev().find_map(of)?;
                steps.extend(all.iter().map(|m| (m.version.clone(), m.median_us)));
                let step = &all[0];
                // C in halves; n and m of a head in f32.
                let state = HEADS * (2 * COLUMNS * VALUES + 4 * COLUMNS + 4);
                let value = self.value(step, state);
                attention.keys().map(|&length| (length, value)).collect()
            }
        };
        Some(Lines { attention, library, vlstm, steps })
    }

    fn value(&self, m: &Measurement, kept: usize) -> Value {
        let bytes = match self.memory {
            Memory::Peak => m.peak_bytes,
            Memory::Kept => Some(kept as u64),
        };
        Value { us: m.median_us, bytes }
    }

    fn plot(&self, lines: &Lines, what: &str) -> Result<String, Error> {
        let is_time = what == "time";
        let of = |value: &Value| {
            if is_time { Some(value.us) } else { value.bytes.map(|bytes| bytes as f64 * 1e-6) }
        };
        let curve = |label: &str, points: &Points, dashed| Curve {
            label: label.into(),
            dashed,
            points: points.iter().filter_map(|(&s, v)| Some((s as f64, of(v)?))).collect(),
        };
        let mut all =
            vec![curve("vLSTM", &lines.vlstm, false), curve("attention", &lines.attention, false)];
        // A library's cache has the size of any other.
        if is_time || self.memory == Memory::Peak {
            all.push(curve(&format!("attention by {}", self.library[1]), &lines.library, true));
        }
        all.retain(|curve| !curve.points.is_empty());
        let lengths = lines.attention.keys();
        let ticks: Vec<_> = lengths.map(|&s| (s as f64, shown(s))).collect();
        let unit = if is_time { "µs, launched" } else { "MB" };
        let title = match (is_time, self.memory) {
            (false, Memory::Kept) => "cache or state behind a text".into(),
            _ => format!("{}, {DTYPE}, 1 × {HEADS} heads", self.title),
        };
        Ok(curves(&format!("{title}: {unit}"), self.length, &ticks, &[], &all)?)
    }

    fn caption(&self) -> &'static str {
        match self.file {
            "forward" => {
                "The forward pass over the length of a text: its time, and the device memory that it allocates beyond its inputs, \
                 results included."
            }
            "gradients" => {
                "The forward pass and all gradients: the same. Below some 4,096 positions the library's time is mostly the host's."
            }
            _ => {
                "One token behind a text: its time, and what is kept from token to token, by its sizes: the cache of keys and \
                 values, or the state."
            }
        }
    }

    /// From which length on the vLSTM takes less time than the fastest attention, and how much less.
    fn crossing(&self, lines: &Lines) -> String {
        let ratio = |length: usize| {
            let own = lines.vlstm.get(&length)?.us;
            let others = [&lines.attention, &lines.library].map(|points| points.get(&length));
            let fastest = others.into_iter().flatten().map(|v| v.us).min_by(f64::total_cmp)?;
            Some((length, fastest / own))
        };
        let ratios: Vec<(usize, f64)> =
            lines.attention.keys().filter_map(|&length| ratio(length)).collect();
        let (Some(first), Some(last)) = (ratios.first(), ratios.last()) else {
            return String::new();
        };
        let from = ratios.iter().rev().take_while(|ratio| ratio.1 > 1.0).last();
        let mut title = self.title.to_owned();
        title[..1].make_ascii_uppercase();
        let times = |(length, ratio): &(usize, f64)| {
            format!("{} times as fast at {}", three_digits(*ratio), thousands(*length))
        };
        match from {
            None => format!("- **{title}**: attention takes less up to {}.\n", thousands(last.0)),
            Some(from) if from == first => format!(
                "- **{title}**: the vLSTM takes less at every length that was measured: {}, {}.\n",
                times(first),
                times(last)
            ),
            Some(from) => format!(
                "- **{title}**: the vLSTM takes less from {} positions on, and is {}.\n",
                thousands(from.0),
                times(last)
            ),
        }
    }
}

/// The points of the newest record that has enough of them: of each length the fastest.
fn newest(runs: &[Run], of: impl Fn(&Measurement) -> Option<(usize, Value)>) -> Option<Points> {
    runs.iter().rev().find_map(|run| {
        let mut points = Points::new();
        for (length, value) in run.results.iter().filter_map(&of) {
            let fastest = points.entry(length).or_insert(value);
            if value.us < fastest.us {
                *fastest = value;
            }
        }
        (points.len() >= SIZES).then_some(points)
    })
}

/// The named size of a problem of this family that has the others.
fn length_of(
    m: &Measurement,
    family: &str,
    others: &[(&str, usize)],
    length: &str,
) -> Option<usize> {
    if m.family != family || m.dtype != DTYPE {
        return None;
    }
    let dims = Dims::parse(&m.shape).ok()?;
    let has_others = others.iter().all(|(name, size)| dims.find(name) == Some(*size));
    dims.find(length).filter(|_| has_others)
}

/// 1k, 128k.
fn shown(length: usize) -> String {
    if length.is_multiple_of(1024) { format!("{}k", length / 1024) } else { length.to_string() }
}

/// 131,072.
fn thousands(value: usize) -> String {
    match (value / 1000, value % 1000) {
        (0, rest) => rest.to_string(),
        (more, rest) => format!("{},{rest:03}", thousands(more)),
    }
}

/// A row a length, three columns a pass: µs.
fn table(measured: &[(&Pass, Lines)]) -> String {
    let mut text = String::from("| S |");
    for (pass, _) in measured {
        let (title, library) = (pass.title, pass.library[1]);
        write!(text, " {title}: attention | {library} | vLSTM |").expect("writing to a string");
    }
    text += "\n|---:|";
    text += &"---:|---:|---:|".repeat(measured.len());
    text += "\n";
    let mut lengths: Vec<usize> =
        measured.iter().flat_map(|(_, lines)| lines.attention.keys().copied()).collect();
    lengths.sort_unstable();
    lengths.dedup();
    for length in lengths {
        write!(text, "| {} |", thousands(length)).expect("writing to a string");
        for (_, lines) in measured {
            let all = [&lines.attention, &lines.library, &lines.vlstm];
            let times = all.map(|points| points.get(&length).map(|value| value.us));
            let least = times.iter().flatten().copied().min_by(f64::total_cmp);
            for us in times {
                let cell = match us {
                    None => "–".into(),
                    Some(us) if Some(us) == least => format!("**{}**", micros(us)),
                    Some(us) => micros(us),
                };
                write!(text, " {cell} |").expect("writing to a string");
            }
        }
        text += "\n";
    }
    text += "\nµs, launched with a cold cache; of each length the fastest version.\n\n";
    text
}

/// Which version's time a token's is, and what the others of its record take.
fn versions_of_a_token(steps: &[(String, f64)]) -> String {
    let Some(((fastest, _), others)) = steps.split_first() else { return String::new() };
    let mut text = format!("\nThe vLSTM's token is by `{fastest}`");
    if !others.is_empty() {
        let others: Vec<String> =
            others.iter().map(|(name, us)| format!("`{name}` takes {}", micros(*us))).collect();
        write!(text, "; {}", others.join(", ")).expect("writing to a string");
    }
    text + ".\n"
}

/// Three digits that count, and commas.
fn micros(us: f64) -> String {
    if us < 1000.0 { three_digits(us) } else { thousands(us.round() as usize) }
}

#[cfg(test)]
mod tests {
    use super::super::families::tests::run;
    use super::*;

    const LENGTHS: [usize; 4] = [1024, 2048, 4096, 131_072];

    fn line(family: &str, version: &str, shape: &str, us: f64) -> serde_json::Value {
        let of = if version.contains(':') { "version" } else { "library" };
        serde_json::json!({
            "family": family, "version": version, "of": of, "shape": shape, "dtype": "bf16", "median_us": us, "p10_us": us,
            "p90_us": us, "runs": 3, "tflops": null, "gbps": null, "roofline_percent": null, "relative_error": null,
            "peak_bytes": 5_000_000
        })
    }

    /// Attention takes a µs for each 1024 positions squared, the library twice that, the vLSTM two for each 1024.
    fn forward(date: &str) -> [Run; 2] {
        let squared = |s: usize| (s as f64 / 1024.0).powi(2);
        let attention = LENGTHS.map(|s| {
            let shape = format!("B=1,D=128,NH=16,NKV=16,S={s}");
            let of = |version, times: f64| line("attention", version, &shape, times * squared(s));
            [of("attention:v6", 1.0), of("cudnn", 2.0)]
        });
        let vlstm = LENGTHS.map(|s| {
            let shape = format!("B=1,DHHV=256,DHQK=128,NH=16,S={s}");
            line("vlstm_fw", "vlstm_fw_v4:v2", &shape, 2.0 * s as f64 / 1024.0)
        });
        [run(date, attention.concat()), run(date, vlstm.to_vec())]
    }

    fn text_of(pages: &[(String, String)]) -> &str {
        &pages.iter().find(|page| page.0 == "against.md").unwrap().1
    }

    #[test]
    fn without_a_record_the_page_says_so() {
        assert_eq!(pages(&[]).unwrap(), [("against.md".into(), "Not measured yet.\n".into())]);
        let [attention, _] = forward("2026-01-01");
        assert_eq!(pages(&[attention]).unwrap().len(), 1);
    }

    #[test]
    fn lines_cross_where_the_vlstm_takes_less_from_there_on() {
        let all = pages(&forward("2026-01-01")).unwrap();
        let names: Vec<&str> = all.iter().map(|page| page.0.as_str()).collect();
        assert_eq!(names, ["against-forward-time.svg", "against-forward-memory.svg", "against.md"]);
        let text = text_of(&all);
        let row = "| 131,072 | 16,384 | 32,768 | **256** |";
        // At 2048 both take 4 µs.
        let said = "**Forward**: the vLSTM takes less from 4,096 positions on, and is 64.0 times as fast at 131,072.";
        assert!(text.contains(row) && text.contains(said), "{text}");
        for said in ["attention by cuDNN", "vLSTM", "128k"] {
            assert!(all[0].1.contains(said) && all[1].1.contains(said), "{said}");
        }
    }

    #[test]
    fn a_step_is_a_level_line_and_the_newest_record_counts() {
        let of = |date: &str, us: f64| {
            let steps = LENGTHS.map(|s| {
                let shape = format!("B=1,D=128,NH=16,NKV=16,T={s}");
                line("attention_step", "attention:step_split", &shape, s as f64 / 100.0)
            });
            let step = |version, us| line("vlstm_step", version, "B=1,DHHV=256,DHQK=128,NH=16", us);
            let both = vec![step("vlstm_step:v2", 1.5 * us), step("vlstm_step:v1", us)];
            [run(date, steps.to_vec()), run(date, both)]
        };
        let runs = [of("2026-01-01", 1e9), of("2026-01-02", 5.0)].concat();
        let all = pages(&runs).unwrap();
        let text = text_of(&all);
        let said = "**One token**: the vLSTM takes less at every length that was measured: 2.05 times as fast at 1,024, \
                    262 times as fast at 131,072.";
        assert!(text.contains(said) && text.contains("| 1,024 | 10.2 | – | **5.00** |"), "{text}");
        let said = "The vLSTM's token is by `vlstm_step:v1`; `vlstm_step:v2` takes 7.50.\n";
        assert!(text.ends_with(said), "{text}");
        // 16 heads of a cache of 131,072 positions, and of a state: MB.
        let memory = &all.iter().find(|page| page.0 == "against-token-memory.svg").unwrap().1;
        assert!(memory.contains("\n1074\n") && memory.contains("\n1.06\n"), "{memory}");
    }
}
