//! Turns the fenced blocks of LaTeX in a book, ` ```math `, into MathML, which browsers lay out
//! themselves: no script, and nothing to fetch. And links to a stage's README, `../STAGE/README.md`, into links to
//! its page, `STAGE.md`, those to a page by its path, `../../book/src/PAGE.md`, into links to the page, and those to
//! another file of the project into its path as code: the book may be read without the project.
//!
//! GitHub shows the same blocks as equations, and follows the same links, so that a stage's page reads well in both
//! places.

#![forbid(unsafe_code)]

use std::ops::Range;
use std::path::{Path, PathBuf};

use mdbook_preprocessor::book::{Book, BookItem, Chapter};
use pulldown_cmark::{CodeBlockKind, Event, Options, Parser, Tag, TagEnd};
use pulldown_latex::config::DisplayMode;
use pulldown_latex::{RenderConfig, Storage, push_mathml};

/// An equation that cannot be shown.
#[derive(Debug, thiserror::Error)]
#[error("{}:{line}: expected an equation in LaTeX, got\n{equation}\n{reason}", page.display())]
pub struct Error {
    /// The file that it stands in: the page's own, or one that the page includes.
    pub page: PathBuf,
    /// The line of that file, from 1, in which its block begins.
    pub line: usize,
    /// The LaTeX.
    pub equation: String,
    /// What is wrong with it.
    pub reason: String,
}

/// Replaces the equations in all chapters. `sources` is the directory of the pages, in which an error's
/// place is looked up.
///
/// # Errors
///
/// At the first equation that does not parse.
pub fn render_book(book: &mut Book, sources: &Path) -> Result<(), Error> {
    let mut result = Ok(());
    let paths: Vec<PathBuf> = book.chapters().filter_map(|c| c.path.clone()).collect();
    let texts = paths.iter().map(|path| {
        (path.clone(), std::fs::read_to_string(sources.join(path)).unwrap_or_default())
    });
    let pages = Pages::new(&texts.collect::<Vec<_>>());
    book.for_each_mut(|item| {
        if let (Ok(()), BookItem::Chapter(chapter)) = (&result, item) {
            match render_page(&chapter.content) {
                Ok(content) => chapter.content = lead_to_pages(&content, &pages),
                Err(wrong) => result = Err(wrong.in_its_file(chapter, sources)),
            }
        }
    });
    result
}

/// The pages of a book, and the stages that they tell.
struct Pages {
    paths: Vec<PathBuf>,
    /// A stage, and the first page that includes its README. Several stages may share a page.
    stages: Vec<(String, PathBuf)>,
}

impl Pages {
    /// Of their paths and of their texts before anything is included.
    fn new(pages: &[(PathBuf, String)]) -> Self {
        let mut stages: Vec<(String, PathBuf)> = Vec::new();
        for (path, text) in pages {
            for included in text.split("{{#include ../../stages/").skip(1) {
                let Some((stage, file)) = included.split_once('/') else { continue };
                if file.starts_with("README.md:") && !stages.iter().any(|(s, _)| s == stage) {
                    stages.push((stage.to_owned(), path.clone()));
                }
            }
        }
        Self { paths: pages.iter().map(|page| page.0.clone()).collect(), stages }
    }

    fn has(&self, path: &str) -> bool {
        self.paths.iter().any(|p| p == Path::new(path))
    }

    /// Where `STAGE.md` leads: to that page, or to the heading of the stage, `# … {#STAGE}`, in the page that tells it.
    fn of_stage(&self, page: &str, has_anchor: bool) -> Option<String> {
        if self.has(page) {
            return Some(page.to_owned());
        }
        let stage = page.strip_suffix(".md")?;
        let (_, path) = self.stages.iter().find(|(s, _)| s == stage)?;
        let anchor = if has_anchor { String::new() } else { format!("#{stage}") };
        Some(format!("{}{anchor}", path.display()))
    }
}

