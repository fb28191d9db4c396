//! Which addresses the lanes of a warp touch, line by line, and what that costs.

use std::collections::HashMap;

use lab_checker::counted::unit;
use lab_device::emulator::{Event, Operation, Sample, Step};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::{Drawn, Listing, Run, Traced, data, file_of, line_of};
use crate::Error;

const LANES: usize = 32;
/// Bytes of an element.
const WORD: usize = 4;
/// The first warp of a block, in one version or several.
pub(crate) struct Scene {
    pub(crate) versions: &'static [Version],
    /// Of these arrays; of all of them, if there are none.
    pub(crate) arrays: &'static [&'static str],
    /// Columns of an array in device memory, of whose dimensions a kernel says nothing.
    pub(crate) pitch: usize,
    /// What dynamic shared memory holds; accesses to the rest of it are left out.
    pub(crate) parts: &'static [Part],
    /// This alone, and not all that a warp does.
    pub(crate) only: Option<Operation>,
    /// No more steps of a version than these.
    pub(crate) most: usize,
}

/// An array in dynamic shared memory.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// Its first byte, and the one behind its last.
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// Elements from row to row.
    pub(crate) pitch: usize,
    /// In the listing, what the line says that reads it; empty where that is the line of the kernel's own file.
    pub(crate) line: &'static str,
}

pub(crate) struct Version {
    pub(crate) name: &'static str,
    pub(crate) kernel: &'static str,
    /// The file that it is in, where that is not the kernel's own.
    pub(crate) file: &'static str,
    pub(crate) run: Run,
    /// All of the kernel's lines are shown, not only those that the steps are at.
    pub(crate) whole: bool,
}

/// What a warp does as one.
enum Act {
    Access {
        operation: Operation,
        array: String,
        sample: Box<Sample>,
    },
    /// Its block waits. By then its threads have stored these bytes of shared memory, first to last.
    Barrier {
        written: Vec<(usize, usize)>,
    },
}

/// An act, its place in the source, and its line in the kernel's own file.
struct Moment {
    place: String,
    line: usize,
    act: Act,
}

/// One version's run.
struct Shown {
    name: &'static str,
    listing: Listing,
    arrays: Vec<Shape>,
    moments: Vec<Moment>,
}

/// An array as it is drawn.
struct Shape {
    name: String,
    shared: bool,
    rows: usize,
    /// Elements from row to row.
    pitch: usize,
}

impl Scene {
    pub(crate) fn draw(&self) -> Result<Drawn, Error> {
        let shown: Vec<Shown> =
            self.versions.iter().map(|v| self.show(v)).collect::<Result<_, _>>()?;
        let runs: Vec<Value> = shown.iter().map(as_json).collect();
        let body = html! {
            div.still { @for run in &shown { (still(run)) } }
            (data(&json!({ "runs": runs })))
        };
        let names: Vec<&str> = self.versions.iter().map(|v| v.run.version).collect();
        let steps = shown.iter().map(|s| s.moments.len()).sum();
        Ok(Drawn { of: names.join(", "), steps, kind: "lanes", body })
    }

