//! The two ends of a call that the ledger knows: the client's request, and a request of ours to the server, which goes
//! on when the client has left.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::Incoming;
use hyper::http::{request, response};
use hyper::{HeaderMap, Method, Response, StatusCode, header};
use tokio::sync::oneshot;

use super::arrivals::{Arrival, Expected};
use super::events::Event;
use super::gate::Gate;
use super::headers::{self, KEY, LAST_EVENT, METHOD, NAME, PARAM};
use super::outlet::Outlet;
use super::remote::{Connection, full};
use super::watch::{Reader, collect, split};
use super::{reply, verdict, vet};
use crate::call::ToolCall;
use crate::ends::{Answer, Ends, Left, Reply, Request, Unsent, Whose};
use crate::message::{Head, Id};
use crate::raw::{self, Object};
use crate::upstream::lock;
use crate::waiters::Waiter;

/// How long a client has to take up a stream that the server has ended early, before we do.
const RESUME_PATIENCE: Duration = Duration::from_secs(15);
/// How long to wait between two tries to take it up.
const RESUME_PAUSE: Duration = Duration::from_secs(1);
/// How often a stream is taken up that tells nothing new.
const RESUMES: usize = 60;

/// The two ends of one call.
pub(crate) struct HttpEnds {
    gate: Arc<Gate>,
    head: request::Parts,
    body: Bytes,
    waiter: Arc<Waiter>,
    outlet: Outlet,
    kept: Mutex<Option<Kept>>,
}

/// How the server's answer came, until it may go on.
enum Kept {
    /// As a body, with this head.
    Message(response::Parts),
    /// As an event among others: what stands before and after it. Without an end the answer stands in it already.
    Event(Bytes, Bytes),
    /// As something that is no answer.
    Other(response::Parts, Bytes),
    /// By another stream, where it waits.
    Elsewhere(oneshot::Sender<()>),
}

impl HttpEnds {
    pub(crate) fn new(
        gate: Arc<Gate>,
        head: request::Parts,
        body: Bytes,
        waiter: Arc<Waiter>,
        outlet: Outlet,
    ) -> Self {
        Self { gate, head, body, waiter, outlet, kept: Mutex::default() }
    }

    fn keep(&self, kept: Kept) {
        *lock(&self.kept) = Some(kept);
    }

    /// The client's headers, for a request whose answer is read here.
    fn readable(&self) -> HeaderMap {
        let mut headers = headers::passed_on(&self.head.headers);
        headers.remove(header::ACCEPT_ENCODING);
        headers
    }

    /// Sends the caller's request. Everything but its answer goes on to him as it comes.
    async fn call(&self, line: String) -> Result<Reply, Unsent> {
        let Waiter { caller, id, .. } = &*self.waiter;
        let expected = caller.session.is_some().then(|| self.gate.arrivals.expect(caller, id));
        let request = self.gate.remote.posted(&self.head, self.readable(), line);
        let response = self.gate.remote.send(request, Connection::Fresh).await?;
        let (head, body) = split(response);
        if head.status.is_success() {
            self.gate.principals.accepted(&self.head.headers, caller);
        }
        if reply::is_event_stream(&head.headers) && head.status.is_success() {
            self.outlet.open(head);
            return Ok(self.read(body, expected).await);
        }
        let body = match collect(body).await {
            Ok(body) => body,
            Err(why) => return Ok(Reply::Over(format!("the server's answer broke off: {why}"))),
        };
        let text = std::str::from_utf8(&body).ok();
        let is_answer = text.and_then(Head::parse).is_some_and(|message| message.is_response());
        if head.status.is_success() && is_answer {
            self.keep(Kept::Message(head));
            return Ok(Reply::Answer(body.into()));
        }
        let reply = verdict::of(&head, &body);
        self.keep(Kept::Other(head, body));
        Ok(reply)
    }

    /// Reads events until the answer is among them.
    async fn read(&self, body: Incoming, expected: Option<Expected<'_>>) -> Reply {
        let mut reader = Reader::new(body);
        let Some(mut expected) = expected else {
            return match self.answer_among(&mut reader, &mut None).await {
                Ok(event) => self.came(event),
                Err(why) => Reply::Over(why),
            };
        };
        let mut last = None;
        let ended = tokio::select! {
            found = self.answer_among(&mut reader, &mut last) => match found {
                Ok(event) => return self.came(event),
                Err(why) => why,
            },
            arrival = expected.arrival() => return self.arrived(arrival),
        };
        let Some(last) = last else { return Reply::Over(ended) };
        drop(reader);
        // The client sees its stream end as the server's did, and may take it up by itself.
        self.outlet.close();
        self.taken_up(expected, last).await
    }

