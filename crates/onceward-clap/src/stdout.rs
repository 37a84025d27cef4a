//! The real stdout, which only answers may reach. A `println!` in an author's code goes to stderr.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;

use anstream::AutoStream;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::dup2_stdout;

/// The stdout that the process was started with.
#[derive(Debug)]
pub(crate) struct Stdout {
    file: File,
}

impl Stdout {
    /// Keeps stdout for answers and points file descriptor 1 at stderr, for this process and all that it starts. One
    /// switch for the whole run needs no lock: no thread can print between an answer's lines.
    pub(crate) fn take() -> io::Result<Self> {
        let file = File::from(io::stdout().as_fd().try_clone_to_owned()?);
        dup2_stdout(io::stderr())?;
        Ok(Self { file })
    }

    pub(crate) fn is_terminal(&self) -> bool {
        self.file.is_terminal()
    }

    /// Writes bytes as they are.
    pub(crate) fn bytes(&self, bytes: &[u8]) -> io::Result<()> {
        (&self.file).write_all(bytes)
    }

    /// Writes text, without its colours where they are not wanted.
    pub(crate) fn text(&self, text: &str) -> io::Result<()> {
        let mut styled = AutoStream::new(Vec::new(), AutoStream::choice(&self.file));
        styled.write_all(onceward::text::coloured(text).as_bytes())?;
        self.bytes(&styled.into_inner())
    }

    /// Whether someone can still read what was written.
    pub(crate) fn is_open(&self) -> bool {
        let mut fds = [PollFd::new(self.file.as_fd(), PollFlags::POLLOUT)];
        let closed = PollFlags::POLLERR | PollFlags::POLLHUP | PollFlags::POLLNVAL;
        match poll(&mut fds, PollTimeout::ZERO) {
            Ok(_) => fds[0].revents().is_some_and(|events| !events.intersects(closed)),
            Err(_) => false,
        }
    }
}