    fn show(&self, version: &Version) -> Result<Shown, Error> {
        let traced = version.run.trace()?;
        hold(version.name, &traced)?;
        let events = version.run.keep(traced.events);
        let file = events.first().map_or("", |e| file_of(&e.place.own)).to_owned();
        let file = if version.file.is_empty() { file } else { version.file.to_owned() };
        let listing = Listing::of_stage(&file, version.kernel)?;
        let wanted = |name: &str| self.arrays.is_empty() || self.arrays.contains(&name);
        let mut moments = of_warp(&events, 0);
        moments.retain(|m| match &m.act {
            Act::Access { operation, .. } => self.only.is_none_or(|only| only == *operation),
            Act::Barrier { .. } => self.arrays.is_empty() && self.only.is_none(),
        });
        let mut arrays: Vec<Shape> = Vec::new();
        if self.parts.is_empty() {
            moments.retain(|m| match &m.act {
                Act::Access { array, .. } => wanted(array),
                Act::Barrier { .. } => true,
            });
            moments.truncate(self.most);
            for event in &events {
                let Step::Access { operation, array, offset, bytes, .. } = &event.step else {
                    continue;
                };
                if !wanted(&array.name) {
                    continue;
                }
                let at = arrays.iter().position(|a| a.name == array.name).unwrap_or_else(|| {
                    let pitch = array.dims.last().copied().unwrap_or(self.pitch);
                    let (name, shared) = (array.name.clone(), operation.shared());
                    arrays.push(Shape { name, shared, rows: 0, pitch });
                    arrays.len() - 1
                });
                let rows = (offset + bytes).div_ceil(WORD * arrays[at].pitch);
                arrays[at].rows = arrays[at].rows.max(rows);
            }
        } else {
            moments.retain_mut(|m| self.parts.iter().any(|part| part.takes(m, &listing)));
            moments.truncate(self.most);
            let shape = |part: &Part| {
                let last = moments.iter().filter_map(|m| m.last(part.name)).max()?;
                let rows = last.div_ceil(WORD * part.pitch);
                Some(Shape { name: part.name.into(), shared: true, rows, pitch: part.pitch })
            };
            arrays = self.parts.iter().filter_map(shape).collect();
        }
        let lines = || moments.iter().map(|m| m.line);
        let listing = match (version.whole, lines().min(), lines().max()) {
            (false, Some(first), Some(last)) => listing.only(first..=last),
            _ => listing,
        };
        Ok(Shown { name: version.name, listing, arrays, moments })
    }
}

impl Part {
    /// Whether a moment is an access to it; if so, it is counted from its first byte from now on.
    fn takes(&self, moment: &mut Moment, listing: &Listing) -> bool {
        let Act::Access { array, sample, .. } = &mut moment.act else { return false };
        let inside = |offset: &usize| (self.from..self.to).contains(offset);
        if !array.is_empty() || !sample.lanes.iter().flatten().all(inside) {
            return false;
        }
        *array = self.name.into();
        sample.lanes.iter_mut().flatten().for_each(|offset| *offset -= self.from);
        if !self.line.is_empty()
            && let Some(line) = listing.lines.iter().find(|l| l.1.contains(self.line))
        {
            moment.line = line.0;
        }
        true
    }
}

impl Moment {
    /// The byte behind the last that it touches of this array.
    fn last(&self, name: &str) -> Option<usize> {
        match &self.act {
            Act::Access { array, sample, .. } if array == name => {
                sample.lanes.iter().flatten().max().map(|offset| offset + sample.bytes)
            }
            _ => None,
        }
    }
}

/// What a warp of the first block does, in the order in which its first lane does it.
///
/// The n-th time that a lane comes by an instruction since its last barrier belongs to the n-th time of its neighbours,
/// as in the emulator's own counters.
fn of_warp(events: &[Event], warp: usize) -> Vec<Moment> {
    let mut moments: Vec<Moment> = Vec::new();
    let mut known: HashMap<(usize, &str, Operation, usize), usize> = HashMap::new();
    let mut turns: HashMap<(usize, usize, &str, Operation), usize> = HashMap::new();
    let mut barriers = [0; LANES];
    let mut stored: Vec<(usize, usize)> = Vec::new();
    let mut waiting = None;
    for event in events.iter().filter(|e| e.block == 0) {
        let (place, thread) = (&*event.place.inner, event.thread as usize);
        let lane = (thread / LANES == warp).then_some(thread % LANES);
        let line = line_of(&event.place.own);
        match &event.step {
            Step::Access { operation, array, offset, bytes, .. } => {
                if *operation == Operation::SharedStore {
                    stored.push((*offset, offset + bytes));
                }
                let Some(lane) = lane else { continue };
                let turn = turns.entry((lane, barriers[lane], place, *operation)).or_default();
                let key = (barriers[lane], place, *operation, *turn);
                *turn += 1;
                let index = *known.entry(key).or_insert_with(|| {
                    let lanes = [None; LANES];
                    let sample = Box::new(Sample { bytes: *bytes, lanes, cost: 0, ideal: 0 });
                    let array = array.name.clone();
                    let act = Act::Access { operation: *operation, array, sample };
                    moments.push(Moment { place: place.to_owned(), line, act });
                    moments.len() - 1
                });
                if let Act::Access { sample, .. } = &mut moments[index].act {
                    sample.lanes[lane] = Some(*offset);
                }
            }
            Step::Mbarrier { .. } => {}
            Step::Comes { met } => {
                if let Some(lane) = lane {
                    barriers[lane] += 1;
                    if lane == 0 {
                        waiting = Some(moments.len());
                        let act = Act::Barrier { written: Vec::new() };
                        moments.push(Moment { place: place.to_owned(), line, act });
                    }
                }
                if *met && let Some(index) = waiting.take() {
                    moments[index].act = Act::Barrier { written: merged(&mut stored) };
                }
            }
        }
    }
    for moment in &mut moments {
        if let Act::Access { operation, sample, .. } = &mut moment.act {
            **sample = Sample::of(*operation, sample.bytes, sample.lanes);
        }
    }
    moments
}

