//! Runs of the emulator as figures that a reader steps through. Each stands in the page as a still that says the same, for
//! readers without scripts and on paper; `book/theme/moving.js` makes it move.

mod barriers;
mod lanes;
mod list;
mod phases;
mod race;
mod tiles;

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

/// A figure of the book: the run that it shows, and how.
struct Figure {
    /// Of its file, and what a chapter includes.
    name: &'static str,
    scene: Scene,
    /// What to look at.
    caption: &'static str,
}

enum Scene {
    /// Which addresses the lanes of a warp touch, and what that costs.
    Lanes(lanes::Scene),
    /// Two threads that race, in two orders.
    Race(race::Scene),
    /// Blocks that read what another one has written.
    Blocks(race::BlocksScene),
    /// Who waits at which barrier of a block.
    Barriers(barriers::Scene),
    /// The phases of mbarriers.
    Phases(phases::Scene),
    /// Which block takes which tile.
    Tiles(tiles::Scene),
}

/// A figure as it stands in a page.
pub(crate) struct Trace {
    pub(crate) name: &'static str,
    /// The kernels.
    pub(crate) of: String,
    pub(crate) steps: usize,
    /// HTML without an empty line, which would end it within Markdown.
    pub(crate) figure: String,
}

/// What a scene has drawn.
struct Drawn {
    of: String,
    steps: usize,
    /// What `moving.js` calls it.
    kind: &'static str,
    /// The still, and data for the script.
    body: Markup,
}

/// Runs all of them.
pub(crate) fn all() -> Result<Vec<Trace>, Failure> {
    list::FIGURES.iter().map(Figure::trace).collect()
}

impl Figure {
    fn trace(&self) -> Result<Trace, Failure> {
        let Drawn { of, steps, kind, body } = match &self.scene {
            Scene::Lanes(scene) => scene.draw(),
            Scene::Race(scene) => scene.draw(),
            Scene::Blocks(scene) => scene.draw(),
            Scene::Barriers(scene) => scene.draw(),
            Scene::Phases(scene) => scene.draw(),
            Scene::Tiles(scene) => scene.draw(),
        }?;
        let figure = html! {
            figure.moving data-scene=(kind) {
                (body)
                figcaption { (self.caption) }
            }
        };
        let figure = figure.into_string().replace('\n', " ") + "\n";
        Ok(Trace { name: self.name, of, steps, figure })
    }
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

/// A run of a version on random inputs, and its order.
struct Run {
    version: &'static str,
    shape: &'static str,
    settings: &'static [&'static str],
    order: Order,
    copies: Landing,
    /// The kernel whose launches are shown, by its file; all launches, if it is empty.
    file: &'static str,
}

impl Run {
    /// In the order of the threads' numbers; copies land as late as they may.
    const fn of(version: &'static str, shape: &'static str) -> Self {
        Self {
            version,
            shape,
            settings: &[],
            order: Order::Forward,
            copies: Landing::Late,
            file: "",
        }
    }

    /// What happens in the launches that are shown.
    fn keep(&self, mut events: Vec<Event>) -> Vec<Event> {
        events.retain(|e| self.file.is_empty() || file_of(&e.place.own) == self.file);
        events
    }

    /// The run of a version that is right: its results are compared with the reference.
    fn trace(&self) -> Result<Traced, Failure> {
        let (traced, wrong) = self.trace_any()?;
        match wrong {
            None => Ok(traced),
            Some(wrong) => Err(Failure::Wrong(format!("{}: {wrong}", self.version))),
        }
    }

    /// Of any version, and what is wrong with it.
    fn trace_any(&self) -> Result<(Traced, Option<String>), Failure> {
        let version = named_one(self.version, None, "")?.version;
        let options = Options::parse(self.settings, version.info())?;
        let inputs = random_inputs(version, &Dims::parse(self.shape)?, None, 0, &options)?;
        let (_, dtype) = version.info().problem_of(&inputs)?;
        let (device, tracer) = device(self.order, self.copies)?;
        // Side by side; a plan loads one after the other.
        device.compile_missing(&version.sources())?;
        let mut prepared = version.prepare(&device, &inputs, &options)?;
        device.take_profile();
        tracer.take(); // what setting up has launched
        let launched = prepared.launch();
        let outputs = launched.is_ok().then(|| prepared.outputs());
        let traced = Traced { events: tracer.take(), profile: device.take_profile() };
        let wrong = match (launched, outputs) {
            (Err(error), _) if error.findings().is_some() => Some(error.to_string()),
            (Err(error), _) => return Err(error.into()),
            (Ok(()), None) => None,
            (Ok(()), Some(outputs)) => compare(version, &inputs, &outputs?, &options, dtype)
                .iter()
                .find(|c| !c.passed())
                .map(|c| format!("'{}' is wrong", c.name)),
        };
        Ok((traced, wrong))
    }
}

