//! The server `lab-serve`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser as _;
use lab_serve::{Settings, serve};

fn main() -> ExitCode {
    match serve(&Settings::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("lab-serve: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}
