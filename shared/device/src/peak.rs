//! What a GPU's arithmetic units can do at most.

use std::fmt;

use crate::{DType, Facts};

/// The units that do a kernel's arithmetic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arithmetic {
    /// Multiply-adds in f32, a lane each.
    F32,
    /// Multiply-adds in f64, a lane each.
    F64,
    /// Tensor cores on f32 inputs of which they take 10 bits of mantissa.
    Tf32,
    /// Tensor cores on f16 or bf16 inputs, added up in f32.
    Halves,
}

impl fmt::Display for Arithmetic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::F32 => "lanes in f32",
            Self::F64 => "lanes in f64",
            Self::Tf32 => "tensor cores in TF32",
            Self::Halves => "tensor cores on halves",
        })
    }
}

impl Arithmetic {
    /// The fastest units that keep what inputs of this type hold: f32 stays off the tensor cores.
    /// `None` of integers.
    pub fn fastest_for(dtype: DType) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32),
            DType::F64 => Some(Self::F64),
            DType::F16 | DType::BF16 => Some(Self::Halves),
            _ => None,
        }
    }
}

/// Multiply-adds that a multiprocessor begins in a cycle, by compute capability: f32, f64, tensor
/// cores on TF32 and on halves, dense. From the CUDA C++ programming guide's table of arithmetic
/// throughput and the architectures' white papers. Zero where there is no such unit.
const RATES: &[((u32, u32), [u32; 4])] = &[
    ((7, 0), [64, 32, 0, 512]),
    ((7, 5), [64, 2, 0, 512]),
    ((8, 0), [64, 32, 512, 1024]),
    ((8, 6), [128, 2, 256, 512]),
    ((8, 9), [128, 2, 256, 512]),
    ((9, 0), [128, 64, 1024, 2048]),
    ((10, 0), [128, 64, 2048, 4096]),
];

impl Facts {
    /// Lanes in f32 of a multiprocessor, which NVIDIA calls CUDA cores. `None` of the emulator, and of a GPU whose rates are
    /// not known here.
    pub fn f32_lanes(&self) -> Option<u32> {
        let rates = RATES.iter().find(|r| r.0 == self.compute_capability);
        rates.map(|(_, rates)| rates[0])
    }

    /// TFLOP/s of these units at the largest clock that the driver reports, a multiply-add counted
    /// as two. `None` of the emulator, of a GPU whose rates are not known here, and of units that
    /// it does not have.
    ///
    /// A ceiling: under load a GPU may run at a lower clock, the more so with its tensor cores.
    pub fn peak_tflops(&self, arithmetic: Arithmetic) -> Option<f64> {
        let (_, rates) = RATES.iter().find(|r| r.0 == self.compute_capability)?;
        let each = f64::from(match arithmetic {
            Arithmetic::F32 => rates[0],
            Arithmetic::F64 => rates[1],
            Arithmetic::Tf32 => rates[2],
            Arithmetic::Halves => rates[3],
        });
        let cycles = f64::from(self.clock_khz) * 1e3;
        let peak = 2.0 * each * f64::from(self.multiprocessors) * cycles * 1e-12;
        (peak > 0.0).then_some(peak)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;

    #[test]
    fn an_h200_and_what_is_not_known() {
        let mut facts = Device::emulator().unwrap().facts().clone();
        assert_eq!((facts.peak_tflops(Arithmetic::F32), facts.f32_lanes()), (None, None));
        (facts.compute_capability, facts.multiprocessors) = ((9, 0), 132);
        facts.clock_khz = 1_980_000;
        assert_eq!(facts.f32_lanes(), Some(128));
        let peak = |a| facts.peak_tflops(a).unwrap();
        assert!((peak(Arithmetic::F32) - 66.9).abs() < 0.1);
        assert!((peak(Arithmetic::F64) - 33.5).abs() < 0.1);
        assert!((peak(Arithmetic::Halves) - 1070.5).abs() < 0.1);
        assert!((peak(Arithmetic::Tf32) - 535.3).abs() < 0.1);
        facts.compute_capability = (7, 5);
        assert_eq!(facts.peak_tflops(Arithmetic::Tf32), None, "it has no such unit");
        facts.compute_capability = (99, 0);
        assert_eq!(facts.peak_tflops(Arithmetic::F32), None);
    }
}
