//! `lab mlp train`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use indicatif::ProgressBar;
use lab_harness::Error;
use lab_mlp::training::{Evaluator, Position, Trainer};
use serde_json::json;

use super::corpus::Corpus;
use super::saved::{self, Notes};
use super::settings::Settings;
use crate::commands::training::history::{Entry, History};
use crate::commands::training::stop::{asked, end_as_asked, stop_at_ctrl_c};
use crate::commands::training::{
    bar, beside, check_targets, digits, estimate, format_duration, name, note_replaced,
};
use crate::failure::Failure;
use crate::{Common, own};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(super) settings: Settings,
    /// The file for the model; beside it go the loss curve (.loss.svg) and the state of the training
    /// (.checkpoint.safetensors)
    #[arg(long)]
    out: PathBuf,
    /// Goes on where a training into the same file was stopped; --epochs may be larger, all else is
    /// as it was begun
    #[arg(long)]
    resume: bool,
    /// Also keeps the state every so many steps, not only at the end of an epoch
    #[arg(long)]
    checkpoint_every: Option<std::num::NonZeroUsize>,
    /// Prints the loss of each step
    #[arg(long, short)]
    verbose: bool,
}

/// Steps between two looks at the progress and for a stop.
const LOOK: usize = 64;

/// A training under way.
struct Run<'a> {
    trainer: Trainer,
    /// Where something is held out: what it is judged with, and its pairs.
    judge: Option<(Evaluator, Vec<usize>)>,
    notes: Notes,
    arguments: &'a Arguments,
    state: &'a Path,
    bar: ProgressBar,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    lab_checker::out::outlive_readers();
    let Arguments { settings, out, resume, .. } = arguments;
    settings.check()?;
    let state = beside(out, "checkpoint.safetensors");
    let curve = beside(out, "loss.svg");
    let begun = if *resume { Some(read_stopped_training(&state, settings)?) } else { None };
    let corpus = Corpus::load(settings, begun.as_ref().map(|(_, notes)| &notes.vocabulary))?;
    check_targets(out, &[&state, &curve])?;
    note_replaced(out, *resume);
    let device = common.open()?;
    let starts = corpus.starts();
    let trainer = match &begun {
        Some((checkpoint, _)) => Trainer::resume(&device, checkpoint, &corpus.data, &starts)?,
        None => {
            let model = settings.model(corpus.vocabulary.len());
            Trainer::new(&device, model, settings.config(starts.len()), &corpus.data, &starts)?
        }
    };
    let judged: Vec<usize> = corpus.held_out().take(corpus.held_out().len() - 1).collect();
    let judge = if judged.is_empty() {
        None
    } else {
        let (model, config) = (*trainer.model(), *trainer.config());
        Some((Evaluator::new(&device, model, config, &corpus.data)?, judged))
    };
    note!("{} on {}", corpus.describe(&settings.text), device.name());
    let history = begun.map_or_else(History::default, |(_, notes)| notes.history);
    let Position { steps_per_epoch, .. } = trainer.position();
    let bar = bar(settings.epochs, history.0.len(), steps_per_epoch);
    let notes =
        Notes { settings: settings.clone(), vocabulary: corpus.vocabulary.clone(), history };
    let mut run = Run { trainer, judge, notes, arguments, state: &state, bar };
    let start = Instant::now();
    stop_at_ctrl_c();
    // Before the model is touched, so that what is resumed is never another training.
    run.save_state()?;
    run.finish_epochs()?;
    let elapsed = start.elapsed().as_secs_f64();
    lab_plots::write(&curve, &run.notes.history.plot(&format!("loss of {}", name(out)))?)?;
    finish(common, &run, &corpus, &device.name(), elapsed, &curve);
    Ok(())
}

/// What was kept of a training, which must be that of these settings.
fn read_stopped_training(
    state: &Path,
    settings: &Settings,
) -> Result<(lab_mlp::training::Checkpoint, Notes), Failure> {
    if !state.exists() {
        let expected = format!("a training that was begun, in {}", state.display());
        return Err(Error::bad("--resume", expected, "none").into());
    }
    let (checkpoint, notes) = saved::read(state)?;
    // Where the schedule ends is part of what was begun.
    let epochs = match settings.schedule {
        super::settings::ScheduleName::Constant => settings.epochs,
        super::settings::ScheduleName::Cosine => notes.settings.epochs,
    };
    let begun = serde_json::to_value(&notes.settings).expect("settings are JSON");
    let asked = Settings { epochs: notes.settings.epochs, ..settings.clone() };
    let asked = serde_json::to_value(asked).expect("settings are JSON");
    let differs = |(name, value): (&String, &serde_json::Value)| {
        (asked[name] != *value).then(|| (name.replace('_', "-"), value.to_string()))
    };
    let other = begun.as_object().and_then(|all| all.iter().find_map(differs));
    if let Some((name, value)) = other {
        let got = asked[name.replace('-', "_")].to_string();
        return Err(
            Error::bad(format!("--{name}"), format!("{value}, as it was begun"), got).into()
        );
    }
    if settings.epochs != epochs {
        let expected = format!("{epochs}, where the rate falls to 0, as it was begun");
        return Err(Error::bad("--epochs", expected, settings.epochs).into());
    }
    Ok((checkpoint, notes))
}

