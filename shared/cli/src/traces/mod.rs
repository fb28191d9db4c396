//! Runs of the emulator as figures that a reader steps through. Each stands in the page as a still that says the same, for
//! readers without scripts and on paper; `book/theme/moving.js` makes it move.

mod barriers;
mod lanes;
mod phases;
mod race;

use std::ops::RangeInclusive;

use lab_device::emulator::{self, Event, Landing, Order, Profile, Tracer};
use lab_device::{Device, Mode};
use lab_harness::{Dims, Options, compare};
use maud::{Markup, PreEscaped, html};
use serde_json::Value;

use crate::commands::run::random_inputs;
use crate::failure::Failure;
use crate::named_one;
use crate::profile::{self, Place};

/// A figure, and the run that it shows.
pub(crate) struct Trace {
    pub(crate) name: &'static str,
    /// The kernels.
    pub(crate) of: &'static str,
    pub(crate) steps: usize,
    /// HTML without an empty line, which would end it within Markdown.
    pub(crate) figure: String,
}

/// Runs all of them.
pub(crate) fn all() -> Result<Vec<Trace>, Failure> {
    Ok(vec![lanes::trace()?, race::trace()?, barriers::trace()?, phases::trace()?])
}

/// What a run did, and what was counted of it.
struct Traced {
    events: Vec<Event>,
    profile: Profile,
}

/// An emulator that tells what it does.
fn device(order: Order, copies: Landing) -> Result<(Device, &'static Tracer), Failure> {
    let tracer: &Tracer = Box::leak(Box::default());
    let options =
        emulator::Options { order, copies, trace: Some(tracer), ..emulator::Options::default() };
    Ok((Device::emulator_with(Mode::Counted, options)?, tracer))
}

/// Runs a version on random inputs; copies land as late as they may.
fn run_version(name: &str, shape: &str, order: Order) -> Result<Traced, Failure> {
    run_version_with(name, shape, order, Landing::Late)
}

fn run_version_with(
    name: &str,
    shape: &str,
    order: Order,
    copies: Landing,
) -> Result<Traced, Failure> {
    let version = named_one(name, None, "")?.version;
    let options = Options::parse::<&str>(&[], version.info())?;
    let inputs = random_inputs(version, &Dims::parse(shape)?, None, 0, &options)?;
    let (_, dtype) = version.info().problem_of(&inputs)?;
    let (device, tracer) = device(order, copies)?;
    let mut prepared = version.prepare(&device, &inputs, &options)?;
    device.take_profile();
    tracer.take(); // what setting up has launched
    prepared.launch()?;
    let outputs = prepared.outputs()?;
    let traced = Traced { events: tracer.take(), profile: device.take_profile() };
    match compare(version, &inputs, &outputs, &options, dtype).iter().find(|c| !c.passed()) {
        None => Ok(traced),
        Some(c) => Err(Failure::Wrong(format!("{name}: '{}' is wrong", c.name))),
    }
}

/// The lines of a kernel in its file, from `template` to its last brace, counted from 1.
struct Listing {
    file: String,
    first: usize,
    lines: Vec<String>,
}

impl Listing {
    fn of(file: &str, text: &str, kernel: &str) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let begins =
            |line: &&str| line.contains("__global__") && line.contains(&format!(" {kernel}("));
        let head = lines.iter().position(begins).unwrap_or(0);
        let template = head > 0 && lines[head - 1].starts_with("template");
        let first = head - usize::from(template);
        let last = lines[head..].iter().position(|l| l.starts_with('}')).map_or(head, |n| head + n);
        // The corpus marks its bugs.
        let own = |line: &&str| line.split("  // BUG").next().unwrap_or("").to_owned();
        let lines = lines[first..=last].iter().map(own).collect();
        Self { file: file.to_owned(), first: first + 1, lines }
    }

    /// Of a stage's kernel.
    fn of_stage(file: &str, kernel: &str) -> Result<Self, Failure> {
        let text = profile::source(file);
        let text =
            text.ok_or_else(|| Failure::Wrong(format!("{file}: no such file of a stage")))?;
        Ok(Self::of(file, text, kernel))
    }

    /// These lines of it.
    fn only(self, range: RangeInclusive<usize>) -> Self {
        let Self { file, first, lines } = self;
        let own = lines.into_iter().zip(first..).filter(|(_, n)| range.contains(n));
        Self { file, first: first.max(*range.start()), lines: own.map(|(line, _)| line).collect() }
    }

    /// Those between the lines that have these two texts.
    fn between(self, from: &str, to: &str) -> Self {
        let line = |text| self.lines.iter().position(|l| l.contains(text));
        match (line(from), line(to)) {
            (Some(a), Some(b)) if a < b => {
                let first = self.first;
                self.only(first + a + 1..=first + b - 1)
            }
            _ => self,
        }
    }

    /// What stands behind a line's `//`.
    fn comment(&self, line: usize) -> &str {
        let text = line.checked_sub(self.first).and_then(|n| self.lines.get(n));
        text.and_then(|t| t.split_once("// ")).map_or("", |(_, comment)| comment)
    }

    /// Numbered, each line with what `beside` puts behind it.
    fn markup(&self, beside: impl Fn(usize) -> Markup) -> Markup {
        html! {
            div.listing role="group" aria-label={ "Source: " (self.file) } {
                @for (text, number) in self.lines.iter().zip(self.first..) {
                    div.line data-line=(number) {
                        span.number { (number) }
                        span.text { (text) }
                        (beside(number))
                    }
                }
            }
        }
    }
}

/// The line of a `file:line:column`.
fn line_of(place: &str) -> usize {
    Place::of(place).line
}

/// Data for the script, as text that ends no element.
fn data(value: &Value) -> Markup {
    let text = value.to_string().replace('<', "\\u003c");
    html! { script type="application/json" { (PreEscaped(text)) } }
}

/// The figure's text, on one line.
fn one_line(figure: Markup) -> String {
    figure.into_string().replace('\n', " ") + "\n"
}
