//! The phases of mbarriers: who waits for which, who arrives, and what has come.

use std::collections::{BTreeMap, HashSet};

use lab_device::emulator::{Event, Mbarrier, Signal, Step};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::{Drawn, Listing, Run, data, file_of, line_of};
use crate::Error;

/// Bytes of an mbarrier.
const BYTES: usize = 8;

/// Some blocks of a run, each with these rings of places.
pub(crate) struct Scene {
    pub(crate) run: Run,
    pub(crate) kernel: &'static str,
    /// Of the kernel the lines between these two texts.
    pub(crate) between: (&'static str, &'static str),
    /// Of these only the lines that steps are at, and so many around each.
    pub(crate) around: Option<usize>,
    pub(crate) rings: &'static [Ring],
    pub(crate) who: Who,
    /// What one thread after another does alike is one step: arrivals, and numbers that come.
    pub(crate) merged: bool,
    /// No more steps than these.
    pub(crate) most: usize,
}

/// Places for something that is brought, and their mbarriers.
pub(crate) struct Ring {
    /// What a place is called.
    pub(crate) place: &'static str,
    /// What is brought there: a tile, a chunk.
    pub(crate) what: &'static str,
    /// The shared array or struct of the barriers; empty for dynamic shared memory.
    pub(crate) array: &'static str,
    /// What is written before `full` and `empty` in the source.
    pub(crate) prefix: &'static str,
    pub(crate) places: usize,
    /// The number of what is brought first; its place is the one of that number.
    pub(crate) start: usize,
    /// Where the barriers are that say `full`, in bytes.
    pub(crate) full: usize,
    /// And those that say `empty`, if there are any.
    pub(crate) empty: Option<usize>,
}

/// Whose steps they are.
pub(crate) enum Who {
    /// Roles of the first block: a name, and the numbers of its threads, first to last. Of a role's threads the first
    /// speaks for all.
    Roles(&'static [(&'static str, u32, u32)]),
    /// So many blocks of a cluster.
    Blocks(u32),
}

impl Who {
    fn blocks(&self) -> u32 {
        match self {
            Self::Roles(_) => 1,
            Self::Blocks(blocks) => *blocks,
        }
    }

    fn name(&self, event: &Event) -> Option<String> {
        match self {
            Self::Roles(roles) => {
                let role = roles.iter().find(|r| (r.1..=r.2).contains(&event.thread));
                role.filter(|_| event.block == 0).map(|r| r.0.to_owned())
            }
            Self::Blocks(blocks) => {
                (event.block < *blocks).then(|| format!("block {}", event.block))
            }
        }
    }

    /// In the order in which they are drawn.
    fn all(&self) -> Vec<String> {
        match self {
            Self::Roles(roles) => roles.iter().map(|r| r.0.to_owned()).collect(),
            Self::Blocks(blocks) => (0..*blocks).map(|b| format!("block {b}")).collect(),
        }
    }
}

/// A barrier of a scene.
struct Barrier {
    /// As the source writes it.
    name: String,
    /// The number of its card: a place of a ring of a block.
    card: usize,
    full: bool,
}

/// A place.
struct Card {
    name: String,
    what: &'static str,
    /// Its number in its ring, and how many there are.
    place: usize,
    places: usize,
    start: usize,
    full: usize,
    empty: Option<usize>,
}

impl Card {
    /// The number of what a phase of its barriers is about.
    fn number(&self, phase: u32) -> usize {
        let first = (self.place + self.places - self.start % self.places) % self.places;
        phase as usize * self.places + first + self.start
    }
}

/// Something that a role does at a barrier.
struct Moment {
    who: String,
    file: String,
    line: usize,
    barrier: usize,
    does: Signal,
    now: Mbarrier,
    /// So many threads have done it.
    times: u32,
}

impl Moment {
    /// What its line is called in a listing of this file: its number, or with the name of another file `roles.cuh:163`.
    fn label(&self, file: &str) -> Value {
        let name = self.file.rsplit('/').next().unwrap_or_default();
        if self.file == file { self.line.into() } else { format!("{name}:{}", self.line).into() }
    }
}

