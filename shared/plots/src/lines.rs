//! Lines over time.

use lab_harness::Error;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{AREA, Curve, HEIGHT, INK, SPECTRUM, WIDTH, labels, pieces};

/// What stands around the lines.
#[derive(Clone, Copy, Debug)]
pub struct Axes<'a> {
    /// Above them.
    pub title: &'a str,
    /// What x counts.
    pub x: &'a str,
    /// Whether y is logarithmic; what is not positive is left out then.
    pub logarithmic: bool,
    /// Whether the first line is what the others are held against: it is wide and pale.
    pub truth_first: bool,
}

/// Where a mark stands, and what it says.
pub(crate) type Tick = (f64, String);

/// Lines as SVG text, each with its label at its right end. Values that are not finite are left out.
///
/// # Errors
/// As [`bars`](crate::bars).
pub fn lines(axes: &Axes<'_>, all: Vec<Curve>) -> Result<String, Error> {
    let mut svg = String::new();
    let drawn = draw(&mut svg, axes, all);
    drawn.map_err(|e| Error::File { path: "the plot".into(), message: e.to_string() })?;
    Ok(svg)
}

fn draw(
    svg: &mut String,
    axes: &Axes<'_>,
    mut all: Vec<Curve>,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, (WIDTH as u32, HEIGHT as u32)).into_drawing_area();
    let text = |size: i32, horizontal: HPos| {
        ("sans-serif", size).into_font().color(&INK).pos(Pos::new(horizontal, VPos::Center))
    };
    let height = |value: f64| if axes.logarithmic { value.log10() } else { value };
    for line in &mut all {
        line.points.retain(|p| p.0.is_finite() && height(p.1).is_finite());
    }
    let points = || all.iter().flat_map(|l| &l.points);
    let (first, last) = range(points().map(|p| p.0), 0.0);
    let (low, high) = range(points().map(|p| height(p.1)), 0.04);
    let (left, top, right, bottom) = AREA;
    let across = |value: f64, (from, to): (f64, f64), (start, end): (i32, i32)| {
        start + ((value - from) / (to - from) * f64::from(end - start)).round() as i32
    };
    let x = |value: f64| across(value, (first, last), (left, right));
    let y = |value: f64| across(height(value), (low, high), (bottom, top));

    // Apart from each other: every second, and from blue on.
    let colours = SPECTRUM.iter().skip(2).step_by(2);

    root.draw(&Text::new(axes.title.to_owned(), (12, 16), text(16, HPos::Left)))?;
    let marks = if axes.logarithmic { decades(low, high) } else { even(low, high, 8) };
    for (value, label) in marks {
        let at = y(value);
        root.draw(&PathElement::new(vec![(left, at), (right, at)], INK.mix(0.35)))?;
        root.draw(&Text::new(label, (left - 8, at), text(12, HPos::Right)))?;
    }
    for (value, label) in even(first, last, 10) {
        let at = x(value);
        root.draw(&PathElement::new(vec![(at, bottom), (at, bottom + 5)], INK))?;
        root.draw(&Text::new(label, (at, bottom + 16), text(12, HPos::Center)))?;
    }
    let middle = (left + right) / 2;
    root.draw(&Text::new(axes.x.to_owned(), (middle, bottom + 36), text(13, HPos::Center)))?;
    root.draw(&PathElement::new(vec![(left, top), (left, bottom), (right, bottom)], INK))?;
    let style = |line: &Curve, colour: &RGBColor| match all.first() {
        Some(first) if axes.truth_first && first.label == line.label => {
            ShapeStyle::from(INK.mix(0.45)).stroke_width(7)
        }
        _ => ShapeStyle::from(colour).stroke_width(2),
    };
    for (line, colour) in all.iter().zip(colours.clone().cycle()) {
        let style = style(line, colour);
        let points: Vec<(i32, i32)> = line.points.iter().map(|p| (x(p.0), y(p.1))).collect();
        for piece in if line.dashed { dashes(&points) } else { vec![points.clone()] } {
            root.draw(&PathElement::new(piece, style))?;
        }
        if let [only] = points[..] {
            root.draw(&Circle::new(only, 3, colour.filled()))?;
        }
    }
    for (at, line, colour) in labels(&all, colours.clone(), y, (top, bottom)) {
        let stroke = style(line, colour);
        for piece in pieces(&[(right + 12, at), (right + 30, at)], line.dashed) {
            root.draw(&PathElement::new(piece, stroke))?;
        }
        root.draw(&Text::new(line.label.clone(), (right + 36, at), text(13, HPos::Left)))?;
    }
    root.present()?;
    Ok(())
}

