//! `lab history`: the records as tables and plots.

use std::path::PathBuf;

use clap::Args;
use lab_harness::Error;
use lab_records::record;
use serde_json::json;

use crate::Common;
use crate::commands::against::Then;
use crate::commands::workspace;
use crate::failure::Failure;
use crate::table::table;

#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The directory of the records
    #[arg(long, default_value = "benches/history")]
    from: PathBuf,
    /// The directory of the records over the length of a text, for --write
    #[arg(long, default_value = "benches/lengths", requires = "write", hide = true)]
    lengths: PathBuf,
    /// The directory of the corpus's records, for --write
    #[arg(long, default_value = "shared/corpus/records", requires = "write", hide = true)]
    corpus: PathBuf,
    /// Writes what the book shows into this directory: tables and plots of families and types, the history of all, what
    /// NVIDIA's tools said of the corpus, some bugs, the exercises, and what each version takes
    #[arg(long, hide = true)]
    write: Option<PathBuf>,
    /// Says instead what moved beyond noise from the records of one commit to those of another
    #[arg(long, num_args = 2, value_names = ["REV", "REV"], conflicts_with = "write")]
    moved: Option<Vec<String>>,
}

impl Arguments {
    /// Refuses what only `lab dev history` does.
    pub(crate) fn refuse_upkeep(&self) -> Result<(), Failure> {
        crate::commands::refuse_options("history", &[(self.write.is_some(), "--write")])
    }
}

pub(crate) fn run(common: &Common, arguments: &Arguments) -> Result<(), Failure> {
    if let Some([then, now]) = arguments.moved.as_deref() {
        let read = |revision: &str| Then::read(&arguments.from, "--moved", revision, None);
        let (then, now) = (read(then)?, read(now)?);
        if common.json {
            say!("{}", then.json(now.lines()))
        } else {
            then.print(now.lines())
        }
        return Ok(());
    }
    let runs = record::read_all(&arguments.from)?;
    if let Some(directory) = &arguments.write {
        let refuse = |e: std::io::Error| Error::File {
            path: directory.display().to_string(),
            message: e.to_string(),
        };
        std::fs::create_dir_all(directory).map_err(refuse)?;
        let lengths = record::read_all(&arguments.lengths)?;
        let all = lab_history::pages(&runs, &lengths, &arguments.corpus, &workspace()?)?;
        for (name, text) in all {
            lab_plots::write(&directory.join(name), &text)?;
        }
    }
    if common.json {
        say!("{}", json!({ "runs": runs }));
        return Ok(());
    }
    let mut rows = table(&["date", "GPU", "driver", ">copy, GB/s", ">results", "commit"]);
    for run in &runs {
        rows.add_row([
            run.date.clone(),
            run.device.gpu.clone(),
            run.device.driver.clone(),
            format!("{:.0}", run.device.copy_gbps),
            run.results.len().to_string(),
            run.commit[..12].to_owned(),
        ]);
    }
    say!("{rows}");
    Ok(())
}
