//! `lab exercise [NAME]`: pieces of kernels for a reader to write, and whether what was written does it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use clap::Args;
use lab_device::OBJECTS_VARIABLE;
use lab_device::emulator::write_atomically;
use lab_harness::Stage;
use lab_mutate::{Cut, Exercise, How, Judge, Limit, Planted, Sources, Verdict};
use rayon::prelude::*;
use serde_json::{Value, json};

use self::progress::Progress;
use crate::Common;
use crate::commands::mutate::{Suite, head, jobs, pool};
use crate::commands::watch::Saved;
use crate::commands::workspace;
use crate::failure::Failure;
use crate::part::Part;
use crate::table::{cut, list as plain_list, table, terminal_width};
use crate::{own, words};
use lab_device::emulator::shown;

mod progress;

/// Where a reader's files are, from the workspace's root.
const DIRECTORY: &str = "exercises";

/// How long the tests may take, in seconds.
const LIMIT: u64 = 300;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The exercise; without one: the list
    name: Option<String>,
    /// Begins it again, unsolved; what is in its file is kept beside it, as NAME.old.cu
    #[arg(long, requires = "name")]
    fresh: bool,
    /// Tells where to look
    #[arg(long, requires = "name", conflicts_with_all = ["fresh", "solution", "watch"])]
    hint: bool,
    /// Shows the pieces that are missing, as they are in the stage
    #[arg(long, requires = "name", conflicts_with_all = ["fresh", "watch"])]
    solution: bool,
    /// Judges at each save, until it is solved
    #[arg(long, requires = "name", conflicts_with = "fresh")]
    watch: bool,
    /// Judges every exercise as it is given, which must fail, and every solution
    #[arg(long, conflicts_with = "name", hide = true)]
    all: bool,
    /// A part of each stage's, such as 1/2: always the same ones, at least one of each stage
    #[arg(long, requires = "all", hide = true)]
    part: Option<Part>,
    /// A part of the stages, such as 1/2
    #[arg(long, requires = "all", hide = true)]
    stages: Option<Part>,
    /// Of the solutions no more than the counters: where the suites have just passed
    #[arg(long, requires = "all", hide = true)]
    counted: bool,
}

impl Arguments {
    /// Refuses what only `lab dev exercise` does.
    pub(crate) fn refuse_upkeep(&self) -> Result<(), Failure> {
        crate::commands::refuse_options("exercise", &[(self.all, "--all")])
    }
}

