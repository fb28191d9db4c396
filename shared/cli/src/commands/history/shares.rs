//! The versions of matmul beside cuBLAS at one size, as bars.

use lab_harness::record::{Measurement, Of, Run};

use super::lists::short;
use crate::failure::Failure;
use crate::plot::{Bar, bars, three_digits};

const SHAPE: &str = "G=1,K=4096,M=4096,N=4096";
const DTYPE: &str = "bf16";

/// The picture, by file name, from the newest record that has cuBLAS; nothing where none has.
pub(super) fn pages(runs: &[Run]) -> Result<Vec<(String, String)>, Failure> {
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
