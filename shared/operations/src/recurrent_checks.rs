//! What must hold of recurrences: states go in and come out, and so do their gradients.

use lab_device::{DType, Device};
use lab_families::lstm::sizes;
use lab_families::{lstm, slstm};
use lab_harness::plan::Slot;
use lab_harness::{Plan, Problem, Tensor, Tensors};
use lab_reference::lstm::{Inputs, Network, Upstream};

use crate::check_data::{inputs, relative};
use crate::{Recurrent, RecurrentCell, RecurrentSizes, RecurrentUpstream};

/// Types, and bounds on the relative errors.
const TYPES: [(DType, f64); 2] = [(DType::F32, 2e-6), (DType::BF16, 8e-3)];

const STEPS: usize = 5;
const BATCH: usize = 3;
const COLUMNS: usize = 24;
const HEADS: usize = 2;
const UNITS: usize = 16;

type Named = Vec<(String, Vec<f64>)>;

fn named(all: Vec<(&'static str, Vec<f64>)>) -> Named {
    all.into_iter().map(|(name, values)| (name.to_owned(), values)).collect()
}

/// The first rows of three gates, of tensors of four.
fn of_three_gates(mut all: Tensors) -> Tensors {
    for name in RecurrentCell::Gru.parameters() {
        let tensor = &all[*name];
        let mut shape = tensor.shape.clone();
        shape[0] = shape[0] / 4 * 3;
        let values = tensor.values()[..shape.iter().product()].to_vec();
        all.insert((*name).to_owned(), Tensor::rounded(tensor.dtype, &shape, &values));
    }
    all.remove("c0");
    all.remove("dcn");
    all
}

/// The GRU's y and hn, and all its gradients.
fn gru_reference(inputs: &Tensors) -> Named {
    let network = Network::gru(COLUMNS, HEADS * UNITS);
    let values = |name: &str| inputs[name].values();
    let parameters =
        RecurrentCell::Gru.parameters().iter().map(|n| ((*n).to_owned(), values(n))).collect();
    let [x, h0, dy, dhn] = ["x", "h0", "dy", "dhn"].map(values);
    let data = Inputs { h0: Some(&h0), ..Inputs::new(BATCH, &x) };
    let upstream = Upstream { dy: Some(&dy), dhn: Some(&dhn), dcn: None };
    let out = network.forward(&parameters, data);
    let back = network.backward(&parameters, data, upstream);
    let mut all = named(vec![("y", out.y), ("hn", out.hn), ("dx", back.dx), ("dh0", back.dh0)]);
    all.extend(back.parameters);
    all
}

/// Inputs, and all results in f64.
fn posed(cell: RecurrentCell, dtype: DType) -> (Tensors, Named) {
    let of_lstm = || {
        let dims = sizes([BATCH, STEPS, COLUMNS, HEADS * UNITS]);
        lstm::inputs(&Problem::new(dims, dtype))
    };
    match cell {
        RecurrentCell::Lstm => {
            let all = of_lstm();
            let expected = named(lstm::reference(&all));
            (all, expected)
        }
        RecurrentCell::Gru => {
            let all = of_three_gates(of_lstm());
            let expected = gru_reference(&all);
            (all, expected)
        }
        RecurrentCell::Slstm => {
            let dims = slstm::sizes([BATCH, STEPS, HEADS, UNITS]);
            let all = slstm::inputs(&Problem::new(dims, dtype));
            let expected = named(slstm::reference(&all));
            (all, expected)
        }
    }
}

/// The operation on inputs of a plan; and what goes in from above.
fn recurrent(
    plan: &mut Plan,
    cell: RecurrentCell,
    dtype: DType,
    all: &Tensors,
) -> (Recurrent, RecurrentUpstream) {
    let mut input = |name: &str| inputs(plan, all, [name])[0];
    let (x, heads, units, columns) = match cell {
        RecurrentCell::Slstm => ("wx", HEADS, UNITS, 4 * HEADS * UNITS),
        RecurrentCell::Lstm | RecurrentCell::Gru => ("x", 1, HEADS * UNITS, COLUMNS),
    };
    let x = input(x);
    // What a cell has fewer of, it does not look at.
    let mut several = |names: Vec<String>| -> [Slot; 4] {
        let slots: Vec<Slot> = names.iter().map(|name| input(name)).collect();
        [0, 1, 2, 3].map(|n: usize| slots[n.min(slots.len() - 1)])
    };
    let parameters = several(cell.parameters().iter().map(|n| (*n).to_owned()).collect());
    let state = several(cell.states().iter().map(|s| format!("{s}0")).collect());
    let with_gradient = cell.states().iter().filter(|s| **s != "m");
    let [h, c, n, _] = several(with_gradient.map(|s| format!("d{s}n")).collect());
    let sizes = RecurrentSizes { steps: STEPS, batch: BATCH, heads, units, columns };
    let (state, versions) = (Some(state), [None; 2]);
    let operation = Recurrent { cell, dtype, sizes, x, parameters, state, versions };
    (operation, RecurrentUpstream { dy: input("dy"), state: Some([h, c, n]) })
}

/// Each cell, from a state and with gradients of y and of the last state, against f64: results, last state, and gradients by all
/// that goes in.
pub(crate) fn recurrences_with_their_states_are_right(device: &Device) {
    for cell in [RecurrentCell::Lstm, RecurrentCell::Gru, RecurrentCell::Slstm] {
        for (dtype, bound) in TYPES {
            let (all, expected) = posed(cell, dtype);
            let mut plan = Plan::new(device);
            let (operation, from) = recurrent(&mut plan, cell, dtype, &all);
            let (outputs, saved) = operation.add_forward_saving(&mut plan).unwrap();
            let alone = operation.add_forward(&mut plan).unwrap();
            let names = cell.parameters();
            let into: Vec<Slot> =
                names.iter().map(|name| plan.scratch(dtype, all[*name].len())).collect();
            let by = operation.add_backward(&mut plan, &saved, from, &into).unwrap();
            let x = if cell == RecurrentCell::Slstm { "dwx" } else { "dx" };
            let mut found = vec![("y".to_owned(), outputs.y), ("y".to_owned(), alone.y)];
            found.push((x.to_owned(), by.x));
            let states = cell.states().iter();
            found.extend(states.clone().map(|s| format!("{s}n")).zip(outputs.state));
            found.extend(states.map(|s| format!("d{s}0")).zip(by.state));
            found.extend(names.iter().map(|name| format!("d{name}")).zip(into));
            assert_eq!(found.len(), expected.len() + 1, "y twice");
            found.iter().for_each(|(_, slot)| plan.keep(*slot));
            let mut run = plan.bind().upload_inputs(&all).unwrap().finish().unwrap();
            run.run().unwrap();
            for (name, slot) in found {
                let (_, expected) = expected.iter().find(|(own, _)| *own == name).unwrap();
                let error = relative(&run.read(slot).unwrap(), expected);
                assert!(error <= bound, "{cell:?} {dtype}, {name}: {error}");
            }
        }
    }
}
