//! Every loader of the lab, fed with broken files: [`lab_fuzz`] says how. `LAB_FUZZ=100000 cargo test -p lab-fuzz`
//! is the long run.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

use lab_fuzz::{Counting, Loader, Mutator};
use lab_harness::{Tensor, Tensors, tensor};
use lab_records::{record, tuned};
use lab_training::{Checkpoint, Trained, checksum};

#[global_allocator]
static MEMORY: Counting = Counting;

/// Each error of a loader as its message.
fn said(error: impl ToString) -> String {
    error.to_string()
}

/// A file beside the input.
fn beside(path: &Path) -> std::path::PathBuf {
    path.with_file_name(format!("again-{}", path.file_name().unwrap_or_default().display()))
}

/// The words of headers in safetensors.
const SAFETENSORS: &[&str] = &[
    "F32",
    "F64",
    "F16",
    "BF16",
    "U8",
    "I32",
    "I64",
    "U64",
    "BOOL",
    "F8_E4M3",
    "F4",
    "dtype",
    "shape",
    "data_offsets",
    "__metadata__",
    "\"",
    ",",
    ":",
    "{",
    "}",
    "[",
    "]",
    "[0,0]",
    "[]",
    "null",
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]}}",
];

/// Mostly the header alone, with the length in front made to fit; else any bytes.
fn change_safetensors(mutator: &mut Mutator, input: &[u8]) -> Vec<u8> {
    let length = input.first_chunk().map_or(0, |n| u64::from_le_bytes(*n) as usize);
    match input.get(8..8usize.saturating_add(length)) {
        Some(header) if mutator.below(4) > 0 => {
            let mut header = mutator.mutate(header);
            header.resize(header.len().next_multiple_of(8), b' ');
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.extend(header);
            bytes.extend(&input[8 + length..]);
            bytes
        }
        _ => mutator.mutate(input),
    }
}

#[test]
fn safetensors() {
    let loader = Loader {
        name: "safetensors",
        file: "in.safetensors",
        words: SAFETENSORS,
        mutate: change_safetensors,
        ..Loader::PLAIN
    };
    loader.fuzz(|path| {
        // The same file as an argument of somebody's kernel.
        for name in ["x", "y"] {
            let name = lab_app::TensorName { file: path.to_owned(), tensor: name.into() };
            if let Ok(read) = lab_app::read_tensor("--arg x", &name) {
                let again = beside(path);
                lab_app::write_tensors(&again, &[(&name.tensor, &read)])?;
                let name = lab_app::TensorName { file: again, ..name };
                assert_eq!(lab_app::read_tensor("--arg x", &name), Ok(read));
            }
        }
        let (all, notes) = tensor::read_with_notes(path).map_err(said)?;
        for t in all.values() {
            assert_eq!(t.values().len(), t.len());
            assert_eq!(t.bytes.len(), t.len() * t.dtype.size());
        }
        let again = beside(path);
        tensor::write_with_notes(&again, &all, &notes).expect("what was read can be written");
        assert_eq!(tensor::read_with_notes(&again).expect("and read again"), (all, notes));
        Ok(())
    });
}

#[test]
fn csv() {
    let loader = Loader {
        name: "csv",
        file: "in.csv",
        words: &[
            "load", "day", "\"", "\"\"", ",", "\n", "\r\n", "1e5", ",,,,,,,,", "\n\n\n\n",
            "infinity", "0x1",
        ],
        ..Loader::PLAIN
    };
    loader.fuzz(|path| {
        let read = |path: &Path| {
            let named = lab_lstm::data::Series::from_csv(path, Some("load"));
            named.or_else(|_| lab_lstm::data::Series::from_csv(path, None))
        };
        let series = read(path).map_err(said)?;
        assert!(!series.values.is_empty() && series.values.iter().all(|v| v.is_finite()));
        let name = series.name.replace('"', "\"\"");
        let lines = series.values.iter().map(|v| format!("\n{v}"));
        let text = format!("\"{name}\"{}", lines.collect::<String>());
        let again = beside(path);
        std::fs::write(&again, text).expect("a file");
        assert_eq!(read(&again).expect("what was read, as a file"), series);
        Ok(())
    });
}

#[test]
fn text() {
    let loader = Loader {
        name: "text",
        file: "in.txt",
        words: &["the ", "\u{301}", "漢", "\u{1F600}"],
        ..Loader::PLAIN
    };
    loader.fuzz(|path| {
        let text = lab_lstm::data::read_text(path).map_err(said)?;
        let vocabulary = lab_lstm::data::Vocabulary::of(&text).map_err(said)?;
        let numbers = vocabulary.encode("text", &text).expect("its own characters");
        assert_eq!(vocabulary.decode(&numbers), text);
        let again = lab_lstm::data::Vocabulary::new(vocabulary.characters().to_vec());
        assert_eq!(again.expect("its own characters"), vocabulary);
        Ok(())
    });
}

