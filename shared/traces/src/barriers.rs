//! Who waits at which barrier: the warps of a block, each run until it waits, in an order that lets some lag behind.

use std::ops::RangeInclusive;

use lab_device::emulator::{Event, Step};
use maud::{Markup, html};

use super::{Drawn, Listing, Run, file_of, line_of};
use crate::Error;

const LANES: u32 = 32;

/// The first block of a run.
pub(crate) struct Scene {
    pub(crate) run: Run,
    pub(crate) kernel: &'static str,
}

/// A warp runs, from one barrier to the next or to its end.
struct Turn {
    warp: u32,
    /// Lines of the kernel's own file.
    lines: Vec<usize>,
    /// Where it waits then.
    barrier: Option<usize>,
    /// Lanes that have come there.
    come: u32,
    /// Whether it was the last to come.
    met: bool,
}

/// What a warp does while another one has its turn, or it has its own.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    Waits,
    CanRun,
    Done,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::Waits => "waits",
            Self::CanRun => "can run",
            Self::Done => "done",
        }
    }

    fn class(self) -> &'static str {
        match self {
            Self::Runs => "runs",
            Self::Waits => "waits",
            Self::CanRun => "ready",
            Self::Done => "done",
        }
    }
}

impl Scene {
    pub(crate) fn draw(&self) -> Result<Drawn, Error> {
        let events = self.run.trace()?.events;
        let turns = turns(&events);
        let warps = 1 + turns.iter().map(|t| t.warp).max().unwrap_or(0);
        let file = events.first().map_or("", |e| file_of(&e.place.own));
        let listing = Listing::of_stage(file, self.kernel)?.only(lines(&turns));
        let body = html! {
            div.still {
                div.run data-name=(self.run.version) {
                    (listing.markup(|line| chips(&turns, line)))
                    (timeline(&turns, warps))
                }
                (still(&turns, &listing))
            }
        };
        Ok(Drawn { of: self.run.version.into(), steps: turns.len(), kind: "barriers", body })
    }
}

/// The turns of the first block.
fn turns(events: &[Event]) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    for event in events.iter().filter(|e| e.block == 0) {
        let (warp, line) = (event.thread / LANES, line_of(&event.place.own));
        if turns.last().is_none_or(|t| t.warp != warp || t.come == LANES) {
            turns.push(Turn { warp, lines: Vec::new(), barrier: None, come: 0, met: false });
        }
        let Some(turn) = turns.last_mut() else { continue };
        match event.step {
            Step::Comes { met } => {
                (turn.barrier, turn.met) = (Some(line), met);
                turn.come += 1;
            }
            Step::Access { .. } if !turn.lines.contains(&line) => turn.lines.push(line),
            Step::Access { .. } | Step::Mbarrier { .. } => {}
        }
    }
    turns.iter_mut().for_each(|t| t.lines.sort_unstable());
    turns
}

/// From the first line that any turn touches to the last.
fn lines(turns: &[Turn]) -> RangeInclusive<usize> {
    let all = || turns.iter().flat_map(|t| t.lines.iter().copied().chain(t.barrier));
    all().min().unwrap_or(0)..=all().max().unwrap_or(0)
}

/// The turn at whose end a barrier lets those go that came to it at `step`.
fn release(turns: &[Turn], step: usize) -> usize {
    let met = turns[step..].iter().position(|t| t.met);
    met.map_or(turns.len() - 1, |n| step + n)
}

fn state(turns: &[Turn], warp: u32, step: usize) -> State {
    if turns[step].warp == warp {
        return State::Runs;
    }
    let before = (0..step).rev().find(|&s| turns[s].warp == warp);
    match before {
        Some(s) if turns[s].barrier.is_none() => State::Done,
        Some(s) if release(turns, s) >= step => State::Waits,
        _ => State::CanRun,
    }
}

/// The warps that wait at a line, each while it does.
fn chips(turns: &[Turn], line: usize) -> Markup {
    html! {
        @for (step, turn) in turns.iter().enumerate().filter(|(_, t)| t.barrier == Some(line)) {
            span.chip data-from=(step) data-to=(release(turns, step)) { (turn.warp) }
        }
    }
}

