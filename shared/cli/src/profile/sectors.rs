//! A warp's access to device memory: lanes above, the 32-byte sectors that they touch below, and
//! under those as many sectors as would do.

use std::collections::BTreeSet;

use lab_device::emulator::Sample;
use maud::{Markup, html};

use super::picture::{LEFT, Picture, SPAN, lanes, pattern, px, verdict};

const SECTOR: usize = 32;
const LANES_TOP: f64 = 8.0;
const SECTORS_TOP: f64 = 100.0;
const BOX: f64 = 30.0;
/// Between sectors that are apart in memory, and between those side by side.
const APART: f64 = 5.0;
const TOGETHER: f64 = 2.0;
/// Four side by side, what 32 floats take, are as wide as the lanes.
const WIDEST: f64 = (SPAN - 3.0 * TOGETHER) / 4.0;

/// The sectors that are drawn: number in memory, left edge.
struct Layout {
    sectors: Vec<(usize, f64)>,
    width: f64,
}

impl Layout {
    fn of(sample: &Sample) -> Self {
        let touched: BTreeSet<usize> = sample
            .lanes
            .iter()
            .flatten()
            .flat_map(|&start| start / SECTOR..=(start + sample.bytes.max(1) - 1) / SECTOR)
            .collect();
        let touched: Vec<usize> = touched.into_iter().collect();
        let gap = |pair: &[usize]| if pair[1] == pair[0] + 1 { TOGETHER } else { APART };
        let gaps: f64 = touched.windows(2).map(gap).sum();
        let width = ((SPAN - gaps) / touched.len().max(1) as f64).min(WIDEST);
        let mut x = LEFT;
        let mut sectors = Vec::new();
        for (index, &sector) in touched.iter().enumerate() {
            sectors.push((sector, x));
            x += width + touched.get(index..index + 2).map_or(0.0, gap);
        }
        Self { sectors, width }
    }

    /// Where a byte lies, from the left.
    fn x(&self, byte: usize) -> f64 {
        let found = self.sectors.iter().find(|s| s.0 == byte / SECTOR);
        found.map_or(LEFT, |s| s.1 + self.width * (byte % SECTOR) as f64 / SECTOR as f64)
    }

    /// The parts of a lane's bytes, each within a sector: left edge and width.
    fn parts(&self, start: usize, bytes: usize) -> Vec<(f64, f64)> {
        let mut parts = Vec::new();
        let (mut at, end) = (start, start + bytes);
        while at < end {
            let next = ((at / SECTOR + 1) * SECTOR).min(end);
            parts.push((self.x(at), self.width * (next - at) as f64 / SECTOR as f64));
            at = next;
        }
        parts
    }
}

pub(super) fn picture(sample: &Sample) -> Picture {
    let layout = Layout::of(sample);
    let lane_width = SPAN / sample.lanes.len() as f64;
    let lane = |l: usize| (LEFT + l as f64 * lane_width, lane_width);
    let asked: BTreeSet<usize> =
        sample.lanes.iter().flatten().flat_map(|&s| s..s + sample.bytes).collect();
    let fetched = sample.cost as usize * SECTOR;
    let label = SECTORS_TOP + BOX + 13.0;
    let ideal_top = label + 16.0;
    Picture {
        height: ideal_top + BOX * 0.6 + 8.0,
        title: verdict(sample, "sector"),
        words: format!(
            "{} Of {} bytes in the sectors that move, {} are asked for: {:.0} %.",
            pattern(sample),
            super::number(fetched as u64),
            super::number(asked.len() as u64),
            100.0 * asked.len() as f64 / fetched.max(1) as f64,
        ),
        drawing: html! {
            text.name x="4" y=(LANES_TOP + 13.0) { "lanes" }
            text.name x="4" y=(SECTORS_TOP + 13.0) { "sectors" }
            text.name.small x="4" y=(SECTORS_TOP + 26.0) { "of 32 bytes" }
            text.name x="4" y=(ideal_top + 12.0) { "would do" }
            @for &(_, x) in &layout.sectors {
                rect.fetched x=(px(x)) y=(SECTORS_TOP) width=(px(layout.width)) height=(BOX) {}
            }
            (ribbons(sample, &layout, lane))
            @for &(_, x) in &layout.sectors {
                rect.frame x=(px(x)) y=(SECTORS_TOP) width=(px(layout.width)) height=(BOX) {}
            }
            (lanes(sample, 0..sample.lanes.len(), LANES_TOP, lane))
            (offsets(&layout, label))
            @for n in 0..sample.ideal {
                @let x = LEFT + n as f64 * (layout.width + TOGETHER);
                rect.asked x=(px(x)) y=(px(ideal_top)) width=(px(layout.width)) height=(px(BOX * 0.6)) {}
            }
        },
    }
}

/// From each lane to the bytes that it asks for, and those bytes.
fn ribbons(sample: &Sample, layout: &Layout, lane: impl Fn(usize) -> (f64, f64)) -> Markup {
    let (top, bottom) = (LANES_TOP + 18.0, SECTORS_TOP);
    html! {
        @for (number, start) in sample.lanes.iter().enumerate() {
            @if let Some(start) = *start {
                @let (left, width) = lane(number);
                @for (x, w) in layout.parts(start, sample.bytes) {
                    polygon.ribbon points={
                        (px(left + 2.0)) "," (top) " " (px(left + width - 2.0)) "," (top) " "
                        (px(x + w)) "," (bottom) " " (px(x)) "," (bottom)
                    } {}
                    // An outline would leave nothing of what is narrow.
                    @let class = if w < 6.0 { "asked thin" } else { "asked" };
                    rect class=(class) x=(px(x)) y=(SECTORS_TOP) width=(px(w)) height=(BOX) {
                        title { "lane " (number) ", byte " (start) }
                    }
                }
            }
        }
    }
}

/// The offset of the first sector of each run of neighbours, where there is room.
fn offsets(layout: &Layout, y: f64) -> Markup {
    let mut free = 0.0;
    let mut shown = Vec::new();
    let mut before = None;
    for &(sector, x) in &layout.sectors {
        let starts = before.is_none_or(|b: usize| b + 1 != sector);
        before = Some(sector);
        let text = format!("+{}", super::number((sector * SECTOR) as u64));
        let room = 6.0 * text.len() as f64 + 8.0;
        if starts && x >= free && x + room <= LEFT + SPAN + 12.0 {
            free = x + room;
            shown.push((x, text));
        }
    }
    html! {
        @for (x, text) in shown {
            text.offset x=(px(x)) y=(y) { (text) }
        }
    }
}
