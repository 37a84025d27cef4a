//! A generation: an answer while it grows, and the clients that read it.
//!
//! The answer of the current attempt is a log of chunks. Every reader follows the log from its first byte, so a retry
//! reads the same bytes as the call that it repeats. Readers do not slow each other down, and the generation continues
//! without them.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame};
use hyper::{HeaderMap, StatusCode};
use onceward::{Error, Receipt};

use crate::locks::lock;

/// Chunks that are queued for a reader are joined up to this size: one write instead of many.
const JOINED: usize = 64 * 1024;

/// The result of the call, when it has one.
pub(crate) type Settled = Arc<Result<Receipt, Error>>;

/// An answer while it grows.
pub(crate) struct Generation {
    stored: Stored,
    log: Mutex<Log>,
}

/// How the answer of an attempt begins.
#[derive(Debug, Clone)]
pub(crate) struct Head {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
}

/// The place of a chunk in its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChunkPlace {
    /// It can be read at once.
    Inside,
    /// The answer may be complete with it, so it waits until the answer is stored.
    End,
}

/// What the ledger stores of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stored {
    /// All of it.
    Whole,
    /// The policy removes something from stored answers.
    Redacted,
}

/// Which operation a call may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ownership {
    /// The chosen one, even if another request began it.
    Shared,
    /// One whose next attempt this call makes. If another gateway was faster, the call chooses again: a client of that
    /// gateway has the answer.
    Own,
}

#[derive(Default)]
struct Log {
    head: Option<Head>,
    chunks: Vec<Bytes>,
    /// How many chunks readers may take. The last chunk of an answer waits until the answer is stored.
    open: usize,
    /// Why there will be no further chunks of this attempt.
    broken: Option<String>,
    settled: Option<Settled>,
    /// Whether another gateway began the operation first, and the calls here choose again.
    is_taken: bool,
    readers: usize,
    /// Whether the operation is in the ledger.
    has_begun: bool,
    /// Whether a reader has taken a chunk of this attempt, so that no other attempt can take its place.
    is_read: bool,
    wakers: Vec<Waker>,
}

impl Log {
    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }

    fn wait(&mut self, context: &Context<'_>) {
        if !self.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            self.wakers.push(context.waker().clone());
        }
    }
}

/// What a reader finds first.
pub(crate) enum Opening {
    /// The answer has begun.
    Begun(Head),
    /// The call is over.
    Settled(Settled),
    /// Another gateway began the operation first, and this call was meant to have one of its own.
    Taken,
}

impl Generation {
    pub(crate) fn new(stored: Stored) -> Self {
        Self { stored, log: Mutex::default() }
    }

    fn log(&self) -> MutexGuard<'_, Log> {
        lock(&self.log)
    }

    /// The operation is in the ledger.
    pub(crate) fn note_begun(&self) {
        let mut log = self.log();
        log.has_begun = true;
        log.wake();
    }

    /// Resolves when the operation is in the ledger.
    pub(crate) async fn begun(&self) {
        std::future::poll_fn(|context| {
            let mut log = self.log();
            if log.has_begun || log.settled.is_some() || log.head.is_some() {
                return Poll::Ready(());
            }
            log.wait(context);
            Poll::Pending
        })
        .await;
    }

    /// Begins the answer of an attempt. Chunks of an earlier one are forgotten: no reader has taken any.
    pub(crate) fn begin(&self, head: Head) {
        let mut log = self.log();
        log.head = Some(head);
        log.chunks.clear();
        (log.open, log.broken) = (0, None);
    }

    /// Adds a chunk in which the provider reports an error. Clients that have read a part of the answer read it too;
    /// for the others, the next attempt takes its place.
    pub(crate) fn push_error(&self, chunk: Bytes) {
        let place = if self.log().is_read { ChunkPlace::Inside } else { ChunkPlace::End };
        self.push(chunk, place);
    }

    /// Adds a chunk. All chunks but the last can be read at once, and [`Generation::tell`] says so.
    pub(crate) fn push(&self, chunk: Bytes, place: ChunkPlace) {
        let mut log = self.log();
        log.chunks.push(chunk);
        match place {
            ChunkPlace::Inside => log.open = log.chunks.len(),
            ChunkPlace::End => {}
        }
    }

    /// Tells the readers that chunks were added.
    pub(crate) fn tell(&self) {
        self.log().wake();
    }

    /// The attempt has failed. Returns whether a reader has seen a part of its answer. That reader's connection breaks
    /// when the call is settled, so that its retry finds the failure in the ledger.
    pub(crate) fn fail(&self, why: &str) -> bool {
        let mut log = self.log();
        if !log.is_read {
            log.head = None;
            log.chunks.clear();
            log.open = 0;
            return false;
        }
        log.broken = Some(why.to_owned());
        // Readers that are gone do not bind the next attempt.
        let is_bound = log.readers > 0;
        if !is_bound {
            (log.head, log.is_read, log.broken, log.open) = (None, false, None, 0);
            log.chunks.clear();
        }
        is_bound
    }

    /// All bytes of the answer so far.
    pub(crate) fn bytes(&self) -> Bytes {
        all_of(&self.log().chunks)
    }

    /// The call has its result, which is stored.
    pub(crate) fn settle(&self, settled: Settled, ownership: Ownership) {
        let mut log = self.log();
        log.is_taken = !log.has_begun
            && ownership == Ownership::Own
            && matches!(&*settled, Ok(_) | Err(Error::InProgress { .. }));
        log.settled = Some(settled);
        log.open = log.chunks.len();
        log.wake();
    }

    /// Whether no client reads.
    pub(crate) fn is_unattended(&self) -> bool {
        self.log().readers == 0
    }

    /// A new reader, from the first byte.
    pub(crate) fn follow(self: &Arc<Self>) -> Follower {
        self.log().readers += 1;
        Follower { generation: Arc::clone(self), next: 0 }
    }
}