#[test]
fn words() {
    use lab_mlp::data::{Unit, Vocabulary};
    let loader = Loader {
        name: "text",
        file: "in.txt",
        words: &["the ", "\u{301}", "漢", "\u{1F600}", "don't "],
        ..Loader::PLAIN
    };
    loader.fuzz(|path| {
        let mut last = Ok(());
        for (unit, most) in [(Unit::Bytes, 300), (Unit::Words, 5), (Unit::Words, 1 << 20)] {
            let vocabulary = match Vocabulary::of(path, unit, most) {
                Ok(vocabulary) => vocabulary,
                Err(error) => {
                    last = Err(error.to_string());
                    continue;
                }
            };
            assert!(vocabulary.len() <= most);
            let ids = vocabulary.encode_file(path).expect("what it was made of");
            assert!(ids.iter().all(|id| (0..vocabulary.len()).contains(&(*id as usize))));
            assert!(most < 100 || ids.iter().all(|id| *id > 0), "each token is known");
            assert!((0..vocabulary.len()).all(|id| !vocabulary.show(id).contains('\n')));
            assert_eq!(Vocabulary::parse(&vocabulary.write()), Some(vocabulary));
        }
        last
    });
}

/// A loaded file is one of the corpus, or it is refused: each has a checksum.
fn holds_checksum<M: Trained>(loader: &Loader) {
    let good: Vec<Checkpoint<M>> = good(loader);
    loader.fuzz(|path| {
        let read = Checkpoint::<M>::read(path).map_err(said)?;
        assert!(good.contains(&read), "it was changed, and nobody has noticed");
        comes_back(path, &read)
    });
}

fn comes_back<M: Trained>(path: &Path, read: &Checkpoint<M>) -> Result<(), String> {
    let again = beside(path);
    read.write(&again).expect("what was read can be written");
    assert_eq!(&Checkpoint::<M>::read(&again).expect("and read again"), read);
    Ok(())
}

fn good<M: Trained>(loader: &Loader) -> Vec<Checkpoint<M>> {
    let directory = lab_fuzz::folder();
    let files = loader.corpus().into_iter().filter(|(name, _)| name.starts_with("good-"));
    files
        .map(|(name, bytes)| {
            let path = directory.path().join(name);
            std::fs::write(&path, bytes).expect("a file");
            Checkpoint::read(&path).unwrap_or_else(|e| panic!("{e}"))
        })
        .collect()
}

/// The checksum made to fit what was changed: so what is behind it is reached.
fn sealed<M: Trained>(loader: &Loader) {
    let loader = Loader { mutate: change_sealed::<M>, ..*loader };
    loader.fuzz(|path| {
        let read = Checkpoint::<M>::read(path).map_err(said)?;
        comes_back(path, &read)
    });
}

fn change_sealed<M: Trained>(mutator: &mut Mutator, input: &[u8]) -> Vec<u8> {
    let directory = lab_fuzz::folder();
    let path = directory.path().join("in.safetensors");
    std::fs::write(&path, input).expect("a file");
    let Ok((mut all, mut notes)) = tensor::read_with_notes(&path) else {
        return mutator.mutate(input);
    };
    if mutator.below(2) == 0 {
        let header = notes.get(M::STAGE).cloned().unwrap_or_default();
        notes.insert(M::STAGE.into(), mutator.text(&header));
    } else {
        change_tensor(mutator, &mut all);
    }
    let header = notes.get(M::STAGE).cloned().unwrap_or_default();
    all.remove("training.sha256");
    all.insert("training.sha256".into(), checksum(&header, &all));
    tensor::write_with_notes(&path, &all, &notes).expect("tensors");
    std::fs::read(&path).expect("the file")
}

fn change_tensor(mutator: &mut Mutator, all: &mut Tensors) {
    let Some(name) = all.keys().nth(mutator.below(all.len())).cloned() else { return };
    let mut tensor = all.remove(&name).expect("a name of it");
    match mutator.below(5) {
        0 => return,
        1 => drop(all.insert(mutator.text(&name), tensor.clone())),
        2 => {
            let width = tensor.dtype.size();
            tensor.bytes = mutator.mutate(&tensor.bytes);
            tensor.bytes.truncate(tensor.bytes.len() / width * width);
            tensor.shape = vec![tensor.bytes.len() / width];
        }
        3 => tensor.shape.reverse(),
        _ => {
            let at = mutator.below(tensor.bytes.len());
            if let Some(byte) = tensor.bytes.get_mut(at) {
                *byte = [0xFF, 0x7F, 0x80, 0][mutator.below(4)];
            }
        }
    }
    all.insert(name, tensor);
}

