//! `lab exercise [NAME]`: pieces of kernels for a reader to write, and whether what was written does it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;
use lab_device::OBJECTS_VARIABLE;
use lab_device::emulator::write_atomically;
use lab_harness::Stage;
use lab_mutate::{Exercise, How, Judge, Limit, Planted, Sources, Verdict};
use rayon::prelude::*;
use serde_json::{Value, json};

use crate::Common;
use crate::commands::mutate::{Suite, head, jobs, pool};
use crate::failure::Failure;
use crate::part::Part;
use crate::table::table;

/// Where a reader's files are, from the workspace's root.
const DIRECTORY: &str = "exercises";

/// How long the tests may take, in seconds.
const LIMIT: u64 = 300;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The exercise; without one: the list
    name: Option<String>,
    /// Begins it again: what is in its file is lost
    #[arg(long, requires = "name")]
    fresh: bool,
    /// Judges the solution, the kernel as it is in its stage
    #[arg(long, requires = "name", conflicts_with = "fresh")]
    solution: bool,
    /// Judges every exercise as it is given, which must fail, and every solution
    #[arg(long, conflicts_with = "name")]
    all: bool,
    /// A part of each stage's, such as 1/2: always the same ones, at least one of each stage
    #[arg(long, requires = "all")]
    part: Option<Part>,
    /// Of the solutions no more than the counters: where the suites have just passed
    #[arg(long, requires = "all")]
    counted: bool,
}

/// An exercise, and the stage that it is of.
struct Task {
    stage: &'static Stage,
    sources: Sources,
    exercise: Exercise,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let mut tasks = Vec::new();
    for &stage in crate::STAGES {
        let sources = Suite::Stage(stage).sources()?;
        let of_stage = Part::filter(arguments.part, Exercise::read(&sources)?);
        tasks.extend(of_stage.into_iter().map(|e| Task {
            stage,
            sources: sources.clone(),
            exercise: e,
        }));
    }
    if arguments.all {
        return all(common, &tasks, arguments.counted);
    }
    let Some(name) = &arguments.name else {
        list(common, &tasks);
        return Ok(());
    };
    let Some(task) = tasks.iter().find(|t| t.exercise.name == *name) else {
        let known: Vec<_> = tasks.iter().map(|t| t.exercise.name.as_str()).collect();
        let message = format!("exercise: expected one of {}, got '{name}'", known.join(", "));
        return Err(Failure::Usage(message));
    };
    let path = task.path();
    if arguments.solution {
        let text = task.sources.text(&task.exercise.path(&task.sources)).unwrap_or_default();
        return task.judge(text, 1, true)?.tell(common, task);
    }
    if arguments.fresh || !path.exists() {
        return task.begin(common, &path);
    }
    let text = std::fs::read_to_string(&path)
        .map_err(|e| Failure::Usage(format!("{}: {e}", path.display())))?;
    task.judge(&text, 1, true)?.tell(common, task)
}

fn list(common: &Common, tasks: &[Task]) {
    if common.json {
        let all = tasks.iter().map(|t| {
            json!({ "name": t.exercise.name, "stage": t.stage.name, "task": t.exercise.task,
                    "file": t.exercise.path(&t.sources), "begun": t.path().exists() })
        });
        println!("{}", json!({ "exercises": all.collect::<Vec<_>>() }));
        return;
    }
    let mut rows = table(&["exercise", "stage", "what is to be done", "begun"]);
    for task in tasks {
        let begun = if task.path().exists() { "yes" } else { "" };
        let Exercise { name, task: what, .. } = &task.exercise;
        rows.add_row([name, task.stage.name, what, begun]);
    }
    println!("{rows}\nlab exercise NAME writes {DIRECTORY}/NAME.cu, and judges it from then on");
}