/// An exercise, and the stage that it is of.
struct Task {
    stage: &'static Stage,
    sources: Sources,
    exercise: Exercise,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    let mut tasks = Vec::new();
    for stage in Part::filter(arguments.stages, crate::STAGES.to_vec()) {
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
    let root = workspace()?.root;
    let Some(name) = &arguments.name else {
        list(common, &tasks, &Progress::read(&root)?);
        return Ok(());
    };
    let Some(task) = tasks.iter().find(|t| t.exercise.name == *name) else {
        let known: Vec<_> = tasks.iter().map(|t| t.exercise.name.as_str()).collect();
        let expected = words::known_names(&known, name, "lab exercise");
        let message = format!("exercise: expected {expected}, got '{}'", shown(name, 60));
        return Err(Failure::Usage(message));
    };
    if arguments.hint {
        tell_one(common, "hint", &task.exercise.hint);
        return Ok(());
    }
    if arguments.solution {
        tell_one(common, "solution", &task.solution());
        return Ok(());
    }
    let mut progress = Progress::read(&root)?;
    let path = task.path();
    if arguments.fresh || !path.exists() {
        let was_solved = progress.state(task) == "solved";
        task.begin(common, &path, was_solved)?;
        progress.set(name, false)?;
        if !arguments.watch {
            return Ok(());
        }
    }
    if arguments.watch {
        return watch(common, &tasks, task, &mut progress);
    }
    let text = lab_device::emulator::read_file(&path).map_err(|e| Failure::file(&path, e))?;
    let outcome = task.judge(&String::from_utf8_lossy(&text), 1, true, &steps(common))?;
    record_outcome(common, &tasks, task, &mut progress, &outcome)
}

/// The first exercise that is not solved, with its task; `None` outside of a workspace.
pub(crate) fn next() -> Option<(String, String)> {
    let progress = Progress::read(&workspace().ok()?.root).ok()?;
    crate::STAGES.iter().find_map(|stage| {
        let of_stage = Exercise::read(&Suite::Stage(stage).sources().ok()?).ok()?;
        let next = of_stage.into_iter().find(|e| !progress.is_solved(&e.name))?;
        Some((next.name, next.task))
    })
}

/// Takes down what is solved, and tells.
fn record_outcome(
    common: &Common,
    tasks: &[Task],
    task: &Task,
    progress: &mut Progress,
    outcome: &Outcome,
) -> Result<(), Failure> {
    // What was solved once stays so: a reader may try another way.
    if outcome.is_solved() {
        progress.set(&task.exercise.name, true)?;
    }
    outcome.tell(common, task, &progress.sum_up(tasks))
}

/// Judges at each save until it is solved. Each verdict is told as it comes, with `--json` as one
/// object a line.
fn watch(
    common: &Common,
    tasks: &[Task],
    task: &Task,
    progress: &mut Progress,
) -> Result<(), Failure> {
    let path = task.path();
    let mut saved = Saved::settled(&path);
    loop {
        let told = match task.judge(&saved.text(), 1, true, &steps(common)) {
            Ok(outcome) if outcome.is_solved() => {
                return record_outcome(common, tasks, task, progress, &outcome);
            }
            Ok(outcome) => record_outcome(common, tasks, task, progress, &outcome),
            // What a kernel asks for may be refused before it runs; the next save may mend that.
            Err(refused @ Failure::Usage(_)) => Err(refused),
            Err(other) => return Err(other),
        };
        if let Err(failure) = told {
            failure.tell(common.json);
        }
        if !common.json {
            say!("\nWaiting for the next save of {} (Ctrl-C ends)\n", task.file());
        }
        saved = saved.next(&path);
    }
}

fn tell_one(common: &Common, what: &str, text: &str) {
    if common.json { say!("{}", json!({ what: text })) } else { say!("{}", text.trim_end()) }
}

fn list(common: &Common, tasks: &[Task], progress: &Progress) {
    if common.json {
        let all = tasks.iter().map(|t| {
            json!({ "name": t.exercise.name, "stage": t.stage.name, "task": t.exercise.task,
                    "file": t.exercise.path(&t.sources), "state": progress.state(t) })
        });
        say!("{}", json!({ "exercises": all.collect::<Vec<_>>(), "next": progress.next(tasks) }));
        return;
    }
    // A line each: the whole task is told by the exercise itself.
    let longest = |text: &dyn Fn(&Task) -> usize| tasks.iter().map(text).max().unwrap_or(0);
    let names = longest(&|t| t.exercise.name.len()) + longest(&|t| t.stage.name.len());
    let room = terminal_width().unwrap_or(120).saturating_sub(names + "solved".len() + 2 * 4);
    let mut rows = plain_list(&["exercise", "stage", "state", "what is to be done"]);
    for task in tasks {
        let Exercise { name, task: what, .. } = &task.exercise;
        let (what, _) = cut(what, Some(room.max("what is to be done".len())));
        rows.add_row([name, task.stage.name, progress.state(task), &what]);
    }
    say!(
        "{rows}\n{} exercise NAME tells the whole task, writes {DIRECTORY}/NAME.cu, and judges it from then on",
        own::shell()
    );
    say!("{}", progress.sum_up(tasks));
}

/// Every exercise as it is given and every solution, as many at a time as there are cores.
fn all(common: &Common, tasks: &[Task], counted: bool) -> Result<(), Failure> {
    let workers = jobs(None);
    let work: Vec<(&Task, bool)> =
        tasks.iter().flat_map(|t| [false, true].map(|solution| (t, solution))).collect();
    let judge = |(task, solution): (&Task, bool)| {
        let own = task.sources.text(&task.exercise.path(&task.sources)).unwrap_or_default();
        let text = if solution { own.to_owned() } else { task.exercise.start(&task.sources) };
        task.judge(&text, workers, !(solution && counted), &|_| ())
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
        if given.is_solved() {
            wrong.push(format!("{name}: nothing is left to do"));
        }
        if !solution.is_solved() {
            wrong.push(format!("{name}: its solution fails: {}", solution.short()));
        }
    }
    if common.json {
        say!("{}", json!({ "exercises": told }));
    } else {
        say!("{rows}");
    }
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Wrong(wrong.join("; "))) }
}

