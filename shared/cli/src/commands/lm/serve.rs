//! `lab lm serve`: another program, so that the tool is built without what HTTP needs.

use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

use clap::Args;

use crate::Common;
use crate::failure::Failure;

const SERVER: &str = "lab-serve";

#[derive(Debug, Args)]
#[command(
    override_usage = "lab lm serve [--device DEVICE] MODEL [OPTIONS OF lab-serve]",
    after_help = "\
`lab-serve` is a program of its own: `cargo build -p lab-serve` puts it beside this\n\
one, `cargo install --path shared/serve` into the PATH. All that stands behind `serve`\n\
is handed on to it; `lab-serve --help` lists its options."
)]
pub(crate) struct Arguments {
    /// The model, and options of `lab-serve`: --port, --host, --slots, --queue, --length, --timeout, …
    #[arg(
        value_name = "MODEL",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    arguments: Vec<OsString>,
}

/// Becomes the server.
pub(crate) fn run(common: &Common, Arguments { arguments }: &Arguments) -> Result<(), Failure> {
    let start = |program: PathBuf| {
        Command::new(program).args(arguments).env("LAB_DEVICE", &common.device).exec()
    };
    let beside = std::env::current_exe().ok().map(|own| own.with_file_name(SERVER));
    let program = beside.filter(|path| path.is_file()).unwrap_or_else(|| SERVER.into());
    let error = start(program.clone());
    Err(match error.kind() {
        ErrorKind::NotFound => Failure::Unavailable(format!(
            "`{SERVER}` is neither beside lab nor in PATH: `cargo build -p {SERVER}` builds it, \
             `cargo install --path shared/serve` installs it"
        )),
        _ => Failure::Unavailable(format!("{}: {error}", program.display())),
    })
}
