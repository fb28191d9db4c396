//! The tensors of a run.

use lab_device::DType;
use lab_harness::{Error, Shape, Shapes, Tensor};

use super::{Lstm, Pass, check_size};
use crate::direction::{Sizes, state_type, states_with_gradient};

/// Rows of all steps.
const MOST_ROWS: usize = 1 << 30;

fn refuse(name: &str, expected: impl Into<String>, got: impl Into<String>) -> Error {
    Error::Tensor { name: name.to_owned(), expected: expected.into(), got: got.into() }
}

/// The sizes of a run on tensors of these shapes, all of which fit.
pub(super) fn check_shapes(lstm: &Lstm, shapes: &Shapes, pass: Pass) -> Result<Sizes, Error> {
    let network = &lstm.network;
    let Some(x) = shapes.get("x") else {
        return Err(refuse("x", "a tensor [T, B, I]", "none"));
    };
    let dtype = x.dtype;
    if ![DType::F32, DType::F64, DType::F16, DType::BF16].contains(&dtype) {
        return Err(refuse("x", "f32, f64, f16 or bf16", dtype.to_string()));
    }
    let [steps, batch, columns] = x.sizes[..] else {
        return Err(refuse("x", "shape [T, B, I]", x.to_string()));
    };
    let fits = |size: usize| size > 0 && size <= MOST_ROWS;
    if !fits(steps) || !fits(batch) || !fits(steps.saturating_mul(batch)) {
        let expected = format!("at least one step and one row, T B up to {MOST_ROWS}");
        return Err(refuse("x", expected, x.to_string()));
    }
    check_size("B", batch).map_err(|e| refuse("x", e.to_string(), x.to_string()))?;
    if columns != network.inputs {
        let expected = format!("I={}, the network's inputs", network.inputs);
        return Err(refuse("x", expected, x.to_string()));
    }

    let check = |name: &str, own: DType, sizes: &[usize], needed: bool| match shapes.get(name) {
        None if needed => Err(refuse(name, format!("a tensor {sizes:?}"), "none")),
        Some(t) if t.dtype != own => {
            let expected = if own == dtype {
                format!("{dtype} as 'x'")
            } else {
                format!("{own} in runs of every type")
            };
            Err(refuse(name, expected, t.dtype.to_string()))
        }
        Some(t) if t.sizes != sizes => Err(refuse(name, format!("{sizes:?}"), t.to_string())),
        _ => Ok(()),
    };
    for parameter in network.parameters() {
        check(&parameter.name, dtype, &parameter.shape, true)?;
    }
    let directions = network.directions();
    let of_states = [network.layers * directions, batch, network.hidden];
    let (cell, is_slstm) = (network.cell, network.cell.is_slstm());
    // c is nothing without its n and m.
    let has_memory = ["c0", "n0", "m0"].iter().any(|name| shapes.contains_key(*name));
    for &of in cell.states() {
        let needed = is_slstm && of != "h" && has_memory;
        check(&format!("{of}0"), state_type(cell, of, dtype), &of_states, needed)?;
    }
    if pass == Pass::ForwardBackward {
        check("dy", dtype, &[steps, batch, network.hidden * directions], false)?;
        for of in states_with_gradient(cell) {
            check(&format!("d{of}n"), state_type(cell, of, dtype), &of_states, false)?;
        }
    }
    match shapes.get("lengths") {
        Some(t) if is_slstm => {
            Err(refuse("lengths", "none in an sLSTM, whose rows have all steps", t.to_string()))
        }
        Some(Shape { dtype, .. }) if *dtype != DType::I64 => {
            Err(refuse("lengths", "i64", dtype.to_string()))
        }
        Some(t) if t.sizes != [batch] => {
            Err(refuse("lengths", format!("[{batch}], one a row"), t.to_string()))
        }
        _ => Ok(lstm.sizes(dtype, steps, batch, pass)),
    }
}

/// The rows' lengths as the kernels read them, i32, none past so many steps.
pub(super) fn narrow_lengths(lengths: &Tensor, steps: usize) -> Result<Tensor, Error> {
    let values = lengths.values();
    let fits = |v: &f64| (0.0..=steps as f64).contains(v);
    if let Some(row) = values.iter().position(|v| !fits(v)) {
        let got = format!("{} of row {row}", values[row]);
        return Err(refuse("lengths", format!("0 to {steps}, the steps of 'x'"), got));
    }
    let narrow: Vec<i32> = values.iter().map(|&v| v as i32).collect();
    Ok(Tensor::new(&lengths.shape, &narrow))
}
