//! A relay between clients and a server on this machine, for what networks do: partitions, resets, lost replies.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt};

use crate::home::{self, must};

/// How soon a change of mind is seen by those who wait for bytes.
const GLANCE: Duration = Duration::from_millis(5);

/// A listener on a free port whose connections go on to a server, as long as they are let.
#[derive(Debug)]
pub struct Relay {
    port: u16,
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
    replies_dropped: AtomicUsize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Open,
    /// Connections stay and nothing passes.
    Stalled,
    /// Connections are reset, new ones refused.
    Cut,
    /// The relay is gone.
    Over,
}

/// Which way a stream of bytes goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Request,
    Reply,
}

impl Relay {
    /// A relay to a server's port.
    #[must_use]
    pub fn to(port: u16) -> Self {
        let own = home::free_port();
        let shared = Arc::new(Shared {
            target: AtomicU16::new(port),
            mode: Mutex::new(Mode::Open),
            listener: Mutex::new(Some(listen(own))),
            connections: AtomicUsize::new(0),
            drop_next_reply: AtomicBool::new(false),
            replies_dropped: AtomicUsize::new(0),
        });
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || accept(&accepting));
        Self { port: own, shared }
    }

    /// Where it listens.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// From now on new connections go to this port.
    pub fn aim_at(&self, port: u16) {
        self.shared.target.store(port, Ordering::SeqCst);
    }

    /// Resets all connections and refuses new ones. Returns when none is left.
    pub fn cut(&self) {
        self.shared.set(Mode::Cut);
        *self.shared.listener() = None;
        home::wait_until("the connections are cut", || self.connections() == 0);
    }

    /// Keeps all connections and lets nothing pass, as in a partition. New ones are taken and get no answer.
    pub fn stall(&self) {
        self.shared.set(Mode::Stalled);
    }

    /// Lets everything pass again.
    pub fn mend(&self) {
        self.shared.listener().get_or_insert_with(|| listen(self.port));
        self.shared.set(Mode::Open);
    }

    /// Lets requests pass and resets the connection instead of the next reply: it is lost, what it tells of is not.
    pub fn drop_replies_once(&self) {
        self.shared.drop_next_reply.store(true, Ordering::SeqCst);
    }

    /// How many replies were lost.
    #[must_use]
    pub fn replies_dropped(&self) -> usize {
        self.shared.replies_dropped.load(Ordering::SeqCst)
    }

    /// How many connections there are now.
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

    /// Waits while nothing may pass; tells whether the connection goes on.
    fn may_pass(&self, connection: &Connection) -> bool {
        loop {
            if connection.reset.load(Ordering::SeqCst) {
                return false;
            }
            match self.mode() {
                Mode::Open => return true,
                Mode::Stalled => std::thread::sleep(GLANCE),
                Mode::Cut | Mode::Over => return false,
            }
        }
    }
}

/// A connection of a client and the one that goes on from it. Both ways end before it is closed.
struct Connection {
    client: TcpStream,
    server: TcpStream,
    reset: AtomicBool,
}

fn listen(port: u16) -> TcpListener {
    // Somebody else may be trying just now whether the port is free.
    let mut bound = None;
    home::wait_until("the relay can listen", || {
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

/// Connects the client with the server; without one the client is reset.
fn pass_on(shared: &Arc<Shared>, client: TcpStream) {
    reset_when_closed(&client);
    let target = shared.target.load(Ordering::SeqCst);
    let Ok(server) = TcpStream::connect(("127.0.0.1", target)) else { return };
    for stream in [&client, &server] {
        let ready = stream
            .set_nonblocking(false)
            .and_then(|()| stream.set_nodelay(true))
            .and_then(|()| stream.set_read_timeout(Some(GLANCE)))
            .and_then(|()| stream.set_write_timeout(Some(GLANCE)));
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
            scope.spawn(|| carry(&shared, &connection, Way::Request));
            carry(&shared, &connection, Way::Reply);
        });
        drop(connection);
        shared.connections.fetch_sub(1, Ordering::SeqCst);
    });
}

/// Closed without a farewell: the other side sees a reset.
fn reset_when_closed(stream: &TcpStream) {
    let now = nix::libc::linger { l_onoff: 1, l_linger: 0 };
    // A stream that is gone already needs none.
    drop(setsockopt(stream, sockopt::Linger, &now).map_err(std::io::Error::from));
}

/// Carries bytes one way until an end of the connection, or of the relay.
fn carry(shared: &Shared, connection: &Connection, way: Way) {
    let (mut from, mut to) = match way {
        Way::Request => (&connection.client, &connection.server),
        Way::Reply => (&connection.server, &connection.client),
    };
    let mut buffer = [0; 16 * 1024];
    while shared.may_pass(connection) {
        let read = match from.read(&mut buffer) {
            Ok(0) => {
                // The other way may still have something to say.
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
        if way == Way::Reply && shared.drop_next_reply.swap(false, Ordering::SeqCst) {
            shared.replies_dropped.fetch_add(1, Ordering::SeqCst);
            break;
        }
        if !write_all(shared, connection, &mut to, &buffer[..read]) {
            break;
        }
    }
    connection.reset.store(true, Ordering::SeqCst);
}

/// Writes all of it, unless the connection is to end.
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
