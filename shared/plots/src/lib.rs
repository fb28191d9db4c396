//! Charts as SVG, readable on a light and on a dark page: bars and curves here, the others a module each.

#![forbid(unsafe_code)]

pub mod heat;
pub mod lines;
pub mod roofline;
pub mod stairs;
pub mod versions;

use std::path::Path;

use lab_harness::Error;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// One bar of [`bars`].
#[derive(Clone, Debug)]
pub struct Bar {
    /// What stands before it.
    pub label: String,
    /// Its length, in the unit of the full length.
    pub value: f64,
    /// What stands at its end.
    pub note: String,
    /// What was guessed before it was measured.
    pub guess: Option<f64>,
    /// Bars of one group have one colour.
    pub group: usize,
}

const ROW: i32 = 24;
const TOP: i32 = 58;
const WIDTH: i32 = 760;
/// A bar of full length.
const BAR: i32 = 170;
/// Of a letter, at most, in a text of 13 and of 16.
const LETTER: i32 = 6;
const LETTER_OF_TITLE: i32 = 7;
/// Mid-tones: they stand out from white and from black.
const COLOURS: [RGBColor; 4] = [
    RGBColor(56, 132, 200),
    RGBColor(214, 122, 48),
    RGBColor(64, 158, 96),
    RGBColor(150, 104, 190),
];
const INK: RGBColor = RGBColor(128, 128, 128);
const GUESSED: RGBColor = COLOURS[1];

/// The chart as SVG text. `full` is the value of a bar of full length, marked by a line.
///
/// # Errors
/// It cannot be drawn: no font, or a value that is no number.
pub fn bars(title: &str, full: (f64, &str), bars: &[Bar]) -> Result<String, Error> {
    let mut svg = String::new();
    let drawn = draw(&mut svg, &Places::of(title, bars), title, full, bars);
    drawn.map_err(|e| Error::File { path: "the plot".into(), message: e.to_string() })?;
    Ok(svg)
}

/// Where labels, bars and notes stand: a phone shows all of them, for none has more room than its text needs.
struct Places {
    /// Where bars begin.
    left: i32,
    /// Where a bar of full length ends.
    full: i32,
    width: i32,
    height: i32,
}

impl Places {
    fn of(title: &str, bars: &[Bar]) -> Self {
        let longest = |text: fn(&Bar) -> &str| {
            LETTER * bars.iter().map(|bar| text(bar).chars().count()).max().unwrap_or(0) as i32
        };
        let left = longest(|bar| &bar.label) + 16;
        let full = left + BAR;
        // A bar may be a twentieth longer than the full length.
        let with_notes = full + BAR / 20 + longest(|bar| &bar.note) + 16;
        let with_title = LETTER_OF_TITLE * title.chars().count() as i32 + 24;
        let height = TOP + ROW * bars.len() as i32 + 12;
        Self { left, full, width: with_notes.max(with_title), height }
    }
}

fn draw(
    svg: &mut String,
    &Places { left, full: bar_end, width, height }: &Places,
    title: &str,
    (full, full_name): (f64, &str),
    bars: &[Bar],
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, (width as u32, height as u32)).into_drawing_area();
    let text = |size: i32, horizontal: HPos| {
        ("sans-serif", size).into_font().color(&INK).pos(Pos::new(horizontal, VPos::Center))
    };
    root.draw(&Text::new(title.to_owned(), (12, 16), text(16, HPos::Left)))?;
    root.draw(&Text::new(full_name.to_owned(), (bar_end, 40), text(13, HPos::Center)))?;
    root.draw(&PathElement::new(vec![(bar_end, TOP - 10), (bar_end, height - 8)], INK))?;
    let mark =
        |x: i32, y: i32| PathElement::new(vec![(x, y - 10), (x, y + 10)], GUESSED.stroke_width(3));
    if bars.iter().any(|bar| bar.guess.is_some()) {
        root.draw(&mark(left + 4, 40))?;
        root.draw(&Text::new("guessed before", (left + 12, 40), text(13, HPos::Left)))?;
    }
    let end = |value: f64| {
        let share = (value / full).clamp(0.0, 1.05);
        left + ((bar_end - left) as f64 * share).round().max(1.0) as i32
    };
    for (row, bar) in bars.iter().enumerate() {
        let y = TOP + ROW * row as i32 + ROW / 2;
        let end_of_guess = bar.guess.map(end);
        let end = end(bar.value);
        let colour = COLOURS[bar.group % COLOURS.len()];
        root.draw(&Text::new(bar.label.clone(), (left - 8, y), text(13, HPos::Right)))?;
        root.draw(&Rectangle::new([(left, y - 8), (end, y + 8)], colour.filled()))?;
        if let Some(x) = end_of_guess {
            root.draw(&mark(x, y))?;
        }
        root.draw(&Text::new(bar.note.clone(), (end.max(bar_end) + 8, y), text(13, HPos::Left)))?;
    }
    root.present()?;
    Ok(())
}

