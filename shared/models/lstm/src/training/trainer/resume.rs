//! Where training is left, and from where it goes on.

use std::collections::BTreeMap;

use lab_device::Device;
use lab_harness::Tensor;
use lab_training::BadCheckpoint;

use super::Trainer;
use crate::training::step::{COUNTS, NUMBERS, Step, TAKEN, Training};
use crate::training::{Checkpoint, Data, Error};

impl Trainer {
    /// From where a checkpoint was taken: what follows is bit for bit what would have followed there, on
    /// a device of the same kind.
    ///
    /// # Errors
    /// As [`Trainer::new`]; other data or windows than the checkpoint's.
    pub fn resume(
        device: &Device,
        checkpoint: &Checkpoint,
        data: &Data,
        starts: &[usize],
    ) -> Result<Self, Error> {
        let Checkpoint { model, config, position, parameters, .. } = checkpoint;
        checkpoint.check()?;
        let mut trainer = Self::of(device, *model, *config, data, starts, || parameters.clone())?;
        if trainer.digest != checkpoint.digest {
            let expected = "those that it was taken with";
            return Err(BadCheckpoint::new("data and windows", expected, "others").into());
        }
        trainer.epoch = position.epoch;
        trainer.done = position.step;
        trainer.write_progress(&(checkpoint.counts.clone(), checkpoint.numbers.clone()))?;
        trainer.begin_epoch()?;
        {
            let mut step = trainer.step.borrow_mut();
            let Step { program, layout, training, .. } = &mut *step;
            let Training { m, v, losses, .. } = training.as_ref().expect("of a trainer");
            program.write(*m, &layout.pack(config.master(), &checkpoint.first))?;
            program.write(*v, &layout.pack(config.master(), &checkpoint.second))?;
            let mut all = checkpoint.losses.clone();
            all.resize(position.steps_per_epoch, 0.0);
            program.write(*losses, &Tensor::new(&[all.len()], &all))?;
        }
        Ok(trainer)
    }

    /// All that the steps to come depend on.
    ///
    /// # Errors
    /// The device's.
    pub fn checkpoint(&self) -> Result<Checkpoint, Error> {
        let position = self.position();
        let (mut counts, mut numbers) = self.progress()?;
        counts.copy_within(COUNTS.., 0);
        numbers.copy_within(NUMBERS.., 0);
        let mut losses = self.losses()?;
        losses.truncate(position.step);
        let step = self.step.borrow();
        let Training { m, v, .. } = self.training(&step);
        let read = |slot| Ok::<_, Error>(step.layout.unpack(&step.program.read(slot)?));
        debug_assert_eq!(
            counts[COUNTS + TAKEN],
            (position.epoch * position.steps_per_epoch + position.step) as i64
        );
        Ok(Checkpoint {
            model: self.model,
            config: self.config,
            position,
            parameters: self.parameters()?,
            notes: BTreeMap::new(),
            first: read(*m)?,
            second: read(*v)?,
            counts,
            numbers,
            losses,
            digest: self.digest.clone(),
        })
    }
}
