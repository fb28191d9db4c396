//! `lab lm train` on several devices, which are emulated ones: as one with all of the batch, stopped and gone on with; and what it
//! refuses.

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// In a directory of its own, on the emulator.
struct Lab(tempfile::TempDir);

const SIZES: &str = "--width 32 --heads 1 --blocks 1 --vocabulary 128 --window 16";

impl Lab {
    fn new() -> Self {
        let lab = Self(tempfile::tempdir().unwrap());
        let text = "the quick brown fox jumps over a lazy dog.\n".repeat(16);
        std::fs::write(lab.at("t.txt"), text).unwrap();
        lab
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A training on the text.
    fn train(&self, arguments: &str) -> Command {
        let mut lab = Command::new(assert_cmd::cargo::cargo_bin("lab"));
        for name in ["LAB_DEVICE", "RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"] {
            lab.env_remove(name);
        }
        lab.current_dir(&self.0).args(["--device", "emulator", "--json", "lm", "train", "t.txt"]);
        lab.args(SIZES.split(' ')).args(arguments.split(' '));
        lab
    }

    #[track_caller]
    fn report(&self, arguments: &str) -> Value {
        let output = self.train(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// As this rank of two, whose first waits here.
    fn train_as(&self, rank: usize, port: u16, arguments: &str) -> Command {
        let mut command = self.train(arguments);
        command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
        command.env("WORLD_SIZE", "2").env("MASTER_ADDR", "127.0.0.1");
        command.env("MASTER_PORT", port.to_string()).env("LAB_RANK_SECONDS", "3");
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

fn losses(report: &Value) -> Vec<f64> {
    let looks = report["looks"].as_array().unwrap();
    looks
        .iter()
        .flat_map(|look| [&look["loss"], &look["held_out"]])
        .map(|v| v.as_f64().unwrap())
        .collect()
}

#[track_caller]
fn assert_near(a: &[f64], b: &[f64]) {
    assert_eq!(a.len(), b.len());
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-5), "{a:?}, {b:?}");
}

#[track_caller]
fn assert_failed(output: &Output, code: i32, said: &str) {
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{text}");
    let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("lab: ")).collect();
    assert!(errors.len() == 1 && errors[0].contains(said), "'{said}': {text}");
}

#[test]
fn ranks_train_what_one_does_with_their_batches_together() {
    let lab = Lab::new();
    let one = lab.report("--batch 4 --steps 12 --look-every 4 --out one.safetensors");
    let two = lab.report("--batch 2 --gpus 2 --steps 12 --look-every 4 --out two.safetensors");
    assert_near(&losses(&one), &losses(&two));
    assert_eq!([&one["ranks"], &two["ranks"]], [1, 2]);
    assert_eq!(two["settings"]["sizes"]["batch"], 4, "{two}");
    // The same bytes again.
    lab.report("--batch 2 --gpus 2 --steps 12 --look-every 4 --out again.safetensors");
    let read = |name: &str| std::fs::read(lab.at(name)).unwrap();
    assert!(read("again.safetensors") == read("two.safetensors"), "another model");
    // However much of the gradients is summed at once.
    lab.report(
        "--batch 2 --gpus 2 --steps 12 --look-every 4 --sum-piece all --out all.safetensors",
    );
    assert!(read("all.safetensors") == read("two.safetensors"), "another model");
    // And where each has a part of the optimizer's state.
    lab.report(
        "--batch 2 --gpus 2 --steps 12 --look-every 4 --shard-optimizer --out parts.safetensors",
    );
    assert!(read("parts.safetensors") == read("two.safetensors"), "another model");
    // And sends the others its gradients for theirs.
    lab.report(
        "--batch 2 --gpus 2 --steps 12 --look-every 4 --shard-optimizer --copy-engines --out sent.safetensors",
    );
    assert!(read("sent.safetensors") == read("two.safetensors"), "another model");
    // In bf16 it is told.
    let rounded = lab.report("--batch 2 --gpus 2 --steps 2 --sums bf16 --out rounded.safetensors");
    assert_eq!(rounded["sums"], "in bf16, in pieces");
}

/// Ctrl-C stops all ranks behind the same step; one GPU goes on, in parts where it has not the memory for all.
#[test]
fn a_stopped_training_goes_on_with_another_number_of_ranks() {
    let lab = Lab::new();
    let options = "--steps 60 --look-every 20";
    let whole = lab.report(&format!("--batch 4 {options} --out whole.safetensors"));
    let of_two = format!("--batch 2 --gpus 2 {options} --out m.safetensors");
    let mut stopped =
        lab.train(&of_two).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let until = Instant::now() + Duration::from_secs(60);
    while !lab.at("m.safetensors").exists() {
        assert!(Instant::now() < until, "it never began");
        std::thread::sleep(Duration::from_millis(20));
    }
    let pid = stopped.id() as i32;
    // SAFETY: the process is alive, or a zombie that is this test's own.
    assert_eq!(unsafe { libc::kill(pid, libc::SIGINT) }, 0);
    let status = stopped.wait().unwrap();
    assert_eq!(status.signal(), Some(libc::SIGINT), "{status:?}");
    let other =
        lab.train(&format!("--batch 3 {options} --out m.safetensors --resume")).output().unwrap();
    assert_failed(&other, 2, "--batch: expected 4, as it was begun, got 3");
    let on =
        lab.report(&format!("--batch 2 --accumulate 2 {options} --out m.safetensors --resume"));
    assert_near(&losses(&whole), &losses(&on));
    assert_eq!(on["steps"], 60);
}

#[test]
fn ranks_that_do_not_meet_end() {
    let lab = Lab::new();
    let options = "--batch 2 --steps 1 --out m.safetensors";
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free().local_addr().unwrap().port();
    let alone = lab.train_as(0, port, options).output().unwrap();
    assert_failed(&alone, 4, "expected 2 ranks within 3 s, got 1; missing: 1");
    let taken = free();
    let port = taken.local_addr().unwrap().port();
    let busy = lab.train_as(0, port, options).output().unwrap();
    assert_failed(&busy, 4, "expected a port that is free on this host (MASTER_PORT)");
    drop(taken);

    // One of them has no text, another one, another model, or counts otherwise: both end, and say why.
    std::fs::write(lab.at("other.txt"), "a lazy dog jumps over the quick brown fox.\n".repeat(16))
        .unwrap();
    let both = |wrong: &mut Command| {
        let first = lab.train_as(0, port, options).spawn().unwrap();
        [wrong.output().unwrap(), first.wait_with_output().unwrap()]
    };
    let [own, first] = both(lab.train_as(1, port, options).arg("missing.txt"));
    assert_failed(&own, 2, "missing.txt: No such file");
    assert_failed(&first, 1, "rank 1: missing.txt: No such file");
    for (argument, said) in [
        ("other.txt", "rank 1: data and samples: expected "),
        ("--tied", "rank 1: model: expected {"),
        ("--seed=1", "rank 1: configuration: expected {"),
        (
            "--sums=bf16",
            "rank 1: sums and optimizer's state: expected whole, gradients summed in f32, in pieces, as rank 0 has it, got whole, \
             gradients summed in bf16, in pieces",
        ),
    ] {
        let mut wrong = lab.train_as(1, port, &options.replace("--batch 2", "--batch=2"));
        for output in both(wrong.arg(argument)) {
            assert_failed(&output, 1, &format!("lab: {said}"));
        }
    }
    // Whichever has the copies made by copy engines, all say the same.
    let parts = format!("{options} --shard-optimizer");
    let engines = format!("{parts} --copy-engines");
    for (of_first, of_second, said) in [
        (&engines, &parts, "expected yes, as rank 0 has it, got no"),
        (&parts, &engines, "expected no, as rank 0 has it, got yes"),
    ] {
        let all = [(1, of_second), (0, of_first)]
            .map(|(rank, options)| lab.train_as(rank, port, options).spawn().unwrap());
        for output in all.map(|one| one.wait_with_output().unwrap()) {
            assert_failed(&output, 1, &format!("lab: rank 1: --copy-engines: {said}"));
        }
    }
    let mut third = lab.train_as(1, port, options);
    third.env("WORLD_SIZE", "3");
    let other = lab.train_as(0, port, options).spawn().unwrap();
    let third = third.output().unwrap();
    let said = "rank 1: ranks: expected 2, as rank 0 has it, got 3";
    for output in [third, other.wait_with_output().unwrap()] {
        assert_failed(&output, 1, said);
    }
    assert!(!lab.at("m.safetensors").exists());
}

/// As processes, ranks do what they do as threads. One that is killed, or that stops, ends the other; the file stays whole.
#[test]
fn ranks_that_are_processes_train_and_end_together() {
    let lab = Lab::new();
    let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free().local_addr().unwrap().port();
    let options = "--batch 2 --steps 12 --look-every 4 --out";
    let threads = lab.report(&format!("{options} threads.safetensors --gpus 2"));
    let [mut second, first] = [1, 0]
        .map(|rank| lab.train_as(rank, port, &format!("{options} m.safetensors")).spawn().unwrap());
    let first = first.wait_with_output().unwrap();
    assert!(second.wait().unwrap().success() && first.status.success(), "{first:?}");
    let report: Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!(report["looks"], threads["looks"]);

    for (signal, said) in [
        (libc::SIGKILL, "rank 1: has ended, as its connection has"),
        // Not heard of for so long, or not there at a collective within it.
        (libc::SIGSTOP, " 3 s"),
    ] {
        let out = format!("killed{signal}.safetensors");
        let options = format!("--batch 2 --steps 100000 --look-every 4 --keep-every 4 --out {out}");
        let [mut second, first] =
            [1, 0].map(|rank| lab.train_as(rank, port, &options).spawn().unwrap());
        let until = Instant::now() + Duration::from_secs(60);
        let steps = || lab_lm::Checkpoint::read(&lab.at(&out)).map_or(0, |at| at.position.step);
        while steps() == 0 {
            assert!(Instant::now() < until, "it never began");
            std::thread::sleep(Duration::from_millis(50));
        }
        // SAFETY: the process is alive, or a zombie that is this test's own.
        assert_eq!(unsafe { libc::kill(second.id() as i32, signal) }, 0);
        let killed = Instant::now();
        let first = first.wait_with_output().unwrap();
        assert!(killed.elapsed() < Duration::from_secs(30));
        assert_failed(&first, 1, said);
        assert!(steps() > 0, "the file is whole");
        second.kill().unwrap();
        second.wait().unwrap();
    }
}

#[test]
fn what_no_ranks_can_do_is_refused() {
    let lab = Lab::new();
    let both = lab.train_as(0, 1, "--gpus 2 --steps 1 --out m.safetensors").output().unwrap();
    assert_failed(
        &both,
        2,
        "--gpus: expected none beside the 2 ranks of the launcher's variables, got 2",
    );
    for (gpus, expected) in
        [("0", "--gpus: expected 1 to 1024, got 0"), ("2000", "--gpus: expected 1 to 1024")]
    {
        let output =
            lab.train(&format!("--gpus {gpus} --steps 1 --out m.safetensors")).output().unwrap();
        assert_failed(&output, 2, expected);
    }
    for option in ["--shard-optimizer", "--copy-engines", "--sum-piece 16", "--sums bf16"] {
        let one = lab.train(&format!("{option} --steps 1 --out m.safetensors")).output().unwrap();
        let name = option.split(' ').next().unwrap();
        assert_failed(&one, 2, &format!("{name}: expected several ranks beside it"));
    }
    let whole =
        lab.train("--gpus 2 --copy-engines --steps 1 --out m.safetensors").output().unwrap();
    assert_failed(&whole, 2, "--copy-engines: expected --shard-optimizer beside it, got none");
    let none = lab.train("--gpus 2 --sum-piece 0 --steps 1 --out m.safetensors").output().unwrap();
    assert_failed(&none, 2, "piece of a sum: expected 1 to 1048576 MiB, or all, got 0");
    let mut no_number = lab.train_as(0, 1, "--steps 1 --out m.safetensors");
    let output = no_number.env("WORLD_SIZE", "two").output().unwrap();
    assert_failed(&output, 4, "WORLD_SIZE: expected a number, got 'two'");
    assert!(!lab.at("m.safetensors").exists());
}
