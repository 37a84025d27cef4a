//! Bodies of requests and responses behind the layer.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use tokio::sync::mpsc;

use super::BoxError;

/// How many frames of a streamed response may wait for the client.
const WAITING: usize = 4;

/// The body of a request as the handler gets it: passed on, or read whole because it had a key.
#[derive(Debug)]
pub struct RequestBody<B>(Request<B>);

#[derive(Debug)]
enum Request<B> {
    Passed(Pin<Box<B>>),
    Whole(Full<Bytes>),
}

impl<B> RequestBody<B> {
    pub(super) fn passed(body: B) -> Self {
        Self(Request::Passed(Box::pin(body)))
    }

    pub(super) fn whole(body: Bytes) -> Self {
        Self(Request::Whole(Full::new(body)))
    }
}

impl<B: Body<Data = Bytes>> Body for RequestBody<B>
where
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Request::Passed(body) => body.as_mut().poll_frame(context).map_err(Into::into),
            Request::Whole(body) => Pin::new(body).poll_frame(context).map_err(|never| match never {}),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Request::Passed(body) => body.is_end_stream(),
            Request::Whole(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Request::Passed(body) => body.size_hint(),
            Request::Whole(body) => body.size_hint(),
        }
    }
}

/// The body of a response: the handler's own, recorded and whole, or recorded while it is streamed.
#[derive(Debug)]
pub struct ResponseBody<B>(Reply<B>);

#[derive(Debug)]
enum Reply<B> {
    Passed(Pin<Box<B>>),
    Whole(Full<Bytes>),
    /// The parts that are still to come, and how many bytes, if that is known.
    Streamed(mpsc::Receiver<Part>, SizeHint),
    /// A streamed response that has ended or broken off.
    Over,
}

/// A part of a streamed response.
#[derive(Debug)]
pub(super) enum Part {
    Frame(Frame<Bytes>),
    Broken(BoxError),
    End,
}

/// The writing end of a streamed response. Unless [`Part::End`] was sent, the response breaks off when this is dropped,
/// so that a client never takes a part for the whole.
pub(super) type Stream = mpsc::Sender<Part>;

impl<B> ResponseBody<B> {
    pub(super) fn passed(body: B) -> Self {
        Self(Reply::Passed(Box::pin(body)))
    }

    pub(super) fn whole(body: impl Into<Bytes>) -> Self {
        Self(Reply::Whole(Full::new(body.into())))
    }

    pub(super) fn streamed(size: SizeHint) -> (Stream, Self) {
        let (sender, receiver) = mpsc::channel(WAITING);
        (sender, Self(Reply::Streamed(receiver, size)))
    }

    /// A whole body that does not tell its size, as one that was streamed.
    pub(super) fn of_unknown_size(body: Bytes) -> Self {
        let (sender, streamed) = Self::streamed(SizeHint::default());
        for part in [Part::Frame(Frame::data(body)), Part::End] {
            // There is room for both.
            drop(sender.try_send(part));
        }
        streamed
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B>
where
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        match &mut self.0 {
            Reply::Passed(body) => body.as_mut().poll_frame(context).map_err(Into::into),
            Reply::Whole(body) => Pin::new(body).poll_frame(context).map_err(|never| match never {}),
            Reply::Streamed(parts, size) => {
                let next = match std::task::ready!(parts.poll_recv(context)) {
                    Some(Part::Frame(frame)) => {
                        let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                        if let Some(left) = size.exact() {
                            *size = SizeHint::with_exact(left.saturating_sub(length));
                        }
                        return Poll::Ready(Some(Ok(frame)));
                    }
                    Some(Part::End) => None,
                    Some(Part::Broken(error)) => Some(Err(error)),
                    None => Some(Err("the response broke off".into())),
                };
                self.0 = Reply::Over;
                Poll::Ready(next)
            }
            Reply::Over => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Reply::Passed(body) => body.is_end_stream(),
            Reply::Whole(body) => body.is_end_stream(),
            Reply::Streamed(..) => false,
            Reply::Over => true,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Reply::Passed(body) => body.size_hint(),
            Reply::Whole(body) => body.size_hint(),
            Reply::Streamed(_, size) => *size,
            Reply::Over => SizeHint::with_exact(0),
        }
    }
}