/// Values over sizes.
#[derive(Clone, Debug)]
pub struct Curve {
    /// What it is called beside the plot.
    pub label: String,
    /// Whether it is drawn in dashes.
    pub dashed: bool,
    /// Size and value, by size.
    pub points: Vec<(f64, f64)>,
}

/// One colour a curve, told apart on white and on black.
const SPECTRUM: [RGBColor; 10] = [
    RGBColor(150, 104, 190),
    RGBColor(110, 120, 220),
    RGBColor(56, 132, 200),
    RGBColor(32, 150, 160),
    RGBColor(64, 158, 96),
    RGBColor(140, 150, 40),
    RGBColor(200, 140, 30),
    RGBColor(214, 100, 48),
    RGBColor(205, 75, 95),
    RGBColor(190, 80, 150),
];
const AREA: (i32, i32, i32, i32) = (64, 44, 600, 420);
const HEIGHT: i32 = 470;
/// So many curves have their names below: a phone shows all of the plot.
const FEW: usize = 4;
const SMALL_AREA: (i32, i32, i32, i32) = (56, 44, 338, 344);
/// From the axis to the first name below, and from one name to the next.
const NAMES: i32 = 58;
const NAME_ROW: i32 = 18;

/// Curves over sizes as SVG text, both axes logarithmic. `ceilings` are
/// peaks, by name.
///
/// # Errors
/// As [`bars`].
pub fn curves(
    title: &str,
    axis: &str,
    ticks: &[(f64, String)],
    ceilings: &[(String, f64)],
    curves: &[Curve],
) -> Result<String, Error> {
    let mut svg = String::new();
    let drawn = draw_curves(&mut svg, title, axis, ticks, ceilings, curves);
    drawn.map_err(|e| Error::File { path: "the plot".into(), message: e.to_string() })?;
    Ok(svg)
}

