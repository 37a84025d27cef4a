//! The structured result that says what is known and keeps to a tool's schema, where there is one.

use serde_json::{Map, Value, json};

use crate::raw::Object;

/// The closest result that fits the schema: our words where it asks for one text, nothing where it asks for nothing.
/// None where it asks for facts that are not known: nothing is made up.
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

/// Whether a member of a schema says nothing about which texts fit.
fn is_harmless(name: &str) -> bool {
    ["type", "title", "description", "default", "examples", "$comment"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_are_filled_in() {
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
