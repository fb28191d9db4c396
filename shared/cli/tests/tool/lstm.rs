//! `lab lstm`: what it learns, what it says of it, and that a training that was stopped ends as if it
//! had not been.

use std::f64::consts::PI;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lab_harness::tensor;
use serde_json::Value;

/// In a directory of its own, on the emulator.
struct Lab(tempfile::TempDir);

impl Lab {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.at(name)).unwrap()
    }

    fn command(&self, arguments: &str) -> Command {
        let mut lab = Command::new(assert_cmd::cargo::cargo_bin("lab"));
        lab.env_remove("LAB_DEVICE").current_dir(&self.0).args(["--device", "emulator", "lstm"]);
        lab.args(arguments.split(' '));
        lab
    }

    /// What it says on stdout; it must succeed.
    #[track_caller]
    fn says(&self, arguments: &str) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    #[track_caller]
    fn json(&self, arguments: &str) -> Value {
        serde_json::from_str(&self.says(&format!("{arguments} --json"))).unwrap()
    }
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect()
}

/// A picture that is well formed and says these words.
#[track_caller]
fn shows(svg: &[u8], words: &[&str]) {
    let text = std::str::from_utf8(svg).unwrap();
    let document = roxmltree::Document::parse(text).unwrap();
    let all: Vec<&str> = document.descendants().filter_map(|n| n.text()).map(str::trim).collect();
    for word in words {
        assert!(all.contains(word), "'{word}' in {all:?}");
    }
    assert!(!text.contains("NaN"), "{text}");
}

/// `data/load.csv`: made by this formula, a week and four of them on a slow rise.
fn load(day: usize) -> f64 {
    let n = day as f64;
    50.0 + 0.02 * n + 10.0 * (2.0 * PI * n / 28.0).sin() + 4.0 * (2.0 * PI * n / 7.0).sin()
}

const DAYS: usize = 240;

fn csv() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/load.csv")
}

#[test]
fn the_file_that_lstm_is_tested_on_is_what_its_formula_says() {
    let text = std::fs::read_to_string(csv()).unwrap();
    let rows: Vec<&str> = text.lines().skip(1).collect();
    assert_eq!(rows.len(), DAYS);
    for (day, row) in rows.iter().enumerate() {
        let value: f64 = row.split(',').nth(1).unwrap().parse().unwrap();
        assert!((value - load(day)).abs() < 6e-4, "{row}");
    }
}

#[test]
fn lstm_learns_a_sine_and_tells_it() {
    let lab = Lab::new();
    let trained =
        lab.json("train --data sine --hidden 8 --window 10 --batch 64 --epochs 6 --lr 0.02 --out s.safetensors");
    let losses = numbers(&trained["losses"]);
    assert_eq!(losses.len(), 6);
    assert!(losses[5] < 0.1 * losses[0], "{losses:?}");
    // An LSTM of 8 units on one column, and the head.
    assert_eq!(trained["parameters"], 4 * 8 * (1 + 8 + 2) + 8 + 1);
    shows(&lab.read("s.loss.svg"), &["loss of s", "epoch", "training"]);

    let tested = lab.json("test s.safetensors --steps 40 --states s.csv");
    let cases = tested["cases"].as_array().unwrap();
    let names: Vec<&str> = cases.iter().map(|c| c["of"].as_str().unwrap()).collect();
    assert_eq!(names, ["0.5", "0.75", "1", "1.25", "1.5", "2"]);
    let rmse = |case: usize, by: &str, kind: &str| {
        cases[case]["errors"][by][kind]["rmse"].as_f64().unwrap()
    };
    // As good as the loss, which is of the scaled series; a line through two points knows all of a
    // sine, but only of that frequency.
    assert!(rmse(2, "network", "one_step") < 2.0 * losses[5].sqrt());
    assert!(rmse(2, "linear", "free_running") < 1e-9);
    assert!(rmse(5, "linear", "one_step") > 0.01);
    assert!(rmse(2, "network", "one_step") < rmse(5, "network", "one_step"));
    // The root of the mean of (sin(t) − sin(t − 0.1))².
    let still = 2.0 * 0.05f64.sin() / 2f64.sqrt();
    assert!((rmse(2, "persistence", "one_step") - still).abs() < 1e-3);
    assert_eq!(cases[0]["forecasts"], 990);
    assert_eq!(cases[0]["free_running_steps"], 40);
    shows(&lab.read("s.forecast.svg"), &["truth", "network, free", "s: forecasts of 'sine'"]);
    let other = "s: forecasts of 'sine' at 1.5 times its frequency";
    shows(&lab.read("s.forecast-1.5.svg"), &["truth", other]);
    shows(&lab.read("s.states.svg"), &["hidden states of s", "unit", "step"]);
    assert_eq!((&tested["states"]["units"], &tested["states"]["steps"]), (&8.into(), &40.into()));

    let table = String::from_utf8(lab.read("s.csv")).unwrap();
    assert!(table.starts_with("step,input,h0,h1,h2,h3,h4,h5,h6,h7\n"), "{table}");
    assert_eq!(table.lines().count(), 41);
    lab.says("test s.safetensors --steps 40 --states s.states.safetensors");
    let states = tensor::read(&lab.at("s.states.safetensors")).unwrap();
    assert_eq!((&states["h"].shape[..], &states["x"].shape[..]), (&[40, 8][..], &[40, 1][..]));
    let last: f64 = table.lines().last().unwrap().rsplit(',').next().unwrap().parse().unwrap();
    assert_eq!(states["h"].values()[40 * 8 - 1], last);
}

