//! Reads request bodies within limits: length, rate, and the memory of all of them.
//!
//! - `paced`: the limits of length and rate for a body that is passed on.

mod paced;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::Body as HttpBody;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::limits::Limits;
pub use paced::{Paced, PacedError};

/// A body up to this length needs no reservation, so that ordinary calls never wait for large ones. Their number is
/// bounded by the number of connections.
const SMALL: usize = 64 * 1024;
/// A body of unknown length reserves memory in steps of this size.
const STEP: usize = 1024 * 1024;
/// The unit of a reservation.
const UNIT: usize = 1024;
/// How long a large body waits for memory.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads request bodies.
pub struct Intake {
    most: usize,
    /// In each window `least` bytes must arrive, or the end.
    window: Duration,
    least: usize,
    room: Arc<Semaphore>,
}

/// Why a body was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// It is longer than the limit.
    TooLong,
    /// It did not arrive in time, or arrived too slowly.
    TooSlow,
    /// Other bodies take all of the memory.
    NoRoom,
    /// The connection broke, or the body was malformed.
    Broken(String),
}

/// A body with its reservation, which is released with the last reference.
struct Reserved {
    body: Vec<u8>,
    _room: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Reserved {
    fn as_ref(&self) -> &[u8] {
        &self.body
    }
}

/// A body that is being read.
struct Taking<'a> {
    intake: &'a Intake,
    most: usize,
    body: Vec<u8>,
    room: Option<OwnedSemaphorePermit>,
}

impl Intake {
    /// An intake with these limits.
    #[must_use]
    pub fn new(limits: &Limits) -> Self {
        let window = Duration::from_millis(limits.body_ms);
        let least = limits.body_rate.saturating_mul(limits.body_ms) / 1_000;
        Self {
            most: limits.body_bytes,
            window,
            least: usize::try_from(least).unwrap_or(usize::MAX).max(1),
            room: Arc::new(Semaphore::new((limits.bodies_bytes / UNIT).min(Semaphore::MAX_PERMITS))),
        }
    }

    /// The longest body, in bytes.
    #[must_use]
    pub fn most(&self) -> usize {
        self.most
    }

    /// Reads a whole body.
    ///
    /// # Errors
    /// Says which limit it exceeds.
    pub async fn whole<B>(&self, body: B) -> Result<Bytes, Refused>
    where
        B: HttpBody<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        self.whole_up_to(body, self.most).await
    }

    /// Reads a whole body that may be `most` bytes long, instead of the general limit.
    ///
    /// # Errors
    /// Says which limit it exceeds.
    pub async fn whole_up_to<B>(&self, body: B, most: usize) -> Result<Bytes, Refused>
    where
        B: HttpBody<Data = Bytes>,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let hint = body.size_hint();
        // If the declared length is too long, the client need not send the body.
        if hint.lower() > most as u64 {
            return Err(Refused::TooLong);
        }
        let known = hint.exact().and_then(|length| usize::try_from(length).ok());
        let room = match known.filter(|length| *length > SMALL) {
            Some(length) => Some(self.reserve(length).await?),
            None => None,
        };
        let mut taking = Taking { intake: self, most, body: Vec::with_capacity(known.unwrap_or(0)), room };
        let mut body = pin!(body);
        loop {
            let goal = taking.body.len().saturating_add(self.least);
            let window = async {
                while taking.body.len() < goal {
                    match body.frame().await {
                        Some(Ok(frame)) => taking.add(frame.data_ref().map_or(&[][..], |data| data))?,
                        Some(Err(error)) => return Err(Refused::Broken(error.into().to_string())),
                        None => return Ok(Next::End),
                    }
                }
                Ok(Next::More)
            };
            match timeout(self.window, window).await {
                Ok(Ok(Next::More)) => {}
                Ok(Ok(Next::End)) => return Ok(taking.end()),
                Ok(Err(refused)) => return Err(refused),
                Err(_) => return Err(Refused::TooSlow),
            }
        }
    }

    /// A body that is passed on as it arrives, at the same rate at least, and with at most `most` bytes.
    pub fn paced<B>(&self, body: B, most: u64) -> Paced<B> {
        Paced::new(body, self.window, self.least, most)
    }

    /// Reserves memory for a body of that length, all at once. Bodies that reserved in steps could wait for each
    /// other for ever.
    async fn reserve(&self, length: usize) -> Result<OwnedSemaphorePermit, Refused> {
        let room = Arc::clone(&self.room).acquire_many_owned(units(length));
        match timeout(PATIENCE, room).await {
            Ok(Ok(room)) => Ok(room),
            Ok(Err(_)) | Err(_) => Err(Refused::NoRoom),
        }
    }
}

