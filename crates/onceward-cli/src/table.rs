//! Tables that fit the terminal. Widths are measured as a terminal displays them.

use anstyle::Style;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use crate::style::{DIM, styled};

/// The space between two columns.
const GAP: usize = 2;

/// A column.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    pub(crate) fit: Fit,
}

/// What happens to a column if the table is too wide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fit {
    /// It is never cut.
    Whole,
    /// Its cells are cut, but not below this width.
    Cut(usize),
    /// It is dropped if cutting others is not enough.
    Optional,
}

/// A cell of one line.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    pub(crate) fn new(text: impl AsRef<str>, style: Style) -> Self {
        Self { text: one_line(text.as_ref()), style }
    }
}

/// Text on one line, without anything that could control a terminal.
pub(crate) fn one_line(text: &str) -> String {
    onceward::text::one_line(text).into_owned()
}

/// The width for stdout: `COLUMNS`, or the terminal's. `None` without a terminal.
pub(crate) fn width() -> Option<usize> {
    let told = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    told.or_else(|| {
        let (width, _) = terminal_size::terminal_size_of(std::io::stdout())?;
        Some(usize::from(width.0))
    })
    .filter(|width| *width > 0)
}

/// The heading and the rows, no wider than the terminal.
pub(crate) fn render(columns: &[Column], rows: &[Vec<Cell>], room: Option<usize>) -> String {
    let mut shown: Vec<(usize, usize)> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| {
            let cells = rows.iter().filter_map(|row| row.get(index));
            let widest = cells.map(|cell| cell.text.width()).max().unwrap_or(0);
            (index, widest.max(column.title.width()))
        })
        .collect();
    if let Some(room) = room {
        fit(columns, &mut shown, room);
    }
    let line = |cells: &[Cell]| {
        let mut text = String::new();
        for (place, (index, width)) in shown.iter().enumerate() {
            let Some(cell) = cells.get(*index) else { continue };
            let cut = cut(&cell.text, *width);
            let last = place + 1 == shown.len();
            let padding = if last { 0 } else { width.saturating_sub(cut.width()) + GAP };
            text.push_str(&styled(cell.style, cut));
            text.push_str(&" ".repeat(padding));
        }
        text.trim_end().to_owned()
    };
    let heading: Vec<Cell> = columns.iter().map(|column| Cell::new(column.title, DIM)).collect();
    std::iter::once(line(&heading)).chain(rows.iter().map(|row| line(row))).collect::<Vec<_>>().join("\n")
}

/// Makes the columns fit: cuts the widest of those that may be cut, then drops optional ones.
fn fit(columns: &[Column], shown: &mut Vec<(usize, usize)>, room: usize) {
    let mut whole = shown.clone();
    while !cut_to(columns, shown, room) {
        let is_optional = |(index, _): &(usize, usize)| columns[*index].fit == Fit::Optional;
        let Some(optional) = whole.iter().rposition(is_optional) else { return };
        whole.remove(optional);
        shown.clone_from(&whole);
    }
}

/// Cuts columns until they fit; returns whether they do.
fn cut_to(columns: &[Column], shown: &mut [(usize, usize)], room: usize) -> bool {
    loop {
        let total: usize = shown.iter().map(|(_, width)| width + GAP).sum::<usize>().saturating_sub(GAP);
        let Some(surplus) = total.checked_sub(room).filter(|surplus| *surplus > 0) else { return true };
        let spare = |index: usize, width: usize| match columns[index].fit {
            Fit::Cut(least) => width.saturating_sub(least),
            Fit::Whole | Fit::Optional => 0,
        };
        let flexible = shown.iter_mut().filter(|(index, width)| spare(*index, *width) > 0);
        let Some((index, width)) = flexible.max_by_key(|(_, width)| *width) else { return false };
        // Small steps keep two wide columns about equal.
        *width -= surplus.min(spare(*index, *width)).min(4);
    }
}

/// The text, cut with `…` if it is wider.
pub(crate) fn cut(text: &str, width: usize) -> String {
    if text.width() <= width {
        return text.to_owned();
    }
    let mut taken = 0;
    let begin = text.chars().take_while(|c| {
        taken += c.width().unwrap_or(0);
        taken < width
    });
    begin.chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 4] = [
        Column { title: "STATE", fit: Fit::Whole },
        Column { title: "KEY", fit: Fit::Cut(6) },
        Column { title: "AGE", fit: Fit::Optional },
        Column { title: "ID", fit: Fit::Whole },
    ];

    fn table(room: Option<usize>, key: &str) -> String {
        let row = ["done", key, "5s", "op_1"].map(|text| Cell::new(text, Style::new())).to_vec();
        let text = render(&COLUMNS, &[row], room);
        anstream::adapter::strip_str(&text).to_string()
    }

    #[test]
    fn a_table_is_as_wide_as_it_needs_to_be() {
        assert_eq!(table(None, "order-1"), "STATE  KEY      AGE  ID\ndone   order-1  5s   op_1");
    }

    #[test]
    fn a_narrow_terminal_cuts_and_then_leaves_out() {
        assert_eq!(table(Some(24), "order-1-of-many"), "STATE  KEY     AGE  ID\ndone   order…  5s   op_1");
        assert_eq!(table(Some(20), "order-1-of-many"), "STATE  KEY      ID\ndone   order-…  op_1");
    }

    #[test]
    fn wide_characters_take_two_columns() {
        assert_eq!(table(None, "注文"), "STATE  KEY   AGE  ID\ndone   注文  5s   op_1");
        assert_eq!(cut("注文注文", 6), "注文…");
        assert_eq!(cut("é\u{301}tat", 4), "é\u{301}tat");
    }

    #[test]
    fn a_cell_cannot_command_the_terminal() {
        assert_eq!(one_line("a\nb\t  c\u{1b}[31m\u{202e}"), r"a\nb\t  c\u{1b}[31m\u{202e}");
    }
}
