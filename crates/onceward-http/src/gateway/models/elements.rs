//! Where a JSON text ends, and the elements of an array, while it arrives.

use bytes::BytesMut;

/// Reads a JSON text piece by piece. It counts brackets and does not parse: what it finds must be parsed.
#[derive(Debug, Default)]
pub(crate) struct Elements {
    /// How many brackets are open.
    depth: usize,
    /// Whether the next byte is inside a string.
    in_string: bool,
    /// Whether the next byte of a string is escaped.
    is_escaped: bool,
    /// Whether a bracket was opened.
    has_begun: bool,
    /// Whether something other than white space follows the end.
    has_more: bool,
    /// What has arrived of the current element of an array of objects or arrays.
    element: BytesMut,
}

impl Elements {
    /// Reads the next bytes of an object or an array.
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.scan(bytes, |_| {});
    }

    /// The same for an array of objects, and gives every element that is complete with them.
    pub(crate) fn split(&mut self, bytes: &[u8], mut each: impl FnMut(&[u8])) {
        let mut element = std::mem::take(&mut self.element);
        let mut start = (!element.is_empty()).then_some(0);
        self.scan(bytes, |at| match at {
            Boundary::Begins(at) => start = Some(at),
            Boundary::Ends(at) => {
                if let Some(start) = start.take() {
                    element.extend_from_slice(&bytes[start..at]);
                    each(&element);
                    element.clear();
                }
            }
        });
        if let Some(start) = start {
            element.extend_from_slice(&bytes[start..]);
        }
        self.element = element;
    }

    /// Whether the text is at its end, as far as brackets show, and nothing follows it.
    pub(crate) fn is_whole(&self) -> bool {
        self.has_begun && self.depth == 0 && !self.has_more
    }

    fn scan(&mut self, bytes: &[u8], mut boundary: impl FnMut(Boundary)) {
        for (at, byte) in bytes.iter().enumerate() {
            if self.in_string {
                match byte {
                    _ if self.is_escaped => self.is_escaped = false,
                    b'\\' => self.is_escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            let is_over = self.has_begun && self.depth == 0;
            match byte {
                byte if byte.is_ascii_whitespace() => {}
                _ if is_over => self.has_more = true,
                b'"' => self.in_string = true,
                b'{' | b'[' => {
                    if self.depth == 1 {
                        boundary(Boundary::Begins(at));
                    }
                    (self.depth, self.has_begun) = (self.depth + 1, true);
                }
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 1 {
                        boundary(Boundary::Ends(at + 1));
                    }
                }
                _ => {}
            }
        }
    }
}

/// Where an element begins, or where the next byte is after it.
enum Boundary {
    Begins(usize),
    Ends(usize),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_and_the_end_do_not_depend_on_pieces() {
        let text = " [{\"a\":\"]}\\\"\"},\n {\"b\":[1,{}]}, {}] \n";
        for size in 1..text.len() {
            let (mut elements, mut found) = (Elements::default(), Vec::new());
            let mut end = None;
            for (index, piece) in text.as_bytes().chunks(size).enumerate() {
                elements.split(piece, |one| found.push(String::from_utf8_lossy(one).into_owned()));
                if elements.is_whole() {
                    end.get_or_insert((index + 1) * size);
                }
            }
            assert_eq!(found, ["{\"a\":\"]}\\\"\"}", "{\"b\":[1,{}]}", "{}"], "{size}");
            assert!(end.is_some_and(|end| end >= text.len() - 2), "{size}: {end:?}");
        }
    }

    #[test]
    fn a_text_is_whole_at_its_last_bracket_if_nothing_follows() {
        for (text, expected) in [
            ("{\"a\":\"}\"}", true),
            ("{} \r\n", true),
            ("{\"a\":{}", false),
            ("{}{", false),
            ("{},", false),
            ("", false),
            ("null", false),
        ] {
            let mut elements = Elements::default();
            elements.push(text.as_bytes());
            assert_eq!(elements.is_whole(), expected, "{text}");
        }
    }
}
