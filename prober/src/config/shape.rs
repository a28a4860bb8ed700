//! Whether a file has the fields that a configuration may have ([`super::fields`]), each of its type. [`tidy`] reports everything
//! that does not fit, and leaves behind what serde reads without complaint: a file is told all its errors at once, which serde, stopping at
//! the first, cannot do.

use serde_yaml_ng::{Mapping, Value};

use super::fields::{FILE, Field, hint};
use super::{FieldError, Stands};

/// A type of value.
pub(super) enum Kind {
    Text,
    /// Text that is one of these; which, the filter's own rules say when the values are checked.
    OneOf(&'static [&'static str]),
    /// Text such as `2s`.
    Duration,
    /// Text such as `16MiB`, or a number of bytes.
    Size,
    Flag,
    /// Fits into `u32`.
    Count,
    /// Fits into `u64`.
    Large,
    Number,
    Listen,
    /// A count, or a word.
    Choices,
    /// Two numbers.
    Bounds,
    Word(&'static [&'static str]),
    List(&'static Kind),
    Section(&'static [Field]),
}

impl Kind {
    pub(super) fn expected(&self) -> String {
        match self {
            Kind::Text | Kind::OneOf(_) => "text, in quotes where it looks like something else".into(),
            Kind::Duration => "a duration, such as 2s or 6h".into(),
            Kind::Size => "a size, such as 16MiB".into(),
            Kind::Flag => "true or false".into(),
            Kind::Count => "a whole number from 0 to 4294967295".into(),
            Kind::Large => "a whole number from 0".into(),
            Kind::Number => "a number".into(),
            Kind::Listen => "ip:port".into(),
            Kind::Choices => "a number from 1, or all".into(),
            Kind::Bounds => "[least, most], two numbers".into(),
            Kind::Word(words) => words.join(" or "),
            Kind::List(_) => "a list".into(),
            Kind::Section(fields) => format!("a section with {}", names(fields)),
        }
    }

    /// Whether a value is of this type, apart from what is inside a list or section.
    fn fits(&self, value: &Value) -> bool {
        match self {
            Kind::Text | Kind::OneOf(_) | Kind::Duration => value.is_string(),
            Kind::Size => value.is_string() || value.is_u64(),
            Kind::Flag => value.is_bool(),
            Kind::Count => is_count(value),
            Kind::Large => value.is_u64(),
            Kind::Number => value.is_number(),
            Kind::Listen => value.as_str().is_some_and(|text| text.parse::<std::net::SocketAddr>().is_ok()),
            Kind::Choices => value.is_string() || is_count(value),
            Kind::Bounds => {
                value.as_sequence().is_some_and(|both| both.len() == 2 && both.iter().all(Value::is_number))
            }
            Kind::Word(words) => value.as_str().is_some_and(|word| words.contains(&word)),
            Kind::List(_) => value.is_sequence(),
            Kind::Section(_) => value.is_mapping(),
        }
    }

    /// What stands in for a required value that is missing or wrong, so that the rest can be read.
    pub(super) fn stand_in(&self) -> Value {
        match self {
            Kind::List(_) => Value::Sequence(Vec::new()),
            Kind::Number => 0.into(),
            Kind::Section(fields) => {
                let required = fields.iter().filter(|field| field.required);
                Value::Mapping(required.map(|field| (field.name.into(), field.kind.stand_in())).collect())
            }
            // Nothing else is required, or an element of a list.
            _ => Value::String(String::new()),
        }
    }
}

fn is_count(value: &Value) -> bool {
    value.as_u64().is_some_and(|number| u32::try_from(number).is_ok())
}

fn names(fields: &[Field]) -> String {
    fields.iter().map(|field| field.name).collect::<Vec<_>>().join(", ")
}

/// Reports what does not belong into a file, and takes it out.
pub(super) fn tidy(file: &mut Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    // A file of comments only.
    if file.is_null() {
        *file = Value::Mapping(Mapping::new());
    }
    walk(file, &FILE, None, "", &mut errors);
    errors
}

/// Whether the value fits now. `of`: the field that it is the value of; elements of a list have none.
fn walk(value: &mut Value, kind: &Kind, of: Option<&Field>, path: &str, errors: &mut Vec<FieldError>) -> bool {
    if !kind.fits(value) {
        let field = if path.is_empty() { "the file" } else { path };
        let expected = of.map_or_else(|| kind.expected(), Field::expected);
        errors.push(FieldError { field: field.into(), stands: Stands::of(value), expected });
        *value = kind.stand_in();
        return false;
    }
    match (kind, value) {
        (Kind::List(kind), Value::Sequence(elements)) => {
            for (nth, element) in elements.iter_mut().enumerate() {
                walk(element, kind, None, &format!("{path}[{nth}]"), errors);
            }
        }
        (Kind::Section(fields), Value::Mapping(section)) => tidy_section(section, fields, path, errors),
        (Kind::Size, value) => {
            if let Some(bytes) = value.as_u64() {
                *value = bytes.to_string().into();
            }
        }
        _ => {}
    }
    true
}

fn tidy_section(section: &mut Mapping, fields: &[Field], path: &str, errors: &mut Vec<FieldError>) {
    let place = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    section.retain(|key, _| {
        let known = key.as_str().is_some_and(|key| fields.iter().any(|field| field.name == key));
        if !known {
            let name = key.as_str().map_or_else(|| Stands::of(key).to_string(), str::to_owned);
            let hint = hint(path, &name).map_or_else(String::new, |hint| format!("; {hint}"));
            let expected = format!("one of {}{hint}", names(fields));
            errors.push(FieldError { field: place(&name), stands: Stands::Unknown, expected });
        }
        known
    });
    for field in fields {
        let Field { name, kind, required, .. } = field;
        match section.get_mut(name) {
            // Written without a value: as good as not written.
            None | Some(Value::Null) if *required => {
                errors.push(FieldError { field: place(name), stands: Stands::Missing, expected: field.expected() });
                section.insert((*name).into(), kind.stand_in());
            }
            None => {}
            Some(Value::Null) => {
                section.remove(name);
            }
            Some(value) => {
                let fits = walk(value, kind, Some(field), &place(name), errors);
                if !fits && !required {
                    section.remove(name);
                }
            }
        }
    }
}