/// What became of a text in the place of the kernel file.
struct Outcome {
    verdict: Verdict,
    /// Each limit with what was counted; empty where the tests failed.
    counted: Vec<(Limit, Counted)>,
    /// What asks for more than it needs, with its place.
    loose: Vec<String>,
}

/// Of one operation, over all lines.
struct Counted {
    ratio: Option<f64>,
    cost: u64,
    /// Where most is wasted.
    worst: Option<Worst>,
}

/// A line of source that asks for more than it needs to.
struct Worst {
    /// `file:line`.
    place: String,
    /// Lanes that meet in one bank of shared memory, at most.
    degree: u64,
}

impl Task {
    /// A reader's file, from the workspace's root: as the stage's, with an ending that tells an
    /// editor what it is (`.cuh` for a header).
    fn file(&self) -> String {
        let ending = self.exercise.file.rsplit('.').next().unwrap_or("cu");
        format!("{DIRECTORY}/{}.{ending}", self.exercise.name)
    }

    fn path(&self) -> PathBuf {
        self.sources.workspace.root.join(self.file())
    }

    /// What was said of files of the copy, with their paths in the workspace; of the file in whose
    /// place the reader's was judged, line for line, with the reader's path.
    fn of_reader(&self, planted: &Planted, said: &str) -> String {
        let said = without_generated(said, &planted.scratch().display().to_string())
            .replace(&format!("{}/", planted.tree().display()), "");
        name_file(&said, &self.exercise.path(&self.sources), &self.file())
    }

    /// The pieces that are cut out: the lines that they stand in, as they are given and as they are
    /// in the stage, below the place in the stage's file.
    fn solution(&self) -> String {
        let path = self.exercise.path(&self.sources);
        let whole = self.sources.text(&path).unwrap_or_default();
        let pieces = self.exercise.cuts.iter().filter_map(|cut| piece(&path, whole, cut));
        pieces.collect::<Vec<_>>().join("\n")
    }

