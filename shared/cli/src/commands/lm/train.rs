//! `lab lm train`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use lab_device::emulator::shown_lines;
use lab_device::{Arithmetic, Communicator, DType, Device, Group};
use lab_harness::Error;
use lab_lm::{
    Checkpoint, Evaluator, Phase, Position, Ranks as RankGroup, Sampler, SumPiece, Sums, Tokenizer,
    Tokens, Trainer, Writer,
};
use lab_plots::Curve;
use lab_plots::lines::{Axes, lines};
use serde_json::json;

use super::bits;
use super::ranks::Ranks;
use super::saved::{self, Look, Notes};
use super::settings::Settings;
use super::texts::{self, Corpus, Split};
use crate::commands::training::stop::{asked, end_as_asked, stop_at_ctrl_c};
use crate::commands::training::{beside, check_targets, digits, name};
use crate::failure::Failure;
use crate::{Common, own};

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    pub(super) settings: Settings,
    /// The file for the model and the state of its training; beside it go the loss curve (.loss.svg) and the log (.log.jsonl)
    #[arg(long)]
    out: PathBuf,
    /// Goes on where a training into the same file was stopped; all other options are given again, as it was begun with them
    #[arg(long)]
    resume: bool,
    /// Steps from one look to the next: a line, and the loss of what is held out
    #[arg(long, default_value = "100")]
    look_every: std::num::NonZeroUsize,
    /// Steps after which what is held out is judged, at the next look; at each where it is not said
    #[arg(long)]
    eval_every: Option<std::num::NonZeroUsize>,
    /// Steps after which the model writes something, at the next look; 0: never
    #[arg(long, default_value_t = 0)]
    sample_every: usize,
    /// What it goes on from
    #[arg(long, default_value = "\n")]
    sample_prompt: String,
    /// Tokens that it writes
    #[arg(long, default_value_t = 120)]
    sample_length: usize,
    /// Steps after which the file is written anew, at the next look; it is at the end, and where Ctrl-C stops
    #[arg(long, default_value_t = 500)]
    keep_every: usize,
    /// GPUs of this host to train on, each of which takes a batch of windows a step; on the emulator, so many emulated ones. On GPUs
    /// of several hosts: start it with torchrun, srun or mpirun
    #[arg(long)]
    gpus: Option<usize>,
    /// Lets each of several ranks have only its part of the optimizer's state (ZeRO stage 1): the same training, in less memory. Where
    /// --sum-piece is not said, there is one sum of the gradients behind the backward pass, of which each rank gets its part
    #[arg(long)]
    shard_optimizer: bool,
    /// Lets the copy engines of GPUs of one host send gradients and parameters, beside --shard-optimizer: they take no multiprocessors
    /// from the kernels, as sums do. NCCL does so from 2.28.3 on; elsewhere it is as without
    #[arg(long)]
    copy_engines: bool,
    /// MiB of the gradients that several ranks sum at once, while the backward pass goes on; all: one sum behind it. Where it is not
    /// said, a 32nd of them, at most 16 MiB
    #[arg(long, value_name = "MIB")]
    sum_piece: Option<SumPiece>,
    /// What gradients are rounded to before several ranks sum them; bf16 is half as much to send
    #[arg(long)]
    sums: Option<SumType>,
    /// The most windows of a look at what is held out
    #[arg(long, default_value_t = 64)]
    look_windows: usize,
}

impl Arguments {
    /// How several ranks add up their gradients.
    fn sums(&self) -> Sums {
        let dtype = match self.sums {
            Some(SumType::Bf16) => DType::BF16,
            Some(SumType::F32) | None => DType::F32,
        };
        let usual = if self.shard_optimizer { SumPiece::All } else { SumPiece::BySize };
        Sums { dtype, piece: self.sum_piece.unwrap_or(usual) }
    }

    /// Refuses what is said of several ranks, where there is one; and what says nothing.
    fn check_sums(&self, world: usize) -> Result<(), Error> {
        let several = [
            ("--shard-optimizer", self.shard_optimizer),
            ("--copy-engines", self.copy_engines),
            ("--sum-piece", self.sum_piece.is_some()),
            ("--sums", self.sums.is_some()),
        ];
        match several.iter().find(|(_, is_said)| *is_said && world == 1) {
            Some((option, _)) => {
                let expected = "several ranks beside it, by --gpus or a launcher";
                Err(Error::bad(*option, expected, "one"))
            }
            None if self.copy_engines && !self.shard_optimizer => {
                Err(Error::bad("--copy-engines", "--shard-optimizer beside it", "none"))
            }
            None => Ok(()),
        }
    }
}

