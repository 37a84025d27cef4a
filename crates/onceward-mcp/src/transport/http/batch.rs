//! JSON-RPC batches, which the first HTTP revision allows. A batch with tool calls is split, and its answers are sent
//! one by one.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::http::request::Parts;
use hyper::{Response, header};
use tokio::sync::mpsc;

use super::gate::Gate;
use super::headers::KEY;
use super::remote::full;
use super::{Body, Broken, reply};
use crate::wire::message::Head;
use onceward_http::events::{Event, Events};

/// How many chunks are queued for a client that reads slowly.
const PIECES: usize = 64;

type Pieces = mpsc::Sender<Result<Frame<Bytes>, Broken>>;

impl Gate {
    /// Answers each message of a batch separately, in one event stream.
    pub(crate) fn batch(self: &Arc<Self>, mut head: Parts, items: &[&str]) -> Response<Body> {
        head.headers.remove(header::CONTENT_LENGTH);
        // One key cannot identify several calls.
        head.headers.remove(KEY);
        let (sender, mut receiver) = mpsc::channel(PIECES);
        for item in items {
            let (gate, head, sender) = (Arc::clone(self), head.clone(), sender.clone());
            let item = Bytes::copy_from_slice(item.as_bytes());
            tokio::spawn(async move {
                tokio::select! {
                    () = gate.item(&head, item, &sender) => {}
                    // If the client disconnects, its requests end as single ones would. Guarded calls continue.
                    () = sender.closed() => {}
                }
            });
        }
        let stream = futures_util::stream::poll_fn(move |context| receiver.poll_recv(context));
        Response::from_parts(reply::event_stream(), Body::new(StreamBody::new(stream)))
    }

    async fn item(self: &Arc<Self>, head: &Parts, item: Bytes, sender: &Pieces) {
        let message = std::str::from_utf8(&item).ok().and_then(Head::parse);
        let response = match message {
            Some(message) => self.one(head, &message, &item).await,
            None => self.pass(head, full(item), None).await,
        };
        let (head, mut body) = response.into_parts();
        if reply::is_event_stream(&head.headers) {
            // Events of several messages may alternate but must not be mixed.
            let mut events = Events::default();
            while let Some(Ok(frame)) = body.frame().await {
                events.push(frame.data_ref().unwrap_or(&Bytes::new()));
                while let Some(event) = events.next() {
                    if sender.send(Ok(Frame::data(event.raw))).await.is_err() {
                        return;
                    }
                }
            }
        } else if let Ok(body) = body.collect().await.map(http_body_util::Collected::to_bytes)
            && !body.is_empty()
        {
            // The client may be gone; then it needs no answer.
            drop(sender.send(Ok(Frame::data(Event::of(&body)))).await);
        }
    }
}
