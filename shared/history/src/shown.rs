//! Which pages and plots the book shows. Nobody would see the others.

use std::path::{Path, PathBuf};

use lab_harness::Error;

/// Of these pages, by file name, those that a chapter in this workspace shows, or a page that is shown itself.
///
/// # Errors
/// The chapters cannot be read.
pub(crate) fn included_by_chapters(
    all: Vec<(String, String)>,
    root: &Path,
) -> Result<Vec<(String, String)>, Error> {
    let mut texts = String::new();
    for path in chapters(root)? {
        texts += &std::fs::read_to_string(&path).map_err(|e| failed(&path, &e))?;
    }
    Ok(named(all, texts))
}

/// Those that these texts name as `generated/FILE`, or a page that they name does.
fn named(all: Vec<(String, String)>, mut texts: String) -> Vec<(String, String)> {
    let (mut named, mut rest) = (Vec::new(), all);
    loop {
        let is_named = |(name, _): &(String, String)| texts.contains(&format!("generated/{name}"));
        let (own, others): (Vec<_>, Vec<_>) = rest.into_iter().partition(is_named);
        if own.is_empty() {
            return named;
        }
        let pages = own.iter().filter(|(name, _)| name.ends_with(".md"));
        texts = pages.map(|(_, text)| text.as_str()).collect();
        named.extend(own);
        rest = others;
    }
}

/// The chapters, the stages' texts of which they are made, and the repository's first page.
fn chapters(root: &Path) -> Result<Vec<PathBuf>, Error> {
    let files = |directory: &Path| -> Result<Vec<PathBuf>, Error> {
        let entries = std::fs::read_dir(directory).map_err(|e| failed(directory, &e))?;
        let paths = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>();
        paths.map_err(|e| failed(directory, &e))
    };
    let mut all = files(&root.join("book/src"))?;
    all.retain(|path| path.extension().is_some_and(|ending| ending == "md"));
    let stages = files(&root.join("stages"))?;
    all.extend(stages.iter().map(|stage| stage.join("README.md")).filter(|path| path.is_file()));
    all.push(root.join("README.md"));
    Ok(all)
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    Error::File { path: path.display().to_string(), message: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_shown_by_a_chapter_or_by_a_page_that_is_shown() {
        let pages = [
            ("a.md", "a table"),
            ("b.md", "![a plot](generated/b.svg)"),
            ("b.svg", "<svg/>"),
            ("c.md", "![a plot](generated/c.svg)"),
            ("c.svg", "<svg/>"),
        ];
        let all = pages.map(|(name, text)| (name.to_owned(), text.to_owned())).to_vec();
        let texts = "{{#include generated/a.md}} {{#include generated/b.md}}".to_owned();
        let names: Vec<String> = named(all, texts).into_iter().map(|page| page.0).collect();
        assert_eq!(names, ["a.md", "b.md", "b.svg"]);
    }
}
