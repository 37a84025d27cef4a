//! Messages on a stream: one a line.

use std::io::{self, BufRead, ErrorKind};

/// The longest line that is read. Longer ones end the connection: nobody could hold them.
pub(crate) const MAX_LINE: usize = 1024 * 1024 * 1024;

/// Long lines are gathered in pieces of this size: a buffer that doubles holds three times what it needs.
const PIECE: usize = 1024 * 1024;

/// The next line without its end, or nothing when the stream is over. A last line without an end is a line.
pub(crate) fn next_line(stream: &mut impl BufRead, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let (mut line, mut pieces, mut before) = (Vec::new(), Vec::new(), 0);
    loop {
        let chunk = match stream.fill_buf() {
            Ok(chunk) => chunk,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        if chunk.is_empty() {
            return Ok((before + line.len() > 0).then(|| joined(pieces, line)));
        }
        let end = chunk.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(chunk.len());
        if before + line.len() + taken > limit {
            let problem = format!("a message is longer than {limit} bytes");
            return Err(io::Error::new(ErrorKind::InvalidData, problem));
        }
        line.extend_from_slice(&chunk[..taken]);
        stream.consume(end.map_or(taken, |end| end + 1));
        if end.is_some() {
            return Ok(Some(joined(pieces, line)));
        }
        if line.len() >= PIECE {
            before += line.len();
            pieces.push(std::mem::replace(&mut line, Vec::with_capacity(PIECE + PIECE / 8)));
        }
    }
}

/// One line of its pieces, each of which is let go as soon as it is copied.
fn joined(pieces: Vec<Vec<u8>>, last: Vec<u8>) -> Vec<u8> {
    if pieces.is_empty() {
        return last;
    }
    let mut whole = Vec::with_capacity(pieces.iter().map(Vec::len).sum::<usize>() + last.len());
    for piece in pieces {
        whole.extend_from_slice(&piece);
    }
    whole.extend_from_slice(&last);
    whole
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
        let long: Vec<u8> = (0..5 * PIECE + 7).map(|at| b'a' + u8::try_from(at % 23).unwrap()).collect();
        let mut stream = io::BufReader::with_capacity(70_000, &long[..]);
        assert!(next_line(&mut stream, 10 * PIECE).unwrap() == Some(long.clone()));
        assert!(next_line(&mut &long[..], 4 * PIECE).is_err());
        assert!(next_line(&mut io::BufReader::new(&b"toolong\n"[..]), 3).is_err());
    }
}