/// Ranges that touch or overlap made one.
fn merged(ranges: &mut [(usize, usize)]) -> Vec<(usize, usize)> {
    ranges.sort_unstable();
    let mut all: Vec<(usize, usize)> = Vec::new();
    for &(start, end) in ranges.iter() {
        match all.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => all.push((start, end)),
        }
    }
    all
}

fn as_json(run: &Shown) -> Value {
    let arrays = run
        .arrays
        .iter()
        .map(|a| json!({ "name": a.name, "shared": a.shared, "rows": a.rows, "pitch": a.pitch }));
    let steps = run.moments.iter().map(|moment| {
        let line = moment.line;
        match &moment.act {
            Act::Access { operation, array, sample } => json!({
                "line": line, "does": operation.name(), "unit": unit(*operation),
                "array": run.arrays.iter().position(|a| a.name == *array), "bytes": sample.bytes,
                "lanes": sample.lanes, "cost": sample.cost, "ideal": sample.ideal,
            }),
            Act::Barrier { written } => {
                json!({ "line": line, "does": "barrier", "written": written })
            }
        }
    });
    json!({
        "name": run.name, "file": run.listing.file,
        "code": run.listing.lines, "arrays": arrays.collect::<Vec<_>>(),
        "steps": steps.collect::<Vec<_>>(),
    })
}

/// The same as a table: a line for all accesses of a place that cost the same.
fn still(run: &Shown) -> Markup {
    let mut rows: Vec<(&Moment, usize)> = Vec::new();
    for moment in &run.moments {
        let same = |m: &Moment| match (&m.act, &moment.act) {
            (
                Act::Access { operation: a, sample: x, .. },
                Act::Access { operation: b, sample: y, .. },
            ) => m.line == moment.line && m.place == moment.place && a == b && x.cost == y.cost,
            _ => false,
        };
        match rows.iter_mut().find(|(m, _)| same(m)) {
            Some((_, times)) => *times += 1,
            None => rows.push((moment, 1)),
        }
    }
    html! {
        table {
            caption { (run.name) ", one warp of " (LANES) " lanes" }
            thead { tr {
                th scope="col" { "line" } th scope="col" { "what it does" } th scope="col" { "times" }
                th scope="col" { "from lane to lane" } th scope="col" { "cost of each" } th scope="col" { "minimum" }
            } }
            tbody {
                @for (moment, times) in rows {
                    tr {
                        td { (moment.line) }
                        @match &moment.act {
                            Act::Access { operation, array, sample } => {
                                td { (operation.name()) ", " (array) }
                                td { (times) }
                                td { (stride(sample)) }
                                td { (cost(sample, *operation)) }
                                td { (sample.ideal) }
                            }
                            Act::Barrier { .. } => { td { "barrier" } td { (times) } td {} td {} td {} }
                        }
                    }
                }
            }
        }
    }
}

/// `1 wavefront`
fn cost(sample: &Sample, operation: Operation) -> String {
    let unit = unit(operation);
    let unit = if sample.cost == 1 { unit.trim_end_matches('s') } else { unit };
    format!("{} {unit}", sample.cost)
}

/// How far apart the addresses of neighbouring lanes are.
fn stride(sample: &Sample) -> String {
    let lanes: Vec<usize> = sample.lanes.iter().flatten().copied().collect();
    let mut steps: Vec<usize> = lanes.windows(2).map(|l| l[1].abs_diff(l[0])).collect();
    steps.dedup();
    match steps[..] {
        [one] => format!("{one} bytes"),
        _ => "differs".into(),
    }
}

