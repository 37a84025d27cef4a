//! The HTTP transport of one guarded call: the client's request, and our request to the server, which continues if
//! the client disconnects.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::http::{request, response};
use hyper::{HeaderMap, Method, StatusCode, header};
use tokio::sync::oneshot;

use super::arrivals::{Arrival, Expected};
use super::gate::Gate;
use super::headers::{self, KEY, LAST_EVENT, METHOD, NAME, PARAM};
use super::outlet::Outlet;
use super::reader::{Reader, answer_to, collect, split};
use super::remote::{Connection, ForwardTo, full};
use super::{classify, header_check, reply};
use crate::call::waiters::Waiter;
use crate::sync::lock;
use crate::transport::call_transport::{
    CallAnswer, CallTransport, Delivered, Origin, Request, STOPPED, SendError, ServerReply,
};
use crate::wire::message::{Head, Id, cancelled};
use crate::wire::raw::{self, Object};
use crate::wire::tool_call::ToolCall;
use onceward_http::events::Event;
use onceward_http::time;

/// How long a client has to resume a stream that the server ended early, before the proxy does.
const RESUME_PATIENCE: Duration = Duration::from_secs(15);
/// The pause between two attempts to resume.
const RESUME_PAUSE: Duration = Duration::from_secs(1);
/// How often a stream without the answer is resumed.
const RESUMES: usize = 60;

/// The transport of one guarded call over HTTP.
pub(crate) struct HttpTransport {
    gate: Arc<Gate>,
    head: request::Parts,
    body: Bytes,
    waiter: Arc<Waiter>,
    outlet: Outlet,
    held: Mutex<Option<HeldReply>>,
}

/// How the server's reply arrived, until it may be forwarded.
enum HeldReply {
    /// As a body, with this head.
    Message(response::Parts),
    /// As an event in a stream: the bytes before and after its data. If nothing follows, the first part contains the
    /// answer.
    Event(Bytes, Bytes),
    /// As a response that is not an answer.
    Other(response::Parts, Bytes),
    /// On another stream, where it waits for its release.
    Elsewhere(oneshot::Sender<()>),
}

impl HttpTransport {
    pub(crate) fn new(
        gate: Arc<Gate>,
        head: request::Parts,
        body: Bytes,
        waiter: Arc<Waiter>,
        outlet: Outlet,
    ) -> Self {
        Self { gate, head, body, waiter, outlet, held: Mutex::default() }
    }

    fn hold(&self, held: HeldReply) {
        *lock(&self.held) = Some(held);
    }

    /// The client's headers, for a request whose response the proxy reads.
    fn readable(&self) -> HeaderMap {
        let mut headers = headers::passed_on(&self.head.headers);
        headers.remove(header::ACCEPT_ENCODING);
        headers
    }

    /// Sends the caller's request. Everything but the answer is forwarded as it arrives.
    async fn call(&self, line: String) -> Result<ServerReply, SendError> {
        let Waiter { caller, id, .. } = &*self.waiter;
        let expected = caller.session.is_some().then(|| self.gate.arrivals.expect(caller, id));
        let request = self.gate.remote.posted(&self.head, self.readable(), line);
        let response = self.gate.remote.send(request, Connection::Fresh).await?;
        let (head, body) = split(response);
        self.gate.answered(&self.head, head.status);
        if reply::is_event_stream(&head.headers) && head.status.is_success() {
            self.outlet.open(head);
            return Ok(self.read(body, expected).await);
        }
        let body = match collect(body).await {
            Ok(body) => body,
            Err(why) => return Ok(ServerReply::Over(format!("the server's answer broke off: {why}"))),
        };
        if classify::is_answer(&head, &body, id) {
            self.hold(HeldReply::Message(head));
            return Ok(ServerReply::Answer(body.into()));
        }
        let reply = classify::unanswered(&head, &body);
        self.hold(HeldReply::Other(head, body));
        Ok(reply)
    }

    /// Reads events until the answer arrives.
    async fn read(&self, body: Incoming, expected: Option<Expected<'_>>) -> ServerReply {
        let mut reader = Reader::new(body);
        let Some(mut expected) = expected else {
            return match self.answer_among(&mut reader, &mut None).await {
                Ok(event) => self.hold_event(event),
                Err(why) => ServerReply::Over(why),
            };
        };
        let mut last = None;
        let ended = tokio::select! {
            found = self.answer_among(&mut reader, &mut last) => match found {
                Ok(event) => return self.hold_event(event),
                Err(why) => why,
            },
            arrival = expected.arrival() => return self.hold_arrival(arrival),
        };
        let Some(last) = last else { return ServerReply::Over(ended) };
        drop(reader);
        // The client sees its stream end like the server's, and may resume it.
        self.outlet.close();
        self.resume_or_wait(expected, last).await
    }