/// What gradients are summed in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum SumType {
    F32,
    Bf16,
}

/// A training under way.
struct Run<'a> {
    trainer: Trainer,
    /// Where it is one of several ranks, all of them.
    ranks: Option<RankGroup>,
    /// Where something is held out: what it is judged with, and its windows.
    judge: Option<(Evaluator, Vec<usize>)>,
    notes: Notes,
    arguments: &'a Arguments,
    device: Device,
    /// Of its samples.
    tokenizer: Tokenizer,
    tokens_of_byte: f64,
    bar: ProgressBar,
    /// What writes samples, once one was wanted.
    writer: Option<Writer>,
    /// The steps behind which the file was last written, what is held out judged, and a sample written.
    kept: usize,
    judged: usize,
    written: usize,
    /// When the command began, and what was done since.
    begun: Instant,
    phases: Vec<Phase>,
}

/// What all ranks of a training begin with.
struct Prepared {
    /// Of all ranks: a batch is that of all of them together.
    settings: Settings,
    corpus: Corpus,
    split: Split,
    /// Of a training that goes on.
    begun: Option<(Checkpoint, Notes)>,
    /// When the command began, and when all this was there.
    begun_at: Instant,
    ready_at: Instant,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    lab_checker::out::outlive_readers();
    let begun_at = Instant::now();
    let mut settings = arguments.settings.clone();
    settings.check()?;
    if arguments.sample_prompt.is_empty() {
        return Err(Error::bad("--sample-prompt", "one byte at least", "none").into());
    }
    let ranks = Ranks::new(arguments.gpus)?;
    arguments.check_sums(ranks.world())?;
    settings.sizes.batch *= ranks.world();
    settings.check()?;
    let prepare = || prepare(settings, arguments, &ranks, begun_at);
    ranks.run(common, prepare, |prepared, device, group| {
        train(common, arguments, prepared, device, group)
    })
}

fn prepare(
    settings: Settings,
    arguments: &Arguments,
    ranks: &Ranks,
    begun_at: Instant,
) -> Result<Prepared, Failure> {
    let Arguments { out, resume, .. } = arguments;
    let begun = if *resume { Some(read_stopped_training(out, &settings)?) } else { None };
    let corpus = texts::read(&settings.texts, || Ok(Tokenizer::Bytes))?;
    let known = settings.sizes.vocabulary;
    if let Some(needed) = corpus.vocabulary.filter(|needed| *needed > known) {
        let expected = format!("at least {needed}, of which the tokens are");
        return Err(Error::bad("--vocabulary", expected, known).into());
    }
    let mut split = Split::new(&corpus, settings.held_out, settings.sizes.window)?;
    if settings.carry_state {
        let rows = settings.sizes.batch * settings.sizes.accumulate;
        let streams = Tokens::streams(&split.trained, rows);
        if streams.is_empty() {
            let expected = format!("at least {rows}, one of each stream");
            return Err(Error::bad("windows to train on", expected, split.trained.len()).into());
        }
        split.trained = streams;
    }
    if ranks.is_first() {
        check_targets(out, &[&beside(out, "loss.svg"), &beside(out, "log.jsonl")])?;
        let kept = saved::tokenizer_file(out);
        if corpus.tokenizer.is_none() && kept.exists() {
            let expected = format!("none beside {}, whose tokens are bytes", out.display());
            return Err(Error::bad("tokenizer", expected, kept.display()).into());
        }
        if !resume && out.exists() {
            let out = out.display();
            note!(
                "{out} holds a model, which this training replaces (--resume goes on with one that was stopped)"
            );
        }
    }
    Ok(Prepared { settings, corpus, split, begun, begun_at, ready_at: Instant::now() })
}