#[test]
fn lstm_forecasts_a_column_in_its_own_units() {
    let lab = Lab::new();
    std::fs::copy(csv(), lab.at("load.csv")).unwrap();
    let trained = lab.json(
        "train --data load.csv --column load --hidden 8 --window 14 --batch 8 --epochs 12 --lr 0.02 --out l.safetensors",
    );
    let validation = numbers(&trained["validation_losses"]);
    let best = trained["best"]["epoch"].as_u64().unwrap() as usize - 1;
    assert!(validation.iter().all(|v| *v >= validation[best]));
    shows(&lab.read("l.loss.svg"), &["training", "validation"]);

    let tested = lab.json("test l.safetensors");
    let case = &tested["cases"][0];
    assert_eq!((&case["of"], &case["forecasts"]), (&"test part".into(), &24.into()));
    let of = |by: &str, error: &str| case["errors"][by]["one_step"][error].as_f64().unwrap();
    let steps = (DAYS - 24..DAYS).map(|day| load(day) - load(day - 1));
    let still = steps.map(f64::abs).sum::<f64>() / 24.0;
    assert!((of("persistence", "mae") - still).abs() < 1e-3);
    // Two sines and a rise are linear.
    assert!(of("linear", "rmse") < 0.01, "{case}");
    assert!(of("network", "rmse") < of("persistence", "rmse"), "{case}");

    // Another file is told from its first window on, another column is another series.
    std::fs::copy(csv(), lab.at("other.csv")).unwrap();
    let other = lab.json("test l.safetensors --data other.csv");
    assert_eq!(
        (&other["cases"][0]["of"], &other["cases"][0]["forecasts"]),
        (&"all of it".into(), &226.into())
    );
    let days = lab.json("test l.safetensors --data load.csv --column day");
    assert_eq!(days["cases"][0]["series"], "day");
}

#[test]
fn lstm_learns_a_text_and_writes() {
    let lab = Lab::new();
    // A text that nobody changes.
    let license = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../LICENSE-APACHE");
    let text: String = std::fs::read_to_string(license).unwrap().chars().take(1200).collect();
    std::fs::write(lab.at("t.txt"), &text).unwrap();
    let trained = lab.json(
        "train --data t.txt --hidden 16 --window 16 --batch 32 --epochs 6 --lr 0.03 --out t.safetensors",
    );
    let losses = numbers(&trained["losses"]);
    assert!(losses[5] < losses[0], "{losses:?}");

    let tested = lab.json("test t.safetensors");
    let bits = |by: &str| tested["models"][by]["bits_per_character"].as_f64().unwrap();
    let different = text.chars().collect::<std::collections::BTreeSet<_>>().len();
    assert_eq!(bits("all alike"), (different as f64).log2());
    assert!(bits("bigrams") < bits("unigrams") && bits("unigrams") < bits("all alike"));
    assert!(bits("network") < bits("all alike"), "{tested}");
    let perplexity = tested["models"]["network"]["perplexity"].as_f64().unwrap();
    assert!((perplexity - bits("network").exp2()).abs() < 1e-9);
    shows(&lab.read("t.states.svg"), &["hidden states of t", "character"]);

    let wrote = |options: &str| lab.says(&format!("generate t.safetensors --length 60 {options}"));
    let first = wrote("--prompt the --seed 3");
    assert!(first.starts_with("the") && first.chars().count() == 3 + 60 + 1, "{first}");
    assert!(first.trim_end_matches('\n').chars().all(|c| text.contains(c)));
    assert_eq!(first, wrote("--prompt the --seed 3"));
    assert_ne!(first, wrote("--prompt the --seed 4"));
    // The likeliest is the same for every seed.
    let likeliest = wrote("--prompt the --temperature 0 --seed 3");
    assert_eq!(likeliest, wrote("--prompt the --top-k 1 --seed 4"));
    let object = lab.json("generate t.safetensors --length 60 --prompt the --seed 3");
    assert_eq!(format!("the{}\n", object["text"].as_str().unwrap()), first);
}

/// All options at once that a step depends on.
const UNLIKE: &str = "train --data load.csv --column load --window 6 --stride 3 --hidden 6 --layers 2 \
                      --dropout 0.3 --batch 8 --schedule constant --warm-up 9 --optimizer adamw";