impl Scene {
    pub(crate) fn draw(&self) -> Result<Drawn, Error> {
        let events = self.run.keep(self.run.trace()?.events);
        let (made, all) = self.moments(&events)?;
        let moments = &all[..all.len().min(self.most)];
        let (barriers, cards) = self.cards();
        let of_kernel = events.iter().find(|e| matches!(e.step, Step::Mbarrier { .. }));
        let file = of_kernel.map_or("", |e| file_of(&e.place.own));
        let listing = Listing::of_stage(file, self.kernel)?.between(self.between.0, self.between.1);
        let own = moments.iter().filter(|m| m.file == file);
        let lines: Vec<usize> = own.map(|m| m.line).collect();
        let listing = match self.around {
            Some(around) => listing.near(&lines, around),
            None => listing,
        };
        // A step may be in a function that the kernel calls, or in one of a header.
        let listing = listing.with(&lines)?;
        let mut code: Vec<Value> = listing.lines.iter().map(|line| json!(line)).collect();
        for moment in moments.iter().filter(|m| m.file != file) {
            let label = moment.label(file);
            if code.iter().all(|line| line[0] != label) {
                let other = Listing::empty(&moment.file).with(&[moment.line])?;
                code.push(json!([label, other.lines[0].1]));
            }
        }
        let body = html! {
            div.still { @for part in self.stills(&cards, &all) { (part) } }
            (data(&json!({
                "name": self.run.version, "code": code, "file": listing.file,
                "roles": self.who.all(),
                "cards": cards.iter().map(card_as_json).collect::<Vec<_>>(),
                "barriers": barriers.iter().map(|b| json!([b.name, b.card, u8::from(b.full)])).collect::<Vec<_>>(),
                "made": made.iter().map(state).collect::<Vec<_>>(),
                "steps": moments.iter().map(|m| as_json(m, file, self.merged)).collect::<Vec<_>>(),
            })))
        };
        Ok(Drawn { of: self.run.version.into(), steps: moments.len(), kind: "phases", body })
    }

    /// All barriers, block by block and ring by ring, and the places that they belong to.
    fn cards(&self) -> (Vec<Barrier>, Vec<Card>) {
        let (mut barriers, mut cards) = (Vec::new(), Vec::new());
        for block in 0..self.who.blocks() {
            for ring in self.rings {
                for place in 0..ring.places {
                    let numbered = |name: &str| match ring.places {
                        1 => format!("{}{name}", ring.prefix),
                        _ => format!("{}{name}[{place}]", ring.prefix),
                    };
                    let name = match (&self.who, ring.places) {
                        (Who::Blocks(_), _) => format!("block {block}, {} {place}", ring.place),
                        (_, 1) => ring.place.to_owned(),
                        _ => format!("{} {place}", ring.place),
                    };
                    let (card, full) = (cards.len(), barriers.len());
                    let said = if ring.empty.is_some() { numbered("full") } else { numbered("") };
                    barriers.push(Barrier { name: said, card, full: true });
                    let empty = ring.empty.map(|_| barriers.len());
                    if empty.is_some() {
                        barriers.push(Barrier { name: numbered("empty"), card, full: false });
                    }
                    let Ring { what, places, start, .. } = *ring;
                    cards.push(Card { name, what, place, places, start, full, empty });
                }
            }
        }
        (barriers, cards)
    }

    /// The number of the barrier that an event is at.
    fn barrier(&self, home: u32, array: &str, offset: usize) -> Option<usize> {
        if home >= self.who.blocks() {
            return None;
        }
        let mut number = 0;
        for block in 0..=home {
            for ring in self.rings {
                for place in 0..ring.places {
                    let starts = [Some(ring.full), ring.empty];
                    for start in starts.into_iter().flatten() {
                        if block == home && array == ring.array && offset == start + place * BYTES {
                            return Some(number);
                        }
                        number += 1;
                    }
                }
            }
        }
        None
    }

    /// How each barrier was made, and all that happens then, also past the steps that are shown.
    fn moments(&self, events: &[Event]) -> Result<(Vec<Mbarrier>, Vec<Moment>), Error> {
        let (barriers, _) = self.cards();
        let mut made = vec![None; barriers.len()];
        let mut all: Vec<Moment> = Vec::new();
        let mut told = HashSet::new();
        for event in events {
            let Step::Mbarrier { home, array, offset, does, now } = &event.step else { continue };
            let Some(barrier) = self.barrier(*home, &array.name, *offset) else { continue };
            let (does, line) = (*does, line_of(&event.place.own));
            let who = match does {
                Signal::Made => {
                    made[barrier].get_or_insert(*now);
                    continue;
                }
                Signal::Lands { .. } => match self.who {
                    Who::Roles(_) => "TMA".to_owned(),
                    Who::Blocks(_) => format!("block {}", event.block),
                },
                _ => match self.who.name(event) {
                    Some(who) => who,
                    None => continue,
                },
            };
            let once = matches!(does, Signal::Waits { .. } | Signal::Passes { .. });
            if once && !told.insert((who.clone(), barrier, does)) {
                continue;
            }
            let file = file_of(&event.place.own).to_owned();
            let moment = Moment { who, file, line, barrier, does, now: *now, times: 1 };
            if !(self.merged && merge(&mut all, &moment)) {
                all.push(moment);
            }
        }
        let made: Option<Vec<Mbarrier>> = made.into_iter().collect();
        match made {
            Some(made) => Ok((made, all)),
            None => Err(Error::Wrong(format!("{}: a barrier is never made", self.run.version))),
        }
    }

