//! A map of values from −1 to 1: blue below zero, orange above, the page itself at zero.

use lab_harness::Error;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{COLOURS, INK, WIDTH};

const LEFT: i32 = 64;
const RIGHT: i32 = WIDTH - 16;
const TOP: i32 = 44;
/// Shades on each side of zero.
const SHADES: f64 = 12.0;

/// What stands around the map.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// Above it.
    pub title: &'a str,
    /// What a row is.
    pub row: &'a str,
    /// What a column is.
    pub column: &'a str,
    /// What stands under each column; numbers from 0 where there is nothing.
    pub labels: Option<&'a [String]>,
}

/// The map as SVG text: `rows[row][column]`, all of one length.
///
/// # Errors
/// As [`bars`](crate::bars).
pub fn heat(frame: &Frame<'_>, rows: &[Vec<f64>]) -> Result<String, Error> {
    let mut svg = String::new();
    let drawn = draw(&mut svg, frame, rows);
    drawn.map_err(|e| Error::File { path: "the plot".into(), message: e.to_string() })?;
    Ok(svg)
}

fn draw(
    svg: &mut String,
    frame: &Frame<'_>,
    rows: &[Vec<f64>],
) -> Result<(), Box<dyn std::error::Error>> {
    let columns = rows.first().map_or(0, Vec::len);
    let tall = (480 / rows.len().max(1) as i32).clamp(5, 14);
    let bottom = TOP + tall * rows.len() as i32;
    let size = (WIDTH as u32, (bottom + 52) as u32);
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    let text = |size: i32, horizontal: HPos| {
        ("sans-serif", size).into_font().color(&INK).pos(Pos::new(horizontal, VPos::Center))
    };
    let x = |column: usize| LEFT + (RIGHT - LEFT) * column as i32 / columns.max(1) as i32;
    root.draw(&Text::new(frame.title.to_owned(), (12, 16), text(16, HPos::Left)))?;
    key(&root)?;
    for (row, values) in rows.iter().enumerate() {
        let y = TOP + tall * row as i32;
        for (from, to, shade) in runs(values) {
            let colour = if shade < 0 { COLOURS[0] } else { COLOURS[1] };
            let fill = colour.mix(f64::from(shade.abs()) / SHADES).filled();
            root.draw(&Rectangle::new([(x(from), y), (x(to), y + tall)], fill))?;
        }
        if row % every(rows.len(), 40) == 0 {
            let label = Text::new(row.to_string(), (LEFT - 8, y + tall / 2), text(11, HPos::Right));
            root.draw(&label)?;
        }
    }
    root.draw(&Rectangle::new([(LEFT, TOP), (RIGHT, bottom)], INK.mix(0.6)))?;
    let apart = if frame.labels.is_some() { 100 } else { 20 };
    for column in (0..columns).step_by(every(columns, apart)) {
        let label = match frame.labels {
            Some(all) => all[column].clone(),
            None => column.to_string(),
        };
        let at = ((x(column) + x(column + 1)) / 2, bottom + 12);
        root.draw(&Text::new(label, at, text(11, HPos::Center)))?;
    }
    let middle = ((LEFT + RIGHT) / 2, bottom + 34);
    root.draw(&Text::new(frame.column.to_owned(), middle, text(13, HPos::Center)))?;
    root.draw(&Text::new(frame.row.to_owned(), (12, TOP - 10), text(12, HPos::Left)))?;
    root.present()?;
    Ok(())
}

/// −1, 0 and 1, in their colours, above the right end.
fn key<D: DrawingBackend>(
    root: &DrawingArea<D, plotters::coord::Shift>,
) -> Result<(), Box<dyn std::error::Error>>
where
    D::ErrorType: 'static,
{
    let (left, wide) = (RIGHT - 170, 10);
    let text = |horizontal: HPos| {
        ("sans-serif", 12).into_font().color(&INK).pos(Pos::new(horizontal, VPos::Center))
    };
    for step in -6i32..=6 {
        let colour = if step < 0 { COLOURS[0] } else { COLOURS[1] };
        let at = left + (step + 6) * wide;
        let fill = colour.mix(f64::from(step.abs()) / 6.0).filled();
        root.draw(&Rectangle::new([(at, 26), (at + wide, 36)], fill))?;
    }
    root.draw(&Text::new("−1", (left - 6, 31), text(HPos::Right)))?;
    root.draw(&Text::new("1", (left + 13 * wide + 6, 31), text(HPos::Left)))?;
    Ok(())
}

/// Runs of columns of one shade, without those of none.
fn runs(values: &[f64]) -> Vec<(usize, usize, i32)> {
    let shade = |v: &f64| (v.clamp(-1.0, 1.0) * SHADES).round() as i32;
    let mut all: Vec<(usize, usize, i32)> = Vec::new();
    for (column, value) in values.iter().enumerate() {
        match all.last_mut() {
            Some(last) if last.2 == shade(value) => last.1 = column + 1,
            _ => all.push((column, column + 1, shade(value))),
        }
    }
    all.retain(|run| run.2 != 0);
    all
}

/// Every so many of `count` get a label, so that there are `most` about.
fn every(count: usize, most: usize) -> usize {
    let rough = count.div_ceil(most).max(1);
    [1, 2, 5, 10, 20, 50, 100, 200, 500].into_iter().find(|s| *s >= rough).unwrap_or(rough)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_hold_every_column_that_has_a_shade() {
        let found = runs(&[0.0, 1.0, 0.99, 9.0, -0.5, 0.01, f64::NAN]);
        assert_eq!(found, [(1, 4, 12), (4, 5, -6)]);
        assert_eq!(runs(&[]), []);
    }

    #[test]
    fn labels_do_not_crowd() {
        assert_eq!([0, 1, 20, 21, 100, 1000].map(|n| every(n, 20)), [1, 1, 1, 2, 5, 50]);
    }
}
