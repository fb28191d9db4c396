//! A race as its two orders: what two threads that race read and store when the one runs first, and when the other does; and the
//! same behind the barrier that orders them.

use std::collections::{BTreeMap, HashSet};

use lab_corpus::Case;
use lab_device::emulator::{Check, Event, Landing, Operation, Order, Step};
use maud::{Markup, html};

use super::{Drawn, Listing, Run, device, file_of, line_of};
use crate::Error;

const ELEMENT: usize = 4;
const ORDERS: [Order; 2] = [Order::Forward, Order::Reverse];

/// Two cases of the corpus: in the first two threads race, in the second nothing is wrong.
pub(crate) struct Scene {
    pub(crate) wrong: &'static str,
    pub(crate) right: &'static str,
}

/// What one of the two threads does, with the elements of shared memory as they are then.
struct Row {
    thread: u32,
    line: usize,
    what: What,
    memory: BTreeMap<usize, String>,
}

enum What {
    Stores { to: String, value: String },
    Loads { from: String, value: String, written: bool },
    Waits,
}

impl Scene {
    pub(crate) fn draw(&self) -> Result<Drawn, Error> {
        let (wrong, right) = (case(self.wrong)?, case(self.right)?);
        let pair = racing(&wrong)?;
        let (mut runs, mut steps) = (Vec::new(), 0);
        for (name, case) in [("without a barrier", &wrong), ("with it", &right)] {
            let rows = |order: &Order| rows(case, *order, pair);
            let orders: Vec<Vec<Row>> = ORDERS.iter().map(rows).collect::<Result<_, _>>()?;
            steps += orders[0].len();
            runs.push(run(name, case, &orders, pair));
        }
        let body = html! { div.still { @for run in &runs { (run) } } };
        Ok(Drawn {
            of: format!("corpus: {}, {}", self.wrong, self.right),
            steps,
            kind: "race",
            body,
        })
    }
}

fn case(name: &str) -> Result<Case, Error> {
    let found = lab_corpus::cases().into_iter().find(|c| c.name == name);
    found.ok_or_else(|| Error::Wrong(format!("{name}: no such case of the corpus")))
}

/// The two threads of the race that the checks find, the lower one first.
fn racing(case: &Case) -> Result<(u32, u32), Error> {
    let (device, _) = device(Order::Forward, Landing::Late)?;
    let error = lab_corpus::run(case, &device).err();
    let findings = error.as_ref().and_then(|e| e.findings());
    let race = findings.and_then(|f| f.all.iter().find(|f| f.kind.check() == Check::Race));
    match race.map(|race| &race.accesses[..]) {
        Some([a, b]) => Ok((a.thread[0].min(b.thread[0]), a.thread[0].max(b.thread[0]))),
        _ => Err(Error::Wrong(format!("{}: expected a race of two accesses", case.name))),
    }
}

fn rows(case: &Case, order: Order, pair: (u32, u32)) -> Result<Vec<Row>, Error> {
    let (device, tracer) = device(order, Landing::Late)?;
    match lab_corpus::run(case, &device) {
        Ok(_) => {}
        Err(error) if error.findings().is_some() => {}
        Err(error) => return Err(Error::Wrong(error.to_string())),
    }
    let mut memory = BTreeMap::from([pair.0, pair.1].map(|n| (n as usize, String::from("–"))));
    let mut rows = Vec::new();
    for event in tracer.take().iter().filter(|e| [pair.0, pair.1].contains(&e.thread)) {
        if let Some(what) = what(event, &mut memory) {
            let line = line_of(&event.place.inner);
            rows.push(Row { thread: event.thread, line, what, memory: memory.clone() });
        }
    }
    Ok(rows)
}

/// What an event shows, and what it changes in memory; nothing for the load of what is stored to the tile.
fn what(event: &Event, memory: &mut BTreeMap<usize, String>) -> Option<What> {
    let (operation, array, offset, value) = match &event.step {
        Step::Access { operation, array, offset, value, .. } => (operation, array, offset, value),
        Step::Comes { .. } => return Some(What::Waits),
        Step::Mbarrier { .. } => return None,
    };
    let index = offset / ELEMENT;
    let name = format!("{}[{index}]", array.name);
    let number = float(value);
    match operation {
        Operation::SharedStore => {
            memory.insert(index, number.clone());
            Some(What::Stores { to: name, value: number })
        }
        Operation::GlobalStore => Some(What::Stores { to: name, value: number }),
        Operation::SharedLoad => {
            let written = memory.get(&index).is_some_and(|v| *v == number);
            Some(What::Loads { from: name, value: number, written })
        }
        _ => None,
    }
}

fn float(bytes: &[u8]) -> String {
    bytes.try_into().map_or_else(|_| "?".into(), |b| f32::from_ne_bytes(b).to_string())
}

