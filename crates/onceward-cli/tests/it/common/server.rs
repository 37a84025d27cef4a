//! A server on this machine that counts the charges that really happen: one line in `runs` for each.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};

use super::{Bench, eventually};

/// The server. Its thread ends with the test's process.
pub(crate) struct Server {
    address: String,
}

impl Server {
    /// Counts in the folder of that bench.
    pub(crate) fn start(bench: &Bench) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let folder = bench.path("");
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let folder = folder.clone();
                std::thread::spawn(move || serve(stream, &folder));
            }
        });
        Self { address }
    }

    /// The address of a way to answer: `ok`, `hang`, `late`, `drop`, `error`, `redirect`.
    pub(crate) fn url(&self, way: &str) -> String {
        format!("http://{}/{way}", self.address)
    }

    /// The same without a scheme.
    pub(crate) fn bare(&self, way: &str) -> String {
        format!("{}/{way}", self.address)
    }
}

/// An address at which nothing listens.
pub(crate) fn closed() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

fn serve(stream: TcpStream, folder: &Path) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut first = String::new();
    let (mut line, mut length) = (String::new(), 0);
    while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if first.is_empty() {
            first.clone_from(&line);
        }
        line.clear();
    }
    reader.take(length).read_to_end(&mut Vec::new()).unwrap();
    let way = first.split(['/', ' ']).nth(2).unwrap_or_default().to_owned();
    if way == "late" {
        // The request is under way for longer than its client waits.
        eventually("the late request goes on", || folder.join("release").exists() || !folder.exists());
    }
    charge(&folder.join("runs"));
    match way.as_str() {
        "hang" => hang(stream),
        "drop" | "late" => {}
        "error" => answer(stream, "500 Internal Server Error", ""),
        "redirect" => {
            answer(stream, "307 Temporary Redirect", &format!("Location: http://{}/\r\n", closed()))
        }
        _ => answer(stream, "200 OK", ""),
    }
}

fn charge(file: &PathBuf) {
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(file).unwrap();
    file.write_all(b"charged\n").unwrap();
}

/// Keeps the connection until the client has gone.
fn hang(mut stream: TcpStream) {
    while stream.read(&mut [0; 64]).is_ok_and(|read| read > 0) {}
}

fn answer(mut stream: TcpStream, status: &str, header: &str) {
    let text =
        format!("HTTP/1.1 {status}\r\n{header}Content-Length: 8\r\nConnection: close\r\n\r\ncharged\n");
    // A client that has gone away misses its answer.
    drop(stream.write_all(text.as_bytes()));
}
