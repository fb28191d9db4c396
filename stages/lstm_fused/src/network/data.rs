//! The tensors of a run.

use lab_device::DType;
use lab_harness::program::{Program, Slot};
use lab_harness::{Error, Tensor, Tensors};
use lab_reference::lstm::Cell;

use super::{Lstm, Pass, check_size};
use crate::direction::Sizes;

/// Rows of all steps.
const MOST_ROWS: usize = 1 << 30;

fn refuse(name: &str, expected: impl Into<String>, got: impl Into<String>) -> Error {
    Error::Tensor { name: name.to_owned(), expected: expected.into(), got: got.into() }
}

/// The tensors of a run, checked.
pub(super) struct Data<'a> {
    tensors: &'a Tensors,
    pub(super) sizes: Sizes,
    /// i32, filled in where there are none.
    pub(super) lengths: Tensor,
}

impl<'a> Data<'a> {
    pub(super) fn of(lstm: &Lstm, tensors: &'a Tensors, pass: Pass) -> Result<Self, Error> {
        let network = &lstm.network;
        let Some(x) = tensors.get("x") else {
            return Err(refuse("x", "a tensor [T, B, I]", "none"));
        };
        let dtype = x.dtype;
        if ![DType::F32, DType::F64, DType::F16, DType::BF16].contains(&dtype) {
            return Err(refuse("x", "f32, f64, f16 or bf16", dtype.to_string()));
        }
        let [steps, batch, columns] = x.shape[..] else {
            return Err(refuse("x", "shape [T, B, I]", x.describe()));
        };
        let fits = |size: usize| size > 0 && size <= MOST_ROWS;
        if !fits(steps) || !fits(batch) || !fits(steps.saturating_mul(batch)) {
            let expected = format!("at least one step and one row, T B up to {MOST_ROWS}");
            return Err(refuse("x", expected, x.describe()));
        }
        check_size("B", batch).map_err(|e| refuse("x", e.to_string(), x.describe()))?;
        if columns != network.inputs {
            let expected = format!("I={}, the network's inputs", network.inputs);
            return Err(refuse("x", expected, x.describe()));
        }
        let directions = network.directions();
        let sizes = lstm.sizes(dtype, steps, batch, pass);

        let check = |name: &str, shape: &[usize], needed: bool| match tensors.get(name) {
            None if needed => Err(refuse(name, format!("a tensor {shape:?}"), "none")),
            Some(t) if t.dtype != dtype => {
                Err(refuse(name, format!("{dtype} as 'x'"), t.dtype.to_string()))
            }
            Some(t) if t.shape != shape => Err(refuse(name, format!("{shape:?}"), t.describe())),
            _ => Ok(()),
        };
        for parameter in network.parameters() {
            check(&parameter.name, &parameter.shape, true)?;
        }
        let of_states = [network.layers * directions, batch, network.hidden];
        let has_c = network.cell == Cell::Lstm;
        check("h0", &of_states, false)?;
        if has_c {
            check("c0", &of_states, false)?;
        }
        if pass == Pass::ForwardBackward {
            check("dy", &[steps, batch, network.hidden * directions], false)?;
            check("dhn", &of_states, false)?;
            if has_c {
                check("dcn", &of_states, false)?;
            }
        }
        Ok(Self { tensors, sizes, lengths: lengths(tensors, steps, batch)? })
    }

    /// A tensor that may be left out: zeros then.
    pub(super) fn input(
        &self,
        program: &mut Program,
        name: &str,
        shape: &[usize],
    ) -> Result<Slot, Error> {
        match self.tensors.get(name) {
            Some(tensor) => program.input(tensor),
            None => {
                let zeros = program.scratch(self.sizes.dtype, shape.iter().product())?;
                program.zero(zeros);
                Ok(zeros)
            }
        }
    }
}

/// The rows' lengths as the kernels read them.
fn lengths(tensors: &Tensors, steps: usize, batch: usize) -> Result<Tensor, Error> {
    let all = match tensors.get("lengths") {
        None => vec![steps as i32; batch],
        Some(t) if t.dtype != DType::I64 => {
            return Err(refuse("lengths", "i64", t.dtype.to_string()));
        }
        Some(t) if t.shape != [batch] => {
            return Err(refuse("lengths", format!("[{batch}], one a row"), t.describe()));
        }
        Some(t) => {
            let values = t.values();
            let fits = |v: &f64| (0.0..=steps as f64).contains(v);
            if let Some(row) = values.iter().position(|v| !fits(v)) {
                let got = format!("{} of row {row}", values[row]);
                return Err(refuse("lengths", format!("0 to {steps}, the steps of 'x'"), got));
            }
            values.iter().map(|&v| v as i32).collect()
        }
    };
    Ok(Tensor::new(&[batch], &all))
}