fn run(name: &str, case: &Case, orders: &[Vec<Row>], pair: (u32, u32)) -> Markup {
    let file = format!("shared/corpus/{}", case.source.file);
    let listing = Listing::of(&file, case.source.source, case.name);
    html! {
        div.run data-name=(name) {
            p.label { b { (name) } }
            (listing.markup(|_| html! {}))
            div.orders {
                @for rows in orders { (table(rows, pair)) }
            }
        }
    }
}

fn table(rows: &[Row], (a, b): (u32, u32)) -> Markup {
    let first = rows.first().map_or(a, |r| r.thread);
    html! {
        table.order {
            caption { "thread " (first) " runs first" }
            thead { tr {
                th scope="col" { "thread " (a) }
                @for index in rows.first().iter().flat_map(|r| r.memory.keys()) {
                    th.cell scope="col" { "tile[" (index) "]" }
                }
                th scope="col" { "thread " (b) }
            } }
            tbody {
                @for (step, row) in rows.iter().enumerate() {
                    tr data-step=(step) data-at=(row.line) data-says={ "Thread " (first) " first: thread " (row.thread) " " (words(&row.what)) "." } {
                        td { @if row.thread == a { (act(&row.what)) } }
                        @for value in row.memory.values() { td.cell { (value) } }
                        td { @if row.thread == b { (act(&row.what)) } }
                    }
                }
            }
        }
    }
}

/// In a cell, short.
fn act(what: &What) -> Markup {
    html! {
        @match what {
            What::Stores { to, value } => { (to) " = " (value) }
            What::Loads { from, value, written: true } => { "reads " (from) ": " (value) }
            What::Loads { from, value, written: false } => { strong.bad { "reads " (from) ": " (value) } }
            What::Waits => { "waits at the barrier" }
        }
    }
}

fn words(what: &What) -> String {
    match what {
        What::Stores { to, value } => format!("stores {value} to {to}"),
        What::Loads { from, value, written: true } => format!("reads {value} from {from}"),
        What::Loads { from, value, written: false } => {
            format!("reads {from} before anybody has written it: {value}")
        }
        What::Waits => "comes to the barrier and waits for the whole block".into(),
    }
}

/// Elements of a static shared array, which each block has for itself: who stores them, and who reads them.
pub(crate) struct BlocksScene {
    /// One run a name: the same version with other settings.
    pub(crate) runs: &'static [(&'static str, Run)],
    pub(crate) kernel: &'static str,
    pub(crate) array: &'static str,
    /// The elements, each by its row, in column 0.
    pub(crate) rows: [usize; 2],
    /// So many blocks are shown.
    pub(crate) blocks: u32,
}

/// Something that a block does for the first time.
struct Deed {
    block: u32,
    line: usize,
    what: What,
    /// Of each block that is shown, its elements then.
    memory: Vec<[String; 2]>,
}

impl BlocksScene {
    pub(crate) fn draw(&self) -> Result<Drawn, Error> {
        let (mut runs, mut steps, mut of) = (Vec::new(), 0, "");
        for (name, run) in self.runs {
            let deeds = self.deeds(&run.trace_any()?.0.events);
            steps += deeds.deeds.len();
            of = run.version;
            let lines: Vec<usize> = deeds.deeds.iter().map(|d| d.line).collect();
            let listing = Listing::of_stage(&deeds.file, self.kernel)?.near(&lines, 2);
            runs.push(html! {
                div.run data-name=(name) {
                    p.label { b { (name) } }
                    (listing.markup(|_| html! {}))
                    (self.table(&deeds.deeds))
                }
            });
        }
        let body = html! { div.still { @for run in &runs { (run) } } };
        Ok(Drawn { of: of.into(), steps, kind: "race", body })
    }

    fn name(&self, element: usize) -> String {
        format!("{}[{}][0]", self.array, self.rows[element])
    }

    /// Each kind of thing that a block does to an element counts once, by whichever of its threads.
    fn deeds(&self, events: &[Event]) -> Deeds {
        let shown = 1 + events.iter().map(|e| e.block).max().unwrap_or(0);
        let nothing = || [String::from("–"), String::from("–")];
        let mut memory: Vec<[String; 2]> = (0..shown.min(self.blocks)).map(|_| nothing()).collect();
        let mut all = Deeds { file: String::new(), deeds: Vec::new() };
        let mut known = HashSet::new();
        let mut came = Vec::new();
        for event in events.iter().filter(|e| e.block < self.blocks) {
            let (block, line) = (event.block, line_of(&event.place.own));
            let what = match &event.step {
                Step::Access { operation, array, offset, value, .. }
                    if array.name == self.array =>
                {
                    let pitch = ELEMENT * array.dims.last().copied().unwrap_or(1);
                    let at = |row: &usize| row * pitch == *offset;
                    let Some(element) = self.rows.iter().position(at) else { continue };
                    if !known.insert((block, element, *operation)) {
                        continue;
                    }
                    let (name, value) = (self.name(element), short(value));
                    let cell = &mut memory[block as usize][element];
                    match operation {
                        Operation::SharedStore => {
                            cell.clone_from(&value);
                            What::Stores { to: name, value }
                        }
                        _ => What::Loads { from: name, written: *cell == value, value },
                    }
                }
                // The barrier between the stores and the loads.
                Step::Comes { .. } if !came.contains(&block) => {
                    came.push(block);
                    What::Waits
                }
                _ => continue,
            };
            all.file = file_of(&event.place.own).to_owned();
            all.deeds.push(Deed { block, line, what, memory: memory.clone() });
        }
        all
    }

