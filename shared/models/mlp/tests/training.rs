//! Checkpoints as files; what must hold on the devices is among the stage's checks.
#![allow(missing_docs)]

use std::path::{Path, PathBuf};

use lab_harness::suite::emulator;
use lab_harness::{Tensor, tensor};
use lab_mlp::training::{Checkpoint, Config, Data, Error, Model, Optimizer, Schedule, Trainer};
use lab_training::testing::assert_damage_is_refused;

const MODEL: Model = Model { vocabulary: 7, embedding: 4, hidden: 5 };

fn data() -> Data {
    Data { tokens: (0..30).map(|t| t * t % 7).collect(), vocabulary: 7 }
}

/// After nine steps of eight an epoch.
fn trained(optimizer: Optimizer) -> Checkpoint {
    // A rate that no short decimal is.
    let schedule = Schedule::constant(0.1 + 0.2 / 3.0);
    let config = Config { batch: 4, schedule, optimizer, ..Config::default() };
    let starts = data().starts();
    let mut trainer = Trainer::new(&emulator().unwrap(), MODEL, config, &data(), &starts).unwrap();
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
    for optimizer in [Optimizer::sgd(0.0), Optimizer::adamw(1.0 / 3.0)] {
        let mut checkpoint = trained(optimizer);
        checkpoint.notes.insert("words".into(), "\"the\"\n".into());
        checkpoint.write(&file(&directory)).unwrap();
        let read = Checkpoint::read(&file(&directory)).unwrap();
        assert_eq!(read, checkpoint);
        // The same bytes each time.
        let first = std::fs::read(file(&directory)).unwrap();
        read.write(&file(&directory)).unwrap();
        assert_eq!(std::fs::read(file(&directory)).unwrap(), first);
    }
}

/// Through the file: all there is after three epochs.
#[test]
fn a_run_goes_on_from_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let (device, data) = (emulator().unwrap(), data());
    let starts = data.starts();
    let to_the_end = |mut trainer: Trainer| {
        while trainer.position().epoch < 3 {
            trainer.epoch().unwrap();
        }
        trainer.checkpoint().unwrap()
    };
    let checkpoint = trained(Optimizer::adam());
    let config = checkpoint.config;
    let whole = to_the_end(Trainer::new(&device, MODEL, config, &data, &starts).unwrap());
    checkpoint.write(&file(&directory)).unwrap();
    let read = Checkpoint::read(&file(&directory)).unwrap();
    assert_eq!(to_the_end(Trainer::resume(&device, &read, &data, &starts).unwrap()), whole);
    let error = Trainer::resume(&device, &read, &data, &starts[1..]).unwrap_err().to_string();
    assert!(error.starts_with("checkpoint: data and pairs: expected those"), "{error}");
}

fn refused(path: &Path) -> String {
    Checkpoint::read(path).unwrap_err().to_string()
}

#[test]
fn what_is_no_checkpoint_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = file(&directory);
    let weights = tensor::tensors([("w1", Tensor::new(&[5, 4], &[0f32; 20]))]);
    tensor::write(&path, &weights).unwrap();
    assert!(refused(&path).contains("expected 'mlp_fused', which a checkpoint has, got none"));

    trained(Optimizer::adam()).write(&path).unwrap();
    let changes = [
        ("\"format\":2", "\"format\":1", "expected 2, got 1"),
        ("\"hidden\":5", "\"hidden\":6", "tensor 'w1': expected f32 [6, 4]"),
        ("\"batch\":4", "\"batch\":0", "batch: expected 1 to 32768, got 0"),
        ("\"dtype\":\"f32\"", "\"dtype\":\"f8\"", "got 'f8'"),
        ("\"rule\":\"adam\"", "\"rule\":\"best\"", "unknown variant `best`"),
        ("\"epoch\":1", "\"epoch\":2", "position: expected as many steps as"),
        ("\"seed\":", "\"seed\":1", "'training.sha256' of"),
    ];
    assert_damage_is_refused(&path, "mlp_fused", &changes, refused);
}

#[test]
fn other_options_than_the_checkpoint_s_are_named() {
    let checkpoint = trained(Optimizer::sgd(0.0));
    checkpoint.expect(&MODEL, &checkpoint.config).unwrap();
    let other = Config { batch: 8, ..checkpoint.config };
    let error = checkpoint.expect(&MODEL, &other).unwrap_err();
    assert!(matches!(error, Error::Checkpoint { .. }));
    assert_eq!(error.to_string(), "checkpoint: batch: expected 4, got 8");
}