    /// Writes what is given, and says what is to be done. What a reader has written there before is kept.
    fn begin(&self, common: &Common, path: &Path, was_solved: bool) -> Result<(), Failure> {
        let unwritable = |e| Failure::file(path, e);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new(DIRECTORY)))
            .map_err(unwritable)?;
        let given = self.exercise.start(&self.sources);
        let Exercise { name, task, .. } = &self.exercise;
        let file = self.file();
        let mut kept = None;
        if std::fs::read(path).is_ok_and(|text| text != given.as_bytes()) {
            let other = file.replacen(&format!("{name}."), &format!("{name}.old."), 1);
            std::fs::rename(path, self.sources.workspace.root.join(&other)).map_err(unwritable)?;
            kept = Some(other);
        }
        write_atomically(path, given.as_bytes()).map_err(unwritable)?;
        if common.json {
            say!(
                "{}",
                json!({ "name": name, "task": task, "file": file, "kept": kept, "solved": false })
            );
        } else {
            if let Some(kept) = kept {
                say!("What was in {file} is in {kept} now.");
            }
            if was_solved {
                say!("It was solved, and does not count as solved any more.");
            }
            say!("{name} ({}): {task}\n", self.stage.name);
            let place = if given.contains("TODO") {
                ", where it says TODO"
            } else {
                ". No TODO marks the place: to find it is a part of the task"
            };
            say!("Edit {file}{place}.");
            say!("To judge it: {} exercise {name} (at each save: --watch)", own::shell());
        }
        Ok(())
    }

    /// Compiles the kernels with `text` in the place of the exercise's file, runs the tests of the
    /// versions that have it unless they are trusted, and counts.
    /// `tell` hears of each step before it: some take a minute.
    fn judge(
        &self,
        text: &str,
        workers: usize,
        tested: bool,
        tell: &dyn Fn(String),
    ) -> Result<Outcome, Failure> {
        let Self { stage, sources, exercise } = self;
        // Sooner told than the tests take: with less of it nothing is found.
        let loose = self.find_needless_waits(text, tell)?;
        if !loose.is_empty() {
            return Ok(Outcome { loose, ..Outcome::of(Verdict::Survived) });
        }
        if !tested && exercise.limits.is_empty() {
            return Ok(Outcome::of(Verdict::Survived));
        }
        let planted = sources.plant(Some(&exercise.solved_by(sources, text)))?;
        let reached = sources.reached(&exercise.path(sources), None);
        for (n, kernel) in reached.iter().enumerate() {
            tell(format!("Compiling {}, {} of {} …", kernel.source.file, n + 1, reached.len()));
            if let Err(said) = planted.compile(kernel)? {
                return Ok(Outcome::of(Verdict::Rejected(self.of_reader(&planted, &said))));
            }
        }
        let files: Vec<&str> = reached.iter().map(|k| k.source.file).collect();
        let each = Duration::from_secs(LIMIT) / files.len().max(1) as u32;
        let limits = files.iter().map(|file| ((*file).to_owned(), each)).collect();
        let judge = Judge { limits, ..Suite::Stage(stage).judge(LIMIT, false, workers)? };
        let verdict = if tested {
            tell(format!("Testing the versions of {} that have it …", stage.name));
            match judge.run(Some(&planted), &files)? {
                Verdict::Caught(how, said) => Verdict::Caught(how, self.of_reader(&planted, &said)),
                other => other,
            }
        } else {
            Verdict::Survived
        };
        if verdict != Verdict::Survived {
            return Ok(Outcome::of(verdict));
        }
        // Another way to wait is no answer to for how many.
        let missing = exercise.loosened(text).err();
        let loose = missing.map(|find| format!("{}: no {find}…> is there", self.file()));
        let mut counted = Vec::new();
        if let Some(version) = exercise.version.as_ref().filter(|_| !exercise.limits.is_empty()) {
            tell(format!("Counting what {version} asks for …"));
            let report = self.count(&planted, version)?;
            for limit in &exercise.limits {
                let own = exercise.path(sources);
                let mut of_operation = Counted::of(&report, &limit.operation);
                if let Some(worst) = &mut of_operation.worst {
                    worst.place = name_file(&worst.place, &own, &self.file());
                }
                counted.push((limit.clone(), of_operation));
            }
        }
        Ok(Outcome { verdict, counted, loose: loose.into_iter().collect() })
    }

    /// What of a right text could ask for less, and still be right: where `lab check` finds nothing.
    fn find_needless_waits(
        &self,
        text: &str,
        tell: &dyn Fn(String),
    ) -> Result<Vec<String>, Failure> {
        let Self { stage, sources, exercise } = self;
        let mut loose = Vec::new();
        let all = exercise.loosened(text).unwrap_or_default();
        let of_all = all.len();
        for (n, (tight, line, less)) in all.into_iter().enumerate() {
            tell(format!("Checking whether less would do, {} of {of_all} …", n + 1));
            let planted = sources.plant(Some(&exercise.solved_by(sources, &less)))?;
            let mut compiles = true;
            for kernel in sources.reached(&exercise.path(sources), None) {
                compiles &= planted.compile(kernel)?.is_ok();
            }
            let version = exercise.version.as_deref().unwrap_or_default();
            let asked = ["check", &format!("{}:{version}", stage.name)];
            if compiles && self.lab(&planted, &asked)?.status.success() {
                loose.push(format!("{}:{line}: {}", self.file(), tight.says));
            }
        }
        Ok(loose)
    }

    /// The tool against the objects, at the shape of the exercise.
    fn lab(&self, planted: &Planted, asked: &[&str]) -> Result<std::process::Output, Failure> {
        let unclear = |e| Failure::Usage(format!("{}: {e}", self.exercise.name));
        let mut command = own::process().map_err(unclear)?;
        command.args(asked);
        if let Some(shape) = &self.exercise.shape {
            command.args(["--shape", shape]);
        }
        command.env(OBJECTS_VARIABLE, planted.objects()).stdin(Stdio::null());
        command.output().map_err(unclear)
    }

    /// What `lab profile` reports, against the objects.
    fn count(&self, planted: &Planted, version: &str) -> Result<Value, Failure> {
        let unclear = |what: String| Failure::Usage(format!("{}: {what}", self.exercise.name));
        let asked = ["profile", &format!("{}:{version}", self.stage.name), "--json"];
        let output = self.lab(planted, &asked)?;
        if !output.status.success() {
            return Err(unclear(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
        serde_json::from_slice(&output.stdout).map_err(|e| unclear(e.to_string()))
    }
}

/// The whole lines that a cut touches, and one more at each end that says where they belong.
fn piece(path: &str, whole: &str, cut: &Cut) -> Option<String> {
    let at = whole.find(&cut.find)?;
    let start = whole[..at].rfind('\n').map_or(0, |i| i + 1);
    let after = at + cut.find.len();
    let end = if cut.find.ends_with('\n') {
        after
    } else {
        whole[after..].find('\n').map_or(whole.len(), |i| after + i + 1)
    };
    let given = [&whole[start..at], &cut.replace, &whole[after..end]].concat();
    let mut text = format!("{path}:{}\n", whole[..start].matches('\n').count() + 1);
    let mut add = |mark: char, lines: &mut dyn Iterator<Item = &str>| {
        for line in lines {
            text += format!("  {mark} {line}").trim_end();
            text.push('\n');
        }
    };
    add(' ', &mut whole[..start].lines().rev().take(1));
    add('-', &mut given.lines());
    add('+', &mut whole[start..end].lines());
    add(' ', &mut whole[end..].lines().take(1));
    Some(text)
}

/// What a compiler said, without the lines which say that a generated file, in the directory
/// `scratch`, includes another: that file is nobody's to read.
fn without_generated(said: &str, scratch: &str) -> String {
    let mut kept: Vec<String> = Vec::new();
    for line in said.lines() {
        let rest = line.trim_start();
        let file = rest.strip_prefix("In file included from ").or(rest.strip_prefix("from "));
        if file.is_none_or(|f| !f.starts_with(scratch)) {
            kept.push(line.to_owned());
        } else if let Some(last) = kept.last_mut().filter(|l| l.ends_with(',')) {
            // It said that one more follows.
            last.replace_range(last.len() - 1.., ":");
        }
    }
    kept.join("\n")
}

/// What was said, with the path `theirs` for `own`.
fn name_file(said: &str, own: &str, theirs: &str) -> String {
    let is_of_name = |c: char| c.is_alphanumeric() || "_-/".contains(c);
    let mut text = String::new();
    let mut end = 0;
    for (at, _) in said.match_indices(own) {
        // No part of a longer path, as `kernels/a.cu` is of `kernels/a.cuh`.
        let rest = &said[at + own.len()..];
        if !said[..at].ends_with(is_of_name) && !rest.starts_with(is_of_name) {
            text += &said[end..at];
            text += theirs;
            end = at + own.len();
        }
    }
    text + &said[end..]
}

impl Counted {
    fn of(report: &Value, operation: &str) -> Self {
        let of_operation = |all: &'static str| {
            let all = report[all].as_array().into_iter().flatten();
            all.filter(move |entry| entry["operation"] == operation)
        };
        let Some(total) = of_operation("totals").next() else {
            return Self { ratio: None, cost: 0, worst: None };
        };
        let number = |entry: &Value, name: &str| entry[name].as_u64().unwrap_or(0);
        let excess = |line: &&Value| number(line, "cost").saturating_sub(number(line, "ideal"));
        let worst = of_operation("lines").filter(|line| excess(line) > 0).max_by_key(excess);
        let worst = worst.map(|line| Worst {
            place: format!("{}:{}", line["file"].as_str().unwrap_or_default(), line["line"]),
            degree: number(line, "degree"),
        });
        let cost = match number(total, "cost") {
            0 => number(total, "requests"),
            cost => cost,
        };
        Self { ratio: total["ratio"].as_f64(), cost, worst }
    }

    /// Ratios are told to two digits, and held to as many.
    fn is_within(&self, limit: &Limit) -> bool {
        let ratio = limit.ratio.is_none_or(|most| self.ratio.is_none_or(|r| r < most + 0.005));
        ratio && limit.cost.is_none_or(|most| self.cost <= most)
    }

    fn said(&self, limit: &Limit) -> String {
        let mut parts = Vec::new();
        if let (Some(most), Some(ratio)) = (limit.ratio, self.ratio) {
            let side = side_of(ratio >= most + 0.005);
            parts.push(format!("{ratio:.2} times the fewest, {side} the limit of {most:.2}"));
        }
        if let Some(most) = limit.cost {
            let side = side_of(self.cost > most);
            parts.push(format!("{}, {side} the limit of {most}", self.cost));
        }
        format!("{}: {}", limit.operation, parts.join("; "))
    }
}

/// Where a person reads, the steps of a judgement, as they begin.
fn steps(common: &Common) -> impl Fn(String) {
    let is_told = !common.json;
    move |step| {
        if is_told {
            note!("{step}");
        }
    }
}

/// On which side of a limit a count is.
const fn side_of(is_over: bool) -> &'static str {
    if is_over { "over" } else { "within" }
}

