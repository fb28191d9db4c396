//! `lab lm recall`: what a mixer can remember.

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use lab_device::Device;
use lab_harness::Error;
use lab_lm::{
    Config, Decay, Evaluated, Evaluator, Mixers, Model, Recall, Schedule, Tokens, Trainer,
};
use lab_plots::Curve;
use lab_plots::lines::{Axes, lines};
use serde_json::json;

use crate::Common;
use crate::commands::run::check_target;
use crate::failure::Failure;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The file for the plot
    #[arg(long, default_value = "recall.svg")]
    out: PathBuf,
    /// A mixer to be tried, as `lab lm train` takes it; all four where none is said
    #[arg(long, default_values = ["vlstm", "attention", "slstm", "lstm"])]
    mixer: Vec<Mixers>,
    /// Keys, and the most pairs of a sequence; a power of two
    #[arg(long, default_value_t = 16)]
    keys: usize,
    /// Values that a key may have
    #[arg(long, default_value_t = 4)]
    values: usize,
    /// Columns of the residual stream, and of the one head
    #[arg(long, default_value_t = 32)]
    width: usize,
    /// Steps of each model
    #[arg(long, default_value_t = 150)]
    steps: usize,
    /// Sequences of a step
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// The largest learning rate
    #[arg(long, default_value_t = 1e-2)]
    lr: f64,
    /// Of the sequences and the first parameters
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Sequences that are learnt from, again and again, and those that each number of pairs is judged by.
const LEARNT: usize = 4096;
const JUDGED: usize = 64;

/// What a mixer has come to.
struct Outcome {
    mixer: Mixers,
    parameters: usize,
    /// Of each number of pairs.
    accuracy: Vec<f64>,
    seconds: f64,
}

/// An experiment: of one mixer as of another.
struct Experiment<'a> {
    arguments: &'a Arguments,
    recall: Recall,
    pairs: Vec<usize>,
    positions: usize,
}

impl<'a> Experiment<'a> {
    fn new(arguments: &'a Arguments) -> Result<Self, Error> {
        let Arguments { keys, values, steps, .. } = *arguments;
        let recall = Recall { keys, values };
        recall.check()?;
        if !keys.is_power_of_two() || keys < 2 {
            return Err(Error::bad("--keys", "2, 4, 8, …, 256", keys));
        }
        lab_training::count("--steps", steps, 1 << 20)?;
        let pairs = (1..=keys.ilog2()).map(|power| 1 << power).collect();
        let experiment = Self { arguments, recall, pairs, positions: 2 * keys };
        experiment.training_config().check()?;
        for model in experiment.models() {
            model.check()?;
        }
        Ok(experiment)
    }

    /// One block of each mixer. Where a mixer has fewer parameters than another, its feed-forward layer has more.
    fn models(&self) -> Vec<Model> {
        let Arguments { width, mixer, .. } = self.arguments;
        let plain = Model::xlstm(self.recall.vocabulary(), *width, 1, 1);
        let all: Vec<Model> = mixer.iter().map(|m| plain.with_mixers(*m, None)).collect();
        let count = |model: &Model| model.parameters().count();
        let most = all.iter().map(count).max().unwrap_or(0);
        let wider = |model: Model| {
            let columns = (most - count(&model)) / (3 * width).max(1) / 8 * 8;
            Model { hidden: model.hidden + columns, ..model }
        };
        all.into_iter().map(wider).collect()
    }

    fn training_config(&self) -> Config {
        let Arguments { steps, batch, lr, seed, .. } = *self.arguments;
        let decay = Decay::Cosine { steps, min: 0.1 * lr };
        let schedule = Schedule { rate: lr, warm_up: 20, decay };
        let window = self.positions;
        Config { window, batch, seed, schedule, weight_decay: 0.0, ..Config::default() }
    }

    /// Sequences of so many pairs each.
    fn data(&self, pairs: &[usize], stream: u64) -> (Tokens, Vec<usize>) {
        let seed = self.arguments.seed.wrapping_mul(4).wrapping_add(stream);
        let starts = (0..pairs.len()).map(|n| n * self.positions).collect();
        (self.recall.windows(pairs, self.positions, seed), starts)
    }

