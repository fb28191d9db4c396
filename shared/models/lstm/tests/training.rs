//! Checkpoints as files; what must hold on the devices is among the stage's checks.
#![allow(missing_docs)]

use std::path::{Path, PathBuf};

use lab_device::DType;
use lab_harness::suite::emulator;
use lab_harness::{Tensor, tensor};
use lab_lstm::training::{Checkpoint, Config, Data, Error, Model, Optimizer, Schedule, Trainer};
use lab_training::testing::assert_damage_is_refused;
use lstm_fused::Network;

fn data() -> Data {
    Data::Series { values: (0..20).map(|t| f64::from(t).sin()).collect(), columns: 1 }
}

/// After six steps of five an epoch.
fn trained(dtype: DType) -> Checkpoint {
    trained_of(Network { peephole: true, ..Network::lstm(1, 4) }, dtype)
}

/// Of two such layers.
fn trained_of(network: Network, dtype: DType) -> Checkpoint {
    let config = Config {
        window: 3,
        batch: 4,
        dtype,
        // Numbers that no short decimal is.
        schedule: Schedule::constant(0.1 + 0.2 / 3.0),
        optimizer: Optimizer::adamw(1.0 / 3.0),
        dropout: 0.1,
        ..Config::default()
    };
    let model = Model::forecast(Network { layers: 2, ..network });
    let starts = data().starts(3, 1);
    let mut trainer = Trainer::new(&emulator().unwrap(), model, config, &data(), &starts).unwrap();
    trainer.epoch().unwrap();
    trainer.run(1).unwrap();
    trainer.checkpoint().unwrap()
}

fn file(directory: &tempfile::TempDir) -> PathBuf {
    directory.path().join("run.safetensors")
}

#[test]
fn a_file_gives_back_what_was_written() {
    let directory = tempfile::tempdir().unwrap();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::BF16] {
        let mut checkpoint = trained(dtype);
        checkpoint.notes.insert("mean".into(), "0.1 \"°C\"\n".into());
        checkpoint.write(&file(&directory)).unwrap();
        let read = Checkpoint::read(&file(&directory)).unwrap();
        assert_eq!(read, checkpoint);
        // The same bytes each time.
        let first = std::fs::read(file(&directory)).unwrap();
        read.write(&file(&directory)).unwrap();
        assert_eq!(std::fs::read(file(&directory)).unwrap(), first);
    }
}

/// Through the file: the parameters after three epochs.
#[test]
fn a_run_goes_on_from_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let (device, data) = (emulator().unwrap(), data());
    let starts = data.starts(3, 1);
    let to_the_end = |mut trainer: Trainer| {
        while trainer.position().epoch < 3 {
            trainer.epoch().unwrap();
        }
        trainer.checkpoint().unwrap()
    };
    let slstm = Network::slstm(1, 4, 2);
    for checkpoint in [trained(DType::F32), trained_of(slstm, DType::BF16)] {
        let Checkpoint { model, config, .. } = checkpoint;
        let whole = to_the_end(Trainer::new(&device, model, config, &data, &starts).unwrap());
        checkpoint.write(&file(&directory)).unwrap();
        let read = Checkpoint::read(&file(&directory)).unwrap();
        assert_eq!(read.model.network, model.network);
        let resumed = Trainer::resume(&device, &read, &data, &starts).unwrap();
        assert_eq!(to_the_end(resumed), whole);
    }
}

/// Those of the sLSTM by the stage's, and its heads in the header.
#[test]
fn parameters_of_an_slstm_show_its_heads() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory);
    trained_of(Network::slstm(1, 4, 2), DType::F32).write(&path).unwrap();
    let (all, notes) = tensor::read_with_notes(&path).unwrap();
    for (name, shape) in [
        ("weight_ih_l0", &[16, 1][..]),
        ("r_l0", &[4, 2, 2, 2]),
        ("b_l0", &[4, 2, 2]),
        ("weight_ih_l1", &[16, 4]),
        ("r_l1", &[4, 2, 2, 2]),
    ] {
        assert_eq!(all[name].shape, shape, "{name}");
    }
    let header = &notes["lstm_fused"];
    for (to, said) in [
        (
            "{\"slstm\":{\"heads\":3}}",
            "heads: expected a divisor of 4, the units of a layer, got 3",
        ),
        ("{\"slstm\":{\"heads\":4}}", "tensor 'r_l0': expected f32 [4, 4, 1, 1]"),
        ("{\"slstm\":{}}", "missing field `heads`"),
        ("\"slstm\"", "metadata"),
    ] {
        let wrong = header.replace("{\"slstm\":{\"heads\":2}}", to);
        assert_ne!(&wrong, header);
        let wrong = [("lstm_fused".to_owned(), wrong)].into();
        tensor::write_with_notes(&path, &all, &wrong).unwrap();
        assert!(refused(&path).contains(said), "{to}: {}", refused(&path));
    }
}

