//! `lab lm`: trained, stopped and gone on with, judged, asked for logits, made to write; and what it refuses.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab_device::DType;
use lab_harness::tensor::{self, tensors};
use lab_harness::{Tensor, Tensors};
use serde_json::Value;

/// In a directory of its own, on the emulator.
struct Lab(tempfile::TempDir);

const TEXT: &str = "the quick brown fox jumps over a lazy dog.\n";

/// 86532 parameters.
const SMALL: &str = "--width 64 --heads 2 --blocks 1 --window 16 --batch 2";

/// Where many steps are taken.
const TINY: &str = "--width 32 --heads 1 --blocks 1 --vocabulary 128 --window 16 --batch 1";

impl Lab {
    fn new() -> Self {
        let lab = Self(tempfile::tempdir().unwrap());
        lab.write("t.txt", TEXT.repeat(8).as_bytes());
        lab
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.at(name)).unwrap()
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.at(name), bytes).unwrap();
    }

    fn files(&self) -> Vec<(PathBuf, Option<Vec<u8>>)> {
        let entries = std::fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().path());
        let mut all: Vec<_> = entries.map(|p| (p.clone(), std::fs::read(p).ok())).collect();
        all.sort();
        all
    }

    fn command(&self, arguments: &str) -> Command {
        let mut lab = Command::new(assert_cmd::cargo::cargo_bin("lab"));
        lab.env_remove("LAB_DEVICE").current_dir(&self.0).args(["--device", "emulator", "lm"]);
        lab.args(arguments.split(' '));
        lab
    }

    /// What it says on stdout; it must succeed.
    #[track_caller]
    fn says(&self, arguments: &str) -> Vec<u8> {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// One object, and nothing beside it.
    #[track_caller]
    fn json(&self, arguments: &str) -> Value {
        let said = self.says(&format!("{arguments} --json"));
        let value: Value = serde_json::from_slice(&said).unwrap();
        assert!(value.is_object(), "{value}");
        value
    }

    /// It must end with 2, say this on one line, and leave all files as they were.
    #[track_caller]
    fn refuses(&self, arguments: &str, said: &str) {
        self.refused(&mut self.command(arguments), said);
    }

    #[track_caller]
    fn refused(&self, command: &mut Command, said: &str) {
        let before = self.files();
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{command:?}: {text}");
        let line = text.lines().last().unwrap_or_default();
        assert!(line.starts_with("lab: ") && line.contains(said), "{command:?}: '{said}': {text}");
        assert!(self.files() == before, "{command:?}: a refusal writes nothing");
    }
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("a number, not {value}"))
}

#[test]
fn a_language_model_is_trained_judged_and_writes() {
    let lab = Lab::new();
    let options = format!("{SMALL} --steps 8 --look-every 4 --lr 0.02 --warm-up 0");
    let report = lab.json(&format!("train t.txt {options} --out m.safetensors"));
    assert_eq!((&report["bytes"], &report["steps"]), (&(8 * TEXT.len()).into(), &8.into()));
    assert_eq!(report["parameters"], 86532, "{report}");
    let looks = report["looks"].as_array().unwrap();
    let steps: Vec<&Value> = looks.iter().map(|look| &look["step"]).collect();
    assert_eq!(steps, [4, 8], "{report}");
    for loss in ["loss", "held_out"] {
        assert!(number(&looks[1][loss]) < 0.7 * number(&looks[0][loss]), "{loss}: {report}");
    }
    for file in report["files"].as_array().unwrap() {
        assert!(!lab.read(file.as_str().unwrap()).is_empty(), "{file}");
    }
    let lines = String::from_utf8(lab.read("m.log.jsonl")).unwrap();
    let lines: Vec<Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(&lines, looks);
    let curve = String::from_utf8(lab.read("m.loss.svg")).unwrap();
    let curve = roxmltree::Document::parse(&curve).unwrap();
    let words: Vec<&str> = curve.descendants().filter_map(|n| n.text()).map(str::trim).collect();
    assert!(words.contains(&"held out") && words.contains(&"bits a byte of m"), "{words:?}");

    // The same bytes again.
    lab.says(&format!("train t.txt {options} --out again.safetensors"));
    assert!(lab.read("again.safetensors") == lab.read("m.safetensors"), "another model");

    let judged = lab.json("eval m.safetensors t.txt");
    let [loss, bits] = ["loss", "bits_a_byte"].map(|name| number(&judged[name]));
    assert!((bits - loss / 2f64.ln()).abs() < 1e-12, "{judged}");
    // Of what it was trained on, or nearly.
    assert!(loss < number(&looks[0]["loss"]), "{judged}");
    assert_eq!((&judged["judged"], &judged["window"]), (&(21 * 16).into(), &16.into()), "{judged}");
    let said = String::from_utf8(lab.says("eval m.safetensors t.txt")).unwrap();
    assert!(said.contains(" bits a byte, over 336 bytes in windows of 16"), "{said}");

    let wrote = |options: &str| {
        lab.says(&format!("generate m.safetensors --prompt fox --length 12 {options}"))
    };
    let first = wrote("--temperature 1 --seed 1");
    assert!(first.starts_with(b"fox") && first.ends_with(b"\n"), "{first:?}");
    assert_eq!(first.len(), 3 + 12 + 1);
    assert_eq!(first, wrote("--temperature 1 --seed 1"));
    assert_ne!(first, wrote("--temperature 1 --seed 2"));
    // The likeliest is the same for every seed.
    assert_eq!(wrote("--temperature 0 --seed 1"), wrote("--top-k 1 --seed 2"));
    let object = lab.json("generate m.safetensors --prompt fox --length 12 --temperature 0");
    let text = format!("fox{}\n", object["text"].as_str().unwrap());
    assert_eq!(text.as_bytes(), wrote("--temperature 0"));

    let facts = lab.json("info m.safetensors");
    assert_eq!(facts["parameters"], 86532, "{facts}");
    assert_eq!((&facts["model"]["keys"], &facts["config"]["window"]), (&16.into(), &16.into()));
    let said = String::from_utf8(lab.says(&format!("info {SMALL}"))).unwrap();
    assert!(said.starts_with("86532 parameters: 1 blocks of width 64, 2 heads of 16"), "{said}");

    let times = lab.json(&format!("profile {TINY} --runs 1"));
    let rows = times["rows"].as_array().unwrap();
    let launches: u64 = rows.iter().map(|row| row["launches"].as_u64().unwrap()).sum();
    assert_eq!(times["launches"], launches, "{times}");
    assert!(rows.iter().any(|row| row["kernel"].as_str().unwrap().starts_with("adamw<float>")));
}

/// A token that is no byte is never drawn.
#[test]
fn a_language_model_of_more_tokens_than_bytes_writes_bytes() {
    let lab = Lab::new();
    let sizes = TINY.replace("128", "1024");
    lab.says(&format!("train t.txt {sizes} --steps 1 --warm-up 0 --out m.safetensors"));
    let wrote = lab.says("generate m.safetensors --length 20 --temperature 1000");
    assert_eq!(wrote.len(), 1 + 20 + 1);
}

