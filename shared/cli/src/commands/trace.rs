//! `lab dev trace`: small runs of the emulator, step by step, as the book's moving pictures show them.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;

use crate::Common;
use crate::commands::refuse_gpu_for;
use crate::failure::Failure;
use crate::table::table;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Writes each into this directory, NAME.md: what the book includes
    #[arg(long)]
    write: Option<PathBuf>,
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    refuse_gpu_for(common, "runs are traced")?;
    let all = lab_traces::all()?;
    if let Some(directory) = &arguments.write {
        std::fs::create_dir_all(directory).map_err(|e| Failure::file(directory, e))?;
        for trace in &all {
            lab_plots::write(&directory.join(format!("{}.md", trace.name)), &trace.figure)?;
        }
    }
    if common.json {
        let described = |t: &lab_traces::Trace| json!({ "name": t.name, "of": t.of, "steps": t.steps, "bytes": t.figure.len() });
        say!("{}", json!({ "traces": all.iter().map(described).collect::<Vec<_>>() }));
        return Ok(());
    }
    let mut rows = table(&["trace", "of", ">steps", ">bytes"]);
    for trace in &all {
        let (steps, bytes) = (trace.steps.to_string(), trace.figure.len().to_string());
        rows.add_row([trace.name.to_owned(), trace.of.clone(), steps, bytes]);
    }
    say!("{rows}");
    Ok(())
}
