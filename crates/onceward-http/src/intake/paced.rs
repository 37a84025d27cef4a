//! A body that is passed on as it arrives, and fails if its client is too slow.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use tokio::time::{Instant, Sleep};

/// Why a body ended early.
#[derive(Debug, thiserror::Error)]
pub enum PacedError {
    /// The client sent less than the rate.
    #[error("it did not arrive in time, or arrived too slowly")]
    TooSlow,
    /// The body is longer than its limit.
    #[error("it is longer than {0} bytes")]
    TooLong(u64),
    /// The connection broke, or the body was malformed.
    #[error(transparent)]
    Broken(Box<dyn std::error::Error + Send + Sync>),
}

/// A body of which `least` bytes, or the end, must arrive in each window. Only the time in which the client is waited
/// for counts: a reader may be as slow as it likes.
pub struct Paced<B> {
    body: B,
    window: Duration,
    least: usize,
    /// How many more bytes it may have, and how many it may have in all.
    left: u64,
    most: u64,
    /// What has arrived in this window, and how long it took.
    arrived: usize,
    waited: Duration,
    /// Since when the client is waited for, and until when.
    waiting: Option<(Instant, Pin<Box<Sleep>>)>,
}

impl<B> Paced<B> {
    pub(super) fn new(body: B, window: Duration, least: usize, most: u64) -> Self {
        let (arrived, waited, waiting) = (0, Duration::ZERO, None);
        Self { body, window, least, left: most, most, arrived, waited, waiting }
    }

    fn note(&mut self, bytes: usize) {
        if let Some((since, _)) = self.waiting.take() {
            self.waited += since.elapsed();
        }
        self.arrived += bytes;
        if self.arrived >= self.least {
            (self.arrived, self.waited) = (0, Duration::ZERO);
        }
    }
}

impl<B> Body for Paced<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = PacedError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, PacedError>>> {
        let this = &mut *self;
        match Pin::new(&mut this.body).poll_frame(context) {
            Poll::Ready(Some(Ok(frame))) => {
                let bytes = frame.data_ref().map_or(0, Bytes::len);
                this.note(bytes);
                match this.left.checked_sub(bytes as u64) {
                    Some(left) => this.left = left,
                    None => return Poll::Ready(Some(Err(PacedError::TooLong(this.most)))),
                }
                Poll::Ready(Some(Ok(frame)))
            }
            Poll::Ready(Some(Err(error))) => Poll::Ready(Some(Err(PacedError::Broken(error.into())))),
            Poll::Ready(None) => Poll::Ready(None),
            Poll::Pending => {
                let left = this.window.saturating_sub(this.waited);
                let (_, sleep) =
                    this.waiting.get_or_insert_with(|| (Instant::now(), Box::pin(tokio::time::sleep(left))));
                sleep.as_mut().poll(context).map(|()| Some(Err(PacedError::TooSlow)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::{BodyExt, StreamBody};

    use super::*;

    /// A body that sends a piece of that size after each pause.
    fn dripping(
        pieces: usize,
        size: usize,
        pause_ms: u64,
    ) -> impl Body<Data = Bytes, Error = std::io::Error> + Unpin {
        StreamBody::new(Box::pin(stream::unfold(0, move |sent| async move {
            if sent == pieces {
                return None;
            }
            tokio::time::sleep(Duration::from_millis(pause_ms)).await;
            Some((Ok(Frame::data(Bytes::from(vec![0; size]))), sent + 1))
        })))
    }

    #[tokio::test]
    async fn a_slow_client_is_refused_and_a_slow_reader_is_not() {
        let second = Duration::from_secs(1);
        let paced = |body| Paced::new(body, second, 100, 1_000);
        let slow = paced(dripping(50, 1, 50)).collect().await;
        assert!(matches!(slow, Err(PacedError::TooSlow)));
        let steady = paced(dripping(9, 100, 50)).collect().await;
        assert_eq!(steady.unwrap().to_bytes().len(), 900);
        let long = paced(dripping(11, 100, 1)).collect().await;
        assert!(matches!(long, Err(PacedError::TooLong(1_000))));
        let mut read_slowly = paced(dripping(30, 20, 1));
        let mut read = 0;
        while let Some(frame) = read_slowly.frame().await {
            read += frame.unwrap().into_data().unwrap().len();
            tokio::time::sleep(Duration::from_millis(60)).await;
        }
        assert_eq!(read, 600);
    }
}