impl Run<'_> {
    fn finish_epochs(&mut self) -> Result<(), Failure> {
        let epochs = self.notes.settings.epochs;
        let every = self.arguments.checkpoint_every.map_or(usize::MAX, |n| n.get());
        let mut since = 0;
        let mut start = Instant::now();
        let mut is_first = true;
        loop {
            let Position { epoch, step, steps_per_epoch } = self.trainer.position();
            self.bar.set_position((epoch * steps_per_epoch + step) as u64);
            if step == 0 && epoch >= epochs {
                break;
            }
            if asked() {
                self.save_state()?;
                self.bar.finish_and_clear();
                note!("stopped in epoch {}; --resume goes on there", epoch + 1);
                end_as_asked();
            }
            let steps = LOOK.min(every - since);
            let Some(report) = self.trainer.run(steps)? else {
                since += steps;
                if since == every {
                    self.save_state()?;
                    since = 0;
                }
                continue;
            };
            since = 0;
            let held_out = self.held_out()?;
            self.notes.history.0.push(Entry { train: report.loss, validation: held_out });
            self.bar.suspend(|| {
                if self.arguments.verbose {
                    for (step, loss) in report.losses.iter().enumerate() {
                        note!("epoch {} step {}  loss {}", epoch + 1, step + 1, digits(*loss));
                    }
                }
                let held = held_out.map_or(String::new(), |loss| {
                    format!("  held out {}, perplexity {}", digits(loss), digits(loss.exp()))
                });
                let took = format_duration(start.elapsed());
                note!("epoch {}/{epochs}  loss {}{held}  {took}", epoch + 1, digits(report.loss));
                let rest = estimate(start.elapsed(), epochs.saturating_sub(epoch + 1));
                rest.filter(|_| is_first).iter().for_each(|rest| note!("{rest}"));
            });
            is_first = false;
            start = Instant::now();
            // The model first: should this be the last that is done, the epoch comes again.
            if epoch + 1 >= epochs {
                saved::write(&self.arguments.out, self.trainer.checkpoint()?, &self.notes)?;
            }
            self.save_state()?;
        }
        self.bar.finish_and_clear();
        Ok(())
    }

    /// The loss of the part that is held out.
    fn held_out(&mut self) -> Result<Option<f64>, Failure> {
        let Some((evaluator, pairs)) = &mut self.judge else { return Ok(None) };
        evaluator.load(&self.trainer.parameters()?)?;
        Ok(Some(evaluator.loss(pairs)?))
    }

    /// Keeps where it stands.
    fn save_state(&self) -> Result<(), Failure> {
        saved::write(self.state, self.trainer.checkpoint()?, &self.notes)
    }
}

fn finish(
    common: &Common,
    run: &Run<'_>,
    corpus: &Corpus,
    device: &str,
    seconds: f64,
    curve: &Path,
) {
    let Notes { settings, history, .. } = &run.notes;
    let (out, state) = (&run.arguments.out, run.state);
    let files = [out, curve, state].map(|f| f.display().to_string());
    let shapes = run.trainer.model().sizes().shapes();
    let parameters: usize = shapes.iter().map(|s| s.iter().product::<usize>()).sum();
    let last = history.0.last().copied();
    let told = &corpus.data.tokens[corpus.held_out()];
    let perplexities: Vec<(&str, f64)> = match last.and_then(|e| e.validation) {
        Some(loss) => std::iter::once(("model", loss.exp()))
            .chain(corpus.baselines(told).map(|(name, bits)| (name, bits.exp2())))
            .collect(),
        None => Vec::new(),
    };
    if common.json {
        say!(
            "{}",
            json!({
                "device": device, "settings": settings, "seconds": seconds,
                "epochs": history.0.len(), "resumed": run.arguments.resume,
                "tokens": corpus.data.tokens.len(), "vocabulary": corpus.vocabulary.len(),
                "parameters": parameters, "launches_a_step": run.trainer.launches(),
                "losses": history.0.iter().map(|e| e.train).collect::<Vec<_>>(),
                "held_out_losses": history.0.iter().filter_map(|e| e.validation).collect::<Vec<_>>(),
                "perplexity": perplexities.iter().copied().collect::<std::collections::BTreeMap<_, _>>(),
                "files": files,
            })
        );
        return;
    }
    say!("{} epochs in {seconds:.1} s on {device}, {parameters} parameters", history.0.len());
    if !perplexities.is_empty() {
        let all = perplexities.iter().map(|(name, value)| format!("{name} {}", digits(*value)));
        say!("perplexity of what is held out: {}", all.collect::<Vec<_>>().join(", "));
    }
    say!("wrote {} and {}; --resume goes on from {}", files[0], files[1], files[2]);
    say!("now: {} mlp predict {} \"some words\"", own::shell(), files[0]);
}
