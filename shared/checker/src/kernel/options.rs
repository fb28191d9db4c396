//! What the command line and the file of `--args` say together.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use lab_app::{Argument, Launch, split_list};
use lab_emulator::{Order, shown};
use serde::Deserialize;
use serde_json::Value;

use super::Arguments;
use super::expect::{Expectations, Expected};
use crate::arguments::{arch, bad, bytes, order};
use crate::failure::CheckFailure;

/// A file of `--args`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    kernel: Option<String>,
    grid: Option<Sizes>,
    block: Option<Sizes>,
    shared: Option<Size>,
    #[serde(default)]
    cooperative: bool,
    cluster: Option<Size>,
    #[serde(default)]
    args: Values,
    #[serde(default, rename = "let")]
    lets: BTreeMap<String, Value>,
    #[serde(default)]
    expect: BTreeMap<String, String>,
    rtol: Option<f64>,
    atol: Option<f64>,
    order: Option<String>,
    timeout: Option<f64>,
    memory: Option<String>,
    #[serde(default)]
    include: Vec<PathBuf>,
    #[serde(default)]
    define: Vec<String>,
    std: Option<String>,
    arch: Option<String>,
}

/// A number or an expression.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Size {
    Number(u64),
    Text(String),
}

/// One size, or up to three.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Sizes {
    One(Size),
    Several(Vec<Size>),
}

/// In the kernel's order, or by name.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Values {
    Ordered(Vec<Value>),
    Named(BTreeMap<String, Value>),
}

impl Default for Values {
    fn default() -> Self {
        Self::Ordered(Vec::new())
    }
}

impl Size {
    fn text(&self) -> String {
        match self {
            Self::Number(n) => n.to_string(),
            Self::Text(text) => text.clone(),
        }
    }
}

impl Sizes {
    fn texts(&self) -> Vec<String> {
        match self {
            Self::One(Size::Text(text)) => {
                split_list(text).into_iter().map(str::to_owned).collect()
            }
            Self::One(size) => vec![size.text()],
            Self::Several(all) => all.iter().map(Size::text).collect(),
        }
    }
}

/// A launch as it is run.
pub(super) struct Resolved {
    pub(super) launch: Launch,
    pub(super) expected: Expected,
    pub(super) timeout: Option<f64>,
    pub(super) memory: Option<u64>,
    pub(super) verbose: bool,
    order: Option<String>,
    /// How the file is read and compiled.
    reading: lab_app::Options,
}

impl Resolved {
    pub(super) fn of(
        file: &Path,
        arguments: &Arguments,
        expectations: &Expectations,
    ) -> Result<Self, CheckFailure> {
        let written = arguments.args.as_deref().map(read).transpose()?.unwrap_or_default();
        let mut reading = lab_app::Options {
            include: [&arguments.include[..], &written.include[..]].concat(),
            define: [&arguments.define[..], &written.define[..]].concat(),
            standard: arguments.standard.clone().or(written.std),
            arch: arch(arguments.arch.as_deref().or(written.arch.as_deref()))?,
            ..lab_app::Options::default()
        };
        let kernel = match arguments.kernel.clone().or(written.kernel) {
            Some(kernel) => kernel,
            None => only_kernel(file, &reading)?,
        };
        // A module says what it was made for, and how many threads a block has.
        let entry = module_entry(file, &kernel, &reading)?;
        if let Some(entry) = &entry
            && arguments.arch.is_none()
            && let Some(known) = known_arch(&entry.target)
        {
            reading.arch = known;
        }
        let shared = arguments.shared.is_some() || written.shared.is_some();
        if entry.as_ref().is_some_and(|entry| entry.dynamic_shared) && !shared {
            let expected = format!("bytes of dynamic shared memory, which {kernel} uses");
            return Err(bad("--shared", &expected, "none"));
        }
        let required = entry
            .and_then(|entry| entry.required_block)
            .map(|sizes| Sizes::Several(sizes.map(|size| Size::Number(size.into())).into()));
        let sizes = |option: &str, given: &Option<String>, written: &Option<Sizes>, like: &str| {
            let all = match (given, written) {
                (Some(text), _) => split_list(text).into_iter().map(str::to_owned).collect(),
                (None, Some(sizes)) => sizes.texts(),
                (None, None) => return Err(bad(option, like, "none")),
            };
            if (1..=3).contains(&all.len()) && all.iter().all(|s| !s.is_empty()) {
                Ok(all)
            } else {
                Err(bad(option, "1 to 3 sizes", &format!("'{}'", all.join(","))))
            }
        };
        let grid = sizes("--grid", &arguments.grid, &written.grid, "blocks, such as 4 or 4,2")?;
        let block = sizes(
            "--block",
            &arguments.block,
            &written.block.or(required),
            "threads, such as 128 or 16,16",
        )?;
        let text = |option: &str, given: &Option<String>, written: &Option<Size>| {
            let text = given.clone().or_else(|| written.as_ref().map(Size::text));
            // In C++ it would be a size of 20 digits.
            let negative = text.as_ref().filter(|t| t.parse::<i64>().is_ok_and(|n| n < 0));
            match negative {
                Some(n) => Err(bad(option, "a number that is not negative", n)),
                None => Ok(text),
            }
        };
        let launch = Launch {
            kernel,
            grid,
            block,
            shared: text("--shared", &arguments.shared, &written.shared)?,
            cooperative: arguments.cooperative || written.cooperative,
            cluster: text("--cluster", &arguments.cluster, &written.cluster)?,
            arguments: values(&arguments.arg, &written.args)?,
            lets: lets(&arguments.lets, &written.lets)?,
        };
        let memory = arguments.memory.clone().or(written.memory);
        let expected = Expected::of(expectations, &written.expect, written.rtol, written.atol)?;
        Ok(Self {
            launch,
            expected,
            timeout: arguments.timeout.or(written.timeout),
            memory: memory.as_deref().map(bytes).transpose()?,
            verbose: arguments.verbose,
            order: arguments.order.clone().or(written.order),
            reading,
        })
    }

