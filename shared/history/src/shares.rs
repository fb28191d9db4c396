//! The versions of matmul beside cuBLAS at one size, as bars, with what was guessed of them.

use lab_plots::{Bar, bars, three_digits};
use lab_records::record::{Measurement, Of, Run};

use super::lists::short;
use crate::Error;

const SHAPE: &str = "G=1,K=4096,M=4096,N=4096";
const DTYPE: &str = "bf16";

/// TFLOP/s that were guessed before the first run. The chapter says why.
const GUESSES: [(&str, f64); 7] = [
    ("v7_mma", 275.0),
    ("v7_tensor", 404.0),
    ("v8_wgmma", 300.0),
    ("v9_ring", 420.0),
    ("v11_wide", 600.0),
    ("v13_stores", 760.0),
    ("v14_multicast", 700.0),
];

/// The picture, by file name, from the newest record that has cuBLAS; nothing where none has.
pub(crate) fn pages(runs: &[Run]) -> Result<Vec<(String, String)>, Error> {
    let of_problem = |m: &&Measurement| {
        (&*m.family, &*m.shape, &*m.dtype) == ("matmul", SHAPE, DTYPE) && m.of != Of::Host
    };
    let found = runs.iter().rev().find_map(|run| {
        let all: Vec<&Measurement> = run.results.iter().filter(of_problem).collect();
        let library = all.iter().find(|m| m.of == Of::Library)?.tflops?;
        Some((run, all, library))
    });
    let Some((run, all, library)) = found else { return Ok(Vec::new()) };
    let bar = |m: &&Measurement| {
        let tflops = m.tflops?;
        let (number, percent) = (three_digits(tflops), 100.0 * tflops / library);
        Some(Bar {
            label: format!("{} {number}", short(&m.version)),
            value: tflops,
            note: format!("{percent:.0} % of cuBLAS"),
            guess: GUESSES.iter().find(|guess| guess.0 == short(&m.version)).map(|guess| guess.1),
            group: usize::from(m.of == Of::Library),
        })
    };
    let shown: Vec<Bar> = all.iter().filter_map(bar).collect();
    let title = format!("matmul, 4096³ in {DTYPE}, {}: TFLOP/s", run.device.gpu);
    Ok(vec![("matmul-shares.svg".into(), bars(&title, (library, "cuBLAS"), &shown)?)])
}

#[cfg(test)]
mod tests {
    use super::super::families::tests::{line, run};
    use super::*;

    #[test]
    fn the_chapter_tells_each_guess() {
        let chapter = concat!(env!("CARGO_MANIFEST_DIR"), "/../../stages/matmul/README.md");
        let chapter = std::fs::read_to_string(chapter).unwrap();
        for (version, tflops) in GUESSES {
            let in_table = format!("| `{version}` | {tflops} |");
            let in_text = format!("guess was {tflops} TFLOP/s");
            let is_told = match version {
                "v7_mma" => chapter.contains(&format!("The guess for it was {tflops}")),
                "v7_tensor" => chapter.contains(&in_text),
                _ => chapter.contains(&in_table),
            };
            assert!(is_told, "{version}: {tflops}");
        }
    }

    #[test]
    fn a_record_without_a_library_is_passed_over() {
        let of = |date, version: &str, kind: &str, us| {
            let mut line = line(version, kind, SHAPE, us, 0.0);
            line["dtype"] = DTYPE.into();
            line["tflops"] = (1000.0 / us).into();
            (date, line)
        };
        let own = of("2026-01-01", "matmul:v0", "version", 4.0);
        let cublas = of("2026-01-01", "cublas", "library", 2.0);
        let alone = of("2026-01-02", "matmul:v1", "version", 1.0);
        let runs = [run(own.0, vec![own.1, cublas.1]), run(alone.0, vec![alone.1])];
        let all = pages(&runs).unwrap();
        let [(name, svg)] = &all[..] else { panic!("{all:?}") };
        assert_eq!(name, "matmul-shares.svg");
        assert!(svg.contains("v0 250") && svg.contains("50 % of cuBLAS"), "{svg}");
        assert!(pages(&runs[1..]).unwrap().is_empty());
    }
}