#[test]
fn a_language_model_in_training_goes_on_as_if_it_never_stopped() {
    let lab = Lab::new();
    // Killed wherever it was, several times.
    let options = format!("train t.txt {TINY} --steps 8 --look-every 1 --keep-every 1 --seed 3");
    lab.says(&format!("{options} --out whole.safetensors"));
    let killed = format!("{options} --out killed.safetensors");
    let mut next = lab.command(&killed);
    let mut kills = 0;
    loop {
        let before = std::fs::read(lab.at("killed.safetensors")).ok();
        let mut child = next.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let start = Instant::now();
        let ended = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            let now = std::fs::read(lab.at("killed.safetensors")).ok();
            if kills < 3 && now.is_some() && now != before {
                std::thread::sleep(Duration::from_millis(7 * kills));
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            assert!(start.elapsed() < Duration::from_secs(120), "no progress");
            std::thread::sleep(Duration::from_millis(1));
        };
        match ended {
            Some(status) => break assert!(status.success(), "{status}"),
            None => kills += 1,
        }
        next = lab.command(&format!("{killed} --resume"));
    }
    assert!(kills >= 2, "{kills} kills");
    for file in ["safetensors", "log.jsonl"] {
        let [whole, killed] = ["whole", "killed"].map(|name| lab.read(&format!("{name}.{file}")));
        assert!(whole == killed, "{file} differs");
    }
    // There is nothing left to do.
    let report = lab.json(&format!("{killed} --resume"));
    assert_eq!((&report["steps"], &report["resumed"]), (&8.into(), &true.into()), "{report}");
    assert!(lab.read("whole.safetensors") == lab.read("killed.safetensors"));

    lab.refuses(&format!("{killed} --resume --lr 0.5"), "--lr: expected 0.003, as it was begun");
    let other = killed.replace("--window 16", "--window 8");
    lab.refuses(&format!("{other} --resume"), "--window: expected 16, as it was begun, got 8");
    lab.write("u.txt", TEXT.as_bytes());
    let other = killed.replace("t.txt", "u.txt");
    lab.refuses(&format!("{other} --resume"), "TEXT: expected [\"t.txt\"], as it was begun, got");
    lab.write("t.txt", TEXT.to_uppercase().repeat(8).as_bytes());
    let said = "data and windows: expected those that it was taken with";
    lab.refuses(&format!("{killed} --resume"), said);
}

/// A window that begins with several documents, and rows that are streams; what cannot be is refused by its mixer.
#[test]
fn a_language_model_is_trained_on_documents_and_on_streams() {
    let lab = Lab::new();
    lab.write("u.txt", TEXT.to_uppercase().repeat(8).as_bytes());
    let report = lab.json("tokenize t.txt u.txt --end-of-text 256 --out two.tokens");
    let tokens = 2 * (8 * TEXT.len() + 1);
    assert_eq!((&report["tokens"], &report["vocabulary"]), (&tokens.into(), &257.into()));
    lab.refuses(
        "tokenize t.txt --end-of-text=-1 --out no.tokens",
        "--end-of-text: expected 0 to 1073741823, got -1",
    );

    let sizes = TINY.replace("128", "257");
    let options = format!("two.tokens {sizes} --steps 3 --warm-up 0 --end-of-text 256");
    lab.says(&format!("train {options} --out m.safetensors"));
    // Its evaluation begins anew there as well.
    lab.json("eval m.safetensors two.tokens");
    let wrong = format!("train {options} --mixer attention --out no.safetensors");
    lab.refuses(
        &wrong,
        "expected vlstm alone, whose forget gate shuts where a document begins, got",
    );

    let streams = format!("train t.txt {TINY} --steps 2 --warm-up 0 --carry-state");
    let report = lab.json(&format!("{streams} --mixer slstm --out s.safetensors"));
    assert!(number(&report["seconds_before"]["first step"]) > 0.0, "{report}");
    let all = tensor::read(&lab.at("s.safetensors")).unwrap();
    let kept = |name: &str| all[&format!("training.state.state.0.{name}")].values();
    assert!(["h", "c", "n", "m"].into_iter().all(|name| kept(name).iter().any(|v| *v != 0.0)));
    lab.says(&format!("{streams} --mixer slstm --out s.safetensors --resume"));
    lab.says(&format!("{streams} --dtype bf16 --out v.safetensors"));
    for (options, said) in [
        ("--mixer attention", "none that keeps all positions, as attention does, got attention"),
        ("--dtype f32", "bf16: in f32 no version of the vLSTM leaves its state, got f32"),
        (
            "--mixer lstm --batch 40",
            "windows to train on: expected at least 40, one of each stream",
        ),
    ] {
        let command =
            format!("{} {options} --out no.safetensors", streams.replace("--batch 1", ""));
        lab.refuses(&command.replace("  ", " "), said);
    }
}

/// A person's Ctrl-C loses no step, and no loss of the steps since the last look.
#[test]
fn a_language_model_whose_training_is_interrupted_keeps_where_it_stands() {
    let lab = Lab::new();
    let options = format!("train t.txt {TINY} --steps 18 --look-every 18 --held-out 0");
    lab.says(&format!("{options} --out whole.safetensors"));
    let stopped = format!("{options} --out stopped.safetensors");
    let mut child = lab.command(&stopped).stderr(Stdio::piped()).spawn().unwrap();
    let start = Instant::now();
    // Written before the first step.
    while !lab.at("stopped.safetensors").exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "no state");
        std::thread::sleep(Duration::from_millis(1));
    }
    // Into the first steps.
    std::thread::sleep(Duration::from_millis(30));
    // SAFETY: a signal to a process of this test.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let status = child.wait().unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(status.signal(), Some(libc::SIGINT), "{said}");
    let known =
        ["0", "1", "17"].map(|n| format!("stopped behind step {n}; --resume goes on there"));
    assert!(known.iter().any(|known| said.contains(known)), "{said}");
    lab.says(&format!("{stopped} --resume"));
    for file in ["safetensors", "log.jsonl"] {
        let [whole, stopped] = ["whole", "stopped"].map(|name| lab.read(&format!("{name}.{file}")));
        assert!(whole == stopped, "{file} differs");
    }
}

