//! Replaces long strings in arguments by a digest, so that arguments of many megabytes are compared without being
//! copied.

use std::borrow::Cow;

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};

/// Strings up to this length are compared as they are.
const LONG: usize = 64 * 1024;

/// The JSON with every long string replaced by its length and its hash.
pub(crate) fn condensed(json: &str) -> Cow<'_, str> {
    if json.len() <= LONG {
        return Cow::Borrowed(json);
    }
    let (mut short, mut copied) = (String::new(), 0);
    let mut rest = 0;
    while let Some(open) = json[rest..].find('"').map(|at| rest + at) {
        let Some(end) = end_of(json.as_bytes(), open) else { break };
        if end - open > LONG {
            short.push_str(&json[copied..open]);
            short.push_str(&digest_of(&json[open..end]));
            copied = end;
        }
        rest = end;
    }
    if copied == 0 {
        return Cow::Borrowed(json);
    }
    short.push_str(&json[copied..]);
    Cow::Owned(short)
}

/// The end of the string that starts at `open`.
fn end_of(json: &[u8], open: usize) -> Option<usize> {
    let mut at = open + 1;
    loop {
        match json.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

/// A digest of the string that does not depend on escapes: `"a"` and `"\u0061"` are equal.
fn digest_of(quoted: &str) -> String {
    let plain = &quoted[1..quoted.len() - 1];
    let unescaped = if plain.contains('\\') { crate::wire::raw::string(quoted) } else { None };
    let text = unescaped.as_deref().unwrap_or(plain);
    let hash = HEXLOWER.encode(&Sha256::digest(text.as_bytes()));
    format!("\"a text of {} bytes, sha256 {hash}\"", text.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_strings_are_condensed_regardless_of_escapes() {
        let long = "x".repeat(LONG);
        let (one, other) =
            (format!(r#"{{"a":"{long}a","b":[1,"\\\"c"]}}"#), format!(r#"{{"a":"{long}\u0061","b":2}}"#));
        let (one, other) = (condensed(&one), condensed(&other));
        assert!(one.ends_with(r#"","b":[1,"\\\"c"]}"#) && one.len() < 200, "{one}");
        assert_eq!(one.split(",\"b\"").next(), other.split(",\"b\"").next());
        let longer = format!(r#"{{"a":"{long}b","b":2}}"#);
        assert_ne!(condensed(&longer), other);
        let many = format!(r#"[{}"end"]"#, r#""short","#.repeat(20_000));
        assert!(matches!(condensed(&many), Cow::Borrowed(_)));
        assert!(matches!(condensed(&format!("\"{long}{long}")), Cow::Borrowed(_)), "a text without an end");
    }
}
