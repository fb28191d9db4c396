//! The losses of the epochs so far.

use std::fmt::Write as _;

use lab_harness::Error;
use lab_plots::Curve;
use lab_plots::lines::{Axes, lines};

/// An epoch's losses.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) train: f64,
    /// Where there is a validation part.
    pub(crate) validation: Option<f64>,
}

/// A line an epoch, in the order of time. As text it comes back to the last bit.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct History(pub(crate) Vec<Entry>);

impl History {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let entry = |line: &str| {
            let mut numbers = line.split(' ').map(str::parse::<f64>);
            let train = numbers.next()?.ok()?;
            let validation = numbers.next().transpose().ok()?;
            numbers.next().is_none().then_some(Entry { train, validation })
        };
        text.lines().map(entry).collect::<Option<Vec<_>>>().map(Self)
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for Entry { train, validation } in &self.0 {
            let _ = match validation {
                Some(v) => writeln!(text, "{train} {v}"),
                None => writeln!(text, "{train}"),
            };
        }
        text
    }

    /// The epoch with the smallest loss on the validation part, and of equal ones the first; the
    /// last one where there is no such part.
    pub(crate) fn best(&self) -> Option<usize> {
        let with: Vec<(usize, f64)> =
            self.0.iter().enumerate().filter_map(|(n, e)| Some((n, e.validation?))).collect();
        match with.iter().min_by(|a, b| a.1.total_cmp(&b.1)) {
            Some(best) => Some(best.0),
            None => self.0.len().checked_sub(1),
        }
    }

    /// Whether the last `patience` epochs have brought nothing better.
    pub(crate) fn is_over(&self, patience: usize) -> bool {
        let since = self.best().map_or(0, |best| self.0.len() - 1 - best);
        patience > 0 && since >= patience
    }

    /// The losses as a picture.
    pub(crate) fn plot(&self, title: &str) -> Result<String, Error> {
        let of = |label: &str, value: &dyn Fn(&Entry) -> Option<f64>| Curve {
            label: label.to_owned(),
            dashed: false,
            points: (1..)
                .zip(&self.0)
                .filter_map(|(n, e)| Some((f64::from(n), value(e)?)))
                .collect(),
        };
        let mut all = vec![of("training", &|e| Some(e.train))];
        let validation = of("validation", &|e| e.validation);
        if !validation.points.is_empty() {
            all.push(validation);
        }
        lines(&Axes { title, x: "epoch", logarithmic: true, truth_first: false }, all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(validation: &[f64]) -> History {
        let entry = |v: &f64| Entry { train: 0.1 + v / 3.0, validation: Some(*v) };
        History(validation.iter().map(entry).collect())
    }

    #[test]
    fn as_text_it_comes_back() {
        for history in
            [of(&[0.1, 1.0 / 3.0, 1e-17]), History(vec![Entry { train: 2.0, validation: None }])]
        {
            assert_eq!(History::parse(&history.text()), Some(history));
        }
        assert_eq!(History::parse(""), Some(History::default()));
        for other in ["a", "1 2 3", "1  2"] {
            assert_eq!(History::parse(other), None);
        }
    }

    #[test]
    fn patience_counts_from_the_best() {
        let history = of(&[3.0, 2.0, 2.0, 2.5]);
        assert_eq!(history.best(), Some(1));
        assert_eq!([0, 1, 2, 3].map(|p| history.is_over(p)), [false, true, true, false]);
        let alone = History(vec![Entry { train: 1.0, validation: None }; 9]);
        assert_eq!((alone.best(), alone.is_over(1)), (Some(8), false));
        assert!(!History::default().is_over(1));
        // A NaN is no best.
        assert_eq!(of(&[f64::NAN, 5.0]).best(), Some(1));
    }
}
