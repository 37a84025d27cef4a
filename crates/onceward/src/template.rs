//! Texts with fields of a result in them: `refund {data.id}`.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use crate::invalid::InvalidInput;
use crate::redact::REPLACEMENT;

/// A text in which `{path}` stands for a field of a result.
///
/// A path is names and positions with dots between them. `{{` and `}}` are single braces. The braces of a shell
/// variable (`${HOME}`), of JSON and of a group of commands are left as they are. What looks like a field and is none
/// is refused: a command that gets `{items[0]}` as its argument would take back something else.
///
/// ```
/// use onceward::Template;
/// let undo = Template::parse("refund {data.id} --memo '{{}}' ${CURRENCY}")?;
/// assert_eq!(undo.fields().collect::<Vec<_>>(), ["data.id"]);
/// let result = r#"{"data": {"id": "ch_1"}}"#;
/// let filled = undo.fill(|path| Ok(onceward::field(result, path)?.text()))?;
/// assert_eq!(filled, "refund ch_1 --memo '{}' ${CURRENCY}");
/// assert!(Template::parse("refund {items[0]}").is_err());
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
    ///
    /// # Errors
    /// Names what looks like a field and is none.
    pub fn parse(text: &str) -> Result<Self, InvalidInput> {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let doubled = rest.starts_with("{{") || rest.starts_with("}}");
            if first == '{' && !doubled && !plain.ends_with('$') {
                if let Some(path) = path_at(rest) {
                    if !plain.is_empty() {
                        pieces.push(Piece::Text(std::mem::take(&mut plain)));
                    }
                    pieces.push(Piece::Field(path.to_owned()));
                    rest = &rest[path.len() + 2..];
                    continue;
                }
                if let Some(found) = misspelt(rest) {
                    return Err(InvalidInput::new(format!(
                        "`{found}` is not a field: write {{data.id}} or {{items.0.id}} without spaces, or double the \
                         braces, if they are meant"
                    )));
                }
            }
            plain.push(first);
            rest = &rest[if doubled { 2 } else { first.len_utf8() }..];
        }
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Ok(Self(pieces))
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
    is_path(path).then_some(path)
}

fn is_path(text: &str) -> bool {
    let is_name = |name: &str| {
        !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-'))
    };
    text.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_')
        && text.split('.').all(is_name)
}

/// What looks like a field at the beginning of a text that begins with a brace, but is none. JSON, a group of commands,
/// a list of alternatives and a program of awk do not look like one.
fn misspelt(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('{')?;
    let end = inner.find(['{', '}']).unwrap_or(inner.len());
    let is_closed = inner[end..].starts_with('}');
    let looks_so = |word: &str| {
        word.starts_with(|c: char| c.is_alphanumeric() || "_@.[/-".contains(c))
            && !word.contains(|c: char| c.is_whitespace() || "\"',;()<>|&$`\\=".contains(c))
    };
    if is_closed && looks_so(inner[..end].trim()) {
        return Some(&text[..end + 2]);
    }
    // One whose end is missing, or that has more in it than its path.
    let word = inner[..end].split(char::is_whitespace).next().unwrap_or_default();
    let is_whole = word.contains('.') || !inner.contains('}');
    (is_whole && is_path(word)).then(|| &text[..=word.len()])
}

/// The value of a field: a text, or a number or `true` or `false` with the characters that the result has. An id that
/// lost a digit is the id of something else, and the version 1.10 is not 1.1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldValue(Kind);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Text(String),
    /// A number, true or false, as JSON.
    Token(String),
}

impl FieldValue {
    /// The value as text, without quotes.
    #[must_use]
    pub fn text(self) -> String {
        match self.0 {
            Kind::Text(text) | Kind::Token(text) => text,
        }
    }

    /// The value as JSON.
    #[must_use]
    pub fn json(self) -> String {
        match self.0 {
            Kind::Text(text) => Value::String(text).to_string(),
            Kind::Token(token) => token,
        }
    }
}

impl From<&str> for FieldValue {
    fn from(text: &str) -> Self {
        Self(Kind::Text(text.to_owned()))
    }
}

