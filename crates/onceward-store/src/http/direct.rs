//! Requests on the thread of their caller, over a Unix socket that blocks.
//!
//! A caller that may block writes its request and reads the reply: two system calls, and nothing that waits for several
//! sockets at once. If many processes share the server, that is half of what a call costs them.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use onceward::wire::Message;
use tokio::runtime::{Builder, Handle};
use tokio::time::timeout_at;

use super::clock::Sent;
use super::link::{CONNECT, Link, MAX_IDLE, PAUSES, Unanswered};
use super::options::Endpoint;
use super::refusal::SendError;

/// The most headers of a reply.
const MAX_HEADERS: usize = 64;
/// The longest head of a reply.
const MAX_HEAD: usize = 64 * 1024;
/// How much is read at once.
const PIECE: usize = 16 * 1024;

/// The sockets to one server.
pub(super) struct Direct {
    link: Arc<Link>,
    path: PathBuf,
    idle: Mutex<Vec<Socket>>,
}

/// A connection on which no request is in progress.
struct Socket {
    stream: UnixStream,
    /// How long a read or a write may take.
    patience: Duration,
    buffer: Vec<u8>,
}

/// The head of a reply.
struct Head {
    response: Response<()>,
    /// How many bytes it has.
    bytes: usize,
    /// How many bytes follow it.
    length: usize,
}

impl Direct {
    /// Sockets to the server of this link. `None` if it is not on a Unix socket.
    pub(super) fn new(link: &Arc<Link>) -> Option<Self> {
        match link.endpoint() {
            Endpoint::Unix { path } => {
                Some(Self { link: Arc::clone(link), path: path.clone(), idle: Mutex::default() })
            }
            Endpoint::Tcp { .. } => None,
        }
    }

