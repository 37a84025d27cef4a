//! JSON-RPC messages as text, and the members that are needed to forward them.

use std::ops::Range;

use crate::wire::raw::{self, Object};

/// A request id in a form that can be compared: `"a"` and `"\u0061"` are equal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Id(String);

impl Id {
    /// Parses an id from its JSON text.
    pub(crate) fn of(text: &str) -> Self {
        match raw::string(text) {
            Some(inner) => Self(format!("\"{inner}")),
            None => Self(text.to_owned()),
        }
    }

    /// The id without quotes, and whether it is a string.
    pub(crate) fn bare(&self) -> (&str, bool) {
        self.0.strip_prefix('"').map_or((self.0.as_str(), false), |inner| (inner, true))
    }
}

/// The notification that the request with this id (JSON text) is cancelled.
pub(crate) fn cancelled(id: &str, reason: Option<&str>) -> String {
    let reason = reason.map(|reason| format!(",\"reason\":{}", raw::quoted(reason))).unwrap_or_default();
    let params = format!("{{\"requestId\":{id}{reason}}}");
    format!("{{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{params}}}")
}

/// A parsed line.
pub(crate) enum Message<'a> {
    /// One message.
    One(Head<'a>),
    /// A batch, with the text of each message.
    Batch(Vec<&'a str>),
    /// A line that cannot be parsed. It is forwarded unchanged.
    Opaque,
}

/// The members of a message that decide how it is handled.
pub(crate) struct Head<'a> {
    /// The whole message.
    pub(crate) text: &'a str,
    /// The method, if it is a request or a notification.
    pub(crate) method: Option<String>,
    /// The id as JSON text, unless it is `null`.
    pub(crate) id: Option<&'a str>,
    /// The parameters, as JSON text.
    pub(crate) params: Option<&'a str>,
    /// The result, as JSON text.
    pub(crate) result: Option<&'a str>,
    /// The error, as JSON text.
    pub(crate) error: Option<&'a str>,
}

impl<'a> Message<'a> {
    /// Parses a line.
    pub(crate) fn of(line: &'a [u8]) -> Self {
        let Ok(text) = std::str::from_utf8(line) else {
            return Self::Opaque;
        };
        Self::of_text(text)
    }

    /// Parses a text.
    pub(crate) fn of_text(text: &'a str) -> Self {
        match text.trim_start().as_bytes().first() {
            Some(b'{') => Head::parse(text).map_or(Self::Opaque, Self::One),
            Some(b'[') => raw::items(text).map_or(Self::Opaque, Self::Batch),
            Some(_) | None => Self::Opaque,
        }
    }
}

impl<'a> Head<'a> {
    /// Parses one message.
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

    /// Whether it is a response.
    pub(crate) fn is_response(&self) -> bool {
        self.method.is_none() && self.id.is_some()
    }

    /// The range of the id.
    pub(crate) fn id_place(&self) -> Option<Range<usize>> {
        self.id.map(|id| raw::range(self.text, id))
    }
}

/// Parses a line, using every code path of the proxy, and returns the number of messages.
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
    fn the_range_of_an_id_is_found_and_the_last_of_two_counts() {
        let text =
            r#"{"id":1,"jsonrpc":"2.0", "result":{"id":3,"n":123456789012345678901234567890},"id": "x" }"#;
        let head = Head::parse(text).unwrap();
        assert_eq!(&text[head.id_place().unwrap()], "\"x\"");
        assert!(head.is_response());
        assert_eq!(Id::of("\"a\""), Id::of("\"\\u0061\""));
        assert_ne!(Id::of("1"), Id::of("\"1\""));
    }

    #[test]
    fn lines_that_cannot_be_parsed_are_opaque() {
        for line in [&b"\xff{}"[..], b"", b"null", b"{\"id\":1", b"{\"a\":}", b"hello"] {
            assert!(matches!(Message::of(line), Message::Opaque), "{line:?}");
        }
        assert!(matches!(Message::of(b" [1, {\"id\": 2}]"), Message::Batch(items) if items.len() == 2));
    }
}