/// The loss of `eval` is that of the logits, and the likeliest of them is what is written.
#[test]
fn logits_of_a_language_model_are_those_it_is_judged_by() {
    let lab = Lab::new();
    lab.says(&format!("train t.txt {TINY} --steps 3 --lr 0.02 --warm-up 0 --out m.safetensors"));
    let text = &TEXT.as_bytes()[..33];
    lab.write("two.txt", text);
    let ids: Vec<i32> = text[..32].iter().map(|&byte| i32::from(byte)).collect();
    let write = |name: &str, all: &Tensors| tensor::write(&lab.at(name), all).unwrap();
    write("in.safetensors", &tensors([("ids", Tensor::new(&[2, 16], &ids))]));
    let ask = "logits m.safetensors --input in.safetensors --output out.safetensors";
    let report = lab.json(ask);
    assert_eq!(
        (&report["file"], &report["logits"]),
        (&"out.safetensors".into(), &"f32 [2, 16, 128]".into())
    );
    let logits = tensor::read(&lab.at("out.safetensors")).unwrap();
    let logits = &logits["logits"];
    assert_eq!(logits.describe(), "f32 [2, 16, 128]");
    let logits = logits.values();
    assert!(logits.iter().all(|v| v.is_finite()));
    let rows: Vec<&[f64]> = logits.chunks(128).collect();
    let losses = rows.iter().zip(&text[1..]).map(|(row, &target)| {
        row.iter().map(|v| v.exp()).sum::<f64>().ln() - row[usize::from(target)]
    });
    let mean = losses.sum::<f64>() / 32.0;
    let judged = lab.json("eval m.safetensors two.txt");
    assert!((mean - number(&judged["loss"])).abs() < 1e-5, "{mean}: {judged}");
    let likeliest = (0..128).max_by(|&a, &b| rows[2][a].total_cmp(&rows[2][b])).unwrap();
    let wrote = lab.says("generate m.safetensors --prompt the --length 1 --temperature 0");
    assert_eq!(wrote, [b't', b'h', b'e', likeliest as u8, b'\n']);

    let said = lab.says(ask);
    assert!(said.starts_with(b"wrote logits f32 [2, 16, 128] to out.safetensors"));
    std::fs::remove_file(lab.at("out.safetensors")).unwrap();
    let float = Tensor::new(&[2, 16], &[1f32; 32]);
    for (ids, got) in [
        (None, "got none"),
        (Some(float), "got f32 [2, 16]"),
        (Some(Tensor::new::<i32>(&[0, 4], &[])), "got i32 [0, 4]"),
        (Some(Tensor::new(&[4], &[1i32; 4])), "got i32 [4]"),
    ] {
        let mut all = tensors([("x", Tensor::new(&[1], &[1i32]))]);
        all.extend(ids.map(|t| ("ids".to_owned(), t)));
        write("bad.safetensors", &all);
        let said = format!("tensor 'ids': expected i32 [B, S], neither of them 0, {got}");
        lab.refuses(&ask.replace("in.saf", "bad.saf"), &said);
    }
    for unknown in [-1, 128] {
        write("bad.safetensors", &tensors([("ids", Tensor::new(&[1, 2], &[1, unknown]))]));
        let said = format!("token 1 of the data: expected 0 to 127, got {unknown}");
        lab.refuses(&ask.replace("in.saf", "bad.saf"), &said);
    }
    lab.refuses(&ask.replace("in.saf", "none.saf"), "none.safetensors: No such file");
    lab.refuses(&ask.replace("out.saf", "no/out.saf"), "no/out.safetensors: No such file");

    // Models that are none.
    let whole = lab.read("m.safetensors");
    lab.write("cut.safetensors", &whole[..whole.len() - 9]);
    let mut changed = whole;
    *changed.last_mut().unwrap() ^= 1;
    lab.write("changed.safetensors", &changed);
    let mlp = ["--device", "emulator", "mlp", "train", "t.txt", "--out", "mlp.safetensors"];
    let mut mlp_lab = Command::new(assert_cmd::cargo::cargo_bin("lab"));
    mlp_lab.env_remove("LAB_DEVICE").current_dir(&lab.0).args(mlp);
    mlp_lab.args(["--epochs", "1", "--embed", "4", "--hidden", "4"]);
    assert!(mlp_lab.output().unwrap().status.success());
    for (model, said) in [
        ("none", "none.safetensors: No such file or directory"),
        ("cut", "cut.safetensors: expected a safetensors file"),
        ("changed", "changed.safetensors"),
        ("mlp", "metadata of mlp.safetensors: expected 'lm', which a checkpoint has, got none"),
        ("in", "metadata of in.safetensors: expected 'lm'"),
    ] {
        for rest in ["eval MODEL t.txt", "generate MODEL", "info MODEL"] {
            lab.refuses(&rest.replace("MODEL", &format!("{model}.safetensors")), said);
        }
        lab.refuses(&ask.replace("m.saf", &format!("{model}.saf")), said);
    }
    let resumed = format!("train t.txt {TINY} --out mlp.safetensors --resume");
    lab.refuses(&resumed, "metadata of mlp.safetensors: expected 'lm'");

    // What a good one does not do.
    lab.write("short.txt", &text[..16]);
    for (arguments, said) in [
        (
            "eval m.safetensors short.txt",
            "expected at least 17, a window and its last target, got 16",
        ),
        ("eval m.safetensors none.txt", "none.txt: No such file or directory"),
        ("generate m.safetensors --prompt ", "--prompt: expected one byte at least, got none"),
        ("generate m.safetensors --prompt ä", "token: expected 0 to 127, got 195"),
        ("generate m.safetensors --temperature -1", "temperature: expected a number from 0"),
        ("generate m.safetensors --top-p 0", "top-p: expected above 0 and at most 1, got 0"),
        ("generate m.safetensors --repetition 0.5", "repetition: expected a number from 1"),
    ] {
        lab.refuses(arguments, said);
    }
}

/// What transformers has written, and its logits: see the script beside them.
const RECORDED: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../models/lm/recorded/transformers_xlstm");

fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().map(f64::abs).fold(0.0, f64::max)
}

