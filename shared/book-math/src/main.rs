//! `book-math`: a preprocessor of mdbook. `book-math supports RENDERER` says by its exit code
//! whether it is of use to that renderer; without arguments it reads a book from stdin, as mdbook sends
//! it, and writes it to stdout.

#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &*arguments.iter().map(String::as_str).collect::<Vec<_>>() {
        ["supports", renderer] => ExitCode::from(u8::from(*renderer != "html")),
        [] => match render() {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("book-math: {e}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("book-math: expected no arguments or `supports RENDERER`, got {arguments:?}");
            ExitCode::from(2)
        }
    }
}

fn render() -> Result<(), Box<dyn std::error::Error>> {
    let (context, mut book) = mdbook_preprocessor::parse_input(std::io::stdin())?;
    book_math::render_book(&mut book, &context.root.join(&context.config.book.src))?;
    serde_json::to_writer(std::io::stdout(), &book)?;
    Ok(())
}
