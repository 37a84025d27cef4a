//! A JSON-RPC message as its text, and what must be known of it to pass it on.

use std::ops::Range;

use crate::raw::{self, Object};

/// A request's id as it is compared: `"a"` and `"\u0061"` are one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Id(String);

impl Id {
    /// From its JSON text.
    pub(crate) fn of(text: &str) -> Self {
        match raw::string(text) {
            Some(inner) => Self(format!("\"{inner}")),
            None => Self(text.to_owned()),
        }
    }

    /// What it reads, and whether that is a string.
    pub(crate) fn bare(&self) -> (&str, bool) {
        self.0.strip_prefix('"').map_or((self.0.as_str(), false), |inner| (inner, true))
    }
}

/// What a line is.
pub(crate) enum Message<'a> {
    /// One message.
    One(Head<'a>),
    /// A batch, each message as its text.
    Batch(Vec<&'a str>),
    /// Nothing that we understand. It is passed on as it is.
    Opaque,
}

/// The members of a message that decide where it goes.
pub(crate) struct Head<'a> {
    /// All of it.
    pub(crate) text: &'a str,
    /// `tools/call`, where it is a request or a notification.
    pub(crate) method: Option<String>,
    /// The text of its id, and no `null`.
    pub(crate) id: Option<&'a str>,
    /// The text of its parameters.
    pub(crate) params: Option<&'a str>,
    /// The text of its result.
    pub(crate) result: Option<&'a str>,
    /// The text of its error.
    pub(crate) error: Option<&'a str>,
}

impl<'a> Message<'a> {
    /// Looks at a line.
    pub(crate) fn of(line: &'a [u8]) -> Self {
        let Ok(text) = std::str::from_utf8(line) else {
            return Self::Opaque;
        };
        Self::of_text(text)
    }

    /// Looks at a text.
    pub(crate) fn of_text(text: &'a str) -> Self {
        match text.trim_start().as_bytes().first() {
            Some(b'{') => Head::parse(text).map_or(Self::Opaque, Self::One),
            Some(b'[') => raw::items(text).map_or(Self::Opaque, Self::Batch),
            Some(_) | None => Self::Opaque,
        }
    }
}

impl<'a> Head<'a> {
    /// Looks at one message.
    pub(crate) fn parse(text: &'a str) -> Option<Self> {
        let object = Object::parse(text)?;
        Some(Self {
            text,
            method: object.string("method"),
            id: object.get("id").filter(|id| *id != "null"),
            params: object.get("params"),
            result: object.get("result"),
            error: object.get("error"),
        })
    }

    /// Whether it answers a request.
    pub(crate) fn is_response(&self) -> bool {
        self.method.is_none() && self.id.is_some()
    }

    /// Where the id stands.
    pub(crate) fn id_place(&self) -> Option<Range<usize>> {
        self.id.map(|id| raw::range(self.text, id))
    }
}

/// Looks at a line in every way that the proxy does, and tells how many messages it saw.
#[must_use]
pub fn look(line: &[u8]) -> usize {
    let seen = |head: &Head<'_>| {
        usize::from(head.is_response() || head.method.is_some() || head.id_place().is_some())
    };
    match Message::of(line) {
        Message::One(head) => seen(&head),
        Message::Batch(items) => {
            items.iter().filter_map(|item| Head::parse(item)).map(|head| seen(&head)).sum()
        }
        Message::Opaque => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_found_where_it_stands_and_the_last_of_two_counts() {
        let text =
            r#"{"id":1,"jsonrpc":"2.0", "result":{"id":3,"n":123456789012345678901234567890},"id": "x" }"#;
        let head = Head::parse(text).unwrap();
        assert_eq!(&text[head.id_place().unwrap()], "\"x\"");
        assert!(head.is_response());
        assert_eq!(Id::of("\"a\""), Id::of("\"\\u0061\""));
        assert_ne!(Id::of("1"), Id::of("\"1\""));
    }

    #[test]
    fn what_is_not_understood_is_left_alone() {
        for line in [&b"\xff{}"[..], b"", b"null", b"{\"id\":1", b"{\"a\":}", b"hello"] {
            assert!(matches!(Message::of(line), Message::Opaque), "{line:?}");
        }
        assert!(matches!(Message::of(b" [1, {\"id\": 2}]"), Message::Batch(items) if items.len() == 2));
    }
}