/// One rank's part, or all of a training that has one.
fn train(
    common: &Common,
    arguments: &Arguments,
    prepared: &Prepared,
    device: Device,
    group: Option<Group>,
) -> Result<(), Failure> {
    let Prepared { settings, corpus, split: Split { trained, held_out }, begun, .. } = prepared;
    let mut phases = vec![
        ("texts", prepared.ready_at - prepared.begun_at),
        ("device", prepared.ready_at.elapsed()),
    ];
    let Arguments { out, look_windows, .. } = arguments;
    let [curve, log] = ["loss.svg", "log.jsonl"].map(|ending| beside(out, ending));
    let kept = saved::tokenizer_file(out);
    let data = &corpus.data;
    let begin = |group| -> Result<RankGroup, Failure> {
        let communicator = match arguments.copy_engines {
            true => Communicator::by_copies(&device, group)?,
            false => Communicator::new(&device, group)?,
        };
        if let (Err(why), true) = (communicator.copies(), arguments.copy_engines)
            && communicator.rank() == 0
        {
            note!("no copy engines: {why}; gradients are summed as without --copy-engines");
        }
        Ok(RankGroup {
            communicator,
            shard_optimizer: arguments.shard_optimizer,
            sums: arguments.sums(),
        })
    };
    let ranks = group.map(begin).transpose()?;
    let trainer = match begun {
        Some((checkpoint, _)) => {
            Trainer::resume_rank(&device, checkpoint, data, trained, ranks.clone())?
        }
        None => {
            let config = settings.config(settings.sizes.dtype.on(&device));
            let model = settings.sizes.model();
            Trainer::of_rank(&device, model, config, data, trained, ranks.clone())?
        }
    };
    phases.extend(trainer.phases());
    let (rank, world) =
        ranks.as_ref().map_or((0, 1), |of| (of.communicator.rank(), of.communicator.world()));
    let is_first = rank == 0;
    let judged: Vec<usize> = held_out.iter().copied().take(*look_windows).collect();
    let start = Instant::now();
    let judge = if judged.is_empty() || !is_first {
        None
    } else {
        let batch = (trainer.config().batch / world).min(judged.len());
        match data.files {
            None => Some((Evaluator::beside(&trainer, batch)?, judged)),
            Some(_) => {
                let (own, starts) = data.excerpt(&judged, trainer.config().window)?;
                Some((Evaluator::beside_on(&trainer, batch, Some(&own))?, starts))
            }
        }
    };
    phases.push(("evaluation", start.elapsed()));
    let (all, unit) = (data.len(), corpus.unit());
    if is_first {
        let devices = match world {
            1 => device.name(),
            _ => format!(
                "{world} ranks, this one on {}, gradients summed {}",
                device.name(),
                arguments.sums()
            ),
        };
        note!("{all} {unit}, {} windows to train on; {devices}", trained.len());
    }
    // Beside the model, for what it will write and read.
    let tokenizer = match &corpus.tokenizer {
        Some(from) if is_first => {
            let json = texts::text(from)?;
            let written = lab_device::emulator::write_atomically(&kept, &json);
            written.map_err(|e| Failure::file(&kept, e))?;
            if arguments.sample_every > 0 { Tokenizer::read(&kept)? } else { Tokenizer::Bytes }
        }
        _ => Tokenizer::Bytes,
    };
    let fresh = || Notes { settings: settings.clone(), looks: Vec::new(), losses: Vec::new() };
    let notes = begun.as_ref().map_or_else(fresh, |(_, notes)| notes.clone());
    let bar =
        if is_first { ProgressBar::new(settings.steps as u64) } else { ProgressBar::hidden() };
    bar.set_style(
        ProgressStyle::with_template("{wide_bar} {pos}/{len} steps, {eta} left")
            .expect("a template"),
    );
    let begun_at = |last: Option<&Look>| last.map_or(0, |look| look.step);
    let judged = begun_at(notes.looks.iter().rfind(|look| look.held_out.is_some()));
    let written = begun_at(notes.looks.last());
    let mut run = Run {
        trainer,
        ranks,
        judge,
        notes,
        arguments,
        device,
        tokenizer,
        tokens_of_byte: corpus.tokens_of_byte(),
        bar,
        writer: None,
        kept: 0,
        judged,
        written,
        begun: prepared.begun_at,
        phases,
    };
    stop_at_ctrl_c();
    let start = Instant::now();
    // Before the first step, so that what is resumed is never another training.
    run.save_state()?;
    run.phases.push(("file", start.elapsed()));
    match run.finish_steps()? {
        Ended::Done if is_first => {
            run.finish(common, corpus.bytes, start.elapsed(), [&curve, &log])
        }
        Ended::Done | Ended::Stopped => Ok(()),
    }
}

