//! What one setting does: a few figures over its values, side by side, with the default marked.

use std::fmt::Write as _;

use super::{COLOURS, STYLE, colour, dash, escape, label, ticks};

/// A few figures over the values of one setting.
#[derive(Debug, Clone, Default)]
pub struct Panels {
    /// Above them.
    pub title: String,
    /// Under the title: what was run.
    pub subtitle: String,
    /// Under each panel: the setting with its unit.
    pub x: String,
    /// The values, evenly spaced.
    pub values: Vec<String>,
    /// Place of the default among them.
    pub default: Option<usize>,
    /// Names of the series, the same in all panels.
    pub series: Vec<String>,
    /// Four of them fill the picture.
    pub panels: Vec<Panel>,
}

/// One figure.
#[derive(Debug, Clone, Default)]
pub struct Panel {
    /// Above it, with its unit and which way is better.
    pub title: String,
    /// The largest value that is drawn in its place: what is larger stands at the upper edge with its number.
    pub most: Option<f64>,
    /// For each series a value per value of the setting; what is not a number is left out.
    pub series: Vec<Vec<f64>>,
}

const WIDTH: f64 = 860.0;
const TOP: f64 = 92.0;
const PANEL_WIDTH: f64 = 430.0;
const PANEL_HEIGHT: f64 = 236.0;
const LEFT: f64 = 58.0;
const INNER_WIDTH: f64 = 350.0;
const ABOVE: f64 = 30.0;
const INNER_HEIGHT: f64 = 150.0;

impl Panels {
    /// The picture.
    #[must_use]
    pub fn svg(&self) -> String {
        let height = TOP + PANEL_HEIGHT * self.panels.len().div_ceil(2) as f64;
        let title = escape(&self.title);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" \
             font-family=\"sans-serif\" font-size=\"12\"><title>{title}</title>{STYLE}\
             <rect width=\"{WIDTH}\" height=\"{height}\" class=\"ground\"/>\
             <text x=\"16\" y=\"24\" font-size=\"16\">{title}</text><text x=\"16\" y=\"44\">{}</text>",
            escape(&self.subtitle)
        );
        let mut x = 16.0;
        for (nth, name) in self.series.iter().enumerate() {
            let _ = write!(
                svg,
                "<line x1=\"{x:.0}\" x2=\"{:.0}\" y1=\"66\" y2=\"66\" stroke=\"{}\" stroke-width=\"4\" stroke-dasharray=\"{}\"/>\
                 <text x=\"{:.0}\" y=\"70\">{}</text>",
                x + 24.0,
                colour(nth),
                dash(nth),
                x + 30.0,
                escape(name)
            );
            x += 52.0 + 6.8 * name.chars().count() as f64;
        }
        for (nth, panel) in self.panels.iter().enumerate() {
            let (left, top) = (PANEL_WIDTH * (nth % 2) as f64 + LEFT, TOP + PANEL_HEIGHT * (nth / 2) as f64 + ABOVE);
            self.panel(&mut svg, panel, left, top);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn at(&self, nth: usize) -> f64 {
        (nth as f64 + 0.5) * INNER_WIDTH / self.values.len().max(1) as f64
    }

    fn panel(&self, svg: &mut String, panel: &Panel, left: f64, top: f64) {
        let all = panel.series.iter().flatten().copied().filter(|value| value.is_finite());
        let at = ticks(all.fold(0.0, f64::max).min(panel.most.unwrap_or(f64::MAX)));
        let most = at.last().copied().unwrap_or(1.0);
        let bottom = top + INNER_HEIGHT;
        let y = |value: f64| bottom - (value.min(most) / most) * INNER_HEIGHT;
        let _ = write!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.0}\" font-size=\"13\">{}</text>",
            left - 42.0,
            top - 12.0,
            escape(&panel.title)
        );
        if let Some(default) = self.default {
            let width = INNER_WIDTH / self.values.len().max(1) as f64;
            let _ = write!(
                svg,
                "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"{INNER_HEIGHT}\" class=\"band\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"10\">default</text>",
                left + self.at(default) - width / 2.0,
                left + self.at(default),
                bottom - 5.0
            );
        }
        for value in &at {
            let _ = write!(
                svg,
                "<line x1=\"{left}\" x2=\"{0}\" y1=\"{1:.1}\" y2=\"{1:.1}\" class=\"grid\"/>\
                 <text x=\"{2}\" y=\"{3:.1}\" text-anchor=\"end\">{4}</text>",
                left + INNER_WIDTH,
                y(*value),
                left - 6.0,
                y(*value) + 4.0,
                label(*value)
            );
        }
        for (nth, value) in self.values.iter().enumerate() {
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
                left + self.at(nth),
                bottom + 16.0,
                escape(value)
            );
        }
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            left + INNER_WIDTH / 2.0,
            bottom + 33.0,
            escape(&self.x)
        );
        for (series, values) in panel.series.iter().enumerate() {
            let points: Vec<(f64, f64, f64)> = values
                .iter()
                .enumerate()
                .filter(|(_, value)| value.is_finite())
                .map(|(nth, value)| (left + self.at(nth), y(*value), *value))
                .collect();
            let path: Vec<String> = points.iter().map(|(x, y, _)| format!("{x:.1},{y:.1}")).collect();
            let ink = colour(series);
            let _ = write!(
                svg,
                "<polyline fill=\"none\" stroke=\"{ink}\" stroke-width=\"2\" stroke-dasharray=\"{}\" points=\"{}\"/>",
                dash(series),
                path.join(" ")
            );
            for (x, y, value) in points {
                let _ = write!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{ink}\"/>");
                if value > most {
                    // Series that leave the picture at the same place do not write over each other.
                    let above = top + 9.0 + 11.0 * (series % COLOURS.len()) as f64;
                    let _ = write!(
                        svg,
                        "<text x=\"{:.1}\" y=\"{above:.1}\" font-size=\"10\" style=\"fill:{ink}\">\u{2191}{value:.1}</text>",
                        x + 5.0
                    );
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_marked_and_what_is_too_large_has_its_number() {
        let panels = Panels {
            title: "k".into(),
            values: vec!["1".into(), "2".into()],
            default: Some(1),
            series: vec!["a < b".into()],
            panels: vec![Panel { title: "TTFT".into(), most: Some(2.0), series: vec![vec![1.0, 7.25]] }],
            ..Panels::default()
        };
        let svg = panels.svg();
        // Half way up, and at the upper edge.
        assert!(svg.contains("points=\"145.5,197.0 320.5,122.0\""), "{svg}");
        assert!(svg.contains("\u{2191}7.2") && svg.contains("a &lt; b"), "{svg}");
        assert_eq!(svg.matches(">default<").count(), 1);
        assert_eq!(Panels { default: None, ..panels }.svg().matches("class=\"band\"").count(), 0);
    }
}
