//! Columns of text. Pure: styles are added after the widths are known, so that they change none.

use anstyle::Style;

use crate::paint::{self, in_style};

/// One field.
#[derive(Debug, Clone)]
pub struct Cell {
    text: String,
    style: Style,
    right: bool,
}

impl Cell {
    /// A text.
    pub fn new(text: impl Into<String>) -> Self {
        Cell { text: text.into(), style: paint::PLAIN, right: false }
    }

    /// A number, which stands to the right.
    pub fn number(text: impl Into<String>) -> Self {
        Cell { right: true, ..Cell::new(text) }
    }

    /// In a style.
    #[must_use]
    pub fn style(self, style: Style) -> Self {
        Cell { style, ..self }
    }

    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

/// A table with a heading.
#[derive(Debug, Clone, Default)]
pub struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<Cell>>,
}

impl Table {
    /// An empty one.
    #[must_use]
    pub fn new(head: &[&'static str]) -> Self {
        Table { head: head.to_vec(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<Cell>) {
        self.rows.push(cells);
    }

    /// Whether there are no rows.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines; none is longer than `width` characters.
    #[must_use]
    pub fn lines(&self, width: usize) -> Vec<String> {
        let right = |nth: usize| self.rows.iter().any(|row| row.get(nth).is_some_and(|cell| cell.right));
        let head = self.head.iter().enumerate();
        let head: Vec<_> =
            head.map(|(nth, title)| Cell { right: right(nth), ..Cell::new(*title) }.style(paint::HEAD)).collect();
        let rows: Vec<&[Cell]> = std::iter::once(head.as_slice()).chain(self.rows.iter().map(Vec::as_slice)).collect();
        let widths: Vec<usize> = (0..self.head.len())
            .map(|nth| rows.iter().filter_map(|row| row.get(nth)).map(Cell::width).max().unwrap_or(0))
            .collect();
        rows.iter().map(|row| line(row, &widths, width)).collect()
    }

    /// All of it, as wide as it is.
    #[must_use]
    pub fn text(&self) -> String {
        self.lines(usize::MAX).join("\n")
    }
}

fn line(row: &[Cell], widths: &[usize], most: usize) -> String {
    let mut line = String::new();
    let mut left = most;
    for (nth, (cell, width)) in row.iter().zip(widths).enumerate() {
        let gap = if nth == 0 { 0 } else { 2 };
        let padding = " ".repeat(width.saturating_sub(cell.width()));
        let last = nth + 1 == row.len();
        let (before, after) = match cell.right {
            true => (padding.as_str(), ""),
            false => ("", if last { "" } else { padding.as_str() }),
        };
        for (part, style) in [
            (" ".repeat(gap).as_str(), paint::PLAIN),
            (before, paint::PLAIN),
            (&cell.text, cell.style),
            (after, paint::PLAIN),
        ] {
            let part: String = part.chars().take(left).collect();
            left -= part.chars().count();
            if !part.is_empty() {
                line += &in_style(style, &part);
            }
        }
    }
    line
}

/// A bar of so many characters, of which `share` (0 to 1) are full.
#[must_use]
pub fn bar(share: f64, width: usize) -> String {
    let full = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(width - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_longest_and_numbers_stand_to_the_right() {
        let mut table = Table::new(&["ID", "N"]);
        table.row(vec![Cell::new("long-one"), Cell::number("7")]);
        table.row(vec![Cell::new("b").style(paint::BAD), Cell::number("1,000")]);
        let plain = anstream::adapter::strip_str(&table.text()).to_string();
        assert_eq!(plain, "ID            N\nlong-one      7\nb         1,000");
        // A style changes no width.
        assert!(table.text().contains("\u{1b}[31mb\u{1b}[0m"), "{:?}", table.text());
    }

    #[test]
    fn no_line_is_wider_than_the_screen() {
        let mut table = Table::new(&["ID", "WHY"]);
        table.row(vec![Cell::new("a"), Cell::new("a long reason").style(paint::WARN)]);
        for line in table.lines(8) {
            assert!(anstream::adapter::strip_str(&line).to_string().chars().count() <= 8, "{line:?}");
        }
    }

    #[test]
    fn a_bar_is_always_as_long() {
        for share in [-1.0, 0.0, 0.5, 1.0, 7.0, f64::NAN] {
            assert_eq!(bar(share, 10).chars().count(), 10, "{share}");
        }
        assert_eq!(bar(0.5, 4), "██░░");
    }
}