/// The text of a JSON value with fields of a result in its texts. A text that is one field and nothing else becomes
/// that field's value, so a number stays a number. The names of members are left as they are.
///
/// ```
/// use serde_json::json;
/// let result = r#"{"id": 7.10, "name": "ada"}"#;
/// let args = json!({"order": "{id}", "note": "for {name}"});
/// let filled = onceward::fill_json(&args, &|path| onceward::field(result, path))?;
/// assert_eq!(filled, r#"{"note":"for ada","order":7.10}"#);
/// # Ok::<(), onceward::InvalidInput>(())
/// ```
///
/// # Errors
/// Names a field that the result does not have.
pub fn fill_json(
    template: &Value,
    value: &impl Fn(&str) -> Result<FieldValue, InvalidInput>,
) -> Result<String, InvalidInput> {
    let joined = |parts: Result<Vec<String>, InvalidInput>| parts.map(|parts| parts.join(","));
    match template {
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(template.to_string()),
        Value::String(text) => {
            let template = Template::parse(text)?;
            match template.pieces() {
                [Piece::Field(path)] => value(path).map(FieldValue::json),
                [] | [Piece::Text(_)] | [_, _, ..] => {
                    let text = template.fill(|path| value(path).map(FieldValue::text))?;
                    Ok(Value::String(text).to_string())
                }
            }
        }
        Value::Array(items) => {
            let items = joined(items.iter().map(|item| fill_json(item, value)).collect())?;
            Ok(format!("[{items}]"))
        }
        Value::Object(members) => {
            let filled = members.iter().map(|(name, item)| {
                Ok(format!("{}:{}", Value::String(name.clone()), fill_json(item, value)?))
            });
            Ok(format!("{{{}}}", joined(filled.collect())?))
        }
    }
}

/// Checks the templates in the texts of a JSON value.
pub(crate) fn check_json(template: &Value) -> Result<(), InvalidInput> {
    match template {
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
        Value::String(text) => Template::parse(text).map(drop),
        Value::Array(items) => items.iter().try_for_each(check_json),
        Value::Object(members) => members.values().try_for_each(check_json),
    }
}

/// A field of a result that is JSON: a string, a number, or true or false. An empty text does not count, because a
/// command may take it for "all", and neither does one that was redacted.
///
/// # Errors
/// Says why there is no such value.
pub fn field(result: &str, path: &str) -> Result<FieldValue, InvalidInput> {
    let missing = |why: &str| Err(InvalidInput::new(format!("the result has {why} `{path}`")));
    let Some(found) = path.split('.').try_fold(result.trim(), member) else {
        return missing("no field");
    };
    match serde_json::from_str(found) {
        Err(_) | Ok(Value::Null) => missing("no field"),
        Ok(Value::String(text)) if text.is_empty() => missing("an empty text in"),
        Ok(Value::String(text)) if text.contains('\0') => missing("a zero byte in"),
        Ok(Value::String(text)) if text.contains(REPLACEMENT) => missing("a redacted text in"),
        Ok(Value::String(text)) => Ok(FieldValue(Kind::Text(text))),
        Ok(Value::Bool(_) | Value::Number(_)) => Ok(FieldValue(Kind::Token(found.to_owned()))),
        Ok(Value::Array(_) | Value::Object(_)) => missing("no single value in"),
    }
}

