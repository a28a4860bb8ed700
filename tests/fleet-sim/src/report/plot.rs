//! Plots as SVG: lines over a number, bars over names, panels for a setting. Axes with units, a legend; light or dark as the reader's
//! screen is; nothing that needs a script.

mod panels;

use std::fmt::Write as _;

pub use panels::{Panel, Panels};

/// Values over a number.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    /// Above the plot.
    pub title: String,
    /// Under it, with its unit.
    pub x: String,
    /// Beside it, with its unit.
    pub y: String,
    /// Whether each step to the right multiplies.
    pub log_x: bool,
    /// Name and points.
    pub series: Vec<(String, Vec<(f64, f64)>)>,
}

/// Values over names.
#[derive(Debug, Clone, Default)]
pub struct Bars {
    /// Above the plot.
    pub title: String,
    /// Beside it, with its unit.
    pub y: String,
    /// Names under the groups of bars.
    pub groups: Vec<String>,
    /// Name and value for each group.
    pub series: Vec<(String, Vec<f64>)>,
}

/// Ink and ground, by what the reader's screen asks for.
const STYLE: &str = "<style>text{fill:#222}.ground{fill:#fff}.grid{stroke:#ddd}.band{fill:#e8e8e8}\
    @media(prefers-color-scheme:dark){text{fill:#ddd}.ground{fill:#161b22}.grid{stroke:#3a3f47}.band{fill:#2a3038}}</style>";
const WIDTH: f64 = 860.0;
const HEIGHT: f64 = 440.0;
const LEFT: f64 = 78.0;
const RIGHT: f64 = 210.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 64.0;
/// Distinct to colour-blind eyes, too (Okabe and Ito); beyond these the dash tells series apart.
const COLOURS: [&str; 8] = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#A06CD5", "#999999"];
const DASHES: [&str; 3] = ["none", "7 4", "2 3"];

/// Where a value is drawn.
#[derive(Debug, Clone, Copy)]
struct Axis {
    from: f64,
    to: f64,
    log: bool,
}

impl Axis {
    fn share(&self, value: f64) -> f64 {
        let on = |value: f64| if self.log { value.max(f64::MIN_POSITIVE).ln() } else { value };
        let width = on(self.to) - on(self.from);
        if width == 0.0 { 0.5 } else { (on(value) - on(self.from)) / width }
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + self.share(value) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - self.share(value) * (HEIGHT - TOP - BOTTOM)
    }
}

/// Round numbers from 0 to the first that is not below `most`.
fn ticks(most: f64) -> Vec<f64> {
    if !most.is_finite() || most <= 0.0 {
        return vec![0.0, 1.0];
    }
    let rough = most / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= rough).unwrap_or(rough);
    let count = (most / step).ceil() as u32;
    (0..=count).map(|nth| f64::from(nth) * step).collect()
}

fn label(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{}M", short(value / 1e6)),
        v if v >= 1e4 => format!("{}k", short(value / 1e3)),
        _ => short(value),
    }
}

fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn colour(nth: usize) -> &'static str {
    COLOURS[nth % COLOURS.len()]
}

fn dash(nth: usize) -> &'static str {
    DASHES[nth / COLOURS.len() % DASHES.len()]
}

struct Canvas(String);

impl Canvas {
    fn new(title: &str, x: &str, y: &str) -> Self {
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             font-family=\"sans-serif\" font-size=\"13\"><title>{0}</title>\
             {STYLE}<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" class=\"ground\"/>",
            escape(title)
        );
        let middle = LEFT + (WIDTH - LEFT - RIGHT) / 2.0;
        let _ = write!(svg, "<text x=\"{LEFT}\" y=\"26\" font-size=\"16\">{}</text>", escape(title));
        let _ = write!(svg, "<text x=\"{middle}\" y=\"{}\" text-anchor=\"middle\">{}</text>", HEIGHT - 14.0, escape(x));
        let across = TOP + (HEIGHT - TOP - BOTTOM) / 2.0;
        let _ = write!(
            svg,
            "<text transform=\"translate(18 {across}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
            escape(y)
        );
        Self(svg)
    }

    fn y_axis(&mut self, axis: Axis, at: &[f64]) {
        for value in at {
            let y = axis.y(*value);
            let _ = write!(
                self.0,
                "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"grid\"/>\
                 <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 8.0,
                y + 4.5,
                label(*value)
            );
        }
    }

    fn below(&mut self, x: f64, text: &str) {
        let _ = write!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - BOTTOM + 19.0,
            escape(text)
        );
    }

    fn legend(&mut self, nth: usize, name: &str) {
        let y = TOP + 10.0 + 19.0 * nth as f64;
        let _ = write!(
            self.0,
            "<line x1=\"{0}\" x2=\"{1}\" y1=\"{y}\" y2=\"{y}\" stroke=\"{2}\" stroke-width=\"4\" stroke-dasharray=\"{3}\"/>\
             <text x=\"{4}\" y=\"{5}\">{6}</text>",
            WIDTH - RIGHT + 14.0,
            WIDTH - RIGHT + 38.0,
            colour(nth),
            dash(nth),
            WIDTH - RIGHT + 46.0,
            y + 4.5,
            escape(name)
        );
    }

    fn end(mut self) -> String {
        self.0.push_str("</svg>\n");
        self.0
    }
}