    /// A table for each ring of a block.
    fn stills(&self, cards: &[Card], moments: &[Moment]) -> Vec<Markup> {
        let mut tables = Vec::new();
        let mut first = 0;
        while first < cards.len() {
            let of_ring = &cards[first..first + cards[first].places];
            tables.push(still(
                of_ring,
                &brought(of_ring, moments, self.most),
                matches!(self.who, Who::Blocks(_)),
            ));
            first += of_ring.len();
        }
        tables
    }
}

/// Makes one step of what happens and what has just happened alike. What comes to a barrier comes from several senders in
/// turn: all of a sender's share is one step.
fn merge(all: &mut [Moment], new: &Moment) -> bool {
    let alike = |m: &Moment| m.who == new.who && m.barrier == new.barrier;
    match new.does {
        Signal::Arrives { expected: 0 } => match all.last_mut() {
            Some(last) if alike(last) && last.does == new.does && last.now.arrived > 0 => {
                last.now = new.now;
                last.times += 1;
                true
            }
            _ => false,
        },
        Signal::Lands { bytes } => {
            let since = all.iter().rposition(|m| !matches!(m.does, Signal::Lands { .. }));
            let coming = &mut all[since.map_or(0, |n| n + 1)..];
            let Some(own) = coming.iter().position(|m| alike(m) && m.now.landed > 0) else {
                return false;
            };
            if let Signal::Lands { bytes: sum } = &mut coming[own].does {
                *sum += bytes;
            }
            let mut later: Vec<&mut Moment> =
                coming[own..].iter_mut().filter(|m| m.barrier == new.barrier).collect();
            for moment in &mut later {
                moment.now.landed += bytes as u32;
            }
            if let Some(last) = later.last_mut() {
                last.now = new.now;
            }
            true
        }
        _ => false,
    }
}

fn card_as_json(card: &Card) -> Value {
    json!({ "name": card.name, "what": card.what, "places": card.places, "first": card.number(0), "full": card.full, "empty": card.empty })
}

fn state(now: &Mbarrier) -> [u32; 5] {
    [now.phase, now.arrived, now.count, now.landed, now.expected]
}

fn as_json(moment: &Moment, file: &str, merged: bool) -> Value {
    let (does, number) = match moment.does {
        Signal::Made => ("made", 0),
        Signal::Arrives { expected } => ("arrives", expected),
        Signal::Lands { bytes } => ("lands", bytes as u32),
        Signal::Waits { phase } => ("waits", phase),
        Signal::Passes { phase } => ("passes", phase),
    };
    let mut all = json!({
        "who": moment.who, "line": moment.label(file), "barrier": moment.barrier, "does": does, "n": number,
        "now": state(&moment.now),
    });
    if merged && matches!(moment.does, Signal::Arrives { expected: 0 }) {
        all["times"] = moment.times.into();
    }
    all
}

/// What happens to one tile: its bytes, and the numbers of the events.
#[derive(Default)]
struct Way {
    bytes: Vec<String>,
    asked: Vec<String>,
    complete: Vec<String>,
    left: Vec<String>,
    /// Bytes of it have come, or it is complete.
    sent: bool,
}

/// Adds an event's number, or once "later" where the event is not among the first `most`, which the figure shows.
fn note(events: &mut Vec<String>, number: usize, most: usize) {
    let said = if number <= most { number.to_string() } else { "later".to_owned() };
    if events.last() != Some(&said) {
        events.push(said);
    }
}

/// The tiles of a ring that the first `most` events are about, and what happens to each.
fn brought(ring: &[Card], moments: &[Moment], most: usize) -> BTreeMap<usize, Way> {
    let mut all: BTreeMap<usize, Way> = BTreeMap::new();
    for (n, moment) in moments.iter().enumerate() {
        let number = n + 1;
        let is = |card: &&Card| card.full == moment.barrier || card.empty == Some(moment.barrier);
        let Some(card) = ring.iter().find(is) else { continue };
        // A complete phase is over: the barrier is in the next one.
        let (is_complete, bytes) = match moment.does {
            Signal::Arrives { expected } => (moment.now.arrived == 0, expected),
            Signal::Lands { .. } => (moment.now.landed == 0, 0),
            _ => continue,
        };
        let tile = card.number(moment.now.phase - u32::from(is_complete));
        if number > most && !all.contains_key(&tile) {
            continue;
        }
        let way = all.entry(tile).or_default();
        if card.empty == Some(moment.barrier) {
            note(&mut way.left, number, most);
            continue;
        }
        if bytes > 0 {
            way.bytes.push(bytes.to_string());
            note(&mut way.asked, number, most);
        }
        if is_complete {
            note(&mut way.complete, number, most);
        }
        way.sent |= is_complete || matches!(moment.does, Signal::Lands { .. });
    }
    all
}

