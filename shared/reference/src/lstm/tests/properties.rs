//! What must hold of every network.

use super::*;

/// Columns of a row in `[…, B, columns]`.
fn of_row(all: &[f64], batch: usize, row: usize, columns: usize) -> Vec<f64> {
    all.chunks(columns).skip(row).step_by(batch).flatten().copied().collect()
}

fn assert_close(got: &[f64], expected: &[f64], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (got, expected) in got.iter().zip(expected) {
        assert!((got - expected).abs() <= 1e-13, "{what}: {got}, not {expected}");
    }
}

/// One row of a case, as a case of its own.
fn alone(case: &Case, row: usize) -> Case {
    let Network { inputs, hidden, .. } = case.network;
    let out = hidden * case.network.directions();
    let row_of = |all: &[f64], columns| of_row(all, case.batch, row, columns);
    Case {
        batch: 1,
        x: row_of(&case.x, inputs),
        h0: row_of(&case.h0, hidden),
        c0: row_of(&case.c0, hidden),
        dy: row_of(&case.dy, out),
        dhn: row_of(&case.dhn, hidden),
        dcn: row_of(&case.dcn, hidden),
        lengths: case.lengths.as_ref().map(|lengths| vec![lengths[row]]),
        dropout: case.dropout.as_ref().map(|mask| row_of(mask, out)),
        ..case.clone()
    }
}

/// And the gradients of the parameters are the sums of those of the rows.
#[test]
fn rows_do_not_depend_on_each_other() {
    for case in cases() {
        let Network { inputs, hidden, .. } = case.network;
        let columns = hidden * case.network.directions();
        let (out, gradients) = (case.forward(), case.backward());
        let mut sums: Tensors = gradients
            .parameters
            .iter()
            .map(|(name, d)| (name.clone(), vec![0.0; d.len()]))
            .collect();
        for row in 0..case.batch {
            let case_alone = alone(&case, row);
            let (out_alone, gradients_alone) = (case_alone.forward(), case_alone.backward());
            for (all, columns, one) in [
                (&out.y, columns, &out_alone.y),
                (&out.hn, hidden, &out_alone.hn),
                (&out.cn, hidden, &out_alone.cn),
                (&gradients.dx, inputs, &gradients_alone.dx),
                (&gradients.dh0, hidden, &gradients_alone.dh0),
                (&gradients.dc0, hidden, &gradients_alone.dc0),
            ] {
                assert_close(&of_row(all, case.batch, row, columns), one, case.name);
            }
            for (name, d) in gradients_alone.parameters {
                sums.get_mut(&name).unwrap().iter_mut().zip(d).for_each(|(sum, d)| *sum += d);
            }
        }
        for (name, sum) in sums {
            assert_close(&sum, &gradients.parameters[&name], &format!("{}: {name}", case.name));
        }
    }
}

#[test]
fn all_lengths_full_are_no_lengths() {
    for case in cases() {
        let none = Case { lengths: None, ..case.clone() };
        let steps = case.x.len() / (case.batch * case.network.inputs);
        let full = none.clone().with_lengths(&vec![steps; case.batch]);
        assert_eq!(none.forward(), full.forward(), "{}", case.name);
        assert_eq!(none.backward(), full.backward(), "{}", case.name);
    }
}