    /// The event with the answer. Earlier events are forwarded to the client. `last` is the id to resume from.
    async fn answer_among(&self, reader: &mut Reader, last: &mut Option<String>) -> Result<Event, String> {
        loop {
            let next = reader.next().await;
            let next = next.map_err(|why| format!("the server's answer broke off: {why}"))?;
            let Some(event) = next else {
                return Err("the server ended its answer before it gave a result".to_owned());
            };
            *last = event.id.clone().filter(|id| !id.is_empty()).or(last.take());
            let message = event.data().and_then(|data| std::str::from_utf8(data).ok()).and_then(Head::parse);
            if let Some(message) = message {
                if message.is_response() && Id::of(message.id.unwrap_or_default()) == self.waiter.id {
                    return Ok(event);
                }
                self.gate.observe(&message);
                if message.method.as_deref() == Some("notifications/progress") {
                    self.gate.state.progress.tell(self.waiter.channel, &message);
                }
            }
            self.outlet.event(event.raw).await;
        }
    }

    fn hold_event(&self, event: Event) -> ServerReply {
        // A long answer is not held twice.
        let (before, line, after) = event.into_parts();
        self.hold(HeldReply::Event(before, after));
        ServerReply::Answer(line)
    }

    fn hold_arrival(&self, arrival: Arrival) -> ServerReply {
        self.hold(HeldReply::Elsewhere(arrival.release));
        ServerReply::Answer(arrival.line)
    }

    /// Waits for the answer on a stream that the client resumes, and resumes the stream itself after a while.
    async fn resume_or_wait(&self, mut expected: Expected<'_>, last: String) -> ServerReply {
        let patience = async {
            let clock = self.gate.state.ledger.clock();
            let until_ms = time::after(clock, RESUME_PATIENCE);
            while clock.now_ms() < until_ms && !self.waiter.is_gone() {
                time::sleep(clock, RESUME_PAUSE).await;
            }
            self.resume(last).await
        };
        tokio::select! {
            arrival = expected.arrival() => self.hold_arrival(arrival),
            reply = patience => reply,
        }
    }

    /// Resumes the stream where it ended.
    async fn resume(&self, mut last: String) -> ServerReply {
        let path = self.head.uri.path_and_query().map_or("/", |path| path.as_str());
        let over = |why: &str| {
            ServerReply::Over(format!("the server ended its answer before it gave a result: {why}"))
        };
        for _ in 0..RESUMES {
            let mut headers = self.readable();
            headers.remove(header::CONTENT_LENGTH);
            headers.remove(header::CONTENT_TYPE);
            let Ok(id) = last.parse() else { return over("its stream cannot be resumed") };
            headers.insert(LAST_EVENT, id);
            let request = self.gate.remote.request(Method::GET, path, headers, full(Bytes::new()));
            let response = match self.gate.remote.send(request, Connection::Kept).await {
                Ok(response) => response,
                Err(SendError::NotSent(why) | SendError::MaybeSent(why)) => return over(&why),
            };
            let (head, body) = split(response);
            if !head.status.is_success() || !reply::is_event_stream(&head.headers) {
                return over(&format!("its stream cannot be resumed (status {})", head.status.as_u16()));
            }
            let mut newer = Some(last);
            if let Ok(event) = self.answer_among(&mut Reader::new(body), &mut newer).await {
                return ServerReply::Answer(event.data().unwrap_or_default().to_vec());
            }
            last = newer.unwrap_or_default();
            time::sleep(self.gate.state.ledger.clock(), RESUME_PAUSE).await;
        }
        over("its stream was resumed too often")
    }

    /// Sends a request of the proxy, in the caller's session and with its credentials.
    async fn ask_for_proxy(&self, request: Request) -> Result<ServerReply, SendError> {
        let id = self.gate.own_id();
        let line = raw::spliced(&request.line, request.id_place, &id);
        let response = self.gate.remote.send(self.own_message(line), Connection::Kept).await?;
        answer_to(&Id::of(&id), response).await
    }

    /// A message of the proxy, in the caller's session and with its credentials.
    fn own_message(&self, line: String) -> hyper::Request<super::Body> {
        let mut headers = self.readable();
        let doubled = |name: &str| name == METHOD || name == NAME || name == KEY || name.starts_with(PARAM);
        let names: Vec<_> = headers.keys().filter(|name| doubled(name.as_str())).cloned().collect();
        let says_twice = names.contains(&METHOD);
        names.iter().for_each(|name| drop(headers.remove(name)));
        if says_twice && let Some(message) = Head::parse(&line) {
            let tool = message.params.and_then(Object::parse).and_then(|params| params.string("name"));
            headers.extend(message.method.and_then(|method| Some((METHOD, method.parse().ok()?))));
            headers.extend(tool.and_then(|tool| Some((NAME, tool.parse().ok()?))));
        }
        self.gate.remote.posted(&self.head, headers, line)
    }

