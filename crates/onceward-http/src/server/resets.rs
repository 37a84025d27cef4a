//! Resets of connections. Notes whether a client resets one: the HTTP library takes a reset between two requests for an
//! end. Resets one whose answer broke off, if its client could take that for the end of the answer.

use std::io::{Error, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use crate::socket::Shared;

/// A socket that can tell whether it was reset. If the client closed its side before that, no read or write fails.
pub(super) trait Socket {
    /// The error that no read or write has reported.
    fn pending_error(&self) -> Option<Error>;

    /// Resets the connection when it is dropped, instead of closing it.
    fn reset_at_end(&self);
}

impl Socket for TokioIo<Shared<TcpStream>> {
    fn pending_error(&self) -> Option<Error> {
        self.inner().get().take_error().ok().flatten()
    }

    fn reset_at_end(&self) {
        reset_at_end(self.inner().get());
    }
}

impl Socket for TokioIo<TlsStream<Shared<TcpStream>>> {
    fn pending_error(&self) -> Option<Error> {
        self.inner().get_ref().0.get().take_error().ok().flatten()
    }

    fn reset_at_end(&self) {
        reset_at_end(self.inner().get_ref().0.get());
    }
}

impl Socket for TokioIo<Shared<UnixStream>> {
    fn pending_error(&self) -> Option<Error> {
        self.inner().get().take_error().ok().flatten()
    }

    /// A Unix socket has no reset.
    fn reset_at_end(&self) {}
}

fn reset_at_end(stream: &TcpStream) {
    match stream.set_zero_linger() {
        // Of a connection that is gone already.
        Ok(()) | Err(_) => {}
    }
}

/// What is known about the resets of a connection.
#[derive(Clone, Default)]
pub(super) struct Resets {
    by_client: Arc<AtomicBool>,
    wanted: Arc<AtomicBool>,
}

impl Resets {
    /// Whether the client reset the connection.
    pub(super) fn by_client(&self) -> bool {
        self.by_client.load(Ordering::Relaxed)
    }

    /// The connection is to be reset, not closed.
    pub(super) fn want(&self) {
        self.wanted.store(true, Ordering::Relaxed);
    }
}

/// A connection that notes a reset.
pub(super) struct Resettable<I: Socket> {
    io: I,
    resets: Resets,
}

impl<I: Socket> Drop for Resettable<I> {
    fn drop(&mut self) {
        if self.resets.wanted.load(Ordering::Relaxed) {
            self.io.reset_at_end();
        }
        let pending = self.io.pending_error().map_or(Ok(()), Err);
        match self.noted(Poll::Ready(pending)) {
            Poll::Ready(Ok(()) | Err(_)) | Poll::Pending => {}
        }
    }
}

impl<I: Socket> Resettable<I> {
    /// The connection, and what is known about its resets.
    pub(super) fn new(io: I) -> (Self, Resets) {
        let resets = Resets::default();
        (Self { io, resets: resets.clone() }, resets)
    }

    fn noted<T>(&self, result: Poll<Result<T, Error>>) -> Poll<Result<T, Error>> {
        if let Poll::Ready(Err(error)) = &result
            && matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        {
            self.resets.by_client.store(true, Ordering::Relaxed);
        }
        result
    }
}

impl<I: Read + Socket + Unpin> Read for Resettable<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<Result<(), Error>> {
        let result = Pin::new(&mut self.io).poll_read(context, buffer);
        self.noted(result)
    }
}

impl<I: Write + Socket + Unpin> Write for Resettable<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<Result<usize, Error>> {
        let result = Pin::new(&mut self.io).poll_write(context, buffer);
        self.noted(result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let result = Pin::new(&mut self.io).poll_flush(context);
        self.noted(result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        let result = Pin::new(&mut self.io).poll_write_vectored(context, buffers);
        self.noted(result)
    }
}