impl Worst {
    fn said(&self) -> String {
        match self.degree {
            0 | 1 => format!("the most at {}", self.place),
            n => format!(
                "bank conflicts: at {} up to {n} lanes of a warp meet in one bank",
                self.place
            ),
        }
    }
}

impl Outcome {
    fn of(verdict: Verdict) -> Self {
        Self { verdict, counted: Vec::new(), loose: Vec::new() }
    }

    fn is_solved(&self) -> bool {
        self.verdict == Verdict::Survived && !self.exceeds() && self.loose.is_empty()
    }

    /// Whether only the counters are against it.
    fn exceeds(&self) -> bool {
        self.counted.iter().any(|(l, c)| !c.is_within(l))
    }

    /// In a few words.
    fn short(&self) -> String {
        match &self.verdict {
            Verdict::Rejected(_) => "does not compile".into(),
            Verdict::Caught(how, _) => format!("caught by {}", how.name()),
            Verdict::Survived | Verdict::SameCode => {
                match self.counted.iter().find(|(l, c)| !c.is_within(l)) {
                    Some((limit, counted)) => counted.said(limit),
                    None => self.loose.first().cloned().unwrap_or_else(|| "solved".into()),
                }
            }
        }
    }

    fn as_json(&self) -> Value {
        let counted = self.counted.iter().map(|(limit, counted)| {
            json!({ "operation": limit.operation, "cost": counted.cost, "ratio": counted.ratio,
                    "most_cost": limit.cost, "most_ratio": limit.ratio, "kept": counted.is_within(limit) })
        });
        let said = match &self.verdict {
            Verdict::Rejected(said) | Verdict::Caught(_, said) => Some(said),
            Verdict::Survived | Verdict::SameCode => None,
        };
        json!({ "solved": self.is_solved(), "outcome": self.short(), "said": said,
                "counted": counted.collect::<Vec<_>>(), "loose": self.loose })
    }

