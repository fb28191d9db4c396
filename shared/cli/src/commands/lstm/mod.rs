//! `lab lstm`: trains an LSTM or a GRU on a series or a text, tests it, writes with it.

mod forecast;
mod free_run;
mod generate;
mod options;
mod report;
mod saved;
mod settings;
mod source;
mod states;
mod test;
mod tested;
mod text;
mod train;

use clap::Subcommand;

use crate::Common;
use crate::failure::Failure;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Trains a network on a series or a text
    #[command(allow_negative_numbers = true)]
    Train(Box<train::Arguments>),
    /// Holds a trained network against baselines, draws its forecast and its states
    #[command(allow_negative_numbers = true)]
    Test(tested::Arguments),
    /// Writes on where a prompt ends
    #[command(allow_negative_numbers = true)]
    Generate(generate::Arguments),
}

pub(crate) fn run(common: &Common, command: &Command) -> Result<(), Failure> {
    match command {
        Command::Train(arguments) => train::run(common, arguments),
        Command::Test(arguments) => test::run(common, arguments),
        Command::Generate(arguments) => generate::run(common, arguments),
    }
}
