//! Tables on a terminal, and how numbers read in them.

use comfy_table::presets::{NOTHING, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Width};

/// Columns of a cell of prose, at least: in fewer it would be a column of single words.
const PROSE: usize = 24;
/// Names of so many columns stay on one line.
const NAME: usize = 40;

/// Rows under headings. It takes the width that there is, and breaks lines between words alone: where not even that
/// fits, each row becomes a few lines of its own.
#[derive(Debug)]
pub struct Table {
    headings: Vec<String>,
    /// The headings of numbers.
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
    /// Whether it is drawn with lines.
    ruled: bool,
    width: usize,
}

/// An empty table under these headings; those that start with `>` are right-aligned. Names come first, and keep
/// to one line.
pub fn table(headings: &[&str]) -> Table {
    Table::new(headings, true, terminal_width().unwrap_or(120))
}

/// The same without lines: as many rows on a screen, and columns as there is room for.
pub fn list(headings: &[&str]) -> Table {
    Table::new(headings, false, terminal_width().unwrap_or(120))
}

impl Table {
    fn new(headings: &[&str], ruled: bool, width: usize) -> Self {
        Self {
            headings: headings.iter().map(|h| h.trim_start_matches('>').to_owned()).collect(),
            right: headings.iter().map(|h| h.starts_with('>')).collect(),
            rows: Vec::new(),
            ruled,
            width,
        }
    }

    /// A row, with a cell for each heading.
    pub fn add_row<C: ToString>(&mut self, cells: impl IntoIterator<Item = C>) {
        let mut row: Vec<String> = cells.into_iter().map(|c| c.to_string()).collect();
        row.resize(self.headings.len(), String::new());
        self.rows.push(row);
    }

    /// The cells of a column, its heading first.
    fn column(&self, index: usize) -> impl Iterator<Item = &str> {
        std::iter::once(&self.headings[index])
            .chain(self.rows.iter().map(move |r| &r[index]))
            .map(String::as_str)
    }

    /// The widths of the columns where each takes `more` than its text, and all of them `rules`; `None` where
    /// words would break.
    fn widths(&self, more: usize, rules: usize) -> Option<Vec<usize>> {
        let columns = 0..self.headings.len();
        let longest =
            |index, part: fn(&str) -> usize| self.column(index).map(part).max().unwrap_or(0);
        let whole: Vec<usize> = columns.clone().map(|i| longest(i, longest_line)).collect();
        let least = |index: usize| match longest(index, longest_word) {
            _ if index == 0 && whole[0] <= NAME => whole[0],
            word => word.max(whole[index].min(PROSE)),
        };
        let mut widths: Vec<usize> = columns.clone().map(least).collect();
        let taken = widths.iter().map(|w| w + more).sum::<usize>() + rules;
        let mut spare = self.width.checked_sub(taken)?;
        // To those whose lines would be the most.
        while spare > 0 {
            let lines = |index: &usize| whole[*index] * 1000 / widths[*index].max(1);
            let wants = columns.clone().filter(|&index| widths[index] < whole[index]);
            let Some(index) = wants.max_by_key(lines) else { break };
            (widths[index], spare) = (widths[index] + 1, spare - 1);
        }
        // No wider than their lines come to be.
        let shrunk = columns.map(|index| {
            let lines = self.column(index).flat_map(|cell| wrapped(cell, widths[index]));
            lines.map(|line| line.chars().count()).max().unwrap_or(0).max(1)
        });
        Some(shrunk.collect())
    }

