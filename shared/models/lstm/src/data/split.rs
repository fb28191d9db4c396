//! How a series is cut and scaled, and how far off a forecast is.

use std::ops::Range;

use lab_harness::Error;

/// The parts of a series or a text, in the order of time: nothing is learnt from what comes after.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// What the parameters are fitted to.
    pub train: Range<usize>,
    /// What says when to stop.
    pub validation: Range<usize>,
    /// What nobody has seen.
    pub test: Range<usize>,
}

impl Split {
    /// The last `test` of `len` values, before it `validation`, both as shares; the rest is for
    /// training.
    ///
    /// # Errors
    /// A share is negative or not a number, or nothing is left for training.
    pub fn chronological(len: usize, validation: f64, test: f64) -> Result<Self, Error> {
        let shares = [("validation share", validation), ("test share", test)];
        for (name, share) in shares {
            if !(0.0..1.0).contains(&share) {
                return Err(Error::bad(name, "a number from 0 to below 1", share));
            }
        }
        let [held, last] = [validation + test, test].map(|s| (s * len as f64).round() as usize);
        if held >= len {
            let expected = "shares that leave something for training";
            return Err(Error::bad("validation and test", expected, format!("{held} of {len}")));
        }
        let (first, second) = (len - held, len - last);
        Ok(Self { train: 0..first, validation: first..second, test: second..len })
    }

    /// All for training.
    pub fn all(len: usize) -> Self {
        Self { train: 0..len, validation: len..len, test: len..len }
    }
}

/// Windows of a series, each with the value after it.
#[derive(Clone, Debug)]
pub struct Windows<'a> {
    values: &'a [f64],
    window: usize,
    targets: Range<usize>,
}

impl<'a> Windows<'a> {
    /// Windows of `window` values whose next value stands in `targets`. They may begin before it:
    /// what has gone is known.
    ///
    /// # Errors
    /// There is no such window: the series is too short.
    pub fn new(values: &'a [f64], window: usize, targets: Range<usize>) -> Result<Self, Error> {
        let targets = targets.start.max(window)..targets.end.min(values.len());
        if window == 0 {
            return Err(Error::bad("--window", "at least 1", 0));
        }
        if targets.is_empty() {
            let expected = format!("more than the {window} values of a window");
            return Err(Error::bad("length of the series", expected, targets.end));
        }
        Ok(Self { values, window, targets })
    }

    /// How many there are; one at least.
    #[allow(clippy::len_without_is_empty)] // it never is
    pub fn len(&self) -> usize {
        self.targets.len()
    }

    /// Values of a window.
    pub fn window(&self) -> usize {
        self.window
    }

    /// A window, and the value after it.
    ///
    /// # Panics
    /// `index` is not below [`Windows::len`].
    pub fn get(&self, index: usize) -> (&'a [f64], f64) {
        let target = self.targets.start + index;
        (&self.values[target - self.window..target], self.values[target])
    }

    /// All of them, in the order of time.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [f64], f64)> + '_ {
        (0..self.len()).map(|index| self.get(index))
    }

    /// The values after the windows: what a forecast is held against.
    pub fn targets(&self) -> &'a [f64] {
        &self.values[self.targets.clone()]
    }

    /// How far off the forecast of the value after each window is.
    pub fn errors(&self, next: impl Fn(&[f64]) -> f64) -> Errors {
        Errors::of(&self.iter().map(|(window, _)| next(window)).collect::<Vec<_>>(), self.targets())
    }
}

/// How far off a forecast is, in the units of what it forecasts.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Errors {
    /// The root of the mean square.
    pub rmse: f64,
    /// The mean of the absolute.
    pub mae: f64,
}

impl Errors {
    /// Of a forecast; NaN where it is empty.
    ///
    /// # Panics
    /// The lengths differ.
    pub fn of(forecast: &[f64], truth: &[f64]) -> Self {
        assert_eq!(forecast.len(), truth.len(), "forecast");
        let n = truth.len() as f64;
        let off = || forecast.iter().zip(truth).map(|(f, t)| f - t);
        Self {
            rmse: (off().map(|d| d * d).sum::<f64>() / n).sqrt(),
            mae: off().map(f64::abs).sum::<f64>() / n,
        }
    }
}

/// Shifts and scales a series to mean 0 and deviation 1, and back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Scale {
    /// Mean of the values that it was made from.
    pub mean: f64,
    /// Their deviation, over n.
    pub deviation: f64,
}

impl Scale {
    /// Of the training part of a series.
    ///
    /// # Errors
    /// The values are all the same, or so large that their squares have no sum.
    pub fn of(train: &[f64]) -> Result<Self, Error> {
        let n = train.len() as f64;
        let mean = train.iter().sum::<f64>() / n;
        let deviation = (train.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt();
        if !mean.is_finite() || !deviation.is_finite() {
            let largest = train.iter().fold(0f64, |most, v| most.max(v.abs()));
            let expected = "values with a finite sum of squares";
            return Err(Error::bad("series", expected, format!("one of {largest:e}")));
        }
        // What is left of equal values is their rounding.
        if deviation <= 1e-12 * mean.abs() || deviation == 0.0 {
            let got = format!("{}, {} times", train[0], train.len());
            return Err(Error::bad("training part of the series", "values that differ", got));
        }
        Ok(Self { mean, deviation })
    }

    /// As the network sees it.
    pub fn scaled(&self, value: f64) -> f64 {
        (value - self.mean) / self.deviation
    }

    /// In the series' own units.
    pub fn original(&self, scaled: f64) -> f64 {
        scaled * self.deviation + self.mean
    }
}
