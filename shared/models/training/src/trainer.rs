//! The steps of an optimizer.

use std::cell::{Ref, RefCell};
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lab_device::{Communicator, Device, Graph};
use lab_harness::plan::Slot;
use lab_harness::progress::{COUNTS, NUMBERS, SKIPPED, STEP, STOPPED, TAKEN};
use lab_harness::{Binding, Tensor, Tensors};

use crate::{BadCheckpoint, Checkpoint, Configuration, Course, Error, Position, Ranks, Trained};

/// What an epoch has given.
#[derive(Clone, Debug, PartialEq)]
pub struct Epoch {
    /// From 0.
    pub epoch: usize,
    /// The mean over its samples, of each with the parameters of its step.
    pub loss: f64,
    /// Of each step.
    pub losses: Vec<f64>,
    /// The learning rate of its last step.
    pub rate: f64,
    /// The loss scale at its end; 1 where there is none.
    pub scale: f64,
    /// Steps that were left out for a gradient that was not finite.
    pub skipped: usize,
}

/// What the host writes and reads of a step, beside parameters.
#[derive(Clone, Copy, Debug)]
pub struct EpochSlots {
    /// The samples of an epoch in their order, i32.
    pub order: Slot,
    /// Counts of [`lab_harness::progress`], twice: as they are and as they will be; i64.
    pub counts: Slot,
    /// Its numbers, likewise; f64.
    pub numbers: Slot,
    /// The learning rates of an epoch's steps, f64.
    pub rates: Slot,
    /// Their losses, f64.
    pub losses: Slot,
}

/// A training step of a model on a device, which a [`Trainer`] repeats. Its last launch counts it.
pub trait Step: Sized {
    /// What is trained.
    type Model: Trained;
    /// What it learns from.
    type Data;
    /// What its samples are: windows, pairs.
    const SAMPLES: &'static str;

    /// Refuses a model, a configuration, data or samples that no training can be done with.
    ///
    /// # Errors
    /// Of the first that is wrong.
    fn check(
        model: &Self::Model,
        config: &<Self::Model as Trained>::Config,
        data: &Self::Data,
        starts: &[usize],
    ) -> Result<(), Error>;

    /// Parameters to start from, by name.
    fn initial(model: &Self::Model, config: &<Self::Model as Trained>::Config) -> Tensors;

    /// The loss scale to start from; 1 where there is none.
    fn first_scale(config: &<Self::Model as Trained>::Config) -> f64;

    /// What tells data and samples from others.
    fn digest(data: &Self::Data, starts: &[usize]) -> String;

    /// Buffers and launches of a step, of an epoch of so many samples, with these parameters.
    ///
    /// # Errors
    /// A parameter is missing or of another shape or type; the device has not enough memory.
    fn new(
        device: &Device,
        model: &Self::Model,
        config: &<Self::Model as Trained>::Config,
        data: &Self::Data,
        samples: usize,
        parameters: &Tensors,
    ) -> Result<Self, Error>;

    /// The same of one rank of several, which does its share of each step: the samples of a step are those of all ranks.
    ///
    /// # Errors
    /// As [`Step::new`]; a step that only one device does, or whose samples the ranks cannot share.
    fn of_rank(
        device: &Device,
        model: &Self::Model,
        config: &<Self::Model as Trained>::Config,
        data: &Self::Data,
        samples: usize,
        parameters: &Tensors,
        ranks: Option<&Ranks>,
    ) -> Result<Self, Error> {
        match ranks {
            None => Self::new(device, model, config, data, samples, parameters),
            Some(ranks) => {
                let expected = format!("1: {} are trained on one device", Self::Model::STAGE);
                Err(lab_harness::Error::bad("ranks", expected, ranks.communicator.world()).into())
            }
        }
    }

    /// Loads what [`Step::of_rank`] would load: while this goes on, the first parameters are drawn.
    ///
    /// # Errors
    /// As [`Step::of_rank`].
    fn load(
        _device: &Device,
        _model: &Self::Model,
        _config: &<Self::Model as Trained>::Config,
        _data: &Self::Data,
        _samples: usize,
        _ranks: Option<&Ranks>,
    ) -> Result<(), Error> {
        Ok(())
    }

