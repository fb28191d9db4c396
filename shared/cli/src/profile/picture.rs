//! What the two kinds of picture share.

use lab_device::emulator::Sample;
use maud::{Markup, html};

/// All pictures are as wide as this; their heights differ.
pub(super) const WIDTH: f64 = 760.0;
/// Where lanes, sectors and banks start; names stand to the left.
pub(super) const LEFT: f64 = 76.0;
/// The width that 32 lanes or banks take.
pub(super) const SPAN: f64 = WIDTH - LEFT - 12.0;

/// A drawing, and what it shows in words.
pub(super) struct Picture {
    pub(super) height: f64,
    pub(super) title: String,
    pub(super) words: String,
    pub(super) drawing: Markup,
}

/// A row of lanes, each a square with its number; `place` gives the left edge and the width.
pub(super) fn lanes(
    sample: &Sample,
    numbers: std::ops::Range<usize>,
    top: f64,
    place: impl Fn(usize) -> (f64, f64),
) -> Markup {
    html! {
        @for lane in numbers {
            @let (x, width) = place(lane);
            @let class = if sample.lanes[lane].is_some() { "lane" } else { "lane idle" };
            rect class=(class) x=(px(x + 1.0)) y=(px(top)) width=(px(width - 2.0)) height="18" rx="2" {}
            text class={ "number " (class) } x=(px(x + width / 2.0)) y=(px(top + 12.5)) { (lane) }
        }
    }
}

/// How many lanes take part, and how their addresses go.
pub(super) fn pattern(sample: &Sample) -> String {
    let active: Vec<usize> = sample.lanes.iter().flatten().copied().collect();
    let who = match active.len() {
        1 => "One lane asks for".to_owned(),
        n => format!("{n} lanes ask for"),
    };
    let what = match sample.bytes {
        1 => "a byte".to_owned(),
        n => format!("{n} bytes"),
    };
    let each = if active.len() > 1 { " each" } else { "" };
    let stride = |pair: &[usize]| pair[1] as i64 - pair[0] as i64;
    let first = active.windows(2).map(stride).next();
    let how = match first {
        Some(s) if active.windows(2).map(stride).all(|other| other == s) => match s {
            0 => ", all at the same address".to_owned(),
            s if s == sample.bytes as i64 => ", side by side".to_owned(),
            s => format!(", {} bytes from lane to lane", super::number(s.unsigned_abs())),
        },
        _ => String::new(),
    };
    format!("{who} {what}{each}{how}.")
}

/// `32 sectors where 4 would do`
pub(super) fn verdict(sample: &Sample, what: &str) -> String {
    let plural = if sample.cost == 1 { "" } else { "s" };
    let cost = format!("{} {what}{plural}", sample.cost);
    if sample.cost > sample.ideal {
        format!("{cost} where {} would do", sample.ideal)
    } else {
        format!("{cost}, as few as can be")
    }
}

/// A coordinate, to a tenth.
pub(super) fn px(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}