const HEADER: &[&str] = &[
    "format",
    "model",
    "config",
    "position",
    "epoch",
    "step",
    "steps_per_epoch",
    "data",
    "notes",
    "network",
    "cell",
    "lstm",
    "gru",
    "slstm",
    "heads",
    "inputs",
    "hidden",
    "layers",
    "bidirectional",
    "bias",
    "peephole",
    "layer_norm",
    "outputs",
    "head",
    "last",
    "every_step",
    "window",
    "batch",
    "dtype",
    "f32",
    "f64",
    "bf16",
    "f16",
    "seed",
    "shuffle",
    "optimizer",
    "rule",
    "sgd",
    "adam",
    "momentum",
    "schedule",
    "constant",
    "cosine",
    "decay",
    "rate",
    "warm_up",
    "clip",
    "dropout",
    "loss_scale",
    "kind",
    "none",
    "static",
    "dynamic",
    "factor",
    "way",
    "recompute",
    "vocabulary",
    "embedding",
    "width",
    "blocks",
    "keys",
    "values",
    "betas",
    "weight_decay",
    "null",
    "true",
    "false",
    "\"",
    ",",
    ":",
    "{",
    "}",
    "[",
    "]",
    "sha256",
];

const LSTM: Loader = Loader {
    name: "lstm-checkpoint",
    file: "in.safetensors",
    words: HEADER,
    mutate: change_safetensors,
    ..Loader::PLAIN
};
const MLP: Loader = Loader { name: "mlp-checkpoint", ..LSTM };
// A header may ask for a thousand blocks, and the names of all their parameters take that.
const LM: Loader = Loader { name: "lm-checkpoint", memory: 8 << 20, ..LSTM };

#[test]
fn lstm_checkpoint() {
    holds_checksum::<lab_lstm::training::Model>(&LSTM);
}

#[test]
fn lstm_checkpoint_sealed() {
    sealed::<lab_lstm::training::Model>(&LSTM);
}

#[test]
fn mlp_checkpoint() {
    holds_checksum::<lab_mlp::training::Model>(&MLP);
}

#[test]
fn mlp_checkpoint_sealed() {
    sealed::<lab_mlp::training::Model>(&MLP);
}

#[test]
fn lm_checkpoint() {
    holds_checksum::<lab_lm::Model>(&LM);
}

#[test]
fn lm_checkpoint_sealed() {
    sealed::<lab_lm::Model>(&LM);
}

#[test]
fn tokens() {
    let loader = Loader {
        name: "tokens",
        file: "in.tokens",
        words: &["labtoken", "\u{1}\0\0\0", "\u{2}\0\0\0", "\u{4}\0\0\0", "\0\0\0\0\0\0\0\0"],
        ..Loader::PLAIN
    };
    loader.fuzz(|path| {
        let all = lab_lm::TokenFile::read(path).map_err(said)?;
        assert!(all.ids.iter().all(|id| (0..all.vocabulary as i64).contains(&i64::from(*id))));
        let again = beside(path);
        all.write(&again).expect("what was read can be written");
        assert_eq!(lab_lm::TokenFile::read(&again).expect("and read again"), all);
        Ok(())
    });
}

/// A small writer, and its parameters: what a state in the corpus is of.
fn writer() -> (lab_lm::Writer, Tensors) {
    let model = lab_lm::Model { hidden: 8, ..lab_lm::Model::xlstm(3, 32, 1, 2) };
    let pattern = "1 vlstm : 1 attention".parse().expect("a pattern");
    let model = lab_lm::Model { values: 16, ..model }.with_mixers(pattern, None);
    let mut parameters = model.parameters().initial(1);
    // So that a state has the same bits on every machine.
    parameters.values_mut().for_each(|tensor| tensor.bytes.fill(0));
    let device = lab_harness::suite::emulator().expect("the emulator");
    let writer = lab_lm::Writer::with_room(&device, model, &parameters, lab_device::DType::F32, 8);
    (writer.expect("a writer"), parameters)
}

#[test]
fn lm_state() {
    let (mut writer, parameters) = writer();
    let loader = Loader {
        name: "lm-state",
        file: "in.safetensors",
        words: SAFETENSORS,
        mutate: change_safetensors,
        ..Loader::PLAIN
    };
    loader.fuzz(|path| {
        let saved = lab_lm::SavedState::read(path).map_err(said)?;
        let again = beside(path);
        saved.write(&again).expect("what was read can be written");
        let read = lab_lm::SavedState::read(&again).expect("and read again");
        assert_eq!(read.tokens(), saved.tokens());
        let logits = saved.resume(&mut writer, &parameters).map_err(said)?;
        assert_eq!(logits.len(), 3);
        Ok(())
    });
}

