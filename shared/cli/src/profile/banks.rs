//! A warp's access to shared memory: lanes above, the 32 banks below. Under each bank stand the
//! different words that are asked of it, one a turn: as many rows as wavefronts.

use std::collections::BTreeMap;
use std::ops::Range;

use lab_device::emulator::Sample;
use maud::{Markup, html};

use super::picture::{LEFT, Picture, SPAN, lanes, pattern, px, verdict};

const BANKS: usize = 32;
const WORD: usize = 4;
const COLUMN: f64 = SPAN / BANKS as f64;
const ROW: f64 = 17.0;
const LANES_TOP: f64 = 8.0;
/// From the lanes of a pass to its banks.
const REACH: f64 = 58.0;
const HEAD: f64 = 17.0;

/// The lanes that one pass serves, and what they ask of each bank: words in the order of the
/// lanes, each with the lanes that ask for it.
struct Pass {
    lanes: Range<usize>,
    banks: Vec<Vec<(usize, Vec<usize>)>>,
}

impl Pass {
    fn of(sample: &Sample, lanes: Range<usize>) -> Self {
        let mut banks = vec![Vec::<(usize, Vec<usize>)>::new(); BANKS];
        for lane in lanes.clone() {
            for word in words(sample, lane) {
                let bank = &mut banks[word % BANKS];
                match bank.iter_mut().find(|w| w.0 == word) {
                    Some(same) => same.1.push(lane),
                    None => bank.push((word, vec![lane])),
                }
            }
        }
        Self { lanes, banks }
    }

    fn turns(&self) -> usize {
        self.banks.iter().map(Vec::len).max().unwrap_or(0)
    }

    fn height(&self) -> f64 {
        LANES_TOP + 18.0 + REACH + HEAD + self.turns() as f64 * ROW + 10.0
    }
}

fn words(sample: &Sample, lane: usize) -> Range<usize> {
    match sample.lanes[lane] {
        Some(start) => start / WORD..(start + sample.bytes.max(1) - 1) / WORD + 1,
        None => 0..0,
    }
}

pub(super) fn picture(sample: &Sample) -> Picture {
    let each = match sample.bytes {
        0..=4 => 32,
        5..=8 => 16,
        _ => 8,
    };
    let passes: Vec<Pass> = (0..sample.lanes.len())
        .step_by(each)
        .map(|first| Pass::of(sample, first..first + each))
        .filter(|p| p.turns() > 0)
        .collect();
    let mut asked = BTreeMap::<usize, usize>::new();
    for (bank, words) in passes.iter().flat_map(|p| p.banks.iter().enumerate()) {
        *asked.entry(bank).or_default() += words.len();
    }
    let idle = asked.values().filter(|n| **n == 0).count();
    let busiest = passes.iter().map(Pass::turns).max().unwrap_or(0);
    let conflict = match busiest {
        0 | 1 => "No bank is asked for two words at once".to_owned(),
        n => format!("The busiest bank is asked for {n} words at once and serves one a turn"),
    };
    let split = match passes.len() {
        0 | 1 => String::new(),
        n => format!(" So wide an access is made in {n} passes of {each} lanes."),
    };
    let mut top = 0.0;
    let mut drawing = Vec::new();
    for pass in &passes {
        drawing.push(draw(sample, pass, top));
        top += pass.height();
    }
    Picture {
        height: top,
        title: verdict(sample, "wavefront"),
        words: format!(
            "{} {conflict}; {} of {BANKS} banks idle.{split}",
            pattern(sample),
            if idle == 0 { "none".into() } else { idle.to_string() },
        ),
        drawing: html! { @for part in drawing { (part) } },
    }
}

fn draw(sample: &Sample, pass: &Pass, top: f64) -> Markup {
    let lanes_top = top + LANES_TOP;
    let head = lanes_top + 18.0 + REACH;
    let cells = head + HEAD;
    let width = SPAN / pass.lanes.len() as f64;
    let lane = |l: usize| (LEFT + (l - pass.lanes.start) as f64 * width, width);
    let column = |bank: usize| LEFT + bank as f64 * COLUMN;
    let turns = pass.turns();
    html! {
        text.name x="4" y=(px(lanes_top + 13.0)) { "lanes" }
        text.name x="4" y=(px(head + 12.0)) { "banks" }
        @for bank in 0..BANKS {
            @let class = if pass.banks[bank].is_empty() { "bank idle" } else { "bank" };
            text class={ "number " (class) } x=(px(column(bank) + COLUMN / 2.0)) y=(px(head + 12.0)) { (bank) }
            rect.track x=(px(column(bank))) y=(px(cells)) width=(px(COLUMN))
                height=(px(turns as f64 * ROW)) {}
        }
        (lines(sample, pass, lanes_top + 18.0, head, lane))
        (lanes(sample, pass.lanes.clone(), lanes_top, lane))
        @for turn in 0..turns {
            @let y = cells + turn as f64 * ROW;
            text.name.small x="4" y=(px(y + 12.0)) { "turn " (turn + 1) }
            @for (bank, words) in pass.banks.iter().enumerate() {
                @if let Some((word, by)) = words.get(turn) {
                    @let class = if turn == 0 { "asked" } else { "conflict" };
                    rect class=(class) x=(px(column(bank) + 1.0)) y=(px(y + 1.0))
                        width=(px(COLUMN - 2.0)) height=(ROW - 2.0) rx="2" {
                        title { "bank " (bank) ", word " (word) ", lanes " (list(by)) }
                    }
                    text class={ "number " (class) } x=(px(column(bank) + COLUMN / 2.0)) y=(px(y + 12.5)) {
                        @if by.len() == 1 { (by[0]) } @else { "×" (by.len()) }
                    }
                }
            }
        }
    }
}

/// From each lane to the banks of its words; those that have to wait in the colour of waiting.
fn lines(
    sample: &Sample,
    pass: &Pass,
    top: f64,
    bottom: f64,
    lane: impl Fn(usize) -> (f64, f64),
) -> Markup {
    html! {
        @for number in pass.lanes.clone() {
            @let all = words(sample, number);
            @let (left, width) = lane(number);
            @for word in all.clone() {
                @let share = ((word - all.start) as f64 + 0.5) / all.len() as f64;
                @let bank = word % BANKS;
                @let first = pass.banks[bank].first().is_some_and(|w| w.0 == word);
                line class=(if first { "reach" } else { "reach waits" })
                    x1=(px(left + width * share)) y1=(px(top))
                    x2=(px(LEFT + (bank as f64 + 0.5) * COLUMN)) y2=(px(bottom)) {}
            }
        }
    }
}

fn list(lanes: &[usize]) -> String {
    lanes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}
