//! A relay between clients and a server on this machine, for network faults: partitions, resets, lost replies.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

use crate::home::{self, Port, must};

/// How often blocked connections check for a change of mode.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A listener on a free port that forwards its connections to a server until it is cut.
#[derive(Debug)]
pub struct Relay {
    port: Port,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    target: AtomicU16,
    mode: Mutex<Mode>,
    /// `None` while new connections are refused.
    listener: Mutex<Option<TcpListener>>,
    connections: AtomicUsize,
    drop_next_reply: AtomicBool,
    stall_then: AtomicBool,
    replies_dropped: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Open,
    /// Connections stay open, and nothing passes.
    Stalled,
    /// Connections are reset, and new ones are refused.
    Cut,
    /// The relay was dropped.
    Over,
}

/// The direction of a stream of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Request,
    Reply,
}

impl Relay {
    /// A relay to a server's port.
    #[must_use]
    pub fn to(port: u16) -> Self {
        let own = home::reserve_port();
        let shared = Arc::new(Shared {
            target: AtomicU16::new(port),
            mode: Mutex::new(Mode::Open),
            listener: Mutex::new(Some(listen(own.number))),
            connections: AtomicUsize::new(0),
            drop_next_reply: AtomicBool::new(false),
            stall_then: AtomicBool::new(false),
            replies_dropped: AtomicUsize::new(0),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accept(&accepting));
        Self { port: own, shared }
    }

    /// The port that it listens on.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port.number
    }

    /// Forwards new connections to this port.
    pub fn aim_at(&self, port: u16) {
        self.shared.target.store(port, Ordering::SeqCst);
    }

    /// Resets all connections and refuses new ones. Returns when none is left.
    pub fn cut(&self) {
        self.shared.set(Mode::Cut);
        *self.shared.listener() = None;
        home::eventually("the connections are cut", || self.connections() == 0);
    }

    /// Keeps all connections and forwards nothing, as in a partition. New connections are accepted but get no answer.
    pub fn stall(&self) {
        self.shared.set(Mode::Stalled);
    }

    /// Forwards everything again.
    pub fn mend(&self) {
        self.shared.listener().get_or_insert_with(|| listen(self.port.number));
        self.shared.set(Mode::Open);
    }

    /// Forwards requests, and resets the connection instead of forwarding the next reply: the request is carried out,
    /// its reply is lost.
    pub fn drop_replies_once(&self) {
        self.shared.drop_next_reply.store(true, Ordering::SeqCst);
    }

    /// The same, and from then on nothing passes, until the relay is mended.
    pub fn drop_reply_and_stall(&self) {
        self.shared.stall_then.store(true, Ordering::SeqCst);
        self.drop_replies_once();
    }

    /// How many replies were dropped.
    #[must_use]
    pub fn replies_dropped(&self) -> usize {
        self.shared.replies_dropped.load(Ordering::SeqCst)
    }

    /// How many connections are open now.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.set(Mode::Over);
        *self.shared.listener() = None;
    }
}

impl Shared {
    fn mode(&self) -> Mode {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
    }

    fn listener(&self) -> std::sync::MutexGuard<'_, Option<TcpListener>> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while nothing may pass, and returns whether the connection continues.
    fn may_pass(&self, connection: &Connection) -> bool {
        loop {
            if connection.reset.load(Ordering::SeqCst) {
                return false;
            }
            match self.mode() {
                Mode::Open => return true,
                Mode::Stalled => std::thread::sleep(POLL_INTERVAL),
                Mode::Cut | Mode::Over => return false,
            }
        }
    }
}

/// A client's connection and the one to the server. Both directions end before it is closed.
struct Connection {
    client: TcpStream,
    server: TcpStream,
    reset: AtomicBool,
}

fn listen(port: u16) -> TcpListener {
    // Another process may be probing the port right now.
    let mut bound = None;
    home::eventually("the relay can listen", || {
        bound = TcpListener::bind(("127.0.0.1", port)).ok();
        bound.is_some()
    });
    let listener = must(bound.ok_or("its port is taken"), "the relay cannot listen");
    must(listener.set_nonblocking(true), "the relay cannot listen");
    listener
}

fn accept(shared: &Arc<Shared>) {
    while shared.mode() != Mode::Over {
        let accepted = shared.listener().as_ref().map(TcpListener::accept);
        match accepted {
            Some(Ok((client, _))) => pass_on(shared, client),
            Some(Err(_)) | None => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Connects the client with the server; if there is none, the client is reset.
fn pass_on(shared: &Arc<Shared>, client: TcpStream) {
    reset_when_closed(&client);
    let target = shared.target.load(Ordering::SeqCst);
    let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { return };
    for stream in [&client, &server] {
        let ready = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_nodelay(true))
            .and_then(|()| stream.set_read_timeout(Some(POLL_INTERVAL)))
            .and_then(|()| stream.set_write_timeout(Some(POLL_INTERVAL)));
        if ready.is_err() {
            return;
        }
    }
    reset_when_closed(&server);
    shared.connections.fetch_add(1, Ordering::SeqCst);
    let connection = Connection { client, server, reset: AtomicBool::new(false) };
    let shared = Arc::clone(shared);
    std::thread::spawn(move || {
        std::thread::scope(|scope| {
            scope.spawn(|| carry(&shared, &connection, Direction::Request));
            carry(&shared, &connection, Direction::Reply);
        });
        drop(connection);
        shared.connections.fetch_sub(1, Ordering::SeqCst);
    });
}

/// Makes the stream send a reset when it is closed.
fn reset_when_closed(stream: &TcpStream) {
    let now = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    // A closed stream needs no reset.
    drop(setsockopt(stream, sockopt::Linger, &now).map_err(std::io::Error::from));
}

/// Forwards bytes in one direction until the connection or the relay ends.
fn carry(shared: &Shared, connection: &Connection, way: Direction) {
    let (mut from, mut to) = match way {
        Direction::Request => (&connection.client, &connection.server),
        Direction::Reply => (&connection.server, &connection.client),
    };
    let mut buffer = [0; 16 * 1024];
    while shared.may_pass(connection) {
        let read = match from.read(&mut buffer) {
            Ok(0) => {
                // The other direction may still have data.
                drop(to.shutdown(std::net::Shutdown::Write));
                return;
            }
            Ok(read) => read,
            Err(error) if is_pause(&error) => continue,
            Err(_) => break,
        };
        if !shared.may_pass(connection) {
            break;
        }
        if way == Direction::Reply && shared.drop_next_reply.swap(false, Ordering::SeqCst) {
            if shared.stall_then.swap(false, Ordering::SeqCst) {
                shared.set(Mode::Stalled);
            }
            shared.replies_dropped.fetch_add(1, Ordering::SeqCst);
            break;
        }
        if !write_all(shared, connection, &mut to, &buffer[..read]) {
            break;
        }
    }
    connection.reset.store(true, Ordering::SeqCst);
}

/// Writes all bytes, unless the connection is to end.
fn write_all(shared: &Shared, connection: &Connection, to: &mut &TcpStream, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if is_pause(&error) => {
                if !shared.may_pass(connection) {
                    return false;
                }
            }
            Err(_) => return false,
        }
    }
    true
}

fn is_pause(error: &std::io::Error) -> bool {
    [ErrorKind::WouldBlock, ErrorKind::TimedOut, ErrorKind::Interrupted].contains(&error.kind())
}
