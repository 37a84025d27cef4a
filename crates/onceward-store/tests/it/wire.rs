//! A relay that counts what callers ask a PostgreSQL server for: each execution of a function of the ledger is one
//! round trip. What the store asks for its own sake (the clock, whether notifications arrive, tallies)
//! does not count.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) struct Wire {
    port: u16,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    asked: AtomicUsize,
    checked: AtomicUsize,
}

impl Wire {
    pub(crate) fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let counts = Arc::new(Counts::default());
        let kept = Arc::clone(&counts);
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let there = TcpStream::connect(("127.0.0.1", server)).unwrap();
                client.set_nodelay(true).unwrap();
                there.set_nodelay(true).unwrap();
                let (mut from, mut to) = (there.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || drop(std::io::copy(&mut from, &mut to)));
                let counts = Arc::clone(&counts);
                std::thread::spawn(move || drop(pass(client, there, &counts)));
            }
        });
        Self { port, counts: kept }
    }

    /// A URL of the server through this relay, without TLS.
    pub(crate) fn through(&self, server: u16, url: &str) -> String {
        let (here, there) = (format!(":{}/", self.port), format!(":{server}/"));
        format!("{}&sslmode=disable", url.replace(&there, &here))
    }

    /// The number of requests so far.
    pub(crate) fn asked(&self) -> usize {
        self.counts.asked.load(Ordering::SeqCst)
    }

    /// How often the clock was read, by which a store checks its listening connection.
    pub(crate) fn checked(&self) -> usize {
        self.counts.checked.load(Ordering::SeqCst)
    }

    /// The number of requests while this ran.
    pub(crate) fn asked_by<T>(&self, work: impl FnOnce() -> T) -> (usize, T) {
        let before = self.asked();
        let done = work();
        (self.asked() - before, done)
    }
}

/// The functions that answer a caller, as statements name them.
const FOR_CALLERS: [&str; 4] = ["\".swap(", "\".load(", "\".watch(", "\".remove("];

/// Forwards messages and counts executions. The first message of a connection has no tag.
fn pass(mut client: TcpStream, mut server: TcpStream, counts: &Counts) -> std::io::Result<()> {
    let (mut prepared, mut bound) = (HashMap::new(), String::new());
    let mut tag = Vec::new();
    loop {
        let mut length = [0_u8; 4];
        client.read_exact(&mut length)?;
        let mut rest = vec![0_u8; usize::try_from(u32::from_be_bytes(length)).unwrap() - 4];
        client.read_exact(&mut rest)?;
        match tag.first() {
            // A statement's name and text; a portal's and a statement's name.
            Some(b'P') => drop(prepared.insert(word(&rest, 0), word(&rest, 1))),
            Some(b'B') => bound = prepared.get(&word(&rest, 1)).cloned().unwrap_or_default(),
            Some(b'E') if FOR_CALLERS.iter().any(|name| bound.contains(name)) => {
                counts.asked.fetch_add(1, Ordering::SeqCst);
            }
            Some(b'E') if bound.starts_with("SELECT floor(extract(epoch") => {
                counts.checked.fetch_add(1, Ordering::SeqCst);
            }
            _ => {}
        }
        server.write_all(&[tag.as_slice(), &length, &rest].concat())?;
        tag = vec![0];
        client.read_exact(&mut tag)?;
    }
}

/// The text at this place among those that a message begins with.
fn word(message: &[u8], place: usize) -> String {
    String::from_utf8_lossy(message.split(|byte| *byte == 0).nth(place).unwrap_or_default()).into_owned()
}
