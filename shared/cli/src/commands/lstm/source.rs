//! The data that the settings name, cut into parts.

use std::path::Path;

use lab_harness::Error;
use lab_lstm::data::{Scale, Series, Split, Vocabulary, read_text};
use lab_lstm::training::Data;

use super::settings::{Kind, Settings};

/// Points of the sine that are trained on.
pub(super) const POINTS: usize = 1000;

/// What there is to learn from, and in which parts.
#[derive(Debug)]
pub(super) enum Source {
    Series { series: Series, scale: Scale, split: Split },
    Text { tokens: Vec<usize>, vocabulary: Vocabulary, split: Split },
}

impl Source {
    /// Reads what is to be trained on. A series is scaled by its training part, a text's vocabulary is
    /// that of the whole text.
    ///
    /// # Errors
    /// The data cannot be read, or are too short for the window.
    pub(super) fn load(settings: &Settings) -> Result<Self, Error> {
        let Settings { data, validation_share, test_share, .. } = settings;
        let path = Path::new(data);
        if Kind::of(data) == Kind::Text {
            let text = read_text(path)?;
            let vocabulary = Vocabulary::of(&text)?;
            let tokens = vocabulary.encode(data, &text)?;
            let split = Split::chronological(tokens.len(), *validation_share, *test_share)?;
            return Self::Text { tokens, vocabulary, split }.checked(settings);
        }
        let series = match Kind::of(data) {
            Kind::Sine => Series::sine(POINTS, settings.frequency, 0),
            _ => Series::from_csv(path, settings.column.as_deref())?,
        };
        let split = Split::chronological(series.values.len(), *validation_share, *test_share)?;
        let train = &series.values[split.train.clone()];
        // Before the scale, which says less of a series that is too short.
        if train.len() <= settings.window {
            return Err(too_short("training part of the series", "values", settings, train.len()));
        }
        let scale = Scale::of(train)?;
        Self::Series { series, scale, split }.checked(settings)
    }

    /// Refuses parts that are there and hold no sequence.
    fn checked(self, settings: &Settings) -> Result<Self, Error> {
        let split = self.split();
        let parts =
            [("training", &split.train), ("validation", &split.validation), ("test", &split.test)];
        for (name, part) in parts {
            let asked = name == "training" || !part.is_empty();
            if asked && self.starts(part, settings).is_empty() {
                let (of, values) = match &self {
                    Self::Series { .. } => ("series", "values"),
                    Self::Text { .. } => ("text", "characters"),
                };
                let what = format!("{name} part of the {of}");
                return Err(too_short(&what, values, settings, part.len()));
            }
        }
        Ok(self)
    }

    pub(super) fn split(&self) -> &Split {
        match self {
            Self::Series { split, .. } | Self::Text { split, .. } => split,
        }
    }

    /// The columns of an input.
    pub(super) fn columns(&self) -> usize {
        match self {
            Self::Series { .. } => 1,
            Self::Text { vocabulary, .. } => vocabulary.len(),
        }
    }

    /// As the network reads it.
    pub(super) fn data(&self) -> Data {
        match self {
            Self::Series { series, scale, .. } => scale_values(&series.values, *scale),
            Self::Text { tokens, vocabulary, .. } => as_data(tokens, vocabulary),
        }
    }

    /// Where the sequences of a part begin. Those of a series may begin before the part: what is
    /// told of them is in it.
    pub(super) fn starts(&self, part: &std::ops::Range<usize>, settings: &Settings) -> Vec<usize> {
        let Settings { window, stride, .. } = *settings;
        let all = match self {
            Self::Series { .. } => part.start.max(window) - window..part.end.saturating_sub(window),
            Self::Text { .. } => part.start..part.end.saturating_sub(window),
        };
        all.step_by(stride).collect()
    }

    /// In a line: `sine, 980 sequences of 20`.
    pub(super) fn describe(&self, settings: &Settings) -> String {
        let split = self.split();
        let [train, validation, test] = [&split.train, &split.validation, &split.test]
            .map(|part| self.starts(part, settings).len());
        let of = match self {
            Self::Series { series, .. } if settings.data == "sine" => {
                format!("sine of {} points, frequency {}", series.values.len(), settings.frequency)
            }
            Self::Series { series, .. } => {
                format!("'{}' of {}, {} values", series.name, settings.data, series.values.len())
            }
            Self::Text { tokens, vocabulary, .. } => format!(
                "{}, {} characters, {} different",
                settings.data,
                tokens.len(),
                vocabulary.len()
            ),
        };
        let held = match validation + test {
            0 => String::new(),
            _ => format!(" for training, {validation} for validation, {test} for the test"),
        };
        format!("{of}: {train} sequences of {}{held}", settings.window)
    }
}

fn too_short(what: &str, values: &str, settings: &Settings, got: usize) -> Error {
    Error::bad(what, format!("more {values} than a window, {}", settings.window), got)
}

/// Values as the network sees them.
pub(super) fn scale_values(values: &[f64], scale: Scale) -> Data {
    Data::Series { values: values.iter().map(|v| scale.scaled(*v)).collect(), columns: 1 }
}

/// Tokens as the network sees them.
pub(super) fn as_data(tokens: &[usize], vocabulary: &Vocabulary) -> Data {
    Data::Text { tokens: tokens.iter().map(|t| *t as i32).collect(), classes: vocabulary.len() }
}
