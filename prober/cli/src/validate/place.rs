//! A value of a document and where it stands, there or not.

use serde_json::Value;

/// A place in a document. It may be empty: whoever looks further finds nothing there either, and the path goes on.
#[derive(Debug, Clone)]
pub struct Place<'a> {
    /// Such as `static_resources.listeners[0].name`.
    pub path: String,
    value: Option<&'a Value>,
}

impl<'a> Place<'a> {
    /// The whole document.
    #[must_use]
    pub fn root(value: &'a Value) -> Self {
        Place { path: String::new(), value: Some(value) }
    }

    /// A field.
    #[must_use]
    pub fn get(&self, name: &str) -> Place<'a> {
        let path = match (self.path.as_str(), name.contains('.')) {
            ("", _) => name.to_owned(),
            (path, false) => format!("{path}.{name}"),
            (path, true) => format!("{path}[\"{name}\"]"),
        };
        Place { path, value: self.value.and_then(|value| value.get(name)).filter(|value| !value.is_null()) }
    }

    /// A field of a field, and so on.
    #[must_use]
    pub fn at(&self, names: &[&str]) -> Place<'a> {
        names.iter().fold(self.clone(), |place, name| place.get(name))
    }

    /// The items of a list; none where there is none.
    #[must_use]
    pub fn items(&self) -> Vec<Place<'a>> {
        let list = self.value.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let item = |(nth, value)| Place { path: format!("{}[{nth}]", self.path), value: Some(value) };
        list.iter().enumerate().map(item).collect()
    }

    /// Whether something stands there.
    #[must_use]
    pub fn exists(&self) -> bool {
        self.value.is_some()
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> Option<&'a Value> {
        self.value
    }

    /// A text.
    #[must_use]
    pub fn text(&self) -> Option<&'a str> {
        self.value.and_then(Value::as_str)
    }

    /// Whether it is this text.
    #[must_use]
    pub fn is(&self, text: &str) -> bool {
        self.text() == Some(text)
    }

    /// Whether it is the name of this header, which has no case.
    #[must_use]
    pub fn is_header(&self, name: &str) -> bool {
        self.text().is_some_and(|text| text.eq_ignore_ascii_case(name))
    }

    /// A flag.
    #[must_use]
    pub fn flag(&self) -> Option<bool> {
        self.value.and_then(Value::as_bool)
    }

    /// A number, which protobuf also writes as a text.
    #[must_use]
    pub fn number(&self) -> Option<u64> {
        self.value.and_then(|value| value.as_u64().or_else(|| value.as_str()?.parse().ok()))
    }

    /// A duration in seconds, such as `0.5s`.
    #[must_use]
    pub fn seconds(&self) -> Option<f64> {
        self.text()?.strip_suffix('s')?.parse().ok().filter(|seconds: &f64| seconds.is_finite())
    }

    /// The message of a `typed_config`, also where it is wrapped in a `TypedStruct`.
    #[must_use]
    pub fn typed(&self) -> Place<'a> {
        let config = self.get("typed_config");
        if config.get("@type").text().is_some_and(|kind| kind.ends_with(".TypedStruct")) {
            config.get("value")
        } else {
            config
        }
    }

    /// Whether it is a message of this type.
    #[must_use]
    pub fn is_a(&self, message: &str) -> bool {
        let kind = self.get("typed_config").get("@type");
        let wrapped = self.get("typed_config").get("type_url");
        [kind, wrapped].iter().any(|kind| kind.text().is_some_and(|kind| kind.ends_with(message)))
    }

    /// How the value is shown in a sentence.
    #[must_use]
    pub fn shown(&self) -> String {
        match self.value {
            None => "missing".to_owned(),
            Some(Value::String(text)) => format!("{text:?}"),
            Some(Value::Array(list)) if list.is_empty() => "empty".to_owned(),
            Some(Value::Array(_)) => "a list".to_owned(),
            Some(Value::Object(_)) => "an object".to_owned(),
            Some(value) => value.to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_path_says_where_something_is_or_should_be() {
        let document = json!({"a": [{"b": {"c.d": "0.5s"}}]});
        let root = Place::root(&document);
        let found = root.get("a").items()[0].at(&["b", "c.d"]);
        assert_eq!((found.path.as_str(), found.seconds()), ("a[0].b[\"c.d\"]", Some(0.5)));
        let absent = root.at(&["a", "x", "y"]);
        assert_eq!((absent.path.as_str(), absent.exists(), absent.shown()), ("a.x.y", false, "missing".to_owned()));
        assert!(absent.items().is_empty());
    }

    #[test]
    fn messages_are_found_in_their_wrapping() {
        let kind = "type.googleapis.com/envoy.X";
        let plain = json!({"typed_config": {"@type": kind, "v": 1}});
        let wrapped = json!({"typed_config": {"@type": "type.googleapis.com/xds.type.v3.TypedStruct", "type_url": kind, "value": {"v": 1}}});
        for document in [plain, wrapped] {
            let place = Place::root(&document);
            assert!(place.is_a("envoy.X") && !place.is_a("envoy.Y"));
            assert_eq!(place.typed().get("v").number(), Some(1));
        }
        assert_eq!(Place::root(&json!({"n": "12"})).get("n").number(), Some(12));
    }
}