    /// Whether the client accepts a plain JSON response.
    fn takes_messages(&self) -> bool {
        let accepts = self.head.headers.get_all(header::ACCEPT);
        let mut kinds =
            accepts.iter().filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(','));
        let is_message = |kind: &str| {
            let kind = kind.split(';').next().unwrap_or_default().trim();
            ["application/json", "application/*", "*/*"].contains(&kind)
        };
        accepts.iter().next().is_none() || kinds.any(is_message)
    }

    /// How the server would refuse a call that the proxy answers: its headers do not match its body, or its
    /// credentials are no longer valid.
    async fn refusal(&self) -> Option<(response::Parts, String)> {
        let call = std::str::from_utf8(&self.body).ok().and_then(Head::parse);
        let call = call.as_ref().and_then(ToolCall::parse)?;
        if let Some(denial) = self.gate.denial(&self.head, &call).await {
            let error = "{\"code\":-32001,\"message\":\"once: the server does not accept these credentials; not run\"}";
            let id = &self.waiter.id_text;
            return Some((denial, format!("{{\"jsonrpc\":\"2.0\",\"id\":{id},\"error\":{error}}}")));
        }
        let mirrored = lock(&self.gate.state.catalogue).mirrored(&call.tool);
        let refusal = header_check::refusal(&self.head.headers, &call, &mirrored)?;
        Some((reply::message(StatusCode::BAD_REQUEST), refusal))
    }

    async fn answer_from_proxy(&self, text: String) -> Delivered {
        match self.refusal().await {
            Some((head, refusal)) => match self.outlet.whole(head, refusal.into()).await {
                Delivered::Yes | Delivered::No => Delivered::No,
            },
            None if self.takes_messages() => {
                self.outlet.whole(reply::message(StatusCode::OK), text.into()).await
            }
            None => {
                self.outlet.event(Event::of(text.as_bytes())).await;
                self.outlet.end().await
            }
        }
    }
}

#[async_trait::async_trait]
impl CallTransport for HttpTransport {
    fn waiter(&self) -> &Arc<Waiter> {
        &self.waiter
    }

    async fn ask(&self, request: Request) -> Result<ServerReply, SendError> {
        match request.origin {
            Origin::Caller => self.call(Arc::unwrap_or_clone(request.line)).await,
            Origin::Proxy => self.ask_for_proxy(request).await,
        }
    }

    async fn cancel_request(&self) {
        let line = cancelled(&self.waiter.id_text, Some(STOPPED));
        // The server's answer to the call counts, not that to this notification.
        drop(self.gate.remote.send(self.own_message(line), Connection::Kept).await);
    }

    async fn pass(&self, call: ToolCall) {
        let response = self.gate.pass(&self.head, full(Arc::unwrap_or_clone(call.line)), None).await;
        self.outlet.respond(response);
    }

    async fn answer(&self, answer: CallAnswer) -> Delivered {
        let is_there = self.waiter.begin_answer();
        let delivered = self.send_answer(answer).await;
        if is_there { delivered } else { Delivered::No }
    }

    async fn announce(&self, method: &'static str) {
        self.gate.notifications.tell(&self.waiter.caller, method);
    }

    fn tell(&self, line: &[u8]) {
        if !self.waiter.is_gone() {
            self.outlet.try_event(Event::of(line));
        }
    }
}

impl HttpTransport {
    async fn send_answer(&self, answer: CallAnswer) -> Delivered {
        let held = lock(&self.held).take();
        match (answer, held) {
            (CallAnswer::FromServer(line), Some(HeldReply::Message(head))) => {
                self.outlet.whole(head, line.into()).await
            }
            (CallAnswer::FromServer(line), Some(HeldReply::Event(before, after))) => {
                let line = if after.is_empty() { Bytes::new() } else { line.into() };
                for piece in [before, line, after] {
                    self.outlet.event(piece).await;
                }
                self.outlet.end().await
            }
            (CallAnswer::FromServer(_), Some(HeldReply::Elsewhere(release))) => match release.send(()) {
                Ok(()) => Delivered::Yes,
                Err(()) => Delivered::No,
            },
            (CallAnswer::Held, Some(HeldReply::Other(head, body))) => self.outlet.whole(head, body).await,
            (CallAnswer::FromServer(line), Some(HeldReply::Other(..)) | None) => {
                self.outlet.whole(reply::message(StatusCode::OK), line.into()).await
            }
            (CallAnswer::FromProxy(text), _) => self.answer_from_proxy(text).await,
            (CallAnswer::Held | CallAnswer::Nothing, _) => self.outlet.end().await,
        }
    }
}
