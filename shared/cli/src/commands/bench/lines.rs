//! What is said of a result: its line of the table and of the record.

use lab_device::{Arithmetic, Device};
use lab_harness::Products;
use lab_harness::roofline::Roofline;
use lab_harness::timing::Times;
use lab_harness::{Cost, Heads, Problem};
use lab_records::record::{Judged, Measurement, Of};

use super::scripts::Theirs;
use crate::commands::measure::Measured;

/// Says on standard error what has been measured.
pub(super) fn print_measurement(m: &Measurement) {
    note!("{} {} {}: {:.1} µs", m.version, m.shape, m.dtype, m.median_us);
}

/// A result, and where it stands: versions in their order, then what is shown beside them.
pub(super) struct Line {
    pub(super) place: (usize, usize),
    pub(super) result: Measurement,
}

impl Line {
    pub(super) fn print(&self) {
        print_measurement(&self.result);
    }
}

/// What was measured, before it is a line.
pub(super) struct Timed {
    pub(super) place: (usize, usize),
    pub(super) name: String,
    pub(super) of: Of,
    pub(super) m: Measured,
    /// What its products are computed by.
    pub(super) arithmetic: Option<Arithmetic>,
}

/// What all lines on a problem share.
pub(super) struct OfProblem {
    pub(super) family: &'static str,
    pub(super) problem: Problem,
    pub(super) cost: Cost,
    /// Whether results were judged on this problem.
    pub(super) is_judged: bool,
    /// On which heads of it, where not on the whole.
    pub(super) heads: Option<Heads>,
}

impl OfProblem {
    /// `None` of what was not timed.
    pub(super) fn line(&self, timed: Timed, device: &Device, copy_gbps: f64) -> Option<Line> {
        let Timed { place, name, of, m, arithmetic } = timed;
        let line = Measurement {
            replay_us: m.replay_us,
            relative_error: self.is_judged.then_some(m.relative_error),
            element_share: self.is_judged.then_some(m.element_share),
            judged: self.heads.as_ref().map(Judged::from),
            registers: m.usage.map(|u| u.0),
            local_bytes: m.usage.map(|u| u.1),
            peak_bytes: m.peak_bytes,
            products: Products::of(arithmetic, self.problem.dtype),
            ..self.timed(name, of, m.times?)
        };
        let result = match of {
            Of::Host => line,
            _ => self
                .with_roofline_share(line, &Roofline::new(device.facts(), arithmetic, copy_gbps)),
        };
        Some(Line { place, result })
    }

    pub(super) fn line_of_script(
        &self,
        place: (usize, usize),
        theirs: Theirs,
        device: &Device,
        copy_gbps: f64,
    ) -> Line {
        let Theirs { about, times, replay_us } = theirs;
        let units = about.products.map(Products::units);
        let arithmetic = units.or(Arithmetic::fastest_for(self.problem.dtype));
        let line = Measurement {
            replay_us,
            relative_error: about.relative_error,
            products: about.products,
            peak_bytes: about.peak_bytes,
            computes: about.computes,
            ..self.timed(about.version, Of::Library, times)
        };
        let result = match line.computes {
            None => self
                .with_roofline_share(line, &Roofline::new(device.facts(), arithmetic, copy_gbps)),
            Some(_) => Measurement { tflops: None, gbps: None, ..line },
        };
        Line { place, result }
    }

    /// Of the problem, with the rates that come from its cost.
    fn timed(&self, version: String, of: Of, times: Times) -> Measurement {
        let (cost, us) = (&self.cost, times.median_us);
        Measurement {
            tflops: (cost.flops > 0.0).then(|| cost.flops / us * 1e-6),
            gbps: Some(cost.bytes / us * 1e-3),
            ..Measurement::timed(
                self.family,
                version,
                of,
                &self.problem.dims.to_string(),
                self.problem.dtype.name(),
                times,
            )
        }
    }

    fn with_roofline_share(&self, line: Measurement, roofline: &Roofline) -> Measurement {
        let percent = roofline.percent(&self.cost, line.median_us);
        Measurement { roofline_percent: Some(percent), ..line }
    }
}
