//! A configuration as people read it: YAML, in the order of the file that it was made from.

use serde_json::Value;
use serde_yaml_ng::{Mapping, Value as Yaml};

/// The edited configuration; `template` is the text that it was made from.
#[must_use]
pub fn yaml(edited: &Value, template: &str) -> String {
    let like: Yaml = serde_yaml_ng::from_str(template).unwrap_or(Yaml::Null);
    serde_yaml_ng::to_string(&ordered(edited, &like)).unwrap_or_default()
}

/// The same value, its keys in the order of another; those that the other has not come last.
fn ordered(value: &Value, like: &Yaml) -> Yaml {
    match value {
        Value::Null => Yaml::Null,
        Value::Bool(flag) => Yaml::Bool(*flag),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(number), _) => number.into(),
            (_, Some(number)) => number.into(),
            _ => number.as_f64().map_or(Yaml::Null, Into::into),
        },
        Value::String(text) => Yaml::String(text.clone()),
        Value::Array(list) => {
            // What was added is like the last.
            let known = like.as_sequence().map(Vec::as_slice).unwrap_or_default();
            let like = |nth: usize| known.get(nth).or_else(|| known.last()).unwrap_or(&Yaml::Null);
            Yaml::Sequence(list.iter().enumerate().map(|(nth, value)| ordered(value, like(nth))).collect())
        }
        Value::Object(object) => {
            let empty = Mapping::new();
            let known = like.as_mapping().unwrap_or(&empty);
            let first = known.iter().filter_map(|(key, like)| Some((key.as_str()?, like)));
            let mut mapping = Mapping::new();
            for (key, like) in first {
                if let Some(value) = object.get(key) {
                    mapping.insert(key.into(), ordered(value, like));
                }
            }
            for (key, value) in object.iter().filter(|(key, _)| !known.contains_key(key.as_str())) {
                mapping.insert(key.as_str().into(), ordered(value, &Yaml::Null));
            }
            Yaml::Mapping(mapping)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ships_is_printed_in_its_order_and_means_the_same() {
        for text in [crate::STANDALONE, crate::SNIPPET] {
            let value: Value = serde_yaml_ng::from_str(text).unwrap();
            let printed = yaml(&value, text);
            assert_eq!(serde_yaml_ng::from_str::<Value>(&printed).unwrap(), value);
            // As Yaml, mappings compare without order; as text, the keys must come as they ship.
            let like: Yaml = serde_yaml_ng::from_str(text).unwrap();
            assert_eq!(printed, serde_yaml_ng::to_string(&like).unwrap());
        }
    }

    #[test]
    fn what_was_added_comes_last() {
        let value = serde_json::json!({"a": 1, "z": [{"y": 1, "x": 2}, {"y": 3, "x": -4}], "b": null, "f": 0.5});
        assert_eq!(
            yaml(&value, "z: [{y: 0, x: 0}]\na: 0"),
            "z:\n- y: 1\n  x: 2\n- y: 3\n  x: -4\na: 1\nb: null\nf: 0.5\n"
        );
    }
}