/// The page with links to one of `pages`, or to the README of a stage that one tells, leading there. Of a link to another
/// file of the project, `[file.cu](../../path/file.cu)`, the path is left, as code.
fn lead_to_pages(page: &str, pages: &Pages) -> String {
    let mut pieces = page.split("](");
    let mut done = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let end = piece.find([')', '#']).unwrap_or(0);
        let target = &piece[..end];
        let stage = target.strip_suffix("/README.md").and_then(|target| {
            let stage = target.strip_prefix("../")?;
            Some(format!("{}.md", stage.strip_prefix("../stages/").unwrap_or(stage)))
        });
        let own = stage.or_else(|| Some(target.strip_prefix("../../book/src/")?.to_owned()));
        let own = own.unwrap_or_else(|| target.to_owned());
        let own = pages.of_stage(&own, piece[end..].starts_with('#'));
        let begin = done.rfind('[').filter(|at| !done[..*at].ends_with('!'));
        let file = target.strip_prefix("../../").zip(begin.zip(piece.find(')')));
        match (own, file) {
            (Some(own), _) => done = done + "](" + &own + &piece[end..],
            (None, Some((path, (begin, after)))) => {
                let text = done.split_off(begin).split_off(1);
                let named = text == path || path.ends_with(&format!("/{text}"));
                done += &if named { format!("`{path}`") } else { format!("{text} (`{path}`)") };
                done += &piece[after + 1..];
            }
            (None, None) => done = done + "](" + piece,
        }
    }
    done
}

/// A block that does not parse, in a page as it is put together.
#[derive(Debug)]
struct Wrong {
    block: String,
    line: usize,
    equation: String,
    reason: String,
}

impl Wrong {
    /// A page is put together from files; the reader of the error edits one of those.
    fn in_its_file(self, chapter: &Chapter, sources: &Path) -> Error {
        let own = sources.join(chapter.source_path.as_deref().unwrap_or(Path::new("")));
        let text = std::fs::read_to_string(&own).unwrap_or_default();
        let beside = own.parent().unwrap_or(sources);
        let included = text.split("{{#include ").skip(1).filter_map(|rest| {
            let path = beside.join(rest.split(['}', ':']).next()?.trim()).canonicalize().ok()?;
            std::fs::read_to_string(&path).ok().map(|text| (path, text))
        });
        let (page, line) = std::iter::once((own.clone(), text.clone()))
            .chain(included)
            .find_map(|(path, text)| Some((path, line_of(&text, text.find(&self.block)?))))
            .unwrap_or((own, self.line));
        Error { page, line, equation: self.equation, reason: self.reason }
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// The page with MathML where its blocks were.
fn render_page(page: &str) -> Result<String, Wrong> {
    let mut done = String::with_capacity(page.len());
    let mut end = 0;
    for (range, equation) in blocks(page) {
        let mathml = mathml(&equation).map_err(|reason| Wrong {
            block: page[range.clone()].to_owned(),
            line: line_of(page, range.start),
            equation,
            reason,
        })?;
        done += &page[end..range.start];
        // Markdown takes what begins with <div> as it is, up to the next empty line.
        done += &format!("<div class=\"equation\">{mathml}</div>\n");
        end = range.end;
    }
    Ok(done + &page[end..])
}

/// Where the blocks of LaTeX are, and what they say.
fn blocks(page: &str) -> Vec<(Range<usize>, String)> {
    let mut all = Vec::new();
    let mut inside = false;
    for (event, range) in Parser::new_ext(page, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(CodeBlockKind::Fenced(language)))
                if &*language == "math" =>
            {
                all.push((range, String::new()));
                inside = true;
            }
            Event::Text(text) if inside => {
                all.last_mut().expect("a block has begun").1 += &text;
            }
            Event::End(TagEnd::CodeBlock) => inside = false,
            _ => {}
        }
    }
    all
}