    /// Tells a reader, and how the command ends.
    fn tell(&self, common: &Common, task: &Task, progress: &str) -> Result<(), Failure> {
        let Exercise { name, task: what, .. } = &task.exercise;
        if common.json {
            say!("{}", self.as_json());
        } else {
            say!("{name} ({}): {what}\n", task.stage.name);
            match &self.verdict {
                Verdict::Rejected(said) => say!("It does not compile:\n{}", head(said)),
                Verdict::Caught(how, said) => {
                    say!("Caught by {}:\n{}", how.name(), said.trim_start_matches("lab: "));
                }
                Verdict::Survived | Verdict::SameCode if !self.loose.is_empty() => {}
                Verdict::Survived | Verdict::SameCode => {
                    say!("Results are right, and the emulator finds no fault.");
                }
            }
            for (limit, counted) in &self.counted {
                let keeps = counted.is_within(limit);
                say!("{}", counted.said(limit));
                if let Some(worst) = counted.worst.as_ref().filter(|_| !keeps) {
                    say!("  {}", worst.said());
                }
            }
            self.loose.iter().for_each(|said| say!("{said}"));
            if let Some(version) = task.exercise.version.as_ref().filter(|_| self.exceeds()) {
                say!(
                    "The stage's own kernel, line by line: {} profile {}:{version}",
                    own::shell(),
                    task.stage.name
                );
            }
            if self.is_solved() {
                say!("\nSolved. Ours is {}.", task.exercise.path(&task.sources));
                say!("{progress}");
            } else {
                say!("\nWhere to look: {} exercise {name} --hint", own::shell());
            }
        }
        if self.is_solved() {
            return Ok(());
        }
        // Why, has been said.
        let message = format!("{name} is not solved yet");
        Err(match &self.verdict {
            Verdict::Caught(How::Sanitizer, _) => Failure::Found(message),
            _ => Failure::Wrong(message),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_names_the_file_of_the_reader() {
        let named = |said| name_file(said, "stages/a/k.cu", "exercises/x.cu");
        assert_eq!(
            named("stages/a/k.cu:3:1: ‘f’ (stages/a/k.cu)"),
            "exercises/x.cu:3:1: ‘f’ (exercises/x.cu)"
        );
        for other in ["stages/a/k.cuh:3", "other/stages/a/k.cu", "stages/a/k.cu/b", ""] {
            assert_eq!(named(other), other);
        }
    }

    #[test]
    fn a_report_names_no_generated_file() {
        let said = |first, second| format!("{first}\n{second}\nk.cuh:3: error");
        let header = said("In file included from k.cu:8,", "                 from /s/k.cpp:2:");
        assert_eq!(
            without_generated(&header, "/s"),
            "In file included from k.cu:8:\nk.cuh:3: error"
        );
        let clang = said("In file included from /s/k.cpp:2:", "In file included from k.cu:8:");
        assert_eq!(without_generated(&clang, "/s"), without_generated(&header, "/s"));
    }

    #[test]
    fn a_piece_is_shown_by_whole_lines_and_their_neighbours() {
        let cut = Cut { find: "b + 1;\n".into(), replace: "b;  // TODO\n".into() };
        let shown = piece("k.cu", "one\n  a = b + 1;\ntwo\n", &cut).unwrap_or_default();
        let lines = ["k.cu:2", "    one", "  -   a = b;  // TODO", "  +   a = b + 1;", "    two"];
        assert_eq!(shown.lines().collect::<Vec<_>>(), lines);
        let cut = Cut { find: "one\n".into(), replace: String::new() };
        let shown = piece("k.cu", "one\n", &cut).unwrap_or_default();
        assert_eq!(shown.lines().collect::<Vec<_>>(), ["k.cu:1", "  + one"]);
        let cut = Cut { find: "two".into(), replace: String::new() };
        assert!(piece("k.cu", "one\n", &cut).is_none());
    }
}