#[test]
fn a_language_model_of_transformers_gives_the_logits_that_it_gave_there() {
    let lab = Lab::new();
    let recorded = tensor::read(&Path::new(RECORDED).join("logits.safetensors")).unwrap();
    let expected = recorded["logits"].values();
    let input = format!("--input {RECORDED}/logits.safetensors --output out.safetensors");
    let logits_of = |model: &str| {
        lab.says(&format!("logits {model} {input}"));
        tensor::read(&lab.at("out.safetensors")).unwrap()["logits"].values()
    };
    let first = logits_of(RECORDED);
    assert_eq!(first.len(), expected.len());
    let error = largest(first.iter().zip(&expected).map(|(a, b)| a - b));
    assert!(error <= 1e-5 * largest(expected.iter().copied()), "{error}");

    // By other ways the same bytes: a state dict of xlstm_large, a directory again, and one in pieces, in halves.
    let said = lab.json(&format!("convert {RECORDED} --out large.safetensors"));
    assert_eq!((&said["format"], &said["parameters"]), (&"xlstm_large".into(), &29_992.into()));
    lab.says("convert large.safetensors --out again");
    let weights = |name: &str| tensor::read(&lab.at(name)).unwrap();
    let same = tensor::read(&Path::new(RECORDED).join("model.safetensors")).unwrap();
    assert!(weights("again/model.safetensors") == same, "other weights");
    assert!(weights("large.safetensors").contains_key("embedding.weight"));
    for model in ["large.safetensors", "again"] {
        assert!(logits_of(model) == first, "{model}");
    }
    std::fs::create_dir(lab.at("pieces")).unwrap();
    std::fs::copy(lab.at("again/config.json"), lab.at("pieces/config.json")).unwrap();
    let mut map = serde_json::Map::new();
    for n in 0..3 {
        let file = format!("{n}.safetensors");
        let own: Tensors = same
            .iter()
            .skip(n)
            .step_by(3)
            .map(|(name, t)| {
                map.insert(name.clone(), file.as_str().into());
                let halves = Tensor::rounded(DType::BF16, &t.shape, &t.values());
                (name.clone(), halves)
            })
            .collect();
        tensor::write(&lab.at(&format!("pieces/{file}")), &own).unwrap();
    }
    let index = serde_json::json!({ "metadata": { "total_size": 1 }, "weight_map": map });
    lab.write("pieces/model.safetensors.index.json", index.to_string().as_bytes());
    let widened = same.iter().map(|(name, t)| {
        let halves = Tensor::rounded(DType::BF16, &t.shape, &t.values());
        (name.clone(), Tensor::rounded(DType::F32, &t.shape, &halves.values()))
    });
    tensor::write(&lab.at("widened.safetensors"), &widened.collect()).unwrap();
    let halves = logits_of("pieces");
    assert!(halves != first && halves == logits_of("widened.safetensors"), "weights in bf16");

    let facts = lab.json(&format!("info {RECORDED}"));
    assert_eq!((&facts["parameters"], &facts["model"]["heads"]), (&29_992.into(), &2.into()));
    lab.write("ids.txt", &[1, 2, 3, 4, 5, 6, 7, 8, 36]);
    let said = lab.json("eval pieces ids.txt --window 4 --batch 3");
    assert_eq!((&said["judged"], &said["window"]), (&8.into(), &4.into()), "{said}");

    // What is none.
    let config = String::from_utf8(lab.read("again/config.json")).unwrap();
    let change = |from: &str, to: &str| {
        assert!(config.contains(from), "{from}");
        lab.write("again/config.json", config.replace(from, to).as_bytes());
    };
    for (from, to, said) in [
        (
            "\"use_bias\": false",
            "\"use_bias\": true",
            "use_bias of again/config.json: expected false, got true",
        ),
        (
            "\"num_heads\": 2",
            "\"num_heads\": 1",
            "igate_preact.weight': expected f32 [1, 32], got f32 [2, 32]",
        ),
        (
            "\"xlstm\"",
            "\"llama\", \"hidden_act\": \"gelu\"",
            "hidden_act of again/config.json: expected \"silu\", got \"gelu\"",
        ),
        ("{", "", "again/config.json: expected JSON"),
    ] {
        change(from, to);
        for rest in ["eval again t.txt", "generate again", "info again", "convert again --out n"] {
            lab.refuses(rest, said);
        }
    }
    change("{", "{");
    for (arguments, said) in [
        (
            "convert again --out pieces",
            "directory: expected a directory that is not there, or is empty, got pieces",
        ),
        ("convert again --out no/n", "no/n: No such file or directory"),
        ("convert again --out no/n.safetensors", "no/n.safetensors: No such file or directory"),
        ("eval again t.txt --window 0", "window: expected 1 to 1048576, got 0"),
        ("eval again t.txt", "token 0 of the data: expected 0 to 36, got 116"),
    ] {
        lab.refuses(arguments, said);
    }
    std::fs::remove_file(lab.at("again/model.safetensors")).unwrap();
    lab.refuses("info again", "again/model.safetensors: No such file or directory");
    std::fs::remove_file(lab.at("again/config.json")).unwrap();
    lab.refuses("info again", "again/config.json: No such file or directory");
}

/// Whose heads are wider than the stream over them, whose norms and angles are other than usual; there and back.
#[test]
fn a_llama_of_transformers_gives_the_logits_that_it_gave_there() {
    let lab = Lab::new();
    let recorded = RECORDED.replace("xlstm", "llama");
    let tensors_of = |path: &Path| tensor::read(path).unwrap();
    let expected = tensors_of(&Path::new(&recorded).join("logits.safetensors"))["logits"].values();
    let input = format!("--input {recorded}/logits.safetensors --output out.safetensors");
    let logits_of = |model: &str| {
        lab.says(&format!("logits {model} {input}"));
        tensors_of(&lab.at("out.safetensors"))["logits"].values()
    };
    let first = logits_of(&recorded);
    let error = largest(first.iter().zip(&expected).map(|(a, b)| a - b));
    assert!(error <= 1e-5 * largest(expected.iter().copied()), "{error}");

    let said = lab.json(&format!("convert {recorded} --out again"));
    assert_eq!((&said["format"], &said["parameters"]), (&"transformers".into(), &25_568.into()));
    let same = tensors_of(&Path::new(&recorded).join("model.safetensors"));
    assert!(tensors_of(&lab.at("again/model.safetensors")) == same, "other weights");
    assert!(logits_of("again") == first);
    let facts = lab.json(&format!("info {recorded}"));
    assert_eq!(facts["model"]["mixers"], "attention", "{facts}");
    assert_eq!((&facts["state_bytes"], &facts["cache_bytes_per_token"]), (&0.into(), &512.into()));
    let wrote = lab.says("generate again --prompt \u{1}\u{2} --length 20 --temperature 0");
    assert_eq!(wrote.len(), 2 + 20 + 1);
    let said = "mixer: expected vlstm, as xlstm_large has it, got attention";
    lab.refuses("convert again --out large.safetensors", said);

    let config = String::from_utf8(lab.read("again/config.json")).unwrap();
    for (from, to, said) in [
        (
            "\"num_key_value_heads\": 1",
            "\"num_key_value_heads\": 2",
            "k.weight': expected f32 [64, 32], got f32 [32, 32]",
        ),
        (
            "\"hidden_act\": \"silu\"",
            "\"hidden_act\": \"gelu\"",
            "hidden_act of again/config.json: expected \"silu\", got \"gelu\"",
        ),
    ] {
        assert!(config.contains(from), "{from}: {config}");
        lab.write("again/config.json", config.replace(from, to).as_bytes());
        lab.refuses("info again", said);
    }
}

