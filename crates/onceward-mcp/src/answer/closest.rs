//! Structured results from the proxy that conform to a tool's output schema.

use serde_json::{Map, Value, json};

use crate::wire::raw::Object;

/// The closest result that fits the schema: our text if it requires one string, an empty object if it requires
/// nothing. `None` if it requires facts that we do not know: nothing is invented.
pub(crate) fn to(schema: &str, words: &str) -> Option<Value> {
    let schema = Object::parse(schema)?;
    let kind = schema.string("type");
    if kind.as_deref() == Some("string") && schema.members().all(|(name, _)| is_harmless(name)) {
        return Some(json!(words));
    }
    if kind.as_deref() != Some("object")
        || ["allOf", "anyOf", "oneOf", "not", "if", "$ref", "minProperties"]
            .iter()
            .any(|word| schema.get(word).is_some())
    {
        return None;
    }
    let required: Vec<String> = match schema.get("required") {
        Some(required) => serde_json::from_str(required).ok()?,
        None => Vec::new(),
    };
    let properties = schema.object("properties");
    let mut filled = Map::new();
    for name in required {
        let member = properties.as_ref()?.object(&name)?;
        let is_text = member.string("type").as_deref() == Some("string");
        if !is_text || !filled.is_empty() || !member.members().all(|(name, _)| is_harmless(name)) {
            return None;
        }
        filled.insert(name, json!(words));
    }
    Some(Value::Object(filled))
}

/// Whether a schema member does not restrict which strings are valid.
fn is_harmless(name: &str) -> bool {
    ["type", "title", "description", "default", "examples", "$comment"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_strings_are_filled_in() {
        for (schema, expected) in [
            (
                r#"{"type":"object","properties":{"result":{"title":"R","type":"string"}},"required":["result"]}"#,
                Some(json!({"result": "w"})),
            ),
            (r#"{"type":"object","properties":{"n":{"type":"integer"}}}"#, Some(json!({}))),
            (r#"{"type":"string"}"#, Some(json!("w"))),
            (r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#, None),
            (
                r#"{"type":"object","properties":{"a":{"type":"string"},"b":{"type":"string"}},"required":["a","b"]}"#,
                None,
            ),
            (r#"{"type":"object","properties":{"a":{"type":"string","enum":["x"]}},"required":["a"]}"#, None),
            (r#"{"type":"object","anyOf":[{}]}"#, None),
            (r#"{"type":"array"}"#, None),
            ("true", None),
        ] {
            assert_eq!(to(schema, "w"), expected, "{schema}");
        }
    }
}