/// The file of a `file:line:column`.
fn file_of(place: &str) -> &str {
    place.split(':').next().unwrap_or("")
}

/// The lines of a kernel, or of a device function, in its file: from `template` to its last brace, counted from 1.
struct Listing {
    file: String,
    /// Each with its number.
    lines: Vec<(usize, String)>,
}

impl Listing {
    fn of(file: &str, text: &str, kernel: &str) -> Self {
        let lines: Vec<&str> = text.lines().collect();
        let function = |line: &str| line.contains("__global__") || line.contains("__device__");
        let begins = |n: &usize| {
            lines[*n].contains(&format!(" {kernel}("))
                && (function(lines[*n]) || *n > 0 && function(lines[*n - 1]))
        };
        let named = (0..lines.len()).find(begins).unwrap_or(0);
        let head = named - usize::from(named > 0 && !function(lines[named]));
        let template = head > 0 && lines[head - 1].starts_with("template");
        let first = head - usize::from(template);
        // A member's last brace stands below its first letter.
        let indent = lines.get(head).map_or(0, |l| l.len() - l.trim_start().len());
        let ends = |l: &&str| l.get(indent..).is_some_and(|l| l.starts_with('}'));
        let last = lines[head..].iter().position(ends).map_or(head, |n| head + n);
        // The corpus marks its bugs.
        let own = |line: &&str| line.split("  // BUG").next().unwrap_or("").to_owned();
        let lines = (first..=last).map(|n| (n + 1, own(&lines[n]))).collect();
        Self { file: file.to_owned(), lines }
    }

    /// Of a file, with no lines yet.
    fn empty(file: &str) -> Self {
        Self { file: file.to_owned(), lines: Vec::new() }
    }

    /// Of a stage's kernel.
    fn of_stage(file: &str, kernel: &str) -> Result<Self, Failure> {
        let text = profile::source(file);
        let text =
            text.ok_or_else(|| Failure::Wrong(format!("{file}: no such file of a stage")))?;
        Ok(Self::of(file, text, kernel))
    }

    fn keep(mut self, wanted: impl Fn(usize) -> bool) -> Self {
        self.lines.retain(|(number, _)| wanted(*number));
        self
    }

    /// These lines of it.
    fn only(self, range: RangeInclusive<usize>) -> Self {
        self.keep(|number| range.contains(&number))
    }

    /// These lines, and so many around each; not the marks of what the book includes.
    fn near(mut self, lines: &[usize], around: usize) -> Self {
        self.lines.retain(|(_, text)| !text.contains("// ANCHOR"));
        self.keep(|number| lines.iter().any(|l| l.abs_diff(number) <= around))
    }

    /// Those between the lines that have these two texts; to the end, if the second is empty.
    fn between(self, from: &str, to: &str) -> Self {
        let line = |text: &str| self.lines.iter().find(|l| l.1.contains(text)).map(|l| l.0);
        match (line(from), line(to)) {
            (Some(a), _) if to.is_empty() => self.keep(|number| number > a),
            (Some(a), Some(b)) => self.keep(|number| number > a && number < b),
            _ => self,
        }
    }

    /// As well these lines of its file.
    fn with(mut self, lines: &[usize]) -> Result<Self, Failure> {
        let text: Vec<&str> = profile::source(&self.file).unwrap_or_default().lines().collect();
        for &number in lines {
            let Err(at) = self.lines.binary_search_by_key(&number, |line| line.0) else { continue };
            let line = number.checked_sub(1).and_then(|n| text.get(n)).ok_or_else(|| {
                Failure::Wrong(format!("{}: a step in its line {number}, got none", self.file))
            })?;
            self.lines.insert(at, (number, (*line).to_owned()));
        }
        Ok(self)
    }

    /// What stands behind a line's `//`.
    fn comment(&self, line: usize) -> &str {
        let text = self.lines.iter().find(|l| l.0 == line);
        text.and_then(|t| t.1.split_once("// ")).map_or("", |(_, comment)| comment)
    }

    /// Numbered, each line with what `beside` puts behind it.
    fn markup(&self, beside: impl Fn(usize) -> Markup) -> Markup {
        self.markup_of(None, beside)
    }

    /// One of several: a line is known by the listing's number and its own.
    fn markup_of(&self, listing: Option<usize>, beside: impl Fn(usize) -> Markup) -> Markup {
        let known = |line: usize| match listing {
            Some(listing) => format!("{listing}.{line}"),
            None => line.to_string(),
        };
        html! {
            div.listing role="group" aria-label={ "Source: " (self.file) } {
                @for (number, text) in &self.lines {
                    div.line data-line=(known(*number)) {
                        span.number { (number) }
                        span.text { (text) }
                        (beside(*number))
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
