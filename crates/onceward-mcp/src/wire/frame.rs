//! Line framing: one message per line.

use std::io::{self, BufRead, ErrorKind};

use onceward_http::events::more_room;

/// The longest line that is read. A longer one ends the connection, because it could not be held in memory.
pub(crate) const MAX_LINE: usize = 1024 * 1024 * 1024;

/// The next line without its terminator, or `None` at the end of the stream. The last line needs no terminator.
pub(crate) fn next_line(stream: &mut impl BufRead, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    loop {
        let chunk = match stream.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if chunk.is_empty() {
            return Ok((!line.is_empty()).then_some(line));
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(chunk.len());
        if line.len() + taken > limit {
            let problem = format!("a message is longer than {limit} bytes");
            return Err(io::Error::new(ErrorKind::InvalidData, problem));
        }
        line.reserve_exact(more_room(line.len(), line.capacity(), taken));
        line.extend_from_slice(&chunk[..taken]);
        stream.consume(end.map_or(taken, |end| end + 1));
        if end.is_some() {
            return Ok(Some(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line that is long enough for the steps of its capacity.
    const LONG: usize = 1 << 20;

    #[test]
    fn lines_are_split_and_the_last_needs_no_terminator() {
        let mut stream = io::BufReader::with_capacity(3, &b"one\n\ntwo two\r\nlast"[..]);
        let mut lines = Vec::new();
        while let Some(line) = next_line(&mut stream, 100).unwrap() {
            lines.push(String::from_utf8(line).unwrap());
        }
        assert_eq!(lines, ["one", "", "two two\r", "last"]);
        let long: Vec<u8> = (0..5 * LONG + 7).map(|at| b'a' + u8::try_from(at % 23).unwrap()).collect();
        let mut stream = io::BufReader::with_capacity(70_000, &long[..]);
        assert!(next_line(&mut stream, 10 * LONG).unwrap() == Some(long.clone()));
        assert!(next_line(&mut &long[..], 4 * LONG).is_err());
        assert!(next_line(&mut io::BufReader::new(&b"toolong\n"[..]), 3).is_err());
    }
}