/// One reader of a generation.
pub(crate) struct Follower {
    generation: Arc<Generation>,
    next: usize,
}

impl Follower {
    /// Waits until the answer begins or the call is over.
    pub(crate) async fn opening(&self) -> Opening {
        std::future::poll_fn(|context| {
            let mut log = self.generation.log();
            if log.is_taken {
                return Poll::Ready(Opening::Taken);
            }
            if let Some(settled) = &log.settled {
                return Poll::Ready(Opening::Settled(Arc::clone(settled)));
            }
            if log.open > 0
                && log.broken.is_none()
                && let Some(head) = log.head.clone()
            {
                log.is_read = true;
                return Poll::Ready(Opening::Begun(head));
            }
            log.wait(context);
            Poll::Pending
        })
        .await
    }

    /// The answer that an attempt of this process ended with, as it is stored. `None` if the stored one may differ.
    pub(crate) fn whole(&self) -> Option<(Head, Bytes)> {
        let log = self.generation.log();
        let head = log.head.clone().filter(|_| self.generation.stored == Stored::Whole)?;
        Some((head, all_of(&log.chunks)))
    }

    /// The result of the call, if it is over.
    pub(crate) fn settled(&self) -> Option<Settled> {
        self.generation.log().settled.clone()
    }

    fn poll_chunk(&mut self, context: &Context<'_>) -> Poll<Option<Result<Bytes, String>>> {
        let mut log = self.generation.log();
        if self.next < log.open {
            let queued = &log.chunks[self.next..log.open];
            let mut taken = 1;
            let mut size = queued[0].len();
            while let Some(chunk) = queued.get(taken).filter(|chunk| size + chunk.len() <= JOINED) {
                size += chunk.len();
                taken += 1;
            }
            let bytes = match &queued[..taken] {
                [one] => one.clone(),
                several => joined(several),
            };
            self.next += taken;
            return Poll::Ready(Some(Ok(bytes)));
        }
        match (log.settled.as_deref(), &log.broken) {
            (Some(_), Some(why)) => Poll::Ready(Some(Err(why.clone()))),
            (Some(Ok(_)), None) => Poll::Ready(None),
            (Some(Err(error)), None) => Poll::Ready(Some(Err(error.to_string()))),
            (None, _) => {
                log.wait(context);
                Poll::Pending
            }
        }
    }

    /// Whether every byte of a complete answer was taken.
    pub(crate) fn has_all(&self) -> bool {
        let log = self.generation.log();
        matches!(log.settled.as_deref(), Some(Ok(_))) && self.next == log.chunks.len()
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // An attempt looks for readers from time to time, so nothing is woken here.
        self.generation.log().readers -= 1;
    }
}

fn all_of(chunks: &[Bytes]) -> Bytes {
    match chunks {
        [] => Bytes::new(),
        [one] => one.clone(),
        several => joined(several),
    }
}

fn joined(chunks: &[Bytes]) -> Bytes {
    let mut joined = BytesMut::with_capacity(chunks.iter().map(Bytes::len).sum());
    chunks.iter().for_each(|chunk| joined.extend_from_slice(chunk));
    joined.freeze()
}

/// The body of an answer that is still growing.
pub(crate) struct Growing {
    follower: Follower,
    /// Runs once if the body was taken to its end.
    at_end: Option<Box<dyn FnOnce(Settled) + Send>>,
    /// Whether the connection was given the time to send what it has.
    has_paused: bool,
}

impl Growing {
    pub(crate) fn new(follower: Follower, at_end: impl FnOnce(Settled) + Send + 'static) -> Self {
        Self { follower, at_end: Some(Box::new(at_end)), has_paused: false }
    }
}

impl HttpBody for Growing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        match self.follower.poll_chunk(context) {
            // The connection sends what it has when a body has nothing more, and drops it when a body breaks. Without
            // the pause, a client might not even get the status.
            Poll::Ready(Some(Err(_))) if !std::mem::replace(&mut self.has_paused, true) => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
            // An end is never invented: the connection breaks.
            Poll::Ready(Some(Err(why))) => {
                Poll::Ready(Some(Err(axum::Error::new(std::io::Error::other(why)))))
            }
            Poll::Ready(Some(Ok(bytes))) => Poll::Ready(Some(Ok(Frame::data(bytes)))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl Drop for Growing {
    fn drop(&mut self) {
        // The connection drops the body once it has written all of it, or when it breaks.
        if self.follower.has_all()
            && let (Some(at_end), Some(settled)) = (self.at_end.take(), self.follower.settled())
        {
            at_end(settled);
        }
    }
}
