//! What stops training, and what never begins.

use lab_device::{DType, Device};
use lab_reference::lstm::Network;

use super::{series, text, waves};
use crate::training::{
    Config, Data, Error, Evaluator, LossScale, Model, Optimizer, Schedule, Stream, Trainer,
};
use lstm_fused::Way;

pub(crate) fn the_first_bad_tensor_is_named(device: &Device) {
    let (model, config, data, starts) = series(Config { shuffle: false, ..Config::default() });
    let Data::Series { values, columns } = data else { panic!("a series") };
    // Windows of four rows in threes: the first step reads rows 0 to 5, and 4 to 6 as targets.
    let huge = 1e30;
    for (row, bad, step, tensor, index) in [
        (6, f64::NAN, 0, "row 6 of the data", 1),
        (7, f64::NAN, 1, "row 7 of the data", 1),
        (9, f64::INFINITY, 1, "row 9 of the data", 1),
        (9, huge, 1, "the mean of the loss", 0),
    ] {
        let mut values = values.clone();
        values[row * columns + 1] = bad;
        let data = Data::Series { values, columns };
        let loss_scale = LossScale::Dynamic { initial: 64.0, every: 3 };
        let config = Config { loss_scale, ..config };
        let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
        trainer.run(step).unwrap();
        let before = trainer.parameters().unwrap();
        let numbers = trainer.checkpoint().unwrap().numbers;
        // And again, for it stays there.
        for _ in 0..2 {
            let error = trainer.epoch().unwrap_err();
            let Error::NotFinite { epoch, step: at, tensor: name, index: n, value } = &error else {
                panic!("{error}")
            };
            let got = (*epoch, *at, name.as_str(), *n);
            assert_eq!(got, (0, step, tensor, index), "{error}");
            assert!(!value.is_finite());
            assert_eq!(trainer.parameters().unwrap(), before);
            // However often it is repeated, it is no step towards another scale.
            assert_eq!(trainer.checkpoint().unwrap().numbers, numbers);
            assert_eq!(trainer.position().step, step);
        }
    }
    // A rate that throws the parameters out of the numbers.
    let data = Data::Series { values, columns };
    // What a half type has no room for.
    let Data::Series { values: mut large, .. } = data.clone() else { panic!("a series") };
    large[2] = 1e6;
    let large = Data::Series { values: large, columns };
    let half = Config { dtype: DType::F16, ..config };
    let said = Trainer::new(device, model, half, &large, &starts).unwrap().epoch().unwrap_err();
    assert!(said.to_string().starts_with("epoch 0, step 0: x of layer 0 is inf"), "{said}");
    let optimizer = Optimizer::sgd(0.0);
    let config = Config { optimizer, schedule: Schedule::constant(1e38), ..config };
    let mut trainer = Trainer::new(device, model, config, &data, &starts).unwrap();
    let said = (0..9).find_map(|_| trainer.epoch().err()).expect("no number is left").to_string();
    assert!(
        said.starts_with("epoch 0, step ") && said.ends_with("expected finite numbers"),
        "{said}"
    );
}

pub(crate) fn training_that_cannot_be_is_refused(device: &Device) {
    let (model, config, data, starts) = series(Config::default());
    let refused = |model: Model, config: Config, data: &Data, starts: &[usize], said: &str| {
        let error = Trainer::new(device, model, config, data, starts).unwrap_err().to_string();
        assert!(error.starts_with(said), "{error}, not {said}");
    };
    let nan = f64::NAN;
    for (own, said) in [
        (Config { window: 0, ..config }, "window: expected 1 to 32768, got 0"),
        (Config { batch: 1 << 20, ..config }, "batch: expected 1 to 32768, got 1048576"),
        (Config { dtype: DType::I32, ..config }, "dtype: expected f32, f64, f16 or bf16, got i32"),
        (Config { dropout: 1.0, ..config }, "dropout: expected 0 to below 1, got 1"),
        (Config { dropout: nan, ..config }, "dropout: expected 0 to below 1, got NaN"),
        (Config { clip: Some(0.0), ..config }, "clip: expected a number above 0, got 0"),
        (
            Config { schedule: Schedule::constant(nan), ..config },
            "learning rate: expected a number above 0, got NaN",
        ),
        (
            Config { optimizer: Optimizer::sgd(1.0), ..config },
            "momentum: expected 0 to below 1, got 1",
        ),
        (
            Config { loss_scale: LossScale::Static { factor: 0.0 }, ..config },
            "loss scale: expected 2^-16 to 2^24, got 0",
        ),
        (
            Config { way: Some(Way::Sequence), ..config },
            "hidden: expected 1 to 256 in a launch for all steps, got 300",
        ),
    ] {
        let wide = Model { network: Network { hidden: 300, ..model.network }, ..model };
        refused(wide, own, &data, &starts, said);
    }
    let one_layer = Model::forecast(Network::lstm(2, 5));
    let said = "dropout: expected 0 in a network of one layer, got 0.5";
    refused(one_layer, Config { dropout: 0.5, ..config }, &data, &starts, said);
    let said = "outputs: expected 1 to 2, the columns of the data, got 3";
    refused(Model { outputs: 3, ..model }, config, &data, &starts, said);
    let said = "columns of the data: expected 3, the network's inputs, got 2";
    refused(Model::forecast(Network::lstm(3, 5)), config, &data, &starts, said);
    refused(model, config, &data, &[], "windows: expected 1 to 1073741824, got 0");
    refused(model, config, &data, &[3, 10], "start of window 1: expected 0 to 9, got 10");
    let said = "rows of the data: expected at least 5, a window and its target, got 4";
    refused(model, config, &waves(4), &[0], said);
    let half = Data::Series { values: vec![1.0; 21], columns: 2 };
    refused(model, config, &half, &[0], "numbers of the data: expected rows of 2, got 21");
    let of_text = Model::characters(Network::lstm(5, 4));
    let odd = Data::Text { tokens: vec![0, 4, 5, 1, 1, 1, 1], classes: 5 };
    refused(of_text, config, &odd, &[0], "token 2: expected 0 to 4, got 5");
    let said = "outputs: expected 5, the classes of the data, got 4";
    refused(Model { outputs: 4, ..of_text }, config, &text(20), &[0], said);

    let mut evaluator = Evaluator::new(device, model, config, &data).unwrap();
    let mut parameters = model.initial(DType::F32, 0);
    parameters.remove("head_bias");
    let error = evaluator.load(&parameters).unwrap_err().to_string();
    assert_eq!(error, "tensor 'head_bias': expected f32 [2], got none");
    let mut stream = Stream::new(device, model, &model.initial(DType::F32, 0)).unwrap();
    let error = stream.step(&[1.0]).unwrap_err().to_string();
    assert_eq!(error, "columns of x: expected 2, got 1");
}
