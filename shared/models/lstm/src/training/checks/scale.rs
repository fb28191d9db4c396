//! The loss scale.

use lab_device::{DType, Device};

use super::series;
use crate::training::step::{POWERS, SCALE, SKIPPED, UPDATES};
use crate::training::{Checkpoint, Config, Data, Error, LossScale, Trainer};

/// Nothing is rounded otherwise.
pub(crate) fn a_power_of_two_as_loss_scale(device: &Device) {
    let train = |loss_scale, clip| {
        let (model, config, data, starts) =
            series(Config { loss_scale, clip, dropout: 0.2, ..Config::default() });
        let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
        let epoch = trainer.epoch().unwrap();
        ((epoch.losses, trainer.parameters().unwrap()), epoch.scale)
    };
    for clip in [None, Some(0.05)] {
        let (plain, scale) = train(LossScale::None, clip);
        assert_eq!(scale, 1.0);
        // Of four steps; one that does not follow the gradients stays.
        for (loss_scale, end) in [
            (LossScale::Static { factor: 1024.0 }, 1024.0),
            (LossScale::Dynamic { initial: 64.0, every: 2 }, 256.0),
        ] {
            let (scaled, scale) = train(loss_scale, clip);
            assert_eq!(scaled, plain, "{loss_scale:?}");
            assert_eq!(scale, end, "{loss_scale:?}");
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

/// Each step's scale from whether it was left out; some are in the midst of good ones.
pub(crate) fn a_step_left_out_starts_the_count_anew(device: &Device) {
    let dynamic = LossScale::Dynamic { initial: 256.0, every: 5 };
    let (model, config, data, starts) = series(Config {
        dtype: DType::F16,
        loss_scale: dynamic,
        shuffle: false,
        ..Config::default()
    });
    // The target of the last window alone.
    let Data::Series { mut values, columns } = data else { panic!("a series") };
    *values.last_mut().expect("a row") = 3000.0;
    let data = Data::Series { values, columns };
    let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
    let (mut scale, mut good, mut in_the_midst, mut updates) = (256.0, 0, 0, 0);
    for _ in 0..4 {
        let mut left_out = 0;
        for _ in 0..4 {
            let before = trainer.parameters().unwrap();
            let (skipped, now) = match trainer.run(1).unwrap() {
                Some(epoch) => (epoch.skipped, epoch.scale),
                None => {
                    let checkpoint = trainer.checkpoint().unwrap();
                    (checkpoint.counts[SKIPPED] as usize, checkpoint.numbers[SCALE])
                }
            };
            if skipped > left_out {
                assert_eq!(trainer.parameters().unwrap(), before);
                in_the_midst += usize::from(good > 0);
                (scale, good, left_out) = (scale / 2.0, 0, skipped);
            } else {
                assert_ne!(trainer.parameters().unwrap(), before);
                (good, updates) = (good + 1, updates + 1);
            }
            if good == 5 {
                (scale, good) = (scale * 2.0, 0);
            }
            assert_eq!(now, scale);
            // Adam counts the steps that were taken.
            let Checkpoint { counts, numbers, .. } = trainer.checkpoint().unwrap();
            assert_eq!(counts[UPDATES], i64::from(updates));
            for (power, beta) in [(POWERS, 0.9f64), (POWERS + 1, 0.999)] {
                assert!((numbers[power] - beta.powi(updates)).abs() <= 1e-15);
            }
        }
    }
    assert!(in_the_midst >= 2, "{in_the_midst}");
}
