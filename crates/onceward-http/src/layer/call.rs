//! One request with a key.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use onceward::{
    ApiProblem, Attempt, Dispatched, Done, Effect, Error, Evidence, Failure, Happened, Operation, Ran,
    Receipt,
};
use tokio::sync::oneshot;
use tower::{Service, ServiceExt};
use tracing::Instrument;

use super::body::{Part, Stream};
use super::problem;
use super::stored::{self, Head};
use super::{BoxError, HAPPENED, RequestBody, ResponseBody, Rules, key};
use crate::locks::lock;
use crate::telemetry::{self, CallSurface};

/// Answers a request whose method is looked at.
pub(super) async fn guarded<S, B, R>(
    rules: Arc<Rules>,
    mut service: S,
    request: Request<B>,
) -> Result<Response<ResponseBody<R>>, S::Error>
where
    S: Service<Request<RequestBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    let (parts, body) = request.into_parts();
    let key = match key::of(&parts.headers, &rules.header) {
        Ok(Some(key)) => key,
        Ok(None) if (rules.required)(&parts) => {
            return Ok(problem::response(&ApiProblem::key_missing(&key::shown(&rules.header))));
        }
        Ok(None) => {
            let request = Request::from_parts(parts, RequestBody::passed(body));
            return Ok(service.call(request).await?.map(ResponseBody::passed));
        }
        Err(error) => return Ok(problem::response(&ApiProblem::of(&error.into()))),
    };
    let body = match whole(body, rules.largest_request).await {
        Ok(body) => body,
        Err(refused) => return Ok(problem::response(&refused)),
    };
    let (reply, answer) = Reply::new();
    let call = Call { rules, parts, body, reply: Arc::new(reply) };
    let trace = call.trace_parent();
    let span = telemetry::call_span(CallSurface::Layer, trace.as_deref());
    // A client that leaves does not abort the request: its retry gets the answer.
    tokio::spawn(call.run(service, key, trace).instrument(span));
    match answer.await {
        Ok(answer) => answer,
        // The task ended without an answer, which only a panic outside the handler can cause.
        Err(_) => Ok(panicked()),
    }
}

/// All of a request's body.
async fn whole<B>(body: B, most: usize) -> Result<Bytes, ApiProblem>
where
    B: Body<Data = Bytes>,
    B::Error: Into<BoxError>,
{
    if body.size_hint().lower() > most as u64 {
        return Err(ApiProblem::too_large(most));
    }
    let mut body = std::pin::pin!(body);
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(frame) = frame else { return Err(ApiProblem::unreadable()) };
        if let Ok(data) = frame.into_data() {
            if read.len() + data.len() > most {
                return Err(ApiProblem::too_large(most));
            }
            read.extend_from_slice(&data);
        }
    }
    Ok(read.freeze())
}

/// The answer to a request whose handler panicked.
fn panicked<B>() -> Response<ResponseBody<B>> {
    let mut response = Response::new(ResponseBody::whole("Internal Server Error"));
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    let text = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, text);
    response
}

/// An answer to a client.
type Answer<R, E> = Result<Response<ResponseBody<R>>, E>;

/// Where the answer goes, and what of it is held back until the operation is recorded.
struct Reply<R, E> {
    to: Mutex<Option<oneshot::Sender<Answer<R, E>>>>,
    held: Mutex<Option<Held<R, E>>>,
}

/// A handler's answer that waits to be recorded.
enum Held<R, E> {
    /// All of it, and whether it reports success.
    Answer(Answer<R, E>, Happened),
    /// The end of a response that was streamed: its last frame if the client knows its length, and how it ended.
    End(Stream, Vec<Part>),
}

impl<R, E> Reply<R, E> {
    fn new() -> (Self, oneshot::Receiver<Answer<R, E>>) {
        let (sender, receiver) = oneshot::channel();
        (Self { to: Mutex::new(Some(sender)), held: Mutex::new(None) }, receiver)
    }

    fn hold(&self, held: Held<R, E>) {
        *lock(&self.held) = Some(held);
    }

    fn take(&self) -> Option<Held<R, E>> {
        lock(&self.held).take()
    }

    fn send(&self, answer: Answer<R, E>) {
        if let Some(to) = lock(&self.to).take() {
            // A client that has left changes nothing: the answer is recorded.
            drop(to.send(answer));
        }
    }
}

/// A request that is to be carried out once.
struct Call<R, E> {
    rules: Arc<Rules>,
    parts: Parts,
    body: Bytes,
    reply: Arc<Reply<R, E>>,
}

