//! The command's output on its way to this process's own stdout and stderr. A thread of its own writes it: a reader
//! that does not read must delay the command, and not the record of its end.

use std::collections::VecDeque;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::recording::Stream;

/// How much may wait for the reader while the command runs. A command that writes more is blocked, as by any pipe.
const WHILE_RUNNING: usize = 64 * 1024;
/// The same when the command has ended. What it left in its pipes must be recorded, and still be written.
const AFTER_THE_END: usize = 2 * 1024 * 1024;

/// Output that waits for its reader, in the order in which it was recorded.
pub(super) struct Outlet {
    queue: Mutex<Queue>,
    changed: Condvar,
}

struct Queue {
    pieces: VecDeque<(Stream, Vec<u8>)>,
    /// The size of all pieces, with the one that is being written.
    bytes: usize,
    limit: usize,
    /// Nothing more is accepted.
    is_over: bool,
}

impl Outlet {
    /// Starts the thread that writes. `broken` is called when a reader has gone.
    pub(super) fn start(broken: impl Fn() + Send + 'static) -> Arc<Self> {
        let queue = Queue { pieces: VecDeque::new(), bytes: 0, limit: WHILE_RUNNING, is_over: false };
        let outlet = Arc::new(Self { queue: Mutex::new(queue), changed: Condvar::new() });
        let writing = Arc::clone(&outlet);
        std::thread::spawn(move || writing.write_all(broken));
        outlet
    }

    /// Waits until a command may write more.
    pub(super) fn wait_for_room(&self) {
        let mut queue = self.queue();
        while queue.bytes >= queue.limit && !queue.is_over {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Adds a piece. Does not wait.
    pub(super) fn put(&self, stream: Stream, bytes: &[u8]) {
        let mut queue = self.queue();
        if !queue.is_over {
            queue.bytes += bytes.len();
            queue.pieces.push_back((stream, bytes.to_vec()));
            self.changed.notify_all();
        }
    }

    /// A command begins.
    pub(super) fn command_begins(&self) {
        self.queue().limit = WHILE_RUNNING;
    }

    /// The command has ended: what is left of its output is accepted at once.
    pub(super) fn command_ended(&self) {
        self.queue().limit = AFTER_THE_END;
        self.changed.notify_all();
    }

    /// Waits until everything is written, at most for this time, and accepts nothing more. Returns whether it is.
    pub(super) fn finish(&self, limit: Option<Duration>) -> bool {
        let end = limit.map(|limit| Instant::now() + limit);
        let mut queue = self.queue();
        queue.is_over = true;
        self.changed.notify_all();
        while queue.bytes > 0 {
            let left = end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return false;
            }
            let waited = self.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner);
            queue = waited.0;
        }
        true
    }

    fn write_all(&self, broken: impl Fn()) {
        // Copies of the descriptors: a write that blocks must not hold the lock of Rust's own stdout.
        let mut out = std::io::stdout().as_fd().try_clone_to_owned().ok().map(File::from);
        let mut err = std::io::stderr().as_fd().try_clone_to_owned().ok().map(File::from);
        while let Some((stream, bytes)) = self.next() {
            let to = match stream {
                Stream::Out => &mut out,
                Stream::Err => &mut err,
            };
            // A reader that has closed the pipe does not stop the command or its recording.
            let written = to.as_mut().is_some_and(|to| to.write_all(&bytes).is_ok());
            if !written {
                broken();
                *to = None;
            }
            self.queue().bytes -= bytes.len();
            self.changed.notify_all();
        }
    }

    /// The next piece; `None` if there will be none.
    fn next(&self) -> Option<(Stream, Vec<u8>)> {
        let mut queue = self.queue();
        loop {
            if let Some(piece) = queue.pieces.pop_front() {
                return Some(piece);
            }
            if queue.is_over {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