/// Changes what the tool notes in a model's file.
fn change_notes<M: Trained>(mutator: &mut Mutator, input: &[u8]) -> Vec<u8> {
    let directory = lab_fuzz::folder();
    let path = directory.path().join("in.safetensors");
    std::fs::write(&path, input).expect("a file");
    let Ok(mut checkpoint) = Checkpoint::<M>::read(&path) else { return mutator.mutate(input) };
    for _ in 0..=mutator.below(2) {
        let at = mutator.below(checkpoint.notes.len());
        let Some((name, text)) = checkpoint.notes.iter().nth(at) else { break };
        let (name, text) = (name.clone(), text.clone());
        checkpoint.notes.insert(name, mutator.text(&text));
    }
    checkpoint.write(&path).expect("a checkpoint");
    std::fs::read(&path).expect("the file")
}

fn models<M: Trained>(name: &'static str, read: fn(&Path) -> Result<Checkpoint<M>, String>) {
    let words = &[
        "settings",
        "scale",
        "losses",
        "looks",
        "[0.5,1e400]",
        "[]",
        "vocabulary",
        "NaN",
        "inf",
        "sine",
        "a.csv",
        "a.txt",
        "\\n",
        "\\u0000",
        " ",
        "\"",
        "{",
        "}",
        ",",
        ":",
        "null",
        "true",
        "false",
        "gru",
        "slstm",
        "lstm",
        "words",
        "bytes",
        "f32",
        "bf16",
        "cosine",
        "step",
        "constant",
        "mse",
        "cross-entropy",
    ];
    let loader = Loader { name, words, mutate: change_notes::<M>, ..LSTM };
    loader.fuzz(|path| {
        let model = read(path)?;
        let again = beside(path);
        model.write(&again).expect("what was read can be written");
        assert_eq!(read(&again).expect("and read again"), model);
        Ok(())
    });
}

#[test]
fn lstm_model() {
    models("lstm-model", lab::loaders::lstm_model);
}

#[test]
fn mlp_model() {
    models("mlp-model", lab::loaders::mlp_model);
}

#[test]
fn lm_model() {
    models("lm-model", lab::loaders::lm_model);
}

const RECORD: &[&str] = &[
    "format",
    "commit",
    "date",
    "device",
    "gpu",
    "driver",
    "nvrtc",
    "cpu",
    "cpu_threads",
    "clock_mhz",
    "copy_gbps",
    "peak_tflops",
    "libraries",
    "results",
    "family",
    "version",
    "of",
    "library",
    "host",
    "shape",
    "dtype",
    "median_us",
    "p10_us",
    "p90_us",
    "runs",
    "tflops",
    "gbps",
    "roofline_percent",
    "relative_error",
    "element_share",
    "products",
    "tf32",
    "halves",
    "null",
    "true",
    "[",
    "]",
    "{",
    "}",
    ",",
    ":",
    "\"",
    "\\u0000",
    "\\ud800",
    "[[[[[[[[",
    "1e400",
    "-0.0",
];

#[test]
fn records() {
    let loader = Loader { name: "record", file: "in.json", words: RECORD, ..Loader::PLAIN };
    loader.fuzz(|path| {
        let run = record::Run::read(path).map_err(said)?;
        let folder = path.with_file_name("records");
        let name = run.write(&folder).expect("what was read can be written");
        let again = folder.join(name);
        assert_eq!(record::Run::read(&again).expect("and read again"), run);
        std::fs::remove_file(again).expect("the file");
        Ok(())
    });
}

#[test]
fn tunings() {
    let loader = Loader { name: "tuned", file: "in.json", words: RECORD, ..Loader::PLAIN };
    loader.fuzz(|path| {
        let tuned = tuned::Tuned::read(path).map_err(said)?;
        let folder = path.with_file_name("tuned");
        let name = tuned.write(&folder).expect("what was read can be written");
        let again = folder.join(name);
        assert_eq!(tuned::Tuned::read(&again).expect("and read again"), tuned);
        std::fs::remove_file(again).expect("the file");
        Ok(())
    });
}

fn sources() -> lab_mutate::Sources {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").components().collect();
    let stage = lab_registry::stage("playg").expect("a stage");
    let workspace = lab_mutate::Workspace { root };
    lab_mutate::Sources::read(&workspace, "stages/playg", stage.kernels).expect("its sources")
}

const TOML: &[&str] = &[
    "[[bug]]",
    "[[exercise]]",
    "[[exercise.cut]]",
    "[[exercise.limit]]",
    "[[equivalent]]",
    "name",
    "file",
    "find",
    "replace",
    "symptom",
    "check",
    "chapter",
    "race",
    "result",
    "init",
    "task",
    "hint",
    "version",
    "shape",
    "operation",
    "ratio",
    "cost",
    "function",
    "before",
    "after",
    "reason",
    "\"",
    "'''",
    "=",
    "\n",
    "[",
    "]",
    "{",
    "}",
    ".",
    "#",
    "1979-05-27",
    "0xFF",
    "\\u0000",
    "kernels/",
    "shared/cuda/lab/",
    "../",
    "/dev/zero",
];