/// Display MathML on one line, or why not.
fn mathml(equation: &str) -> Result<String, String> {
    let storage = Storage::new();
    // Rendered as they come, errors would end up in the page, and nowhere else.
    let events: Vec<_> = pulldown_latex::Parser::new(equation, &storage)
        .collect::<Result<_, _>>()
        .map_err(|e| e.to_string())?;
    if events.is_empty() {
        return Err("it is empty".into());
    }
    let config = RenderConfig { display_mode: DisplayMode::Block, ..RenderConfig::default() };
    let mut text = String::new();
    let events = events.into_iter().map(Ok::<_, std::convert::Infallible>);
    push_mathml(&mut text, events, config).map_err(|e| e.to_string())?;
    // pulldown-latex 0.8 does not escape an angle, escapes a space twice and leaves one out; its µ is
    // the sign for a millionth, which is not set in italics.
    let text = text.replace("<mo><</mo>", "<mo>&lt;</mo>").replace("&amp;nbsp;", "&nbsp;");
    let text =
        text.replace("\"minsize", "\" minsize").replace("<mi>\u{b5}</mi>", "<mi>\u{3bc}</mi>");
    Ok(text.replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_blocks_of_math_become_mathml() {
        let page = "One $5, two $6, a_b_c.\n\n```math\nx_i^2\n```\nText.\n\n```sh\n$x\n```\n\n\
                    ~~~~text\n```math\nx\n```\n~~~~\n\n    ```math\n    x\n";
        let done = render_page(page).unwrap();
        let (before, after) = ("One $5, two $6, a_b_c.\n\n", page.split_once("Text.").unwrap().1);
        assert!(done.starts_with(&format!("{before}<div class=\"equation\"><math")), "{done}");
        assert!(done.ends_with(&format!("</math></div>\n\nText.{after}")), "{done}");
        assert!(done.contains("<msubsup><mi>x</mi><mi>i</mi><mn>2</mn></msubsup>"), "{done}");
        assert_eq!(done.matches("<math").count(), 1);
    }

    #[test]
    fn links_to_stages_lead_to_their_pages() {
        let pages =
            Pages::new(&[("one.md".into(), String::new()), ("two.md".into(), String::new())]);
        let page = "](../one/README.md) [a](../../stages/two/README.md#b), [c](../three/README.md) [d](../one/x.rs)";
        let done = lead_to_pages(page, &pages);
        assert_eq!(done, "](one.md) [a](two.md#b), [c](../three/README.md) [d](../one/x.rs)");
        assert_eq!(lead_to_pages("](../one/README.md", &pages), "](../one/README.md");
        let page = "[the second](../../book/src/two.md#b) ![i](../../book/src/i.svg)";
        assert_eq!(
            lead_to_pages(page, &pages),
            "[the second](two.md#b) ![i](../../book/src/i.svg)"
        );
    }

    #[test]
    fn a_stage_without_a_page_of_its_own_is_where_its_readme_is_included() {
        let included =
            "{{#include ../../stages/two/README.md:a}} {{#include ../../stages/two/x.cu:a}}";
        let pages = [("one.md", included), ("last.md", included)];
        let pages = Pages::new(&pages.map(|(path, text)| (path.into(), text.into())));
        let page =
            "[a](../two/README.md) [b](../two/README.md#c) [d](two.md) [e](two.md#f) [g](three.md)";
        assert_eq!(
            lead_to_pages(page, &pages),
            "[a](one.md#two) [b](one.md#c) [d](one.md#two) [e](one.md#f) [g](three.md)"
        );
    }

    #[test]
    fn of_a_link_to_another_file_its_path_is_left() {
        let page = "See [a.py](../../b/a.py), [how](../../b/a.py#c) and [`x`](x.html).";
        assert_eq!(
            lead_to_pages(page, &Pages::new(&[])),
            "See `b/a.py`, how (`b/a.py`) and [`x`](x.html)."
        );
    }

    #[test]
    fn a_block_in_a_list_stays_in_it() {
        let done = render_page("- one:\n\n  ```math\n  a\n  ```\n\n- two\n").unwrap();
        assert!(done.starts_with("- one:\n\n  <div class=\"equation\"><math"), "{done}");
        assert!(done.ends_with("</math></div>\n\n\n- two\n"), "{done}");
    }

    #[test]
    fn lines_of_an_equation_are_aligned_and_stay_on_one_line() {
        let tex = "\\begin{aligned}\na &= b \\\\\n\nc &= d\n\\end{aligned}\n";
        let text = mathml(tex).unwrap();
        assert!(text.contains("<mtable class=\"menv-alignlike menv-align\">"), "{text}");
        assert!(!text.contains('\n'));
    }

    #[test]
    fn what_is_written_is_html() {
        let text = mathml(r"\Bigl( k <\ K \Bigr)").unwrap();
        assert!(text.contains("<mtext>&nbsp;</mtext>"), "{text}");
        assert!(text.contains("<mo>&lt;</mo>"), "{text}");
        assert!(text.contains("stretchy=\"true\" minsize=\"1.8em\""), "{text}");
    }

    #[test]
    fn what_does_not_parse_is_an_error() {
        for (tex, said) in [
            (r"\frac{a", "unbalanced group"),
            (r"\unheardof x", "unknown primitive command"),
            ("a & b", "alignment not allowed"),
            ("a_b_c", "subscript twice"),
            ("\n", "empty"),
        ] {
            let reason = mathml(tex).unwrap_err();
            assert!(reason.contains(said), "{tex}: {reason}");
        }
    }

    #[test]
    fn an_error_names_the_line() {
        let wrong = render_page("# A\n\n```math\na\n```\n\n```math\n\\frac{a\n```\n").unwrap_err();
        assert_eq!((wrong.line, &*wrong.equation), (7, "\\frac{a\n"));
    }
}
