//! The type of the state C of a step.

use lab_device::DType;
use lab_harness::{Error, Info, Problem, Setting};

/// The type of C: that of the tensor C0, which must be this one where one is asked for. Random ones are of bf16 in runs
/// of bf16 and of f32 else.
pub const STATE: Setting = Setting::choice(
    "state",
    "type of C0 and CN; auto: as C0 is, of a random one bf16 in runs of bf16, else f32",
    &["auto", "f32", "bf16"],
);

/// The type of C in a run that does not say.
pub fn state_dtype(dtype: DType) -> DType {
    match dtype {
        DType::BF16 => DType::BF16,
        _ => DType::F32,
    }
}

/// The type of a random C.
pub(crate) fn drawn_dtype(info: &Info, problem: &Problem) -> DType {
    match problem.options.text(info, STATE.name) {
        "f32" => DType::F32,
        "bf16" => DType::BF16,
        _ => state_dtype(problem.dtype),
    }
}

/// bf16 holds C of runs of bf16 alone: what is computed to more digits, or to f16's range, is not kept in fewer.
pub(crate) fn check_state(got: DType, dtype: DType, asked: &str) -> Result<(), Error> {
    let refuse = |expected: String| {
        let (name, got) = ("C0".to_owned(), got.to_string());
        Err(Error::Tensor { name, expected, got })
    };
    match got {
        _ if asked != "auto" && asked != got.name() => {
            refuse(format!("{asked}, as --set state says"))
        }
        DType::BF16 if dtype != DType::BF16 => refuse(format!("f32 in a run of {dtype}")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_states_type_is_as_asked_and_no_narrower_than_the_run() {
        let said = |state, dtype, asked| check_state(state, dtype, asked).unwrap_err().to_string();
        let asked = said(DType::F32, DType::BF16, "bf16");
        assert_eq!(asked, "tensor 'C0': expected bf16, as --set state says, got f32");
        let narrow = said(DType::BF16, DType::F16, "auto");
        assert_eq!(narrow, "tensor 'C0': expected f32 in a run of f16, got bf16");
        assert!(check_state(DType::F32, DType::BF16, "auto").is_ok());
    }
}
