//! `lab app FILE.cu -- ARGUMENTS`: a CUDA program of anybody's, every launch checked.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use clap::Args;
use lab_app::{Error, Options, Program, Report};
use lab_emulator::Finding;
use serde_json::json;

use crate::failure::Failure;
use crate::finding::finding_json;
use crate::words::{counted_as, counted_findings};
use crate::{out, own};

/// The program is compiled by the host's C++ compiler and runs natively, with your rights: run what you
/// would run without this tool. Its own output and exit code are kept; findings go to stderr and end
/// with exit code 3.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The program's files: .cu, .cpp, .cc or .c
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Where its headers are
    #[arg(short = 'I', long = "include", value_name = "DIRECTORY")]
    include: Vec<PathBuf>,
    /// A macro: NAME or NAME=VALUE
    #[arg(short = 'D', long = "define", value_name = "NAME")]
    define: Vec<String>,
    /// The language that it is written in
    #[arg(long = "std", value_name = "STANDARD", default_value = "c++17")]
    standard: String,
    /// Runs it fast, and checks nothing
    #[arg(long)]
    plain: bool,
    /// The order of threads in every launch: forward, reverse, warps, random[:SEED] or starve[:SEED]
    #[arg(long)]
    order: Option<String>,
    /// Seed of --order random and starve
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Ends it after so many seconds
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// So much memory it may have, such as 8GiB
    #[arg(long, value_name = "BYTES")]
    memory: Option<String>,
    /// What is wrong by the letter alone counts as well: the exit code is 3
    #[arg(long)]
    strict: bool,
    /// The GPU that is stood for, such as sm_90: __CUDA_ARCH__, device properties, shared memory, clusters [default: sm_80]
    #[arg(long)]
    arch: Option<String>,
    /// All that the compiler says, where it refuses the program
    #[arg(long)]
    verbose: bool,
    /// Arguments of the program
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// Compiles and runs the program, which ends this process.
///
/// # Errors
/// Nothing was run, and why.
pub fn run(json: bool, arguments: &Arguments) -> Result<(), Failure> {
    let options = Options {
        include: arguments.include.clone(),
        define: arguments.define.clone(),
        standard: Some(arguments.standard.clone()),
        plain: arguments.plain,
        debug: false,
        timeout: arguments.timeout.map(seconds).transpose()?,
        memory: arguments.memory.as_deref().map(bytes).transpose()?,
        arch: crate::kernel::arch(arguments.arch.as_deref())?,
        order: crate::kernel::order(arguments.order.as_deref(), arguments.seed)?,
    };
    STRICT.store(arguments.strict, Ordering::Relaxed);
    let program = Program::build(&arguments.files, &options).map_err(|error| match error {
        Error::Compile { said, .. } if arguments.verbose => Failure::Usage(said),
        other => Failure::Usage(other.to_string()),
    })?;
    for header in program.missing_headers() {
        eprintln!("{} app: {header} is not there, and nothing needed it", own::name());
    }
    let own = std::iter::once(arguments.files[0].with_extension("").display().to_string());
    let all: Vec<String> = own.chain(arguments.arguments.iter().cloned()).collect();
    let end = if json { end_in_json } else { end_in_text };
    if json {
        output_to_stderr();
    }
    program.run(&all, end).map_err(|error| Failure::Usage(error.to_string()))
}

pub(crate) fn seconds(given: f64) -> Result<Duration, Failure> {
    let wrong = || format!("--timeout: expected seconds from 0.001 to 1000000, got {given}");
    let is_fine = (0.001..=1e6).contains(&given);
    is_fine.then(|| Duration::from_secs_f64(given)).ok_or_else(|| Failure::Usage(wrong()))
}

/// `8GiB`, `500MB`, `1000000`.
pub(crate) fn bytes(given: &str) -> Result<u64, Failure> {
    let wrong = || {
        let expected = "bytes from 64MiB, such as 8GiB, 500MB or 1000000000";
        let given = lab_emulator::shown(given, 60);
        Failure::Usage(format!("--memory: expected {expected}, got '{given}'"))
    };
    let text = given.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit: u64 = match &text[end..] {
        "" | "B" => 1,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(wrong()),
    };
    let number: u64 = text[..end].parse().map_err(|_| wrong())?;
    number.checked_mul(unit).filter(|&n| n >= 64 << 20).ok_or_else(wrong)
}

/// Whether what is wrong by the letter alone counts.
static STRICT: AtomicBool = AtomicBool::new(false);

/// Findings outrank what the program says of itself, and that outranks a text that could not be written.
fn code(report: &Report) -> u8 {
    let strict = STRICT.load(Ordering::Relaxed);
    let counts = |(_, finding): &(String, Finding)| strict || finding.formal.is_none();
    match report.findings.iter().any(counts) {
        true => 3,
        false if report.exit == 0 => {
            report.lost.as_deref().map_or(0, |why| Failure::lost(why).code())
        }
        false => report.exit as u8,
    }
}

fn end_in_text(report: Report) -> u8 {
    let tool = own::name();
    for refused in &report.refused {
        eprintln!("{tool} app: {refused}");
    }
    if let Some(fault) = &report.fault {
        eprintln!("{tool} app: {fault}");
    }
    let more = match report.repeated {
        0 => String::new(),
        n => format!(" ({n} more at the same places)"),
    };
    if let Some(why) = &report.lost {
        eprintln!("{tool} app: {}", Failure::lost(why).message());
    }
    eprintln!(
        "{tool} app: {}, {}{more}; the program ended with {}",
        counted_as(report.launches, "launch", "launches"),
        counted_findings(report.findings.iter().map(|(_, finding)| finding)),
        report.exit
    );
    code(&report)
}

/// Where stdout went before the program had it.
static STDOUT: std::sync::OnceLock<i32> = std::sync::OnceLock::new();

/// One JSON object is all that stdout gets.
pub(crate) fn output_to_stderr() {
    // SAFETY: descriptors of this process, which nobody uses yet.
    unsafe {
        let _ = STDOUT.set(libc::dup(std::io::stdout().as_raw_fd()));
        libc::dup2(std::io::stderr().as_raw_fd(), std::io::stdout().as_raw_fd());
    }
}

/// Undoes [`output_to_stderr`], if that was called.
pub(crate) fn output_to_stdout() {
    if let Some(&stdout) = STDOUT.get() {
        // SAFETY: as in `output_to_stderr`.
        unsafe { libc::dup2(stdout, std::io::stdout().as_raw_fd()) };
    }
}

fn end_in_json(report: Report) -> u8 {
    output_to_stdout();
    let code = code(&report);
    let findings = report.findings.iter().map(|(kernel, finding)| {
        let mut object = finding_json(finding);
        object["kernel"] = json!(kernel);
        object
    });
    println!(
        "{}",
        json!({ "launches": report.launches, "findings": findings.collect::<Vec<_>>(),
                "repeated": report.repeated, "refused": report.refused,
                "fault": report.fault,
                "program": report.exit, "exit": code })
    );
    // The object is the result: the program's own text went to stderr.
    match out::lost() {
        Some(why) if code == 0 => {
            eprintln!("{} app: {}", own::name(), Failure::lost(why).message());
            Failure::lost(why).code()
        }
        _ => code,
    }
}