impl<R, E> Call<R, E>
where
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
    E: Send + 'static,
{
    /// The caller's trace, if it sent one.
    fn trace_parent(&self) -> Option<String> {
        let header = self.parts.headers.get("traceparent")?;
        header.to_str().ok().map(str::to_owned)
    }

    async fn run<S, B>(self, service: S, key: String, trace: Option<String>)
    where
        S: Service<Request<RequestBody<B>>, Response = Response<R>, Error = E> + Clone + Send + 'static,
        S::Future: Send,
        B: Send + 'static,
    {
        let begun = Instant::now();
        let ledger = self.rules.ledger.clone();
        let operation = Operation::new(key::name(&self.parts))
            .scope((self.rules.principal)(&self.parts))
            .key(key)
            .input_json(&key::inputs(&self.parts, &self.body))
            .trace_parent(trace.as_deref())
            .terms(self.rules.terms.clone());
        let result = match ledger.intent(operation) {
            Err(error) => Err(error),
            Ok(intent) => {
                telemetry::operation(&intent.id);
                let this = &self;
                ledger.call(intent).run(move |attempt| this.attempt(service.clone(), attempt)).await
            }
        };
        telemetry::ended(CallSurface::Layer, &result, begun.elapsed(), self.rules.metrics.as_ref());
        self.answer(result).await;
    }

    /// Lets the handler carry the request out, and records its answer.
    fn attempt<S, B>(
        &self,
        service: S,
        attempt: Attempt,
    ) -> impl Future<Output = Result<Done, Failure>> + Send + 'static
    where
        S: Service<Request<RequestBody<B>>, Response = Response<R>, Error = E> + Send + 'static,
        S::Future: Send,
        B: Send + 'static,
    {
        let mut parts = self.parts.clone();
        parts.extensions.insert(attempt.clone());
        let request = Request::from_parts(parts, RequestBody::whole(self.body.clone()));
        let recorder = Recorder {
            rules: Arc::clone(&self.rules),
            reply: Arc::clone(&self.reply),
            effect: effect(&self.parts.method),
        };
        async move {
            let sent = attempt.dispatch()?;
            let reply = Arc::clone(&recorder.reply);
            let work = async move {
                match service.oneshot(request).await {
                    Ok(response) => recorder.record(response, sent).await,
                    Err(error) => {
                        recorder.reply.hold(Held::Answer(Err(error), Happened::Unknown));
                        Err(Failure::in_doubt("the service failed"))
                    }
                }
            };
            AssertUnwindSafe(work).catch_unwind().await.unwrap_or_else(|_| {
                reply.hold(Held::Answer(Ok(panicked()), Happened::Unknown));
                Err(Failure::in_doubt("the handler panicked"))
            })
        }
    }

    /// Answers the client, now that the operation is recorded or was refused.
    async fn answer(self, result: Result<Receipt, Error>) {
        let reply = &self.reply;
        match (result, reply.take()) {
            (Ok(receipt), _) if receipt.replayed() => {
                let operation = receipt.record().id.to_string();
                let replay = stored::replay(&receipt);
                reply.send(Ok(replay.unwrap_or_else(|| problem::response(&ApiProblem::not_kept(operation)))));
            }
            (Ok(_), Some(Held::Answer(answer, _))) => reply.send(answer),
            (Ok(_), Some(Held::End(stream, rest))) => send_all(&stream, rest).await,
            (Err(error), Some(Held::Answer(answer, happened))) if is_handlers(&error, happened) => {
                reply.send(answer);
            }
            (Err(error), Some(Held::End(stream, rest))) => {
                // Without its end the response breaks off: the client does not take it for one that is recorded.
                if is_handlers(&error, Happened::Yes) {
                    send_all(&stream, rest).await;
                }
            }
            (Err(error), _) => reply.send(Ok(problem::response(&ApiProblem::of(&error)))),
            (Ok(receipt), None) => {
                reply.send(Ok(problem::response(&ApiProblem::not_kept(receipt.record().id.to_string()))));
            }
        }
    }
}

/// Whether the client gets the handler's own answer although the call did not succeed. A success that could not be
/// recorded is not passed on.
fn is_handlers(error: &Error, said: Happened) -> bool {
    match error {
        Error::Failed { ran: Ran::Yes, .. }
        | Error::InDoubt { ran: Ran::Yes, .. }
        | Error::Timeout { .. } => true,
        Error::Unrecorded { .. } => said != Happened::Yes,
        Error::Failed { ran: Ran::No, .. }
        | Error::InDoubt { ran: Ran::No, .. }
        | Error::Invalid(_)
        | Error::KeyMissing { .. }
        | Error::NotFound { .. }
        | Error::WrongState { .. }
        | Error::InProgress { .. }
        | Error::Held { .. }
        | Error::KeyExpired { .. }
        | Error::Cancelled { .. }
        | Error::Undone { .. }
        | Error::Stopped { .. }
        | Error::BudgetExhausted { .. }
        | Error::KeyReused { .. }
        | Error::Unverified { .. }
        | Error::ResultSealed { .. }
        | Error::ResultLost { .. }
        | Error::Unavailable(_)
        | _ => false,
    }
}

fn effect(method: &Method) -> Effect {
    match *method {
        Method::PUT | Method::PATCH => Effect::Updated,
        Method::DELETE => Effect::Deleted,
        _ => Effect::Created,
    }
}

/// Records a handler's response on its way to the client.
struct Recorder<R, E> {
    rules: Arc<Rules>,
    reply: Arc<Reply<R, E>>,
    effect: Effect,
}

