//! Several messages in one request, as the first era by HTTP has them. One that holds calls is taken apart, and its
//! answers come one by one.

use std::sync::Arc;

use bytes::Bytes;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::http::request::Parts;
use hyper::{Response, header};
use tokio::sync::mpsc;

use super::events::{Event, Events};
use super::gate::Gate;
use super::headers::KEY;
use super::remote::full;
use super::{Body, Broken, reply};
use crate::message::Head;

/// How many pieces wait for a client that is slow to read.
const PIECES: usize = 64;

type Pieces = mpsc::Sender<Result<Frame<Bytes>, Broken>>;

impl Gate {
    /// Answers each message of a batch by itself, all in one stream of events.
    pub(crate) fn batch(self: &Arc<Self>, mut head: Parts, items: &[&str]) -> Response<Body> {
        head.headers.remove(header::CONTENT_LENGTH);
        // One key for several calls is nobody's.
        head.headers.remove(KEY);
        let (sender, mut receiver) = mpsc::channel(PIECES);
        for item in items {
            let (gate, head, sender) = (Arc::clone(self), head.clone(), sender.clone());
            let item = Bytes::copy_from_slice(item.as_bytes());
            tokio::spawn(async move {
                tokio::select! {
                    () = gate.item(&head, item, &sender) => {}
                    // With the client its requests end, as one by one; calls that the ledger knows go on.
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
            // Events of several messages stand beside each other, and never within.
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
            // Whoever has gone meanwhile needs no answer.
            drop(sender.send(Ok(Frame::data(Event::of(&body)))).await);
        }
    }
}