/// A row with a length is the row cut there: what follows may be NaN.
#[test]
fn nothing_is_read_past_a_length() {
    for case in cases().into_iter().filter(|case| case.lengths.is_some()) {
        let Network { inputs, hidden, .. } = case.network;
        let columns = hidden * case.network.directions();
        let lengths = case.lengths.clone().unwrap();
        let steps = case.x.len() / (case.batch * inputs);
        let past = |at: usize, columns: usize| {
            let row = at / columns;
            row / case.batch >= lengths[row % case.batch]
        };
        let spoil = |all: &mut [f64], columns: usize| {
            // The masks of several layers stand one after the other.
            for all in all.chunks_mut(steps * case.batch * columns) {
                for (_, v) in all.iter_mut().enumerate().filter(|(at, _)| past(*at, columns)) {
                    *v = f64::NAN;
                }
            }
        };
        let mut spoilt = case.clone();
        spoil(&mut spoilt.x, inputs);
        spoil(&mut spoilt.dy, columns);
        if let Some(mask) = &mut spoilt.dropout {
            spoil(mask, columns);
        }
        let (out, gradients) = (case.forward(), case.backward());
        assert_eq!(out, spoilt.forward(), "{}", case.name);
        assert_eq!(gradients, spoilt.backward(), "{}", case.name);
        for (all, columns) in [(&out.y, columns), (&gradients.dx, inputs)] {
            let zero = |(at, v): (usize, &f64)| (*v == 0.0) == past(at, columns);
            assert!(all.iter().enumerate().all(zero), "{}: zero there, and only there", case.name);
        }
        for row in 0..case.batch {
            let whole = alone(&case, row);
            if lengths[row] == 0 {
                let out = whole.forward();
                assert_eq!((out.hn, out.cn), (whole.h0, whole.c0), "{}", case.name);
                continue;
            }
            let cut = |all: &[f64], columns: usize| all[..lengths[row] * columns].to_vec();
            let mask = |all: &Vec<f64>| {
                all.chunks(steps * columns).flat_map(|all| cut(all, columns)).collect()
            };
            let short = Case {
                x: cut(&whole.x, inputs),
                dy: cut(&whole.dy, columns),
                dropout: whole.dropout.as_ref().map(mask),
                lengths: None,
                ..whole.clone()
            };
            let (a, b) = (whole.forward(), short.forward());
            assert_close(&cut(&a.y, columns), &b.y, case.name);
            assert_eq!((a.hn, a.cn), (b.hn, b.cn), "{}", case.name);
            let (a, b) = (whole.backward(), short.backward());
            assert_close(&cut(&a.dx, inputs), &b.dx, case.name);
            for (name, d) in a.parameters {
                assert_close(&d, &b.parameters[&name], case.name);
            }
        }
    }
}

/// The steps of `[T, …]`, last first.
fn flipped(all: &[f64], steps: usize) -> Vec<f64> {
    all.chunks(all.len() / steps).rev().flatten().copied().collect()
}

#[test]
fn the_reverse_direction_is_the_forward_one_on_flipped_steps() {
    let norm = Some(1e-5);
    for network in [
        Network::lstm(3, 4),
        Network { peephole: true, layer_norm: norm, ..Network::lstm(3, 4) },
        Network::gru(3, 4),
    ] {
        let steps = 6;
        let two = Case::new("", Network { bidirectional: true, ..network }, steps, 2);
        let half = |all: &[f64]| all[all.len() / 2..].to_vec();
        let last_columns =
            |all: &[f64]| all.chunks(8).flat_map(|row| row[4..].to_vec()).collect::<Vec<_>>();
        let parameters = network.parameters().into_iter().map(|p| {
            let reverse = two.parameters[&format!("{}_reverse", p.name)].clone();
            (p.name, reverse)
        });
        let one = Case {
            network,
            parameters: parameters.collect(),
            x: flipped(&two.x, steps),
            h0: half(&two.h0),
            c0: half(&two.c0),
            dy: flipped(&last_columns(&two.dy), steps),
            dhn: half(&two.dhn),
            dcn: half(&two.dcn),
            ..two.clone()
        };
        let (a, b) = (two.forward(), one.forward());
        assert_close(&last_columns(&a.y), &flipped(&b.y, steps), "y");
        assert_close(&half(&a.hn), &b.hn, "hn");
        assert_close(&half(&a.cn), &b.cn, "cn");
        let (a, b) = (two.backward(), one.backward());
        assert_close(&half(&a.dh0), &b.dh0, "dh0");
        assert_close(&half(&a.dc0), &b.dc0, "dc0");
        for (name, d) in b.parameters {
            assert_close(&a.parameters[&format!("{name}_reverse")], &d, &name);
        }
    }
}