/// The member or item of this name, as the text that it has.
fn member<'a>(value: &'a str, name: &str) -> Option<&'a str> {
    if value.starts_with('[') {
        let items: Vec<&RawValue> = serde_json::from_str(value).ok()?;
        return name.parse::<usize>().ok().and_then(|position| items.get(position)).map(|item| item.get());
    }
    let members: BTreeMap<String, &RawValue> = serde_json::from_str(value).ok()?;
    members.get(name).map(|member| member.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(result: &str, path: &str) -> Option<String> {
        field(result, path).ok().map(FieldValue::text)
    }

    #[test]
    fn a_number_keeps_its_digits() {
        for text in
            ["7", "-7", "18446744073709551616", "12345678901234567890123", "1.10", "100.00", "1e3", "1E+300"]
        {
            let result = format!("{{\"id\":{text} , \"more\": 1}}");
            assert_eq!(at(&result, "id").as_deref(), Some(text));
            let filled = fill_json(&serde_json::json!({"a": "{id}"}), &|path| field(&result, path));
            assert_eq!(filled.unwrap(), format!("{{\"a\":{text}}}"));
        }
    }

    #[test]
    fn only_a_path_in_braces_is_a_field() {
        for (text, fields) in [
            ("refund {data.id} {items.0.sku}", vec!["data.id", "items.0.sku"]),
            ("refund {0.id} {0}", vec!["0.id", "0"]),
            ("awk '{{print}}' | xargs", vec![]),
            ("awk '{print $1; exit}' | xargs", vec![]),
            ("echo ${HOME} ${A[0]} ${A", vec![]),
            ("echo $((1)) { true; } {} {a,b}", vec![]),
            ("curl -d '{\"id\": 1}'", vec![]),
            ("curl -d '{\"id\":\"{data.id}\"}'", vec!["data.id"]),
            ("curl -d '{ \"id\": {\"a\": \"{data.id}\"} }'", vec!["data.id"]),
            ("{a}{b}", vec!["a", "b"]),
        ] {
            assert_eq!(Template::parse(text).unwrap().fields().collect::<Vec<_>>(), fields, "{text}");
        }
        let doubled = Template::parse("{{a}}é{{").unwrap();
        assert_eq!(doubled.fill(|_| unreachable!("no field")).unwrap(), "{a}é{");
    }

    #[test]
    fn what_looks_like_a_field_and_is_none_is_refused() {
        for wrong in [
            "{@id}",
            "{data/id}",
            "{items[0]}",
            "{[0]}",
            "{ data.id }",
            "{data.id }",
            "{a..b}",
            "{.a}",
            "{a.}",
            "{id:5}",
            "{1..5}",
            "{naïve}",
            "{data.id",
            "{id",
            "{data.id {b}",
            "{data.id more}",
        ] {
            let parsed = Template::parse(&format!("./cancel {wrong}"));
            assert!(parsed.is_err(), "{wrong}: {parsed:?}");
        }
        assert!(Template::parse("curl -d '{\"id\":\"{items[0]}\"}'").is_err());
    }

    #[test]
    fn a_field_is_one_value() {
        let result = concat!(
            r#" {"a": {"b": ["x", 2, true, null, "", {"c": 1}, "\u0000"]}, "#,
            r#""r": "pan [redacted]", "\u0041": 1} "#
        );
        assert_eq!(at(result, "a.b.0").as_deref(), Some("x"));
        assert_eq!(at(result, "a.b.1").as_deref(), Some("2"));
        assert_eq!(at(result, "a.b.2").as_deref(), Some("true"));
        assert_eq!(at(result, "A").as_deref(), Some("1"));
        for none in ["a.b.3", "a.b.4", "a.b.5", "a.b.6", "a.b.7", "a.b", "a", "x", "r", "a.b.0.c", "a.b.-1"] {
            assert_eq!(at(result, none), None, "{none}");
        }
        for text in ["", "order 17", "null", "[1"] {
            assert_eq!(at(text, "id"), None, "{text}");
        }
    }

    #[test]
    fn a_missing_field_anywhere_leaves_nothing_to_send() {
        let value = |path: &str| field(r#"{"id": 7}"#, path);
        let nested = serde_json::json!({"a": [{"b": "{id}"}, true, null, 1.5], "c": "{{id}}"});
        assert_eq!(fill_json(&nested, &value).unwrap(), r#"{"a":[{"b":7},true,null,1.5],"c":"{id}"}"#);
        for wrong in [serde_json::json!({"a": ["{ID}"]}), serde_json::json!("x {id.y}")] {
            assert!(fill_json(&wrong, &value).is_err(), "{wrong}");
        }
        assert!(check_json(&serde_json::json!({"a": ["{items[0]}"]})).is_err());
    }
}
