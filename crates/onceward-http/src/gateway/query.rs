//! JSONPath (RFC 9535): conditions on an answer, and queries for a resource in it.

use onceward::{InvalidInput, Json, Pointer};
use serde_json::Value;
use serde_json_path::JsonPath;

use crate::template::fill;

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

/// Checks a query with words in it.
pub(crate) fn check(query: &str) -> Result<(), InvalidInput> {
    let filled = fill(query, |_| Some("''".to_owned())).map_err(InvalidInput::new)?;
    path(&filled).map(drop)
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

/// An answer as JSON text that fields are taken from; empty if it is none. An answer in which a name occurs twice has
/// no fields: two programs could read different ones.
pub(crate) fn fields_of(body: &[u8]) -> &str {
    let text = std::str::from_utf8(body).unwrap_or_default();
    if Json::parse(text).is_ok() { text } else { "" }
}

/// A field of an answer, as a part of a path. Anything that could name another path is refused.
pub(crate) fn in_path(path: &str, text: String) -> Result<String, InvalidInput> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-.~".contains(c);
    if text.is_empty() || !text.chars().all(is_plain) || text.chars().all(|c| c == '.') {
        return Err(InvalidInput::new(format!(
            "the value of `{path}` has characters other than letters, digits and _-.~, so it cannot be in a path"
        )));
    }
    Ok(text)
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
    use crate::template::encoded;

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
    fn a_field_cannot_name_another_path() {
        for (value, is_plain) in [
            ("ch_1-A.b~", true),
            ("7", true),
            ("1.10", true),
            ("..", false),
            (".", false),
            ("a/b", false),
            ("a?b", false),
            ("%2e%2e", false),
            ("é", false),
            ("", false),
        ] {
            let shown = in_path("id", value.to_owned()).ok();
            assert_eq!(shown.as_deref(), is_plain.then_some(value), "{value}");
        }
        assert_eq!(fields_of(br#"{"id":1}"#), r#"{"id":1}"#);
        assert_eq!(fields_of(br#"{"id":1,"id":2}"#), "");
    }

    #[test]
    fn values_cannot_leave_their_place() {
        let nasty = Json::from("a' || @.b == 'c\\");
        let query = format!("$[?@.t == {}]", literal(&nasty));
        let found = select(&query, &json!([{"t": "x", "b": "c"}, {"t": "a' || @.b == 'c\\"}])).unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(encoded(&Json::from("a/b?c&d e")).as_deref(), Some("a%2Fb%3Fc%26d%20e"));
        for none in [Json::from(""), Json::from("."), Json::from(".."), Json::Null, Json::Array(Vec::new())] {
            assert_eq!(encoded(&none), None, "{}", none.canonical());
        }
        let body = Json::parse(r#"{"title":"T","n":{"x":7}}"#).unwrap();
        let word = |name: &str| encoded(&field(&body, name.strip_prefix("body.")?)?);
        assert_eq!(fill("/i/{body.title}/{body.n.x}", word).unwrap(), "/i/T/7");
        assert!(fill("/i/{body.none}", word).is_err());
    }
}