#[test]
fn bugs_toml() {
    let sources = sources();
    let loader =
        Loader { name: "bugs", file: "bugs.toml", words: TOML, line: 600, ..Loader::PLAIN };
    loader.fuzz(|path| {
        let text = lab_device::emulator::read_text(path).map_err(said)?;
        let bugs = lab_mutate::Bugs::parse("bugs.toml", &text, &sources).map_err(said)?;
        for (bug, edit) in &bugs.entries {
            let before = sources.text(&edit.file).expect("a file of the stage");
            assert_eq!(before.matches(&bug.find).count(), 1);
            let after = edit.apply(before).expect("it fits");
            assert!(after != before && after == before.replacen(&bug.find, &bug.replace, 1));
        }
        Ok(())
    });
}

#[test]
fn exercises_toml() {
    let sources = sources();
    let loader = Loader {
        name: "exercises",
        file: "exercises.toml",
        words: TOML,
        line: 600,
        ..Loader::PLAIN
    };
    loader.fuzz(|path| {
        let text = lab_device::emulator::read_text(path).map_err(said)?;
        let all = lab_mutate::Exercise::parse("exercises.toml", &text, &sources).map_err(said)?;
        for exercise in &all {
            let start = exercise.start(&sources);
            assert!(
                exercise.cuts.iter().all(|cut| start.contains(&cut.replace))
                    || exercise.cuts.len() > 1
            );
            let whole = sources.text(&exercise.path(&sources)).expect("a file of the stage");
            assert_eq!(exercise.solved_by(&sources, whole).apply(whole).as_deref(), Some(whole));
        }
        Ok(())
    });
}

#[test]
fn equivalent_toml() {
    let loader =
        Loader { name: "equivalent", file: "equivalent.toml", words: TOML, ..Loader::PLAIN };
    loader.fuzz(|path| {
        let text = lab_device::emulator::read_text(path).map_err(said)?;
        let all = lab_mutate::Equivalents::parse("equivalent.toml", &text, "stages/playg")
            .map_err(said)?;
        for entry in &all.entries {
            let inside =
                entry.file.starts_with("shared/") || entry.file.starts_with("stages/playg/");
            assert!(inside && !entry.before.contains('\n') && !entry.after.contains('\n'));
        }
        Ok(())
    });
}

const LAUNCH: &[&str] = &[
    "kernel",
    "grid",
    "block",
    "shared",
    "cooperative",
    "cluster",
    "args",
    "let",
    "expect",
    "rtol",
    "atol",
    "order",
    "timeout",
    "memory",
    "include",
    "define",
    "std",
    "arch",
    "in:",
    "out:",
    "inout:",
    "f32",
    "float4",
    "Node",
    "[n]",
    "[n, 4]",
    "=random",
    "=random(0, 1)",
    "=arange",
    "=@a.safetensors[x]",
    "random:7",
    "starve",
    "8GiB",
    "sm_90a",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    ",",
    "=",
    "\"",
    "'",
    "\n",
    "true",
    "1979-05-27",
];

#[test]
fn launches() {
    let loader =
        Loader { name: "launch", file: "in.toml", words: LAUNCH, line: 600, ..Loader::PLAIN };
    loader.fuzz(|path| {
        let launch =
            lab_checker::kernel::written_launch(path).map_err(|f| f.message().to_owned())?;
        assert!((1..=3).contains(&launch.grid.len()) && (1..=3).contains(&launch.block.len()));
        // The same in the other format.
        let text = std::fs::read_to_string(path).expect("it was read");
        // A table knows no number beyond 63 bits.
        let Ok(value) = toml::from_str::<toml::Table>(&text) else { return Ok(()) };
        let value = serde_json::to_string(&value).expect("values");
        let again = path.with_extension("json");
        if !value.contains("$__toml_private_datetime") {
            std::fs::write(&again, value).expect("a file");
            let other =
                lab_checker::kernel::written_launch(&again).map_err(|f| f.message().to_owned());
            assert_eq!(format!("{:?}", other.expect("as TOML")), format!("{launch:?}"));
        }
        Ok(())
    });
}

/// The format that `lab_app` describes, from what was understood.
fn argument_text(argument: &lab_app::Argument) -> String {
    use lab_app::{Fill, Value};
    let value = match &argument.value {
        Value::Expression(text) => text.clone(),
        Value::Buffer(buffer) => {
            let shape =
                buffer.shape.as_ref().map_or(String::new(), |s| format!("[{}]", s.join(", ")));
            let fill = match &buffer.fill {
                None => String::new(),
                Some(Fill::Random { low, .. }) if low.is_nan() => "=random".into(),
                Some(Fill::Random { low, high }) => format!("=random({low}, {high})"),
                Some(Fill::Arange) => "=arange".into(),
                Some(Fill::Constant(value)) => format!("={value}"),
                Some(Fill::File(name)) => format!("={name}"),
                Some(Fill::Each(each)) => format!("={each}"),
            };
            format!("{}:{}{shape}{fill}", buffer.role.name(), buffer.element.cpp)
        }
    };
    argument.name.as_ref().map_or(value.clone(), |name| format!("{name}= {value}"))
}

