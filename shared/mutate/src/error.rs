//! What can be wrong with what is to be broken.

use lab_device::emulator::shown;

/// Bad input, or a file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A named argument is not what it should be.
    #[error("{}: expected {}, got {}", shown(what, 100), shown(expected, 400), shown(got, 100))]
    Bad {
        /// Which.
        what: String,
        /// What it may be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// An entry of `bugs.toml`, `equivalent.toml` or `exercises.toml` is not what it should be.
    #[error(
        "{file}: entry '{}': {field}: expected {}, got {}",
        shown(entry, 60),
        shown(expected, 400),
        shown(got, 100)
    )]
    Entry {
        /// The TOML file.
        file: String,
        /// The entry's name, or its number.
        entry: String,
        /// Its field.
        field: &'static str,
        /// What that may be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// A TOML file cannot be understood.
    #[error("{file}: {}", shown(message, 300))]
    Toml {
        /// The file.
        file: String,
        /// The parser's words.
        message: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {}", shown(path, 1000), shown(message, 300))]
    File {
        /// The file.
        path: String,
        /// Why.
        message: String,
    },
    /// There is no C++ compiler.
    #[error("{0}")]
    NoCompiler(String),
}

impl Error {
    /// The parser's words, without the picture of the line that it draws.
    pub(crate) fn toml(file: &str, error: &toml::de::Error) -> Self {
        let words = error.to_string();
        let line = words.lines().next().unwrap_or_default().trim_start_matches("TOML parse error ");
        Self::Toml { file: file.to_owned(), message: format!("{line}: {}", error.message()) }
    }

    pub(crate) fn file(path: &std::path::Path, error: impl ToString) -> Self {
        Self::File { path: path.display().to_string(), message: error.to_string() }
    }
}
