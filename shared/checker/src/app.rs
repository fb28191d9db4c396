//! `lab app FILE.cu -- ARGUMENTS`: a CUDA program of anybody's, every launch checked.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, ValueEnum};
use lab_app::{Built, Error, Nvcc, Options, Program, Report};
use lab_emulator::Finding;
use serde_json::json;

use crate::arguments::{arch, bytes, order, seconds};
use crate::failure::CheckFailure;
use crate::finding::finding_json;
use crate::front::{Front, hint};
use crate::stdout::{output_to_stderr, output_to_stdout};
use crate::words::{counted_as, counted_findings};
use crate::{out, own};

/// The program is compiled by the host's C++ compiler and runs natively, with your rights: run what you
/// would run without this tool. Its own output and exit code are kept; findings go to stderr and end
/// with exit code 3, and so do errors of API calls, handled or not.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The program's files: .cu, .cpp, .cc or .c; or one program that nvcc has built with -cudart shared
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
    /// Ends it so many seconds after the tool began; below 30, the run has a second at least
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<f64>,
    /// So much memory it may have, such as 8GiB
    #[arg(long, value_name = "BYTES")]
    memory: Option<String>,
    /// What is wrong by the letter alone counts as well: the exit code is 3
    #[arg(long)]
    strict: bool,
    /// Errors of API calls, such as a launch that is refused: explicit, the exit code is 3; no, the program may make them
    #[arg(long, value_enum, default_value_t)]
    report_api_errors: ApiErrors,
    /// The GPU that is stood for, such as sm_90: __CUDA_ARCH__, device properties, shared memory, clusters [default: sm_80]
    #[arg(long)]
    arch: Option<String>,
    /// All that the compiler says, where it refuses the program
    #[arg(long)]
    verbose: bool,
    /// Who compiles it
    #[arg(long, value_enum, default_value_t)]
    front: Front,
    /// Arguments of the program
    #[arg(last = true)]
    arguments: Vec<String>,
}

/// What errors of API calls do, as compute-sanitizer's option of the same name has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ApiErrors {
    /// They count as findings do.
    #[default]
    Explicit,
    /// They are told, and the program's own exit code stays.
    No,
}

/// Compiles and runs the program, which ends this process.
///
/// # Errors
/// Nothing was run, and why.
pub fn run(json: bool, arguments: &Arguments) -> Result<(), CheckFailure> {
    let options = Options {
        include: arguments.include.clone(),
        define: arguments.define.clone(),
        standard: Some(arguments.standard.clone()),
        plain: arguments.plain,
        debug: false,
        timeout: arguments.timeout.map(seconds).transpose()?,
        memory: arguments.memory.as_deref().map(bytes).transpose()?,
        arch: arch(arguments.arch.as_deref())?,
        order: order(arguments.order.as_deref(), arguments.seed)?,
    };
    STRICT.store(arguments.strict, Ordering::Relaxed);
    let counted = arguments.report_api_errors == ApiErrors::Explicit;
    API_ERRORS_COUNT.store(counted, Ordering::Relaxed);
    if let Some(program) = built(arguments)? {
        let given = arguments.arch.as_deref().map(|name| arch(Some(name))).transpose()?;
        let built = Built::open(program, &options, given).map_err(|e| refused(e, arguments))?;
        return run_built(json, built, "as it is", arguments);
    }
    if arguments.front == Front::Nvcc {
        return run_by_nvcc(json, &options, arguments);
    }
    let program = match Program::build(&arguments.files, &options) {
        Ok(program) => program,
        Err(Error::Compile { summary, .. })
            if arguments.front == Front::Auto && Nvcc::find().is_ok() =>
        {
            note!("{} app: the host's compiler refuses it: {summary}", own::name());
            return run_by_nvcc(json, &options, arguments);
        }
        Err(error @ Error::Compile { .. }) => {
            let failure = refused(error, arguments);
            return Err(CheckFailure::Usage(format!(
                "{}{}",
                failure.message(),
                hint(failure.message())
            )));
        }
        Err(error) => return Err(refused(error, arguments)),
    };
    for header in program.missing_headers() {
        note!("{} app: {header} is not there, and nothing needed it", own::name());
    }
    let own = std::iter::once(arguments.files[0].with_extension("").display().to_string());
    let all: Vec<String> = own.chain(arguments.arguments.iter().cloned()).collect();
    let end = if json { end_in_json } else { end_in_text };
    if json {
        output_to_stderr();
    }
    program.run(&all, end).map_err(|error| {
        if json {
            output_to_stdout();
        }
        CheckFailure::Usage(error.to_string())
    })
}

