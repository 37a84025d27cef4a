//! Request bodies: read within limits, kept in memory or a temporary file, and sent any number of times.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, StreamBody};
use hyper::HeaderMap;
use hyper::body::{Body as _, Frame};
use hyper::header;
use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use crate::client::{self, Broken};
use crate::locks::lock;

/// Larger bodies are written to a temporary file, and their content is not parsed.
const MAX_MEMORY: usize = 1024 * 1024;
/// The pieces in which a file is sent.
const PIECE: usize = 64 * 1024;

/// A complete request body.
#[derive(Clone)]
pub(crate) struct Payload {
    pub(crate) content: Content,
    trailers: Option<HeaderMap>,
}

#[derive(Clone)]
pub(crate) enum Content {
    Memory(Bytes),
    Spooled { file: Arc<Mutex<File>>, bytes: u64, sha256: [u8; 32] },
}

/// Why a body was not read. Nothing has been sent.
#[derive(Debug)]
pub(crate) enum Unread {
    /// It is longer than this.
    TooLarge(u64),
    /// It broke off, or could not be written to a file.
    Broken(String),
}

impl Payload {
    /// Reads a body of at most `max` bytes.
    pub(crate) async fn read(mut body: axum::body::Body, max: u64) -> Result<Self, Unread> {
        if body.size_hint().lower() > max {
            return Err(Unread::TooLarge(max));
        }
        let mut memory = BytesMut::new();
        let mut spool: Option<Spool> = None;
        let mut trailers = None;
        let mut total = 0_u64;
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Unread::Broken(client::in_words(&error)))?;
            let data = match frame.into_data() {
                Ok(data) => data,
                Err(frame) => {
                    trailers = frame.into_trailers().ok();
                    continue;
                }
            };
            total += data.len() as u64;
            if total > max {
                return Err(Unread::TooLarge(max));
            }
            if spool.is_none() && memory.len() + data.len() <= MAX_MEMORY {
                memory.extend_from_slice(&data);
                continue;
            }
            let mut next = match spool.take() {
                Some(spool) => spool,
                None => Spool::new(std::mem::take(&mut memory).freeze()).await?,
            };
            next.push(data).await?;
            spool = Some(next);
        }
        let content = match spool {
            None => Content::Memory(memory.freeze()),
            Some(spool) => Content::Spooled {
                sha256: spool.hash.finalize().into(),
                file: Arc::new(Mutex::new(spool.file)),
                bytes: total,
            },
        };
        Ok(Self { content, trailers })
    }

    /// A body of these bytes.
    pub(crate) fn memory(content: Bytes) -> Self {
        Self { content: Content::Memory(content), trailers: None }
    }

    /// The same request with other content.
    pub(crate) fn with(&self, content: Bytes) -> Self {
        Self { content: Content::Memory(content), trailers: self.trailers.clone() }
    }

    /// The content, if it is in memory.
    pub(crate) fn bytes(&self) -> Option<&Bytes> {
        match &self.content {
            Content::Memory(bytes) => Some(bytes),
            Content::Spooled { .. } => None,
        }
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> u64 {
        match &self.content {
            Content::Memory(bytes) => bytes.len() as u64,
            Content::Spooled { bytes, .. } => *bytes,
        }
    }

    /// Says in the headers of a request how its body is sent. Only a body in chunks can have trailers.
    pub(crate) fn frame(&self, headers: &mut HeaderMap) {
        match self.trailers {
            None => drop(headers.insert(header::CONTENT_LENGTH, self.len().into())),
            Some(_) => drop(headers.remove(header::CONTENT_LENGTH)),
        }
    }

    /// The body for one more request.
    pub(crate) fn body(&self) -> client::Body {
        let trailers = self.trailers.clone();
        match &self.content {
            Content::Memory(bytes) if trailers.is_none() => client::full(bytes.clone()),
            Content::Memory(bytes) => {
                let frames = [Some(Frame::data(bytes.clone())), trailers.map(Frame::trailers)];
                stream(frames.into_iter().flatten().map(Ok).collect())
            }
            Content::Spooled { file, bytes, .. } => from_file(Arc::clone(file), *bytes, trailers),
        }
    }
}

