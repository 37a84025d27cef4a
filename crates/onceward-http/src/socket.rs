//! Sockets of clients, which a request can look at while its connection uses them.

use std::io::{Error, ErrorKind, IoSlice};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};

/// The client at the other end of a connection. Every request has it as an extension.
#[derive(Clone, Default)]
pub struct Peer(Option<Weak<dyn AsFd + Send + Sync>>);

impl Peer {
    /// Whether the client has closed or reset the connection. The kernel is asked now: the task of the connection may
    /// not have run since. `false` if there is no connection to look at.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let Some(socket) = &self.0 else { return false };
        let Some(socket) = socket.upgrade() else { return true };
        let mut sockets = [PollFd::new(&socket, PollFlags::RDHUP)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // If the kernel cannot tell, the task of the connection will.
        poll(&mut sockets, Some(&now)).is_ok()
            && sockets[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR)
    }
}

/// A socket that a [`Peer`] can look at for as long as its connection lives.
pub struct Shared<S>(Arc<S>);

impl<S: AsFd + Send + Sync + 'static> Shared<S> {
    /// Shares a socket with the peers that look at it.
    pub fn new(socket: S) -> Self {
        Self(Arc::new(socket))
    }

    /// The client at the other end.
    #[must_use]
    pub fn peer(&self) -> Peer {
        let socket: Arc<dyn AsFd + Send + Sync> = Arc::clone(&self.0) as _;
        Peer(Some(Arc::downgrade(&socket)))
    }
}

impl<S> Shared<S> {
    /// The socket itself.
    #[must_use]
    pub fn get(&self) -> &S {
        &self.0
    }
}

/// What both kinds of sockets can do without being owned.
pub trait Stream {
    /// Waits until it can be read.
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>>;
    /// Waits until it can be written.
    fn poll_writable(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>>;
    /// Reads what is there.
    fn read_some(&self, buffer: &mut ReadBuf<'_>) -> Result<usize, Error>;
    /// Writes what there is room for.
    fn write_some(&self, buffers: &[IoSlice<'_>]) -> Result<usize, Error>;
    /// Ends the stream to the client.
    fn shut_down(&self) -> Result<(), Error>;
}

macro_rules! stream {
    ($($socket:ty),*) => { $(
        impl Stream for $socket {
            fn poll_readable(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
                self.poll_read_ready(context)
            }

            fn poll_writable(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
                self.poll_write_ready(context)
            }

            fn read_some(&self, buffer: &mut ReadBuf<'_>) -> Result<usize, Error> {
                self.try_read_buf(buffer)
            }

            fn write_some(&self, buffers: &[IoSlice<'_>]) -> Result<usize, Error> {
                self.try_write_vectored(buffers)
            }

            fn shut_down(&self) -> Result<(), Error> {
                match shutdown(self, Shutdown::Write) {
                    // The client was faster.
                    Ok(()) | Err(Errno::NOTCONN) => Ok(()),
                    Err(error) => Err(error.into()),
                }
            }
        }
    )* };
}

stream!(TcpStream, UnixStream);

impl<S: Stream> AsyncRead for Shared<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<(), Error>> {
        loop {
            ready!(self.0.poll_readable(context))?;
            match self.0.read_some(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return Poll::Ready(read.map(drop)),
            }
        }
    }
}

impl<S: Stream> AsyncWrite for Shared<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<Result<usize, Error>> {
        self.poll_write_vectored(context, &[IoSlice::new(buffer)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffers: &[IoSlice<'_>],
    ) -> Poll<Result<usize, Error>> {
        loop {
            ready!(self.0.poll_writable(context))?;
            match self.0.write_some(buffers) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        Poll::Ready(self.0.shut_down())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn a_client_that_left_is_seen_although_its_last_bytes_were_not_read() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (client, accepted) = tokio::join!(TcpStream::connect(address), listener.accept());
        let (mut client, mut served) = (client.unwrap(), Shared::new(accepted.unwrap().0));
        let peer = served.peer();
        client.write_all(b"request").await.unwrap();
        assert!(!peer.is_gone(), "it waits for its answer");
        served.write_all(b"answer").await.unwrap();
        drop(client);
        // Nothing else runs on this thread that could notice it.
        while !peer.is_gone() {
            std::thread::yield_now();
        }
        let mut read = Vec::new();
        drop(served.read_to_end(&mut read).await);
        drop(served);
        assert!(peer.is_gone() && !Peer::default().is_gone());
    }
}