    fn learn(&self, device: &Device, model: Model, bar: &ProgressBar) -> Result<Outcome, Failure> {
        let (start, config) = (Instant::now(), self.training_config());
        let mixed: Vec<usize> = (0..LEARNT).map(|n| self.pairs[n % self.pairs.len()]).collect();
        let (data, starts) = self.data(&mixed, 0);
        let mut trainer = Trainer::new(device, model, config, &data, &starts)?;
        let mut left = self.arguments.steps;
        while left > 0 {
            let some = left.min(16);
            let before = trainer.position().step;
            let taken = match trainer.run(some)? {
                // An epoch has ended within them.
                Some(epoch) => epoch.losses.len() - before,
                None => some,
            };
            left -= taken;
            bar.inc(taken as u64);
        }
        let parameters = trainer.parameters()?;
        let accuracy = self.pairs.iter().map(|&pairs| {
            let (data, starts) = self.data(&[pairs; JUDGED], 1);
            let (batch, window) = (JUDGED, self.positions);
            let (parameters, dtype) = (&parameters, config.dtype);
            let of =
                Evaluated { model, parameters, dtype, batch, window, data: &data, document: None };
            let logits = Evaluator::of_logits(device, of)?.logits(&starts)?;
            Ok(self.recall.accuracy(&data, &logits))
        });
        Ok(Outcome {
            mixer: model.mixers,
            parameters: model.parameters().count(),
            accuracy: accuracy.collect::<Result<_, Failure>>()?,
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    fn plot(&self, all: &[Outcome]) -> Result<String, Error> {
        let curve = |outcome: &Outcome| Curve {
            label: outcome.mixer.to_string(),
            dashed: false,
            points: self.pairs.iter().map(|n| *n as f64).zip(outcome.accuracy.clone()).collect(),
        };
        let guessed = self.pairs.iter().map(|n| (*n as f64, 1.0 / self.recall.values as f64));
        let guess = Curve { label: "a guess".into(), dashed: true, points: guessed.collect() };
        let axes = Axes {
            title: "share of the values that are recalled",
            x: "pairs",
            logarithmic: false,
            truth_first: false,
        };
        lines(&axes, all.iter().map(curve).chain([guess]).collect())
    }
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    lab_checker::out::outlive_readers();
    let experiment = Experiment::new(arguments)?;
    check_target(&arguments.out)?;
    let device = common.open()?;
    let models = experiment.models();
    let bar = ProgressBar::new((models.len() * arguments.steps) as u64);
    let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} steps, {eta} left");
    bar.set_style(style.expect("a template"));
    let mut all = Vec::new();
    for model in models {
        bar.set_message(model.mixers.to_string());
        all.push(experiment.learn(&device, model, &bar)?);
    }
    bar.finish_and_clear();
    lab_plots::write(&arguments.out, &experiment.plot(&all)?)?;
    let out = arguments.out.display().to_string();
    if common.json {
        let rows: Vec<_> = all
            .iter()
            .map(|o| {
                json!({
                    "mixer": o.mixer, "parameters": o.parameters, "accuracy": o.accuracy,
                    "seconds": o.seconds,
                })
            })
            .collect();
        say!(
            "{}",
            json!({
                "device": device.name(), "pairs": experiment.pairs, "steps": arguments.steps,
                "keys": arguments.keys, "values": arguments.values, "mixers": rows, "file": out,
            })
        );
        return Ok(());
    }
    let heads: String = experiment.pairs.iter().map(|n| format!("{n:>7}")).collect();
    say!("{:<24}{:>12}{heads}  pairs", "mixer", "parameters");
    for Outcome { mixer, parameters, accuracy, seconds } in &all {
        let shares: String =
            accuracy.iter().map(|share| format!("{:>5.0} %", 100.0 * share)).collect();
        say!("{:<24}{parameters:>12}{shares}  in {seconds:.0} s", mixer.to_string());
    }
    say!("a guess is right in {:.0} %", 100.0 / arguments.values as f64);
    say!("wrote {out}, on {}", device.name());
    Ok(())
}
