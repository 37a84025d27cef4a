//! A body that keeps a value for as long as it is sent.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// A body, and a value that is dropped after it.
pub struct Guarded<B, T> {
    body: B,
    _value: T,
}

impl<B, T> Guarded<B, T> {
    pub(crate) fn with(body: B, value: T) -> Self {
        Self { body, _value: value }
    }
}

impl<B: HttpBody<Data = Bytes> + Unpin, T: Unpin> HttpBody for Guarded<B, T> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
