//! `lab lstm train`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use indicatif::ProgressBar;
use lab_harness::Error;
use lab_lstm::training::{Evaluator, Model, Position, Trainer};
use serde_json::json;

use super::options::Options;
use super::report;
use super::saved::{self, Notes};
use super::settings::Settings;
use super::source::Source;
use crate::commands::training::history::{Entry, History};
use crate::commands::training::stop::{asked, end_as_asked, stop_at_ctrl_c};
use crate::commands::training::{bar, beside, check_targets, estimate, name, note_replaced};
use crate::failure::Failure;
use crate::{Common, own};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// The file for the model; beside it go the loss curve (.loss.svg) and the state of the training
    /// (.checkpoint.safetensors)
    #[arg(long)]
    out: PathBuf,
    /// Goes on where a training into the same file was stopped
    #[arg(long)]
    resume: bool,
}

/// Steps between two looks at the progress and for a stop.
const LOOK: usize = 20;

/// A training under way.
struct Run<'a> {
    trainer: Trainer,
    /// Where there is a validation part: what it is judged with, and its sequences.
    judge: Option<(Evaluator, Vec<usize>)>,
    notes: Notes,
    out: &'a Path,
    state: &'a Path,
    every: usize,
    bar: ProgressBar,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    lab_checker::out::outlive_readers();
    let Arguments { options, out, resume } = arguments;
    let state = beside(out, "checkpoint.safetensors");
    let curve = beside(out, "loss.svg");
    let begun = if *resume { Some(read_stopped_training(&state)?) } else { None };
    let settings = match &begun {
        Some((_, notes)) => notes.settings.clone().resumed(options)?,
        None => Settings::new(options)?,
    };
    let source = Source::load(&settings)?;
    check_targets(out, &[&state, &curve])?;
    note_replaced(out, *resume);
    let device = common.open()?;
    let data = source.data();
    let split = source.split().clone();
    let starts = source.starts(&split.train, &settings);
    let trainer = match &begun {
        Some((checkpoint, _)) => Trainer::resume(&device, checkpoint, &data, &starts)?,
        None => {
            let network = settings.network(source.columns());
            let model = match &source {
                Source::Series { .. } => Model::forecast(network),
                Source::Text { .. } => Model::characters(network),
            };
            Trainer::new(&device, model, settings.config(starts.len()), &data, &starts)?
        }
    };
    let judge = match source.starts(&split.validation, &settings) {
        all if split.validation.is_empty() || all.is_empty() => None,
        all => Some((Evaluator::new(&device, *trainer.model(), *trainer.config(), &data)?, all)),
    };
    let way = trainer.config().way_on(&device, trainer.model().network)?;
    note!("{} on {}, by {way}", source.describe(&settings), device.name());
    let history = begun.map_or_else(History::default, |(_, notes)| notes.history);
    let Position { steps_per_epoch, .. } = trainer.position();
    let bar = bar(settings.epochs, history.0.len(), steps_per_epoch);
    let mut run = Run {
        trainer,
        judge,
        notes: Notes::new(settings, &source, history),
        out,
        state: &state,
        every: options.checkpoint_every.unwrap_or(usize::MAX),
        bar,
    };
    let start = Instant::now();
    stop_at_ctrl_c();
    // Before the model is touched, so that what is resumed is never another training.
    run.save_state()?;
    run.finish_epochs()?;
    let seconds = start.elapsed().as_secs_f64();
    let title = format!("loss of {}", name(out));
    lab_plots::write(&curve, &run.notes.history.plot(&title)?)?;
    finish(common, arguments, &run, &device.name(), seconds, &[out, &curve, &state]);
    Ok(())
}

/// Refuses settings that no training has, whatever its data are.
pub(super) fn check_arguments(arguments: &Arguments) -> Result<(), Failure> {
    const SEQUENCES: usize = 1000;
    let settings = Settings::new(&arguments.options)?;
    let (network, config) = (settings.network(1), settings.config(SEQUENCES));
    Ok(Model::forecast(network).check_with(&config)?)
}

/// What was kept of a training.
fn read_stopped_training(state: &Path) -> Result<(lab_lstm::training::Checkpoint, Notes), Failure> {
    if !state.exists() {
        let expected = format!("a training that was begun, in {}", state.display());
        return Err(Error::bad("--resume", expected, "none").into());
    }
    saved::read(state)
}