    /// Sends a request that changes something, as [`Link::write`] does. `None` if this thread must not block.
    pub(super) fn write<R: Message>(
        &self,
        name: &str,
        body: &[u8],
        until: Instant,
    ) -> Option<Result<R, Unanswered>> {
        // A thread that belongs to a runtime must not keep its other tasks waiting.
        if Handle::try_current().is_ok() {
            return None;
        }
        let mut pause = PAUSES.0;
        loop {
            let why = match self.send(name, body, until) {
                Ok(bytes) => return Some(self.link.decode(&bytes).map_err(Unanswered::Error)),
                Err(SendError::Final(error)) => return Some(Err(Unanswered::Error(error))),
                Err(SendError::MaybeSent(why)) => return Some(Err(Unanswered::Lost(why))),
                Err(SendError::NotSent(why)) => why,
            };
            if Instant::now() + pause >= until {
                return Some(Err(Unanswered::Error(self.link.unavailable(&why))));
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Sends a request once, and returns the message of its reply.
    fn send(&self, name: &str, body: &[u8], until: Instant) -> Result<Bytes, SendError> {
        let not_sent = |error: io::Error| SendError::NotSent(error.to_string());
        let maybe_sent = |error: io::Error| SendError::MaybeSent(error.to_string());
        let head = self.link.head(name, body.len());
        let (mut socket, sent) = loop {
            let idle = self.idle().pop();
            let is_idle = idle.is_some();
            let mut socket = match idle {
                Some(socket) => socket,
                None => self.connect(until).map_err(not_sent)?,
            };
            socket.wait_until(until).map_err(not_sent)?;
            let sent = Sent::now();
            match socket.request(&head, body) {
                Ok(()) => break (socket, sent),
                // The server has closed it since its last reply. Such a socket takes nothing.
                Err((0, _)) if is_idle && Instant::now() < until => {}
                Err((0, error)) => return Err(not_sent(error)),
                Err((_, error)) => return Err(maybe_sent(error)),
            }
        };
        let (response, is_kept) = socket.reply().map_err(maybe_sent)?;
        let mut idle = self.idle();
        if is_kept && idle.len() < MAX_IDLE {
            idle.push(socket);
        }
        drop(idle);
        self.link.interpret(response, sent)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Socket>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection. A server that is stopped accepts none, so this has a time limit.
    fn connect(&self, until: Instant) -> io::Result<Socket> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let stream = runtime.block_on(async {
            let until = until.min(Instant::now() + CONNECT);
            let connected = timeout_at(until.into(), tokio::net::UnixStream::connect(&self.path)).await;
            connected.map_err(|_| io::Error::other("it does not accept connections"))??.into_std()
        })?;
        stream.set_nonblocking(false)?;
        Ok(Socket { stream, patience: Duration::MAX, buffer: Vec::with_capacity(PIECE) })
    }
}

impl Socket {
    /// Limits the time of the next reads and writes. Each limit is a system call, so one that is a little longer stays.
    fn wait_until(&mut self, until: Instant) -> io::Result<()> {
        let left = until.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        if self.patience < left || self.patience > left + left / 8 {
            self.stream.set_read_timeout(Some(left + left / 16))?;
            self.stream.set_write_timeout(Some(left + left / 16))?;
            self.patience = left + left / 16;
        }
        Ok(())
    }

    /// Writes a request. The error says how many bytes were written before it.
    fn request(&mut self, head: &[u8], body: &[u8]) -> Result<(), (usize, io::Error)> {
        self.buffer.clear();
        self.buffer.extend_from_slice(head);
        self.buffer.extend_from_slice(body);
        let mut written = 0;
        while written < self.buffer.len() {
            match self.stream.write(&self.buffer[written..]) {
                Ok(0) => return Err((written, ErrorKind::WriteZero.into())),
                Ok(count) => written += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err((written, error)),
            }
        }
        Ok(())
    }

    /// Reads a reply, and whether the connection can be used again.
    fn reply(&mut self) -> io::Result<(Response<Bytes>, bool)> {
        self.buffer.clear();
        let head = loop {
            if self.read()? == 0 {
                return Err(io::Error::other("the connection was closed before a reply arrived"));
            }
            if let Some(head) = parse(&self.buffer)? {
                break head;
            }
            if self.buffer.len() > MAX_HEAD {
                return Err(io::Error::other("its reply has a head that is too long"));
            }
        };
        let end = head.bytes + head.length;
        while self.buffer.len() < end {
            if self.read()? == 0 {
                return Err(io::Error::other("its reply broke off"));
            }
        }
        let body = Bytes::copy_from_slice(&self.buffer[head.bytes..end]);
        let closes = head.response.headers().get(CONNECTION).is_some_and(|value| value != "keep-alive");
        // What follows the reply is not ours.
        let is_kept = self.buffer.len() == end && !closes;
        if self.buffer.capacity() > MAX_HEAD {
            self.buffer = Vec::with_capacity(PIECE);
        }
        Ok((head.response.map(|()| body), is_kept))
    }

    fn read(&mut self) -> io::Result<usize> {
        let begun = self.buffer.len();
        self.buffer.resize(begun + PIECE, 0);
        let read = loop {
            match self.stream.read(&mut self.buffer[begun..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    break Err(io::Error::other("it did not answer in time"));
                }
                read => break read,
            }
        };
        self.buffer.truncate(begun + read.as_ref().map_or(0, |read| *read));
        read
    }
}

/// The head of a reply, if it is complete. A reply of the server has a length.
fn parse(bytes: &[u8]) -> io::Result<Option<Head>> {
    let damaged = |what: &str| io::Error::other(format!("its reply cannot be read: {what}"));
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut parsed = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(count) =
        parsed.parse(bytes).map_err(|error| damaged(&error.to_string()))?
    else {
        return Ok(None);
    };
    let mut response = Response::new(());
    let status = parsed.code.and_then(|code| StatusCode::from_u16(code).ok());
    *response.status_mut() = status.ok_or_else(|| damaged("it has no status"))?;
    for header in parsed.headers.iter() {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| damaged("a header"))?;
        let value = HeaderValue::from_bytes(header.value).map_err(|_| damaged("a header"))?;
        response.headers_mut().append(name, value);
    }
    let mut lengths = response.headers().get_all(CONTENT_LENGTH).iter();
    let length = lengths.next().and_then(|length| length.to_str().ok()?.parse().ok());
    match (length, lengths.next()) {
        (Some(length), None) => Ok(Some(Head { response, bytes: count, length })),
        (Some(_) | None, _) => Err(damaged("it has no length")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_read_when_its_head_is_complete() {
        let reply = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nonce-now: 7\r\n\r\nhello";
        for cut in 0..reply.len() - 5 {
            assert!(parse(&reply[..cut]).unwrap().is_none(), "{cut}");
        }
        let head = parse(reply).unwrap().unwrap();
        assert_eq!(
            (head.response.status(), head.length, &reply[head.bytes..]),
            (StatusCode::OK, 5, &b"hello"[..])
        );
        assert_eq!(head.response.headers()["once-now"], "7");
        for damaged in [
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            "nonsense\r\n\r\n",
        ] {
            assert!(parse(damaged.as_bytes()).is_err(), "{damaged}");
        }
    }

    #[test]
    fn a_socket_reads_one_reply_and_tells_whether_it_can_be_used_again() {
        for (reply, is_kept) in [
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", true),
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok", false),
            ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok and more", false),
        ] {
            let (stream, mut server) = UnixStream::pair().unwrap();
            let mut socket = Socket { stream, patience: Duration::MAX, buffer: Vec::new() };
            socket.request(b"head ", b"body").unwrap();
            let mut seen = [0; 9];
            server.read_exact(&mut seen).unwrap();
            assert_eq!(&seen, b"head body");
            server.write_all(reply.as_bytes()).unwrap();
            let (answer, kept) = socket.reply().unwrap();
            assert_eq!((&answer.body()[..], kept), (&b"ok"[..], is_kept), "{reply}");
            drop(server);
            let (written, _) = socket.request(b"head ", b"body").unwrap_err();
            assert_eq!(written, 0, "the server has closed it, so nothing was sent");
        }
    }

    #[test]
    fn a_server_that_does_not_answer_is_not_waited_for_longer_than_allowed() {
        let (stream, _server) = UnixStream::pair().unwrap();
        let mut socket = Socket { stream, patience: Duration::MAX, buffer: Vec::new() };
        socket.wait_until(Instant::now() + Duration::from_millis(50)).unwrap();
        assert!(socket.reply().is_err_and(|error| error.to_string().contains("in time")));
    }
}