#[test]
fn arguments() {
    let loader =
        Loader { name: "argument", file: "in.txt", words: LAUNCH, line: 600, ..Loader::PLAIN };
    loader.fuzz(|path| {
        let text = lab_device::emulator::read_text(path).map_err(said)?;
        let argument = lab_app::Argument::parse("--arg", &text).map_err(said)?;
        let again =
            lab_app::Argument::parse("--arg", &argument_text(&argument)).expect("its own text");
        let parts = |a: &lab_app::Argument| format!("{:?} {:?}", a.name, a.value);
        assert_eq!(parts(&again), parts(&argument));
        Ok(())
    });
}

const LINE: &[&str] = &[
    "run",
    "check",
    "lstm",
    "mlp",
    "lm",
    "train",
    "test",
    "eval",
    "info",
    "generate",
    "new",
    "bench",
    "tune",
    "history",
    "--json",
    "--help",
    "--version",
    "--device",
    "emulator",
    "cuda:0",
    "auto",
    "--shape",
    "--dtype",
    "f32",
    "bf16",
    "--seed",
    "--set",
    "--input",
    "--warm-up",
    "--hidden",
    "--epochs",
    "--batch",
    "--window",
    "--lr",
    "--schedule",
    "step",
    "cosine",
    "--decay-every",
    "--data",
    "sine",
    "--out",
    "--part",
    "1/4",
    "--",
    "-",
    "=",
    "\n",
    "\n--json\n",
    "playg:saxpy",
    "matmul",
    "qkv_v1",
    "a=1",
    "N=4",
    "B=1,NH=1,S=4",
    "k.cu",
    "--kernel",
    "--arg",
    "--layers",
    "--cell",
    "gru",
    "slstm",
    "--heads",
    "--width",
    "--blocks",
    "--vocabulary",
    "--steps",
    "--held-out",
    "18446744073709551615",
    "--optimizer",
    "sgd",
    "99999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999999",
];

#[test]
fn command_line() {
    // The parser alone takes hundreds of KiB.
    let loader = Loader {
        name: "command-line",
        file: "in.txt",
        words: LINE,
        memory: 8 << 20,
        line: 620,
        ..Loader::PLAIN
    };
    loader.fuzz(|path| {
        let bytes = std::fs::read(path).expect("the input");
        let mut words = vec![OsString::from("lab")];
        words.extend(bytes.split(|b| *b == b'\n').map(|w| OsString::from_vec(w.to_vec())));
        match lab::loaders::command_line(&words) {
            Ok(()) => Ok(()),
            // Help has lines.
            Err((0, text)) => {
                assert!(text.contains("Usage: ") || text.starts_with("lab "), "{text}");
                Ok(())
            }
            Err((code, message)) => {
                assert!(code == 2, "{code}: {message}");
                Err(message)
            }
        }
    });
}

/// The files of the corpus that no editor can make are as they are written today. For a new format
/// `LAB_WRITE_CORPUS=1 cargo test -p lab-fuzz corpus` writes them anew.
#[test]
fn the_corpus_is_as_it_is_written() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    if std::env::var_os("LAB_WRITE_CORPUS").is_some() {
        return write_corpus(&corpus);
    }
    let fresh = tempfile::tempdir().expect("a temporary directory");
    write_corpus(fresh.path());
    let entries = |folder: &Path| {
        std::fs::read_dir(folder).expect("a folder").map(|e| e.expect("an entry").path())
    };
    let mut compared = 0;
    for file in entries(fresh.path()).flat_map(|folder| entries(&folder).collect::<Vec<_>>()) {
        let name = file.strip_prefix(fresh.path()).expect("it lies there");
        let same = std::fs::read(&file).ok() == std::fs::read(corpus.join(name)).ok();
        assert!(same, "{}: LAB_WRITE_CORPUS=1 cargo test -p lab-fuzz corpus", name.display());
        compared += 1;
    }
    assert_eq!(compared, 18);
}

