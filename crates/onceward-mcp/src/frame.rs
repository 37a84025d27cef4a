//! Messages on a stream: one a line.

use std::io::{self, BufRead, ErrorKind};

/// The longest line that is read. Longer ones end the connection: nobody could hold them.
pub(crate) const MAX_LINE: usize = 1024 * 1024 * 1024;

/// How much room a long line gets, step by step. Room that is not used costs nothing, and each step is so much larger
/// than the last one that little is copied: a buffer that doubles would hold three times what it needs.
const ROOM: [usize; 3] = [16 << 20, 256 << 20, 1 << 30];
/// From here on a line is long.
const LONG: usize = 1 << 20;

/// The next line without its end, or nothing when the stream is over. A last line without an end is a line.
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

/// How much room beyond its length a long line needs for so many bytes more; nothing where it has enough.
pub(crate) fn more_room(length: usize, capacity: usize, more: usize) -> usize {
    let needed = length + more;
    if needed <= capacity || needed <= LONG {
        return 0;
    }
    ROOM.into_iter().find(|room| *room >= needed).unwrap_or(needed) - length
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_one_by_one_and_the_last_needs_no_end() {
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
