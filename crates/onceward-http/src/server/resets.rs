//! Notes whether a client resets its connection. The HTTP library takes a reset between two requests for an end.

use std::io::{Error, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::server::TlsStream;

use super::socket::Shared;

/// A socket that can tell whether it was reset. If the client closed its side before that, no read or write fails.
pub(super) trait Socket {
    /// The error that no read or write has reported.
    fn pending_error(&self) -> Option<Error>;
}

impl Socket for TokioIo<Shared<TcpStream>> {
    fn pending_error(&self) -> Option<Error> {
        self.inner().get().take_error().ok().flatten()
    }
}

impl Socket for TokioIo<TlsStream<Shared<TcpStream>>> {
    fn pending_error(&self) -> Option<Error> {
        self.inner().get_ref().0.get().take_error().ok().flatten()
    }
}

impl Socket for TokioIo<Shared<UnixStream>> {
    fn pending_error(&self) -> Option<Error> {
        self.inner().get().take_error().ok().flatten()
    }
}

/// A connection that notes a reset.
pub(super) struct Resettable<I: Socket> {
    io: I,
    is_reset: Arc<AtomicBool>,
}

impl<I: Socket> Drop for Resettable<I> {
    fn drop(&mut self) {
        let pending = self.io.pending_error().map_or(Ok(()), Err);
        match self.noted(Poll::Ready(pending)) {
            Poll::Ready(Ok(()) | Err(_)) | Poll::Pending => {}
        }
    }
}

impl<I: Socket> Resettable<I> {
    /// The connection, and whether it was reset.
    pub(super) fn new(io: I) -> (Self, Arc<AtomicBool>) {
        let is_reset = Arc::new(AtomicBool::new(false));
        (Self { io, is_reset: Arc::clone(&is_reset) }, is_reset)
    }

    fn noted<T>(&self, result: Poll<Result<T, Error>>) -> Poll<Result<T, Error>> {
        if let Poll::Ready(Err(error)) = &result
            && matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)
        {
            self.is_reset.store(true, Ordering::Relaxed);
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
