//! `--expect NAME=…`: what an output must hold, from a file or by an expression of Python.

use std::collections::BTreeMap;
use std::process::Command;

use clap::Args;
use lab_app::{Component, Outcome, Role, TensorName, decode, read_tensor};
use serde_json::json;

use crate::arguments::bad;
use crate::failure::CheckFailure;

/// What the outputs must hold.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "What a kernel of a FILE.cu must compute")]
pub struct Expectations {
    /// What an output must hold: @FILE.safetensors[TENSOR], or Python with numpy as np and the arguments by
    /// name, as they were before the launch: 'y=np.cumsum(x)'
    #[arg(long, value_name = "NAME=VALUE")]
    expect: Vec<String>,
    /// Each element is judged as by numpy.allclose: |got - expected| may be ATOL + RTOL * |expected|, and a NaN is
    /// wrong [default: by type, as torch.testing.assert_close]
    #[arg(long)]
    rtol: Option<f64>,
    /// See --rtol
    #[arg(long)]
    atol: Option<f64>,
}

impl Expectations {
    /// An option of these, if one was given.
    pub fn refuse_for_stage(&self, name: &str) -> Result<(), CheckFailure> {
        let all = [
            (!self.expect.is_empty(), "--expect"),
            (self.rtol.is_some(), "--rtol"),
            (self.atol.is_some(), "--atol"),
        ];
        super::refuse_others_for_stage(name, &all)
    }
}

/// Where a value comes from.
#[derive(Clone, Debug)]
enum Source {
    File(TensorName),
    Python(String),
}

/// What is expected of a launch.
#[derive(Clone, Debug, Default)]
pub(super) struct Expected {
    all: Vec<(String, Source)>,
    rtol: Option<f64>,
    atol: Option<f64>,
}

/// An output beside what it must hold.
#[derive(Clone, Debug)]
pub(super) struct Comparison {
    pub(super) name: String,
    pub(super) elements: usize,
    /// Those that are off by more than they may.
    pub(super) wrong: usize,
    /// Of all, the one that is off by the most of its bound: place, got, expected.
    pub(super) worst: (usize, f64, f64),
    pub(super) rtol: f64,
    pub(super) atol: f64,
}

/// As `torch.testing.assert_close`.
fn tolerance(part: Component) -> (f64, f64) {
    match part {
        Component::F64 => (1e-7, 1e-7),
        Component::F32 => (1.3e-6, 1e-5),
        Component::F16 => (1e-3, 1e-5),
        Component::BF16 => (1.6e-2, 1e-5),
        _ => (0.0, 0.0),
    }
}

impl Expected {
    pub(super) fn of(
        given: &Expectations,
        written: &BTreeMap<String, String>,
        rtol: Option<f64>,
        atol: Option<f64>,
    ) -> Result<Self, CheckFailure> {
        let mut all = Vec::new();
        let parse = |name: &str, text: &str| match text.trim().strip_prefix('@') {
            Some(file) => match TensorName::parse(file) {
                Some(file) => Ok((name.to_owned(), Source::File(file))),
                None => {
                    Err(bad(&format!("--expect {name}"), "@FILE[TENSOR]", &format!("'{text}'")))
                }
            },
            None => Ok((name.to_owned(), Source::Python(text.trim().to_owned()))),
        };
        for text in &given.expect {
            let split = text.split_once('=').filter(|(n, v)| !n.is_empty() && !v.is_empty());
            let (name, value) =
                split.ok_or_else(|| bad("--expect", "NAME=VALUE", &format!("'{text}'")))?;
            all.push(parse(name.trim(), value)?);
        }
        for (name, value) in written {
            if !all.iter().any(|(n, _)| n == name) {
                all.push(parse(name, value)?);
            }
        }
        let (rtol, atol) = (given.rtol.or(rtol), given.atol.or(atol));
        for (option, value) in [("--rtol", rtol), ("--atol", atol)] {
            if let Some(value) = value.filter(|v| !(0.0..=1e30).contains(v)) {
                return Err(bad(option, "a number from 0", &value.to_string()));
            }
        }
        Ok(Self { all, rtol, atol })
    }

    /// Said before any work: whether there is a Python for what needs it.
    pub(super) fn check(&self) -> Result<(), CheckFailure> {
        let Some((name, _)) = self.all.iter().find(|(_, s)| matches!(s, Source::Python(_))) else {
            return Ok(());
        };
        let found = Command::new("python3").args(["-c", "import numpy"]).output();
        if found.is_ok_and(|output| output.status.success()) {
            Ok(())
        } else {
            Err(bad(
                &format!("--expect {name}"),
                "python3 with numpy for an expression, or @FILE.safetensors[TENSOR]",
                "no python3 that imports numpy (pip install numpy)",
            ))
        }
    }

