//! Standard input as part of a call: a pipe or a file, read completely and passed on.

use std::io::{PipeReader, PipeWriter, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::answer;

/// Maximum size.
pub(super) const MAX_INPUT: u64 = 64 * 1024 * 1024;
/// How long an open pipe may stay silent before a message is printed, and before it is refused.
const NOTICE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(10);

/// Whether standard input can be part of the call: a pipe, a socket or a file.
pub(super) fn carries_input() -> bool {
    let Ok(file) = std::io::stdin().as_fd().try_clone_to_owned().map(std::fs::File::from) else {
        return false;
    };
    file.metadata().is_ok_and(|data| {
        let kind = data.file_type();
        kind.is_file() || kind.is_fifo() || kind.is_socket()
    })
}

/// How long to wait for the first byte.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Patience {
    /// The caller said that there is input.
    Endless,
    /// The caller may have left a pipe open by accident.
    Limited,
}

/// Why standard input is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It identifies the call.
    Identity,
    /// The command may start later or again, and then gets the same input.
    Later,
}

impl Purpose {
    /// What it means for the call, and what a caller does that has nothing to say.
    const fn in_words(self) -> (&'static str, &'static str) {
        match self {
            Self::Identity => ("Without a key it is part of the call's identity", ", add --ignore stdin"),
            Self::Later => ("A call that may be held or tried again keeps it", ""),
        }
    }
}

/// Reads standard input to its end.
pub(super) fn read(patience: Patience, purpose: Purpose) -> Result<Vec<u8>, String> {
    let (why, or_else) = purpose.in_words();
    if patience == Patience::Limited && !first_byte_comes(purpose)? {
        return Err(format!(
            "standard input is open, but nothing was read for {} s. {why}; close it (</dev/null){or_else}, or add \
             --stdin to wait for it",
            PATIENCE.as_secs()
        ));
    }
    read_limited(std::io::stdin().lock(), "standard input").map_err(|problem| match purpose {
        Purpose::Identity => format!("{problem}; --ignore stdin excludes it from a derived key"),
        Purpose::Later => format!("{problem}, and the call may be held or tried again"),
    })
}

/// Waits for the first byte or the end. Takes nothing.
fn first_byte_comes(purpose: Purpose) -> Result<bool, String> {
    if ready_within(NOTICE)? {
        return Ok(true);
    }
    answer::talk(match purpose {
        Purpose::Identity => {
            "once: waiting for standard input, which is part of this call's identity; --ignore stdin excludes it"
        }
        Purpose::Later => {
            "once: waiting for standard input, which is kept because this call may be held or tried again"
        }
    });
    ready_within(PATIENCE.saturating_sub(NOTICE))
}

/// Whether nothing is left in standard input, as far as that is known without waiting and without reading.
pub(super) fn is_at_its_end() -> bool {
    let Ok(mut file) = std::io::stdin().as_fd().try_clone_to_owned().map(std::fs::File::from) else {
        return false;
    };
    if let Ok(data) = file.metadata().map(|data| data.is_file().then_some(data.len()))
        && let (Some(size), Ok(position)) = (data, file.stream_position())
    {
        return position >= size;
    }
    ready_within(Duration::ZERO) == Ok(true) && rustix::io::ioctl_fionread(&file).is_ok_and(|left| left == 0)
}

fn ready_within(time: Duration) -> Result<bool, String> {
    let stdin = std::io::stdin();
    let mut watched = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    let timeout = PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX);
    loop {
        match poll(&mut watched, timeout) {
            Ok(ready) => return Ok(ready > 0),
            Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(format!("standard input: {error}")),
        }
    }
}

pub(super) fn read_limited(reader: impl Read, what: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::new();
    let read =
        reader.take(MAX_INPUT + 1).read_to_end(&mut bytes).map_err(|error| format!("{what}: {error}"))?;
    if read as u64 > MAX_INPUT {
        let most = MAX_INPUT / (1024 * 1024);
        return Err(format!("{what} is larger than {most} MiB, too large to be part of a call"));
    }
    Ok(bytes)
}

/// Standard input on its way to the command.
pub(super) struct Feed {
    total: usize,
    written: Arc<AtomicUsize>,
    reader: PipeReader,
}

impl Feed {
    /// Starts writing. A command that does not read to the end is not an error.
    pub(super) fn begin(bytes: &Arc<[u8]>, reader: PipeReader, mut writer: PipeWriter) -> Self {
        let written = Arc::new(AtomicUsize::new(0));
        let feed = Self { total: bytes.len(), written: Arc::clone(&written), reader };
        let bytes = Arc::clone(bytes);
        std::thread::spawn(move || {
            let mut left = &bytes[..];
            while let Ok(length @ 1..) = writer.write(left) {
                left = &left[length..];
                written.fetch_add(length, Ordering::SeqCst);
            }
        });
        feed
    }

    /// How many bytes the command has not read.
    pub(super) fn unread(&self) -> u64 {
        let unwritten = self.total.saturating_sub(self.written.load(Ordering::SeqCst)) as u64;
        unwritten + rustix::io::ioctl_fionread(&self.reader).unwrap_or(0)
    }
}