/// Every exercise as it is given and every solution, as many at a time as there are cores.
fn all(common: &Common, tasks: &[Task], counted: bool) -> Result<(), Failure> {
    let workers = jobs(None);
    let work: Vec<(&Task, bool)> =
        tasks.iter().flat_map(|t| [false, true].map(|solution| (t, solution))).collect();
    let judge = |(task, solution): (&Task, bool)| {
        let own = task.sources.text(&task.exercise.path(&task.sources)).unwrap_or_default();
        let text = if solution { own.to_owned() } else { task.exercise.start(&task.sources) };
        task.judge(&text, workers, !(solution && counted))
    };
    let outcomes: Vec<_> =
        pool(workers)?.install(|| work.par_iter().map(|&pair| judge(pair)).collect());
    let mut wrong = Vec::new();
    let mut rows = table(&["exercise", "stage", "as it is given", "its solution"]);
    let mut told = Vec::new();
    for (pair, task) in outcomes.chunks(2).zip(tasks) {
        let [Ok(given), Ok(solution)] = pair else {
            let failed = outcomes.into_iter().find_map(Result::err);
            return Err(failed.unwrap_or_else(|| Failure::Wrong("no outcome".into())));
        };
        let name = &task.exercise.name;
        rows.add_row([name, task.stage.name, &given.short(), &solution.short()]);
        told.push(
            json!({ "name": name, "given": given.as_json(), "solution": solution.as_json() }),
        );
        if given.solved() {
            wrong.push(format!("{name}: nothing is left to do"));
        }
        if !solution.solved() {
            wrong.push(format!("{name}: its solution fails: {}", solution.short()));
        }
    }
    if common.json {
        println!("{}", json!({ "exercises": told }));
    } else {
        println!("{rows}");
    }
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Wrong(wrong.join("; "))) }
}

/// What became of a text in the place of the kernel file.
struct Outcome {
    verdict: Verdict,
    /// Each limit with what was counted; empty where the tests failed.
    counted: Vec<(Limit, Counted)>,
}

/// Of one operation, over all lines.
struct Counted {
    ratio: Option<f64>,
    cost: u64,
}

impl Task {
    fn path(&self) -> PathBuf {
        let name = format!("{}.cu", self.exercise.name);
        self.sources.workspace.root.join(DIRECTORY).join(name)
    }

