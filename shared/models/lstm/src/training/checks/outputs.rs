//! Outputs without training.

use lab_device::{DType, Device};
use lab_harness::Tensor;

use super::follow::{Case, cases};
use crate::training::reference::Reference;
use crate::training::{Config, Data, Evaluator, Stream};

/// [`Evaluator`] and [`Stream`] against the reference.
pub(crate) fn outputs_without_training(device: &Device) {
    for case in cases() {
        let Case { name, model, config, data } = case;
        // Of seven in threes: the last are padded.
        let config = Config { dtype: DType::F32, batch: 3, ..config };
        let starts: Vec<usize> = (0..7).map(|n| n * 5 % 9).collect();
        let parameters = model.initial(DType::F32, 5);
        let mut evaluator = Evaluator::new(device, model, config, &data).unwrap();
        evaluator.load(&parameters).unwrap();
        let reference = Reference::new(model, config, &data, &starts, &parameters);
        let close = |got: &[f64], expected: &[f64]| {
            assert_eq!(got.len(), expected.len(), "{name}");
            for (got, expected) in got.iter().zip(expected) {
                assert!((got - expected).abs() <= 2e-6, "{name}: {got}, not {expected}");
            }
        };
        let z: Vec<f64> = starts.iter().flat_map(|&s| reference.pass(&[s], None).z).collect();
        close(&evaluator.predict(&starts).unwrap(), &z);
        let loss = starts.iter().map(|&s| reference.pass(&[s], None).loss).sum::<f64>() / 7.0;
        close(&[evaluator.loss(&starts).unwrap()], &[loss]);
        // Behind the data there is no target, and a forecast all the same.
        let last = data.len() - config.window;
        assert_eq!(evaluator.predict(&[last]).unwrap().len() % model.outputs, 0);
        assert!(evaluator.loss(&[last]).is_err());
        assert!(evaluator.predict(&[last + 1]).is_err());
        let hidden = evaluator.hidden(&starts).unwrap();
        let features = model.network.hidden * model.network.directions();
        assert_eq!(hidden.len(), 7 * config.window * features);

        if model.network.bidirectional {
            assert!(Stream::new(device, model, &parameters).is_err());
            continue;
        }
        let mut stream = Stream::new(device, model, &parameters).unwrap();
        for (n, &start) in starts.iter().enumerate().take(2) {
            stream.reset().unwrap();
            let outputs = (0..config.window).map(|t| {
                let row = match &data {
                    Data::Series { values, columns } => {
                        values[(start + t) * columns..][..*columns].to_vec()
                    }
                    Data::Text { tokens, classes } => {
                        (0..*classes).map(|c| f64::from(tokens[start + t] == c as i32)).collect()
                    }
                };
                stream.step(&row).unwrap()
            });
            let outputs: Vec<f64> = outputs.collect::<Vec<_>>().concat();
            let of_window = z.len() / 7;
            let read = &outputs[outputs.len() - of_window..];
            close(read, &z[n * of_window..][..of_window]);
            let own = &hidden[n * config.window * features..][..config.window * features];
            let state = stream.state().unwrap()["hn"].values();
            close(&state[state.len() - features..], &own[own.len() - features..]);
        }
    }
}

/// A class that is far likelier than all others, wherever it stands: its exponential alone is infinite.
pub(crate) fn far_apart_outputs_give_numbers(device: &Device) {
    let case = cases().into_iter().find(|c| c.model.outputs > 32 && c.data.is_text());
    let Case { model, config, data, .. } = case.expect("more outputs than a warp has lanes");
    let config = Config { dtype: DType::F32, batch: 3, ..config };
    for class in [0, 7, 35, 39] {
        let mut parameters = model.initial(DType::F32, 5);
        let mut bias = vec![0f32; model.outputs];
        bias[class] = 200.0;
        parameters.insert("head_bias".into(), Tensor::new(&[bias.len()], &bias));
        let mut evaluator = Evaluator::new(device, model, config, &data).unwrap();
        evaluator.load(&parameters).unwrap();
        let starts = [0, 1, 2];
        let reference = Reference::new(model, config, &data, &starts, &parameters);
        let expected = reference.pass(&starts, None).loss;
        let loss = evaluator.loss(&starts).unwrap();
        assert!((loss - expected).abs() <= 1e-6 * expected, "{class}: {loss}, not {expected}");
    }
}