#[test]
fn an_lstm_training_that_goes_on_ends_as_one_that_never_stopped() {
    let lab = Lab::new();
    std::fs::copy(csv(), lab.at("load.csv")).unwrap();
    lab.says(&format!("{UNLIKE} --epochs 5 --patience 0 --out whole.safetensors"));

    // Stopped at the end of an epoch.
    lab.says(&format!("{UNLIKE} --epochs 2 --patience 0 --out parts.safetensors"));
    let longer = lab.json("train --resume --epochs 5 --out parts.safetensors");
    assert_eq!((&longer["epochs"], &longer["resumed"]), (&5.into(), &true.into()));
    let state = |name: &str| lab.read(&format!("{name}.checkpoint.safetensors"));
    assert!(state("whole") == state("parts"), "the state after the last epoch differs");
    assert_eq!(lab.read("whole.loss.svg").len(), lab.read("parts.loss.svg").len());

    // Killed wherever it was, several times.
    let options =
        format!("{UNLIKE} --epochs 5 --patience 0 --checkpoint-every 1 --out killed.safetensors");
    let mut next = lab.command(&options);
    let mut kills = 0;
    loop {
        let before = std::fs::read(lab.at("killed.checkpoint.safetensors")).ok();
        let mut child = next.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let start = Instant::now();
        let ended = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break Some(status);
            }
            let now = std::fs::read(lab.at("killed.checkpoint.safetensors")).ok();
            if kills < 4 && now.is_some() && now != before {
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
        next = lab.command("train --resume --checkpoint-every 1 --out killed.safetensors");
    }
    assert!(kills >= 2, "{kills} kills");
    assert!(state("whole") == state("killed"), "the state after the last epoch differs");
    assert!(lab.read("whole.safetensors") == lab.read("killed.safetensors"), "the model differs");
}

/// A person's Ctrl-C loses no step.
#[test]
fn an_lstm_training_that_is_interrupted_keeps_where_it_stands() {
    let lab = Lab::new();
    let options =
        "train --data sine --window 8 --hidden 4 --epochs 2 --batch 8 --out s.safetensors";
    lab.says(options);
    let whole = lab.read("s.safetensors");
    let mut child =
        lab.command(&options.replace("s.saf", "i.saf")).stderr(Stdio::piped()).spawn().unwrap();
    let state = lab.at("i.checkpoint.safetensors");
    let start = Instant::now();
    while !state.exists() {
        assert!(start.elapsed() < Duration::from_secs(60), "no state");
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: a signal to a process of this test.
    unsafe { libc::kill(child.id() as i32, libc::SIGINT) };
    let status = child.wait().unwrap();
    let mut said = String::new();
    std::io::Read::read_to_string(&mut child.stderr.take().unwrap(), &mut said).unwrap();
    assert_eq!(
        std::os::unix::process::ExitStatusExt::signal(&status),
        Some(libc::SIGINT),
        "{said}"
    );
    assert!(said.contains("stopped in epoch 1; --resume goes on there"), "{said}");
    lab.says("train --resume --out i.safetensors");
    assert!(lab.read("i.safetensors") == whole, "the model differs");
}

#[test]
fn numbers_that_run_away_stop_an_lstm_and_the_model_stays() {
    let lab = Lab::new();
    std::fs::write(lab.at("s.safetensors"), "a model from before").unwrap();
    let options =
        "train --data sine --window 8 --hidden 4 --epochs 2 --optimizer sgd --clip 0 --lr 1e30";
    let output = lab.command(&format!("{options} --out s.safetensors")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("lab: epoch 1, step ") && said.contains("expected finite numbers"),
        "{said}"
    );
    assert!(said.contains("s.safetensors holds a model, which this training replaces"), "{said}");
    assert_eq!(lab.read("s.safetensors"), b"a model from before");
}

#[test]
#[ignore = "takes long: --include-ignored runs it"]
fn every_option_of_lstm_has_a_network() {
    let lab = Lab::new();
    std::fs::copy(csv(), lab.at("load.csv")).unwrap();
    for options in [
        "--cell gru --layers 2 --bidirectional",
        "--peephole --layer-norm --schedule step --decay-every 1",
        "--dtype bf16 --optimizer sgd --clip 0",
        "--dtype f16 --weight-decay 0.1",
        "--layers 2 --recompute --dropout 0.1",
        "--cell slstm --heads 5 --layers 2 --dropout 0.1",
        "--cell slstm --heads 1 --dtype f16",
    ] {
        let trained = lab.json(&format!(
            "train --data load.csv --column load --window 6 --stride 3 --hidden 5 --batch 16 --epochs 3 {options} --out o.safetensors"
        ));
        let losses = numbers(&trained["losses"]);
        assert!(losses[2] < losses[0], "{options}: {losses:?}");
        let tested = lab.json("test o.safetensors --steps 5");
        assert!(
            tested["cases"][0]["errors"]["network"]["free_running"]["rmse"].is_f64(),
            "{options}"
        );
    }
}
