//! Bar charts as SVG, readable on a light and on a dark page.

use std::path::Path;

use lab_harness::Error;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

/// One bar.
pub(crate) struct Bar {
    pub(crate) label: String,
    pub(crate) value: f64,
    /// What stands at its end.
    pub(crate) note: String,
    /// Bars of one group have one colour.
    pub(crate) group: usize,
}

const ROW: i32 = 24;
const TOP: i32 = 58;
const LEFT: i32 = 216;
const WIDTH: i32 = 760;
const BAR_END: i32 = WIDTH - 150;
/// Mid-tones: they stand out from white and from black.
const COLOURS: [RGBColor; 4] = [
    RGBColor(56, 132, 200),
    RGBColor(214, 122, 48),
    RGBColor(64, 158, 96),
    RGBColor(150, 104, 190),
];
const INK: RGBColor = RGBColor(128, 128, 128);

/// The chart as SVG text. `full` is the value of a bar of full length, marked by a line.
pub(crate) fn bars(title: &str, full: (f64, &str), bars: &[Bar]) -> Result<String, Error> {
    let height = TOP + ROW * bars.len() as i32 + 12;
    let mut svg = String::new();
    let drawn = draw(&mut svg, height, title, full, bars);
    drawn.map_err(|e| Error::File { path: "the plot".into(), message: e.to_string() })?;
    Ok(svg)
}

fn draw(
    svg: &mut String,
    height: i32,
    title: &str,
    (full, full_name): (f64, &str),
    bars: &[Bar],
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, (WIDTH as u32, height as u32)).into_drawing_area();
    let text = |size: i32, horizontal: HPos| {
        ("sans-serif", size).into_font().color(&INK).pos(Pos::new(horizontal, VPos::Center))
    };
    root.draw(&Text::new(title.to_owned(), (12, 16), text(16, HPos::Left)))?;
    root.draw(&Text::new(full_name.to_owned(), (BAR_END, 40), text(13, HPos::Center)))?;
    root.draw(&PathElement::new(vec![(BAR_END, TOP - 10), (BAR_END, height - 8)], INK))?;
    for (row, bar) in bars.iter().enumerate() {
        let y = TOP + ROW * row as i32 + ROW / 2;
        let share = (bar.value / full).clamp(0.0, 1.05);
        let end = LEFT + ((BAR_END - LEFT) as f64 * share).round().max(1.0) as i32;
        let colour = COLOURS[bar.group % COLOURS.len()];
        root.draw(&Text::new(bar.label.clone(), (LEFT - 8, y), text(13, HPos::Right)))?;
        root.draw(&Rectangle::new([(LEFT, y - 8), (end, y + 8)], colour.filled()))?;
        root.draw(&Text::new(bar.note.clone(), (end.max(BAR_END) + 8, y), text(13, HPos::Left)))?;
    }
    root.present()?;
    Ok(())
}

/// Writes a chart, whole or not at all.
pub(crate) fn write(path: &Path, svg: &str) -> Result<(), Error> {
    lab_device::emulator::write_atomically(path, svg.as_bytes())
        .map_err(|e| Error::File { path: path.display().to_string(), message: e.to_string() })
}
