//! Texts with fields of a result in them: `refund {data.id}`.

use serde_json::Value;

use crate::invalid::InvalidInput;
use crate::redact::REPLACEMENT;

/// A text in which `{path}` stands for a field of a result.
///
/// A path is names and positions with dots between them. `{{` and `}}` are single braces. Braces around anything else,
/// and those of a shell variable (`${HOME}`), are left as they are.
///
/// ```
/// use onceward::Template;
/// let undo = Template::parse("refund {data.id} --memo '{{}}' ${CURRENCY}");
/// assert_eq!(undo.fields().collect::<Vec<_>>(), ["data.id"]);
/// let result = serde_json::json!({"data": {"id": "ch_1"}});
/// assert_eq!(undo.fill(|path| onceward::field(&result, path))?, "refund ch_1 --memo '{}' ${CURRENCY}");
/// # Ok::<(), onceward::InvalidInput>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

/// A part of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    /// This text.
    Text(String),
    /// The field at this path.
    Field(String),
}

impl Template {
    /// Finds the fields of a text.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            if let Some(path) = path_at(rest).filter(|_| !plain.ends_with('$')) {
                if !plain.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut plain)));
                }
                pieces.push(Piece::Field(path.to_owned()));
                rest = &rest[path.len() + 2..];
                continue;
            }
            let doubled = rest.starts_with("{{") || rest.starts_with("}}");
            plain.push(first);
            rest = &rest[if doubled { 2 } else { first.len_utf8() }..];
        }
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Self(pieces)
    }

    /// Its parts, in order.
    #[must_use]
    pub fn pieces(&self) -> &[Piece] {
        &self.0
    }

    /// The paths of its fields, in order.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|piece| match piece {
            Piece::Text(_) => None,
            Piece::Field(path) => Some(path.as_str()),
        })
    }

    /// The text with its fields filled in. Never give this to a shell: a result is not code.
    ///
    /// # Errors
    /// Names the fields that the result does not have.
    pub fn fill(&self, value: impl Fn(&str) -> Result<String, InvalidInput>) -> Result<String, InvalidInput> {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(plain) => text.push_str(plain),
                Piece::Field(path) => text.push_str(&value(path)?),
            }
        }
        Ok(text)
    }
}