fn stream(frames: Vec<Result<Frame<Bytes>, Broken>>) -> client::Body {
    let mut frames = frames.into_iter();
    client::Body::new(StreamBody::new(futures_util::stream::poll_fn(move |_| {
        std::task::Poll::Ready(frames.next())
    })))
}

/// Reads the file in pieces, each as soon as the one before it was taken.
fn from_file(file: Arc<Mutex<File>>, bytes: u64, trailers: Option<HeaderMap>) -> client::Body {
    let (sender, mut receiver) = mpsc::channel::<Result<Frame<Bytes>, Broken>>(1);
    tokio::task::spawn_blocking(move || {
        let mut at = 0;
        while at < bytes {
            let mut piece = vec![0; PIECE];
            let read = {
                let mut file = lock(&file);
                file.seek(SeekFrom::Start(at)).and_then(|_| file.read(&mut piece))
            };
            let frame = match read {
                Ok(0) => Err(Broken("the temporary file is too short".to_owned())),
                Ok(read) => {
                    piece.truncate(read);
                    at += read as u64;
                    Ok(Frame::data(Bytes::from(piece)))
                }
                Err(error) => Err(Broken(format!("the temporary file cannot be read: {error}"))),
            };
            let is_end = frame.is_err();
            // If the request is over, the rest is not needed.
            if sender.blocking_send(frame).is_err() || is_end {
                return;
            }
        }
        if let Some(trailers) = trailers {
            // The request may be over; then it needs no trailers.
            drop(sender.blocking_send(Ok(Frame::trailers(trailers))));
        }
    });
    client::Body::new(StreamBody::new(futures_util::stream::poll_fn(move |context| {
        receiver.poll_recv(context)
    })))
}

/// A temporary file without a name, and the hash of what was written to it.
struct Spool {
    file: File,
    hash: Sha256,
}

impl Spool {
    async fn new(begun: Bytes) -> Result<Self, Unread> {
        let file = blocking(tempfile::tempfile).await?;
        let mut spool = Self { file, hash: Sha256::new() };
        spool.push(begun).await?;
        Ok(spool)
    }

    async fn push(&mut self, data: Bytes) -> Result<(), Unread> {
        self.hash.update(&data);
        let mut file = self.file.try_clone().map_err(unwritten)?;
        blocking(move || file.write_all(&data)).await
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, Unread> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result.map_err(unwritten),
        Err(stopped) => Err(Unread::Broken(stopped.to_string())),
    }
}

fn unwritten(error: std::io::Error) -> Unread {
    Unread::Broken(format!("the body cannot be written to a temporary file: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(body: Vec<u8>, max: u64) -> Result<Payload, Unread> {
        Payload::read(axum::body::Body::from(body), max).await
    }

    #[tokio::test]
    async fn large_bodies_are_spooled_and_can_be_sent_again() {
        let large: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[0]).collect();
        let payload = read(large.clone(), 4_000_000).await.unwrap();
        assert!(payload.bytes().is_none() && payload.len() == 3_000_000);
        for _ in 0..2 {
            assert_eq!(payload.body().collect().await.unwrap().to_bytes(), large);
        }
        let small = read(b"abc".to_vec(), 3).await.unwrap();
        assert_eq!(small.body().collect().await.unwrap().to_bytes(), "abc");
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused() {
        for size in [4, 2_000_000] {
            assert!(matches!(read(vec![0; size], 3).await, Err(Unread::TooLarge(3))));
        }
        let chunks = [Ok::<_, std::io::Error>(Bytes::from_static(b"ab")), Ok(Bytes::from_static(b"cd"))];
        let body = axum::body::Body::from_stream(futures_util::stream::iter(chunks));
        assert!(matches!(Payload::read(body, 3).await, Err(Unread::TooLarge(3))));
    }
}