impl<R, E> Recorder<R, E>
where
    R: Body<Data = Bytes> + Send + 'static,
    R::Error: Into<BoxError>,
{
    async fn record(&self, response: Response<R>, sent: Dispatched) -> Result<Done, Failure> {
        let happened = self.happened(&response);
        let (parts, body) = response.into_parts();
        let head = Head::of(&parts, body.size_hint().exact().is_none());
        let most = self.rules.largest_response;
        let fits = body.size_hint().exact().is_some_and(|size| size <= most as u64);
        let status = parts.status.as_u16();
        let kept = if fits {
            let read = Collected::of(Box::pin(body), most, None).await;
            let response = match &read.kept {
                Some(whole) if !read.broken => {
                    Response::from_parts(parts, ResponseBody::whole(whole.clone().freeze()))
                }
                Some(_) | None => panicked(),
            };
            self.reply.hold(Held::Answer(Ok(response), happened));
            read
        } else {
            let (stream, body_out) = ResponseBody::streamed(body.size_hint());
            // A client that knows the length does not wait for the end, so the last frame is held back instead.
            let hold = if body.size_hint().exact().is_some() { Hold::LastFrame } else { Hold::End };
            self.reply.send(Ok(Response::from_parts(parts, body_out)));
            let mut read = Collected::of(Box::pin(body), most, Some((&stream, hold))).await;
            let rest = std::mem::take(&mut read.rest);
            self.reply.hold(Held::End(stream, rest));
            read
        };
        if kept.broken {
            return Err(Failure::in_doubt("the response broke off"));
        }
        match (happened, kept.kept) {
            (Happened::Yes, Some(body)) => Ok(sent.done(self.effect, &head).body(body.freeze().to_vec())),
            (Happened::Yes, None) => Ok(sent.done_without_result(self.effect)),
            (Happened::No, _) => {
                let by = Evidence::declared(format!("the application, with status {status}"));
                Err(Failure::no_effect(by, format!("the application answered {status}")))
            }
            (Happened::Unknown, _) => Err(Failure::in_doubt(format!("the application answered {status}"))),
        }
    }

    /// Whether the request took effect: by the handler's word, by the rule for its status, or by the status.
    fn happened(&self, response: &Response<R>) -> Happened {
        if let Some(happened) = response.extensions().get::<Happened>() {
            return *happened;
        }
        match response.headers().get(HAPPENED).map(HeaderValue::as_bytes) {
            Some(b"yes") => return Happened::Yes,
            Some(b"no") => return Happened::No,
            Some(b"unknown") => return Happened::Unknown,
            Some(_) | None => {}
        }
        let status = response.status().as_u16();
        match (self.rules.outcomes.get(&status), status) {
            (Some(happened), _) => *happened,
            (None, ..400) => Happened::Yes,
            (None, 400..500) => Happened::No,
            (None, 500..) => Happened::Unknown,
        }
    }
}

/// What was read of a response.
struct Collected {
    /// The body, unless it is larger than what is kept.
    kept: Option<BytesMut>,
    /// Whether the handler stopped before its end.
    broken: bool,
    /// What was not passed on: the last frame if it is held back, and how the response ended.
    rest: Vec<Part>,
}

/// What of a response is held back until it is recorded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Hold {
    LastFrame,
    End,
}

impl Collected {
    /// Reads a response to its end, and passes each frame on.
    async fn of<R>(mut body: Pin<Box<R>>, most: usize, to: Option<(&Stream, Hold)>) -> Self
    where
        R: Body<Data = Bytes>,
        R::Error: Into<BoxError>,
    {
        let mut read = Self { kept: Some(BytesMut::new()), broken: false, rest: Vec::new() };
        let mut held: Option<Frame<Bytes>> = None;
        loop {
            let next: Option<Result<_, BoxError>> = body.frame().await.map(|frame| frame.map_err(Into::into));
            match next {
                None => {
                    read.rest.extend(held.map(Part::Frame).into_iter().chain([Part::End]));
                    return read;
                }
                Some(Ok(frame)) => {
                    if let Some(data) = frame.data_ref() {
                        read.keep(data, most);
                    }
                    let next = match to {
                        Some((_, Hold::LastFrame)) => held.replace(frame),
                        Some((_, Hold::End)) | None => Some(frame),
                    };
                    if let Some(frame) = next {
                        pass_on(Part::Frame(frame), to).await;
                    }
                }
                Some(Err(error)) => {
                    read.broken = true;
                    read.rest.extend(held.map(Part::Frame).into_iter().chain([Part::Broken(error)]));
                    return read;
                }
            }
        }
    }

    fn keep(&mut self, data: &Bytes, most: usize) {
        if let Some(kept) = &mut self.kept
            && kept.len() + data.len() <= most
        {
            kept.extend_from_slice(data);
        } else {
            self.kept = None;
        }
    }
}

/// Ends a response that is recorded. A client that has left changes nothing.
async fn send_all(stream: &Stream, rest: Vec<Part>) {
    for part in rest {
        drop(stream.send(part).await);
    }
}

/// Passes a part on. A client that has left changes nothing: the response is read to its end.
async fn pass_on(part: Part, to: Option<(&Stream, Hold)>) {
    if let Some((to, _)) = to {
        drop(to.send(part).await);
    }
}
