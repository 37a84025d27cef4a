//! In-process streams that deliver whole lines.

use std::io::{self, Read, Write};
use std::sync::mpsc::{self, Receiver, Sender};

/// The proxy's output: passes on each complete line.
pub(super) struct LinesOut {
    to: Sender<Vec<u8>>,
    rest: Vec<u8>,
}

impl LinesOut {
    pub(super) fn new() -> (Self, Receiver<Vec<u8>>) {
        let (to, from) = mpsc::channel();
        (Self { to, rest: Vec::new() }, from)
    }
}

impl Write for LinesOut {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.rest.extend_from_slice(bytes);
        while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
            let mut line: Vec<u8> = self.rest.drain(..=end).collect();
            line.truncate(end);
            self.to.send(line).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The proxy's input: the lines of a sender, until the sender is dropped.
pub(super) struct LinesIn {
    from: Receiver<Vec<u8>>,
    line: Vec<u8>,
    at: usize,
}

impl LinesIn {
    pub(super) fn new(from: Receiver<Vec<u8>>) -> Self {
        Self { from, line: Vec::new(), at: 0 }
    }
}

impl Read for LinesIn {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.at == self.line.len() {
            let Ok(line) = self.from.recv() else { return Ok(0) };
            (self.line, self.at) = (line, 0);
            self.line.push(b'\n');
        }
        let count = into.len().min(self.line.len() - self.at);
        into[..count].copy_from_slice(&self.line[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}
