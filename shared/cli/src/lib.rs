//! The tool `lab`: its commands.

/// A line on stdout, as `println!` prints it, but that a full disk or a closed pipe does not end the process: [`lab_checker::out`].
macro_rules! say {
    () => { lab_checker::out::line(format_args!("")) };
    ($($text:tt)*) => { lab_checker::out::line(format_args!($($text)*)) };
}

/// A line on stderr, likewise.
macro_rules! note {
    ($($text:tt)*) => { lab_checker::out::note(format_args!($($text)*)) };
}

mod command_line;
mod commands;
mod failure;
pub mod loaders;
mod part;
mod profile;

use std::ffi::OsString;
use std::process::ExitCode;

use command_line::{Cli, Command, Common};
use failure::Failure;
use lab_checker::{own, table, usage, words};
pub(crate) use lab_registry::{
    MODELS, STAGES, kernels, model, named, named_for, named_one, stage, versions,
};

/// Parses the command line and does what it says.
pub fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let code = usage::parse(&words).map_or_else(|code| code, run);
    if lab_device::has_given_up() {
        // What the driver does at a process's end may wait for the GPU.
        let _ = std::io::Write::flush(&mut std::io::stdout());
        // SAFETY: ends the process, whose files are written.
        unsafe { libc::_exit(i32::from(code)) };
    }
    ExitCode::from(code)
}

/// The same for a program that has this tool within it: `arguments` stand behind the tool's name, and `command` begins another
/// process that calls this. Gives back the exit code.
pub fn main_within(command: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
    let words: Vec<OsString> =
        std::iter::once("lab".into()).chain(arguments.iter().cloned()).collect();
    own::called_by(command, arguments);
    usage::parse(&words).map_or_else(|code| code, run)
}

fn run(cli: Cli) -> u8 {
    let common = &cli.common;
    // Of a device that is none, the commands that need none tell as well.
    if let Err(failure) = common.selector() {
        failure.tell(common.json);
        return failure.code();
    }
    let outcome =
        match cli.command.unwrap_or(Command::Tour(Default::default())) {
            Command::Tour(arguments) => commands::tour::run(common, &arguments),
            Command::Doctor => commands::doctor::run(common),
            Command::Devices => commands::devices::run(common),
            Command::List { name } => commands::list::run(common, name.as_deref()),
            Command::Run(arguments) => commands::run::run(common, &arguments),
            Command::Check(arguments) => commands::check::run(common, &arguments),
            Command::App(arguments) => commands::refuse_gpu_for(common, "programs run")
                .and_then(|()| commands::app::run(common.json, &arguments).map_err(Failure::from)),
            Command::Debug(arguments) => commands::refuse_gpu(common)
                .and_then(|()| Ok(commands::debug::run(common.json, &arguments)?)),
            Command::Profile(arguments) => commands::profile::run(common, &arguments),
            Command::Selftest(arguments) => commands::selftest::run(common, &arguments),
            Command::Bug(arguments) => commands::bug::run(common, &arguments),
            Command::Exercise(arguments) => (arguments.refuse_upkeep())
                .and_then(|()| commands::exercise::run(common, &arguments)),
            Command::Compare(arguments) => commands::compare::run(common, &arguments),
            Command::History(arguments) => (arguments.refuse_upkeep())
                .and_then(|()| commands::history::run(common, &arguments)),
            Command::Compile(arguments) => (arguments.refuse_upkeep())
                .and_then(|()| commands::compile::run(common, &arguments)),
            Command::Tune(arguments) => commands::tune::run(common, &arguments),
            Command::Bench(arguments) => commands::bench::run(common, &arguments),
            Command::Lstm(command) => commands::lstm::run(common, &command),
            Command::Mlp(command) => commands::mlp::run(common, &command),
            Command::Lm(command) => commands::lm::run(common, &command),
            Command::New(arguments) => commands::new::run(common, &arguments),
            Command::Dev(command) => commands::dev::run(common, &command),
            Command::Corpus(_) => commands::dev::refuse("corpus"),
            Command::Trace(_) => commands::dev::refuse("trace"),
            Command::Mutate(_) => commands::dev::refuse("mutate"),
            Command::Bundle(_) => commands::dev::refuse("bundle"),
        };
    let whole = || match lab_checker::out::lost() {
        Some(why) => Err(lab_checker::CheckFailure::lost(why).into()),
        None => Ok(()),
    };
    match outcome.and_then(|()| whole()) {
        Ok(()) => 0,
        Err(failure) => {
            failure.tell(common.json);
            failure.code()
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;
    use lab_device::{Build, compile_missing};

    use super::{Cli, kernels};

    /// Names that clash are told when a command is used; here for all of them.
    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// The kernels travel in programs and wheels for `manylinux_2_28`: what they ask of the C library has been there in 2.28.
    #[test]
    #[ignore = "takes long: --include-ignored runs it"]
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    fn kernels_load_beside_an_older_c_library() {
        const VERSION: &[u8] = b"GLIBC_2.";
        let mut found = 0;
        let builds = [Build::Plain, Build::Checked];
        compile_missing(kernels().flat_map(|kernel| builds.map(|build| (kernel, build)))).unwrap();
        for kernel in kernels() {
            for object in builds.map(|build| kernel.object(build).unwrap()) {
                for at in memchr::memmem::find_iter(object, VERSION) {
                    let rest = &object[at + VERSION.len()..];
                    let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
                    let minor: u32 = str::from_utf8(&rest[..digits]).unwrap().parse().unwrap();
                    assert!(minor <= 28, "{}: asks for glibc 2.{minor}", kernel.file);
                    found += 1;
                }
            }
        }
        assert!(found > 0, "no kernel asks for anything");
    }
}
