//! A server that keeps everything it is sent: an upstream of the gateway, or a collector of traces.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// The server. Its thread ends with the test's process.
pub(crate) struct Recorder {
    pub(crate) port: u16,
    heard: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Recorder {
    /// A server that adds `headers` to every answer, and writes `body` and the number of the request into it.
    ///
    /// The path chooses the answer: `/rejected` is a 422, `/broken` a 500, `/cut` breaks off in the middle of its
    /// body, `/reset` has no answer, and everything else is a 200.
    pub(crate) fn start(headers: &'static str, body: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let heard: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
        let kept = Arc::clone(&heard);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                std::thread::spawn(move || while answer(&stream, &kept, headers, body).is_some() {});
            }
        });
        Self { port, heard }
    }

    /// Every request, with its head and its body.
    pub(crate) fn heard(&self) -> Vec<Vec<u8>> {
        self.heard.lock().unwrap().clone()
    }

    /// How many requests have this text in their first line.
    pub(crate) fn count(&self, text: &str) -> usize {
        let first = |request: &Vec<u8>| {
            let line = request.split(|byte| *byte == b'\n').next().unwrap_or_default();
            String::from_utf8_lossy(line).contains(text)
        };
        self.heard().iter().filter(|request| first(request)).count()
    }
}

/// Reads one request and answers it. `None` at the end of the connection.
fn answer(mut stream: &TcpStream, kept: &Mutex<Vec<Vec<u8>>>, headers: &str, body: &str) -> Option<()> {
    let request = request(stream)?;
    let line = String::from_utf8_lossy(&request).lines().next()?.to_owned();
    let number = {
        let mut kept = kept.lock().unwrap();
        kept.push(request);
        kept.len()
    };
    let body = format!("{{\"secret\":\"{body}\",\"number\":{number}}}");
    let (status, length) = match line.as_str() {
        line if line.contains("/reset") => return None,
        line if line.contains("/rejected") => ("422 Unprocessable Content", body.len()),
        line if line.contains("/broken") => ("500 Internal Server Error", body.len()),
        line if line.contains("/cut") => ("200 OK", body.len() + 100),
        _ => ("200 OK", body.len()),
    };
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n{headers}\r\n");
    stream.write_all(format!("{head}{body}").as_bytes()).ok()?;
    (length == body.len()).then_some(())
}

/// A request with a length or in chunks, as it was sent.
fn request(stream: &TcpStream) -> Option<Vec<u8>> {
    let mut reader = BufReader::with_capacity(1, stream);
    let (mut all, mut length, mut chunked) = (Vec::new(), 0, false);
    loop {
        let mut line = Vec::new();
        if reader.read_until(b'\n', &mut line).ok()? == 0 {
            return None;
        }
        let text = String::from_utf8_lossy(&line).to_ascii_lowercase();
        if let Some(value) = text.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        chunked |= text.starts_with("transfer-encoding:") && text.contains("chunked");
        all.extend_from_slice(&line);
        if line == b"\r\n" {
            break;
        }
    }
    while chunked {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let size = u64::from_str_radix(line.trim(), 16).ok()?;
        (&mut reader).take(size + 2).read_to_end(&mut all).ok()?;
        chunked = size > 0;
    }
    reader.take(length).read_to_end(&mut all).ok()?;
    Some(all)
}
