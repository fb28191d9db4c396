//! Tables on a terminal, and how numbers read in them.

use comfy_table::presets::{NOTHING, UTF8_FULL_CONDENSED};
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table};

/// An empty table under these headings; those that start with `>` are right-aligned.
pub fn table(headings: &[&str]) -> Table {
    styled(UTF8_FULL_CONDENSED, headings)
}

/// The same without lines: as many rows on a screen, and columns as there is room for. Names, which come first, never
/// break.
pub fn list(headings: &[&str]) -> Table {
    let mut list = styled(NOTHING, headings);
    if let Some(names) = list.column_mut(0) {
        names.set_constraint(ColumnConstraint::ContentWidth);
    }
    list
}

fn styled(style: comfy_table::TableStyle, headings: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(style)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(headings.iter().map(|h| h.trim_start_matches('>')));
    if !table.is_tty() {
        table.set_width(terminal_width().and_then(|w| u16::try_from(w).ok()).unwrap_or(120));
    }
    for (index, heading) in headings.iter().enumerate() {
        if heading.starts_with('>')
            && let Some(column) = table.column_mut(index)
        {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// The columns of the terminal, or those that the variable COLUMNS names where stdout is none.
pub fn terminal_width() -> Option<usize> {
    let named = || std::env::var("COLUMNS").ok()?.parse().ok();
    Table::new().width().map(usize::from).or_else(named).filter(|&columns| columns > 0)
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