/// One matrix in and out: as a Llama it stays one, elsewhere it is written twice.
#[test]
fn a_language_model_has_one_matrix_for_tokens_and_logits() {
    let lab = Lab::new();
    let ids: Vec<i32> = TEXT.bytes().take(32).map(i32::from).collect();
    let ids = tensors([("ids", Tensor::new(&[2, 16], &ids))]);
    tensor::write(&lab.at("in.safetensors"), &ids).unwrap();
    let logits = |model: &str| {
        lab.says(&format!("logits {model} --input in.safetensors --output l.safetensors"));
        lab.read("l.safetensors")
    };
    for (mixer, out, has_head) in [("attention", "llama", false), ("vlstm", "xlstm", true)] {
        let options = format!("{TINY} --mixer {mixer} --tied --steps 2 --warm-up 0");
        let report = lab.json(&format!("train t.txt {options} --out m.safetensors"));
        let apart = lab.json(&format!("info {TINY} --mixer {mixer}"));
        let saved = number(&apart["parameters"]) - number(&report["parameters"]);
        assert_eq!(saved.to_bits(), (128.0f64 * 32.0).to_bits(), "{report}");
        lab.says(&format!("convert m.safetensors --out {out}"));
        let weights = tensor::read(&lab.at(&format!("{out}/model.safetensors"))).unwrap();
        assert_eq!(weights.contains_key("lm_head.weight"), has_head, "{mixer}");
        assert!(logits(out) == logits("m.safetensors"), "{mixer}: other logits");
    }
}

/// All that a training may be told beside its sizes, and that it goes on with it; and to transformers and back.
#[test]
fn a_language_model_is_trained_in_parts_and_tells_how_it_goes() {
    let lab = Lab::new();
    let options = format!(
        "{TINY} --steps 6 --look-every 1 --warm-up 1 --schedule wsd --decay-steps 2 --accumulate 2 --dropout 0.2 --z-loss 0.001"
    );
    let asked = format!("train t.txt {options} --eval-every 3 --sample-every 3 --sample-length 5");
    let output =
        lab.command(&format!("{asked} --sample-prompt fox --out m.safetensors")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    // A sample follows its look.
    let lines: Vec<&str> = said.lines().collect();
    let behind = |step: &str| {
        let at = lines.iter().position(|line| line.starts_with(step)).expect("a look");
        lines.get(at + 1).copied().unwrap_or_default()
    };
    assert!(behind("step 2/6").starts_with("step 3/6"), "{said}");
    assert!(!behind("step 3/6").starts_with("step 4/6"), "{said}");
    let looks = String::from_utf8(lab.read("m.log.jsonl")).unwrap();
    let judged: Vec<bool> = looks
        .lines()
        .map(|line| !serde_json::from_str::<Value>(line).unwrap()["held_out"].is_null())
        .collect();
    assert_eq!(judged, [false, false, true, false, false, true]);

    let facts = lab.json("info m.safetensors");
    let config = &facts["config"];
    assert_eq!((&config["accumulate"], &config["dropout"]), (&2.into(), &0.2.into()), "{facts}");
    let decay = &config["schedule"]["decay"];
    assert_eq!((&decay["stable"], &decay["steps"]), (&3.into(), &2.into()), "{facts}");

    lab.says("convert m.safetensors --out m");
    let ids: Vec<i32> = TEXT.bytes().take(32).map(i32::from).collect();
    let ids = tensors([("ids", Tensor::new(&[2, 16], &ids))]);
    tensor::write(&lab.at("in.safetensors"), &ids).unwrap();
    for model in ["m", "m.safetensors"] {
        let model_out = format!("{model} --input in.safetensors --output {model}.logits");
        lab.says(&format!("logits {model_out}"));
    }
    assert!(lab.read("m.logits") == lab.read("m.safetensors.logits"), "other logits");

    for (options, said) in [
        ("--accumulate 0", "parts of a step: expected 1 to 1024, got 0"),
        ("--dropout 1", "dropout: expected 0 to below 1, got 1"),
        ("--z-loss -1", "z-loss: expected 0 to 1, got -1"),
        ("--decay-steps 2", "--decay-steps: expected --schedule wsd beside it, got another"),
        ("--schedule wsd --decay-steps 0", "--decay-steps: expected 1 to 1000, got 0"),
        ("--sample-prompt ", "--sample-prompt: expected one byte at least, got none"),
    ] {
        lab.refuses(&format!("train t.txt {TINY} {options} --out n.safetensors"), said);
    }
    let resumed = asked.replace("--accumulate 2", "--accumulate 1");
    let said = "--accumulate: expected 2, as it was begun, got its default";
    lab.refuses(&format!("{resumed} --out m.safetensors --resume"), said);
}

/// A block of each mixer: trained, gone on with, judged and made to write as the vLSTM alone is.
#[test]
fn a_language_model_has_the_mixers_that_it_is_told() {
    let lab = Lab::new();
    let sizes = "--width 64 --heads 2 --blocks 2 --vocabulary 128 --window 16 --batch 2";
    let mixers = format!("{sizes} --mixer vlstm:attention --kv-heads 1");
    let train = format!("train t.txt {mixers} --steps 4 --lr 0.02 --warm-up 0 --look-every 2");
    let report = lab.json(&format!("{train} --out whole.safetensors"));
    let looks = report["looks"].as_array().unwrap();
    assert!(number(&looks[1]["loss"]) < number(&looks[0]["loss"]), "{report}");
    assert_eq!(report["settings"]["sizes"]["mixer"], "1 vlstm : 1 attention", "{report}");
    let again = lab.json(&format!("{train} --out whole.safetensors --resume"));
    assert_eq!((&again["looks"], &again["resumed"]), (&report["looks"], &true.into()));

    let judged = lab.json("eval whole.safetensors t.txt");
    assert!(number(&judged["loss"]) < number(&looks[0]["loss"]), "{judged}");
    let wrote = lab.says("generate whole.safetensors --prompt fox --length 30 --temperature 0");
    assert_eq!(wrote.len(), 3 + 30 + 1);
    let facts = lab.json("info whole.safetensors");
    assert_eq!(facts["model"]["mixers"], "1 vlstm : 1 attention", "{facts}");
    // Of a token keys and values of one head of 32 columns; of the other block 2 heads of 16 keys and 32 values.
    let memory = (&facts["state_bytes"], &facts["cache_bytes_per_token"]);
    assert_eq!(memory, (&(4 * 2 * (16 * 32 + 16 + 1)).into(), &(4 * 2 * 32).into()), "{facts}");
    let said = String::from_utf8(lab.says("info whole.safetensors")).unwrap();
    let line = "  mixers: 1 vlstm : 1 attention; in attention 1 heads of keys and values";
    assert!(said.lines().any(|own| own == line), "{said}");
    let times = lab.json(&format!("profile {mixers} --runs 1"));
    let rows = times["rows"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["layer"] == "attention_layer"), "{times}");

    // What goes step by step.
    let steps = TINY.replace("--blocks 1", "--blocks 2 --mixer lstm:slstm");
    lab.says(&format!(
        "train t.txt {steps} --steps 2 --warm-up 0 --accumulate 2 --out steps.safetensors"
    ));
    let wrote = lab.says("generate steps.safetensors --prompt fox --length 20");
    assert_eq!(wrote.len(), 3 + 20 + 1);
    let facts = lab.json("info steps.safetensors");
    // h and c; h, c, n and m: of 32 units each.
    let memory = (&facts["state_bytes"], &facts["cache_bytes_per_token"]);
    assert_eq!(memory, (&(4 * 6 * 32).into(), &0.into()), "{facts}");

    let resumed = train.replace("vlstm:attention --kv-heads 1", "vlstm");
    for (arguments, said) in [
        (
            format!("{resumed} --out whole.safetensors --resume"),
            "--kv-heads: expected 1, as it was begun, got its default",
        ),
        (
            format!("{} --out whole.safetensors --resume", train.replace("vlstm:", "")),
            "--mixer: expected \"1 vlstm : 1 attention\", as it was begun, got \"attention\"",
        ),
        (
            "convert whole.safetensors --out n".to_owned(),
            "mixer: expected vlstm or attention alone, as transformers has them, got 1 vlstm : 1 attention",
        ),
        (
            "convert whole.safetensors --out n.safetensors".to_owned(),
            "mixer: expected vlstm, as xlstm_large has it, got 1 vlstm : 1 attention",
        ),
        (
            format!("train t.txt {sizes} --mixer gru --out n.safetensors"),
            "mixer: expected one of vlstm, attention, lstm, slstm, or at most 8 runs of them",
        ),
        (
            format!("train t.txt {sizes} --kv-heads 1 --out n.safetensors"),
            "heads of k and v: expected a mixer with attention, got none",
        ),
        (
            format!("train t.txt {mixers} --out n.safetensors").replace("heads 1", "heads 3"),
            "heads of k and v: expected a divisor of all heads, 2, got 3",
        ),
    ] {
        lab.refuses(&arguments, said);
    }
}