    pub(super) fn compare(&self, outcome: &Outcome) -> Result<Vec<Comparison>, CheckFailure> {
        let python: Vec<(&str, &str)> = self
            .all
            .iter()
            .filter_map(|(name, source)| match source {
                Source::Python(text) => Some((name.as_str(), text.as_str())),
                Source::File(_) => None,
            })
            .collect();
        let output = |name: &str| {
            let mut outputs = outcome.arrays.iter().filter(|a| a.role != Role::In);
            outputs.clone().find(|a| a.name == name).ok_or_else(|| {
                let names: Vec<&str> = outputs.by_ref().map(|a| a.name.as_str()).collect();
                let expected = match &names[..] {
                    [] => "a kernel with an output (out: or inout:)".to_owned(),
                    [one] => format!("the only output, {one}"),
                    several => format!("one of the outputs {}", several.join(", ")),
                };
                bad(&format!("--expect {name}"), &expected, &format!("'{name}'"))
            })
        };
        // Before anything is evaluated: what is computed for no output has no shape.
        for (name, _) in &self.all {
            output(name)?;
        }
        let mut evaluated =
            if python.is_empty() { Vec::new() } else { evaluate(outcome, &python)? };
        evaluated.reverse();
        let mut all = Vec::new();
        for (name, source) in &self.all {
            let title = format!("--expect {name}");
            let tensor = &output(name)?.tensor;
            let got = decode(tensor.part, &tensor.bytes);
            let (shape, values) = match source {
                Source::File(file) => {
                    let read = read_tensor(&title, file)
                        .map_err(|e| CheckFailure::Usage(e.to_string()))?;
                    (read.shape, decode(read.part, &read.bytes))
                }
                Source::Python(_) => evaluated.pop().unwrap_or_default(),
            };
            if values.len() != got.len() {
                return Err(bad(
                    &title,
                    &format!("shape {:?}", tensor.shape),
                    &format!("{shape:?}"),
                ));
            }
            let (rtol, atol) = tolerance(tensor.part);
            let (rtol, atol) = (self.rtol.unwrap_or(rtol), self.atol.unwrap_or(atol));
            all.push(compared(name, &got, &values, rtol, atol));
        }
        Ok(all)
    }
}

fn compared(name: &str, got: &[f64], expected: &[f64], rtol: f64, atol: f64) -> Comparison {
    let (mut wrong, mut worst, mut most) = (0, (0, got[0], expected[0]), -1.0);
    for (index, (&g, &e)) in got.iter().zip(expected).enumerate() {
        let bound = atol + rtol * e.abs();
        // A NaN is never within, and an infinity only if it is the same one: its bound would be infinite, too.
        let is_within = g == e || e.is_finite() && (g - e).abs() <= bound;
        wrong += usize::from(!is_within);
        let share = match (is_within, (g - e).abs() / bound) {
            (false, share) if !share.is_finite() => f64::INFINITY,
            (true, share) if !share.is_finite() => 0.0,
            (_, share) => share,
        };
        if share > most {
            (most, worst) = (share, (index, g, e));
        }
    }
    Comparison { name: name.to_owned(), elements: got.len(), wrong, worst, rtol, atol }
}

const SCRIPT: &str = r#"
import io, json, keyword, sys, tokenize
import numpy as np
here = sys.argv[1]
told = json.load(open(here + "/told.json"))
known = {"np": np, **told["numbers"]}
for a in told["arrays"]:
    known[a["name"]] = np.fromfile(f"{here}/{a['name']}", dtype=a["dtype"]).reshape(a["shape"])
# An argument may have the name of a word of Python.
words = {}
for name in filter(keyword.iskeyword, list(known)):
    other = name + "_"
    while other in known:
        other += "_"
    words[name] = other
known.update({other: known[name] for name, other in words.items()})

def read(text):
    try:
        return compile(text, "expression", "eval")
    except SyntaxError:
        if not words:
            raise
    try:
        tokens = [(t[0], words.get(t[1], t[1])) for t in tokenize.generate_tokens(io.StringIO(text).readline)]
        return compile(tokenize.untokenize(tokens), "expression", "eval")
    except (SyntaxError, tokenize.TokenError):
        told = ", ".join(f"{name} as {other}" for name, other in words.items())
        raise SyntaxError(f"invalid syntax; what Python has as words of its own is written with an _ behind: {told}")

shapes = []
for e in told["expect"]:
    try:
        value = np.asarray(eval(read(e["text"]), dict(known)), dtype=np.float64)
        if value.size != np.prod(e["shape"]):
            try:
                value = np.broadcast_to(value, e["shape"])
            except ValueError:
                sys.exit(f"{e['name']}\nshape {e['shape']}\n{list(value.shape)}")
    except Exception as error:
        sys.exit(f"{e['name']}\n{type(error).__name__}: {error}")
    np.ascontiguousarray(value).tofile(f"{here}/expect_{len(shapes)}")
    shapes.append(list(value.shape))