fn draw_curves(
    svg: &mut String,
    title: &str,
    axis: &str,
    ticks: &[(f64, String)],
    ceilings: &[(String, f64)],
    curves: &[Curve],
) -> Result<(), Box<dyn std::error::Error>> {
    let names_below = curves.len() <= FEW;
    let (left, top, right, bottom) = if names_below { SMALL_AREA } else { AREA };
    let size = match names_below {
        true => (right + 8, bottom + NAMES + NAME_ROW * curves.len() as i32),
        false => (WIDTH, HEIGHT),
    };
    let root = SVGBackend::with_string(svg, (size.0 as u32, size.1 as u32)).into_drawing_area();
    let text = |size: i32, horizontal: HPos| {
        ("sans-serif", size).into_font().color(&INK).pos(Pos::new(horizontal, VPos::Center))
    };
    let points = || curves.iter().flat_map(|c| c.points.iter().map(|p| p.1));
    let values = || points().chain(ceilings.iter().map(|c| c.1));
    let decade = |v: f64| v.log10();
    // Whole decades below, a little room above.
    let low = values().map(decade).fold(f64::INFINITY, f64::min).floor();
    let high = values().map(decade).fold(f64::NEG_INFINITY, f64::max).max(low + 1.0) + 0.05;
    let (first, last) = (ticks.first().map_or(1.0, |t| t.0), ticks.last().map_or(2.0, |t| t.0));
    let span = (last / first).log2().max(1.0);
    let x = |size: f64| {
        left + 12 + ((size / first).log2() / span * f64::from(right - left - 24)).round() as i32
    };
    let y = |value: f64| {
        bottom - ((decade(value) - low) / (high - low) * f64::from(bottom - top)).round() as i32
    };
    let size_of_title = if names_below { 13 } else { 16 };
    root.draw(&Text::new(title.to_owned(), (12, 16), text(size_of_title, HPos::Left)))?;
    let faint = INK.mix(0.35);
    let mut exponent = low as i32;
    while f64::from(exponent) <= high {
        for digit in [1, 2, 5] {
            let value = f64::from(digit) * 10f64.powi(exponent);
            if decade(value) <= high {
                let at = y(value);
                root.draw(&PathElement::new(vec![(left, at), (right, at)], faint))?;
                let label = Text::new(format!("{value}"), (left - 8, at), text(12, HPos::Right));
                root.draw(&label)?;
            }
        }
        exponent += 1;
    }
    for (size, label) in ticks {
        let at = x(*size);
        root.draw(&PathElement::new(vec![(at, bottom), (at, bottom + 5)], INK))?;
        root.draw(&Text::new(label.clone(), (at, bottom + 16), text(12, HPos::Center)))?;
    }
    let middle = (left + right) / 2;
    root.draw(&Text::new(axis.to_owned(), (middle, bottom + 36), text(13, HPos::Center)))?;
    root.draw(&PathElement::new(vec![(left, top), (left, bottom), (right, bottom)], INK))?;
    for (name, peak) in ceilings {
        let at = y(*peak);
        root.draw(&PathElement::new(vec![(left, at), (right, at)], INK))?;
        let label = format!("{name} {peak:.0}");
        root.draw(&Text::new(label, (left + 8, at + 10), text(12, HPos::Left)))?;
    }
    // Neighbours of the spectrum are too alike for a few that are compared.
    let colours: &'static [RGBColor] = if names_below { &COLOURS } else { &SPECTRUM };
    for (curve, colour) in curves.iter().zip(colours.iter().cycle()) {
        let style = ShapeStyle::from(colour).stroke_width(2);
        let points: Vec<(i32, i32)> = curve.points.iter().map(|p| (x(p.0), y(p.1))).collect();
        for piece in pieces(&points, curve.dashed) {
            root.draw(&PathElement::new(piece, style))?;
        }
        for point in points {
            root.draw(&Circle::new(point, 3, colour.filled()))?;
        }
    }
    let named = labels(curves, colours.iter(), y, (top, bottom));
    for (row, (at, curve, colour)) in named.into_iter().enumerate() {
        let (x, at) = match names_below {
            true => (left, bottom + NAMES + NAME_ROW * row as i32),
            false => (right + 12, at),
        };
        let stroke = ShapeStyle::from(colour).stroke_width(2);
        for piece in pieces(&[(x, at), (x + 18, at)], curve.dashed) {
            root.draw(&PathElement::new(piece, stroke))?;
        }
        root.draw(&Text::new(curve.label.clone(), (x + 24, at), text(13, HPos::Left)))?;
        // To what it comes at its largest size.
        let note = curve.points.last().map_or(String::new(), |p| three_digits(p.1));
        root.draw(&Text::new(note, (size.0 - 8, at), text(12, HPos::Right)))?;
    }
    root.present()?;
    Ok(())
}

/// Three digits that count: 0.105, 5.09, 50.9, 509.
pub fn three_digits(value: f64) -> String {
    let whole = value.abs().max(1e-9).log10().floor().max(-1.0) as i32;
    let digits = (2 - whole).clamp(0, 3) as usize;
    format!("{value:.digits$}")
}

