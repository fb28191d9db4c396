//! What comes before and after a network: series and texts, how they are cut, the forecasts that
//! need no network, and the choice of a next character.
//!
//! Nothing here needs a device.
//!
//! ```
//! use lab_lstm::data::{Linear, Series, Split, persistence};
//! let sine = Series::sine(1000, 1.0, 0);
//! let split = Split::chronological(sine.values.len(), 0.1, 0.1)?;
//! let train = sine.windows(20, split.train)?;
//! assert_eq!((train.len(), train.get(0).0.len()), (780, 20));
//! // A sine is what two of its points say; a line through them says it.
//! let test = sine.windows(20, split.test)?;
//! let linear = Linear::fit(&train)?;
//! assert!(test.errors(|window| linear.next(window)).rmse < 1e-9);
//! assert!(test.errors(persistence).rmse > 0.05);
//! # Ok::<(), lab_harness::Error>(())
//! ```

mod algebra;
mod baseline;
mod sample;
mod series;
mod split;
mod states;
mod text;

pub use baseline::{Linear, free_run, persistence};
pub use lab_reference::ngrams::{Bigrams, Unigrams, bits_per_token};
pub use sample::{Choice, probabilities};
pub use series::Series;
pub use split::{Errors, Scale, Split, Windows};
pub use states::StateSummary;
pub use text::{Vocabulary, read_text};

use std::path::Path;

use lab_harness::Error;

/// A file that is not what it should be.
fn bad_file(path: &Path, message: impl Into<String>) -> Error {
    Error::File { path: path.display().to_string(), message: message.into() }
}
