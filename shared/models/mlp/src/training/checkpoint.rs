//! A training on disk: what of it is the MLP's.

use lab_training::{BadCheckpoint, Trained};

use super::{Config, Error, Model};

/// All that the steps to come depend on, but the data. Its parameters are `emb`, `w1`, `b1`, `w2`, `b2`, in
/// f32.
pub type Checkpoint = lab_training::Checkpoint<Model>;

impl Trained for Model {
    type Config = Config;
    const STAGE: &'static str = "mlp_fused";

    fn check(checkpoint: &Checkpoint) -> Result<(), Error> {
        let Checkpoint { model, config, parameters, first, second, .. } = checkpoint;
        model.check()?;
        config.check()?;
        model.check_parameters(parameters)?;
        for moments in [first, second] {
            if !config.descends() {
                model.check_parameters(moments)?;
            } else if !moments.is_empty() {
                let what = "moments of the optimizer";
                return Err(BadCheckpoint::new(what, "none", moments.len()).into());
            }
        }
        Ok(())
    }
}
