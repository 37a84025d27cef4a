//! Reads responses of the server.

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::Response;
use hyper::body::{Body as _, Incoming};
use hyper::header;
use hyper::http::response::Parts;
use onceward_http::events::{Event, Events};

use super::remote::in_words;
use super::{classify, headers, reply};
use crate::transport::call_transport::{SendError, ServerReply};
use crate::wire::frame::MAX_LINE;
use crate::wire::message::{Head, Id};

/// The head as it is forwarded, and the body. The length is set again when it is sent.
pub(crate) fn split(response: Response<Incoming>) -> (Parts, Incoming) {
    let (mut head, body) = response.into_parts();
    head.headers = headers::passed_on(&head.headers);
    head.headers.remove(header::CONTENT_LENGTH);
    (head, body)
}

/// Reads a whole body. Chunks are released as they are copied, so that the body is not in memory twice.
pub(crate) async fn collect(mut body: Incoming) -> Result<Bytes, String> {
    let expected = usize::try_from(body.size_hint().lower()).unwrap_or(MAX_LINE).min(MAX_LINE);
    let mut whole = Vec::with_capacity(expected);
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| in_words(&error))?;
        whole.extend_from_slice(frame.data_ref().unwrap_or(&Bytes::new()));
        if whole.len() > MAX_LINE {
            return Err(format!("it is longer than {MAX_LINE} bytes"));
        }
    }
    Ok(whole.into())
}

/// Reads an event stream.
pub(crate) struct Reader {
    body: Incoming,
    events: Events,
}

impl Reader {
    pub(crate) fn new(body: Incoming) -> Self {
        Self { body, events: Events::default() }
    }

    /// The next event, or `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Result<Option<Event>, String> {
        loop {
            if let Some(event) = self.events.next() {
                return Ok(Some(event));
            }
            if self.events.pending() > MAX_LINE {
                return Err(format!("an event is longer than {MAX_LINE} bytes"));
            }
            match self.body.frame().await {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.events.push(&data);
                    }
                }
                Some(Err(error)) => return Err(in_words(&error)),
                None => return Ok(None),
            }
        }
    }

    /// The bytes after the last complete event.
    pub(crate) fn rest(&mut self) -> Bytes {
        self.events.rest()
    }
}

/// The answer in a response. Everything else in it is dropped.
pub(crate) async fn answer_to(id: &Id, response: Response<Incoming>) -> Result<ServerReply, SendError> {
    let (head, body) = split(response);
    if !reply::is_event_stream(&head.headers) {
        let body = collect(body).await.map_err(SendError::MaybeSent)?;
        return Ok(if classify::is_answer(&head, &body, id) {
            ServerReply::Answer(body.into())
        } else {
            classify::unanswered(&head, &body)
        });
    }
    let mut reader = Reader::new(body);
    while let Some(event) = reader.next().await.map_err(SendError::MaybeSent)? {
        let message = event.data().and_then(|data| std::str::from_utf8(data).ok()).and_then(Head::parse);
        if message.is_some_and(|message| message.is_response() && message.id.map(Id::of).as_ref() == Some(id))
        {
            return Ok(ServerReply::Answer(event.data().unwrap_or_default().to_vec()));
        }
    }
    Ok(ServerReply::Over("the server ended its answer before it gave a result".to_owned()))
}
