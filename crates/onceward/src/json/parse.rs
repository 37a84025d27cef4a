//! A strict parser (RFC 8259) that keeps the text of numbers and rejects duplicate names.
//!
//! Written by hand because serde_json cannot do this for one crate alone: without `arbitrary_precision`, integers
//! beyond 64 bits arrive as doubles, and that feature would change `Value` for every crate in a user's build. A
//! property test compares it with serde_json.

use super::{Json, MAX_DEPTH, canonical_order, number};
use crate::invalid::InvalidInput;

pub(super) fn document(text: &str) -> Result<Json, InvalidInput> {
    let mut reader = Reader { text, at: 0 };
    reader.skip_space();
    let value = reader.value(0)?;
    reader.skip_space();
    match reader.peek() {
        None => Ok(value),
        Some(_) => Err(reader.problem("there is text after the JSON value")),
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn problem(&self, problem: &str) -> InvalidInput {
        InvalidInput::new(format!("the input is not valid JSON: {problem} (at byte {})", self.at))
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, literal: &str) -> Result<(), InvalidInput> {
        if self.text[self.at..].starts_with(literal) {
            self.at += literal.len();
            Ok(())
        } else {
            Err(self.problem(&format!("expected {literal:?}")))
        }
    }

    fn value(&mut self, depth: usize) -> Result<Json, InvalidInput> {
        if depth > MAX_DEPTH {
            return Err(self.problem(&format!("it nests deeper than {MAX_DEPTH} levels")));
        }
        match self.peek() {
            Some(b'n') => self.expect("null").map(|()| Json::Null),
            Some(b't') => self.expect("true").map(|()| Json::Bool(true)),
            Some(b'f') => self.expect("false").map(|()| Json::Bool(false)),
            Some(b'"') => self.string().map(Json::String),
            Some(b'[') => self.array(depth),
            Some(b'{') => self.object(depth),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => Err(self.problem("expected a value")),
            None => Err(self.problem("it ends where a value is expected")),
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, InvalidInput> {
        self.expect("[")?;
        let mut items = Vec::new();
        self.skip_space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(Json::Array(items));
        }
        loop {
            self.skip_space();
            items.push(self.value(depth + 1)?);
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(Json::Array(items));
                }
                _ => return Err(self.problem("expected `,` or `]`")),
            }
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, InvalidInput> {
        self.expect("{")?;
        let mut members: Vec<(String, Json)> = Vec::new();
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(Json::Object(members));
        }
        loop {
            self.skip_space();
            if self.peek() != Some(b'"') {
                return Err(self.problem("expected a member's name in quotes"));
            }
            let name = self.string()?;
            self.skip_space();
            self.expect(":")?;
            self.skip_space();
            let value = self.value(depth + 1)?;
            members.push((name, value));
            self.skip_space();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    break;
                }
                _ => return Err(self.problem("expected `,` or `}`")),
            }
        }
        members.sort_by(|(a, _), (b, _)| canonical_order(a, b));
        match members.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(self.problem(&format!("the name {:?} occurs twice in one object", pair[0].0))),
            None => Ok(Json::Object(members)),
        }
    }

    fn number(&mut self) -> Result<Json, InvalidInput> {
        let start = self.at;
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits()?,
            _ => return Err(self.problem("expected a digit")),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        let token = &self.text[start..self.at];
        number::canonical(token).map(Json::Number).ok_or_else(|| {
            let shown: String = token.chars().take(40).collect();
            self.problem(&format!("the number {shown} is out of range"))
        })
    }

    fn digits(&mut self) -> Result<(), InvalidInput> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return Err(self.problem("expected a digit"));
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        Ok(())
    }

    fn string(&mut self) -> Result<String, InvalidInput> {
        self.expect("\"")?;
        let mut out = String::new();
        loop {
            let plain_from = self.at;
            while matches!(self.peek(), Some(byte) if byte >= 0x20 && byte != b'"' && byte != b'\\') {
                self.at += 1;
            }
            out.push_str(&self.text[plain_from..self.at]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    out.push(self.escape()?);
                }
                Some(_) => return Err(self.problem("a string contains an unescaped control character")),
                None => return Err(self.problem("a string is not terminated")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, InvalidInput> {
        let byte = self.peek().ok_or_else(|| self.problem("a string is not terminated"))?;
        self.at += 1;
        Ok(match byte {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => return self.unicode_escape(),
            _ => {
                self.at -= 1;
                return Err(self.problem("unknown escape"));
            }
        })
    }

    fn unicode_escape(&mut self) -> Result<char, InvalidInput> {
        let first = self.four_hex_digits()?;
        let scalar = match first {
            0xd800..0xdc00 => {
                self.expect("\\u").map_err(|_| self.problem("a surrogate is not part of a pair"))?;
                let second = self.four_hex_digits()?;
                if !(0xdc00..0xe000).contains(&second) {
                    return Err(self.problem("a surrogate is not part of a pair"));
                }
                0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            _ => first,
        };
        char::from_u32(scalar).ok_or_else(|| self.problem("a surrogate is not part of a pair"))
    }

    fn four_hex_digits(&mut self) -> Result<u32, InvalidInput> {
        let digits =
            self.text.get(self.at..self.at + 4).filter(|hex| hex.bytes().all(|b| b.is_ascii_hexdigit()));
        let digits = digits.ok_or_else(|| self.problem("expected four hexadecimal digits"))?;
        let value =
            u32::from_str_radix(digits, 16).map_err(|_| self.problem("expected four hexadecimal digits"))?;
        self.at += 4;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::document;

    #[test]
    fn what_is_not_json_is_refused_with_its_place() {
        let cases = [
            ("", "it ends where a value is expected"),
            ("{\"a\":1,\"a\":2}", "the name \"a\" occurs twice"),
            ("{\"a\":1,\"\\u0061\":2}", "the name \"a\" occurs twice"),
            ("01", "text after"),
            ("1.", "expected a digit"),
            ("[1,]", "expected a value"),
            ("\"\\ud800\"", "a surrogate is not"),
            ("\"\\udc00\"", "a surrogate is not"),
            ("\"\\x\"", "unknown escape"),
            ("\"a\nb\"", "unescaped control character"),
            ("\"a", "a string is not terminated"),
            ("nul", "expected \"null\""),
            ("{} {}", "text after"),
            ("1e999999", "out of range"),
        ];
        for (text, expect) in cases {
            let problem = document(text).unwrap_err().to_string();
            assert!(problem.contains(expect), "{text:?}: {problem}");
        }
    }

    #[test]
    fn nesting_has_a_limit() {
        let deep = |levels: usize| format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert!(document(&deep(super::MAX_DEPTH + 1)).is_ok());
        assert!(document(&deep(super::MAX_DEPTH + 2)).is_err());
    }

    #[test]
    fn escapes_and_surrogates() {
        let value = document(r#""\ud83d\ude00\u00e9\n\/""#).unwrap();
        assert_eq!(value.canonical(), "\"😀é\\n/\"");
    }
}