    /// Writes what is given, and says what is to be done.
    fn begin(&self, common: &Common, path: &Path) -> Result<(), Failure> {
        let unwritable = |e: std::io::Error| Failure::Usage(format!("{}: {e}", path.display()));
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new(DIRECTORY)))
            .map_err(unwritable)?;
        write_atomically(path, self.exercise.start(&self.sources).as_bytes())
            .map_err(unwritable)?;
        let Exercise { name, task, .. } = &self.exercise;
        let file = format!("{DIRECTORY}/{name}.cu");
        if common.json {
            println!("{}", json!({ "name": name, "task": task, "file": file, "solved": false }));
        } else {
            println!("{name} ({}): {task}\n", self.stage.name);
            println!("Edit {file}, where it says TODO; then `lab exercise {name}` judges it.");
        }
        Ok(())
    }

    /// Compiles the kernels with `text` in the place of the exercise's file, runs the tests of the
    /// versions that have it unless they are trusted, and counts.
    fn judge(&self, text: &str, workers: usize, tested: bool) -> Result<Outcome, Failure> {
        let Self { stage, sources, exercise } = self;
        if !tested && exercise.limits.is_empty() {
            return Ok(Outcome { verdict: Verdict::Survived, counted: Vec::new() });
        }
        let planted = sources.plant(Some(&exercise.solved_by(sources, text)))?;
        let reached = sources.reached(&exercise.path(sources), None);
        let failed = |verdict| Outcome { verdict, counted: Vec::new() };
        for kernel in &reached {
            if let Err(said) = planted.compile(kernel)? {
                return Ok(failed(Verdict::Rejected(said)));
            }
        }
        let files: Vec<&str> = reached.iter().map(|k| k.source.file).collect();
        let each = Duration::from_secs(LIMIT) / files.len().max(1) as u32;
        let limits = files.iter().map(|file| ((*file).to_owned(), each)).collect();
        let judge = Judge { limits, ..Suite::Stage(stage).judge(LIMIT, false, workers)? };
        let verdict = match tested {
            true => judge.run(Some(&planted), &files)?,
            false => Verdict::Survived,
        };
        if verdict != Verdict::Survived {
            return Ok(failed(verdict));
        }
        let mut counted = Vec::new();
        if let Some(version) = exercise.version.as_ref().filter(|_| !exercise.limits.is_empty()) {
            let totals = self.count(&planted, version)?;
            for limit in &exercise.limits {
                counted.push((limit.clone(), Counted::of(&totals, &limit.operation)));
            }
        }
        Ok(Outcome { verdict, counted })
    }

    /// The totals of `lab profile`, against the objects.
    fn count(&self, planted: &Planted, version: &str) -> Result<Value, Failure> {
        let unclear = |what: String| Failure::Usage(format!("{}: {what}", self.exercise.name));
        let program = std::env::current_exe().map_err(|e| unclear(e.to_string()))?;
        let mut command = Command::new(program);
        command.args(["profile", &format!("{}:{version}", self.stage.name), "--json"]);
        if let Some(shape) = &self.exercise.shape {
            command.args(["--shape", shape]);
        }
        command.env(OBJECTS_VARIABLE, planted.objects()).stdin(Stdio::null());
        let output = command.output().map_err(|e| unclear(e.to_string()))?;
        if !output.status.success() {
            return Err(unclear(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        let report: Value =
            serde_json::from_slice(&output.stdout).map_err(|e| unclear(e.to_string()))?;
        Ok(report["totals"].clone())
    }
}

impl Counted {
    fn of(totals: &Value, operation: &str) -> Self {
        let mut all = totals.as_array().into_iter().flatten();
        match all.find(|t| t["operation"] == operation) {
            None => Self { ratio: None, cost: 0 },
            Some(total) => {
                let number = |name: &str| total[name].as_u64().unwrap_or(0);
                let cost = if number("cost") > 0 { number("cost") } else { number("requests") };
                Self { ratio: total["ratio"].as_f64(), cost }
            }
        }
    }

    /// Ratios are told to two digits, and held to as many.
    fn keeps(&self, limit: &Limit) -> bool {
        let ratio = limit.ratio.is_none_or(|most| self.ratio.is_none_or(|r| r < most + 0.005));
        ratio && limit.cost.is_none_or(|most| self.cost <= most)
    }

    fn said(&self, limit: &Limit) -> String {
        let mut parts = Vec::new();
        if let (Some(most), Some(ratio)) = (limit.ratio, self.ratio) {
            parts.push(format!("{ratio:.2} times the fewest, at most {most:.2}"));
        }
        if let Some(most) = limit.cost {
            parts.push(format!("{}, at most {most}", self.cost));
        }
        format!("{}: {}", limit.operation, parts.join("; "))
    }
}

impl Outcome {
    fn solved(&self) -> bool {
        self.verdict == Verdict::Survived && self.counted.iter().all(|(l, c)| c.keeps(l))
    }

    /// In a few words.
    fn short(&self) -> String {
        match &self.verdict {
            Verdict::Rejected(_) => "does not compile".into(),
            Verdict::Caught(how, _) => format!("caught by {}", how.name()),
            Verdict::Survived | Verdict::SameCode => {
                match self.counted.iter().find(|(l, c)| !c.keeps(l)) {
                    Some((limit, counted)) => counted.said(limit),
                    None => "solved".into(),
                }
            }
        }
    }

    fn as_json(&self) -> Value {
        let counted = self.counted.iter().map(|(limit, counted)| {
            json!({ "operation": limit.operation, "cost": counted.cost, "ratio": counted.ratio,
                    "most_cost": limit.cost, "most_ratio": limit.ratio, "kept": counted.keeps(limit) })
        });
        let said = match &self.verdict {
            Verdict::Rejected(said) | Verdict::Caught(_, said) => Some(said),
            Verdict::Survived | Verdict::SameCode => None,
        };
        json!({ "solved": self.solved(), "outcome": self.short(), "said": said,
                "counted": counted.collect::<Vec<_>>() })
    }

    /// Tells a reader, and how the command ends.
    fn tell(&self, common: &Common, task: &Task) -> Result<(), Failure> {
        let Exercise { name, task: what, hint, file, .. } = &task.exercise;
        if common.json {
            println!("{}", self.as_json());
        } else {
            println!("{name} ({}): {what}\n", task.stage.name);
            match &self.verdict {
                Verdict::Rejected(said) => println!("It does not compile:\n{}", head(said)),
                Verdict::Caught(how, said) => println!("Caught by {}:\n{said}", how.name()),
                Verdict::Survived | Verdict::SameCode => {
                    println!("Results are right, and the emulator finds no fault.");
                }
            }
            for (limit, counted) in &self.counted {
                let mark = if counted.keeps(limit) { "kept" } else { "not kept" };
                println!("{}: {mark}", counted.said(limit));
            }
            match self.solved() {
                true => println!("\nSolved. Ours is stages/{}/{file}.", task.stage.name),
                false => println!("\nHint: {hint}"),
            }
        }
        if self.solved() {
            return Ok(());
        }
        let message = format!("{name}: {}", self.short());
        Err(match &self.verdict {
            Verdict::Caught(How::Sanitizer, _) => Failure::Found(message),
            _ => Failure::Wrong(message),
        })
    }
}
