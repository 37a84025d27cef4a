//! Server-sent events, kept byte for byte.

use std::ops::Range;

use bytes::{Bytes, BytesMut};
use memchr::memchr2;

/// Capacity steps for a long event or line. Unused capacity costs nothing, and each step is so much larger than the
/// last that little is copied. Doubling would need up to three times the memory.
const ROOM: [usize; 3] = [16 << 20, 256 << 20, 1 << 30];
/// Events and lines of this length and more count as long.
const LONG: usize = 1 << 20;

/// One event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// All bytes, with the empty line at the end.
    pub raw: Bytes,
    /// The range of its data, if they are in one line.
    place: Option<Range<usize>>,
    /// Its data, if they are in several lines.
    joined: Option<Vec<u8>>,
    /// Its id, from which a stream can be resumed.
    pub id: Option<String>,
}

impl Event {
    /// An event with this message.
    #[must_use]
    pub fn of(message: &[u8]) -> Bytes {
        [&b"event: message\ndata: "[..], message, b"\n\n"].concat().into()
    }

    /// Its data, if it has any.
    #[must_use]
    pub fn data(&self) -> Option<&[u8]> {
        self.joined.as_deref().or_else(|| self.place.clone().map(|place| &self.raw[place]))
    }

    /// Whether a line of the event gives it this name.
    #[must_use]
    pub fn is_named(&self, name: &[u8]) -> bool {
        let lines = self.raw.split(|byte| matches!(byte, b'\n' | b'\r'));
        lines.filter_map(|line| line.strip_prefix(b"event:")).any(|value| value.trim_ascii() == name)
    }

    /// The bytes before its data, the data, and the bytes after. Data in several lines stay in the first part.
    #[must_use]
    pub fn into_parts(self) -> (Bytes, Vec<u8>, Bytes) {
        match (self.place, self.joined) {
            (Some(place), _) => {
                let copied = |range: &[u8]| Bytes::copy_from_slice(range);
                let around = (copied(&self.raw[..place.start]), copied(&self.raw[place.end..]));
                // If the event is not shared, its data stay in the same allocation.
                let mut data = Vec::from(self.raw);
                data.truncate(place.end);
                data.drain(..place.start);
                (around.0, data, around.1)
            }
            (None, joined) => (self.raw, joined.unwrap_or_default(), Bytes::new()),
        }
    }

    /// The event with other data. If its data are in one line, only that line changes.
    #[must_use]
    pub fn with_data(&self, data: &[u8]) -> Bytes {
        match &self.place {
            Some(place) => [&self.raw[..place.start], data, &self.raw[place.end..]].concat().into(),
            None if self.joined.as_deref() == Some(data) => self.raw.clone(),
            None => Self::of(data),
        }
    }

    fn parse(raw: Bytes) -> Self {
        let (mut places, mut id): (Vec<Range<usize>>, Option<String>) = (Vec::new(), None);
        // A stream may start with a byte order mark.
        let mut start = if raw.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
        while start < raw.len() {
            let rest = &raw[start..];
            let length = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
            let line = &rest[..length];
            let value_of = |name: &[u8]| {
                let value = line.strip_prefix(name)?;
                match value.first() {
                    None => Some(value.len()),
                    Some(b':') => Some(value.len() - 1 - usize::from(value.get(1) == Some(&b' '))),
                    Some(_) => None,
                }
            };
            let end = start + length;
            if let Some(length) = value_of(b"data") {
                places.push(end - length..end);
            } else if let Some(length) = value_of(b"id") {
                id = std::str::from_utf8(&raw[end - length..end]).ok().map(str::to_owned);
            }
            start = end + 1;
        }
        let one = (places.len() == 1).then(|| places[0].clone());
        let parts = || places.iter().map(|place| &raw[place.clone()]).collect::<Vec<_>>().join(&b'\n');
        let joined = (places.len() > 1).then(parts);
        Self { place: one, joined, id, raw }
    }
}

/// Splits a stream into events.
#[derive(Debug, Default)]
pub struct Events {
    buffer: BytesMut,
    /// How many bytes were scanned.
    seen: usize,
    /// Where the current line starts.
    line: usize,
    /// Whether the last line ended with a carriage return. A line feed may follow.
    after_return: bool,
}

