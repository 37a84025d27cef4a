//! GraphQL documents: whether one changes something, and the key in a directive such as `@idempotent(key: "…")`.

use onceward::Json;

use crate::raw;

/// Whether a body is a GraphQL request without a mutation.
pub(crate) fn is_read(body: &Json) -> bool {
    let Some(Json::String(document)) = body.member("query") else { return false };
    !words_outside_selections(document).iter().any(|word| word == "mutation")
}

/// The key in the directive.
pub(crate) fn key(body: &Json, directive: &str) -> Option<String> {
    let Some(Json::String(document)) = body.member("query") else { return None };
    match place(document, directive)? {
        Place::Text(range) => Some(document[range].to_owned()),
        Place::Variable(name) => match body.member("variables")?.member(&name)? {
            Json::String(text) => Some(text.clone()),
            Json::Null | Json::Bool(_) | Json::Number(_) | Json::Array(_) | Json::Object(_) => None,
        },
    }
}

/// The body with another key in the directive.
pub(crate) fn with_key(body: &Json, directive: &str, key: &str) -> Option<Json> {
    let Some(Json::String(document)) = body.member("query") else { return None };
    let place = place(document, directive)?;
    let mut changed = body.clone();
    let Json::Object(members) = &mut changed else { return None };
    match place {
        Place::Text(range) => {
            let text = format!("{}{key}{}", &document[..range.start], &document[range.end..]);
            let (_, query) = members.iter_mut().find(|(name, _)| name == "query")?;
            *query = Json::from(text);
        }
        Place::Variable(name) => {
            let (_, variables) = members.iter_mut().find(|(own, _)| own == "variables")?;
            let Json::Object(variables) = variables else { return None };
            let (_, value) = variables.iter_mut().find(|(own, _)| *own == name)?;
            *value = Json::from(key);
        }
    }
    Some(changed)
}

/// The text of a body with another key in the directive. Nothing else changes.
pub(crate) fn text_with_key(text: &str, body: &Json, directive: &str, key: &str) -> Option<String> {
    let Some(Json::String(document)) = body.member("query") else { return None };
    match place(document, directive)? {
        Place::Text(range) => {
            let document = format!("{}{key}{}", &document[..range.start], &document[range.end..]);
            raw::with_text_at(text, &["query"], &document)
        }
        Place::Variable(name) => {
            body.member("variables")?.member(&name)?;
            raw::with_text_at(text, &["variables", &name], key)
        }
    }
}

/// Where the argument `key` of a directive has its value.
enum Place {
    Text(std::ops::Range<usize>),
    Variable(String),
}

fn place(document: &str, directive: &str) -> Option<Place> {
    let mark = format!("@{directive}");
    let start = document.match_indices(&mark).map(|(at, _)| at + mark.len()).find(|at| {
        let next = document[*at..].chars().next();
        next.is_some_and(|next| next == '(' || next.is_whitespace())
    })?;
    let open = start + document[start..].find('(')?;
    let close = open + document[open..].find(')')?;
    let argument = open + document[open..close].find("key")? + "key".len();
    let colon = argument + document[argument..close].find(':')? + 1;
    let value = colon + document[colon..close].find(|char: char| !char.is_whitespace())?;
    match document.as_bytes().get(value)? {
        b'"' => {
            let end = value + 1 + document[value + 1..].find('"')?;
            Some(Place::Text(value + 1..end))
        }
        b'$' => {
            let name: String = document[value + 1..]
                .chars()
                .take_while(|char| char.is_alphanumeric() || *char == '_')
                .collect();
            Some(Place::Variable(name))
        }
        _ => None,
    }
}

/// The words of a document outside `{…}`, comments and texts.
fn words_outside_selections(document: &str) -> Vec<String> {
    let (mut words, mut word, mut depth) = (Vec::new(), String::new(), 0_u32);
    let mut chars = document.chars().peekable();
    while let Some(char) = chars.next() {
        match char {
            '#' => while chars.next_if(|next| *next != '\n').is_some() {},
            '"' => while chars.next().is_some_and(|next| next != '"') {},
            '{' | '(' => depth += 1,
            '}' | ')' => depth = depth.saturating_sub(1),
            other if depth == 0 && (other.is_alphanumeric() || other == '_') => {
                word.push(other);
                continue;
            }
            _ => {}
        }
        if !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
    }
    words.push(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(document: &str, variables: &str) -> Json {
        let query = serde_json::to_string(document).unwrap();
        Json::parse(&format!(r#"{{"query":{query},"variables":{variables}}}"#)).unwrap()
    }

    #[test]
    fn a_document_is_a_read_without_a_mutation() {
        assert!(is_read(&body("{ shop { name } }", "{}")));
        assert!(is_read(&body("query mutationNames { mutation }", "{}")));
        assert!(is_read(&body("# mutation\nquery A { b }", "{}")));
        assert!(!is_read(&body("mutation M { refundCreate { id } }", "{}")));
        assert!(!is_read(&body("fragment F on X { y } mutation { a }", "{}")));
        assert!(!is_read(&Json::parse("{}").unwrap()), "what is not understood is not a read");
    }

    #[test]
    fn the_key_is_a_text_or_a_variable() {
        let text = body(r#"mutation { refundCreate(input: {a: 1}) @idempotent(key: "k1") { id } }"#, "{}");
        assert_eq!(key(&text, "idempotent").as_deref(), Some("k1"));
        assert_eq!(key(&with_key(&text, "idempotent", "k2").unwrap(), "idempotent").as_deref(), Some("k2"));
        let variable = body("mutation M($k: String!) { a @idempotent(key: $k) { id } }", r#"{"k":"k1"}"#);
        assert_eq!(key(&variable, "idempotent").as_deref(), Some("k1"));
        let changed = with_key(&variable, "idempotent", "k2").unwrap();
        assert_eq!(key(&changed, "idempotent").as_deref(), Some("k2"));
        assert_eq!(key(&body("mutation { a { id } }", "{}"), "idempotent"), None);
    }
}
