//! A training on disk: what of it is the LSTM's.

use lab_training::Trained;

use super::{Config, Error, Model};

/// All that the steps to come depend on, but the data. Its parameters go by PyTorch's names, so that
/// `torch.nn.LSTM` loads them (`load_state_dict(…, strict=False)`), `head_weight` and `head_bias` as a
/// `torch.nn.Linear` has them.
pub type Checkpoint = lab_training::Checkpoint<Model>;

impl Trained for Model {
    type Config = Config;
    const STAGE: &'static str = "lstm_fused";

    fn check(checkpoint: &Checkpoint) -> Result<(), Error> {
        let Checkpoint { model, config, parameters, first, second, .. } = checkpoint;
        model.check()?;
        config.check(&model.network)?;
        for all in [parameters, first, second] {
            model.check_parameters(all, config.master())?;
        }
        Ok(())
    }
}