fn write_corpus(corpus: &Path) {
    use lab_harness::progress::{COUNTS, NUMBERS, STEP, TAKEN};
    use lab_lstm::training as lstm;
    use lab_mlp::training as mlp;

    let at = |folder: &str, name: &str| {
        let folder = corpus.join(folder);
        std::fs::create_dir_all(&folder).expect("a folder");
        folder.join(format!("good-{name}.safetensors"))
    };
    let all = tensor::tensors([
        ("x", Tensor::new(&[2, 2], &[1f32, -2.0, 0.5, f32::NAN])),
        ("y", Tensor::new(&[3], &[1u8, 2, 255])),
        ("none", Tensor::new::<f64>(&[0, 3], &[])),
        ("scalar", Tensor::new(&[], &[7i64])),
    ]);
    tensor::write(&at("safetensors", "four"), &all).expect("a file");
    let notes = BTreeMap::from([("seed".to_owned(), "3 \"ä\"\n".to_owned())]);
    tensor::write_with_notes(&at("safetensors", "notes"), &all, &notes).expect("a file");

    fn zeros(of: &Tensors) -> Tensors {
        of.iter()
            .map(|(n, t)| (n.clone(), Tensor::rounded(t.dtype, &t.shape, &vec![0.0; t.len()])))
            .collect()
    }
    fn counts(position: lab_training::Position) -> Vec<i64> {
        let mut all = vec![0; 2 * COUNTS];
        all[COUNTS + STEP] = position.step as i64;
        all[COUNTS + TAKEN] = (position.epoch * position.steps_per_epoch + position.step) as i64;
        all
    }
    fn lstm_of(
        network: lstm_fused::Network,
        text: bool,
        notes: &[(&str, &str)],
        position: lab_training::Position,
    ) -> lstm::Checkpoint {
        let model =
            if text { lstm::Model::characters(network) } else { lstm::Model::forecast(network) };
        let config = lstm::Config { window: if text { 32 } else { 20 }, ..lstm::Config::default() };
        let parameters = model.initial(lab_device::DType::F32, 1);
        lstm::Checkpoint {
            model,
            config,
            position,
            first: zeros(&parameters),
            second: zeros(&parameters),
            states: Tensors::new(),
            parameters,
            notes: notes.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect(),
            counts: counts(position),
            numbers: vec![1.0; 2 * NUMBERS],
            losses: vec![0.5; position.step],
            digest: "0".into(),
        }
    }
    let network = |cell, inputs| lstm_fused::Network {
        cell,
        inputs,
        hidden: 1,
        layers: 1,
        bidirectional: false,
        bias: true,
        peephole: false,
        layer_norm: None,
    };
    let middle = lab_training::Position { epoch: 1, step: 2, steps_per_epoch: 3 };
    let cells = [
        ("lstm", lstm_fused::Cell::Lstm),
        ("gru", lstm_fused::Cell::Gru),
        ("slstm", lstm_fused::Cell::Slstm { heads: 1 }),
    ];
    for (name, cell) in cells {
        let path = at("lstm-checkpoint", name);
        lstm_of(network(cell, 1), false, &[("note", "a \"text\"")], middle)
            .write(&path)
            .expect("a file");
    }
    let settings = |data: &str, window: usize, loss: &str| {
        serde_json::json!({
            "data": data, "column": null, "frequency": 1.0, "validation_share": 0.1, "test_share": 0.1,
            "window": window, "stride": 1, "cell": "lstm", "hidden": 1, "layers": 1, "bidirectional": false,
            "peephole": false, "layer_norm": false, "dropout": 0.0, "batch": 16, "epochs": 3, "patience": 10,
            "optimizer": "adam", "lr": 0.003, "momentum": 0.9, "weight_decay": 0.0, "clip": 1.0,
            "schedule": "cosine", "decay_every": 30, "decay_factor": 0.3, "warm_up": 0, "dtype": "f32",
            "recompute": false, "seed": 0, "loss": loss,
        })
        .to_string()
    };
    let (series, text) = (settings("a.csv", 20, "mse"), settings("a.txt", 32, "cross-entropy"));
    let notes = [("settings", &series[..]), ("scale", "1.5 2"), ("losses", "0.5 0.25\n")];
    let model = lstm_of(network(lstm_fused::Cell::Lstm, 1), false, &notes, middle);
    model.write(&at("lstm-model", "series")).expect("a file");
    let notes = [("settings", &text[..]), ("vocabulary", "e\nä"), ("losses", "0.5\n")];
    let model = lstm_of(network(lstm_fused::Cell::Lstm, 3), true, &notes, middle);
    model.write(&at("lstm-model", "text")).expect("a file");

    let mlp_of = |optimizer, notes: &[(&str, &str)]| {
        let model = mlp::Model { vocabulary: 3, embedding: 1, hidden: 2 };
        let config = mlp::Config { optimizer, ..mlp::Config::default() };
        let parameters = model.initial(1);
        let none = optimizer == lab_training::Optimizer::sgd(0.0);
        let moments = if none { Tensors::new() } else { zeros(&parameters) };
        mlp::Checkpoint {
            model,
            config,
            position: middle,
            parameters,
            notes: notes.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect(),
            first: moments.clone(),
            second: moments,
            states: Tensors::new(),
            counts: counts(middle),
            numbers: vec![1.0; 2 * NUMBERS],
            losses: vec![0.5; middle.step],
            digest: "0".into(),
        }
    };
    let optimizers =
        [("sgd", lab_training::Optimizer::sgd(0.0)), ("adam", lab_training::Optimizer::adam())];
    for (name, optimizer) in optimizers {
        mlp_of(optimizer, &[("note", "")]).write(&at("mlp-checkpoint", name)).expect("a file");
    }
    let settings = |tokens: &str| {
        serde_json::json!({
            "text": "a.txt", "tokens": tokens, "max_vocab": 5000, "held_out": 0.1, "embed": 1, "hidden": 2, "epochs": 5,
            "batch": 32, "optimizer": "adam", "lr": null, "schedule": "cosine", "clip": 0.0, "dtype": "f32", "seed": 0,
        })
        .to_string()
    };
    for (name, tokens) in
        [("words", "[\"words\",[\"the\",\"ä\"]]"), ("bytes", "[\"bytes\",[\"101\",\"255\"]]")]
    {
        let settings = settings(name);
        let notes = [("settings", &settings[..]), ("vocabulary", tokens), ("losses", "0.5 0.25\n")];
        let model = mlp_of(lab_training::Optimizer::adam(), &notes);
        model.write(&at("mlp-model", name)).expect("a file");
    }
    let lm_of = |model: lab_lm::Model, config, notes: &[(&str, &str)]| {
        let parameters = zeros(&model.parameters().initial(1));
        lab_lm::Checkpoint {
            model,
            config,
            position: middle,
            first: parameters.clone(),
            second: parameters.clone(),
            states: Tensors::new(),
            parameters,
            notes: notes.iter().map(|(n, t)| ((*n).to_owned(), (*t).to_owned())).collect(),
            counts: counts(middle),
            numbers: vec![1.0; 2 * NUMBERS],
            losses: vec![0.5; middle.step],
            digest: "0".into(),
        }
    };
    let model = lab_lm::Model {
        vocabulary: 1,
        width: 16,
        heads: 1,
        blocks: 1,
        keys: 16,
        values: 16,
        hidden: 8,
        ..lab_lm::Model::xlstm(1, 16, 1, 1)
    };
    let half = lab_lm::Config {
        dtype: lab_device::DType::BF16,
        clip: None,
        schedule: lab_lm::Schedule {
            rate: 1e-3,
            warm_up: 2,
            decay: lab_lm::Decay::Cosine { steps: 9, min: 1e-4 },
        },
        ..lab_lm::Config::default()
    };
    for (name, config) in [("f32", lab_lm::Config::default()), ("bf16", half)] {
        let checkpoint = lm_of(model, config, &[("note", "")]);
        checkpoint.write(&at("lm-checkpoint", name)).expect("a file");
    }
    let mixed = lab_lm::Model { heads: 2, blocks: 2, tied: true, ..model }
        .with_mixers("1 attention : 1 lstm".parse().expect("a pattern"), Some(1));
    let mixed = lm_of(mixed, lab_lm::Config::default(), &[]);
    mixed.write(&at("lm-checkpoint", "mixed")).expect("a file");
    let folder = corpus.join("tokens");
    std::fs::create_dir_all(&folder).expect("a folder");
    for (name, vocabulary) in [("two-bytes", 300), ("four-bytes", 70_000)] {
        let ids = vec![1, vocabulary - 1, 5, 0];
        let tokens = lab_lm::TokenFile { vocabulary: vocabulary as usize, bytes: 9, ids };
        tokens.write(&folder.join(format!("good-{name}.tokens"))).expect("a file");
    }
    let settings = serde_json::json!({
        "texts": ["a.txt", "ä"], "held_out": 0.05, "steps": 9, "lr": 0.003, "warm_up": 50, "schedule": "cosine",
        "weight_decay": 0.1, "clip": 1.0, "seed": 0,
        "sizes": {
            "width": 32, "heads": 1, "blocks": 1, "vocabulary": 1, "window": 128, "batch": 8, "dtype": "auto",
        },
    })
    .to_string();
    let looks = r#"[{"step":1,"loss":5.5,"held_out":null},{"step":3,"loss":0.5,"held_out":0.25}]"#;
    // Stopped between two looks, with losses of the steps since then.
    let notes = [("settings", &settings[..]), ("looks", looks), ("losses", "[0.5,0.25]")];
    let model = lab_lm::Model::xlstm(1, 32, 1, 1);
    let stopped = lm_of(model, lab_lm::Config::default(), &notes);
    stopped.write(&at("lm-model", "stopped")).expect("a file");
    let (mut writer, parameters) = writer();
    let logits = writer.read(&[1, 2, 0]).expect("logits");
    let saved = lab_lm::SavedState::of(&writer, &parameters, &[1, 2, 0], &logits);
    saved.expect("a state").write(&at("lm-state", "mixed")).expect("a file");
}
