//! A line of the Prometheus text format: `name{label="value",...} number`, perhaps with a time or an exemplar after it.

/// One sample.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Line<'a> {
    pub(super) name: &'a str,
    /// Between the braces, as written.
    pub(super) labels: &'a str,
    /// `None` when it is negative, infinite or no number.
    pub(super) value: Option<f64>,
}

impl<'a> Line<'a> {
    /// Reads a line; `None` for comments and what is no sample.
    pub(super) fn parse(line: &'a str) -> Option<Self> {
        if line.starts_with('#') {
            return None;
        }
        let name = line.split(['{', ' ', '\t']).next().filter(|name| !name.is_empty())?;
        let rest = line.get(name.len()..)?;
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(inside) => {
                let end = end_of_labels(inside)?;
                (inside.get(..end)?, inside.get(end + 1..)?)
            }
            None => ("", rest),
        };
        let number = rest.split_whitespace().next().and_then(|text| text.parse::<f64>().ok());
        Some(Line { name, labels, value: number.filter(|number| number.is_finite() && *number >= 0.0) })
    }

    /// A label's value, escapes left as they are.
    pub(super) fn label(&self, wanted: &str) -> Option<&'a str> {
        // Values that contain a comma are none that is asked for.
        let label = self.labels.split(',').find_map(|label| label.trim().strip_prefix(wanted)?.strip_prefix('='))?;
        Some(label.trim().trim_matches('"'))
    }
}

/// Where the brace closes that is not inside quotes.
fn end_of_labels(inside: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in inside.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'}' if !quoted => return Some(at),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_and_quotes_inside_labels_are_no_ends() {
        let line = Line::parse(r#"m{a="x}\"y",gpu="0"} 4.5 1700000000000"#).unwrap();
        assert_eq!((line.name, line.value), ("m", Some(4.5)));
        assert_eq!((line.label("gpu"), line.label("b")), (Some("0"), None));
        assert_eq!(Line::parse("plain 3 # {t=\"1\"} 9").unwrap().value, Some(3.0));
        for none in ["# HELP m x", "", " 3", "m{a=\"b"] {
            assert_eq!(Line::parse(none), None, "{none:?}");
        }
        assert_eq!(Line::parse("m").unwrap().value, None);
    }
}
