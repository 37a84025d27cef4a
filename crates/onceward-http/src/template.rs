//! Templates with `{words}` in them, such as the path of a probe.

use onceward::Json;

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

/// A value as a part of a path or query string. `None` if it is no single value, or if a path with it could be another
/// one: the path of all resources, or of what contains them.
pub(crate) fn encoded(value: &Json) -> Option<String> {
    let text = match value {
        Json::String(text) => text.clone(),
        Json::Bool(_) | Json::Number(_) => value.canonical(),
        Json::Null | Json::Array(_) | Json::Object(_) => return None,
    };
    if text.chars().all(|char| char == '.') {
        return None;
    }
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    Some(out)
}