/// The program among the files, which nvcc has built.
fn built(arguments: &Arguments) -> Result<Option<&Path>, CheckFailure> {
    let Some(program) = arguments.files.iter().find(|file| Built::is_program(file)) else {
        return Ok(None);
    };
    match arguments.files.len() {
        1 => Ok(Some(program)),
        more => Err(CheckFailure::Usage(format!(
            "{}: expected files of source, or one program that is built, got {more} files",
            program.display()
        ))),
    }
}

/// Why nothing was run.
fn refused(error: Error, arguments: &Arguments) -> CheckFailure {
    match error {
        Error::Compile { said, .. } if arguments.verbose => CheckFailure::Usage(said),
        late @ Error::Late { .. } => CheckFailure::Refused(late.to_string()),
        other => CheckFailure::Usage(other.to_string()),
    }
}

/// Builds the program by nvcc, and runs it.
fn run_by_nvcc(json: bool, options: &Options, arguments: &Arguments) -> Result<(), CheckFailure> {
    let nvcc = Nvcc::find().map_err(|error| CheckFailure::Unavailable(error.to_string()))?;
    let built = nvcc.build(&arguments.files, options).map_err(|e| refused(e, arguments))?;
    run_built(json, built, &format!("built by {}", nvcc.name()), arguments)
}

/// Runs a program that is built, which ends this process.
fn run_built(
    json: bool,
    built: Built,
    how: &str,
    arguments: &Arguments,
) -> Result<(), CheckFailure> {
    let first = &arguments.files[0];
    note!("{} app: {}, {how}, on {}", own::name(), first.display(), built.arch());
    let name = if Built::is_program(first) { first.clone() } else { first.with_extension("") };
    let all: Vec<String> = std::iter::once(name.display().to_string())
        .chain(arguments.arguments.iter().cloned())
        .collect();
    let end = if json { end_in_json } else { end_in_text };
    if json {
        output_to_stderr();
    }
    built.run(&all, end).map_err(|error| {
        if json {
            output_to_stdout();
        }
        CheckFailure::Usage(error.to_string())
    })
}

/// Whether what is wrong by the letter alone counts.
static STRICT: AtomicBool = AtomicBool::new(false);
/// Whether errors of API calls count.
static API_ERRORS_COUNT: AtomicBool = AtomicBool::new(true);

/// Findings outrank what the program says of itself, and that outranks a text that could not be written.
fn code(report: &Report) -> u8 {
    let strict = STRICT.load(Ordering::Relaxed);
    let counts = |(_, finding): &(String, Finding)| strict || finding.formal.is_none();
    let has_errors = report.api_errors > 0 && API_ERRORS_COUNT.load(Ordering::Relaxed);
    if has_errors || report.findings.iter().any(counts) {
        3
    } else if report.exit != 0 {
        report.exit as u8
    } else if !report.not_run.is_empty() {
        // A program may not ask whether its kernels ran.
        NOT_RUN
    } else {
        report.lost.as_deref().map_or(0, |why| CheckFailure::lost(why).code())
    }
}

/// As of a file that does not compile.
const NOT_RUN: u8 = 2;

fn end_in_text(report: Report) -> u8 {
    let tool = own::name();
    for refused in report.not_run.iter().chain(&report.refused) {
        note!("{tool} app: {refused}");
    }
    if let Some(fault) = &report.fault {
        note!("{tool} app: {fault}");
    }
    let errors = match report.api_errors {
        0 => String::new(),
        n => format!(", {}", counted_as(n, "API error", "API errors")),
    };
    let more = match report.repeated {
        0 => String::new(),
        n => format!(" ({n} more at the same places)"),
    };
    if let Some(why) = &report.lost {
        note!("{tool} app: {}", CheckFailure::lost(why).message());
    }
    // A program that finds itself on the wrong GPU may say so and end well.
    if report.launches == 0 && report.exit == 0 && report.api_errors == 0 {
        note!("{tool} app: no kernel was launched, so nothing was checked");
    }
    note!(
        "{tool} app: {}, {}{more}{errors}; the program ended with {}",
        counted_as(report.launches, "launch", "launches"),
        counted_findings(report.findings.iter().map(|(_, finding)| finding)),
        report.exit
    );
    code(&report)
}

fn end_in_json(report: Report) -> u8 {
    output_to_stdout();
    let code = code(&report);
    let findings = report.findings.iter().map(|(kernel, finding)| {
        let mut object = finding_json(finding);
        object["kernel"] = json!(kernel);
        object
    });
    say!(
        "{}",
        json!({ "launches": report.launches, "findings": findings.collect::<Vec<_>>(),
                "repeated": report.repeated, "refused": report.refused,
                "api_errors": report.api_errors, "not_run": report.not_run,
                "fault": report.fault,
                "program": report.exit, "exit": code })
    );
    // The object is the result: the program's own text went to stderr.
    match out::lost() {
        Some(why) if code == 0 => {
            note!("{} app: {}", own::name(), CheckFailure::lost(why).message());
            CheckFailure::lost(why).code()
        }
        _ => code,
    }
}
