//! JSONPath (RFC 9535): conditions on an answer, and queries for a resource in it.

use onceward::{InvalidInput, Json, Pointer};
use serde_json::Value;
use serde_json_path::JsonPath;

/// A comparison such as `$.status == 'succeeded'`, or a query that must find something.
#[derive(Debug)]
pub(crate) struct Condition(JsonPath);

impl Condition {
    /// Parses a condition. `$` is the answer.
    pub(crate) fn parse(text: &str) -> Result<Self, InvalidInput> {
        // A comparison is only valid inside a filter, so the answer becomes the one item of a list.
        path(&format!("$[?{}]", about_item(text))).map(Self)
    }

    /// Whether it is true of this answer.
    pub(crate) fn holds(&self, answer: &Value) -> bool {
        !self.0.query(&Value::Array(vec![answer.clone()])).is_empty()
    }
}

/// What a query finds.
pub(crate) fn select(query: &str, answer: &Value) -> Result<Vec<Value>, InvalidInput> {
    Ok(path(query)?.query(answer).all().into_iter().cloned().collect())
}

/// Replaces `{words}` in a template by what `word` says about them.
///
/// # Errors
/// A word that has no value.
pub(crate) fn fill(template: &str, word: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut text = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, tail)) = after.split_once('}') else { break };
        text.push_str(before);
        text.push_str(&word(name).ok_or_else(|| format!("there is no value for {{{name}}}"))?);
        rest = tail;
    }
    text.push_str(rest);
    Ok(text)
}

/// A value as a literal of a query.
pub(crate) fn literal(value: &Json) -> String {
    let Json::String(text) = value else { return value.canonical() };
    let mut quoted = String::from("'");
    for char in text.chars() {
        match char {
            '\'' => quoted.push_str("\\'"),
            '\\' => quoted.push_str("\\\\"),
            control if u32::from(control) < 0x20 => {
                quoted.push_str(&format!("\\u{:04x}", u32::from(control)))
            }
            other => quoted.push(other),
        }
    }
    quoted.push('\'');
    quoted
}

/// A value as a part of a path or query string.
pub(crate) fn encoded(value: &Json) -> String {
    let text = match value {
        Json::String(text) => text.clone(),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_) => value.canonical(),
    };
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// The field of a value, by its dotted path or pointer.
pub(crate) fn field(value: &Json, name: &str) -> Option<Json> {
    value.at(&Pointer::parse(name).ok()?).cloned()
}

fn path(text: &str) -> Result<JsonPath, InvalidInput> {
    JsonPath::parse(text).map_err(|error| InvalidInput::new(format!("{text:?} is not a JSONPath: {error}")))
}

/// The text with `$` outside texts and brackets replaced by `@`.
fn about_item(text: &str) -> String {
    let (mut out, mut quote, mut depth, mut escaped) =
        (String::with_capacity(text.len()), None, 0_u32, false);
    for char in text.chars() {
        match (quote, char) {
            (Some(open), _) => {
                if !escaped && char == open {
                    quote = None;
                }
                escaped = !escaped && char == '\\';
            }
            (None, '\'' | '"') => quote = Some(char),
            (None, '[') => depth += 1,
            (None, ']') => depth = depth.saturating_sub(1),
            (None, _) => {}
        }
        out.push(if quote.is_none() && depth == 0 && char == '$' { '@' } else { char });
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn conditions_are_comparisons_or_queries() {
        let answer = json!({"status": "succeeded", "n": 3, "price": "$5", "list": [{"a": 1}]});
        for (text, expected) in [
            ("$.status == 'succeeded'", true),
            ("$.status == 'failed'", false),
            ("$.status == 'failed' || $.n > 2", true),
            ("$.price == '$5'", true),
            ("$.list[?@.a == 1]", true),
            ("$.list[?@.a == 2]", false),
            ("$.absent", false),
        ] {
            assert_eq!(Condition::parse(text).unwrap().holds(&answer), expected, "{text}");
        }
        assert!(Condition::parse("$.status ==").is_err());
    }

    #[test]
    fn values_cannot_leave_their_place() {
        let nasty = Json::from("a' || @.b == 'c\\");
        let query = format!("$[?@.t == {}]", literal(&nasty));
        let found = select(&query, &json!([{"t": "x", "b": "c"}, {"t": "a' || @.b == 'c\\"}])).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(encoded(&Json::from("a/b?c&d e")), "a%2Fb%3Fc%26d%20e");
        let body = Json::parse(r#"{"title":"T","n":{"x":7}}"#).unwrap();
        let word = |name: &str| field(&body, name.strip_prefix("body.")?).map(|value| encoded(&value));
        assert_eq!(fill("/i/{body.title}/{body.n.x}", word).unwrap(), "/i/T/7");
        assert!(fill("/i/{body.none}", word).is_err());
    }
}