/// Of one step the LSTM's equations by hand, with one unit of each.
#[test]
fn one_step_is_the_equations() {
    let mut case = Case::new("", Network { peephole: true, ..Network::lstm(1, 1) }, 1, 1);
    let values: [(&str, &[f64]); 7] = [
        ("weight_ih_l0", &[0.1, 0.2, 0.3, 0.4]),
        ("weight_hh_l0", &[0.5, 0.6, 0.7, 0.8]),
        ("bias_ih_l0", &[0.01, 0.02, 0.03, 0.04]),
        ("bias_hh_l0", &[0.05, 0.06, 0.07, 0.08]),
        ("peephole_i_l0", &[2.0]),
        ("peephole_f_l0", &[3.0]),
        ("peephole_o_l0", &[5.0]),
    ];
    case.parameters = values.map(|(name, values)| (name.to_owned(), values.to_vec())).into();
    (case.x, case.h0, case.c0) = (vec![10.0], vec![-1.0], vec![0.25]);
    let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
    let i = sigmoid(1.0 - 0.5 + 0.06 + 0.5);
    let f = sigmoid(2.0 - 0.6 + 0.08 + 0.75);
    let g = (3.0f64 - 0.7 + 0.1).tanh();
    let c = f * 0.25 + i * g;
    let o = sigmoid(4.0 - 0.8 + 0.12 + 5.0 * c);
    let out = case.forward();
    assert_close(&out.cn, &[c], "cn");
    assert_close(&out.hn, &[o * c.tanh()], "hn");
    assert_eq!(out.y, out.hn);
}

#[test]
fn states_left_out_are_zero() {
    for mut case in cases() {
        case.h0.fill(0.0);
        case.c0.fill(0.0);
        let without = Inputs { h0: None, c0: None, ..case.inputs() };
        assert_eq!(case.forward(), case.network.forward(&case.parameters, without));
    }
}

/// tanh and σ at their ends.
#[test]
fn large_gates_give_numbers() {
    for mut case in cases() {
        case.parameters.values_mut().flatten().for_each(|v| *v *= 1e6);
        let (out, gradients) = (case.forward(), case.backward());
        let all = [out.y, out.hn, out.cn].into_iter().flatten();
        assert!(all.into_iter().all(f64::is_finite), "{}", case.name);
        let mut all = gradients.by_name().into_iter().flat_map(|(_, d)| d);
        assert!(all.all(|d| d.is_finite()), "{}", case.name);
    }
}

#[test]
fn first_parameters() {
    for case in cases() {
        let mut drawn = 0;
        let first = case.network.initial(|| {
            drawn += 1;
            1.0
        });
        let mut matrices = 0;
        for p in case.network.parameters() {
            let values = &first[&p.name];
            let len = p.shape.iter().product::<usize>();
            assert_eq!(values.len(), len, "{}", p.name);
            let units = match p.shape[..] {
                [_, columns] => Some((columns, case.network.hidden)),
                [_, _, units, columns] => Some((columns, units)),
                _ => None,
            };
            if let Some((from, to)) = units {
                let bound = (6.0 / (from + to) as f64).sqrt();
                assert!(values.iter().all(|&v| v == bound), "{}", p.name);
                matrices += len;
            }
        }
        assert_eq!(drawn, matrices, "one number an element of each matrix");
        // With all but biases zero the forget gate is σ(1), in every layer and direction.
        let parameters = case.network.initial(|| 0.0);
        let mut zero = Case { parameters, lengths: None, dropout: None, ..case.clone() };
        for all in [&mut zero.x, &mut zero.h0] {
            all.fill(0.0);
        }
        let steps = (zero.x.len() / (zero.batch * zero.network.inputs)) as i32;
        let forget = if case.network.bias { 1.0 } else { 0.0f64 };
        if case.network.cell.is_slstm() {
            let b: Vec<f64> = (0..16).map(|at| f64::from(u8::from((4..8).contains(&at)))).collect();
            let found = zero.parameters.get("b_l0").filter(|_| case.network.hidden == 4);
            assert!(found.is_none_or(|found| *found == b), "{}", case.name);
            continue;
        }
        let kept = (1.0 / (1.0 + (-forget).exp())).powi(steps);
        let expected: Vec<f64> = zero.c0.iter().map(|c| c * kept).collect();
        assert_close(&zero.forward().cn, &expected, case.name);
    }
}

#[test]
#[should_panic(expected = "weight_hh_l0_reverse is missing")]
fn a_missing_parameter_is_refused() {
    let network = Network { bidirectional: true, ..Network::lstm(3, 4) };
    let mut case = Case::new("", network, 2, 1);
    case.parameters.remove("weight_hh_l0_reverse");
    case.forward();
}

#[test]
#[should_panic(expected = "peepholes and layer norm are the LSTM's")]
fn a_gru_with_peepholes_is_refused() {
    Network { peephole: true, ..Network::gru(3, 4) }.parameters();
}

#[test]
#[should_panic(expected = "lengths up to 2")]
fn lengths_beyond_the_steps_are_refused() {
    Case::new("", Network::lstm(3, 4), 2, 1).with_lengths(&[3]).forward();
}