/// Files of tokens are what their texts are: the same model comes of them.
#[test]
fn a_language_model_is_trained_on_files_of_tokens() {
    let lab = Lab::new();
    std::fs::create_dir(lab.at("texts")).unwrap();
    lab.write("texts/a.txt", TEXT.repeat(3).as_bytes());
    lab.write("texts/b.txt", TEXT.repeat(5).as_bytes());
    let said = lab.json("tokenize texts --out t.tokens");
    let bytes = 8 * TEXT.len();
    assert_eq!((&said["bytes"], &said["tokens"]), (&bytes.into(), &bytes.into()), "{said}");
    assert_eq!((&said["vocabulary"], &said["texts"]), (&256.into(), &2.into()), "{said}");
    assert_eq!(lab.read("t.tokens").len(), 40 + 2 * bytes);

    // Tokens of bytes are of 256, so is the model.
    let train = format!("{} --steps 2 --warm-up 0", TINY.replace("128", "256"));
    let of_text = lab.json(&format!("train t.txt {train} --out text.safetensors"));
    let of_tokens = lab.json(&format!("train t.tokens {train} --out tokens.safetensors"));
    assert_eq!((&of_text["looks"], &of_text["bytes"]), (&of_tokens["looks"], &of_tokens["bytes"]));
    let judged = lab.json("eval text.safetensors t.txt");
    let again = lab.json("eval tokens.safetensors t.tokens");
    assert_eq!(
        (&judged["bits_a_byte"], &judged["bytes"]),
        (&again["bits_a_byte"], &again["bytes"])
    );

    lab.write("other.tokens", &lab.read("t.tokens"));
    lab.write("other.tokenizer.json", b"{}");
    lab.write("cut.tokens", &lab.read("t.tokens")[..99]);
    lab.write("empty.txt", b"");
    for (arguments, said) in [
        (
            "train t.tokens t.txt",
            "TEXT: expected texts alone, or files of tokens alone, got t.txt beside t.tokens",
        ),
        (
            "train t.tokens --vocabulary 255",
            "--vocabulary: expected at least 256, of which the tokens are, got 255",
        ),
        ("train cut.tokens", "length of cut.tokens: expected 728, of 344 tokens, got 99"),
        (
            "train t.tokens other.tokens",
            "TEXT: expected tokens of the tokenizer beside t.tokens, got other.tokens",
        ),
        (
            "train t.txt --out other.safetensors",
            "tokenizer: expected none beside other.safetensors, whose tokens are bytes",
        ),
        ("tokenize t.tokens", "TEXT: expected a text, got tokens, t.tokens"),
        ("tokenize none.txt", "none.txt: No such file or directory"),
        ("tokenize empty.txt", "tokens of the texts: expected 1 to 1073741824, got 0"),
        (
            "tokenize t.txt --out other.tokens",
            "tokenizer: expected no tokenizer beside other.tokens, whose tokens are bytes",
        ),
        ("tokenize t.txt --out no/t.tokens", "no/t.tokens: No such file or directory"),
        ("tokenize t.txt --bpe 300 --tokenizer t.json", "--tokenizer"),
    ] {
        let out = if arguments.contains("--out") { "" } else { " --out n.safetensors" };
        lab.refuses(&format!("{arguments}{out}"), said);
    }
    if cfg!(not(feature = "tokenizers")) {
        let end = "expected a lab with the feature 'tokenizers', got one without";
        lab.refuses(
            "tokenize t.txt --bpe 300 --out n.tokens",
            &format!("BPE of 300 tokens: {end}"),
        );
        lab.says(&format!("train other.tokens {train} --out n.safetensors"));
        assert_eq!(lab.read("n.tokenizer.json"), b"{}");
        let said = format!("tokenizer n.tokenizer.json: {end}");
        lab.refuses("generate n.safetensors --length 4", &said);
        lab.refuses("eval n.safetensors t.txt", &said);
        // Of tokens it need not make any.
        lab.says("eval n.safetensors t.tokens");
        lab.says("convert n.safetensors --out n");
        assert_eq!(lab.read("n/tokenizer.json"), b"{}");
    }
}

/// A tokenizer that was learnt here goes with the tokens, with the model, and with what is converted.
#[cfg(feature = "tokenizers")]
#[test]
fn a_language_model_keeps_its_tokenizer() {
    let lab = Lab::new();
    let said = lab.json("tokenize t.txt --out t.tokens --bpe 280");
    assert_eq!(said["vocabulary"], 280, "{said}");
    let tokens = said["tokens"].as_u64().unwrap();
    assert!(2 * tokens < 8 * TEXT.len() as u64, "{said}");
    let made = lab.read("t.tokenizer.json");
    lab.says("tokenize t.txt --out u.tokens --tokenizer t.tokenizer.json");
    assert!(lab.read("u.tokens") == lab.read("t.tokens"));
    let sizes = TINY.replace("128", "280").replace("--window 16", "--window 8");
    let options = "--steps 200 --lr 0.02 --warm-up 0 --sample-every 200 --sample-prompt fox";
    lab.says(&format!("train t.tokens {sizes} {options} --out m.safetensors"));
    assert!(lab.read("m.tokenizer.json") == made);
    let wrote = lab.says("generate m.safetensors --prompt fox --length 4 --temperature 0");
    let wrote = String::from_utf8(wrote).unwrap();
    assert!(wrote.starts_with("fox jumps over"), "{wrote}");
    let [text, tokens] =
        ["t.txt", "t.tokens"].map(|of| lab.json(&format!("eval m.safetensors {of}")));
    assert_eq!((&text["loss"], &text["bits_a_byte"]), (&tokens["loss"], &tokens["bits_a_byte"]));
    assert!(number(&text["bits_a_byte"]) < number(&text["loss"]), "{text}");
    lab.says("convert m.safetensors --out m");
    assert!(lab.read("m/tokenizer.json") == made);
    let again = lab.says("generate m --prompt fox --length 4 --temperature 0");
    assert_eq!(String::from_utf8(again).unwrap(), wrote);
}