/// What the pictures of all warps add up to must be what the emulator has counted.
fn hold(name: &str, traced: &Traced) -> Result<(), Error> {
    let mut shown: HashMap<(String, Operation), [u64; 3]> = HashMap::new();
    let warps = 1 + traced.events.iter().map(|e| e.thread as usize / LANES).max().unwrap_or(0);
    for moment in (0..warps).flat_map(|warp| of_warp(&traced.events, warp)) {
        let Act::Access { operation, sample, .. } = moment.act else { continue };
        let sum = shown.entry((moment.place, operation)).or_default();
        let lanes = sample.lanes.iter().flatten().count() as u64;
        for (sum, one) in sum.iter_mut().zip([sample.cost, sample.ideal, lanes]) {
            *sum += one;
        }
    }
    // What TMA copies and what wgmma reads by itself is no thread's access, and no event tells of it.
    let by_threads = |o: Operation| {
        use Operation::{BulkLoad, BulkStore, Operands};
        !matches!(o, BulkLoad | BulkStore | Operands)
    };
    let counted = traced.profile.lines.iter().filter(|l| by_threads(l.operation));
    let lines = counted.filter(|l| !unit(l.operation).is_empty());
    let counted: HashMap<(String, Operation), [u64; 3]> = lines
        .map(|l| ((l.place.clone(), l.operation), [l.counts.cost, l.counts.ideal, l.counts.lanes]))
        .collect();
    if shown == counted {
        Ok(())
    } else {
        Err(Error::Wrong(format!("{name}: the trace has {shown:?}, counted were {counted:?}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_that_lacks_an_access_is_refused() {
        let mut traced = Run::of("playg:transpose_padded", "R=32,C=32").trace().unwrap();
        hold("transpose_padded", &traced).unwrap();
        traced.events.pop();
        assert!(hold("transpose_padded", &traced).is_err());
    }

    /// A picture of banks counts from the beginning of an array.
    #[test]
    fn parts_begin_at_the_first_bank() {
        for figure in super::super::list::FIGURES {
            let super::super::Scene::Lanes(scene) = &figure.scene else { continue };
            for part in scene.parts {
                assert!(part.from.is_multiple_of(WORD * LANES), "{}: {}", figure.name, part.name);
            }
        }
    }

    /// What the chapter says of a step of four columns: loads of one row for half a warp, and of a row for each lane.
    #[test]
    fn twins_halve_the_wavefronts_of_other_rows() {
        let figure = super::super::list::FIGURES.iter().find(|f| f.name == "twins");
        let Some(super::super::Scene::Lanes(scene)) = figure.map(|f| &f.scene) else { panic!() };
        let costs = |version: &Version| -> Vec<u64> {
            let moments = scene.show(version).unwrap().moments;
            let cost = |m: &Moment| match &m.act {
                Act::Access { sample, .. } => sample.cost,
                Act::Barrier { .. } => 0,
            };
            moments.iter().map(cost).collect()
        };
        let [rows, twins] = [&scene.versions[0], &scene.versions[1]].map(costs);
        assert_eq!(rows, [2, 2, 2, 2, 2, 2, 2, 2, 4, 4, 4, 4]);
        assert_eq!(twins, [2; 12]);
    }

    #[test]
    fn a_turned_load_asks_each_bank_once() {
        let figure = super::super::list::FIGURES.iter().find(|f| f.name == "turned");
        let Some(super::super::Scene::Lanes(scene)) = figure.map(|f| &f.scene) else { panic!() };
        let moments = scene.show(&scene.versions[0]).unwrap().moments;
        assert_eq!(moments.len(), 16);
        for moment in moments {
            let Act::Access { sample, .. } = moment.act else { panic!() };
            let mut banks: Vec<_> =
                sample.lanes.iter().flatten().map(|o| o / WORD % LANES).collect();
            banks.sort_unstable();
            assert_eq!(banks, (0..LANES).collect::<Vec<_>>());
            assert_eq!(sample.cost, 1);
        }
    }

    #[test]
    fn ranges_are_merged() {
        assert_eq!(merged(&mut [(8, 12), (0, 4), (4, 8), (16, 20)]), [(0, 12), (16, 20)]);
    }
}