enum Next {
    More,
    End,
}

impl Taking<'_> {
    fn add(&mut self, data: &[u8]) -> Result<(), Refused> {
        let length = self.body.len() + data.len();
        if length > self.most {
            return Err(Refused::TooLong);
        }
        while length > SMALL && length > self.room.as_ref().map_or(0, |room| room.num_permits() * UNIT) {
            let more = Arc::clone(&self.intake.room).try_acquire_many_owned(units(STEP));
            let more = more.map_err(|_| Refused::NoRoom)?;
            match &mut self.room {
                Some(room) => room.merge(more),
                None => self.room = Some(more),
            }
        }
        self.body.extend_from_slice(data);
        Ok(())
    }

    fn end(self) -> Bytes {
        match self.room {
            Some(room) => Bytes::from_owner(Reserved { body: self.body, _room: room }),
            None => self.body.into(),
        }
    }
}

fn units(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{StreamExt, stream};
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;

    use super::*;

    fn intake() -> Intake {
        Intake::new(&Limits {
            body_bytes: 3 << 20,
            bodies_bytes: 4 << 20,
            body_ms: 200,
            body_rate: 10_000,
            ..Limits::default()
        })
    }

    fn on_runtime<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
    }

    fn of(length: usize) -> Full<Bytes> {
        Full::new(vec![b'x'; length].into())
    }

    /// An endless body: `count` pieces of `length` bytes with pauses, then nothing.
    fn pieces(count: usize, length: usize, pause_ms: u64) -> impl HttpBody<Data = Bytes, Error = Infallible> {
        let some = stream::iter(0..count).then(move |_| async move {
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            Ok::<_, Infallible>(Frame::data(Bytes::from(vec![b'x'; length])))
        });
        StreamBody::new(some.chain(stream::pending()))
    }

    #[test]
    fn large_bodies_share_memory_and_small_ones_need_no_reservation() {
        on_runtime(async {
            let intake = intake();
            let first = intake.whole(of(3 << 20)).await.unwrap();
            let copy = first.clone();
            drop(first);
            assert_eq!(intake.room.available_permits(), 1024, "it is held as long as it is used");
            assert_eq!(intake.whole(of(SMALL)).await.unwrap().len(), SMALL);
            assert_eq!(intake.room.available_permits(), 1024);
            // A body of unknown length reserves memory as it arrives.
            let chunked = StreamBody::new(stream::iter(
                (0..3).map(|_| Ok::<_, Infallible>(Frame::data(vec![0; 1 << 20].into()))),
            ));
            assert_eq!(intake.whole(chunked).await, Err(Refused::NoRoom));
            assert_eq!(intake.room.available_permits(), 1024, "what was refused takes none");
            drop(copy);
            assert_eq!(intake.whole(of(3 << 20)).await.unwrap().len(), 3 << 20);
            assert_eq!(intake.whole(of((3 << 20) + 1)).await, Err(Refused::TooLong));
            assert_eq!(intake.room.available_permits(), 4096);
        });
    }

    #[test]
    fn a_body_must_arrive_at_a_minimum_rate() {
        on_runtime(async {
            // 1,000 bytes per 20 ms are 50,000 per second; 100 bytes are 5,000.
            let steady = intake().whole(pieces(30, 1_000, 20)).await;
            assert_eq!(steady, Err(Refused::TooSlow), "it does not end");
            // It does not get more time by what it sends, so this ends.
            assert_eq!(intake().whole(pieces(usize::MAX, 100, 20)).await, Err(Refused::TooSlow));
        });
    }
}