    /// The event with the answer. What comes before it goes on to the client, and `last` is the id to go on from.
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
                self.gate.heard(&message);
                if message.method.as_deref() == Some("notifications/progress") {
                    self.gate.desk.progress.tell(self.waiter.channel, &message);
                }
            }
            self.outlet.event(event.raw).await;
        }
    }

    fn came(&self, event: Event) -> Reply {
        // A long answer is not kept beside itself.
        let (before, line, after) = event.apart();
        self.keep(Kept::Event(before, after));
        Reply::Answer(line)
    }

    fn arrived(&self, arrival: Arrival) -> Reply {
        self.keep(Kept::Elsewhere(arrival.release));
        Reply::Answer(arrival.line)
    }

    /// The answer by another stream: the client's, or else one of ours.
    async fn taken_up(&self, mut expected: Expected<'_>, last: String) -> Reply {
        let patience = async {
            let begun = tokio::time::Instant::now();
            while begun.elapsed() < RESUME_PATIENCE && !self.waiter.is_gone() {
                tokio::time::sleep(RESUME_PAUSE).await;
            }
            self.resumed(last).await
        };
        tokio::select! {
            arrival = expected.arrival() => self.arrived(arrival),
            reply = patience => reply,
        }
    }

    /// Takes the stream up where it ended.
    async fn resumed(&self, mut last: String) -> Reply {
        let path = self.head.uri.path_and_query().map_or("/", |path| path.as_str());
        let over =
            |why: &str| Reply::Over(format!("the server ended its answer before it gave a result: {why}"));
        for _ in 0..RESUMES {
            let mut headers = self.readable();
            headers.remove(header::CONTENT_LENGTH);
            headers.remove(header::CONTENT_TYPE);
            let Ok(id) = last.parse() else { return over("its stream cannot be taken up") };
            headers.insert(LAST_EVENT, id);
            let request = self.gate.remote.request(Method::GET, path, headers, full(Bytes::new()));
            let response = match self.gate.remote.send(request, Connection::Kept).await {
                Ok(response) => response,
                Err(Unsent::Nothing(why) | Unsent::Perhaps(why)) => return over(&why),
            };
            let (head, body) = split(response);
            if !head.status.is_success() || !reply::is_event_stream(&head.headers) {
                return over(&format!("its stream cannot be taken up (status {})", head.status.as_u16()));
            }
            let mut newer = Some(last);
            if let Ok(event) = self.answer_among(&mut Reader::new(body), &mut newer).await {
                return Reply::Answer(event.data().unwrap_or_default().to_vec());
            }
            last = newer.unwrap_or_default();
            tokio::time::sleep(RESUME_PAUSE).await;
        }
        over("its stream was taken up again and again")
    }

    /// Asks something of our own, in the caller's session and by his leave.
    async fn own(&self, request: Request) -> Result<Reply, Unsent> {
        let id = self.gate.own_id();
        let line = raw::spliced(&request.line, request.id_place, &id);
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
        let request = self.gate.remote.posted(&self.head, headers, line);
        let response = self.gate.remote.send(request, Connection::Kept).await?;
        answer_to(&Id::of(&id), response).await
    }

    /// Whether the client takes a message that is no event.
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

    async fn ours(&self, text: String) -> Left {
        let call =
            std::str::from_utf8(&self.body).ok().and_then(Head::parse).as_ref().and_then(ToolCall::parse);
        let refusal = call.and_then(|call| {
            let mirrored = lock(&self.gate.desk.catalogue).mirrored(&call.tool);
            vet::refusal(&self.head.headers, &call, &mirrored)
        });
        match refusal {
            Some(refusal) => {
                match self.outlet.whole(reply::message(StatusCode::BAD_REQUEST), refusal.into()).await {
                    Left::Yes | Left::No => Left::No,
                }
            }
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

/// The answer in a response, and nothing else of it.
pub(crate) async fn answer_to(id: &Id, response: Response<Incoming>) -> Result<Reply, Unsent> {
    let (head, body) = split(response);
    if !reply::is_event_stream(&head.headers) {
        let body = collect(body).await.map_err(Unsent::Perhaps)?;
        return Ok(if head.status.is_success() {
            Reply::Answer(body.into())
        } else {
            verdict::of(&head, &body)
        });
    }
    let mut reader = Reader::new(body);
    while let Some(event) = reader.next().await.map_err(Unsent::Perhaps)? {
        let message = event.data().and_then(|data| std::str::from_utf8(data).ok()).and_then(Head::parse);
        if message.is_some_and(|message| message.is_response() && message.id.map(Id::of).as_ref() == Some(id))
        {
            return Ok(Reply::Answer(event.data().unwrap_or_default().to_vec()));
        }
    }
    Ok(Reply::Over("the server ended its answer before it gave a result".to_owned()))
}

#[async_trait::async_trait]
impl Ends for HttpEnds {
    fn waiter(&self) -> &Arc<Waiter> {
        &self.waiter
    }

    async fn ask(&self, request: Request) -> Result<Reply, Unsent> {
        match request.whose {
            Whose::Callers => self.call(Arc::unwrap_or_clone(request.line)).await,
            Whose::Ours => self.own(request).await,
        }
    }

    async fn pass(&self, call: ToolCall) {
        let response = self.gate.pass(&self.head, full(Arc::unwrap_or_clone(call.line)), None).await;
        self.outlet.respond(response);
    }

    async fn answer(&self, answer: Answer) -> Left {
        let kept = lock(&self.kept).take();
        match (answer, kept) {
            (Answer::Servers(line), Some(Kept::Message(head))) => self.outlet.whole(head, line.into()).await,
            (Answer::Servers(line), Some(Kept::Event(before, after))) => {
                let line = if after.is_empty() { Bytes::new() } else { line.into() };
                for piece in [before, line, after] {
                    self.outlet.event(piece).await;
                }
                self.outlet.end().await
            }
            (Answer::Servers(_), Some(Kept::Elsewhere(release))) => match release.send(()) {
                Ok(()) => Left::Yes,
                Err(()) => Left::No,
            },
            (Answer::Kept, Some(Kept::Other(head, body))) => self.outlet.whole(head, body).await,
            (Answer::Servers(line), Some(Kept::Other(..)) | None) => {
                self.outlet.whole(reply::message(StatusCode::OK), line.into()).await
            }
            (Answer::Ours(text), _) => self.ours(text).await,
            (Answer::Kept | Answer::Nothing, _) => self.outlet.end().await,
        }
    }

    fn tell(&self, line: &[u8]) {
        if !self.waiter.is_gone() {
            self.outlet.try_event(Event::of(line));
        }
    }
}
