//! The phases of mbarriers: a ring of places in `matmul:v10_roles`, which one thread has filled and two warpgroups use.

use std::collections::{BTreeMap, HashSet};

use lab_device::emulator::{Event, Landing, Mbarrier, Order, Signal, Step};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::{Listing, Trace, data, line_of, one_line, run_version_with};
use crate::failure::Failure;

const WARPGROUP: u32 = 128;
/// Bytes of an mbarrier.
const BYTES: usize = 8;
/// One block, with more tiles along k than the ring has places.
const SHAPE: &str = "G=1,M=128,N=128,K=384";
const KERNEL: &str = "matmul_roles";

/// Something that a role does at a barrier: all threads of a warpgroup are one role.
struct Moment {
    who: String,
    line: usize,
    /// Its number in the ring: first those that say `full`, then those that say `empty`.
    barrier: usize,
    does: Signal,
    now: Mbarrier,
}

pub(super) fn trace() -> Result<Trace, Failure> {
    let events =
        run_version_with("matmul:v10_roles", SHAPE, Order::Forward, Landing::Random(5))?.events;
    let moments = moments(&events);
    let made = moments.iter().filter(|m| m.does == Signal::Made).count();
    let places = made / 2;
    let file = events.first().map_or("", |e| e.place.own.split(':').next().unwrap_or(""));
    let listing = Listing::of_stage(file, KERNEL)?.between("ANCHOR: roles", "ANCHOR_END: roles");
    let steps: Vec<Value> = moments.iter().map(as_json).collect();
    let figure = html! {
        figure.moving data-scene="phases" {
            div.still { (still(&moments, places)) }
            (data(&json!({
                "places": places, "first": listing.first, "code": listing.lines, "file": listing.file,
                "made": steps[..made], "steps": steps[made..],
            })))
            figcaption {
                "One block, " (tiles(&moments, places).len()) " tiles along k, a ring of " (places) " places. A filled circle is an arrival. Copies land at random, "
                "from a seed, as the emulator lets them."
            }
        }
    };
    Ok(Trace {
        name: "phases",
        of: "matmul:v10_roles",
        steps: moments.len() - made,
        figure: one_line(figure),
    })
}

/// What the roles of the first block do. Of a warpgroup's threads the first speaks for all.
fn moments(events: &[Event]) -> Vec<Moment> {
    let mut all = Vec::new();
    let mut told = HashSet::new();
    let producer = events.iter().find_map(|e| match &e.step {
        Step::Mbarrier { does: Signal::Arrives { expected: 1.. }, .. } => Some(e.thread),
        _ => None,
    });
    for event in events.iter().filter(|e| e.block == 0) {
        let Step::Mbarrier { offset, does, now, .. } = &event.step else { continue };
        let who = match does {
            Signal::Lands { .. } => "TMA".to_owned(),
            _ if Some(event.thread) == producer => "producer".to_owned(),
            _ => format!("consumer {}", event.thread / WARPGROUP),
        };
        let barrier = offset / BYTES;
        let same = matches!(does, Signal::Waits { .. } | Signal::Passes { .. });
        if !same || told.insert((who.clone(), barrier, *does)) {
            let line = line_of(&event.place.own);
            all.push(Moment { who, line, barrier, does: *does, now: *now });
        }
    }
    // They are made place by place.
    let made = all.iter().take_while(|m: &&Moment| m.does == Signal::Made).count();
    all[..made].sort_by_key(|m| m.barrier);
    all
}

fn as_json(moment: &Moment) -> Value {
    let now = &moment.now;
    let (does, number) = match moment.does {
        Signal::Made => ("made", 0),
        Signal::Arrives { expected } => ("arrives", expected),
        Signal::Lands { bytes } => ("lands", bytes as u32),
        Signal::Waits { phase } => ("waits", phase),
        Signal::Passes { phase } => ("passes", phase),
    };
    json!({
        "who": moment.who, "line": moment.line, "barrier": moment.barrier, "does": does, "n": number,
        "now": [now.phase, now.arrived, now.count, now.landed, now.expected],
    })
}

/// Of each tile, the steps in which it was asked for, had come, and was left by each consumer; and its bytes.
fn tiles(moments: &[Moment], places: usize) -> BTreeMap<usize, [Vec<String>; 4]> {
    let made = 2 * places;
    let mut all: BTreeMap<usize, [Vec<String>; 4]> = BTreeMap::new();
    for (n, moment) in moments.iter().enumerate().skip(made) {
        let step = (n + 1 - made).to_string();
        let tile = |phase: u32| phase as usize * places + moment.barrier % places;
        let full = moment.barrier < places;
        match moment.does {
            Signal::Arrives { expected } if full => {
                let own = all.entry(tile(moment.now.phase)).or_default();
                own[0].push(expected.to_string());
                own[1].push(step);
            }
            // A complete phase is over: the barrier is in the next one.
            Signal::Lands { .. } if moment.now.landed == 0 => {
                all.entry(tile(moment.now.phase - 1)).or_default()[2].push(step);
            }
            Signal::Arrives { .. } => {
                let phase = moment.now.phase - u32::from(moment.now.arrived == 0);
                all.entry(tile(phase)).or_default()[3].push(step);
            }
            _ => {}
        }
    }
    all
}

fn still(moments: &[Moment], places: usize) -> Markup {
    html! {
        table {
            caption { "Each tile's way through the ring, by the steps of this run" }
            thead { tr {
                @for heading in ["tile", "place", "parity", "bytes", "asked for in step", "has come in step", "left by the consumers in steps"] {
                    th scope="col" { (heading) }
                }
            } }
            tbody {
                @for (tile, [bytes, asked, come, left]) in tiles(moments, places) {
                    tr {
                        td { (tile) } td { (tile % places) } td { (tile / places % 2) }
                        @for steps in [bytes, asked, come, left] { td { (steps.join(", ")) } }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tile_is_asked_for_comes_and_is_left() {
        let traced =
            run_version_with("matmul:v10_roles", SHAPE, Order::Forward, Landing::Random(5));
        let moments = moments(&traced.unwrap().events);
        let places = moments.iter().filter(|m| m.does == Signal::Made).count() / 2;
        let counts: Vec<u32> = moments[..2 * places].iter().map(|m| m.now.count).collect();
        assert_eq!(
            counts,
            [1, 1, 1, 2, 2, 2],
            "one producer fills a place, two consumers leave it"
        );
        let tiles = tiles(&moments, places);
        assert_eq!(tiles.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4, 5]);
        for (tile, [bytes, asked, come, left]) in &tiles {
            assert_eq!((bytes.len(), asked.len(), come.len()), (1, 1, 1), "tile {tile}");
            // Nobody asks for a place that only the last tiles had.
            assert!(left.len() == 2 || *tile == 5 && left.is_empty(), "tile {tile}: {left:?}");
        }
    }
}
