//! The preprocessor as mdbook calls it.
#![allow(missing_docs)]

use std::path::Path;

use assert_cmd::Command;
use mdbook_preprocessor::PreprocessorContext;
use mdbook_preprocessor::book::{Book, BookItem, Chapter};
use mdbook_preprocessor::config::Config;

/// Exit code, stdout and stderr for a book of one page, put together as `content`.
fn preprocess(root: &Path, content: &str) -> (Option<i32>, String, String) {
    let context = PreprocessorContext::new(root.into(), Config::default(), "html".into());
    let mut book = Book::new();
    book.push_item(BookItem::Chapter(Chapter::new("A", content.into(), "a.md", vec![])));
    let mut preprocessor = Command::cargo_bin("book-math").unwrap();
    preprocessor.write_stdin(serde_json::to_string(&(context, book)).unwrap());
    let output = preprocessor.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_book_comes_back_with_mathml() {
    let (code, book, said) = preprocess(Path::new("."), "# A\n\n```math\n\\sqrt{x}\n```\n");
    assert_eq!((code, &*said), (Some(0), ""));
    let book: Book = serde_json::from_str(&book).unwrap();
    let page = book.chapters().next().unwrap();
    assert!(page.content.contains("<msqrt><mrow><mi>x</mi></mrow></msqrt>"), "{}", page.content);
}

#[test]
fn an_equation_that_does_not_parse_fails_with_the_file_the_line_and_the_reason() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("src")).unwrap();
    let block = "```math\n\\frac{a\n```";
    // In the page itself, then in a file that it includes.
    std::fs::write(root.path().join("src/a.md"), format!("# A\n\nText.\n\n{block}\n")).unwrap();
    let (code, book, said) = preprocess(root.path(), &format!("# A\n\n{block}\n"));
    assert_eq!((code, &*book), (Some(1), ""));
    assert!(said.contains("src/a.md:5: expected an equation"), "{said}");
    assert!(said.contains("\\frac{a\n") && said.contains("unbalanced group"), "{said}");

    std::fs::write(root.path().join("src/a.md"), "{{#include ../README.md:question}}\n").unwrap();
    std::fs::write(root.path().join("README.md"), format!("One.\n\nTwo.\n{block}\n")).unwrap();
    let (code, _, said) = preprocess(root.path(), &format!("Two.\n{block}\n"));
    assert_eq!(code, Some(1));
    assert!(said.contains("README.md:4: expected"), "{said}");
}

#[test]
fn it_is_for_html_and_refuses_what_it_does_not_know() {
    let run = |arguments: &[&str]| {
        let mut preprocessor = Command::cargo_bin("book-math").unwrap();
        preprocessor.args(arguments).output().unwrap().status.code()
    };
    assert_eq!(run(&["supports", "html"]), Some(0));
    assert_eq!(run(&["supports", "markdown"]), Some(1));
    assert_eq!(run(&["render"]), Some(2));
    let (code, book, said) = {
        let mut preprocessor = Command::cargo_bin("book-math").unwrap();
        let output = preprocessor.write_stdin("{}").output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        (output.status.code(), output.stdout, said)
    };
    assert_eq!((code, &*book), (Some(1), &b""[..]));
    assert!(said.contains("Unable to parse the input"), "{said}");
}
