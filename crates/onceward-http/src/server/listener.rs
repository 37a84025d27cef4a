//! What the server listens on.

use std::io;
use std::net::SocketAddr;

use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio_rustls::TlsAcceptor;

use super::{Tls, UnixSocket};

/// A listener: a TCP address, with or without TLS, or a Unix socket.
pub struct Listener {
    kind: Kind,
    /// The only upstream that it answers for. `None`: it answers everything.
    pub(super) upstream: Option<String>,
}

enum Kind {
    Tcp { listener: TcpListener, local: SocketAddr, tls: Option<TlsAcceptor> },
    Unix(UnixSocket),
}

/// A connection as it was accepted.
pub(super) struct Accepted {
    pub(super) stream: Stream,
    pub(super) local: Option<SocketAddr>,
    pub(super) tls: Option<TlsAcceptor>,
}

pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    /// A TCP listener.
    ///
    /// # Errors
    /// If its address cannot be found.
    pub fn tcp(listener: TcpListener, tls: Option<&Tls>) -> io::Result<Self> {
        let local = listener.local_addr()?;
        Ok(Self { kind: Kind::Tcp { listener, local, tls: tls.map(Tls::acceptor) }, upstream: None })
    }

    /// A Unix socket.
    #[must_use]
    pub fn unix(socket: UnixSocket) -> Self {
        Self { kind: Kind::Unix(socket), upstream: None }
    }

    /// The same listener for one upstream alone, whose paths begin at the root: see [`App::upstream_ports`].
    ///
    /// [`App::upstream_ports`]: crate::App::upstream_ports
    #[must_use]
    pub fn of_upstream(self, name: impl Into<String>) -> Self {
        Self { upstream: Some(name.into()), ..self }
    }

    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match &self.kind {
            Kind::Tcp { listener, local, tls } => {
                let (stream, _) = listener.accept().await?;
                // Without this, small answers are delayed.
                match stream.set_nodelay(true) {
                    Ok(()) | Err(_) => {}
                }
                Ok(Accepted { stream: Stream::Tcp(stream), local: Some(*local), tls: tls.clone() })
            }
            Kind::Unix(socket) => {
                let stream = socket.accept().await?;
                Ok(Accepted { stream: Stream::Unix(stream), local: None, tls: None })
            }
        }
    }
}
