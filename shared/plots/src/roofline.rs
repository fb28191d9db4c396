//! The roofline (Williams, Waterman and Patterson, 2009): what a kernel reaches over its operations a
//! byte, under the memory's slope and the units' ceilings.

use lab_harness::Error;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::lines::{decades, range};
use super::{HEIGHT, INK, SPECTRUM, WIDTH, three_digits};

/// What a version reaches, a point a problem.
#[derive(Clone, Debug)]
pub struct Points {
    /// What they are called beside the plot.
    pub label: String,
    /// Somebody else's: hollow and grey.
    pub other: bool,
    /// Operations a byte, and TFLOP/s.
    pub points: Vec<(f64, f64)>,
}

const LEFT: i32 = 64;
const RIGHT: i32 = 500;
/// Of the names of the units, and of the legend.
const NAMES: i32 = RIGHT + 6;
const LEGEND: i32 = RIGHT + 84;
const TOP: i32 = 44;
const BOTTOM: i32 = 404;

/// As SVG text. `gbps` is what memory moves a second, in GB/s; `peaks` are names and TFLOP/s of units.
///
/// # Errors
/// As [`bars`](crate::bars).
pub fn roofline(
    title: &str,
    gbps: f64,
    peaks: &[(String, f64)],
    all: &[Points],
) -> Result<String, Error> {
    let mut svg = String::new();
    let drawn = draw(&mut svg, title, gbps, peaks, all);
    drawn.map_err(|e| Error::File { path: "the plot".into(), message: e.to_string() })?;
    Ok(svg)
}

fn draw(
    svg: &mut String,
    title: &str,
    gbps: f64,
    peaks: &[(String, f64)],
    all: &[Points],
) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::with_string(svg, (WIDTH as u32, HEIGHT as u32)).into_drawing_area();
    let text = |size: i32, horizontal: HPos| {
        ("sans-serif", size).into_font().color(&INK).pos(Pos::new(horizontal, VPos::Center))
    };
    let slope = |intensity: f64| gbps * 1e-3 * intensity;
    let points = || all.iter().flat_map(|p| &p.points);
    let highest = peaks.iter().map(|p| p.1).fold(0.0, f64::max);
    // Each ridge is in the picture.
    let ridges = peaks.iter().map(|p| p.1 / (gbps * 1e-3));
    let (left, right) = range(points().map(|p| p.0.log10()).chain(ridges.map(f64::log10)), 0.08);
    let values = points().map(|p| p.1).chain([highest.max(slope(10f64.powf(left)))]);
    let (low, high) = range(values.map(f64::log10), 0.06);
    let within =
        |share: f64, from: i32, to: i32| from + (share * f64::from(to - from)).round() as i32;
    let x = |v: f64| within((v.log10() - left) / (right - left), LEFT, RIGHT);
    let y = |v: f64| within((v.log10() - low) / (high - low), BOTTOM, TOP);

    root.draw(&Text::new(title.to_owned(), (12, 16), text(16, HPos::Left)))?;
    for (value, label) in decades(low, high) {
        root.draw(&PathElement::new(vec![(LEFT, y(value)), (RIGHT, y(value))], INK.mix(0.35)))?;
        root.draw(&Text::new(label, (LEFT - 8, y(value)), text(12, HPos::Right)))?;
    }
    for (value, label) in decades(left, right) {
        root.draw(&PathElement::new(vec![(x(value), BOTTOM), (x(value), BOTTOM + 5)], INK))?;
        root.draw(&Text::new(label, (x(value), BOTTOM + 16), text(12, HPos::Center)))?;
    }
    let middle = (LEFT + RIGHT) / 2;
    let axis = "operations a byte that must move";
    root.draw(&Text::new(axis, (middle, BOTTOM + 40), text(13, HPos::Center)))?;
    root.draw(&PathElement::new(vec![(LEFT, TOP), (LEFT, BOTTOM), (RIGHT, BOTTOM)], INK))?;
    // The memory's slope, up to the highest ceiling or to an edge.
    let (first, last) = (10f64.powf(left), 10f64.powf(right));
    let from = first.max(10f64.powf(low) / (gbps * 1e-3));
    let to = if highest > 0.0 { (highest / (gbps * 1e-3)).min(last) } else { last };
    let bold = ShapeStyle::from(&INK).stroke_width(2);
    if from < to {
        root.draw(&PathElement::new(vec![(x(from), y(slope(from))), (x(to), y(slope(to)))], bold))?;
        let label = format!("{gbps:.0} GB/s");
        let at = ((x(from) + x(to)) / 2 + 10, (y(slope(from)) + y(slope(to))) / 2 + 12);
        root.draw(&Text::new(label, at, text(12, HPos::Left)))?;
    }
    for (name, peak) in peaks {
        let begin = x((peak / (gbps * 1e-3)).max(first));
        root.draw(&PathElement::new(vec![(begin, y(*peak)), (RIGHT, y(*peak))], bold))?;
        let label = format!("{name} {}", three_digits(*peak));
        root.draw(&Text::new(label, (NAMES, y(*peak)), text(12, HPos::Left)))?;
    }
    let mut colours = SPECTRUM.iter().cycle();
    for (row, one) in all.iter().enumerate() {
        let colour = if one.other { &INK } else { colours.next().expect("a cycle") };
        let at = TOP + 10 + 18 * row as i32;
        for place in one.points.iter().map(|p| (x(p.0), y(p.1))).chain([(LEGEND, at)]) {
            if one.other {
                root.draw(&Circle::new(place, 5, ShapeStyle::from(colour).stroke_width(2)))?
            } else {
                root.draw(&Circle::new(place, 4, colour.filled()))?
            }
        }
        root.draw(&Text::new(one.label.clone(), (LEGEND + 12, at), text(12, HPos::Left)))?;
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_stand_under_the_roof() {
        let points = |label: &str, other, points: &[(f64, f64)]| Points {
            label: label.into(),
            other,
            points: points.to_vec(),
        };
        let all = [
            points("v0", false, &[(1.0, 0.5), (100.0, 10.0)]),
            points("library", true, &[(100.0, 40.0)]),
        ];
        let svg = roofline("title", 4000.0, &[("f32".into(), 60.0)], &all).unwrap();
        for text in ["title", "v0", "library", "4000 GB/s", "f32 60.0"] {
            assert!(svg.contains(&format!("\n{text}\n")), "{text}: {svg}");
        }
        // Three points, and one a label.
        let circles: Vec<&str> = svg.lines().filter(|l| l.starts_with("<circle")).collect();
        assert_eq!(circles.len(), 5);
        assert_eq!(circles.iter().filter(|l| l.contains("fill=\"none\"")).count(), 2);
        let number = |line: &str, name: &str| -> f64 {
            line.split(&format!("{name}=\""))
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
                .parse()
                .unwrap()
        };
        // Of one problem the faster is the higher, and memory's share of it the further to the left.
        assert!(number(circles[3], "cy") < number(circles[1], "cy"), "{svg}");
        assert!(number(circles[0], "cx") < number(circles[1], "cx"));
    }
}
