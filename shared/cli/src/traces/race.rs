//! A race as its two orders: what two threads that race read and store when the one runs first, and when the other does; and the
//! same behind the barrier that orders them.

use std::collections::BTreeMap;

use lab_corpus::Case;
use lab_device::emulator::{Check, Event, Landing, Operation, Order, Step};
use maud::{Markup, html};

use super::{Listing, Trace, device, line_of, one_line};
use crate::failure::Failure;

const ELEMENT: usize = 4;
const ORDERS: [Order; 2] = [Order::Forward, Order::Reverse];

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

pub(super) fn trace() -> Result<Trace, Failure> {
    let (wrong, right) = (case("tile_without_barrier")?, case("tile_with_barrier")?);
    let pair = racing(&wrong)?;
    let (mut runs, mut steps) = (Vec::new(), 0);
    for (name, case) in [("without a barrier", &wrong), ("with it", &right)] {
        let rows = |order: &Order| rows(case, *order, pair);
        let orders: Vec<Vec<Row>> = ORDERS.iter().map(rows).collect::<Result<_, _>>()?;
        steps += orders[0].len();
        runs.push(run(name, case, &orders, pair));
    }
    let figure = html! {
        figure.moving data-scene="race" {
            div.still { @for run in &runs { (run) } }
            figcaption {
                "Threads " (pair.0) " and " (pair.1) " of the report above, in two runs of the emulator: in the order of their numbers, and "
                "in the reverse. What nobody has written is NaN."
            }
        }
    };
    Ok(Trace {
        name: "race",
        of: "corpus: tile_without_barrier, tile_with_barrier",
        steps,
        figure: one_line(figure),
    })
}

fn case(name: &str) -> Result<Case, Failure> {
    let found = lab_corpus::cases().into_iter().find(|c| c.name == name);
    found.ok_or_else(|| Failure::Wrong(format!("{name}: no such case of the corpus")))
}

/// The two threads of the race that the checks find, the lower one first.
fn racing(case: &Case) -> Result<(u32, u32), Failure> {
    let (device, _) = device(Order::Forward, Landing::Late)?;
    let error = lab_corpus::run(case, &device).err();
    let findings = error.as_ref().and_then(|e| e.findings());
    let race = findings.and_then(|f| f.all.iter().find(|f| f.kind.check() == Check::Race));
    match race.map(|race| &race.accesses[..]) {
        Some([a, b]) => Ok((a.thread[0].min(b.thread[0]), a.thread[0].max(b.thread[0]))),
        _ => Err(Failure::Wrong(format!("{}: expected a race of two accesses", case.name))),
    }
}

fn rows(case: &Case, order: Order, pair: (u32, u32)) -> Result<Vec<Row>, Failure> {
    let (device, tracer) = device(order, Landing::Late)?;
    match lab_corpus::run(case, &device) {
        Ok(_) => {}
        Err(error) if error.findings().is_some() => {}
        Err(error) => return Err(Failure::Wrong(error.to_string())),
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
    fn behind_the_barrier_both_read_what_was_written() {
        assert_eq!(read("tile_with_barrier"), [[(31, true), (32, true)], [(32, true), (31, true)]]);
    }
}
