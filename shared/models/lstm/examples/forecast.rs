//! A forecast from your own code: trains on a series, judges it on what it has not seen, goes on by itself,
//! and saves what it has learned, on the GPU where there is one.
//!
//! ```sh
//! cargo run -p lab-lstm --example forecast
//! ```

use std::path::Path;

use lab_device::{Device, Selector};
use lab_harness::tensor;
use lab_lstm::data::{Errors, Scale, persistence};
use lab_lstm::training::{Config, Data, Evaluator, Model, Stream, Trainer};
use lstm_fused::Network;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open(Selector::from_env()?)?;

    // Yours here: numbers in the order of time.
    let series: Vec<f64> = (0..500)
        .map(|t| 20.0 + 8.0 * (f64::from(t) / 6.0).sin() + 3.0 * (f64::from(t) / 2.5).cos())
        .collect();
    let (window, known) = (16, 400);
    let scale = Scale::of(&series[..known])?;
    let scaled: Vec<f64> = series.iter().map(|&v| scale.scaled(v)).collect();
    let part = |values: &[f64]| Data::Series { values: values.to_vec(), columns: 1 };

    let model = Model::forecast(Network::lstm(1, 32));
    let config = Config { window, batch: 16, ..Config::default() };
    let train = part(&scaled[..known]);
    let starts = train.starts(window, 1);
    let mut trainer = Trainer::new(&device, model, config, &train, &starts)?;
    for epoch in 1..=20 {
        let report = trainer.epoch()?;
        if epoch % 5 == 0 {
            println!("epoch {epoch:2}: loss {:.5}", report.loss);
        }
    }

    // The next value of each window after which comes a value that was held out.
    let held_out = part(&scaled[known - window..]);
    let starts = held_out.starts(window, 1);
    let parameters = trainer.parameters()?;
    let mut evaluator = Evaluator::new(&device, model, config, &held_out)?;
    evaluator.load(&parameters)?;
    let next = evaluator.predict(&starts)?;
    let next: Vec<f64> = next.into_iter().map(|z| scale.original(z)).collect();
    let last: Vec<f64> =
        starts.iter().map(|s| persistence(&series[known - window..][*s..s + window])).collect();
    let [ours, persisted] = [next, last].map(|f| Errors::of(&f, &series[known..]).rmse);
    println!("held out: RMSE {ours:.3}, of the value before {persisted:.3}");

    // Value by value: the last window, as long as those it has learned from, then its own forecasts.
    let mut stream = Stream::new(&device, model, &parameters)?;
    let mut value = 0.0;
    for seen in &scaled[series.len() - window..] {
        value = stream.step(&[*seen])?[0];
    }
    print!("and on:");
    for _ in 0..8 {
        print!(" {:.2}", scale.original(value));
        value = stream.step(&[value])?[0];
    }
    println!();

    let path = Path::new("forecast.safetensors"); // torch.nn.LSTM's names, and the linear layer's
    tensor::write(path, &parameters)?;
    println!("{}: {} tensors", path.display(), parameters.len());
    Ok(())
}