    /// Its launches, with their memory.
    fn binding(&self) -> &Binding;

    /// Likewise, to be run.
    fn binding_mut(&mut self) -> &mut Binding;

    /// Lets all have what a step leaves to the next one alone: it is called behind some steps, before anybody looks at what they have
    /// left. Where there are ranks, all of them call it.
    ///
    /// # Errors
    /// The device's.
    fn complete(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// What the host writes and reads of it.
    fn slots(&self) -> EpochSlots;

    /// By name.
    ///
    /// # Errors
    /// The device's.
    fn parameters(&self) -> Result<Tensors, Error>;

    /// Of the last step, by the parameters' names; none where they are not kept.
    ///
    /// # Errors
    /// The device's.
    fn gradients(&self) -> Result<Tensors, Error>;

    /// What was done to make it, in its order.
    fn phases(&self) -> &[Phase] {
        &[]
    }

    /// Both moments of the optimizer, by the parameters' names; none where it has none.
    ///
    /// # Errors
    /// The device's.
    fn moments(&self) -> Result<[Tensors; 2], Error>;

    /// Where the device finds each sample of an epoch that come in this order: mostly where they begin in the data.
    fn places(&mut self, order: &[usize]) -> Vec<i32> {
        order.iter().map(|&start| start as i32).collect()
    }

    /// Steps that [`Step::feed`] feeds at once.
    fn most_at_once(&self) -> usize {
        usize::MAX
    }

    /// Gives the device what these steps of the epoch read, where it does not have all data.
    ///
    /// # Errors
    /// The data cannot be read; the device's.
    fn feed(&mut self, _steps: Range<usize>) -> Result<(), Error> {
        Ok(())
    }

    /// What a step hands to the next beside parameters and moments, by name; mostly nothing.
    ///
    /// # Errors
    /// The device's.
    fn states(&self) -> Result<Tensors, Error> {
        Ok(Tensors::new())
    }

    /// Takes such states; none other than [`Step::states`] has.
    ///
    /// # Errors
    /// One is missing, or of another size; the device's.
    fn write_states(&mut self, _states: &Tensors) -> Result<(), Error> {
        Ok(())
    }

    /// Takes these moments.
    ///
    /// # Errors
    /// The device's.
    fn write_moments(&mut self, moments: [&Tensors; 2]) -> Result<(), Error>;

    /// [`Error::NotFinite`] with what of the step at `position` was the first that was not finite. The
    /// device has repeated the step since, with the same parameters, on these samples.
    ///
    /// # Errors
    /// The device's.
    fn first_bad(&self, position: Position, samples: &[usize]) -> Result<Error, Error>;
}

/// The most steps that are recorded as one, so that the device need not wait for the host after each, and
/// the launches that are no more than recorded then.
const TOGETHER: usize = 16;
const RECORDED: usize = 1024;

/// Steps between two looks at whether all was finite.
const UNWATCHED: usize = 512;

/// A model in training.
pub struct Trainer<S: Step> {
    model: S::Model,
    config: <S::Model as Trained>::Config,
    starts: Vec<usize>,
    digest: String,
    epoch: usize,
    /// Steps of it that are done.
    done: usize,
    // Dropped before the buffers that their launches use: of one step, and of `together`.
    one: Graph<'static>,
    several: Graph<'static>,
    together: usize,
    step: Rc<RefCell<S>>,
    /// Of one rank of several.
    ranks: Option<Ranks>,
    /// How long the slowest step took so far.
    slowest: Option<Duration>,
    /// What was done before the first step.
    phases: Vec<Phase>,
}

/// What was done before the first step, and how long it took.
pub type Phase = (&'static str, Duration);

/// Refuses ranks that would not train one model together.
fn check_same<M: Trained>(
    ranks: &Communicator,
    model: &M,
    config: &M::Config,
    digest: &str,
) -> Result<(), Error> {
    let text = |value: Result<String, _>| {
        value.map_err(|e: serde_json::Error| {
            lab_harness::Error::bad("model and configuration", "what JSON has", e)
        })
    };
    let own = [
        ("model", text(serde_json::to_string(model))?),
        ("configuration", text(serde_json::to_string(config))?),
        ("data and samples", digest.to_owned()),
    ];
    for (what, value) in own {
        ranks.group().check_same(what, &value)?;
    }
    Ok(())
}

/// The same of ranks that do not begin at the same step, or whose checkpoints are not of one training.
fn check_same_position(
    ranks: Option<&Ranks>,
    position: Position,
    last_loss: Option<f64>,
) -> Result<(), Error> {
    let Some(Ranks { communicator: ranks, .. }) = ranks else { return Ok(()) };
    let Position { epoch, step, .. } = position;
    let loss = last_loss.map_or(String::new(), |loss| format!(" behind a loss of {loss}"));
    Ok(ranks.group().check_same("position", &format!("epoch {epoch}, step {step}{loss}"))?)
}

impl<S: Step> std::fmt::Debug for Trainer<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { model, config, epoch, .. } = self;
        let mut all = f.debug_struct("Trainer");
        all.field("model", model).field("config", config).field("epoch", epoch);
        all.finish_non_exhaustive()
    }
}

