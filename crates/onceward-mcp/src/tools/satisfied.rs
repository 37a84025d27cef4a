//! Whether arguments certainly satisfy an input schema. If they do, an SDK that validates by the schema cannot have
//! rejected them, so a text that says so is the tool's own.

use serde_json::{Map, Value};

/// Schema members that do not restrict a value.
const HARMLESS: [&str; 9] =
    ["title", "description", "default", "examples", "format", "deprecated", "$schema", "$id", "$comment"];
/// Schemas are nested less deeply than this.
const DEEPEST: usize = 32;

/// Whether the arguments certainly satisfy the schema. `false` also means that it is not known.
pub(crate) fn certainly(schema: &str, arguments: &str) -> bool {
    let schema = serde_json::from_str::<Value>(schema);
    let arguments = serde_json::from_str::<Value>(arguments);
    schema.is_ok_and(|schema| arguments.is_ok_and(|arguments| fits(&schema, &arguments, DEEPEST)))
}

fn fits(schema: &Value, value: &Value, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else { return false };
    match schema {
        Value::Bool(any) => *any,
        Value::Object(schema) => schema.iter().all(|(name, rule)| obeys(schema, name, rule, value, depth)),
        Value::Null | Value::Number(_) | Value::String(_) | Value::Array(_) => false,
    }
}

/// Whether the value certainly obeys one member of a schema. A member that is not known here may restrict it.
fn obeys(schema: &Map<String, Value>, name: &str, rule: &Value, value: &Value, depth: usize) -> bool {
    let all_of = |rules: &Value| {
        rules.as_array().is_some_and(|rules| rules.iter().all(|rule| fits(rule, value, depth)))
    };
    match name {
        "type" => match rule {
            Value::String(kind) => is_of(value, kind),
            Value::Array(kinds) => {
                kinds.iter().any(|kind| kind.as_str().is_some_and(|kind| is_of(value, kind)))
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_) => false,
        },
        "enum" => rule.as_array().is_some_and(|all| all.contains(value)),
        "const" => rule == value,
        "required" => value.as_object().is_none_or(|value| {
            let names = rule.as_array().map(Vec::as_slice).unwrap_or_default();
            names.iter().all(|name| name.as_str().is_some_and(|name| value.contains_key(name)))
        }),
        "properties" => value.as_object().is_none_or(|value| {
            let rule = rule.as_object();
            value.iter().all(|(name, value)| {
                rule.and_then(|rule| rule.get(name)).is_none_or(|rule| fits(rule, value, depth))
            })
        }),
        "additionalProperties" => value.as_object().is_none_or(|value| {
            let own = schema.get("properties").and_then(Value::as_object);
            let others =
                value.iter().filter(|(name, _)| own.is_none_or(|own| !own.contains_key(name.as_str())));
            others.into_iter().all(|(_, value)| fits(rule, value, depth))
        }),
        "items" => value.as_array().is_none_or(|values| values.iter().all(|value| fits(rule, value, depth))),
        "anyOf" => rule.as_array().is_some_and(|rules| rules.iter().any(|rule| fits(rule, value, depth))),
        "allOf" => all_of(rule),
        "$defs" | "definitions" => true,
        other => HARMLESS.contains(&other),
    }
}

fn is_of(value: &Value, kind: &str) -> bool {
    match value {
        Value::Null => kind == "null",
        Value::Bool(_) => kind == "boolean",
        Value::Number(number) => {
            kind == "number" || kind == "integer" && (number.is_i64() || number.is_u64())
        }
        Value::String(_) => kind == "string",
        Value::Array(_) => kind == "array",
        Value::Object(_) => kind == "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_certain_counts() {
        let schema = r##"{"type":"object","title":"T","properties":{"n":{"type":"integer"},"note":{"anyOf":[
            {"type":"string"},{"type":"null"}]},"tags":{"type":"array","items":{"enum":["a","b"]}},
            "short":{"type":"string","maxLength":3},"far":{"$ref":"#/$defs/x"}},"required":["n"],"$defs":{"x":{}}}"##;
        for (arguments, expected) in [
            (r#"{"n":1}"#, true),
            (r#"{"n":1,"note":null,"tags":["a"],"other":[{}]}"#, true),
            (r#"{}"#, false),
            (r#"{"n":"1"}"#, false),
            (r#"{"n":1.5}"#, false),
            (r#"{"n":1,"tags":["c"]}"#, false),
            // A restriction that is not checked here.
            (r#"{"n":1,"short":"a"}"#, false),
            (r#"{"n":1,"far":1}"#, false),
            ("[]", false),
            ("{", false),
        ] {
            assert_eq!(certainly(schema, arguments), expected, "{arguments}");
        }
        let closed = r#"{"properties":{"n":{}},"additionalProperties":false}"#;
        assert!(certainly(closed, r#"{"n":1}"#) && !certainly(closed, r#"{"m":1}"#));
        assert!(certainly("true", "{}") && !certainly("false", "{}") && !certainly("7", "{}"));
        assert!(!certainly(&"{\"items\":".repeat(99), "[]"), "too deep");
    }
}