    /// With the seed where the text has none.
    pub(super) fn order(&self, seed: u64) -> Result<Option<Order>, CheckFailure> {
        order(self.order.as_deref(), seed)
    }

    pub(super) fn compile_options(&self, plain: bool) -> lab_app::Options {
        lab_app::Options { plain, ..self.reading.clone() }
    }
}

/// The launch of a kernel `k` that a file of `--args` describes.
///
/// # Errors
/// It cannot be read, or describes none.
pub fn written_launch(args: &Path) -> Result<Launch, CheckFailure> {
    let arguments =
        Arguments { kernel: Some("k".into()), args: Some(args.to_owned()), ..Arguments::default() };
    let resolved = Resolved::of(Path::new("k.cu"), &arguments, &Expectations::default())?;
    resolved.order(0)?;
    Ok(resolved.launch)
}

fn read(path: &Path) -> Result<Written, CheckFailure> {
    let text = lab_emulator::read_text(path).map_err(|e| CheckFailure::file(path, e))?;
    let wrong = |reason: &str| {
        CheckFailure::Usage(format!(
            "{}: {}",
            shown(&path.to_string_lossy(), 1000),
            shown(reason, 300)
        ))
    };
    // Where, and what; not the picture of the line between them.
    let of_toml = |e: toml::de::Error| {
        let place = e.to_string();
        let place = place.lines().next().unwrap_or_default().to_owned();
        wrong(&format!("{place}: {}", e.message()))
    };
    match path.extension().and_then(|e| e.to_str()) {
        Some("toml") => toml::from_str(&text).map_err(of_toml),
        Some("json") => serde_json::from_str(&text).map_err(|e| wrong(&e.to_string())),
        _ => Err(bad("--args", "a file .toml or .json", &path.display().to_string())),
    }
}

/// What a module of PTX says of a kernel; none of other files.
fn module_entry(
    file: &Path,
    kernel: &str,
    reading: &lab_app::Options,
) -> Result<Option<lab_app::Entry>, CheckFailure> {
    if file.extension().is_none_or(|ending| ending != "ptx") {
        return Ok(None);
    }
    let kernels = lab_app::Program::kernels(&[file.to_owned()], reading)
        .map_err(|error| CheckFailure::Usage(error.to_string()))?;
    let own = kernels.into_iter().find(|(_, own)| own.is_entry(kernel));
    Ok(own.and_then(|(_, own)| own.entry))
}

/// The architecture of a `.target`: of one that is not known by itself, that of its family.
fn known_arch(target: &str) -> Option<lab_app::Arch> {
    let family = target.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    target.parse().or_else(|_| family.parse()).ok()
}

/// The kernel of a file that has one.
fn only_kernel(file: &Path, reading: &lab_app::Options) -> Result<String, CheckFailure> {
    let kernels = lab_app::Program::kernels(&[file.to_owned()], reading)
        .map_err(|error| CheckFailure::Usage(error.to_string()))?;
    let names: Vec<String> =
        kernels.iter().map(|(_, k)| format!("{}{}", k.shown_scope(), k.shown_name())).collect();
    match &names[..] {
        [one] => Ok(one.clone()),
        [] => Err(bad("--kernel", "a file with kernels", &file.display().to_string())),
        all => Err(bad("--kernel", &format!("one of {}", all.join(", ")), "none")),
    }
}

/// Those of the command line replace those of the file by name; in order, they stand for all of them.
fn values(given: &[String], written: &Values) -> Result<Vec<Argument>, CheckFailure> {
    let parse = |text: &str| {
        Argument::parse("--arg", text).map_err(|error| CheckFailure::Usage(error.to_string()))
    };
    let mut all: Vec<Argument> = given.iter().map(|text| parse(text)).collect::<Result<_, _>>()?;
    if all.iter().any(|a| a.name.is_none()) {
        return Ok(all);
    }
    match written {
        Values::Ordered(texts) if all.is_empty() => {
            texts.iter().map(|value| parse(&text_of(value))).collect()
        }
        Values::Ordered(texts) if texts.is_empty() => Ok(all),
        Values::Ordered(_) => Err(bad(
            "--arg",
            "arguments in order, since those of --args are",
            &format!("'{}'", given[0]),
        )),
        Values::Named(texts) => {
            for (name, value) in texts {
                if !all.iter().any(|a| a.name.as_ref() == Some(name)) {
                    all.push(parse(&format!("{name}={}", text_of(value)))?);
                }
            }
            Ok(all)
        }
    }
}

fn lets(
    given: &[String],
    written: &BTreeMap<String, Value>,
) -> Result<Vec<Argument>, CheckFailure> {
    let written = written.iter().map(|(name, value)| format!("{name}={}", text_of(value)));
    let all = given.iter().cloned().chain(written);
    all.map(|text| Argument::parse("--let", &text).map_err(|e| CheckFailure::Usage(e.to_string())))
        .collect()
}

fn text_of(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
