//! Texts as tokens.
//!
//! Nothing here needs a device.
//!
//! ```
//! use lab_mlp::data::{Unit, Vocabulary};
//! let directory = tempfile::tempdir()?;
//! let file = directory.path().join("text");
//! std::fs::write(&file, "A rose is a rose is a rose.")?;
//! // The unknown token, and the two most frequent.
//! let vocabulary = Vocabulary::of(&file, Unit::Words, 3)?;
//! assert_eq!(vocabulary.encode_file(&file)?, [0, 1, 2, 0, 1, 2, 0, 1, 0]);
//! assert_eq!([1, 2].map(|id| vocabulary.show(id)), ["rose", "is"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod pieces;
mod vocabulary;

pub use lab_reference::ngrams::{Bigrams, Unigrams, bits_per_token};
pub use vocabulary::{Unit, Vocabulary};
