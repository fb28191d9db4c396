//! Pages of the book that nobody writes: tables and plots of the benchmarks' records, what others' tools said of the corpus, and
//! what the stages say of themselves.

#![forbid(unsafe_code)]

mod against;
mod chapters;
mod counted;
mod counters;
mod error;
mod families;
mod ladder;
mod layers;
mod lists;
mod museum;
mod sanitizers;
mod shares;
mod shown;
mod sizes;
mod stairs;
mod support;

use std::path::Path;

use lab_mutate::Workspace;
use lab_records::record::Run;

pub use counted::works_in_chunks;
pub use error::Error;

/// All pages that the book in the workspace shows, by file name, of these records of benchmarks, of those over the length of a
/// text, and of the corpus's records in a directory.
///
/// # Errors
/// A record of the corpus or a chapter cannot be read; a plot cannot be drawn; the sources in the workspace are not those that this was built
/// from.
pub fn pages(
    runs: &[Run],
    lengths: &[Run],
    corpus: &Path,
    workspace: &Workspace,
) -> Result<Vec<(String, String)>, Error> {
    let mut all = chapters::pages(runs)?;
    all.extend(against::pages(lengths)?);
    all.extend(families::pages(runs)?);
    all.extend(layers::pages(runs));
    all.extend(stairs::pages(runs)?);
    all.extend(shares::pages(runs)?);
    all.push(("sanitizers.md".into(), sanitizers::page(&read(corpus, "sanitizers.json")?)));
    for name in ["counters", "bulk_counters"] {
        let record = read(corpus, &format!("{name}.json"))?;
        all.push((format!("{name}.md"), counters::page(&record)));
    }
    all.extend(museum::pages(workspace)?);
    all.push(("support.md".into(), support::page()));
    Ok(shown::included_by_chapters(all, &workspace.root)?)
}

/// A record of the corpus.
fn read<T: serde::de::DeserializeOwned>(
    directory: &Path,
    name: &str,
) -> Result<T, lab_harness::Error> {
    let path = directory.join(name);
    let failed =
        |message: String| lab_harness::Error::File { path: path.display().to_string(), message };
    let text = lab_device::emulator::read_text(&path).map_err(|e| failed(e.to_string()))?;
    serde_json::from_str(&text).map_err(|e| failed(e.to_string()))
}