impl Run<'_> {
    fn finish_epochs(&mut self) -> Result<(), Failure> {
        let (epochs, patience) = (self.notes.settings.epochs, self.notes.settings.patience);
        let mut since = 0;
        let mut start = Instant::now();
        let mut is_first = true;
        loop {
            let Position { epoch, step, steps_per_epoch, .. } = self.trainer.position();
            self.bar.set_position((epoch * steps_per_epoch + step) as u64);
            if step == 0 && (epoch >= epochs || self.notes.history.is_over(patience)) {
                break;
            }
            if asked() {
                self.save_state()?;
                self.bar.finish_and_clear();
                note!("stopped in epoch {}; --resume goes on there", epoch + 1);
                end_as_asked();
            }
            let steps = LOOK.min(self.every - since);
            let Some(report) = self.trainer.run(steps)? else {
                since += steps;
                if since == self.every {
                    self.save_state()?;
                    since = 0;
                }
                continue;
            };
            since = 0;
            let validation = match &mut self.judge {
                Some((evaluator, starts)) => {
                    evaluator.load(&self.trainer.parameters()?)?;
                    Some(evaluator.loss(starts)?)
                }
                None => None,
            };
            let history = &mut self.notes.history;
            history.0.push(Entry { train: report.loss, validation });
            let last = epoch + 1 >= epochs || history.is_over(patience);
            let better = history.best() == Some(epoch);
            let line = report::epoch(epoch, epochs, &report, validation, better, start.elapsed());
            self.bar.set_position(((epoch + 1) * steps_per_epoch) as u64);
            let rest = estimate(start.elapsed(), epochs.saturating_sub(epoch + 1));
            let rest = rest.filter(|_| is_first && !last);
            self.bar.suspend(|| {
                note!("{line}");
                rest.iter().for_each(|rest| note!("{rest}"));
            });
            is_first = false;
            start = Instant::now();
            // The model first: should this be the last that is done, the epoch comes again.
            let is_model = if self.judge.is_some() { better } else { last };
            if is_model {
                saved::write(self.out, self.trainer.checkpoint()?, &self.notes)?;
            }
            self.save_state()?;
        }
        self.bar.finish_and_clear();
        Ok(())
    }

    /// Keeps where it stands.
    fn save_state(&self) -> Result<(), Failure> {
        Ok(saved::write(self.state, self.trainer.checkpoint()?, &self.notes)?)
    }
}

fn finish(
    common: &Common,
    arguments: &Arguments,
    run: &Run<'_>,
    device: &str,
    seconds: f64,
    files: &[&Path],
) {
    let Notes { settings, history, .. } = &run.notes;
    let best = history.best().unwrap_or(0);
    let of_best = history.0.get(best);
    let files: Vec<String> = files.iter().map(|f| f.display().to_string()).collect();
    if common.json {
        say!(
            "{}",
            json!({
                "device": device, "settings": settings, "epochs": history.0.len(),
                "seconds": seconds, "resumed": arguments.resume,
                "parameters": parameters(run.trainer.model()),
                "launches_a_step": run.trainer.launches(),
                "best": { "epoch": best + 1, "loss": of_best.map(|e| e.train),
                          "validation": of_best.and_then(|e| e.validation) },
                "losses": history.0.iter().map(|e| e.train).collect::<Vec<_>>(),
                "validation_losses": history.0.iter().filter_map(|e| e.validation).collect::<Vec<_>>(),
                "files": files,
            })
        );
        return;
    }
    say!(
        "{} epochs in {:.1} s on {device}, {} parameters",
        history.0.len(),
        seconds,
        parameters(run.trainer.model())
    );
    if let Some(entry) = of_best {
        say!("{}", report::best(best, history.0.len(), entry));
    }
    say!("wrote {} and {}; --resume goes on from {}", files[0], files[1], files[2]);
    say!("now: {} lstm test {}", own::shell(), files[0]);
}

fn parameters(model: &Model) -> usize {
    model.parameters().iter().map(|p| p.shape.iter().product::<usize>()).sum()
}
