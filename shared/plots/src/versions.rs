//! Times from version to version, a colour a problem, with what the fastest other takes for it. Nothing joins two versions: there is
//! no time between them.

use lab_harness::Error;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::lines::{decades, range};
use super::{Curve, INK, LETTER, LETTER_OF_TITLE, SPECTRUM, pieces};

/// One problem.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it is called below the plot.
    pub label: String,
    /// The time of each version in µs; not every version takes every problem.
    pub times: Vec<Option<f64>>,
    /// That of the fastest other.
    pub other: Option<f64>,
}

const LEFT: i32 = 56;
const TOP: i32 = 44;
const BOTTOM: i32 = 344;
/// From a version to the next, at least: names stand at two heights in turns.
const PITCH: i32 = 48;
/// No plot is narrower: a phone has as much.
const NARROWEST: i32 = 346;
/// From a problem's name to the next, and to the first from the axis.
const ROW: i32 = 18;
const NAMES: i32 = 56;

/// The times as SVG text over the versions of these names; `other` is what the last column is called,
/// if any line has a time there.
///
/// # Errors
/// As [`bars`](crate::bars).
pub fn versions(
    title: &str,
    names: &[String],
    other: &str,
    lines: &[Line],
) -> Result<String, Error> {
    let mut svg = String::new();
    let drawn = draw(&mut svg, title, names, other, lines);
    drawn.map_err(|e| Error::File { path: "the plot".into(), message: e.to_string() })?;
    Ok(svg)
}

fn draw(
    svg: &mut String,
    title: &str,
    names: &[String],
    other: &str,
    lines: &[Line],
) -> Result<(), Box<dyn std::error::Error>> {
    let text = |size: i32, horizontal: HPos| {
        ("sans-serif", size).into_font().color(&INK).pos(Pos::new(horizontal, VPos::Center))
    };
    let has_other = lines.iter().any(|l| l.other.is_some());
    let columns: Vec<&str> =
        names.iter().map(String::as_str).chain(has_other.then_some(other)).collect();
    let (width, margin) = width(title, &columns, lines);
    let (right, height) = (width - margin, BOTTOM + NAMES + ROW * lines.len() as i32);
    let root = SVGBackend::with_string(svg, (width as u32, height as u32)).into_drawing_area();
    let all = lines.iter().flat_map(|l| l.times.iter().flatten().chain(&l.other));
    let (low, high) = range(all.map(|t| t.log10()), 0.04);
    let step = f64::from(right - LEFT) / columns.len() as f64;
    let x = |column: usize| LEFT + ((column as f64 + 0.5) * step).round() as i32;
    let y = |value: f64| {
        let share = (value.log10() - low) / (high - low);
        BOTTOM - (share * f64::from(BOTTOM - TOP)).round() as i32
    };

    root.draw(&Text::new(title.to_owned(), (12, 16), text(16, HPos::Left)))?;
    for (value, label) in decades(low, high) {
        let at = y(value);
        root.draw(&PathElement::new(vec![(LEFT, at), (right, at)], INK.mix(0.35)))?;
        root.draw(&Text::new(label, (LEFT - 8, at), text(12, HPos::Right)))?;
    }
    for (column, name) in columns.iter().enumerate() {
        let (at, lower) = (x(column), column as i32 % 2 * 16);
        root.draw(&PathElement::new(vec![(at, BOTTOM), (at, BOTTOM + 5 + lower)], INK))?;
        let place = (at, BOTTOM + 16 + lower);
        root.draw(&Text::new((*name).to_owned(), place, text(12, HPos::Center)))?;
    }
    root.draw(&PathElement::new(vec![(LEFT, TOP), (LEFT, BOTTOM), (right, BOTTOM)], INK))?;
    let curves: Vec<Curve> = lines
        .iter()
        .map(|l| Curve {
            label: l.label.clone(),
            dashed: false,
            points: l
                .times
                .iter()
                .chain(&[l.other])
                .enumerate()
                .filter_map(|(column, time)| Some((column as f64, (*time)?)))
                .collect(),
        })
        .collect();
    for ((curve, line), colour) in curves.iter().zip(lines).zip(SPECTRUM.iter().cycle()) {
        let style = ShapeStyle::from(colour).stroke_width(2);
        let points: Vec<_> = curve.points.iter().map(|p| (x(p.0 as usize), y(p.1))).collect();
        let own = points.len() - usize::from(line.other.is_some());
        // Along all versions: what lies below is faster than the other.
        if let Some(&(last, at)) = line.other.and(points.last()) {
            for piece in pieces(&[(x(0), at), (last, at)], true) {
                root.draw(&PathElement::new(piece, colour.mix(0.5)))?;
            }
        }
        for (index, point) in points.into_iter().enumerate() {
            if index < own {
                root.draw(&Circle::new(point, 3, colour.filled()))?
            } else {
                root.draw(&Circle::new(point, 4, style))?
            }
        }
    }
    let mut named: Vec<_> = curves.iter().zip(SPECTRUM.iter().cycle()).collect();
    let last = |curve: &Curve| curve.points.last().map_or(0.0, |p| p.1);
    // As their points stand, from top to bottom.
    named.sort_by(|a, b| last(b.0).total_cmp(&last(a.0)));
    for (row, (curve, colour)) in named.into_iter().enumerate() {
        let at = BOTTOM + NAMES + ROW * row as i32 - 2;
        root.draw(&Circle::new((LEFT, at), 3, colour.filled()))?;
        root.draw(&Text::new(curve.label.clone(), (LEFT + 12, at), text(12, HPos::Left)))?;
    }
    root.present()?;
    Ok(())
}