impl Lines {
    /// The picture.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut canvas = Canvas::new(&self.title, &self.x, &self.y);
        let points =
            || self.series.iter().flat_map(|(_, points)| points).filter(|(x, y)| x.is_finite() && y.is_finite());
        let at = ticks(points().map(|(_, y)| *y).fold(0.0, f64::max));
        let y_axis = Axis { from: 0.0, to: at.last().copied().unwrap_or(1.0), log: false };
        canvas.y_axis(y_axis, &at);
        let mut xs: Vec<f64> = points().map(|(x, _)| *x).collect();
        xs.sort_by(f64::total_cmp);
        xs.dedup();
        let (from, to) = (xs.first().copied().unwrap_or(0.0), xs.last().copied().unwrap_or(1.0));
        let x_axis = Axis { from, to, log: self.log_x && from > 0.0 };
        let mut last = f64::NEG_INFINITY;
        for x in xs {
            // No two labels on top of each other.
            if x_axis.x(x) - last >= 34.0 {
                last = x_axis.x(x);
                canvas.below(last, &label(x));
            }
        }
        for (nth, (name, points)) in self.series.iter().enumerate() {
            let places: Vec<(f64, f64)> = points
                .iter()
                .filter(|(x, y)| x.is_finite() && y.is_finite())
                .map(|(x, y)| (x_axis.x(*x), y_axis.y(*y)))
                .collect();
            let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
            let _ = write!(
                canvas.0,
                "<polyline fill=\"none\" stroke=\"{}\" stroke-width=\"2\" stroke-dasharray=\"{}\" points=\"{}\"/>",
                colour(nth),
                dash(nth),
                path.join(" ")
            );
            for (x, y) in places {
                let _ = write!(canvas.0, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{}\"/>", colour(nth));
            }
            canvas.legend(nth, name);
        }
        canvas.end()
    }
}

impl Bars {
    /// The picture.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut canvas = Canvas::new(&self.title, "", &self.y);
        let values = self.series.iter().flat_map(|(_, values)| values).copied().filter(|value| value.is_finite());
        let at = ticks(values.fold(0.0, f64::max));
        let axis = Axis { from: 0.0, to: at.last().copied().unwrap_or(1.0), log: false };
        canvas.y_axis(axis, &at);
        let group = (WIDTH - LEFT - RIGHT) / self.groups.len().max(1) as f64;
        let bar = group * 0.86 / self.series.len().max(1) as f64;
        for (nth, name) in self.groups.iter().enumerate() {
            canvas.below(LEFT + group * (nth as f64 + 0.5), name);
        }
        for (nth, (name, values)) in self.series.iter().enumerate() {
            for (of, value) in values.iter().enumerate().filter(|(_, value)| value.is_finite()) {
                let x = LEFT + group * (of as f64 + 0.07) + bar * nth as f64;
                let y = axis.y(*value);
                let _ = write!(
                    canvas.0,
                    "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"{}\" fill-opacity=\"{}\">\
                     <title>{}: {}</title></rect>",
                    (bar - 1.0).max(0.5),
                    axis.y(0.0) - y,
                    colour(nth),
                    if nth < COLOURS.len() { "1" } else { "0.55" },
                    escape(name),
                    label(*value)
                );
            }
            canvas.legend(nth, name);
        }
        canvas.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_reach_the_top() {
        assert_eq!(ticks(9.0), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(0.31).last().map(|at| (at * 10.0).round()), Some(4.0));
        assert_eq!((ticks(0.0), ticks(f64::NAN)), (vec![0.0, 1.0], vec![0.0, 1.0]));
        assert_eq!([label(12_000.0), label(0.25), label(2.5e6)], ["12k", "0.25", "2.5M"]);
    }

    #[test]
    fn a_line_goes_from_corner_to_corner() {
        let lines = Lines {
            title: "a < b".into(),
            series: vec![("one".into(), vec![(1.0, 0.0), (10.0, 50.0), (100.0, 100.0), (3.0, f64::NAN)])],
            log_x: true,
            ..Lines::default()
        };
        let svg = lines.svg();
        assert!(svg.contains("points=\"78.0,376.0 364.0,211.0 650.0,46.0\""), "{svg}");
        assert!(svg.contains("a &lt; b") && svg.contains(">one</text>") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn bars_stand_on_the_axis() {
        let bars = Bars {
            groups: vec!["g".into()],
            series: vec![("s".into(), vec![5.0]), ("t".into(), vec![f64::NAN])],
            ..Bars::default()
        };
        let svg = bars.svg();
        assert_eq!(svg.matches("<rect x=").count(), 1);
        assert!(svg.contains("y=\"46.0\"") && svg.contains("height=\"330.0\""), "{svg}");
    }
}
