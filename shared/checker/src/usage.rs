//! Command lines that are none.

use std::ffi::{OsStr, OsString};
use std::num::{IntErrorKind, ParseFloatError, ParseIntError};
use std::str::ParseBoolError;

use clap::Parser;
use clap::error::{ContextKind, ErrorKind};
use lab_emulator::shown;

use crate::CheckFailure;

/// The exit code of a command line that is none.
const USAGE: u8 = 2;

/// Longest part of an argument that is quoted.
const QUOTED: usize = 60;

/// The command line, read; `words` are all of it. `Err` is the exit code, where everything has been said: help, a
/// version, or what is wrong, with `--json` as an object as well.
pub fn parse<C: Parser>(words: &[OsString]) -> Result<C, u8> {
    let own = words.iter().skip(1).take_while(|w| *w != "--");
    let json = own.into_iter().any(|w| w == "--json");
    match read::<C>(words).and_then(|command| threads().map(|()| command).map_err(Unread::Wrong)) {
        Ok(command) => Ok(command),
        Err(Unread::Asked(text)) => {
            crate::out::line(format_args!("{}", text.trim_end()));
            let lost = crate::out::lost().map(CheckFailure::lost);
            lost.as_ref().inspect(|failure| failure.tell(json));
            Err(lost.map_or(0, |failure| failure.code()))
        }
        Err(Unread::Lacking(text, _)) if !json => {
            eprintln!("{}", text.trim_end());
            Err(USAGE)
        }
        Err(Unread::Lacking(_, failure) | Unread::Wrong(failure)) => {
            failure.tell(json);
            Err(failure.code())
        }
    }
}

/// Why a command line is no command.
pub enum Unread {
    /// It asks for help or for the version, which is this.
    Asked(String),
    /// It names a command that has commands of its own, and none of these: the help that lists them, and the same in a line.
    Lacking(String, CheckFailure),
    /// It is wrong.
    Wrong(CheckFailure),
}

/// As [`parse`], and says nothing.
pub fn read<C: Parser>(words: &[OsString]) -> Result<C, Unread> {
    C::try_parse_from(words).map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // On a terminal with its colours.
            use std::io::IsTerminal as _;
            let styled = error.render();
            Unread::Asked(if std::io::stdout().is_terminal() {
                styled.ansi().to_string()
            } else {
                styled.to_string()
            })
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let text = error.render().to_string();
            Unread::Lacking(text, CheckFailure::Usage(in_a_line(error)))
        }
        ErrorKind::ValueValidation => {
            Unread::Wrong(CheckFailure::Usage(of_value(&error).unwrap_or_else(|| in_a_line(error))))
        }
        ErrorKind::InvalidUtf8 => {
            Unread::Wrong(CheckFailure::Usage(of_bytes(words).unwrap_or_else(|| in_a_line(error))))
        }
        ErrorKind::UnknownArgument => Unread::Wrong(CheckFailure::Usage(
            of_negative(words).unwrap_or_else(|| in_a_line(error)),
        )),
        _ => Unread::Wrong(CheckFailure::Usage(in_a_line(error))),
    })
}

/// A number below zero behind an option that takes none: it reads as an option of its own.
fn of_negative(words: &[OsString]) -> Option<String> {
    let texts: Vec<&str> = words.iter().map_while(|word| word.to_str()).collect();
    let is_negative =
        |text: &str| text.starts_with('-') && text.parse::<f64>().is_ok_and(|n| n < 0.0);
    let asks = |text: &str| text.starts_with("--") && text.len() > 2 && !text.contains('=');
    let pair = texts.windows(2).find(|pair| asks(pair[0]) && is_negative(pair[1]))?;
    Some(format!(
        "{}: expected a value that is not negative, got '{}'",
        pair[0],
        shown(pair[1], QUOTED)
    ))
}

/// Which word of a command line, or which variable of the environment that stands for one, is no text.
fn of_bytes(words: &[OsString]) -> Option<String> {
    let said = |what: &str, value: &OsStr| {
        let got = value.as_encoded_bytes().escape_ascii().to_string();
        format!("{what}: expected UTF-8, got '{}'", shown(&got, QUOTED))
    };
    let is_text = |value: &OsStr| value.to_str().is_some();
    if let Some((place, word)) = words.iter().enumerate().find(|(_, word)| !is_text(word)) {
        return Some(said(&format!("argument {place}"), word));
    }
    let mut variables = std::env::vars_os();
    let (name, value) = variables.find(|(name, value)| {
        name.to_str().is_some_and(|n| n.starts_with("LAB_")) && !is_text(value)
    })?;
    Some(said(name.to_str()?, &value))
}

/// rayon's own variable: it panics where so many threads cannot be begun.
fn threads() -> Result<(), CheckFailure> {
    const NAME: &str = "RAYON_NUM_THREADS";
    const MOST: usize = 256;
    let asked = std::env::var(NAME).ok().and_then(|text| text.parse::<usize>().ok());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    match asked {
        Some(n) if n > MOST.max(cores) => {
            let expected = format!("at most {} threads", MOST.max(cores));
            Err(CheckFailure::Usage(format!("{NAME}: expected {expected}, got {n}")))
        }
        _ => Ok(()),
    }
}

/// A value that the standard library has refused, which does not say what was expected.
fn of_value(error: &clap::Error) -> Option<String> {
    use clap::error::ContextValue::String as Text;
    let (Some(Text(argument)), Some(Text(value))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::InvalidValue))
    else {
        return None;
    };
    let refused = std::error::Error::source(error)?;
    let expected = if let Some(refused) = refused.downcast_ref::<ParseIntError>() {
        match refused.kind() {
            IntErrorKind::PosOverflow => "a smaller whole number",
            IntErrorKind::NegOverflow => "a larger whole number",
            _ => "a whole number that is not negative",
        }
    } else if refused.is::<ParseFloatError>() {
        "a number"
    } else if refused.is::<ParseBoolError>() {
        "true or false"
    } else {
        return None;
    };
    // `--seed <SEED>`, without its value's name.
    let argument = argument.split_whitespace().next().unwrap_or(argument);
    Some(format!("{argument}: expected {expected}, got '{}'", shown(value, QUOTED)))
}

/// What clap says in several lines, in one; what it quotes is cut and escaped.
fn in_a_line(mut error: clap::Error) -> String {
    use clap::error::ContextValue as Value;
    let kinds =
        [ContextKind::InvalidSubcommand, ContextKind::InvalidArg, ContextKind::InvalidValue];
    for kind in kinds {
        if let Some(Value::String(text)) = error.get(kind) {
            let quoted = Value::String(shown(text, QUOTED));
            error.insert(kind, quoted);
        }
    }
    let text = error.render().to_string();
    let mut said = String::new();
    let mut usage = "";
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty()) {
        if let Some(of) = line.strip_prefix("Usage: ") {
            usage = of;
        } else if usage.is_empty() && !line.starts_with("For more information") {
            let separate = if said.is_empty() || said.ends_with(':') { " " } else { "; " };
            said += separate;
            said += line.trim_start_matches("error: ");
        }
    }
    // The command without its arguments: `lab lstm train`.
    let command: Vec<&str> = usage
        .split_whitespace()
        .take_while(|w| w.starts_with(|c: char| c.is_ascii_lowercase()))
        .collect();
    let help = if command.is_empty() {
        String::new()
    } else {
        format!("; see {} --help", command.join(" "))
    };
    format!("{}{help}", shown(said.trim(), 400))
}