/// As wide as the columns and the longest text need; and what of it is to the right of the plot: the last name is as far right.
fn width(title: &str, columns: &[&str], lines: &[Line]) -> (i32, i32) {
    let letters = |text: &str| text.chars().count() as i32;
    let longest = lines.iter().map(|l| letters(&l.label)).max().unwrap_or(0);
    let last = columns.last().map_or(0, |name| letters(name));
    let margin = 8 + (LETTER * last - PITCH).max(0) / 2;
    let all = [
        LEFT + PITCH * columns.len() as i32 + margin,
        LETTER_OF_TITLE * letters(title) + 24,
        LEFT + 12 + LETTER * longest,
        NARROWEST,
    ];
    (all.into_iter().max().unwrap_or(NARROWEST), margin)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_that_is_left_out_leaves_a_gap_and_the_other_is_hollow() {
        let line = |label: &str, times: &[Option<f64>], other| Line {
            label: label.into(),
            times: times.to_vec(),
            other,
        };
        let lines = [
            line("N=1", &[Some(100.0), None, Some(10.0)], Some(5.0)),
            line("N=2", &[None, Some(300.0), None], None),
        ];
        let names = ["v0", "v1", "v2"].map(str::to_owned);
        let svg = versions("title", &names, "library", &lines).unwrap();
        for text in ["title", "v0", "v1", "v2", "library", "N=1", "N=2"] {
            assert!(svg.contains(&format!("\n{text}\n")), "{text}: {svg}");
        }
        // Two of them say which colour is which problem.
        assert_eq!(svg.matches("<circle").count(), 4 + 2);
        let hollow =
            svg.lines().filter(|l| l.starts_with("<circle") && l.contains("fill=\"none\""));
        assert_eq!(hollow.count(), 1);
        // Every line is level or upright: none leads from one version to another.
        let strokes = svg.lines().filter(|l| l.starts_with("<polyline"));
        let points = strokes.filter_map(|l| l.split("points=\"").nth(1)?.split('"').next());
        for points in points {
            let all: Vec<(&str, &str)> =
                points.split_whitespace().filter_map(|p| p.split_once(',')).collect();
            let level = all.iter().all(|p| p.1 == all[0].1);
            let upright = all.iter().all(|p| p.0 == all[0].0);
            // The axes are one corner.
            assert!(level || upright || all.len() == 3, "{points}");
        }
        let svg = versions("title", &names, "library", &lines[1..]).unwrap();
        assert!(!svg.contains("library"));
        // A phone shows three versions and a library; more columns take more room.
        assert!(svg.contains(&format!("width=\"{NARROWEST}\"")), "{svg}");
        assert!(width("title", &["v"; 12], &lines).0 > NARROWEST);
        let (_, margin) = width("title", &["v0", "a library of a long name"], &lines);
        assert!(margin > 8);
    }
}
