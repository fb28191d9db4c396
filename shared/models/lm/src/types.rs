//! What a model runs in, and what it remembers in.

use lab_device::DType;
use lab_harness::Error;

/// The types of a model that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Types {
    run: DType,
    states: DType,
}

/// States as exact as the vLSTM computes them.
impl From<DType> for Types {
    fn from(run: DType) -> Self {
        Self { run, states: DType::F32 }
    }
}

impl Types {
    /// Of a run, and of the memory C of the vLSTM: f32, or in a run of bf16 also bf16, of half the bytes. n and m are 1 in 500 of them:
    /// they stay f32, and so does what h is divided by. f16 is none: C is a sum over the whole text, and f16 ends at 65504.
    ///
    /// # Errors
    /// Another type of C, or bf16 in a run that is not.
    pub fn new(run: DType, states: DType) -> Result<Self, Error> {
        match (run, states) {
            (_, DType::F32) | (DType::BF16, DType::BF16) => Ok(Self { run, states }),
            _ => {
                let got = format!("{states} in a run of {run}");
                Err(Error::bad("states", "f32, or bf16 in a run of bf16", got))
            }
        }
    }

    /// Of weights and activations.
    pub fn run(self) -> DType {
        self.run
    }

    /// Of C.
    pub fn states(self) -> DType {
        self.states
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_as_wide_as_their_sum_needs() {
        let both = Types::new(DType::BF16, DType::BF16).unwrap();
        assert_eq!((both.run(), both.states()), (DType::BF16, DType::BF16));
        assert_eq!(Types::from(DType::F16).states(), DType::F32);
        for (run, states) in
            [(DType::F32, DType::BF16), (DType::F16, DType::F16), (DType::BF16, DType::F16)]
        {
            let said = Types::new(run, states).unwrap_err().to_string();
            let got = format!("got {states} in a run of {run}");
            assert_eq!(said, format!("states: expected f32, or bf16 in a run of bf16, {got}"));
        }
    }
}
