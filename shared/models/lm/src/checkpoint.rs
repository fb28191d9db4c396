//! A training on disk: what of it is the language model's.

use lab_training::{Error, Trained};

use crate::{Config, Model};

/// All that the steps to come depend on, but the data. Its parameters go by the names of `xlstm_large`'s state dict.
pub type Checkpoint = lab_training::Checkpoint<Model>;

impl Trained for Model {
    type Config = Config;
    const STAGE: &'static str = "lm";

    fn check(checkpoint: &Checkpoint) -> Result<(), Error> {
        let Checkpoint { model, config, parameters, first, second, .. } = checkpoint;
        model.check()?;
        config.check()?;
        let own = model.parameters();
        for all in [parameters, first, second] {
            own.check(all)?;
        }
        Ok(())
    }

    fn carries_states(config: &Config) -> bool {
        config.carry_state
    }
}
