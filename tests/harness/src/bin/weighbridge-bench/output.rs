//! Tables for people, one line of JSON for programs.

use serde_json::{Value, json};

/// Prints rows under a header; the first column to the left, the others to the right.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([header.get(column).map_or(0, |name| name.chars().count())]).max().unwrap_or(0)
    };
    let line = |cells: &[String]| {
        let cells = cells.iter().enumerate().map(|(column, cell)| match column {
            0 => format!("{cell:<0$}", width(0)),
            _ => format!("{cell:>0$}", width(column)),
        });
        println!("{}", cells.collect::<Vec<_>>().join("  "));
    };
    line(&header.iter().map(ToString::to_string).collect::<Vec<_>>());
    for row in rows {
        line(row);
    }
}

/// Prints the result as JSON.
pub(crate) fn result(bench: &str, rows: &[Value]) {
    println!("{}", json!({"bench": bench, "rows": rows}));
}
