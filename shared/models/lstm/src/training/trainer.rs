//! The steps of an optimizer.

mod diagnose;
mod resume;

use std::cell::{Ref, RefCell};
use std::rc::Rc;

use lab_device::{Device, Graph};
use lab_harness::{Prepared, Tensor, Tensors};
use lab_training::Position;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use super::step::{COUNTS, NUMBERS, SKIPPED, STEP, STOPPED, Step, Training};
use super::{Config, Data, Error, Model};

/// What an epoch has given.
#[derive(Clone, Debug, PartialEq)]
pub struct Epoch {
    /// From 0.
    pub epoch: usize,
    /// The mean over its windows, of each with the parameters of its step.
    pub loss: f64,
    /// Of each step.
    pub losses: Vec<f64>,
    /// The learning rate of its last step.
    pub rate: f64,
    /// The loss scale at its end.
    pub scale: f64,
    /// Steps that were left out for a gradient that was not finite.
    pub skipped: usize,
}

/// The most steps that are recorded as one, so that the device need not wait for the host after each, and
/// the launches that are no more than recorded then.
const TOGETHER: usize = 16;
const RECORDED: usize = 1024;

/// Steps between two looks at whether all was finite.
const UNWATCHED: usize = 512;

/// A model in training.
pub struct Trainer {
    model: Model,
    config: Config,
    starts: Vec<usize>,
    /// Of the data on the device.
    rows: usize,
    digest: String,
    epoch: usize,
    /// Steps of it that are done.
    done: usize,
    // Dropped before the buffers that their launches use: of one step, and of `together`.
    one: Graph<'static>,
    several: Graph<'static>,
    together: usize,
    step: Rc<RefCell<Step>>,
}

impl std::fmt::Debug for Trainer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { model, config, epoch, .. } = self;
        let mut all = f.debug_struct("Trainer");
        all.field("model", model).field("config", config).field("epoch", epoch);
        all.finish_non_exhaustive()
    }
}

/// The starts in the order in which an epoch takes them.
pub(crate) fn order(starts: &[usize], config: &Config, epoch: usize) -> Vec<usize> {
    let mut order = starts.to_vec();
    if config.shuffle {
        let mut random = ChaCha8Rng::seed_from_u64(config.seed);
        random.set_stream(epoch as u64 + 1); // the first parameters are of stream 0
        order.shuffle(&mut random);
    }
    order
}

/// Counts and numbers of a step, twice: as they are and as they will be.
type Progress = (Vec<i64>, Vec<f64>);

impl Trainer {
    /// From the parameters that the seed gives, on the windows that begin at `starts`, each of which has
    /// its target in the data.
    ///
    /// # Errors
    /// An option, the data or a start is not what it may be; the device has not enough memory.
    pub fn new(
        device: &Device,
        model: Model,
        config: Config,
        data: &Data,
        starts: &[usize],
    ) -> Result<Self, Error> {
        let parameters = || model.initial(config.master(), config.seed);
        let trainer = Self::of(device, model, config, data, starts, parameters)?;
        let mut numbers = vec![1.0; 2 * NUMBERS];
        numbers[NUMBERS] = config.loss_scale.first();
        trainer.write_progress(&(vec![0; 2 * COUNTS], numbers))?;
        trainer.begin_epoch()?;
        Ok(trainer)
    }

    fn of(
        device: &Device,
        model: Model,
        config: Config,
        data: &Data,
        starts: &[usize],
        parameters: impl FnOnce() -> Tensors,
    ) -> Result<Self, Error> {
        model.check()?;
        config.check(&model.network)?;
        data.check(&model)?;
        data.check_starts(starts, config.window, true)?;
        let step = Step::training(device, &model, &config, data, starts.len(), &parameters())?;
        let step = Rc::new(RefCell::new(step));
        let record = |steps: usize| {
            let step = Rc::clone(&step);
            device.graph(move || (0..steps).try_for_each(|_| step.borrow_mut().program.run()))
        };
        let together = (RECORDED / step.borrow().program.kernels().len()).clamp(1, TOGETHER);
        let [one, several] = [record(1)?, record(together)?];
        let digest = data.digest(starts);
        let (starts, rows, epoch, done) = (starts.to_vec(), data.len() + 1, 0, 0);
        Ok(Self { model, config, starts, rows, digest, epoch, done, one, several, together, step })
    }

