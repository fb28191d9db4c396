//! What `lab lstm` refuses: one message with the place and what was expected, exit code 2, and nothing
//! that stood there before is touched.

use std::path::PathBuf;
use std::process::Command;

struct Lab(tempfile::TempDir);

impl Lab {
    fn new() -> Self {
        let lab = Self(tempfile::tempdir().unwrap());
        lab.write("good.csv", b"day,load\n1,2\n2,4\n3,3\n4,1\n5,2\n6,5\n7,3\n8,2\n9,4\n10,1\n");
        lab.write("good.txt", b"one two three four five six seven eight nine ten");
        lab
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.at(name), bytes).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut lab = Command::new(assert_cmd::cargo::cargo_bin("lab"));
        lab.env_remove("LAB_DEVICE").current_dir(&self.0).args(["--device", "emulator", "lstm"]);
        lab.args(arguments);
        lab
    }

    /// It must end with 2 and say this, on one line.
    #[track_caller]
    fn refuses(&self, arguments: &[&str], said: &str) {
        let before = self.files();
        let output = self.command(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        println!("{arguments:?}: {}", text.trim());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {text}");
        let line = text.lines().find(|l| l.starts_with("lab: ")).expect(&text);
        assert!(line.contains(said), "{arguments:?}: '{said}' in: {line}");
        assert_eq!(self.files(), before, "{arguments:?}: a refusal writes nothing");
    }

    fn files(&self) -> Vec<(PathBuf, Option<Vec<u8>>)> {
        let entries = std::fs::read_dir(&self.0).unwrap().map(|e| e.unwrap().path());
        let mut all: Vec<_> = entries.map(|p| (p.clone(), std::fs::read(p).ok())).collect();
        all.sort();
        all
    }

    #[track_caller]
    fn train(&self, arguments: &str) {
        let all: Vec<&str> = ["train"].into_iter().chain(arguments.split(' ')).collect();
        let output = self.command(&all).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn data_of_lstm() {
    let lab = Lab::new();
    lab.write("m.safetensors", b"a model from before");
    for (name, text) in [
        ("empty.csv", &b""[..]),
        ("header.csv", b"load\n"),
        ("nan.csv", b"day,load\n1,2\n2,NaN\n"),
        ("hole.csv", b"day,load\n1,2\n2,\n"),
        ("words.csv", b"day,load\n1,2\n2,high\n"),
        ("ragged.csv", b"day,load\n1,2\n2\n"),
        ("bytes.csv", b"day,load\n1,2\n2,\xFF\n"),
        ("still.csv", b"load\n3\n3\n3\n3\n3\n3\n3\n3\n3\n3\n"),
        ("large.csv", b"load\n1e308\n-1e308\n1e308\n3\n3\n3\n3\n3\n3\n3\n"),
        ("empty.txt", b""),
        ("bytes.txt", b"one\n\xC3("),
        ("alike.txt", b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaa"),
        ("short.txt", b"abc"),
    ] {
        lab.write(name, text);
    }
    for (data, said) in [
        (&["none.csv"][..], "none.csv: No such file or directory"),
        (&["none.txt"], "none.txt: No such file or directory"),
        (&["."], ".: Is a directory"),
        (&["good.csv"], "--column: expected a column of good.csv: 'day', 'load', got none"),
        (
            &["good.csv", "--column", "lode"],
            "--column: expected a column of good.csv: 'day', 'load', got 'lode'",
        ),
        (&["good.txt", "--column", "load"], "--column: expected none without a CSV file, got"),
        (&["empty.csv"], "empty.csv: expected a line of column names, got an empty file"),
        (&["header.csv"], "header.csv: column 'load': expected numbers, got no row"),
        (
            &["nan.csv", "--column", "load"],
            "nan.csv: row 2, line 3, column 'load': expected a finite number, got 'NaN'",
        ),
        (
            &["hole.csv", "--column", "load"],
            "row 2, line 3, column 'load': expected a finite number, got nothing",
        ),
        (
            &["words.csv", "--column", "load"],
            "row 2, line 3, column 'load': expected a finite number, got 'high'",
        ),
        (
            &["ragged.csv", "--column", "load"],
            "ragged.csv: line 3: expected 2 fields as in the first, got 1",
        ),
        (&["bytes.csv", "--column", "load"], "bytes.csv: line 3, field 2: expected UTF-8"),
        (
            &["still.csv", "--window", "2"],
            "training part of the series: expected values that differ, got 3, 8 times",
        ),
        (&["large.csv", "--window", "2"], "series: expected values with a finite sum of squares"),
        (
            &["good.csv", "--column", "load"],
            "training part of the series: expected more values than a window, 20, got 8",
        ),
        (&["good.csv", "--column", "load", "--window", "2", "--frequency", "2"], "--frequency"),
        (&["empty.txt"], "empty.txt: expected a text, got an empty file"),
        (&["bytes.txt"], "bytes.txt: expected UTF-8, got byte 0xC3 at offset 4, line 2"),
        (&["alike.txt"], "vocabulary: expected two different characters or more"),
        (&["short.txt"], "training part of the text: expected more characters than a window"),
        (
            &["good.txt", "--window", "8"],
            "validation part of the text: expected more characters than a window, 8, got 5",
        ),
    ] {
        let all = [&["train", "--out", "m.safetensors", "--data"], data].concat();
        lab.refuses(&all, said);
    }
    lab.refuses(
        &["train", "--out", "m.safetensors"],
        "--data: expected sine, a CSV file (.csv) or a text, got none",
    );
}

#[test]
fn options_of_lstm() {
    let lab = Lab::new();
    for (options, said) in [
        ("--hidden 0", "--hidden: expected at least 1, got 0"),
        ("--hidden 40000", "hidden: expected 1 to 32768, got 40000"),
        ("--window 0", "--window: expected at least 1, got 0"),
        ("--window 1000", "expected more values than a window, 1000, got 1000"),
        ("--checkpoint-every 0", "--checkpoint-every: expected at least 1, got 0"),
        ("--layers 0", "--layers: expected at least 1, got 0"),
        ("--batch 0", "--batch: expected at least 1, got 0"),
        ("--lr -1", "--lr: expected a number above 0, got -1"),
        ("--clip -1", "--clip: expected a number that is not negative, got -1"),
        ("--dropout 1", "--dropout: expected a number from 0 to below 1, got 1"),
        ("--dropout 0.5", "--dropout: expected 0 in a network of one layer"),
        ("--frequency 0", "--frequency: expected a number above 0, got 0"),
        ("--cell gru --peephole", "--peephole: expected an LSTM, got a GRU"),
        ("--cell gru --layer-norm", "--layer-norm: expected an LSTM, got a GRU"),
        ("--cell slstm --peephole", "--peephole: expected an LSTM, got an sLSTM"),
        ("--cell slstm --layer-norm", "--layer-norm: expected an LSTM, got an sLSTM"),
        (
            "--cell slstm --bidirectional",
            "--bidirectional: expected an LSTM or a GRU, got an sLSTM",
        ),
        (
            "--cell slstm --heads 0",
            "--heads: expected a divisor of the 32 units of --hidden, got 0",
        ),
        (
            "--cell slstm --hidden 30",
            "--heads: expected a divisor of the 30 units of --hidden, got 4",
        ),
        ("--cell gru --heads 2", "--heads: expected an sLSTM (--cell slstm), got a GRU"),
        (
            "--recompute --layer-norm",
            "--recompute: expected an LSTM without layer norm, got layer norm",
        ),
        ("--recompute --cell gru", "--recompute: expected an LSTM without layer norm, got a GRU"),
        ("--loss cross-entropy", "--loss: expected mse for a series, got cross-entropy"),
        (
            "--validation-share 0.7 --test-share 0.3",
            "expected shares that leave something for training",
        ),
        ("--out no/m.safetensors", "no/m.safetensors: No such file or directory"),
        ("--out .", "expected a file to write, got a directory"),
        ("--resume", "--resume: expected a training that was begun, in m.checkpoint.safetensors"),
    ] {
        let out = if options.contains("--out") { "" } else { " --out m.safetensors" };
        let line = format!("train --data sine {options}{out}");
        lab.refuses(&line.split(' ').collect::<Vec<_>>(), said);
    }
    let text = "train --data good.txt --window 3 --out m.safetensors";
    for (options, said) in [
        ("--bidirectional", "--bidirectional: expected one direction for a text"),
        ("--loss mse", "--loss: expected cross-entropy for a text, got mse"),
    ] {
        let line = format!("{text} {options}");
        lab.refuses(&line.split(' ').collect::<Vec<_>>(), said);
    }
    // Words that the parser knows, and says itself.
    for options in
        ["--optimizer lion", "--dtype f64", "--cell rnn", "--epochs x", "--seed -1", "--lr nan"]
    {
        let line = format!("train --data sine --out m.safetensors {options}");
        let output = lab.command(&line.split(' ').collect::<Vec<_>>()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{options}");
        let option = options.split(' ').next().unwrap();
        assert!(String::from_utf8_lossy(&output.stderr).contains(option), "{options}");
    }
}

#[test]
fn models_of_lstm() {
    let lab = Lab::new();
    lab.train("--data good.csv --column load --window 2 --hidden 2 --epochs 2 --out s.safetensors");
    lab.train("--data good.txt --window 3 --hidden 2 --epochs 1 --out t.safetensors");
    let whole = std::fs::read(lab.at("s.safetensors")).unwrap();
    lab.write("cut.safetensors", &whole[..whole.len() - 9]);
    lab.write("text.safetensors", b"these are no tensors");
    let x = lab_harness::Tensor::new(&[2], &[1f32, 2.0]);
    let foreign = lab_harness::tensor::tensors([("x", x)]);
    lab_harness::tensor::write(&lab.at("foreign.safetensors"), &foreign).unwrap();
    for command in ["test", "generate"] {
        for (model, said) in [
            ("none", "none.safetensors: No such file or directory"),
            ("cut", "cut.safetensors: expected a safetensors file"),
            ("text", "text.safetensors: expected a safetensors file"),
            ("foreign", "metadata of foreign.safetensors: expected 'lstm_fused'"),
        ] {
            lab.refuses(&[command, &format!("{model}.safetensors")], said);
        }
    }
    for (arguments, said) in [
        ("generate s.safetensors", "MODEL: expected a model of a text, got one of a series"),
        (
            "generate t.safetensors --prompt no,",
            "--prompt: expected the 15 characters that the model knows, got ',' at line 1, column 3",
        ),
        ("generate t.safetensors --prompt ", "--prompt: expected one character at least, got none"),
        ("generate t.safetensors --top-k 0", "--top-k: expected at least 1, got 0"),
        (
            "generate t.safetensors --temperature -1",
            "--temperature: expected a number that is not negative, got -1",
        ),
        (
            "test t.safetensors --data good.csv",
            "--data: expected a text, as the model was trained on",
        ),
        ("test s.safetensors --data good.txt", "--data: expected sine or a CSV file"),
        (
            "test s.safetensors --column load",
            "--column: expected none without a CSV file in --data",
        ),
        ("test s.safetensors --data none.csv", "none.csv: No such file or directory"),
        (
            "test s.safetensors --states s.png",
            "--states: expected a .csv or a .safetensors file, got 's.png'",
        ),
        ("test s.safetensors --states no/s.csv", "no/s.csv: No such file or directory"),
        (
            "train --resume --out s.safetensors --hidden 3",
            "--hidden: expected 2, with which training began, got 3",
        ),
        (
            "train --resume --out s.safetensors --column day",
            "--column: expected load, with which training began, got day",
        ),
        (
            "train --resume --out s.safetensors --epochs 9",
            "--epochs: expected 2, over which the learning rate falls as a cosine, got 9",
        ),
    ] {
        lab.refuses(&arguments.split(' ').collect::<Vec<_>>(), said);
    }
    // Notes that the tool has not written.
    let path = lab.at("s.safetensors");
    let whole = lab_lstm::training::Checkpoint::read(&path).unwrap();
    let settings = &whole.notes["settings"];
    for (name, text) in [
        ("settings", settings.replace("\"stride\":1", "\"stride\":0")),
        ("settings", settings.replace("\"window\":2", "\"window\":3")),
        ("settings", settings.replace("good.csv", "good.txt")),
        ("settings", "{}".into()),
        ("scale", "1 0".into()),
        ("scale", "NaN 1".into()),
        ("losses", "1 1\n1 1\n1 1\n".into()),
        ("losses", "1 2 3\n1 2 3\n".into()),
        ("vocabulary", "ab".into()),
    ] {
        let mut other = whole.clone();
        assert_ne!(other.notes.insert(name.to_owned(), text.clone()), Some(text));
        other.write(&lab.at("other.safetensors")).unwrap();
        let said = "other.safetensors: expected a model that `lab lstm train` wrote";
        lab.refuses(&["test", "other.safetensors"], said);
    }
    // What was trained on has changed since.
    lab.write("good.csv", b"day,load\n1,2\n2,4\n3,3\n4,1\n5,2\n6,5\n7,3\n8,9\n9,4\n10,1\n");
    lab.refuses(
        &["train", "--resume", "--out", "s.safetensors"],
        "data and windows: expected those that it was taken with",
    );
    lab.write("good.txt", b"another");
    lab.refuses(&["test", "t.safetensors"], "part of the text: expected more characters");
    std::fs::remove_file(lab.at("good.txt")).unwrap();
    lab.refuses(&["test", "t.safetensors"], "good.txt: No such file or directory");
}