    fn table(&self, deeds: &[Deed]) -> Markup {
        let blocks = deeds.first().map_or(0, |d| d.memory.len());
        html! {
            div.wide {
                table.order {
                    thead {
                        tr {
                            th rowspan="2" scope="col" { "what happens" }
                            @for block in 0..blocks { th colspan="2" scope="colgroup" { (self.array) " of block " (block) } }
                        }
                        tr {
                            @for _ in 0..blocks {
                                @for row in self.rows { th.cell scope="col" { "[" (row) "][0]" } }
                            }
                        }
                    }
                    tbody {
                        @for (step, deed) in deeds.iter().enumerate() {
                            tr data-step=(step) data-at=(deed.line) data-says={ "Block " (deed.block) ", line " (deed.line) ": it " (words_of_block(&deed.what)) "." } {
                                td { "block " (deed.block) " " (act_of_block(&deed.what)) }
                                @for value in deed.memory.iter().flatten() { td.cell { (value) } }
                            }
                        }
                    }
                }
            }
        }
    }
}

struct Deeds {
    /// Of the kernel.
    file: String,
    deeds: Vec<Deed>,
}

/// A number with two digits behind the point.
fn short(bytes: &[u8]) -> String {
    bytes.try_into().map_or_else(|_| "?".into(), |b| format!("{:.2}", f32::from_ne_bytes(b)))
}

fn act_of_block(what: &What) -> Markup {
    html! {
        @match what {
            What::Stores { to, .. } => { "stores " (to) }
            What::Loads { from, value, written: true } => { "reads " (from) ": " (value) }
            What::Loads { from, value, written: false } => { strong.bad { "reads " (from) ": " (value) } }
            What::Waits => "waits for the grid",
        }
    }
}

fn words_of_block(what: &What) -> String {
    match what {
        What::Stores { to, value } => format!("stores {value} to {to}, in its own shared memory"),
        What::Loads { from, value, written: true } => {
            format!("reads {value} from {from}, which it has stored itself")
        }
        What::Loads { from, value, written: false } => format!(
            "reads {from} from its own shared memory, where nothing has been stored: {value}"
        ),
        What::Waits => "waits until all blocks of the grid are there".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of the two reads, in both orders.
    fn read(name: &str) -> Vec<Vec<(u32, bool)>> {
        let pair = racing(&case("tile_without_barrier").unwrap()).unwrap();
        let loads = |row: &Row| match row.what {
            What::Loads { written, .. } => Some((row.thread, written)),
            _ => None,
        };
        let of = |order| rows(&case(name).unwrap(), order, pair).unwrap();
        ORDERS.iter().map(|o| of(*o).iter().filter_map(loads).collect()).collect()
    }

    #[test]
    fn who_runs_first_reads_too_early() {
        assert_eq!(
            read("tile_without_barrier"),
            [[(31, false), (32, true)], [(32, false), (31, true)]]
        );
    }

    #[test]
    fn a_block_reads_what_another_block_has_stored_in_its_own_memory() {
        let figure = super::super::list::FIGURES.iter().find(|f| f.name == "shared");
        let Some(super::super::Scene::Blocks(scene)) = figure.map(|f| &f.scene) else { panic!() };
        let lacking = |run: &Run| {
            let deeds = scene.deeds(&run.trace_any().unwrap().0.events).deeds;
            let lacks = |d: &Deed| match &d.what {
                What::Loads { from, written: false, .. } => Some((d.block, from.clone())),
                _ => None,
            };
            deeds.iter().filter_map(lacks).collect::<Vec<_>>()
        };
        let [(_, one), (_, four)] = scene.runs else { panic!() };
        assert_eq!(lacking(one), []);
        assert_eq!(lacking(four), [(0, "q_tile[1][0]".into()), (1, "q_tile[4][0]".into())]);
    }

    #[test]
    fn behind_the_barrier_both_read_what_was_written() {
        assert_eq!(read("tile_with_barrier"), [[(31, true), (32, true)], [(32, true), (31, true)]]);
    }
}