/// A path of many short lines cut into dashes: they run on from line to line.
fn dashes(points: &[(i32, i32)]) -> Vec<Vec<(i32, i32)>> {
    const DASH: f64 = 7.0;
    const GAP: f64 = 5.0;
    let mut all: Vec<Vec<(i32, i32)>> = Vec::new();
    // As if after a gap; and what is left of the dash or the gap under way.
    let (mut drawn, mut left) = (false, 0.0);
    for pair in points.windows(2) {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        let (dx, dy) = (f64::from(x1 - x0), f64::from(y1 - y0));
        let length = dx.hypot(dy);
        let at = |way: f64| {
            let share = way / length;
            (x0 + (dx * share).round() as i32, y0 + (dy * share).round() as i32)
        };
        let mut way = 0.0;
        while length - way > left {
            way += left;
            match all.last_mut() {
                Some(dash) if drawn => dash.push(at(way)),
                _ => all.push(vec![at(way)]),
            }
            drawn = !drawn;
            left = if drawn { DASH } else { GAP };
        }
        left -= length - way;
        if drawn && let Some(dash) = all.last_mut() {
            dash.push(pair[1]);
        }
    }
    all
}

/// The smallest and the largest, apart, with so much of their distance as room on both sides.
pub(crate) fn range(values: impl Iterator<Item = f64>, room: f64) -> (f64, f64) {
    let (low, high) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |r, v| (r.0.min(v), r.1.max(v)));
    if low > high {
        return (0.0, 1.0);
    }
    if low == high {
        let by = if low == 0.0 { 1.0 } else { low.abs() / 2.0 };
        return (low - by, high + by);
    }
    let by = room * (high - low);
    (low - by, high + by)
}

/// Up to about so many marks, at multiples of 1, 2 or 5 times a power of ten.
fn even(low: f64, high: f64, most: usize) -> Vec<Tick> {
    let rough = (high - low) / most as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0].map(|n| n * power).into_iter().find(|s| *s >= rough);
    let step = step.unwrap_or(10.0 * power);
    let digits = (-step.log10()).ceil().max(0.0) as usize;
    let (from, to) = ((low / step).ceil() as i64, (high / step).floor() as i64);
    (from..=to).map(|n| n as f64 * step).map(|v| (v, format!("{v:.digits$}"))).collect()
}

/// Marks between these logarithms: powers of ten, with 2 and 5 where there are few.
pub(crate) fn decades(low: f64, high: f64) -> Vec<Tick> {
    let digits: &[f64] = match high - low {
        d if d > 5.0 => &[1.0],
        d if d > 0.7 => &[1.0, 2.0, 5.0],
        _ => &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
    };
    let exponents = low.floor() as i32..=high.ceil() as i32;
    let all = exponents.flat_map(|e| digits.iter().map(move |d| (d, e)));
    let inside = |v: f64| (low..=high).contains(&v.log10());
    // Not `d * 10^e`, whose roundings would be shown.
    let value = |(d, e): (&f64, i32)| format!("{d}e{e}").parse::<f64>().expect("a number");
    all.map(value).filter(|v| inside(*v)).map(|v| (v, shown(v))).collect()
}

fn shown(value: f64) -> String {
    if (1e-4..1e6).contains(&value) { format!("{value}") } else { format!("{value:e}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_inside() {
        let labels = |all: Vec<Tick>| all.into_iter().map(|t| t.1).collect::<Vec<_>>();
        assert_eq!(
            labels(even(0.0, 100.0, 10)),
            ["0", "10", "20", "30", "40", "50", "60", "70", "80", "90", "100"]
        );
        assert_eq!(labels(even(-0.11, 0.11, 5)), ["-0.10", "-0.05", "0.00", "0.05", "0.10"]);
        assert_eq!(labels(decades(-2.1, 0.1)), ["0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1"]);
        assert_eq!(labels(decades(0.2, 0.5)), ["2", "2.5", "3"]);
    }

    #[test]
    fn dashes_run_on_over_short_lines() {
        let straight: Vec<(i32, i32)> = (0..21).map(|x| (3 * x, 0)).collect();
        let found = dashes(&straight);
        assert_eq!(
            found[..2],
            [vec![(0, 0), (3, 0), (6, 0), (7, 0)], vec![(12, 0), (15, 0), (18, 0), (19, 0)]]
        );
        let ends: Vec<_> = dashes(&[(0, 0), (60, 0)]).into_iter().flatten().map(|p| p.0).collect();
        assert_eq!(ends, [0, 7, 12, 19, 24, 31, 36, 43, 48, 55]);
        assert_eq!(found.len(), 5);
        assert!(dashes(&straight[..1]).is_empty());
    }

    #[test]
    fn values_that_are_not_finite_are_left_out() {
        let line = |values: &[f64]| Curve {
            label: "a".into(),
            dashed: false,
            points: values.iter().enumerate().map(|(n, v)| (n as f64, *v)).collect(),
        };
        for logarithmic in [false, true] {
            let axes = Axes { title: "t", x: "n", logarithmic, truth_first: false };
            for values in [&[][..], &[1.0], &[0.0, 0.0], &[1.0, f64::NAN, f64::INFINITY, -1.0]] {
                let svg = lines(&axes, vec![line(values)]).unwrap();
                assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
            }
        }
    }
}
