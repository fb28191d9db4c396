//! Runs of the emulator as figures that a reader steps through. Each stands in the page as a still that says the same, for
//! readers without scripts and on paper; `book/theme/moving.js` makes it move.

#![forbid(unsafe_code)]

mod barriers;
mod error;
mod lanes;
mod list;
mod listing;
mod phases;
mod race;
mod tiles;

pub use error::Error;
use lab_device::emulator::{self, Event, Landing, Order, Profile, Tracer};
use lab_device::{Device, Mode};
use lab_harness::{Dims, Options, Problem, compare};
use lab_registry::named_one;
use listing::{Listing, data, file_of, line_of};
use maud::{Markup, html};

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
#[derive(Debug)]
pub struct Trace {
    /// Of its file, and what a chapter includes.
    pub name: &'static str,
    /// The kernels.
    pub of: String,
    /// How many steps a reader may go.
    pub steps: usize,
    /// HTML without an empty line, which would end it within Markdown.
    pub figure: String,
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

/// Runs all of them on the emulator.
///
/// # Errors
/// A run does something else than its picture is to show.
pub fn all() -> Result<Vec<Trace>, Error> {
    list::FIGURES.iter().map(Figure::trace).collect()
}

impl Figure {
    fn trace(&self) -> Result<Trace, Error> {
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
fn device(order: Order, copies: Landing) -> Result<(Device, &'static Tracer), Error> {
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
    fn trace(&self) -> Result<Traced, Error> {
        let (traced, wrong) = self.trace_any()?;
        match wrong {
            None => Ok(traced),
            Some(wrong) => Err(Error::Wrong(format!("{}: {wrong}", self.version))),
        }
    }

    /// Of any version, and what is wrong with it.
    fn trace_any(&self) -> Result<(Traced, Option<String>), Error> {
        let version = named_one(self.version, None, "")?.version;
        let options = Options::parse(self.settings, version.info())?;
        let info = version.info();
        let dims = info.complete(&Dims::parse(self.shape)?)?;
        let problem = Problem { options: options.clone(), ..Problem::new(dims, info.dtypes[0]) };
        let inputs = version.inputs(&problem);
        let (_, dtype) = info.problem_of(&inputs)?;
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
