//! The loss scale.

use lab_device::{DType, Device};

use super::series;
use crate::training::{Config, Error, LossScale, Trainer};

/// Nothing is rounded otherwise.
pub(crate) fn a_power_of_two_as_loss_scale(device: &Device) {
    let train = |loss_scale, clip| {
        let (model, config, data, starts) =
            series(Config { loss_scale, clip, dropout: 0.2, ..Config::default() });
        let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
        let losses = trainer.epoch().unwrap().losses;
        (losses, trainer.parameters().unwrap())
    };
    for clip in [None, Some(0.05)] {
        let plain = train(LossScale::None, clip);
        for loss_scale in
            [LossScale::Static { factor: 1024.0 }, LossScale::Dynamic { initial: 64.0, every: 2 }]
        {
            assert_eq!(train(loss_scale, clip), plain, "{loss_scale:?}");
        }
    }
}

pub(crate) fn the_loss_scale_follows_the_gradients(device: &Device) {
    let dynamic = LossScale::Dynamic { initial: 16_777_216.0, every: 3 };
    let (model, config, data, starts) =
        series(Config { dtype: DType::F16, loss_scale: dynamic, ..Config::default() });
    let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
    let first = trainer.parameters().unwrap();
    // Too large by far: the first step is left out.
    trainer.run(1).unwrap();
    assert_eq!(trainer.parameters().unwrap(), first);
    let mut skipped = 0;
    for _ in 0..8 {
        skipped += trainer.epoch().unwrap().skipped;
    }
    let epoch = trainer.epoch().unwrap();
    assert!(skipped >= 2, "{skipped} steps left out");
    assert!((1.0..16_777_216.0).contains(&epoch.scale), "a scale of {}", epoch.scale);
    assert!(epoch.losses.iter().all(|l| l.is_finite()));
    assert_ne!(trainer.parameters().unwrap(), first);
    // One that stays has to fit.
    let config =
        Config { loss_scale: LossScale::Static { factor: 16_777_216.0 }, ..*trainer.config() };
    let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
    let error = trainer.epoch().unwrap_err();
    let Error::NotFinite { epoch: 0, step: 0, tensor, .. } = &error else { panic!("{error}") };
    assert!(tensor.starts_with("the gradient by "), "{error}");
    // Small ones grow: once in three steps, of which an epoch has four.
    let dynamic = LossScale::Dynamic { initial: 1.0, every: 3 };
    let config = Config { loss_scale: dynamic, ..*trainer.config() };
    let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
    let scales: Vec<f64> = (0..3).map(|_| trainer.epoch().unwrap().scale).collect();
    assert_eq!(scales, [2.0, 4.0, 16.0]);
}
