//! Numbers in the order of time.

use std::ops::Range;
use std::path::Path;

use lab_device::emulator::{open_file, shown};
use lab_harness::Error;

use super::{Windows, bad_file};

/// A series of numbers, one a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What it is called: its column, or `sine`.
    pub name: String,
    /// Its values, all finite.
    pub values: Vec<f64>,
}

impl Series {
    /// sin(frequency · n / 10) at the n from `first` on: `points` of them, a point each tenth of a
    /// radian at frequency 1.
    pub fn sine(points: usize, frequency: f64, first: usize) -> Self {
        let at = |n: usize| (frequency * n as f64 / 10.0).sin();
        Self { name: "sine".into(), values: (first..first + points).map(at).collect() }
    }

    /// A column of a CSV file whose first line names the columns; the only one where `column` is
    /// none.
    ///
    /// # Errors
    /// [`Error::File`]: it cannot be read, is empty, is not UTF-8, has a row with more or fewer
    /// fields than the first; or a value of the column is no finite number. The message has the row,
    /// counted from 1 below the header, its line and the column. [`Error::Bad`]: there is no such
    /// column, or several.
    pub fn from_csv(path: &Path, column: Option<&str>) -> Result<Self, Error> {
        let failed = |message: String| bad_file(path, message);
        let mut reader = csv::ReaderBuilder::new()
            .trim(csv::Trim::All)
            .from_reader(open_file(path).map_err(|e| failed(e.to_string()))?);
        let header = reader.headers().map_err(|e| failed(plain(e)))?.clone();
        if header.is_empty() {
            return Err(failed("expected a line of column names, got an empty file".into()));
        }
        let (index, name) = find(path, &header, column)?;
        let mut values = Vec::new();
        let mut row = csv::StringRecord::new();
        while reader.read_record(&mut row).map_err(|e| failed(plain(e)))? {
            let text = &row[index];
            let value = text.parse::<f64>().ok().filter(|v| v.is_finite());
            let Some(value) = value else {
                let line = row.position().map_or(0, csv::Position::line);
                let got = if text.is_empty() {
                    "nothing".into()
                } else {
                    format!("'{}'", shown(text, 100))
                };
                let column = shown(&name, 40);
                let at = format!("row {}, line {line}, column '{column}'", values.len() + 1);
                return Err(failed(format!("{at}: expected a finite number, got {got}")));
            };
            values.push(value);
        }
        if values.is_empty() {
            let column = shown(&name, 40);
            return Err(failed(format!("column '{column}': expected numbers, got no row")));
        }
        Ok(Self { name, values })
    }

    /// The windows of `window` values whose next value stands in `targets`.
    ///
    /// # Errors
    /// There is none; the window is empty.
    pub fn windows(&self, window: usize, targets: Range<usize>) -> Result<Windows<'_>, Error> {
        Windows::new(&self.values, window, targets)
    }
}

/// Where the column stands, and its name.
fn find(
    path: &Path,
    header: &csv::StringRecord,
    column: Option<&str>,
) -> Result<(usize, String), Error> {
    const LISTED: usize = 8;
    let mut known: Vec<_> =
        header.iter().take(LISTED).map(|h| format!("'{}'", shown(h, 20))).collect();
    if header.len() > LISTED {
        known.push(format!("{} more", header.len() - LISTED));
    }
    let known = known.join(", ");
    let expected = format!("a column of {}: {known}", path.display());
    let Some(column) = column else {
        return match header.len() {
            1 => Ok((0, header[0].to_owned())),
            _ => Err(Error::bad("--column", expected, "none")),
        };
    };
    let mut all = header.iter().enumerate().filter(|(_, name)| *name == column);
    match (all.next(), all.next()) {
        (Some((index, name)), None) => Ok((index, name.to_owned())),
        (None, _) => Err(Error::bad("--column", expected, format!("'{column}'"))),
        (Some(_), Some(_)) => {
            Err(Error::bad("--column", expected, format!("'{column}', which several have")))
        }
    }
}

/// What the reader says, without its own prefix.
fn plain(error: csv::Error) -> String {
    let line = |p: &Option<csv::Position>| p.as_ref().map_or(0, csv::Position::line);
    match error.kind() {
        csv::ErrorKind::Io(e) => e.to_string(),
        csv::ErrorKind::Utf8 { pos, err } => {
            format!(
                "line {}, field {}: expected UTF-8, got other bytes",
                line(pos),
                err.field() + 1
            )
        }
        csv::ErrorKind::UnequalLengths { pos, expected_len, len } => {
            format!("line {}: expected {expected_len} fields as in the first, got {len}", line(pos))
        }
        _ => error.to_string(),
    }
}