impl Events {
    /// Adds bytes of the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.reserve(more_room(self.buffer.len(), self.buffer.capacity(), bytes.len()));
        self.buffer.extend_from_slice(bytes);
    }

    /// How many bytes of an incomplete event are held.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.buffer.len()
    }

    /// The next complete event.
    #[expect(clippy::should_implement_trait, reason = "more events follow after `None`")]
    pub fn next(&mut self) -> Option<Event> {
        loop {
            let rest = &self.buffer[self.seen..];
            if self.after_return && !rest.is_empty() {
                self.after_return = false;
                if rest[0] == b'\n' {
                    self.seen += 1;
                    self.line = self.seen;
                    continue;
                }
            }
            let Some(at) = memchr2(b'\n', b'\r', rest) else {
                self.seen = self.buffer.len();
                return None;
            };
            let end = self.seen + at;
            self.after_return = self.buffer[end] == b'\r';
            let is_empty = end == self.line;
            (self.seen, self.line) = (end + 1, end + 1);
            if !is_empty {
                continue;
            }
            // The line feed of a CRLF belongs to this event, if it has arrived.
            if self.after_return && self.buffer.get(self.seen) == Some(&b'\n') {
                (self.seen, self.after_return) = (self.seen + 1, false);
            }
            // If the event is the whole buffer, it takes the allocation.
            let all = self.seen == self.buffer.len();
            let raw = if all { std::mem::take(&mut self.buffer) } else { self.buffer.split_to(self.seen) };
            let raw = raw.freeze();
            (self.seen, self.line) = (0, 0);
            return Some(Event::parse(raw));
        }
    }

    /// What is left at the end of the stream: an incomplete event is not an event.
    pub fn rest(&mut self) -> Bytes {
        (self.seen, self.line) = (0, 0);
        self.buffer.split().freeze()
    }
}

/// Splits bytes into events, in chunks of that size, and returns their number.
///
/// # Panics
/// If a byte is lost.
#[must_use]
pub fn look(bytes: &[u8], piece: usize) -> usize {
    let (mut events, mut raw, mut count) = (Events::default(), Vec::new(), 0);
    for piece in bytes.chunks(piece.max(1)) {
        events.push(piece);
        while let Some(event) = events.next() {
            assert!(event.data().is_none_or(|data| event.with_data(data) == event.raw));
            raw.extend_from_slice(&event.raw);
            count += 1;
        }
    }
    raw.extend_from_slice(&events.rest());
    assert_eq!(raw, bytes);
    count
}

/// How much capacity to reserve beyond the current length before appending `more` bytes. Zero if there is enough.
#[must_use]
pub fn more_room(length: usize, capacity: usize, more: usize) -> usize {
    let needed = length + more;
    if needed <= capacity || needed <= LONG {
        return 0;
    }
    ROOM.into_iter().find(|room| *room >= needed).unwrap_or(needed) - length
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &str = concat!(
        ": hello\n\n",
        "id: 7\nevent: message\ndata: {\"a\":1}\n\n",
        "data:two\r\ndata:  lines\r\n\r\n",
        "data\r\r",
        "retry: 5\nid:\ndata: é\n\n",
        "data: cut off"
    );

    fn take(chunk: usize) -> (Vec<Event>, Vec<u8>) {
        let (mut events, mut found, mut raw) = (Events::default(), Vec::new(), Vec::new());
        for piece in STREAM.as_bytes().chunks(chunk) {
            events.push(piece);
            while let Some(event) = events.next() {
                raw.extend_from_slice(&event.raw);
                found.push(event);
            }
        }
        raw.extend_from_slice(&events.rest());
        (found, raw)
    }

    #[test]
    fn events_do_not_depend_on_chunks_and_no_byte_is_lost() {
        for chunk in 1..STREAM.len() {
            let (events, raw) = take(chunk);
            assert_eq!(raw, STREAM.as_bytes(), "{chunk}");
            let data: Vec<Option<&[u8]>> = events.iter().map(Event::data).collect();
            let expected: [Option<&[u8]>; 5] =
                [None, Some(b"{\"a\":1}"), Some(b"two\n lines"), Some(b""), Some("é".as_bytes())];
            assert_eq!(data, expected, "{chunk}");
            let ids: Vec<Option<&str>> = events.iter().map(|event| event.id.as_deref()).collect();
            assert_eq!(ids, [None, Some("7"), None, None, Some("")], "{chunk}");
        }
    }

    #[test]
    fn only_the_data_of_an_event_are_replaced() {
        let (events, _) = take(1000);
        assert_eq!(events[1].with_data(b"x"), "id: 7\nevent: message\ndata: x\n\n");
        assert_eq!(events[2].with_data(b"two\n lines"), events[2].raw);
        assert_eq!(events[2].with_data(b"x"), "event: message\ndata: x\n\n");
        let (before, data, after) = events[1].clone().into_parts();
        assert_eq!([&before[..], &data, &after].concat(), events[1].raw);
        assert_eq!(
            events[2].clone().into_parts(),
            (events[2].raw.clone(), b"two\n lines".to_vec(), Bytes::new())
        );
    }
}