/// Counts and numbers of a step, twice: as they are and as they will be.
type Progress = (Vec<i64>, Vec<f64>);

impl<S: Step + 'static> Trainer<S> {
    /// From the parameters that the seed gives, on the samples that begin at `starts`, each of which has
    /// its target in the data.
    ///
    /// # Errors
    /// An option, the data or a start is not what it may be; the device has not enough memory.
    pub fn new(
        device: &Device,
        model: S::Model,
        config: <S::Model as Trained>::Config,
        data: &S::Data,
        starts: &[usize],
    ) -> Result<Self, Error> {
        Self::of_rank(device, model, config, data, starts, None)
    }

    /// The same as one rank of several, all of which train one model on the same data: a step's samples are shared among them, and
    /// what they learn is added up. The configuration is that of a training on one device.
    ///
    /// # Errors
    /// As [`Trainer::new`]; a rank that has another model, configuration, data or samples, or has failed.
    pub fn of_rank(
        device: &Device,
        model: S::Model,
        config: <S::Model as Trained>::Config,
        data: &S::Data,
        starts: &[usize],
        ranks: Option<Ranks>,
    ) -> Result<Self, Error> {
        S::check(&model, &config, data, starts)?;
        let position = Position { epoch: 0, step: 0, steps_per_epoch: 0 };
        check_same_position(ranks.as_ref(), position, None)?;
        let begun = Instant::now();
        let mut first = Tensors::new();
        // By rayon's threads, of which this may be one: a thread of its own would wait for them, and they for it.
        let loaded = rayon::in_place_scope(|scope| {
            scope.spawn(|_| first = S::initial(&model, &config));
            S::load(device, &model, &config, data, starts.len(), ranks.as_ref())?;
            Ok::<_, Error>(begun.elapsed())
        })?;
        let drawn = begun.elapsed().saturating_sub(loaded);
        let mut trainer = Self::checked(device, model, config, data, starts, &first, ranks)?;
        trainer.phases.splice(0..0, [("kernels", loaded), ("first parameters", drawn)]);
        let mut numbers = vec![1.0; 2 * NUMBERS];
        numbers[NUMBERS] = S::first_scale(&config);
        trainer.write_progress(&(vec![0; 2 * COUNTS], numbers))?;
        trainer.begin_epoch()?;
        Ok(trainer)
    }

    /// From where a checkpoint was taken: what follows is bit for bit what would have followed there, on
    /// a device of the same kind.
    ///
    /// # Errors
    /// As [`Trainer::new`]; other data or samples than the checkpoint's.
    pub fn resume(
        device: &Device,
        checkpoint: &Checkpoint<S::Model>,
        data: &S::Data,
        starts: &[usize],
    ) -> Result<Self, Error> {
        Self::resume_rank(device, checkpoint, data, starts, None)
    }

    /// The same as one rank of several, on as many as there are now: see [`Trainer::of_rank`].
    ///
    /// # Errors
    /// As [`Trainer::resume`] and [`Trainer::of_rank`].
    pub fn resume_rank(
        device: &Device,
        checkpoint: &Checkpoint<S::Model>,
        data: &S::Data,
        starts: &[usize],
        ranks: Option<Ranks>,
    ) -> Result<Self, Error> {
        let Checkpoint { model, config, position, parameters, .. } = checkpoint;
        checkpoint.check()?;
        let (model, config) = (*model, *config);
        if checkpoint.is_bare() {
            let trainer = Self::of_rank(device, model, config, data, starts, ranks)?;
            trainer.check_digest(checkpoint)?;
            return Ok(trainer);
        }
        S::check(&model, &config, data, starts)?;
        check_same_position(ranks.as_ref(), *position, checkpoint.losses.last().copied())?;
        let mut trainer = Self::checked(device, model, config, data, starts, parameters, ranks)?;
        trainer.check_digest(checkpoint)?;
        trainer.epoch = position.epoch;
        trainer.done = position.step;
        trainer.write_progress(&(checkpoint.counts.clone(), checkpoint.numbers.clone()))?;
        trainer.begin_epoch()?;
        {
            let mut step = trainer.step.borrow_mut();
            step.write_moments([&checkpoint.first, &checkpoint.second])?;
            step.write_states(&checkpoint.states)?;
            let mut all = checkpoint.losses.clone();
            all.resize(position.steps_per_epoch, 0.0);
            let slot = step.slots().losses;
            step.binding_mut().write(slot, &Tensor::new(&[all.len()], &all))?;
        }
        Ok(trainer)
    }

    /// Refuses other data or samples than those of a checkpoint.
    fn check_digest(&self, checkpoint: &Checkpoint<S::Model>) -> Result<(), Error> {
        if self.digest == checkpoint.digest {
            return Ok(());
        }
        let (what, expected) = (format!("data and {}", S::SAMPLES), "those that it was taken with");
        Err(BadCheckpoint::new(what, expected, "others").into())
    }

    fn checked(
        device: &Device,
        model: S::Model,
        config: <S::Model as Trained>::Config,
        data: &S::Data,
        starts: &[usize],
        parameters: &Tensors,
        ranks: Option<Ranks>,
    ) -> Result<Self, Error> {
        let begun = Instant::now();
        let digest = S::digest(data, starts);
        let mut phases = vec![("checksum of the data", begun.elapsed())];
        if let Some(ranks) = &ranks {
            check_same(&ranks.communicator, &model, &config, &digest)?;
            let group = ranks.communicator.group();
            group.check_same("sums and optimizer's state", &ranks.sharing())?;
        }
        let step =
            S::of_rank(device, &model, &config, data, starts.len(), parameters, ranks.as_ref())?;
        phases.extend(step.phases());
        let begun = Instant::now();
        let step = Rc::new(RefCell::new(step));
        let record = |steps: usize| {
            let step = Rc::clone(&step);
            let run = move || step.borrow_mut().binding_mut().run();
            device.graph(move || (0..steps).try_for_each(|_| run()))
        };
        let together =
            (RECORDED / step.borrow().binding().plan().kernels().len()).clamp(1, TOGETHER);
        let [one, several] = [record(1)?, record(together)?];
        phases.push(("graph", begun.elapsed()));
        let (starts, epoch, done) = (starts.to_vec(), 0, 0);
        let slowest = None;
        Ok(Self {
            model,
            config,
            starts,
            digest,
            epoch,
            done,
            one,
            several,
            together,
            step,
            ranks,
            slowest,
            phases,
        })
    }

    /// What is trained.
    pub fn model(&self) -> &S::Model {
        &self.model
    }

    /// How.
    pub fn config(&self) -> &<S::Model as Trained>::Config {
        &self.config
    }

    /// What is repeated: for what shares its memory. While it is held, no step can be taken.
    pub fn step(&self) -> Ref<'_, S> {
        self.step.borrow()
    }

    /// What was done before the first step, in its order.
    pub fn phases(&self) -> &[Phase] {
        &self.phases
    }

    /// Kernel launches a step.
    pub fn launches(&self) -> usize {
        self.step.borrow().binding().plan().kernels().len()
    }

    /// The ranks of which it is one, if there are several.
    pub fn ranks(&self) -> Option<&Ranks> {
        self.ranks.as_ref()
    }

    fn course(&self) -> Course {
        self.config.course()
    }

    fn steps_per_epoch(&self) -> usize {
        self.course().steps(self.starts.len())
    }

    /// How far it is.
    pub fn position(&self) -> Position {
        let Self { epoch, done, .. } = *self;
        Position { epoch, step: done, steps_per_epoch: self.steps_per_epoch() }
    }

    fn progress(&self) -> Result<Progress, Error> {
        let step = self.step.borrow();
        let EpochSlots { counts, numbers, .. } = step.slots();
        let counts = step.binding().read(counts)?.values();
        let numbers = step.binding().read(numbers)?.values();
        Ok((counts.into_iter().map(|v| v as i64).collect(), numbers))
    }

    fn write_progress(&self, (counts, numbers): &Progress) -> Result<(), Error> {
        let mut step = self.step.borrow_mut();
        let slots = step.slots();
        let binding = step.binding_mut();
        binding.write(slots.counts, &Tensor::new(&[counts.len()], counts))?;
        Ok(binding.write(slots.numbers, &Tensor::new(&[numbers.len()], numbers))?)
    }

    /// The order of the samples and the learning rates of the epoch under way.
    fn begin_epoch(&self) -> Result<(), Error> {
        let course = self.course();
        let order = course.order(&self.starts, self.epoch);
        let first = self.epoch * self.steps_per_epoch();
        let rates: Vec<f64> =
            (0..self.steps_per_epoch()).map(|s| course.schedule.at(first + s)).collect();
        let mut step = self.step.borrow_mut();
        let order = step.places(&order);
        let slots = step.slots();
        let binding = step.binding_mut();
        binding.write(slots.order, &Tensor::new(&[order.len()], &order))?;
        Ok(binding.write(slots.rates, &Tensor::new(&[rates.len()], &rates))?)
    }

    /// Takes at most so many steps, and none past the end of the epoch under way, of which it gives the
    /// report where it comes to it.
    ///
    /// # Errors
    /// [`Error::NotFinite`]: the parameters stay those before that step, and the next call repeats it.
    /// What the device reports.
    pub fn run(&mut self, most: usize) -> Result<Option<Epoch>, Error> {
        let end = self.done.saturating_add(most).min(self.steps_per_epoch());
        while self.done < end {
            let at_once = self.step.borrow().most_at_once();
            let mut chunk = (end - self.done).min(UNWATCHED).min(at_once);
            // Of how long a step takes, the watch over several knows when it has seen one.
            if self.ranks.is_some() && self.slowest.is_none() {
                chunk = 1;
            }
            self.step.borrow_mut().feed(self.done..self.done + chunk)?;
            let begun = Instant::now();
            let ranks = self.ranks.as_ref().map(|ranks| Arc::clone(&ranks.communicator));
            let watch = ranks.as_ref().map(|ranks| {
                let expected = self.slowest.unwrap_or_default() * 2 * chunk as u32;
                let what = match chunk {
                    1 => format!("step {} with its collectives", self.done),
                    _ => format!(
                        "steps {} to {} with their collectives",
                        self.done,
                        self.done + chunk - 1
                    ),
                };
                ranks.watch(&what, ranks.group().limit() + expected)
            });
            for _ in 0..chunk / self.together {
                self.several.launch()?;
            }
            for _ in 0..chunk % self.together {
                self.one.launch()?;
            }
            if self.done + chunk == end {
                self.step.borrow_mut().complete()?;
            }
            if let Some(ranks) = &ranks {
                ranks.wait()?;
            }
            let progress = self.progress();
            drop(watch);
            if let Some(ranks) = &self.ranks {
                // What has come of an aborted step means nothing.
                ranks.communicator.group().check()?;
                self.slowest = self.slowest.max(Some(begun.elapsed() / chunk as u32));
            }
            let (counts, _) = progress?;
            let before = std::mem::replace(&mut self.done, counts[COUNTS + STEP] as usize);
            if counts[COUNTS + STOPPED] != 0 {
                let order = self.course().order(&self.starts, self.epoch);
                let samples = order.chunks(self.course().batch).nth(self.done);
                let samples = samples.expect("a step of the epoch");
                return Err(self.step.borrow().first_bad(self.position(), samples)?);
            }
            assert_eq!(self.done, before + chunk, "the last launch of a step counts it");
        }
        if self.done < self.steps_per_epoch() { Ok(None) } else { self.end_epoch().map(Some) }
    }

    /// Takes the steps that are left of the epoch under way.
    ///
    /// # Errors
    /// As [`Trainer::run`].
    pub fn epoch(&mut self) -> Result<Epoch, Error> {
        Ok(self.run(usize::MAX)?.expect("an epoch ends"))
    }

    fn end_epoch(&mut self) -> Result<Epoch, Error> {
        let (mut counts, mut numbers) = self.progress()?;
        let losses = self.all_losses()?;
        let Course { batch, schedule, .. } = self.course();
        let samples = self.starts.len();
        let of_step = |step: usize| batch.min(samples - step * batch) as f64;
        let sum: f64 = losses.iter().enumerate().map(|(step, loss)| loss * of_step(step)).sum();
        let last = (self.epoch + 1) * losses.len() - 1;
        let report = Epoch {
            epoch: self.epoch,
            loss: sum / samples as f64,
            losses,
            rate: schedule.at(last),
            scale: numbers[NUMBERS],
            skipped: counts[COUNTS + SKIPPED] as usize,
        };
        (self.epoch, self.done) = (self.epoch + 1, 0);
        counts[COUNTS + STEP] = 0;
        counts[COUNTS + SKIPPED] = 0;
        // As a trainer that is resumed here has them: what is now is made of what is next.
        counts.copy_within(COUNTS.., 0);
        numbers.copy_within(NUMBERS.., 0);
        self.write_progress(&(counts, numbers))?;
        self.begin_epoch()?;
        Ok(report)
    }

    /// Of the steps of this epoch, those to come whatever stands there.
    fn all_losses(&self) -> Result<Vec<f64>, Error> {
        let step: Ref<'_, S> = self.step.borrow();
        Ok(step.binding().read(step.slots().losses)?.values())
    }

    /// The losses of the steps of the epoch under way that are done.
    ///
    /// # Errors
    /// The device's.
    pub fn losses(&self) -> Result<Vec<f64>, Error> {
        let mut losses = self.all_losses()?;
        losses.truncate(self.done);
        Ok(losses)
    }

    /// Parameters by name, as they are kept: in f32, or of an f64 run in f64.
    ///
    /// # Errors
    /// The device's.
    pub fn parameters(&self) -> Result<Tensors, Error> {
        self.step.borrow().parameters()
    }

    /// The gradients of the last step, by the parameters' names, in the run's type and times the loss
    /// scale, before they are clipped; none where they are not kept.
    ///
    /// # Errors
    /// The device's.
    pub fn gradients(&self) -> Result<Tensors, Error> {
        self.step.borrow().gradients()
    }

    /// All that the steps to come depend on, before the first of them: without parameters and moments.
    ///
    /// # Errors
    /// A step was taken; the device's.
    pub fn bare_checkpoint(&self) -> Result<Checkpoint<S::Model>, Error> {
        let position = self.position();
        if (position.epoch, position.step) != (0, 0) {
            let got = format!("{} of epoch {}", position.step, position.epoch);
            return Err(lab_harness::Error::bad("step", "0 of epoch 0", got).into());
        }
        let none = Tensors::new;
        Ok(self.checkpoint_of([none(), none(), none()], none())?.without_tensors())
    }

    /// All that the steps to come depend on.
    ///
    /// # Errors
    /// The device's.
    pub fn checkpoint(&self) -> Result<Checkpoint<S::Model>, Error> {
        let [first, second] = self.step.borrow().moments()?;
        let states = self.step.borrow().states()?;
        self.checkpoint_of([self.parameters()?, first, second], states)
    }

    fn checkpoint_of(
        &self,
        [parameters, first, second]: [Tensors; 3],
        states: Tensors,
    ) -> Result<Checkpoint<S::Model>, Error> {
        let position = self.position();
        let (mut counts, mut numbers) = self.progress()?;
        counts.copy_within(COUNTS.., 0);
        numbers.copy_within(NUMBERS.., 0);
        let losses = self.losses()?;
        debug_assert_eq!(
            counts[COUNTS + TAKEN],
            (position.epoch * position.steps_per_epoch + position.step) as i64
        );
        Ok(Checkpoint {
            model: self.model,
            config: self.config,
            position,
            parameters,
            notes: BTreeMap::new(),
            first,
            second,
            states,
            counts,
            numbers,
            losses,
            digest: self.digest.clone(),
        })
    }
}