    fn drawn(
        &self,
        style: comfy_table::TableStyle,
        widths: &[usize],
        padding: (u16, u16),
    ) -> String {
        let mut table = comfy_table::Table::new();
        table.load_style(style).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(u16::try_from(self.width).unwrap_or(u16::MAX));
        let cells = |row: &[String]| {
            let wrap = |(cell, width): (&String, &usize)| wrapped(cell, *width).join("\n");
            row.iter().zip(widths).map(wrap).collect::<Vec<_>>()
        };
        table.set_header(cells(&self.headings));
        for row in &self.rows {
            table.add_row(cells(row));
        }
        for (column, (width, right)) in table.column_iter_mut().zip(widths.iter().zip(&self.right))
        {
            let whole = u16::try_from(*width).unwrap_or(u16::MAX) + padding.0 + padding.1;
            column
                .set_padding(padding)
                .set_constraint(ColumnConstraint::Absolute(Width::Fixed(whole)));
            if *right {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table.to_string()
    }

    /// Each row by itself: its name, then `heading: value` of the others.
    fn records(&self) -> String {
        let named = usize::from(self.headings[0].is_empty());
        let mut lines = Vec::new();
        for row in &self.rows {
            lines.push(row[..=named].join(" "));
            let mut fields: Vec<String> = Vec::new();
            for (heading, cell) in self.headings.iter().zip(row).skip(named + 1) {
                let cell = cell.replace('\n', " ");
                match (&heading[..], fields.last_mut()) {
                    _ if cell.is_empty() => {}
                    // A unit, say, of what stands before.
                    ("", Some(last)) => *last += &format!(" {cell}"),
                    ("", None) => fields.push(cell),
                    _ => fields.push(format!("{heading}: {cell}")),
                }
            }
            let room = self.width.saturating_sub(4);
            let mut line = String::new();
            for field in fields {
                if line.is_empty() {
                    line = field;
                } else if line.chars().count() + 2 + field.chars().count() <= room {
                    line += &format!("; {field}");
                } else {
                    lines.extend(indented(&std::mem::replace(&mut line, field), room));
                }
            }
            lines.extend(indented(&line, room));
        }
        lines.join("\n")
    }
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let columns = self.headings.len();
        let ruled = || self.widths(2, columns + 1).filter(|_| self.ruled);
        let text = match (ruled(), self.widths(2, 0), self.widths(1, 0)) {
            (Some(widths), ..) => self.drawn(UTF8_FULL_CONDENSED, &widths, (1, 1)),
            (_, Some(widths), _) => self.drawn(NOTHING, &widths, (1, 1)),
            (.., Some(widths)) => self.drawn(NOTHING, &widths, (0, 1)),
            _ => self.records(),
        };
        f.write_str(&text)
    }
}

fn longest_line(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

fn longest_word(text: &str) -> usize {
    text.split_whitespace().map(|word| word.chars().count()).max().unwrap_or(0)
}

/// The lines of a text in so many columns; a word that is longer has a line of its own.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.lines() {
        if line.chars().count() <= width {
            lines.push(line.to_owned());
            continue;
        }
        let mut part = String::new();
        for word in line.split(' ') {
            if !part.is_empty() && part.chars().count() + 1 + word.chars().count() > width {
                lines.push(std::mem::take(&mut part));
            } else if !part.is_empty() {
                part.push(' ');
            }
            part += word;
        }
        lines.push(part);
    }
    lines
}

/// Below a name.
fn indented(text: &str, width: usize) -> Vec<String> {
    let line = |(index, line): (usize, String)| match index {
        0 => format!("  {line}"),
        _ => format!("    {line}"),
    };
    wrapped(text, width).into_iter().enumerate().map(line).collect()
}

/// The columns of the terminal, or those that the variable COLUMNS names where stdout is none.
pub fn terminal_width() -> Option<usize> {
    let named = || std::env::var("COLUMNS").ok()?.parse().ok();
    comfy_table::Table::new().width().map(usize::from).or_else(named).filter(|&columns| columns > 0)
}

/// A line in so many columns, if they are limited. What is cut ends with `…`; whether it is.
pub fn cut(line: &str, width: Option<usize>) -> (String, bool) {
    match width {
        Some(width) if line.chars().count() > width => {
            let kept: String = line.chars().take(width.saturating_sub(1)).collect();
            (format!("{}…", kept.trim_end()), true)
        }
        _ => (line.to_owned(), false),
    }
}

/// Bytes in the unit that fits: `141.4 GB` (decimal, as bandwidths are).
pub fn bytes(count: f64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut value = count;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(ruled: bool, width: usize) -> String {
        let mut table =
            Table::new(&["operator, file", ">requests", ">cost", "", "what it is"], ruled, width);
        table.add_row([
            "transpose_swapped.cu",
            "131,072",
            "1,000,000",
            "wavefronts",
            "a tile whose columns lie in one bank",
        ]);
        table.add_row(["sum", "1", "", "", ""]);
        table.to_string()
    }

    #[test]
    fn no_width_breaks_a_word() {
        for ruled in [true, false] {
            for width in [20, 40, 60, 80, 120] {
                let text = counts(ruled, width);
                for word in
                    ["transpose_swapped.cu", "131,072", "1,000,000", "wavefronts", "columns"]
                {
                    assert!(text.contains(word), "{word} at {width}:\n{text}");
                }
                let fits = |line: &str| line.trim_end().chars().count() <= width;
                assert!(text.lines().all(fits), "{width}:\n{text}");
            }
        }
        assert!(counts(true, 120).starts_with('┌') && counts(true, 120).contains("in one bank │"));
        assert!(counts(true, 80).starts_with("operator, file"), "{}", counts(true, 80));
    }

    #[test]
    fn where_no_table_fits_each_row_has_its_own_lines() {
        let expected = "\
transpose_swapped.cu
  requests: 131,072
  cost: 1,000,000 wavefronts
  what it is: a tile whose columns lie
    in one bank
sum
  requests: 1";
        assert_eq!(counts(true, 40), expected);
    }
}