    /// What is trained.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// How.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Kernel launches a step.
    pub fn launches(&self) -> usize {
        self.step.borrow().program.kernels().len()
    }

    fn steps_per_epoch(&self) -> usize {
        self.starts.len().div_ceil(self.config.batch)
    }

    /// How far it is.
    pub fn position(&self) -> Position {
        let Self { epoch, done, .. } = *self;
        Position { epoch, step: done, steps_per_epoch: self.steps_per_epoch() }
    }

    fn progress(&self) -> Result<Progress, Error> {
        let step = self.step.borrow();
        let counts = step.program.read(step.counts)?.values();
        let numbers = step.program.read(step.numbers)?.values();
        Ok((counts.into_iter().map(|v| v as i64).collect(), numbers))
    }

    fn write_progress(&self, (counts, numbers): &Progress) -> Result<(), Error> {
        let mut step = self.step.borrow_mut();
        let Step { program, counts: to_counts, numbers: to_numbers, .. } = &mut *step;
        program.write(*to_counts, &Tensor::new(&[counts.len()], counts))?;
        Ok(program.write(*to_numbers, &Tensor::new(&[numbers.len()], numbers))?)
    }

    /// The order of the windows and the learning rates of the epoch under way.
    fn begin_epoch(&self) -> Result<(), Error> {
        let order: Vec<i32> =
            order(&self.starts, &self.config, self.epoch).into_iter().map(|s| s as i32).collect();
        let first = self.epoch * self.steps_per_epoch();
        let rates: Vec<f64> =
            (0..self.steps_per_epoch()).map(|s| self.config.schedule.at(first + s)).collect();
        let mut step = self.step.borrow_mut();
        let Step { program, order: to_order, training, .. } = &mut *step;
        program.write(*to_order, &Tensor::new(&[order.len()], &order))?;
        let to_rates = training.as_ref().expect("of a trainer").rates;
        Ok(program.write(to_rates, &Tensor::new(&[rates.len()], &rates))?)
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
            let chunk = (end - self.done).min(UNWATCHED);
            for _ in 0..chunk / self.together {
                self.several.launch()?;
            }
            for _ in 0..chunk % self.together {
                self.one.launch()?;
            }
            let (counts, _) = self.progress()?;
            self.done = counts[COUNTS + STEP] as usize;
            if counts[COUNTS + STOPPED] != 0 {
                return Err(self.first_bad()?);
            }
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
        let losses = self.losses()?;
        let (windows, batch) = (self.starts.len(), self.config.batch);
        let of_step = |step: usize| batch.min(windows - step * batch) as f64;
        let sum: f64 = losses.iter().enumerate().map(|(step, loss)| loss * of_step(step)).sum();
        let last = (self.epoch + 1) * losses.len() - 1;
        let report = Epoch {
            epoch: self.epoch,
            loss: sum / windows as f64,
            losses,
            rate: self.config.schedule.at(last),
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
    fn losses(&self) -> Result<Vec<f64>, Error> {
        let step = self.step.borrow();
        Ok(step.program.read(self.training(&step).losses)?.values())
    }

    fn training<'a>(&self, step: &'a Ref<'_, Step>) -> &'a Training {
        step.training.as_ref().expect("of a trainer")
    }

    /// Parameters by name, as they are kept: in f32, or of an f64 run in f64.
    ///
    /// # Errors
    /// The device's.
    pub fn parameters(&self) -> Result<Tensors, Error> {
        let step = self.step.borrow();
        Ok(step.layout.unpack(&step.program.read(self.training(&step).master)?))
    }

    /// The gradients of the last step, by the parameters' names, in the run's type and times the loss
    /// scale, before they are clipped.
    ///
    /// # Errors
    /// The device's.
    pub fn gradients(&self) -> Result<Tensors, Error> {
        let step = self.step.borrow();
        Ok(step.layout.unpack(&step.program.read(self.training(&step).gradient)?))
    }
}
