//! Forecasts from forecasts.

use lab_device::Device;
use lab_lstm::data::{Scale, free_run};
use lab_lstm::training::{Checkpoint, Data, Error, Evaluator, Stream};

/// The `steps` values after `window`, each by the network from the window before it, in which its own
/// forecasts take the place of values. As in training the state is zero before each window.
pub(super) fn by_network(
    device: &Device,
    checkpoint: &Checkpoint,
    scale: Scale,
    window: &[f64],
    steps: usize,
) -> Result<Vec<f64>, Error> {
    let window: Vec<f64> = window.iter().map(|v| scale.scaled(*v)).collect();
    let mut failed = None;
    let mut note = |result: Result<f64, Error>| {
        result.unwrap_or_else(|e| {
            failed.get_or_insert(e);
            f64::NAN
        })
    };
    let forecast = if checkpoint.model.network.bidirectional {
        // Step by step there is no second direction.
        free_run(&window, steps, |window| {
            note(predict_from_whole_window(device, checkpoint, window))
        })
    } else {
        let mut stream = Stream::new(device, checkpoint.model, &checkpoint.parameters)?;
        free_run(&window, steps, |window| note(predict_by_streaming(&mut stream, window)))
    };
    match failed {
        Some(error) => Err(error),
        None => Ok(forecast.into_iter().map(|v| scale.original(v)).collect()),
    }
}

fn predict_from_whole_window(
    device: &Device,
    checkpoint: &Checkpoint,
    window: &[f64],
) -> Result<f64, Error> {
    let data = Data::Series { values: window.to_vec(), columns: 1 };
    let mut evaluator = Evaluator::new(device, checkpoint.model, checkpoint.config, &data)?;
    evaluator.load(&checkpoint.parameters)?;
    Ok(evaluator.predict(&[0])?[0])
}

fn predict_by_streaming(stream: &mut Stream, window: &[f64]) -> Result<f64, Error> {
    stream.reset()?;
    let mut next = f64::NAN;
    for value in window {
        next = stream.step(&[*value])?[0];
    }
    Ok(next)
}