/// The path in braces with which a text begins.
fn path_at(text: &str) -> Option<&str> {
    let (path, _) = text.strip_prefix('{')?.split_once('}')?;
    let is_name = |name: &str| {
        !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    let starts_well = path.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_');
    (starts_well && path.split('.').all(is_name)).then_some(path)
}

/// A JSON value with fields of a result in its texts. A text that is one field and nothing else becomes that field's
/// value, so a number stays a number. The names of members are left as they are.
///
/// ```
/// use serde_json::json;
/// let result = json!({"id": 7, "name": "ada"});
/// let args = json!({"order": "{id}", "note": "for {name}"});
/// let filled = onceward::fill_json(&args, &|path| onceward::field_value(&result, path))?;
/// assert_eq!(filled, json!({"order": 7, "note": "for ada"}));
/// # Ok::<(), onceward::InvalidInput>(())
/// ```
///
/// # Errors
/// Names a field that the result does not have.
pub fn fill_json(
    template: &Value,
    value: &impl Fn(&str) -> Result<Value, InvalidInput>,
) -> Result<Value, InvalidInput> {
    match template {
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(template.clone()),
        Value::String(text) => {
            let template = Template::parse(text);
            match template.pieces() {
                [Piece::Field(path)] => value(path),
                [] | [Piece::Text(_)] | [_, _, ..] => {
                    template.fill(|path| value(path).map(|value| as_text(&value))).map(Value::String)
                }
            }
        }
        Value::Array(items) => items.iter().map(|item| fill_json(item, value)).collect(),
        Value::Object(members) => {
            let filled = members.iter().map(|(name, item)| Ok((name.clone(), fill_json(item, value)?)));
            filled.collect::<Result<serde_json::Map<_, _>, InvalidInput>>().map(Value::Object)
        }
    }
}

/// The text of a result's field: see [`field_value`].
///
/// # Errors
/// Says why there is no such text.
pub fn field(result: &Value, path: &str) -> Result<String, InvalidInput> {
    field_value(result, path).map(|value| as_text(&value))
}

/// A result's field: a string, a number, or true or false. An empty text does not count, because a command may take it
/// for "all", and neither does one that was redacted.
///
/// # Errors
/// Says why there is no such value.
pub fn field_value(result: &Value, path: &str) -> Result<Value, InvalidInput> {
    let missing = |why: &str| Err(InvalidInput::new(format!("the result has {why} `{path}`")));
    let found = path.split('.').try_fold(result, |value, name| match value {
        Value::Object(fields) => fields.get(name),
        Value::Array(items) => name.parse::<usize>().ok().and_then(|position| items.get(position)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    });
    match found {
        None | Some(Value::Null) => missing("no field"),
        Some(Value::String(text)) if text.is_empty() => missing("an empty text in"),
        Some(Value::String(text)) if text.contains('\0') => missing("a zero byte in"),
        Some(Value::String(text)) if text.contains(REPLACEMENT) => missing("a redacted text in"),
        Some(Value::Number(number)) if is_inexact(number) => {
            missing("a number that is too large to pass on in")
        }
        Some(value @ (Value::String(_) | Value::Bool(_) | Value::Number(_))) => Ok(value.clone()),
        Some(Value::Array(_) | Value::Object(_)) => missing("no single value in"),
    }
}

/// Whether a number may have had more digits. An id that lost some is the id of something else.
fn is_inexact(number: &serde_json::Number) -> bool {
    const LARGEST_WHOLE: f64 = 9_007_199_254_740_992.0;
    !number.is_i64() && !number.is_u64() && number.as_f64().is_none_or(|value| value.abs() >= LARGEST_WHOLE)
}

fn as_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_lost_digits_is_not_passed_on() {
        for (text, is_passed) in [
            ("18446744073709551615", true),
            ("18446744073709551616", false),
            ("-9223372036854775809", false),
            ("12345678901234567890123", false),
            ("1e300", false),
            ("1.5", true),
            ("100.00", true),
        ] {
            let result: Value = serde_json::from_str(&format!("{{\"id\":{text}}}")).unwrap();
            assert_eq!(field_value(&result, "id").is_ok(), is_passed, "{text}");
        }
    }

    #[test]
    fn only_a_path_in_braces_is_a_field() {
        for (text, fields) in [
            ("refund {data.id} {items.0.sku}", vec!["data.id", "items.0.sku"]),
            ("awk '{{print}}' | xargs", vec![]),
            ("echo ${HOME} $((1)) { true; } {}", vec![]),
            ("curl -d '{\"id\": 1}'", vec![]),
            ("{a}{b}", vec!["a", "b"]),
            ("{a..b} {.a} {a.} {1}", vec![]),
            ("unclosed {a", vec![]),
        ] {
            assert_eq!(Template::parse(text).fields().collect::<Vec<_>>(), fields, "{text}");
        }
        assert_eq!(Template::parse("{{a}}é{{").fill(|_| unreachable!("no field")).unwrap(), "{a}é{");
    }

    #[test]
    fn a_field_is_one_value() {
        let result =
            serde_json::json!({"a": {"b": ["x", 2, true, null, "", {"c": 1}, "\0"]}, "r": "pan [redacted]"});
        let at = |path: &str| field(&result, path).ok();
        assert_eq!(at("a.b.0").as_deref(), Some("x"));
        assert_eq!(at("a.b.1").as_deref(), Some("2"));
        assert_eq!(at("a.b.2").as_deref(), Some("true"));
        for none in ["a.b.3", "a.b.4", "a.b.5", "a.b.6", "a.b.7", "a.b", "a", "x", "r", "a.b.0.c", "a.b.-1"] {
            assert_eq!(at(none), None, "{none}");
        }
    }

    #[test]
    fn a_missing_field_anywhere_leaves_nothing_to_send() {
        let result = serde_json::json!({"id": 7});
        let value = |path: &str| field_value(&result, path);
        let nested = serde_json::json!({"a": [{"b": "{id}"}, true, null, 1.5], "c": "{{id}}"});
        let expected = serde_json::json!({"a": [{"b": 7}, true, null, 1.5], "c": "{id}"});
        assert_eq!(fill_json(&nested, &value).unwrap(), expected);
        for wrong in [serde_json::json!({"a": ["{ID}"]}), serde_json::json!("x {id.y}")] {
            assert!(fill_json(&wrong, &value).is_err(), "{wrong}");
        }
    }
}