/// How the steps of a rank have ended.
enum Ended {
    Done,
    /// For Ctrl-C; where the process is the rank, it has ended too.
    Stopped,
}

/// What was kept of a training, which must be that of these settings.
fn read_stopped_training(out: &Path, settings: &Settings) -> Result<(Checkpoint, Notes), Failure> {
    if !out.exists() {
        let expected = format!("a training that was begun, in {}", out.display());
        return Err(Error::bad("--resume", expected, "none").into());
    }
    let (mut checkpoint, mut notes) = saved::read_to_resume(out)?;
    // A step is its windows, in however many parts and on however many devices.
    let sizes = &settings.sizes;
    if notes.settings.sizes.batch * notes.settings.sizes.accumulate
        == sizes.batch * sizes.accumulate
    {
        let of = &mut notes.settings.sizes;
        (of.batch, of.accumulate) = (sizes.batch, sizes.accumulate);
        let of = &mut checkpoint.config;
        (of.batch, of.accumulate) = (sizes.batch, sizes.accumulate);
    }
    let [begun, asked] = [&notes.settings, settings]
        .map(|settings| flatten_json(&serde_json::to_value(settings).expect("settings are JSON")));
    let mut names = begun.keys().chain(asked.keys());
    let Some(name) = names.find(|name| begun.get(*name) != asked.get(*name)) else {
        return Ok((checkpoint, notes));
    };
    let what = match name.as_str() {
        "texts" => "TEXT".into(),
        _ => format!("--{}", name.replace('_', "-")),
    };
    // What is as it mostly is, settings do not say.
    let value = |of: &BTreeMap<String, serde_json::Value>| {
        of.get(name).map_or_else(|| "its default".into(), ToString::to_string)
    };
    Err(Error::bad(what, format!("{}, as it was begun", value(&begun)), value(&asked)).into())
}

/// Values by their names, those of an object within among them.
fn flatten_json(value: &serde_json::Value) -> BTreeMap<String, serde_json::Value> {
    let all = value.as_object().into_iter().flatten();
    all.flat_map(|(name, value)| match value {
        serde_json::Value::Object(_) => flatten_json(value),
        _ => [(name.clone(), value.clone())].into(),
    })
    .collect()
}

