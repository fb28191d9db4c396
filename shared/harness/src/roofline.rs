//! The least time that a device allows for a problem.

use std::fmt;

use lab_device::{Arithmetic, Facts};

use crate::Cost;

/// What a device can do: the ceilings of all kernels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Roofline {
    /// Bytes read plus bytes written a second by a large copy, in GB/s, as measured.
    pub copy_gbps: f64,
    /// TFLOP/s of the units, from the device's facts; `None` where they are not known.
    pub peak_tflops: Option<f64>,
    units: Bound,
}

/// What a problem is bound by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// The device's memory.
    Memory,
    /// Multiply-adds in f32 or f64, a lane each.
    Lanes,
    /// The tensor cores.
    TensorCores,
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Memory => "memory",
            Self::Lanes => "arithmetic",
            Self::TensorCores => "tensor cores",
        })
    }
}

impl Roofline {
    /// Of a GPU, for what computes with these units ([`crate::Version::arithmetic`]): for halves
    /// that is the tensor cores, whether or not a kernel uses them, for that is what the GPU could
    /// do.
    pub fn new(facts: &Facts, arithmetic: Option<Arithmetic>, copy_gbps: f64) -> Self {
        let units = match arithmetic {
            Some(Arithmetic::Halves | Arithmetic::Tf32) => Bound::TensorCores,
            _ => Bound::Lanes,
        };
        Self { copy_gbps, peak_tflops: arithmetic.and_then(|a| facts.peak_tflops(a)), units }
    }

    /// The least time for a problem in µs, and what it is bound by.
    pub fn least_us(&self, cost: &Cost) -> (f64, Bound) {
        let memory = cost.bytes / self.copy_gbps * 1e-3;
        let arithmetic = self.peak_tflops.map_or(0.0, |peak| cost.flops / peak * 1e-6);
        if arithmetic > memory { (arithmetic, self.units) } else { (memory, Bound::Memory) }
    }

    /// The least time over this one, in percent.
    pub fn percent(&self, cost: &Cost, us: f64) -> f64 {
        100.0 * self.least_us(cost).0 / us
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slower_of_memory_and_arithmetic_is_the_bound() {
        let roofline = Roofline { copy_gbps: 4000.0, peak_tflops: Some(50.0), units: Bound::Lanes };
        let small = Cost { flops: 1e6, bytes: 4e6 };
        assert_eq!(roofline.least_us(&small), (1.0, Bound::Memory));
        let large = Cost { flops: 1e9, bytes: 4e6 };
        let (us, bound) = roofline.least_us(&large);
        assert!((us - 20.0).abs() < 1e-9 && bound == Bound::Lanes, "{us} {bound}");
        assert!((roofline.percent(&large, 40.0) - 50.0).abs() < 1e-9);
        let unknown = Roofline { peak_tflops: None, ..roofline };
        assert_eq!(unknown.least_us(&large), (1.0, Bound::Memory));
    }
}
