//! What can be wrong with what is to be broken.

/// Bad input, or a file that cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A named argument is not what it should be.
    #[error("{what}: expected {expected}, got {got}")]
    Bad {
        /// Which.
        what: String,
        /// What it may be.
        expected: String,
        /// What it is.
        got: String,
    },
    /// An entry of `bugs.toml`, `equivalent.toml` or `exercises.toml` is not what it should be.
    #[error("{file}: entry '{entry}': {field}: expected {expected}, got {got}")]
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
    #[error("{file}: {message}")]
    Toml {
        /// The file.
        file: String,
        /// The parser's words.
        message: String,
    },
    /// A file cannot be read or written.
    #[error("{path}: {message}")]
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
    pub(crate) fn file(path: &std::path::Path, error: impl ToString) -> Self {
        Self::File { path: path.display().to_string(), message: error.to_string() }
    }
}