impl Run<'_> {
    /// A byte, of a token's nats.
    fn bits(&self, nats: f64) -> f64 {
        bits(nats) * self.tokens_of_byte
    }

    fn steps_done(&self) -> usize {
        let Position { epoch, step, steps_per_epoch } = self.trainer.position();
        epoch * steps_per_epoch + step
    }

    /// Only the first rank writes and tells.
    fn is_first(&self) -> bool {
        self.ranks.as_ref().is_none_or(|ranks| ranks.communicator.rank() == 0)
    }

    /// Whether someone has asked for a stop, of any rank.
    fn is_stopped(&self) -> Result<bool, Failure> {
        let own = asked();
        let Some(ranks) = &self.ranks else { return Ok(own) };
        let all = ranks.communicator.group().exchange("wish to stop", &[u8::from(own)])?;
        Ok(all.iter().any(|wish| wish == &[1]))
    }

    fn finish_steps(&mut self) -> Result<Ended, Failure> {
        let steps = self.notes.settings.steps;
        let every = self.arguments.look_every.get();
        let mut start = (self.steps_done(), Instant::now());
        let mut is_first_step = true;
        while self.steps_done() < steps {
            let done = self.steps_done();
            self.bar.set_position(done as u64);
            if self.is_stopped()? {
                self.save_state()?;
                self.bar.finish_and_clear();
                if self.is_first() {
                    note!("stopped behind step {done}; --resume goes on there");
                }
                let is_thread =
                    self.ranks.as_ref().is_some_and(|r| r.communicator.group().is_one_process());
                if self.is_first() || !is_thread {
                    end_as_asked();
                }
                return Ok(Ended::Stopped);
            }
            let look = ((done / every + 1) * every).min(steps);
            let before = self.trainer.position().step;
            // Not too many at once: Ctrl-C waits for them. Of the first it is told when it came.
            let most = if is_first_step { 1 } else { 16 };
            let begun = Instant::now();
            let of_epoch = self.trainer.run((look - done).min(most))?;
            if std::mem::take(&mut is_first_step) {
                self.tell_phases(begun.elapsed());
            }
            let losses = match of_epoch {
                Some(epoch) => epoch.losses,
                None => self.trainer.losses()?,
            };
            self.notes.losses.extend(&losses[before..]);
            if self.steps_done() == look {
                self.look(look - start.0, start.1.elapsed())?;
                start = (look, Instant::now());
            }
        }
        self.bar.finish_and_clear();
        Ok(Ended::Done)
    }

    /// What was done until the first step was there, which took so long.
    fn tell_phases(&mut self, first_step: Duration) {
        self.phases.push(("first step", first_step));
        if !self.is_first() {
            return;
        }
        let (all, long) = (self.begun.elapsed().as_secs_f64(), Duration::from_millis(5));
        let named = self.phases.iter().filter(|(_, took)| *took >= long);
        let named: Vec<String> =
            named.map(|(what, took)| format!("{what} {:.2}", took.as_secs_f64())).collect();
        self.bar.suspend(|| eprintln!("first step after {all:.2} s: {}", named.join(", ")));
    }

    /// A line, and the file; so many steps took so long.
    fn look(&mut self, timed: usize, took: Duration) -> Result<(), Failure> {
        let (step, steps) = (self.steps_done(), self.notes.settings.steps);
        let losses = std::mem::take(&mut self.notes.losses);
        let loss = losses.iter().sum::<f64>() / losses.len() as f64;
        // Steps without a finite gradient change nothing: they would go on for ever.
        if !loss.is_finite() {
            self.bar.finish_and_clear();
            let out = self.arguments.out.display();
            return Err(Failure::Refused(format!(
                "step {step}: the mean loss since the last look is {loss}, expected a finite number; a smaller --lr or --clip \
                 may help, and {out} is as it was kept before"
            )));
        }
        let is_judged = match self.arguments.eval_every {
            Some(every) => step == steps || step - self.judged >= every.get(),
            None => true,
        };
        let held_out = match &mut self.judge {
            Some((evaluator, windows)) if is_judged => {
                self.judged = step;
                Some(evaluator.mean_loss(windows)?)
            }
            _ => None,
        };
        self.notes.looks.push(Look { step, loss, held_out });
        let config = self.trainer.config();
        let tokens = (timed * config.windows_of_step() * config.window) as f64 / took.as_secs_f64();
        if self.is_first() {
            self.tell(step, loss, held_out, tokens)?;
        }
        if step == steps || step - self.kept >= self.arguments.keep_every {
            self.save_state()?;
        }
        Ok(())
    }

    /// The line of a look, and a sample where one is due.
    fn tell(
        &mut self,
        step: usize,
        loss: f64,
        held_out: Option<f64>,
        tokens: f64,
    ) -> Result<(), Failure> {
        let steps = self.notes.settings.steps;
        let held = held_out
            .map_or(String::new(), |nats| format!("  held out {}", digits(self.bits(nats))));
        let share = self.share_of_peak(tokens);
        let share = share.map_or(String::new(), |share| format!("  MFU {:.0} %", 100.0 * share));
        self.bar.suspend(|| {
            let loss = digits(self.bits(loss));
            note!("step {step}/{steps}  {loss}{held} bits a byte  {tokens:.0} tokens/s{share}");
        });
        let every = self.arguments.sample_every;
        if every > 0 && (step == steps || step - self.written >= every) {
            self.written = step;
            let sample = self.sample()?;
            self.bar.suspend(|| note!("{}", shown_lines(&sample)));
        }
        Ok(())
    }

    /// What the model writes now; of the same parameters the same.
    fn sample(&mut self) -> Result<String, Failure> {
        let Arguments { sample_prompt: prompt, sample_length: length, .. } = self.arguments;
        let prompt = self.tokenizer.encode(prompt.as_bytes())?;
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => none.insert(Writer::beside(&self.trainer, prompt.len() + length)?),
        };
        let mut sampler = Sampler::new(0.8, 0, 1.0, 1.0, 0)?;
        let mut written = Vec::new();
        let tokenizer = &self.tokenizer;
        super::write_on(writer, &mut sampler, tokenizer, &prompt, *length, |bytes| {
            written.extend(bytes);
        })?;
        Ok(String::from_utf8_lossy(&written).into_owned())
    }

    /// Of what the device's units for this type could do.
    fn share_of_peak(&self, tokens_per_second: f64) -> Option<f64> {
        let units = Arithmetic::fastest_for(self.trainer.config().dtype)?;
        let devices = self.ranks.as_ref().map_or(1, |ranks| ranks.communicator.world());
        let peak = self.device.facts().peak_tflops(units)? * 1e12 * devices as f64;
        let window = self.trainer.config().window;
        Some(tokens_per_second * self.trainer.model().flops_per_token(window) / peak)
    }

    /// Keeps where it stands.
    fn save_state(&mut self) -> Result<(), Failure> {
        self.kept = self.steps_done();
        // Where each rank has a part of the state, all of them put it together.
        let is_shared = self.ranks.as_ref().is_some_and(|ranks| ranks.shard_optimizer);
        if !self.is_first() && !is_shared {
            return Ok(());
        }
        // Before the first step the settings say all: nobody waits for gigabytes.
        let checkpoint = if self.kept == 0 {
            self.trainer.bare_checkpoint()?
        } else {
            self.trainer.checkpoint()?
        };
        if self.is_first() {
            saved::write(&self.arguments.out, checkpoint, &self.notes)
        } else {
            Ok(())
        }
    }

    fn finish(
        &self,
        common: &Common,
        bytes: usize,
        took: Duration,
        [curve, log]: [&Path; 2],
    ) -> Result<(), Failure> {
        let Notes { settings, looks, .. } = &self.notes;
        let out = &self.arguments.out;
        let of = |label: &str, value: &dyn Fn(&Look) -> Option<f64>| Curve {
            label: label.to_owned(),
            dashed: false,
            points: looks
                .iter()
                .filter_map(|l| Some((l.step as f64, self.bits(value(l)?))))
                .collect(),
        };
        let mut curves = vec![of("training", &|look| Some(look.loss))];
        if looks.iter().any(|look| look.held_out.is_some()) {
            curves.push(of("held out", &|look| look.held_out));
        }
        let title = format!("bits a byte of {}", name(out));
        let axes = Axes { title: &title, x: "step", logarithmic: true, truth_first: false };
        lab_plots::write(curve, &lines(&axes, curves)?)?;
        let mut lines = String::new();
        for look in looks {
            let line = serde_json::to_string(look).expect("numbers are JSON");
            let _ = writeln!(lines, "{line}");
        }
        lab_device::emulator::write_atomically(log, lines.as_bytes())
            .map_err(|e| Failure::file(log, e))?;
        let parameters = self.trainer.model().parameters().count();
        let files = [out.as_path(), curve, log].map(|file| file.display().to_string());
        let device = self.device.name();
        if common.json {
            say!(
                "{}",
                json!({
                    "device": device, "settings": settings, "seconds": took.as_secs_f64(),
                    "steps": self.steps_done(), "resumed": self.arguments.resume, "bytes": bytes,
                    "parameters": parameters, "launches_a_step": self.trainer.launches(),
                    "ranks": self.ranks.as_ref().map_or(1, |ranks| ranks.communicator.world()),
                    "sums": self.ranks.as_ref().map(|ranks| ranks.sums.to_string()),
                    "looks": looks, "files": files,
                    "seconds_before": self.phases.iter().map(|(what, took)| (*what, took.as_secs_f64()))
                        .collect::<BTreeMap<_, _>>(),
                })
            );
            return Ok(());
        }
        let seconds = took.as_secs_f64();
        say!("{} steps in {seconds:.1} s on {device}, {parameters} parameters", self.steps_done());
        say!("wrote {}, {} and {}", files[0], files[1], files[2]);
        say!("now: {} lm generate {} --prompt \"The \"", own::shell(), files[0]);
        Ok(())
    }
}