print(json.dumps(shapes))
"#;

/// A shape, and the values.
type Values = (Vec<usize>, Vec<f64>);

/// What each expression evaluates to.
fn evaluate(outcome: &Outcome, expressions: &[(&str, &str)]) -> Result<Vec<Values>, CheckFailure> {
    let here = tempfile::tempdir().map_err(|e| CheckFailure::file(&std::env::temp_dir(), e))?;
    let write = |name: &str, bytes: &[u8]| {
        let path = here.path().join(name);
        std::fs::write(&path, bytes).map_err(|e| CheckFailure::file(&path, e))
    };
    let mut arrays = Vec::new();
    for array in outcome.arrays.iter() {
        let Some(before) = &array.before else { continue };
        let part = array.tensor.part;
        // Floating-point values are f64 there: what is expected is computed better than the kernel does.
        let dtype = if part.is_float() { "<f8" } else { "<i8" };
        let values = decode(part, before);
        let bytes: Vec<u8> = if part.is_float() {
            values.iter().flat_map(|v| v.to_le_bytes()).collect()
        } else {
            values.iter().flat_map(|v| (*v as i64).to_le_bytes()).collect()
        };
        write(&array.name, &bytes)?;
        arrays.push(json!({ "name": array.name, "dtype": dtype, "shape": array.tensor.shape }));
    }
    let numbers: serde_json::Map<_, _> = outcome
        .numbers
        .iter()
        .map(|(name, value)| {
            if value.fract() == 0.0 && value.abs() < 9e15 {
                (name.clone(), json!(*value as i64))
            } else {
                (name.clone(), json!(value))
            }
        })
        .collect();
    let expect = expressions.iter().map(|(name, text)| {
        let shape = outcome.arrays.iter().find(|a| a.name == *name).map(|a| a.tensor.shape.clone());
        json!({ "name": name, "text": text, "shape": shape.unwrap_or_default() })
    });
    let told =
        json!({ "arrays": arrays, "numbers": numbers, "expect": expect.collect::<Vec<_>>() });
    write("told.json", told.to_string().as_bytes())?;
    let output = Command::new("python3").args(["-c", SCRIPT]).arg(here.path()).output();
    let output = output.map_err(|e| bad("--expect", "python3", &e.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let (name, reason) = said.trim().split_once('\n').unwrap_or(("", said.trim()));
        let last = reason.lines().last().unwrap_or(reason);
        if let Some(shape) = reason.lines().next().filter(|line| line.starts_with("shape [")) {
            let expected = format!("{shape}, or one that numpy broadcasts to it");
            return Err(bad(&format!("--expect {name}"), &expected, last));
        }
        return Err(bad(
            &format!("--expect {name}"),
            "an expression of Python that evaluates",
            last,
        ));
    }
    let shapes: Vec<Vec<usize>> = serde_json::from_slice(&output.stdout)
        .map_err(|e| bad("--expect", "one array for each expression", &e.to_string()))?;
    let read = |(index, shape): (usize, Vec<usize>)| {
        let path = here.path().join(format!("expect_{index}"));
        let bytes = std::fs::read(&path).map_err(|e| CheckFailure::file(&path, e))?;
        Ok((shape, decode(Component::F64, &bytes)))
    };
    shapes.into_iter().enumerate().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_wrong() {
        let (nan, inf) = (f64::NAN, f64::INFINITY);
        let got = compared("y", &[1.0, nan, inf, 2.0], &[1.0, 1.0, inf, 2.5], 0.0, 0.1);
        assert_eq!((got.wrong, got.worst.0), (2, 1));
        assert_eq!(compared("y", &[1.0, 1.1], &[1.0, 1.0], 0.2, 0.0).wrong, 0);
        assert_eq!(compared("y", &[1.0], &[nan], 1e30, 1e30).wrong, 1);
        assert_eq!(compared("y", &[3.0], &[4.0], 0.0, 0.0).wrong, 1);
        // However wide the bound, an infinity stands for no number.
        assert_eq!(compared("y", &[1.0, -inf, inf], &[inf, inf, 1.0], 0.5, 0.5).wrong, 3);
    }

    #[test]
    fn each_element_is_judged_as_numpy_judges_it() {
        // ATOL + RTOL |expected|, and not |got|.
        assert_eq!(compared("y", &[1.5], &[1.0], 0.5, 0.0).wrong, 0);
        assert_eq!(compared("y", &[1.0], &[1.5], 0.3, 0.0).wrong, 1);
        // One of many, which a norm of all would not show.
        let (mut got, expected) = (vec![1.0; 1000], vec![1.0; 1000]);
        got[500] = 0.0;
        let wrong = compared("y", &got, &expected, 1e-3, 1e-5);
        assert_eq!((wrong.wrong, wrong.worst), (1, (500, 0.0, 1.0)));
    }
}