/// Each mixer learns the same, has as many parameters, and is drawn.
#[test]
fn matrices_of_int8_are_judged_and_write() {
    let lab = Lab::new();
    lab.says(&format!("train t.txt --out m.safetensors --steps 30 --lr 1e-2 {SMALL}"));
    let made = lab.json("quantize m.safetensors --out q.safetensors");
    assert_eq!(number(&made["int8_parameters"]) + number(&made["f32_parameters"]), 86532.0);
    let before = lab.json("eval m.safetensors t.txt --window 16 --batch 2");
    let after = lab.json("eval q.safetensors t.txt --window 16 --batch 2");
    let [before, after] = [before, after].map(|said| number(&said["bits_a_byte"]));
    assert!((after - before).abs() < 0.02 * before, "{after} for {before}");
    assert_ne!(after, before);
    // Greedily, by the logits that it says itself.
    let ids: Vec<i32> = b"the quick".iter().map(|b| i32::from(*b)).collect();
    let input = tensors([("ids", Tensor::new(&[1, ids.len()], &ids))]);
    tensor::write(&lab.at("ids.safetensors"), &input).unwrap();
    lab.says("logits q.safetensors --input ids.safetensors --output l.safetensors");
    let logits = tensor::read(&lab.at("l.safetensors")).unwrap()["logits"].values();
    let said = lab.json("generate q.safetensors --temperature 0 --length 1 --prompt the");
    assert_eq!(said["text"].as_str().unwrap().chars().count(), 1);
    let row = &logits[logits.len() - 256..];
    let likeliest = (0..256).max_by(|a, b| row[*a].total_cmp(&row[*b])).unwrap();
    let mut command = lab.command("generate q.safetensors --temperature 0 --length 1 --json");
    let output = command.args(["--prompt", "the quick"]).output().unwrap();
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(said["text"].as_str().unwrap().as_bytes(), [likeliest as u8]);
    assert_eq!(lab.json("info q.safetensors")["int8"], true);
    lab.refuses(
        "quantize q.safetensors --out r.safetensors",
        "matrices to quantise: expected f32, got int8",
    );
    lab.refuses("convert q.safetensors --out r.safetensors", "MODEL: expected a model of f32");

    // Files that are not whole, or say what cannot be.
    let (all, notes) = tensor::read_with_notes(&lab.at("q.safetensors")).unwrap();
    let head = "lm_head.weight.scale";
    let spoil = |name: &str, spoil: &dyn Fn(&mut Tensors)| {
        let mut all = all.clone();
        spoil(&mut all);
        tensor::write_with_notes(&lab.at(name), &all, &notes).unwrap();
        format!("generate {name}")
    };
    let without = spoil("a.safetensors", &|all| drop(all.remove(head)));
    lab.refuses(&without, "tensor 'lm_head.weight.scale': expected f32 [256], got none");
    let zero = spoil("b.safetensors", &|all| {
        all.insert(head.into(), Tensor::new(&[256], &[0f32; 256]));
    });
    lab.refuses(&zero, "tensor 'lm_head.weight.scale': expected finite scales above 0, got 0");
    let least = spoil("c.safetensors", &|all| {
        all.insert("lm_head.weight".into(), Tensor::new(&[256, 64], &[-128i8; 256 * 64]));
    });
    lab.refuses(&least, "tensor 'lm_head.weight': expected numbers from -127 to 127, got -128");
    let floats = spoil("d.safetensors", &|all| {
        all.insert("lm_head.weight".into(), Tensor::new(&[256, 64], &[1f32; 256 * 64]));
    });
    lab.refuses(&floats, "tensor 'lm_head.weight': expected i8 [256, 64], got f32 [256, 64]");
    let more = spoil("e.safetensors", &|all| {
        all.insert("other".into(), Tensor::new(&[1], &[1f32]));
    });
    lab.refuses(&more, "tensor 'other': expected parameters of the model only, got another");
}

/// A prompt is read once, and what comes behind it is what comes behind it all the same.
#[test]
fn a_state_is_saved_and_gone_on_from() {
    let lab = Lab::new();
    lab.says(&format!("train t.txt --out m.safetensors {TINY} --steps 2"));
    let write = |options: &str| {
        let said = lab.json(&format!("generate m.safetensors --seed 3 {options}"));
        said["text"].as_str().unwrap().to_owned()
    };
    let whole = write("--prompt thequickbrown --length 12");
    assert_eq!(write("--prompt thequick --save-state s.safetensors --length 0"), "");
    for _ in 0..2 {
        assert_eq!(write("--prompt brown --state s.safetensors --length 12"), whole);
    }
    write("--prompt brown --state s.safetensors --save-state more.safetensors --length 1");
    assert_eq!(write("--state more.safetensors --length 12"), whole);
    lab.says(&format!("train t.txt --out other.safetensors {TINY} --steps 3"));
    lab.refuses(
        "generate other.safetensors --state s.safetensors",
        "state: expected one of f32, weights ",
    );
    lab.refuses(
        "generate m.safetensors --state m.safetensors",
        "m.safetensors: expected a state that `--save-state` wrote, got another file",
    );
    lab.refuses("generate m.safetensors --save-state .", ".: ");
}

/// The server is another program: without it, how to get it.
#[test]
fn a_model_is_served_by_another_program() {
    let lab = Lab::new();
    let program = lab.at("lab");
    std::fs::copy(assert_cmd::cargo::cargo_bin("lab"), &program).unwrap();
    let serve = || {
        let mut lab_alone = Command::new(&program);
        lab_alone.env("PATH", lab.0.path()).env_remove("LAB_DEVICE");
        lab_alone.args(["lm", "serve", "m.safetensors", "--port", "0"]).output().unwrap()
    };
    let output = serve();
    assert_eq!(output.status.code(), Some(4));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("`cargo build -p lab-serve` builds it"), "{said}");
    let server = "#!/bin/sh\necho \"$LAB_DEVICE $*\"\n";
    lab.write("lab-serve", server.as_bytes());
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(lab.at("lab-serve"), executable).unwrap();
    let output = serve();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "auto m.safetensors --port 0\n");
}

