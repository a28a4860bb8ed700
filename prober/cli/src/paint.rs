//! The few colours. [`crate::output`] takes them out where they are not wanted.

use anstyle::{AnsiColor, Color, Effects, Style};

const fn colour(colour: AnsiColor) -> Style {
    Style::new().fg_color(Some(Color::Ansi(colour)))
}

/// As it is.
pub const PLAIN: Style = Style::new();
/// Headings.
pub const HEAD: Style = Style::new().effects(Effects::BOLD);
/// Beside the point.
pub const FAINT: Style = Style::new().effects(Effects::DIMMED);
/// All is well.
pub const GOOD: Style = colour(AnsiColor::Green);
/// Look at it.
pub const WARN: Style = colour(AnsiColor::Yellow);
/// Wrong.
pub const BAD: Style = colour(AnsiColor::Red);
/// Back to plain.
pub const END: anstyle::Reset = anstyle::Reset;

/// A text in a style.
#[must_use]
pub fn in_style(style: Style, text: &str) -> String {
    if style == PLAIN { text.to_owned() } else { format!("{style}{text}{style:#}") }
}