/// The names and shapes of `torch.nn.LSTM(1, 4, num_layers=2)`, in f32.
#[test]
fn parameters_go_by_pytorch_s_names() {
    let directory = tempfile::tempdir().unwrap();
    trained(DType::F16).write(&file(&directory)).unwrap();
    let all = tensor::read(&file(&directory)).unwrap();
    for (name, shape) in [
        ("weight_ih_l0", &[16, 1][..]),
        ("weight_hh_l0", &[16, 4]),
        ("bias_ih_l0", &[16]),
        ("weight_ih_l1", &[16, 4]),
        ("bias_hh_l1", &[16]),
        ("head_weight", &[1, 4]),
        ("head_bias", &[1]),
        ("optimizer.second.weight_hh_l1", &[16, 4]),
    ] {
        assert_eq!((all[name].dtype, all[name].shape.as_slice()), (DType::F32, shape), "{name}");
    }
}

fn refused(path: &Path) -> String {
    Checkpoint::read(path).unwrap_err().to_string()
}

#[test]
fn what_is_no_checkpoint_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory);
    assert!(refused(&directory.path().join("none")).contains("none: "));
    let weights = tensor::tensors([("weight_ih_l0", Tensor::new(&[16, 1], &[0f32; 16]))]);
    tensor::write(&path, &weights).unwrap();
    assert!(refused(&path).contains("expected 'lstm_fused', which a checkpoint has, got none"));

    trained(DType::F32).write(&path).unwrap();
    let changes = [
        ("\"format\":2", "\"format\":1", "expected 2, got 1"),
        ("\"hidden\":4", "\"hidden\":5", "tensor 'weight_ih_l0': expected f32 [20, 1]"),
        ("\"batch\":4", "\"batch\":0", "batch: expected 1 to 32768, got 0"),
        ("\"cell\":\"lstm\"", "\"cell\":\"rnn\"", "unknown variant `rnn`"),
        ("\"dtype\":\"f32\"", "\"dtype\":\"f8\"", "got 'f8'"),
        ("\"epoch\":1", "\"epoch\":2", "position: expected as many steps as"),
        ("\"steps_per_epoch\":5", "\"steps_per_epoch\":0", "position: expected as many steps as"),
        ("{\"format\"", "[\"format\"", "metadata"),
        ("\"seed\":", "\"seed\":1", "'training.sha256' of"),
    ];
    assert_damage_is_refused(&path, "lstm_fused", &changes, refused);
}

#[test]
fn other_options_than_the_checkpoint_s_are_named() {
    let checkpoint = trained(DType::F32);
    let Checkpoint { model, config, .. } = checkpoint;
    checkpoint.expect(&model, &config).unwrap();
    let said = |model, config| {
        let error = checkpoint.expect(&model, &config).unwrap_err();
        assert!(matches!(error, Error::Checkpoint { .. }));
        error.to_string()
    };
    let other = said(model, Config { batch: 8, ..config });
    assert_eq!(other, "checkpoint: batch: expected 4, got 8");
    let network = Network { hidden: 7, ..model.network };
    assert!(said(Model { network, ..model }, config).starts_with("checkpoint: network: expected"));
}

#[test]
fn a_file_that_cannot_be_written_leaves_what_was_there() {
    let directory = tempfile::tempdir().unwrap();
    let nowhere = directory.path().join("no/folder/run.safetensors");
    assert!(
        trained(DType::F32).write(&nowhere).unwrap_err().to_string().contains("run.safetensors")
    );
    assert!(!nowhere.exists());
}
