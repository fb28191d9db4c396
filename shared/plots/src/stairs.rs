//! A flight of stairs, the first step at the bottom.

use lab_harness::Error;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::{INK, SPECTRUM};

/// One step.
#[derive(Clone, Debug)]
pub struct Step {
    /// On it.
    pub name: String,
    /// What is new on it.
    pub adds: String,
    /// What one version of it reaches.
    pub figure: String,
    /// Which version, and for what.
    pub of: String,
}

const WIDTH: i32 = 1000;
const TOP: i32 = 40;
/// Of a step: how high it is, how far it goes in, and how long its tread is.
const ROW: i32 = 46;
const IN: i32 = 12;
const TREAD: i32 = 128;
const LEFT: i32 = 12;

/// The stairs as SVG text.
///
/// # Errors
/// As [`bars`](crate::bars).
pub fn stairs(title: &str, steps: &[Step]) -> Result<String, Error> {
    let mut svg = String::new();
    let drawn = draw(&mut svg, title, steps);
    drawn.map_err(|e| Error::File { path: "the picture".into(), message: e.to_string() })?;
    Ok(svg)
}

fn draw(svg: &mut String, title: &str, steps: &[Step]) -> Result<(), Box<dyn std::error::Error>> {
    let height = TOP + ROW * steps.len() as i32 + 10;
    let root = SVGBackend::with_string(svg, (WIDTH as u32, height as u32)).into_drawing_area();
    let text = |size: i32, colour: &RGBColor, horizontal: HPos| {
        ("sans-serif", size).into_font().color(colour).pos(Pos::new(horizontal, VPos::Center))
    };
    root.draw(&Text::new(title.to_owned(), (LEFT, 16), text(15, &INK, HPos::Left)))?;
    for (index, step) in steps.iter().enumerate() {
        let colour = SPECTRUM[index % SPECTRUM.len()];
        let left = LEFT + IN * index as i32;
        let tread = height - 10 - ROW * index as i32 - ROW + 6;
        let line = ShapeStyle::from(&colour).stroke_width(3);
        // The riser, the tread, and a faint line on over what is said of it.
        let riser = vec![(left, tread + ROW), (left, tread), (left + TREAD, tread)];
        root.draw(&PathElement::new(riser, line))?;
        root.draw(&PathElement::new(
            vec![(left + TREAD, tread), (WIDTH - 12, tread)],
            INK.mix(0.3),
        ))?;
        let (upper, lower) = (tread + ROW / 3, tread + ROW * 3 / 4);
        let name = text(17, &colour, HPos::Left);
        root.draw(&Text::new(step.name.clone(), (left + 10, upper), name))?;
        let figure = text(17, &INK, HPos::Left);
        root.draw(&Text::new(step.figure.clone(), (left + 10, lower), figure))?;
        let right = left + TREAD + 12;
        let adds = text(16, &INK, HPos::Left);
        root.draw(&Text::new(step.adds.clone(), (right, upper), adds))?;
        let of = text(14, &colour, HPos::Left);
        root.draw(&Text::new(step.of.clone(), (right, lower), of))?;
    }
    root.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_is_the_lowest() {
        let step = |name: &str| Step {
            name: name.into(),
            adds: "a".into(),
            figure: "1 GB/s".into(),
            of: "v0".into(),
        };
        let svg = stairs("title", &[step("first"), step("last")]).unwrap();
        let height_of = |name: &str| -> i32 {
            let before = &svg[..svg.find(&format!("\n{name}\n")).unwrap()];
            let y = before.rsplit(" y=\"").next().unwrap();
            y.split('"').next().unwrap().parse().unwrap()
        };
        assert!(height_of("first") > height_of("last"), "{svg}");
        assert_eq!(svg.matches("1 GB/s").count(), 2);
    }
}