#[test]
fn decoding_is_timed() {
    let lab = Lab::new();
    let sizes = "--width 32 --heads 1 --blocks 1 --vocabulary 40 --tokens 2 --runs 1";
    for (more, launches) in [("", 14.0), (" --dtype bf16 --sequences 2 --weights int8", 8.0)] {
        let said = lab.json(&format!("bench {sizes}{more}"));
        assert_eq!(number(&said["launches"]), launches, "{more}");
        assert!(number(&said["ms_a_token"]) > 0.0 && said["share_of_copy"].is_null());
    }
    lab.refuses(&format!("bench {sizes} --sequences 0"), "sequences: expected 1 to 1024, got 0");
    lab.refuses("bench --tokens 0", "--tokens: expected 1 to 1048576, got 0");
}

#[test]
fn a_language_model_recalls() {
    let lab = Lab::new();
    let asked = "recall --keys 4 --values 2 --width 16 --batch 4 --out r.svg";
    let options = "--mixer attention --mixer lstm --steps 40 --lr 0.03";
    let report = lab.json(&format!("{asked} {options}"));
    assert_eq!(report["pairs"], serde_json::json!([2, 4]), "{report}");
    let mixers = report["mixers"].as_array().unwrap();
    let names: Vec<&Value> = mixers.iter().map(|own| &own["mixer"]).collect();
    assert_eq!(names, ["attention", "lstm"], "{report}");
    let [first, second] = [0, 1].map(|n| number(&mixers[n]["parameters"]));
    assert!((first - second).abs() <= 3.0 * 16.0 * 8.0, "{report}");
    for own in mixers {
        let shares = own["accuracy"].as_array().unwrap();
        assert!(shares.len() == 2 && shares.iter().all(|s| (0.0..=1.0).contains(&number(s))));
    }
    // Attention sees all pairs.
    assert!(number(&mixers[0]["accuracy"][0]) > 0.9, "{report}");
    let drawn = String::from_utf8(lab.read("r.svg")).unwrap();
    let drawn = roxmltree::Document::parse(&drawn).unwrap();
    let words: Vec<&str> = drawn.descendants().filter_map(|n| n.text()).map(str::trim).collect();
    for word in ["attention", "lstm", "a guess", "pairs"] {
        assert!(words.contains(&word), "{word}: {words:?}");
    }
    for (options, said) in [
        ("--width 48", "keys of a head: expected a multiple of 16 from 16 to 256, got 24"),
        ("--mixer gru", "mixer: expected one of vlstm, attention, lstm, slstm"),
        ("--keys 3", "--keys: expected 2, 4, 8, …, 256, got 3"),
        ("--keys 257", "keys: expected 1 to 256, got 257"),
        ("--values 1", "values: expected 2 to 256, got 1"),
        ("--steps 0", "--steps: expected 1 to 1048576, got 0"),
        ("--lr 0", "rate: expected a number above 0, got 0"),
        ("--out no/n.svg", "no/n.svg: No such file or directory"),
    ] {
        lab.refuses(&format!("recall {options}"), said);
    }
}

/// The memory of a training is known before any of it is taken, and so much less than all activations would take.
#[test]
fn a_language_model_says_what_memory_its_training_takes() {
    let lab = Lab::new();
    let sizes = "--width 768 --heads 6 --blocks 12 --vocabulary 50304 --window 2048 --dtype bf16";
    let bytes = |options: &str| {
        let facts = lab.json(&format!("info {sizes} {options}"));
        number(&facts["training_bytes"])
    };
    let whole = bytes("--batch 16");
    // Masters, gradients and moments alone are 2.6 GB.
    assert!(whole > 5e9 && whole <= 14e9, "{whole}");
    let parts = bytes("--batch 4 --accumulate 4");
    assert!(parts < 0.5 * whole, "{parts} for {whole}");
    assert_eq!(parts.to_bits(), bytes("--batch 4 --accumulate 4").to_bits());
}

#[test]
fn a_language_model_that_cannot_be_trained() {
    let lab = Lab::new();
    lab.write("m.safetensors", b"a model from before");
    lab.write("empty.txt", b"");
    lab.write("short.txt", &TEXT.as_bytes()[..17]);
    std::fs::create_dir(lab.at("empty")).unwrap();
    for (options, said) in [
        (
            "--width 96 --heads 2",
            "keys of a head: expected a multiple of 16 from 16 to 256, got 24",
        ),
        (
            "--width 18446744073709551615",
            "width: expected a multiple of 16 from 16 to 8192, got 18",
        ),
        ("--heads 0", "heads: expected 1 to 1024, got 0"),
        ("--blocks 0", "blocks: expected 1 to 1024, got 0"),
        ("--vocabulary 0", "vocabulary: expected 1 to 1048576, got 0"),
        ("--vocabulary 100", "token 0 of the data: expected 0 to 99, got 116"),
        ("--width 8192 --heads 32 --blocks 1024", "parameters of the model: expected at most"),
        ("--window 0", "window: expected 1 to 1048576, got 0"),
        ("--window 400", "bytes to train on: expected at least 401, a window and its last target"),
        ("--batch 0", "batch: expected 1 to 65536, got 0"),
        ("--held-out 1", "--held-out: expected a number from 0 on and below 1, got 1"),
        ("--held-out NaN", "--held-out: expected a number from 0 on and below 1, got NaN"),
        ("--steps 0", "--steps: expected 1 to 1073741824, got 0"),
        ("--clip -1", "--clip: expected a number from 0 on, got -1"),
        ("--lr 0", "rate: expected a number above 0, got 0"),
        ("--look-every 0", "--look-every"),
        ("--resume", "m.safetensors: expected a safetensors file"),
        ("--resume --out n.safetensors", "--resume: expected a training that was begun, in n.saf"),
        ("--out no/m.safetensors", "no/m.safetensors: No such file or directory"),
    ] {
        let out = if options.contains("--out") { "" } else { " --out m.safetensors" };
        lab.refuses(&format!("train t.txt {options}{out}"), said);
    }
    for (text, said) in [
        ("none.txt", "none.txt: No such file or directory"),
        ("empty.txt", "TEXT: expected at least one byte, got none"),
        ("empty", "TEXT: expected at least one byte, got none"),
        ("/dev/zero", "/dev/zero: expected a file, got a device"),
        (
            "short.txt",
            "bytes to train on: expected at least 17, a window and its last target, got 16",
        ),
    ] {
        lab.refuses(&format!("train {text} {TINY} --out m.safetensors"), said);
    }
    let name = Path::new(std::ffi::OsStr::from_bytes(b"\xff.txt"));
    std::fs::copy(lab.at("t.txt"), lab.0.path().join(name)).unwrap();
    let mut command = lab.command(&format!("train {TINY} --out m.safetensors"));
    lab.refused(command.arg(name), "TEXT: expected a file whose name is UTF-8, got");
    for (arguments, said) in [
        ("profile --vocabulary 0", "vocabulary: expected 1 to 1048576, got 0"),
        ("profile --window 18446744073709551615", "window: expected 1 to 1048576, got 18"),
        ("profile --runs 0", "runs: expected 1 to 1024, got 0"),
        ("info --width 18446744073709551615", "width: expected a multiple of 16"),
    ] {
        lab.refuses(arguments, said);
    }
}
