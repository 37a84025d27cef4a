//! A relay that counts the requests of a client to a PostgreSQL server: each `Sync` and each simple query is one
//! round trip.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) struct Wire {
    port: u16,
    asked: Arc<AtomicUsize>,
}

impl Wire {
    pub(crate) fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        std::thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                let there = TcpStream::connect(("127.0.0.1", server)).unwrap();
                client.set_nodelay(true).unwrap();
                there.set_nodelay(true).unwrap();
                let (mut from, mut to) = (there.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || drop(std::io::copy(&mut from, &mut to)));
                let count = Arc::clone(&count);
                std::thread::spawn(move || drop(pass(client, there, &count)));
            }
        });
        Self { port, asked }
    }

    /// A URL of the server through this relay, without TLS.
    pub(crate) fn through(&self, server: u16, url: &str) -> String {
        let (here, there) = (format!(":{}/", self.port), format!(":{server}/"));
        format!("{}&sslmode=disable", url.replace(&there, &here))
    }

    /// The number of requests so far.
    pub(crate) fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// The number of requests while this ran.
    pub(crate) fn asked_by<T>(&self, work: impl FnOnce() -> T) -> (usize, T) {
        let before = self.asked.load(Ordering::SeqCst);
        let done = work();
        (self.asked.load(Ordering::SeqCst) - before, done)
    }
}

/// Forwards messages and counts those that want a reply. The first message of a connection has no tag.
fn pass(mut client: TcpStream, mut server: TcpStream, count: &AtomicUsize) -> std::io::Result<()> {
    let mut tag = Vec::new();
    loop {
        let mut length = [0_u8; 4];
        client.read_exact(&mut length)?;
        let mut rest = vec![0_u8; usize::try_from(u32::from_be_bytes(length)).unwrap() - 4];
        client.read_exact(&mut rest)?;
        if matches!(tag.first(), Some(b'S' | b'Q')) {
            count.fetch_add(1, Ordering::SeqCst);
        }
        server.write_all(&[tag.as_slice(), &length, &rest].concat())?;
        tag = vec![0];
        client.read_exact(&mut tag)?;
    }
}
