//! The tool `lab-checker`.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use lab_checker::{CheckFailure, app, debug, kernel, out, own, usage, watch};

/// Runs CUDA kernels and programs on the CPU and looks at every access: bounds, races, barriers, values never
/// written. Needs no GPU and no CUDA, only a C++ compiler. The code runs natively, with your rights
#[derive(Debug, Parser)]
#[command(
    name = "lab-checker",
    version,
    after_help = "Exit codes: 0 fine, 1 a result is wrong, 2 bad usage or a file that does not compile, \
                  3 findings, 4 no C++ compiler or no debugger"
)]
struct Cli {
    /// One JSON object on stdout
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Looks at every access of a kernel; without --kernel lists the kernels of the file
    Check(Check),
    /// Runs a kernel and checks nothing but its result
    Run(Run),
    /// What a kernel asks of the memory system, in total and by source line
    Profile(Profile),
    /// Runs a whole program, every launch checked
    App(app::Arguments),
    /// Opens gdb at one thread of a kernel
    Debug(debug::Arguments),
}

#[derive(Debug, Args)]
struct Check {
    #[command(flatten)]
    launch: Launch,
    #[command(flatten)]
    expect: kernel::Expectations,
    /// Writes the outputs, by the names of their arguments
    #[arg(long, value_name = "FILE.safetensors")]
    output: Option<PathBuf>,
    /// Writes the findings in SARIF 2.1.0, which tools for code review read
    #[arg(long, value_name = "FILE.sarif")]
    sarif: Option<PathBuf>,
    /// Checks again at each save of FILE.cu, until Ctrl-C
    #[arg(long)]
    watch: bool,
}

#[derive(Debug, Args)]
struct Run {
    #[command(flatten)]
    launch: Launch,
    #[command(flatten)]
    expect: kernel::Expectations,
    /// Writes the outputs, by the names of their arguments
    #[arg(long, value_name = "FILE.safetensors")]
    output: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct Profile {
    #[command(flatten)]
    launch: Launch,
}

/// What all three take.
#[derive(Debug, Args)]
struct Launch {
    /// A file of CUDA C++
    #[arg(value_name = "FILE.cu")]
    file: PathBuf,
    #[command(flatten)]
    kernel: kernel::Arguments,
    /// Seed of random values, and of --order random
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

/// Run before `main`.
// SAFETY: it asks the system about a descriptor, and needs nothing of the standard library's.
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK_AT_STDOUT: extern "C" fn() = lab_checker::out::look_at_stdout;

fn main() -> ExitCode {
    // A pipe that is closed ends the tool quietly, as it ends others.
    // SAFETY: sets a signal's disposition before any thread is started.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    own::set_name("lab-checker");
    let words: Vec<_> = std::env::args_os().collect();
    let Cli { json, command } = match usage::parse(&words) {
        Ok(cli) => cli,
        Err(code) => return ExitCode::from(code),
    };
    let whole = || match out::lost() {
        Some(why) => Err(CheckFailure::lost(why)),
        None => Ok(()),
    };
    match run(json, &command).and_then(|()| whole()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell(json);
            ExitCode::from(failure.code())
        }
    }
}

fn run(json: bool, command: &Command) -> Result<(), CheckFailure> {
    let launch = match command {
        Command::App(arguments) => return app::run(json, arguments),
        Command::Debug(arguments) => return debug::run(json, arguments),
        Command::Check(Check { launch, .. })
        | Command::Run(Run { launch, .. })
        | Command::Profile(Profile { launch }) => launch,
    };
    let Launch { file, kernel, seed } = launch;
    if let Command::Check(Check { watch: true, .. }) = command {
        return watch::repeat(file, json);
    }
    if !kernel.is_launch() {
        let verb = match command {
            Command::Run(_) => "run",
            Command::Profile(_) => "profile",
            _ => "check",
        };
        return kernel::list(json, file, kernel, verb);
    }
    match command {
        Command::Check(Check { expect, output, sarif, .. }) => {
            let targets = kernel::Targets { output: output.as_deref(), sarif: sarif.as_deref() };
            kernel::check(json, file, kernel, expect, &targets, *seed)
        }
        Command::Run(Run { expect, output, .. }) => {
            let targets = kernel::Targets { output: output.as_deref(), sarif: None };
            kernel::run(json, file, kernel, expect, &targets, *seed)
        }
        _ => kernel::profile(json, file, kernel, *seed),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::Cli;

    /// Names that clash are told when a command is used; here for all of them.
    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