/// A path as it is, or cut into dashes.
fn pieces(points: &[(i32, i32)], dashed: bool) -> Vec<Vec<(i32, i32)>> {
    const DASH: f64 = 7.0;
    const GAP: f64 = 4.0;
    if !dashed {
        return vec![points.to_vec()];
    }
    let mut all = Vec::new();
    for pair in points.windows(2) {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        let (dx, dy) = (f64::from(x1 - x0), f64::from(y1 - y0));
        let length = dx.hypot(dy);
        let at = |way: f64| {
            let share = (way / length).min(1.0);
            (x0 + (dx * share).round() as i32, y0 + (dy * share).round() as i32)
        };
        let mut way = 0.0;
        while way < length {
            all.push(vec![at(way), at(way + DASH)]);
            way += DASH + GAP;
        }
    }
    all
}

/// The curves from top to bottom by their last value, each with a height for its label that keeps
/// clear of the others'.
fn labels(
    curves: &[Curve],
    colours: impl Iterator<Item = &'static RGBColor> + Clone,
    y: impl Fn(f64) -> i32,
    (top, bottom): (i32, i32),
) -> Vec<(i32, &Curve, &'static RGBColor)> {
    const APART: i32 = 17;
    let mut all: Vec<_> = curves
        .iter()
        .zip(colours.cycle())
        .map(|(c, colour)| (c.points.last().map_or(bottom, |p| y(p.1)), c, colour))
        .collect();
    all.sort_by_key(|l| l.0);
    let mut least = top;
    for label in &mut all {
        label.0 = label.0.max(least);
        least = label.0 + APART;
    }
    // What was pushed past the end pushes back.
    let mut most = bottom;
    for label in all.iter_mut().rev() {
        label.0 = label.0.min(most);
        most = label.0 - APART;
    }
    all
}

/// Writes a chart, whole or not at all.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, svg: &str) -> Result<(), Error> {
    lab_device::emulator::write_atomically(path, svg.as_bytes())
        .map_err(|e| Error::File { path: path.display().to_string(), message: e.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(label: &str, note: &str) -> Bar {
        Bar { label: label.into(), value: 1.0, note: note.into(), guess: None, group: 0 }
    }

    fn width(svg: &str) -> u32 {
        let from = svg.split("width=\"").nth(1).unwrap();
        from.split('"').next().unwrap().parse().unwrap()
    }

    #[test]
    fn a_few_curves_have_their_names_below() {
        let curve = |n: usize| Curve {
            label: format!("curve {n}"),
            dashed: n == 1,
            points: vec![(1.0, 1.0 + n as f64), (4.0, 8.0)],
        };
        let ticks = [(1.0, "1".to_owned()), (4.0, "4".to_owned())];
        let drawn = |count: usize| {
            let all: Vec<Curve> = (0..count).map(curve).collect();
            curves("title", "S", &ticks, &[], &all).unwrap()
        };
        let (few, many) = (drawn(FEW), drawn(FEW + 1));
        assert_eq!((width(&few), width(&many)), (346, WIDTH as u32));
        for n in 0..FEW {
            assert!(
                few.contains(&format!("\ncurve {n}\n")) && many.contains(&format!("\ncurve {n}\n"))
            );
        }
    }

    #[test]
    fn bars_take_the_room_of_their_text() {
        let full = (1.0, "plain copy");
        let short = bars("t", full, &[bar("a", "1 µs")]).unwrap();
        let long = bars("t", full, &[bar("softmax_registers", "4153 GB/s, 129 µs")]).unwrap();
        assert!(width(&short) < width(&long) && width(&long) < 440, "{}", width(&long));
        let title = "matmul, 4096³ in bf16, NVIDIA H200: TFLOP/s";
        assert!(width(&bars(title, full, &[bar("a", "1 µs")]).unwrap()) >= 7 * 43);
    }
}