fn still(ring: &[Card], brought: &BTreeMap<usize, Way>, of_cluster: bool) -> Markup {
    let Some(first) = ring.first() else { return html! {} };
    let left = ring.iter().any(|c| c.empty.is_some());
    // Arrivals alone fill some places: nobody asks for bytes.
    let asked = brought.values().any(|way| !way.asked.is_empty());
    let ring_of = match first.name.trim_end_matches(" 0") {
        "place" => "each place",
        name => name,
    };
    html! {
        table {
            caption { "What comes into " (ring_of) ", and at which events of this run" }
            thead { tr {
                @for heading in [first.what, "place", "parity"] { th scope="col" { (heading) } }
                @if asked {
                    th scope="col" { "bytes" }
                    th scope="col" { @if of_cluster { "expected from event" } @else { "requested at event" } }
                }
                th scope="col" { "complete at event" }
                @if left { th scope="col" { "released at events" } }
            } }
            tbody {
                @for (tile, way) in brought {
                    tr {
                        td { (tile) } td { (tile % first.places) } td { ((tile - first.start) / first.places % 2) }
                        @if asked { @for said in [&way.bytes, &way.asked] { td { (said.join(", ")) } } }
                        td { @if way.sent { (way.complete.join(", ")) } @else { "never" } }
                        @if left { td { (way.left.join(", ")) } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scene(name: &str) -> (&'static Scene, &'static str) {
        let figure = super::super::list::FIGURES.iter().find(|f| f.name == name).unwrap();
        let super::super::Scene::Phases(scene) = &figure.scene else { panic!("{name}") };
        (scene, figure.caption)
    }

    #[test]
    fn each_tile_is_asked_for_comes_and_is_left() {
        let (scene, _) = scene("phases");
        let (made, moments) = scene.moments(&scene.run.trace().unwrap().events).unwrap();
        let counts: Vec<u32> = made.iter().map(|m| m.count).collect();
        assert_eq!(
            counts,
            [1, 2, 1, 2, 1, 2],
            "one producer fills a place, two consumers leave it"
        );
        let tiles = brought(&scene.cards().1, &moments, scene.most);
        assert_eq!(tiles.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        for (tile, way) in &tiles {
            let counts = (way.bytes.len(), way.asked.len(), way.complete.len());
            assert_eq!(counts, (1, 1, 1), "tile {tile}");
            // Nobody asks for a place that only the last tiles had.
            let left = &way.left;
            assert!(left.len() == 2 || *tile == 5 && left.is_empty(), "tile {tile}: {left:?}");
        }
        // The caption has these numbers.
        assert_eq!((&*tiles[&0].left.join(", "), &*tiles[&3].asked[0]), ("23, 27", "32"));
    }

    #[test]
    fn arrivals_alone_also_complete_a_phase() {
        let (scene, _) = scene("roles");
        let (_, moments) = scene.moments(&scene.run.trace().unwrap().events).unwrap();
        let (chunks, weights) =
            scene.cards().1.into_iter().partition::<Vec<_>, _>(|c| c.places == 4);
        for (ring, tiles) in [(chunks, 5), (weights, 5)] {
            let all = brought(&ring, &moments, usize::MAX);
            assert_eq!(all.len(), tiles);
            assert!(all.values().all(|way| way.complete.len() == 1));
        }
    }

    #[test]
    fn a_caption_says_what_is_cut_off_and_what_nobody_sends() {
        for (name, never) in [
            ("phases", 0),
            ("keys", 0),
            ("roles", 0),
            ("exchange", 1),
            ("dh_parts", 2),
            ("slices", 2),
            ("meeting", 2),
        ] {
            let (scene, caption) = scene(name);
            let (_, moments) = scene.moments(&scene.run.trace().unwrap().events).unwrap();
            let said = format!("the first {} events", scene.most);
            assert_eq!(caption.contains(&said), moments.len() > scene.most, "{name}: {caption}");
            let (_, cards) = scene.cards();
            let mut first = 0;
            while first < cards.len() {
                let ring = &cards[first..first + cards[first].places];
                let all: Vec<_> = brought(ring, &moments, scene.most).into_values().collect();
                let sent = all.len() - never;
                assert!(all[..sent].iter().all(|way| way.sent), "{name}");
                assert!(all[sent..].iter().all(|way| !way.sent), "{name}");
                first += ring.len();
            }
        }
    }
}