fn says(turns: &[Turn], warps: u32, step: usize) -> String {
    let turn = &turns[step];
    let ran = match (turn.lines.first(), turn.lines.last()) {
        (Some(a), Some(b)) if a == b => format!("runs line {a}"),
        (Some(a), Some(b)) => format!("runs lines {a} to {b}"),
        _ => "runs".into(),
    };
    let Some(barrier) = turn.barrier else {
        return format!("Warp {} {ran}, and is done.", turn.warp);
    };
    if turn.met {
        let warp = turn.warp;
        return format!(
            "Warp {warp} {ran} and comes to the barrier at line {barrier} as the last: all go on."
        );
    }
    let waits = |w: &u32| *w == turn.warp || state(turns, *w, step) == State::Waits;
    let missing: Vec<u32> = (0..warps).filter(|w| !waits(w)).collect();
    let missing: Vec<String> = missing.iter().map(u32::to_string).collect();
    let plural = if missing.len() == 1 { "" } else { "s" };
    format!(
        "Warp {} {ran} and waits at line {barrier}, for warp{plural} {}.",
        turn.warp,
        missing.join(" and ")
    )
}

/// A row a warp, a column a turn.
fn timeline(turns: &[Turn], warps: u32) -> Markup {
    html! {
        div.timeline role="img" aria-label="What each warp does at each step" {
            div.who { @for warp in 0..warps { span { "warp " (warp) } } }
            @for step in 0..turns.len() {
                div data-step=(step) data-at=(at(&turns[step])) data-says=(says(turns, warps, step)) {
                    @for warp in 0..warps { i class=(state(turns, warp, step).class()) {} }
                }
            }
        }
        p.key {
            @for state in [State::Runs, State::Waits, State::CanRun, State::Done] {
                span { i class=(state.class()) {} " " (state.name()) }
            }
            span.moves { span.chip { "0" } " at a line: warp 0 waits there" }
        }
    }
}

/// The lines that a turn touches.
fn at(turn: &Turn) -> String {
    let lines = turn.lines.iter().copied().chain(turn.barrier);
    lines.map(|l| l.to_string()).collect::<Vec<_>>().join(" ")
}

/// A row a barrier: who came when.
fn still(turns: &[Turn], listing: &Listing) -> Markup {
    let mut first = 0;
    let mut meetings = Vec::new();
    for (step, turn) in turns.iter().enumerate() {
        if turn.met {
            meetings.push((turn.barrier.unwrap_or(0), &turns[first..=step]));
            first = step + 1;
        }
    }
    html! {
        table.still {
            caption { "In which order the warps come to each barrier" }
            thead { tr { th scope="col" { "line" } th scope="col" { "why it is there" } th scope="col" { "warps, as they come" } } }
            tbody {
                @for (line, turns) in meetings {
                    tr {
                        td { (line) }
                        td { (listing.comment(line)) }
                        td { (turns.iter().map(|t| t.warp.to_string()).collect::<Vec<_>>().join(", ")) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lab_device::emulator::Order;

    #[test]
    fn a_barrier_is_met_once_by_each_warp_and_lets_all_go() {
        const WARPS: u32 = 4;
        let shape = "B=1,NH=1,S=192,DHQK=64,DHHV=64";
        let run = Run { order: Order::Starve(9), ..Run::of("qkv_v1:block_tile", shape) };
        let turns = turns(&run.trace().unwrap().events);
        let met = turns.iter().filter(|t| t.met).count();
        assert_eq!(met, 12, "four barriers for each of three tiles");
        assert_eq!(turns.len(), (met + 1) * WARPS as usize);
        for (n, meeting) in turns.chunks(WARPS as usize).enumerate() {
            let mut warps: Vec<u32> = meeting.iter().map(|t| t.warp).collect();
            warps.sort_unstable();
            assert_eq!(warps, [0, 1, 2, 3], "meeting {n}");
            assert!(meeting.iter().all(|t| t.barrier == meeting[0].barrier));
            assert!(meeting.iter().all(|t| t.barrier.is_none() || t.come == LANES));
        }
        let last = |warp| state(&turns, warp, turns.len() - 1);
        assert_eq!((0..WARPS).filter(|w| last(*w) == State::Done).count(), 3);
    }
}
